"""Training curves of small models that read a thousand bytes at a time, by their attention, on record."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.long_text import ATTENTIONS, EVERY
from minitransformer.figures.style import figure
from minitransformer.typing import Array

NAMES = {
    "softmax": "dense",
    "performer:redraw=100": "Performer, drawn anew every 100 steps",
    "performer:redraw=None": "Performer, drawn once",
    "linear": "linear transformer",
    "window:radius=32": "window of 32",
}


class LongText(NamedTuple):
    """Bits per byte by the attention: losses (seeds, k) and looks at held-out text (seeds, k) at these steps; the end (seeds,).

    made_on   the machine
    """

    steps: Array
    losses: dict[str, Array]
    looks: dict[str, Array]
    bits: dict[str, Array]
    made_on: str


def data() -> LongText:
    """What is on record."""
    record = experiments.load("long_text")
    losses, looks, bits = {}, {}, {}
    for attention in ATTENTIONS:
        mine = [result for trial, result in record if trial.attention == attention]
        losses[attention] = np.array([result["losses"] for result in mine])
        looks[attention] = np.array([[look for _, look in result["looks"]] for result in mine])
        bits[attention] = np.array([result["bits"] for result in mine])
    steps = EVERY * np.arange(1, losses[ATTENTIONS[0]].shape[1] + 1)
    return LongText(steps, losses, looks, bits, record.made_on)


def draw(data: LongText) -> Figure:
    """Training dashed, held-out solid, each the mean of the seeds; as in the Lecture notes."""
    fig, ax = figure(height=7)
    widths = (2.5, 7, 4.5, 2, 2.5)  # three lines upon each other, and each to be seen
    for k, ((attention, name), width) in enumerate(zip(NAMES.items(), widths, strict=True)):
        ax.plot(data.steps, data.losses[attention].mean(0), color=f"C{k}", linestyle="--", linewidth=1.5)
        ax.plot(data.steps, data.looks[attention].mean(0), color=f"C{k}", linestyle="-", linewidth=width, label=name)
    ax.set(xlabel="step", ylabel="bits per byte", xlim=(0, data.steps[-1]))
    ax.legend(loc="upper right")
    return fig
