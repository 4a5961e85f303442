"""Does a model that was trained causally say the same when it can't see what comes? Reformer and routing, judged both ways.

Which keys a query sees depends there on the whole text: on how buckets fill, on which tokens a cluster takes. In one pass over
a text the later tokens take part in that; when the text is read again for every byte, they are not there yet. The values are
causal either way. A window is the control: it gives the same bits both ways.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minitransformer.data.text import python_docs
from minitransformer.models import LanguageModel
from minitransformer.training.choices import Training
from minitransformer.training.loop import train
from minitransformer.training.objective import NextByte, bits_of
from minitransformer.training.schedule import Cosine

CONTEXT, PASSAGES, FROM = 128, 8, 64
ATTENTIONS = ("window:radius=31", "reformer:chunk=16,rounds=2", "routing:clusters=4")


@dataclass(frozen=True)
class Trial:
    """One training."""

    attention: str
    seed: int
    steps: int = 800


def trials() -> list[Trial]:
    """Three seeds each."""
    return [Trial(attention, seed) for attention in ATTENTIONS for seed in range(3)]


def small(trial: Trial) -> Trial:
    """Two steps."""
    return replace(trial, steps=2)


def run(trial: Trial) -> dict[str, Any]:
    """Bits of the last bytes of held-out passages: read in one pass, and word by word, that is each from its past alone."""
    model = LanguageModel(context=CONTEXT, width=64, depth=2, heads=4, attention=trial.attention, positions="rope")
    objective = NextByte(python_docs(), CONTEXT)
    schedule = Cosine(6e-3, trial.steps, warmup=trial.steps // 10)
    training = Training(trial.steps, 8, schedule, parts=1, seed=trial.seed, look_every=trial.steps)
    params = train(model, objective, training, progress=False).params
    text = objective.text.held_out
    starts = np.linspace(0, len(text) - CONTEXT - 1, PASSAGES).astype(int)
    tokens = text[starts[:, None] + np.arange(CONTEXT + 1)].astype(np.int64)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    whole = model(params, inputs)[0][:, FROM:]
    alone = np.stack([model(params, inputs[:, : i + 1])[0][:, -1] for i in range(FROM, CONTEXT)], 1)
    ways = {"one pass": whole, "word by word": alone}
    return {name: round(float(bits_of(logits, targets[:, FROM:]).mean()), 4) for name, logits in ways.items()}
