"""How many steps a trained Universal Transformer takes, and how often it is right, against how hard it is: from the record."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.thinking_longer import STEPS
from minitransformer.figures.style import figure
from minitransformer.typing import Array


class ThinkingLonger(NamedTuple):
    """For each price of a step, 0 if nobody halts, below for a stack of blocks: (seeds, moves), NaN where nothing is so hard."""

    steps: dict[float, Array]
    right: dict[float, Array]


def data() -> ThinkingLonger:
    """Steps and answers from the record, by price."""
    record = experiments.load("thinking_longer")
    prices = dict.fromkeys(trial.ponder for trial, _ in record)

    def of(what: str, price: float) -> Array:
        return np.array([result[what] for result in record.where(ponder=price)], float)

    return ThinkingLonger(*({price: of(what, price) for price in prices} for what in ("steps", "right")))


def draw(data: ThinkingLonger) -> Figure:
    """Above steps, below the share of right answers; a line for each training."""
    fig, axes = figure(2, 1, height=9.5)
    for ax, values, label in zip(axes, data, ("steps", "right answers"), strict=True):
        for found, color, line in zip(values.values(), ("C0", "C1", "C2", "0.5"), ("-", "--", "-.", ":"), strict=True):
            for seed, marker in zip(found, "os^", strict=True):
                hard = ~np.isnan(seed)
                ax.plot(np.flatnonzero(hard), seed[hard], color=color, linestyle=line, marker=marker)
        ax.set(xlabel="moves to the end", ylabel=label)
    axes[0].set_ylim(1.1, 8.3)
    for x, y, name, color in (
        (2.4, 7.4, "all steps", "C2"),
        (5.6, 7.4, f"{STEPS} blocks", "0.4"),
        (2.2, 4.7, "λ = 0.001", "C0"),
        (5, 1.3, "λ = 0.01", "C1"),
    ):
        axes[0].text(x, y, name, color=color, ha="center")
    return fig
