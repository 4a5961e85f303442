"""How far the heads of small language models look back, and what they know, by what a span costs."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.spans import PENALTIES
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
    record = experiments.load("spans")
    dense, *others = (record.where(penalty=penalty) for penalty in (None, *PENALTIES))
    spans, bits = (np.array([[result[what] for result in runs] for runs in others]) for what in ("spans", "bits"))
    return SpanPenalty(PENALTIES, np.array([result["bits"] for result in dense]), spans, bits)


def draw(data: SpanPenalty) -> Figure:
    """Above: every head's span; the line is their mean. Below: bits, one mark for each seed; the band is dense attention."""
    fig, (above, below) = figure(2, 1, height=8, sharex=True)
    places = np.arange(len(data.penalties))
    layers = data.spans.shape[2]
    for layer in range(layers):
        z, beside = data.spans[:, :, layer].reshape(len(places), -1), places + 0.14 * (layer - (layers - 1) / 2)
        above.plot(beside, z, "osD"[layer], color=f"C{layer}", markersize=6, alpha=0.6)
        above.plot([], [], "osD"[layer], color=f"C{layer}", label=f"layer {layer + 1}")
    above.plot(places, data.spans.mean((1, 2, 3)), color="0.2", label="mean")
    below.axhspan(data.dense.min(), data.dense.max(), color="0.85")
    below.text(places[-1], data.dense.mean(), "dense attention", ha="right", va="center")
    below.plot(places, data.bits, "o", color="C0", markersize=8)
    above.set(ylabel="span z, bytes")
    below.set(xlabel="penalty λ", ylabel="bits per byte")
    below.set_xticks(places, ["0", *(f"$10^{{{np.log10(p):.0f}}}$" for p in data.penalties[1:])])
    above.legend()
    return fig
