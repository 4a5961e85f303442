"""A model with RoPE meets texts four times as long as in training: which change of its frequencies helps?"""

from dataclasses import dataclass, replace
from typing import Any

from minitransformer.experiments.positions import LENGTHS, STEPS, fit, score
from minitransformer.positions import NTK, DynamicNTK, PositionInterpolation, RoPE, YaRN

IN_A_TEST = {"steps": 2}
FACTOR, TRAINED = 4, LENGTHS["text"][0]
SCALINGS = {
    "as trained": None,
    "interpolation": PositionInterpolation(FACTOR),
    "NTK": NTK(FACTOR),
    "dynamic NTK": DynamicNTK(1, TRAINED),
    "YaRN": YaRN(FACTOR, TRAINED),
}


@dataclass(frozen=True)
class Trial:
    """The language model of the experiment `positions`, on text, with RoPE."""

    seed: int
    steps: int = STEPS["text"]


def trials() -> list[Trial]:
    """Three trials that differ in their seed."""
    return [Trial(seed) for seed in range(3)]


def run(trial: Trial) -> dict[str, Any]:
    """Bits per byte at each length, for each set of frequencies, with the same weights."""
    trained = fit("text", "rope", trial.seed, steps=trial.steps)
    width = trained.model.width // trained.model.heads
    found = {}
    for name, scaling in SCALINGS.items():
        scaled = trained._replace(model=replace(trained.model, positions=RoPE(width, scaling=scaling)))
        found[name] = [round(score(scaled, "text", length), 4) for length in LENGTHS["text"]]
    return found
