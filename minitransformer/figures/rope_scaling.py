"""RoPE on texts four times as long as in training: which frequencies are changed, and what that does to small models."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.positions import LENGTHS
from minitransformer.experiments.rope_scaling import SCALINGS, TRAINED
from minitransformer.figures.style import figure
from minitransformer.positions import RoPE
from minitransformer.typing import Array

WIDTH = 16  # of a head of the models in the record


class RopeScaling(NamedTuple):
    """By name: full turns of each pair of channels over the longest text, and bits per byte (seeds, lengths)."""

    turns: dict[str, Array]
    lengths: tuple[int, ...]
    bits: dict[str, Array]


def data() -> RopeScaling:
    """Turns from the definitions, bits from the record."""
    lengths = LENGTHS["text"]
    angles = {name: RoPE(WIDTH, scaling=scaling).angles(lengths[-1])[0] for name, scaling in SCALINGS.items()}
    turns = {name: of[-1] / (2 * np.pi) for name, of in angles.items()}
    results = experiments.load("rope_scaling").results
    return RopeScaling(turns, lengths, {name: np.array([result[name] for result in results]) for name in SCALINGS})


def draw(data: RopeScaling) -> Figure:
    """Above: how far each pair turns in the longest text. Below: what it costs; marks are means, lines reach over the seeds."""
    fig, (above, below) = figure(2, 1, width=10, height=11.5, height_ratios=(1.25, 1))
    pairs = np.arange(WIDTH // 2)
    together = {"NTK": "NTK, dynamic NTK", "dynamic NTK": None}  # at this length they are the same
    for name, marker in zip(data.turns, "osD^v", strict=True):
        if (label := together.get(name, name)) is not None:
            hollow = {"markersize": 15, "markerfacecolor": "none", "markeredgewidth": 2} if marker == "s" else {}
            above.semilogy(pairs, data.turns[name], marker=marker, **{"markersize": 9, "label": label, **hollow})
    seen = data.turns["as trained"] * (TRAINED - 1) / (data.lengths[-1] - 1)
    above.fill_between(pairs, seen, 1e-4, color="0.87", label="seen in training")
    above.set(xlabel="pair of channels $f$", ylabel=f"turns in {data.lengths[-1]} positions", ylim=(2e-3, 100))
    above.set(xlim=(-0.1, pairs[-1] + 0.1))
    above.legend(loc="upper right", borderaxespad=0, labelspacing=0.3)
    places = np.arange(len(data.bits))
    colours = ("#7fa8cb", "#20639b", "#0b2740")
    for k, (n, colour, marker) in enumerate(zip(data.lengths, colours, "osD", strict=True)):
        bits, y = np.array([row[:, k] for row in data.bits.values()]), places + 0.25 * (k - 1)
        below.plot(bits.mean(1), y, marker, color=colour, markersize=10, linestyle="none", label=f"$n$ = {n}")
        below.hlines(y, bits.min(1), bits.max(1), color=colour, linewidth=2.5)
    for place in places[::2]:
        below.axhspan(place - 0.5, place + 0.5, color="0.955", zorder=0)
    below.set(yticks=places, ylim=(len(places) - 0.5, -0.5), xlabel="bits per byte: left is better")
    below.set_yticklabels(data.bits)
    fig.legend(*below.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return fig
