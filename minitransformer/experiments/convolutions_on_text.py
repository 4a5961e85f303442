"""What is a look at the neighbours worth? Convolutions that don't take one, a window that does, and dense attention, on one text.

All models have nearly the same number of parameters: what a block saves in its mixer goes into its feed-forward network. The
control is a convolution of one tap, in which no token hears of another one.
"""

from dataclasses import dataclass, replace
from typing import Any

from minitransformer.backend import backend
from minitransformer.checks import form_of
from minitransformer.data.text import encode, python_docs
from minitransformer.models import LanguageModel
from minitransformer.pullback import tree_size
from minitransformer.training.loop import train
from minitransformer.training.objective import NextByte
from minitransformer.training.recipes import language_model

IN_A_TEST = {"steps": 2}
TAPS = 15  # bytes that a token sees in one layer, its own included; causal
MODELS = {
    "dynamic convolution": f"dynamic-convolution:taps={TAPS}",
    "lightweight convolution": f"lightweight-convolution:taps={TAPS}",
    "window": f"window:radius={TAPS - 1}",
    "dense": "softmax",
    "one tap": "lightweight-convolution:taps=1",
}
TEXT = "the hen then went there"  # on which two of the models are looked at
SIZES: dict[str, Any] = {"width": 64, "depth": 2, "heads": 4, "context": 128}


@dataclass(frozen=True)
class Trial:
    """One training of one of MODELS, with an encoding of positions or none."""

    model: str
    positions: str
    seed: int
    steps: int = 300


TURNED = ("window", "rope"), ("dense", "rope")  # a convolution has no queries and keys to turn
LONGER = (
    ("dynamic convolution", "none"),
    ("lightweight convolution", "none"),
    ("window", "sinusoidal"),
    ("dense", "sinusoidal"),
    *TURNED,
)


def trials() -> list[Trial]:
    """Three seeds each; the control has no need of positions, for no token meets another one."""
    kinds = [
        (name, positions)
        for positions in ("sinusoidal", "none")
        for name in MODELS
        if (name, positions) != ("one tap", "none")
    ]
    usual = [Trial(*kind, seed) for kind in (*kinds, *TURNED) for seed in range(3)]
    return usual + [Trial(*kind, seed, 900) for kind in LONGER for seed in range(3)]


def hidden(attention: str) -> int:
    """The width of the feed-forward networks with which a model has nearly as many parameters as the dense one."""
    dense, other = (tree_size(form_of(LanguageModel(**SIZES, attention=kind))) for kind in ("softmax", attention))
    return 4 * SIZES["width"] + round((dense - other) / SIZES["depth"] / (2 * SIZES["width"] + 1))


def run(trial: Trial) -> dict[str, Any]:
    """Bits per byte of the held-out text, the number of parameters, and of two models the matrices of the first block."""
    attention = MODELS[trial.model]
    _, training = language_model(seed=trial.seed, steps=trial.steps, batch=8, lr=5e-3)
    model = LanguageModel(**SIZES, attention=attention, positions=trial.positions, hidden=hidden(attention))
    objective = NextByte(python_docs(), model.context)
    state = train(model, objective, replace(training, look_every=trial.steps), progress=False)
    bits = float(objective.bits(model, state.params).mean())
    found: dict[str, Any] = {"parameters": tree_size(state.params), "bits": round(bits, 4)}
    usual = trial.positions == "none" and trial.seed == 0 and trial.steps <= Trial.steps
    if usual and trial.model in ("dynamic convolution", "window"):
        with backend("numpy"):  # the tier that keeps A
            _, pullback = model(state.params, encode(TEXT)[None])
        found["attention"] = pullback.blocks[0].attention.A[0].astype(float).round(4).tolist()
    return found
