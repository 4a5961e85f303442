"""Does a model learn a text of a thousand bytes at a time through random features, and does redrawing them matter?

The same small model on the Python documentation, with dense attention, a Performer, the linear transformer, and a window of
33 bytes as a control that sees nothing from afar. Then a window in the first block, and a Performer or the linear transformer
in the second.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minitransformer.data.text import python_docs
from minitransformer.training.loop import train
from minitransformer.training.objective import NextByte
from minitransformer.training.recipes import language_model

EVERY = 20  # steps whose losses become one number
WINDOW = "window:radius=32"
ATTENTIONS = ("softmax", "performer:redraw=100", "performer:redraw=None", "linear", WINDOW)
MIXED = (f"{WINDOW} + performer:redraw=None", f"{WINDOW} + linear")  # the first block, and the second
IN_A_TEST = {"steps": EVERY, "context": 32}


@dataclass(frozen=True)
class Trial:
    """What one training is made with."""

    attention: str
    seed: int
    steps: int = 400
    context: int = 1024


def trials() -> list[Trial]:
    """Three seeds for each kind."""
    return [Trial(attention, seed) for attention in (*ATTENTIONS, *MIXED) for seed in range(3)]


def run(trial: Trial) -> dict[str, Any]:
    """Bits per byte: losses on the way, as means of 20 steps; of held-out windows; and of all the held-out text at the end."""
    sizes = {"width": 64, "depth": 2, "heads": 2, "context": trial.context, "batch": 2}
    attention = tuple(trial.attention.split(" + "))
    model, training = language_model(
        attention=attention, seed=trial.seed, steps=trial.steps, lr=5e-3, ffn="relu", **sizes
    )
    training = replace(training, look_every=EVERY)
    objective = NextByte(python_docs(), model.context)
    state = train(model, objective, training, progress=False)
    losses = np.array(state.losses).reshape(-1, EVERY).mean(1)
    return {
        "losses": [round(float(loss), 3) for loss in losses],
        "looks": [[step, round(float(bits), 3)] for step, bits in state.held_out],
        "bits": round(float(objective.bits(model, state.params).mean()), 4),
    }
