"""What the heads of a trained BERT would say with a quarter or half of the keys, untrained or fitted to one text."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.figures import attention_rank
from minitransformer.figures.style import figure
from minitransformer.typing import Array

METHODS = {  # of the record, as the figure calls them
    "best": "best of rank $k$",
    "landmarks": "landmarks",
    "neighbours": "means of neighbours",
    "mean": "one mean of all",
}


class FewerKeys(NamedTuple):
    """Errors ‖Y′ − Y‖/‖Y‖ by layer: of 128 in place of 512 by method, and of E and F, 128 in place of 256."""

    untrained: dict[str, Array]
    fitted: dict[str, Array]


def data() -> FewerKeys:
    """Errors from both records."""
    errors = attention_rank.data().errors
    rows = [
        result
        for trial, result in experiments.load("learned_projections")
        if trial.block is not None and trial.k == 128
    ]
    return FewerKeys(
        {method: errors[f"{method}, 128"] for method in (*METHODS, "random")},
        {name: np.array([row[name] for row in rows]) for name in ("start", "fitted", "other", "mean")},
    )


def draw(data: FewerKeys) -> Figure:
    """One axis for both: 1 is the error of saying nothing."""
    fig, axes = figure(1, 2, width=12, height=6.4, sharey=True)
    layers = np.arange(1, 7)
    for (method, name), marker in zip(METHODS.items(), "osv^", strict=True):
        axes[0].plot(layers, data.untrained[method], marker=marker, markersize=9, label=name)
    names = {"fitted": "the text of the fit", "other": "other texts", "start": "before the fit"}
    for (key, name), marker in zip(names.items(), "oDv", strict=True):
        axes[1].plot(layers, data.fitted[key], marker=marker, markersize=9, label=name)
    for ax, title in zip(axes, ("untrained, 128 for 512", "$E$ and $F$ fitted, 128 for 256"), strict=True):
        ax.set(title=title, xlabel="layer", ylim=(0, 1.25))
        ax.set_xticks(layers)
        ax.legend(loc="upper left", fontsize=18, ncols=1)
    axes[0].set_ylabel(r"$\|Y' - Y\| \,/\, \|Y\|$")
    return fig
