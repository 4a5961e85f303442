"""A sink as a gate: how far the keys of a query reach, with a matching key among them and without, and what b makes of it."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure
from minitransformer.functional import sigmoid
from minitransformer.typing import Array

QUERIES, KEYS, WIDTH = 2000, 64, 64
LONGER = 1.5  # a query is so many times as long as a key
SHOWN = 9.0  # the sink of the upper panel
END = 20  # of both axes, beyond every L


class SinkGate(NamedTuple):
    """L_i = ln Σ_j e^{S_ij} of queries that point where one key does, and of others; and the mean gate for each b."""

    matched: Array
    unmatched: Array
    b: Array
    gates: dict[str, Array]


def data() -> SinkGate:
    """Keys are normal, 64 for each query; a query is a key made longer, one of its own keys or one of another set."""
    rng = np.random.default_rng(18)
    K = rng.standard_normal((QUERIES, KEYS, WIDTH))
    L = {}
    for name, q in (("matched", K[:, 0]), ("unmatched", np.roll(K[:, 0], 1, 0))):
        S = LONGER * np.einsum("qd,qkd->qk", q, K) / np.sqrt(WIDTH)
        L[name] = np.log(np.exp(S).sum(-1))
    b = np.linspace(0, END, 4 * END + 1)
    return SinkGate(**L, b=b, gates={name: sigmoid(of - b[:, None])[0].mean(-1) for name, of in L.items()})


def draw(data: SinkGate) -> Figure:
    """Above: how often which L, and the gate σ(L − 9), which opens between the humps. Below: the mean gate by the sink b."""
    fig, (above, below) = figure(2, 1, height=10)
    colours = {"matched": "#20639b", "unmatched": "#c8553d"}
    bins = np.linspace(0, END, 4 * END + 1)
    for name, hatch in (("unmatched", "//"), ("matched", "")):
        counts, _ = np.histogram(getattr(data, name), bins)
        above.stairs(counts / counts.max(), bins, fill=True, alpha=0.45, color=colours[name], hatch=hatch, label=name)
        line = "-" if name == "matched" else "--"
        below.plot(data.b, data.gates[name], color=colours[name], linestyle=line, label=name)
    above.plot(data.b, sigmoid(data.b - SHOWN)[0], color="black", linestyle="-", label=r"$\sigma(L - 9)$")
    below.axvline(SHOWN, color="0.5", linewidth=1.2, linestyle=":")
    above.set(xlabel="log-sum-exp $L$ of a query", ylabel="part of the peak; gate")
    below.set(xlabel="sink $b$", ylabel="mean gate")
    for ax, names in (
        (above, ((5.3, 1.04, "center"), (12.6, 1.04, "center"))),
        (below, ((0.3, 0.1, "left"), (12.4, 0.55, "left"))),
    ):
        ax.set(xlim=(0, END), ylim=(0, 1.18), yticks=[0, 0.5, 1])
        for (x, y, side), name in zip(names, ("unmatched", "matched"), strict=True):
            ax.text(x, y, name, ha=side, color=colours[name])
    above.text(14.2, 0.83, r"$\sigma(L - 9)$")
    below.text(SHOWN + 0.2, 1.04, "$b = 9$", color="0.35")
    return fig
