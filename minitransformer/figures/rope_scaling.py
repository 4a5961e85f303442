"""RoPE on texts four times as long as in training: which frequencies are changed, and what that does to a small model."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure
from minitransformer.positions import NTK, DynamicNTK, PositionInterpolation, RoPE, YaRN
from minitransformer.training.position_study import LENGTHS, Trained, longer, score
from minitransformer.typing import Array

FACTOR, TRAINED = 4, 64
SCALINGS = {
    "as trained": None,
    "interpolation": PositionInterpolation(FACTOR),
    "NTK": NTK(FACTOR),
    "dynamic NTK": DynamicNTK(1, TRAINED),
    "YaRN": YaRN(FACTOR, TRAINED),
}


class RopeScaling(NamedTuple):
    """Full turns of each pair of channels over the longest text, and bits per byte at each length, by name."""

    turns: dict[str, Array]
    lengths: tuple[int, ...]
    bits: dict[str, list[float]]


def data(trained: Trained) -> RopeScaling:
    """From a language model with RoPE, trained on 64 bytes at a time."""
    d, lengths = trained.model.width // trained.model.heads, LENGTHS["text"]
    encodings = {name: RoPE(d, scaling=scaling) for name, scaling in SCALINGS.items()}
    longest = lengths[-1]
    turns = {name: encoding.angles(longest)[0][-1] / (2 * np.pi) for name, encoding in encodings.items()}
    bits = {
        name: [score(longer(trained, encoding), "text", n) or np.nan for n in lengths]
        for name, encoding in encodings.items()
    }
    return RopeScaling(turns, lengths, bits)


def draw(data: RopeScaling) -> Figure:
    """Left: how far each pair turns in the longest text, and in the trained length. Right: what it costs."""
    fig, (ax, bars) = figure(1, 2, width=9.5, height=3.5)
    pairs = np.arange(len(data.turns["as trained"]))
    for name, marker in zip(data.turns, "osD^v", strict=True):
        ax.semilogy(pairs, data.turns[name], marker=marker, markersize=5, label=name)
    seen = data.turns["as trained"] * (TRAINED - 1) / (data.lengths[-1] - 1)
    ax.fill_between(pairs, seen, ax.get_ylim()[0], color="0.9", label="seen in training")
    ax.set(xlabel="pair of channels $f$", ylabel=f"turns in {data.lengths[-1]} positions", xlim=(0, pairs[-1]))
    ax.legend(fontsize=9)
    places, width = np.arange(len(data.bits)), 0.26
    for k, (n, colour) in enumerate(zip(data.lengths, ("#cfdbe8", "#6f96ba", "#20639b"), strict=True)):
        heights = [row[k] for row in data.bits.values()]
        bars.bar(places + width * (k - 1), heights, width, color=colour, label=f"n = {n}")
        for place, height in zip(places, heights, strict=True):
            bars.text(place + width * (k - 1), height + 0.03, f"{height:.1f}", ha="center", fontsize=8)
    bars.set(ylabel="bits per byte", xticks=places)
    bars.set_xticklabels(data.bits, rotation=20)
    bars.legend(ncol=3, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, 1.16))
    return fig
