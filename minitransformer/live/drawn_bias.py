"""A number for each offset, drawn by the reader, and the attention that it makes of ten words."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import scores
from minitransformer.figures.style import figure
from minitransformer.functional import softmax
from minitransformer.gather_scatter import by_offset
from minitransformer.positions import ALiBi, KerpleLog, NoParams, offsets
from minitransformer.positions.kerple import KerpleParams

N, WIDTH = 10, 16


def data() -> dict[str, Any]:
    """Four biases to begin with, and scores of words that were drawn at random."""
    o, rng = offsets(N, N), np.random.default_rng(5)
    steepest = ALiBi(heads=8).bias(NoParams(), N, N, causal=False)[0][0]
    log = KerpleLog(heads=1).bias(KerpleParams(np.full(1, 2.0), np.ones(1)), N, N, causal=False)[0][0]
    return {
        "biases": {
            "nothing": np.zeros(len(o)).tolist(),
            "one back": np.where(o == -1, 5.0, 0.0).tolist(),
            "ALiBi, λ = ½": steepest.tolist(),
            "KERPLE, logarithm": log.round(3).tolist(),
        },
        "content": scores(*rng.standard_normal((2, N, WIDTH)))[0].round(3).tolist(),
    }


def compute(data: dict[str, Any], bias: list[float], content: float, query: int) -> dict[str, Any]:
    """A, the largest weight of one query and its key, and how much of a row lies ahead on average."""
    A, _ = softmax(content * np.array(data["content"]) + by_offset(np.array(bias), N, N))
    return {
        "A": A.tolist(),
        "largest": float(A[query].max()),
        "key": int(A[query].round(9).argmax()),
        "ahead": float(np.triu(A, 1).sum() / N),
    }


def still(data: dict[str, Any]) -> Figure:
    """Above the numbers, below the attention: left one large number at offset −1, right a line that falls to both sides."""
    fig, axes = figure(2, 2, height=7, height_ratios=(1, 2.4))
    o = offsets(N, N)
    for (above, below), name in zip(axes.T, ("one back", "ALiBi, λ = ½"), strict=True):
        bias = data["biases"][name]
        above.bar(o, bias, color="#20639b")
        above.axhline(0, color="0.4", linewidth=1)
        above.set(title=name, xlabel="offset $o$", ylim=(-6, 6), yticks=(-5, 0, 5), xticks=(-8, -4, 0, 4, 8))
        below.imshow(compute(data, bias, 0.0, 0)["A"], cmap="Blues", vmin=0, vmax=1)
        below.set(xlabel="key $j$", xticks=(0, 4, 8), yticks=(0, 4, 8))
    axes[0, 0].set_ylabel("$b_o$")
    axes[1, 0].set_ylabel("query $i$")
    return fig
