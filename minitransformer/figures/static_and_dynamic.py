"""Eight queries look something up among eight keys: the weights of GAT and of GATv2, each after its training."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.figures.style import WEIGHTS, figure
from minitransformer.typing import Array


class StaticAndDynamic(NamedTuple):
    """Weights (8, 8) of one dictionary: row i is a query, column i the key that it asks for."""

    static: Array
    dynamic: Array


def data() -> StaticAndDynamic:
    """From the record: of the first seed, in one dictionary that neither has seen."""
    record = experiments.load("dictionary_lookup")
    found = {trial.kind: result["weights"] for trial, result in record if "weights" in result}
    return StaticAndDynamic(np.array(found["gat"]), np.array(found["gatv2"]))


def draw(data: StaticAndDynamic) -> Figure:
    """Left GAT: rows of two kinds, all with the same favourite. Right GATv2: every row has its own, on the diagonal."""
    fig, axes = figure(1, 2, height=6.7)
    for ax, A, title in zip(axes, data, ("GAT: one order for all", "GATv2: an order of one's own"), strict=True):
        image = ax.imshow(A, cmap=WEIGHTS, vmin=0, vmax=1)
        ax.set(title=title, xlabel="key $j$", xticks=range(len(A)), yticks=range(len(A)))
        ax.spines[["top", "right"]].set_visible(True)
    axes[0].set_ylabel("query $i$")
    fig.colorbar(image, ax=axes, location="bottom", shrink=0.5, aspect=30, label="$A_{ij}$")
    return fig
