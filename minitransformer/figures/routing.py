"""Who gets a piece of a digit? Capsules of nine pieces divide themselves among ten classes, by agreement."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.data.digits import digits
from minitransformer.experiments.capsules import KEPT, RATE, capsules
from minitransformer.figures.style import WEIGHTS, figure
from minitransformer.related.capsule_classifier import corners
from minitransformer.typing import Array

SHOWN = (0, 3)  # digits


class Routing(NamedTuple):
    """By digit: the image (8, 8), and the weights of each round, (3, 36, 10): a row for each capsule of each piece."""

    images: dict[int, Array]
    C: dict[int, Array]


def data() -> Routing:
    """The capsules of three rounds and seed 0, on held-out images."""
    (result,) = experiments.load("capsules").where(model="3 rounds", seed=0, rate=RATE)
    _, judged = digits()
    images = {digit: judged.images[np.flatnonzero(judged.labels == digit)[0]] for digit in KEPT}
    return Routing(images, {digit: np.array(C) for digit, C in zip(KEPT, result["kept"], strict=True)})


def draw(data: Routing) -> Figure:
    """Above, a disc for each piece: its area is the weight of the right class in round 3, mean of the piece's capsules.

    The ring around is that of round 1, where all classes have the same. Below, a row for each capsule: its weights in round 3,
    which sum to one.
    """
    fig, axes = figure(2, 2, width=10, height=11.5, height_ratios=[1, 1.25])
    model = capsules(3)
    places = np.array(corners(model.size, model.size, model.side, model.stride)) + (model.side - 1) / 2
    most = max(data.C[digit][-1].max() for digit in SHOWN)
    for (above, below), digit in zip(axes.T, SHOWN, strict=True):
        share = [C[:, digit].reshape(len(places), model.types).mean(1) for C in data.C[digit]]
        above.imshow(data.images[digit], cmap="Greys", vmin=0, vmax=1.6)
        above.scatter(places[:, 1], places[:, 0], s=8000 * share[0], facecolor="none", edgecolor="black", linewidth=1.5)
        above.scatter(places[:, 1], places[:, 0], s=8000 * share[-1], color="#c8553d", alpha=0.6, linewidth=0)
        above.set(title=f"weight for class {digit}", xticks=[], yticks=[])
        above.spines[["top", "right"]].set_visible(True)
        picture = below.imshow(data.C[digit][-1], cmap=WEIGHTS, vmin=0, vmax=most, aspect="auto")
        below.set(xlabel="class", title="weights in round 3")
        below.set_xticks(range(model.classes))
        below.set_yticks([0, len(data.C[digit][-1]) - 1], ["1", "36"])
    axes[1, 0].set_ylabel("capsule below")
    fig.colorbar(picture, ax=axes[1], shrink=0.8, label="weight; a row sums to 1")
    return fig
