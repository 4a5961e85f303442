"""How far the heads of small language models look back, and what they know, by what a span costs."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.figures.style import figure
from minitransformer.typing import Array


class SpanPenalty(NamedTuple):
    """Bits of dense attention (seeds,); for each penalty spans (penalties, seeds, layers, heads) and bits (penalties, seeds)."""

    penalties: tuple[float, ...]
    dense: Array
    spans: Array
    bits: Array


def data() -> SpanPenalty:
    """Spans and bits from the record, by penalty."""
    found: dict[float | None, list[dict]] = {}
    for trial, result in experiments.load("spans"):
        found.setdefault(trial.penalty, []).append(result)
    dense = np.array([result["bits"] for result in found.pop(None)])
    penalties = tuple(float(penalty) for penalty in found if penalty is not None)
    spans = np.array([[result["spans"] for result in runs] for runs in found.values()])
    return SpanPenalty(
        penalties, dense, spans, np.array([[result["bits"] for result in runs] for runs in found.values()])
    )


def draw(data: SpanPenalty) -> Figure:
    """Left: every head's span; the line is their mean. Right: bits, one mark for each seed; the band is dense attention."""
    fig, (left, right) = figure(1, 2, width=13, height=5)
    places = np.arange(len(data.penalties))
    layers = data.spans.shape[2]
    for layer in range(layers):
        z = data.spans[:, :, layer].reshape(len(places), -1)
        left.plot(
            places + 0.14 * (layer - (layers - 1) / 2), z, "osD"[layer], color=f"C{layer}", markersize=6, alpha=0.6
        )
        left.plot([], [], "osD"[layer], color=f"C{layer}", label=f"layer {layer + 1}")
    left.plot(places, data.spans.mean((1, 2, 3)), color="0.2", label="mean")
    right.axhspan(data.dense.min(), data.dense.max(), color="0.85", label="dense")
    right.plot(places, data.bits, "o", color="C0", markersize=8)
    left.set(ylabel="span z, bytes")
    right.set(ylabel="bits per byte")
    for axes in (left, right):
        axes.set(xlabel="penalty λ")
        axes.set_xticks(places, ["0", *(f"$10^{{{np.log10(p):.0f}}}$" for p in data.penalties[1:])])
    left.legend()
    right.legend()
    return fig
