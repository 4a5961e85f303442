"""Training curves of small models that read a thousand bytes at a time, by their attention, on record."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.long_text import ATTENTIONS, EVERY, MIXED
from minitransformer.figures.style import figure
from minitransformer.typing import Array

NAMES = {  # of those that are drawn; a Performer whose directions are drawn anew would lie upon the other
    "softmax": ("dense", "C0"),  # three colours as in `linear_time`
    "performer:redraw=None": ("Performer", "C2"),
    "linear": ("linear", "C3"),
    "window:radius=32": ("window of 33", "C5"),  # 32 tokens back, and the token itself
    MIXED[0]: ("window, Performer", "C4"),
    MIXED[1]: ("window, linear", "C1"),
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
    for attention in (*ATTENTIONS, *MIXED):
        mine = record.where(attention=attention)
        losses[attention] = np.array([result["losses"] for result in mine])
        looks[attention] = np.array([[look for _, look in result["looks"]] for result in mine])
        bits[attention] = np.array([result["bits"] for result in mine])
    steps = EVERY * np.arange(1, losses[ATTENTIONS[0]].shape[1] + 1)
    return LongText(steps, losses, looks, bits, record.made_on)


def draw(data: LongText) -> Figure:
    """Training dashed, held-out solid, each the mean of the seeds; as in the Lecture notes. Names stand at the ends of lines.

    Training begins above the picture.
    """
    fig, ax = figure(width=10, height=7)
    ends = []
    for attention, (name, color) in NAMES.items():
        ax.plot(data.steps, data.losses[attention].mean(0), color=color, linestyle="--", linewidth=1.2)
        looks = data.looks[attention].mean(0)
        ax.plot(data.steps, looks, color=color, linestyle="-", linewidth=3)
        ends.append((looks[-1], name, color))
    ends.sort()
    places = np.array([end for end, *_ in ends])
    for _ in range(50):  # where lines end close together, their names move apart
        overlap = np.maximum(0.125 - np.diff(places), 0) / 2
        places[:-1] -= overlap
        places[1:] += overlap
    for place, (_, name, color) in zip(places, ends, strict=True):
        ax.annotate(name, (data.steps[-1], place), (8, 0), textcoords="offset points", va="center", color=color)
    ax.set(xlabel="step", ylabel="bits per byte", xlim=(0, data.steps[-1]), ylim=(2.2, 5))
    return fig
