"""Pairs that are recalled, by their number, the attention and the positions: those written once, and those rewritten."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.many_pairs import ATTENTIONS, PAIRS, POSITIONS
from minitransformer.figures.style import figure, outer_labels
from minitransformer.typing import Array

KINDS = ("once", "rewritten")
DRAWN = {"sinusoidal": "with sinusoids", "none": "without positions"}
LOWEST = 0.42  # what is less is not drawn
COLOURS = ("black", "C5", "C0", "C3", "C4", "C1", "C2")  # one for each rule, in all figures of the chapter


class ManyPairs(NamedTuple):
    """By positions, then by attention: the share of right answers, (seeds, numbers of pairs), of all pairs, and of each of KINDS.

    made_on   the machines
    """

    right: dict[str, dict[str, Array]]
    once: dict[str, dict[str, Array]]
    rewritten: dict[str, dict[str, Array]]
    made_on: str


def data() -> ManyPairs:
    """What is on record."""
    record = experiments.load("many_pairs")

    def of(positions: str, attention: str, ending: str) -> Array:
        mine = record.where(positions=positions, attention=attention)
        return np.array([[result[f"{pairs} pairs{ending}"] for pairs in PAIRS] for result in mine])

    endings = ("", *(f", {kind}" for kind in KINDS))
    parts = ({at: {name: of(at, name, ending) for name in ATTENTIONS} for at in POSITIONS} for ending in endings)
    return ManyPairs(*parts, record.made_on)


def draw(data: ManyPairs) -> Figure:
    """Means of the seeds, bars from the worst to the best. A window soon leaves the picture."""
    fig, axes = figure(2, 2, height=11, sharex=True, sharey=True)
    for row, shares, kind in zip(axes, (data.once, data.rewritten), KINDS, strict=True):
        for ax, positions in zip(row, DRAWN, strict=True):
            for k, ((name, share), marker, color) in enumerate(
                zip(shares[positions].items(), "os^Dv<>", COLOURS, strict=True)
            ):
                mean = share.mean(0)
                spread = np.abs(np.stack([share.min(0), share.max(0)]) - mean)
                beside = np.array(PAIRS) + 0.3 * (k - 3)  # or the bars stand on each other
                ax.errorbar(beside, mean, spread, marker=marker, color=color, capsize=3, label=name.partition(":")[0])
            ax.set(
                title=f"{'written once' if kind == 'once' else kind}, {DRAWN[positions]}",
                xticks=PAIRS,
                ylim=(LOWEST, 1.02),
            )
    outer_labels(axes, "pairs", "right answers")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return fig
