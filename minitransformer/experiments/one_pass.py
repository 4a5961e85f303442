"""Does a model that was trained causally say the same when it can't see what comes? Reformer and routing, judged both ways.

Which keys a query sees depends there on the whole text: on how buckets fill, on which tokens a cluster takes. In one pass over
a text the later tokens take part in that; when the text is read again for every byte, they are not there yet. The values are
causal either way. Is it what comes later that matters, or only that something does? In a third reading every byte is predicted
with a false future behind it, the end of another passage. A window is a control: it gives the same bits all three ways.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.data.text import python_docs
from minitransformer.models import LanguageModel
from minitransformer.training.objective import NextByte, bits_of
from minitransformer.training.recipes import usually_trained
from minitransformer.typing import Array

IN_A_TEST = {"steps": 2, "passages": 2}
CONTEXT, FROM = 128, 64
ATTENTIONS = ("window:radius=31", "reformer:chunk=16,rounds=2", "routing:clusters=4")


@dataclass(frozen=True)
class Trial:
    """What one training is made with, and how many held-out passages are read then."""

    attention: str
    seed: int
    steps: int = 800
    passages: int = 32


def trials() -> list[Trial]:
    """Three seeds for each kind."""
    return [Trial(attention, seed) for attention in ATTENTIONS for seed in range(3)]


def run(trial: Trial) -> dict[str, Any]:
    """Bits of the last bytes of held-out passages: read in one pass, byte by byte (each from its past alone), and with a false
    future (each from its past and the end of another passage). By passage, so that differences have a standard error."""
    model = LanguageModel(context=CONTEXT, width=64, depth=2, heads=4, attention=trial.attention, positions="rope")
    objective = NextByte(python_docs(), CONTEXT)
    params = usually_trained(model, objective, trial.steps, 8, 6e-3, trial.seed)
    text = objective.text.held_out
    starts = np.linspace(0, len(text) - CONTEXT - 1, trial.passages).astype(int)
    tokens = text[starts[:, None] + np.arange(CONTEXT + 1)].astype(np.int64)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    false = np.roll(inputs, 1, axis=0)

    def last(i: int, *behind: Array) -> Array:
        return model(params, np.concatenate([inputs[:, : i + 1], *behind], 1))[0][:, i]

    positions = range(FROM, CONTEXT)
    ways = {
        "one pass": model(params, inputs)[0][:, FROM:],
        "byte by byte": np.stack([last(i) for i in positions], 1),
        "false future": np.stack([last(i, false[:, i + 1 :]) for i in positions], 1),
    }
    bits = {name: bits_of(logits, targets[:, FROM:]).mean(1) for name, logits in ways.items()}
    return {name: np.round(each, 4).tolist() for name, each in bits.items()}
