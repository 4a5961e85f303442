"""Weights that no text changes: drawn at random, and with one number for each offset, as a relative bias has."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import attend
from minitransformer.figures.style import WEIGHTS, figure
from minitransformer.positions import T5Bias
from minitransformer.related import Synthesizer, SynthesizerParams
from minitransformer.related.synthesizer_logits import RandomParams
from minitransformer.typing import Array


class RandomWeights(NamedTuple):
    """A of a random matrix and of one whose diagonals are constant, (n, n), for each of two texts; T5's without q and k."""

    random: Array
    offsets: Array
    t5: Array


def data(n: int = 16, seed: int = 1) -> RandomWeights:
    """One head; the texts are random values."""
    rng = np.random.default_rng(seed)
    core = Synthesizer(heads=1, d=4, longest=n, kind="random")
    bias = T5Bias(1, buckets=16, distance=32)
    params = bias.init(rng, np.float64)._replace(table=rng.standard_normal((1, 16)))
    b, _ = bias.bias(params, n, n, causal=False)
    logits = {"random": rng.standard_normal((n, n)), "offsets": b[0, np.arange(n) - np.arange(n)[:, None] + n - 1]}
    found = {}
    for name, R in logits.items():
        V = rng.standard_normal((2, 1, n, 4))
        weights = [core(SynthesizerParams(RandomParams(R[None])), text, text, text)[1].A[0] for text in V]
        found[name] = np.stack(weights)
    zero = np.zeros((1, n, 4))  # no content: only the bias is left
    Y, _ = attend(bias, params, zero, zero, np.eye(n)[None])
    return RandomWeights(found["random"], found["offsets"], Y[0])


def draw(data: RandomWeights) -> Figure:
    """Queries downwards, keys to the right; along a diagonal of the right panel the logits are the same."""
    fig, axes = figure(1, 2, width=10, height=5.2, sharey=True)
    for ax, A, title in zip(axes, (data.random, data.offsets), ("random", "one number for each offset"), strict=True):
        n = A.shape[-1]
        image = ax.imshow(A[0], cmap=WEIGHTS, vmin=0, vmax=0.4)
        ax.set(title=title, xlabel="key $j$")
        ax.set_xticks([0, n - 1], ["1", f"{n}"])
        ax.set_yticks([0, n - 1], ["1", f"{n}"])
        ax.spines[["top", "right"]].set_visible(True)
    axes[0].set_ylabel("query $i$")
    fig.colorbar(image, ax=axes, shrink=0.8, label="weight $A_{ij}$", extend="max")
    return fig
