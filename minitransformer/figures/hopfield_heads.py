"""The 72 heads of a trained BERT, sorted by how far one step of attention is from its fixed point."""

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.figures.style import FAINT, figure
from minitransformer.pullback import Pullback
from minitransformer.typing import Array


class Heads(Pullback):
    """Of the trained model, (6, 12) each, and of three random ones, (3, 6, 12); `experiments.hopfield_heads.run` says what each
    is. order: the 72 heads from the nearest to the farthest, as numbers 12 · block + head from 0."""

    trained: dict[str, Array]
    random: dict[str, Array]
    order: Array


def data() -> Heads:
    """What is on record."""
    record = experiments.load("hopfield_heads")
    names = record.results[0]
    trained = {name: np.array(record.results[0][name]) for name in names}
    random = {name: np.array([result[name] for result in record.results[1:]]) for name in names}
    return Heads(trained, random, np.argsort(trained["distance"].ravel(), kind="stable"))


def draw(data: Heads) -> Figure:
    """Above: the part of the weight that moves on the way to the fixed point, of the sorted heads; in grey three models with
    random weights, sorted likewise. Below: keys in use after one step, and at the fixed point; dotted: nothing has changed."""
    fig, (above, below) = figure(2, 1, height=11)
    rank = np.arange(1, 73)
    for k, random in enumerate(data.random["distance"]):
        label = "random weights, 3 draws" if k == 0 else None
        above.plot(rank, np.sort(random.ravel()), color=FAINT, linestyle="--", linewidth=1.8, label=label)
    above.plot(rank, data.trained["distance"].ravel()[data.order], color="#20639b", linestyle="-", label="trained")
    above.set(xlabel="head, by rank", xlim=(0, 73))
    above.set(ylabel=r"weight that moves, $\frac{1}{2}\|p^* - p_1\|_1$", ylim=(0, 1))
    above.legend(loc="upper left")
    first, last = data.trained["first"].ravel(), data.trained["last"].ravel()
    below.plot([1, 18], [1, 18], color=FAINT, linestyle=":", linewidth=2)
    below.plot(first, last, "o", color="#20639b", markersize=8, alpha=0.75, linestyle="none")
    below.set(xlabel="keys in use after one step", ylabel="keys in use at the fixed point", xlim=(0, 18), ylim=(0, 18))
    return fig
