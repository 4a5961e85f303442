"""What `minitransformer train` did in its three minutes, from the record of a run; n-grams of the same text as controls."""

import json
from importlib import resources
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure
from minitransformer.typing import Array


class TrainingText(NamedTuple):
    """Bits per byte of each step and of each look at held-out text, the n-grams by order, and who ran it."""

    losses: Array
    steps: Array
    held_out: Array
    ngrams: dict[int, float]
    final: float
    machine: str
    seconds: float


def data() -> TrainingText:
    """Read the committed record of the default run."""
    record = json.loads(resources.files("minitransformer.figures").joinpath("data/train_text.json").read_text("utf8"))
    steps, held_out = np.array(record["held_out"]).T
    ngrams = {int(order): bits for order, bits in record["ngrams"].items()}
    return TrainingText(
        np.array(record["losses"]), steps, held_out, ngrams, record["bits_per_byte"], record["machine"], record["seconds"]
    )


def draw(data: TrainingText) -> Figure:
    """Loss against steps; the controls as horizontal lines."""
    fig, ax = figure(width=7.0, height=3.6)
    smooth = np.convolve(data.losses, np.ones(20) / 20, "valid")
    ax.plot(np.arange(20, len(data.losses) + 1), smooth, color="0.65", linewidth=1.2, linestyle="-", label="training, mean of 20 steps")
    ax.plot(data.steps, data.held_out, label="held-out")
    for order in (2, 3, 6):
        ax.axhline(data.ngrams[order], color="#c8553d", linewidth=1, linestyle="-")
        ax.text(len(data.losses), data.ngrams[order] + 0.04, f"{order}-gram", ha="right", fontsize=10, color="#c8553d")
    ax.set(xlabel="step", ylabel="bits per byte", ylim=(1.2, 5), xlim=(0, len(data.losses)))
    ax.legend(loc="upper right")
    return fig
