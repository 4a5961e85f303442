"""Pairs that are recalled, by their number and by the attention: those written once, and those rewritten. From the record."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.many_pairs import ATTENTIONS, PAIRS
from minitransformer.figures.style import figure
from minitransformer.typing import Array

KINDS = ("once", "rewritten")
LOWEST = 0.55  # what is less is not drawn
COLOURS = ("black", "C5", "C0", "C3", "C4", "C1", "C2")  # one for each rule, in all figures of the chapter


class ManyPairs(NamedTuple):
    """By attention: the share of right answers, (seeds, numbers of pairs), of all pairs, and of each of KINDS.

    made_on   the machine
    """

    right: dict[str, Array]
    once: dict[str, Array]
    rewritten: dict[str, Array]
    made_on: str


def data() -> ManyPairs:
    """What is on record."""
    record = experiments.load("many_pairs")

    def of(attention: str, ending: str) -> Array:
        mine = record.where(attention=attention)
        return np.array([[result[f"{pairs} pairs{ending}"] for pairs in PAIRS] for result in mine])

    parts = ({name: of(name, ending) for name in ATTENTIONS} for ending in ("", *(f", {kind}" for kind in KINDS)))
    return ManyPairs(*parts, record.made_on)


def draw(data: ManyPairs) -> Figure:
    """Means of the seeds, bars from the worst to the best. A window soon leaves the picture."""
    fig, axes = figure(2, 1, height=10.5, sharex=True)
    for ax, shares, kind in zip(axes, (data.once, data.rewritten), KINDS, strict=True):
        for k, ((name, share), marker, color) in enumerate(zip(shares.items(), "os^Dv<>", COLOURS, strict=True)):
            mean = share.mean(0)
            spread = np.abs(np.stack([share.min(0), share.max(0)]) - mean)
            beside = np.array(PAIRS) + 0.3 * (k - 3)  # or the bars stand on each other
            ax.errorbar(beside, mean, spread, marker=marker, color=color, capsize=4)
            if ax is axes[-1]:  # where the lines end, or where one leaves
                place = (PAIRS[-1] + 2.6, mean[-1]) if mean[-1] > LOWEST else (12.2, LOWEST + 0.05)
                ax.text(*place, name.partition(":")[0], color=color, va="center")
        ax.set(title=f"written {kind}" if kind == "once" else kind, xticks=PAIRS)
        ax.set(ylabel="right answers", ylim=(LOWEST, 1.02))
    axes[-1].set_xlabel("pairs")
    return fig
