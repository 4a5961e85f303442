"""What the heads of a trained BERT would say with a quarter or half of the keys, untrained or fitted to texts."""

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

PLACES = {  # of the names in the panels
    "best of rank $k$": (4.8, 0.13),
    "landmarks": (5.2, 0.32),
    "means of neighbours": (4, 0.62),
    "one mean of all": (4, 0.86),
    "the one text of the fit": (3.5, 0.19),
    "others, fitted to one": (3.6, 0.88),
    "others, fitted to 48": (4, 0.38),
    "others, before the fit": (4, 0.61),
}


class FewerKeys(NamedTuple):
    """Errors ‖Y′ − Y‖/‖Y‖ by layer: of 128 in place of 512 by method, and of E and F, 128 in place of 256.

    fitted, many   E and F fitted to one text, and to 48; by what they were tried on
    """

    untrained: dict[str, Array]
    fitted: dict[str, Array]
    many: dict[str, Array]


def data() -> FewerKeys:
    """Errors from both records."""
    errors = attention_rank.data().errors
    blocks = (experiments.load("learned_projections").where(k=128, passages=passages) for passages in (1, 48))
    one, many = ({name: np.array([block[name] for block in each]) for name in each[0]} for each in blocks)
    return FewerKeys({method: errors[f"{method}, 128"] for method in (*METHODS, "random")}, one, many)


def draw(data: FewerKeys) -> Figure:
    """One axis for both: 1 is the error of saying nothing."""
    fig, axes = figure(1, 2, height=6.4, sharey=True)
    layers = np.arange(1, 7)
    for (method, name), marker in zip(METHODS.items(), "osv^", strict=True):
        axes[0].plot(layers, data.untrained[method], marker=marker, markersize=9, label=name)
    tried = {
        "the one text of the fit": data.fitted["fitted"],
        "others, fitted to one": data.fitted["other"],
        "others, fitted to 48": data.many["other"],
        "others, before the fit": data.many["before"],
    }
    for (name, errors), look in zip(tried.items(), ("C0o-", "C1D--", "C3s:", "C2v-."), strict=True):
        axes[1].plot(layers, errors, look, markersize=9, label=name)  # means of neighbours as on the left
    for ax, title in zip(axes, ("untrained, 128 for 512", "$E$ and $F$ fitted, 128 for 256"), strict=True):
        ax.set(title=title, xlabel="layer", ylim=(0, 1))
        ax.set_xticks(layers)
        for line in ax.lines:
            x, y = PLACES[str(line.get_label())]
            ax.text(x, y, str(line.get_label()), color=line.get_color(), ha="center", va="center")
    axes[0].set_ylabel(r"$\|Y' - Y\| \,/\, \|Y\|$")
    return fig
