"""Where the decoder looks while it writes an ISO date: cross-attention, drawn with the characters."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.data import dates
from minitransformer.figures.style import figure
from minitransformer.models import EncoderDecoder
from minitransformer.typing import Array

FORMAT = "png"


class DateAttention(NamedTuple):
    """Characters read, characters written, and the mean over all heads and blocks of the cross-attention, (n, m) each."""

    read: list[str]
    written: list[str]
    A: list[Array]


def data(model: EncoderDecoder, params: Any, sources: tuple[str, ...]) -> DateAttention:
    """Translate each source with a trained model, then run the model once over what it wrote, and open the pullback."""
    tokens, lengths = dates.to_sources(sources)
    answer = model.translate(
        params, tokens, begin=dates.BOS, end=dates.EOS, longest=dates.ISO_LENGTH + 1, lengths=lengths
    )
    target = np.concatenate([np.full((len(sources), 1), dates.BOS), answer], 1)
    _, pullback = model(params, tokens, target, lengths=lengths)
    A = np.mean([block.cross.A.mean(1) for block in pullback.decoder.blocks], axis=0)
    written = [dates.decode(row) for row in answer]
    maps = [A[k, : len(w), :m] for k, (w, m) in enumerate(zip(written, lengths, strict=True))]
    return DateAttention(list(sources), written, maps)


def draw(data: DateAttention) -> Figure:
    """One map for each date: the row of a character is where the model looked when it wrote it."""
    widths = [len(r) for r in data.read]
    fig, axes = figure(1, len(widths), width=9.5, height=3.4, width_ratios=widths, squeeze=False)
    for ax, read, written, A in zip(axes[0], data.read, data.written, data.A, strict=True):
        image = ax.imshow(A, vmin=0, vmax=1, cmap="viridis", aspect="auto")
        ax.set_xticks(range(len(read)), list(read), family="monospace", fontsize=10)
        ax.set_yticks(range(len(written)), list(written), family="monospace", fontsize=10)
        ax.set(xlabel="read: key j")
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
    axes[0, 0].set_ylabel("written: query i")
    fig.colorbar(image, ax=axes[0, -1], label="weight", fraction=0.06)
    return fig
