"""What every encoding makes of a sentence that is one word, forty-eight times: all that varies in a score is position."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure, outer_labels
from minitransformer.measurements.position_scores import (
    THRESHOLD,
    scores_of,
    varies_along_diagonals,
    with_some_parameters,
)
from minitransformer.positions import (
    FIRE,
    TENER,
    TUPE,
    ALiBi,
    DeBERTa,
    Encoding,
    KerpleLog,
    Multiplicative,
    RoPE,
    Shaw,
    T5Bias,
    TransformerXLPositions,
    four_terms,
    sinusoids,
)
from minitransformer.typing import Array

N, WIDTH = 48, 32  # words; D = d, one head
CLIP = 8

ENCODINGS: dict[str, Encoding] = {
    "TUPE (9)": TUPE(WIDTH, 1, N, cls=True),
    f"Shaw (10), c = {CLIP}": Shaw(WIDTH, CLIP),
    "T5 (11)": T5Bias(1),
    f"a factor (12), c = {CLIP}": Multiplicative(WIDTH, CLIP),
    "Transformer-XL": TransformerXLPositions(WIDTH, 1),
    "TENER": TENER(1, WIDTH),
    f"DeBERTa (13), c = {CLIP}": DeBERTa(WIDTH, 1, CLIP),
    "RoPE": RoPE(WIDTH),
    "ALiBi, slope 1/2": ALiBi(8),
    "KERPLE, logarithm": KerpleLog(1),
    f"FIRE, net(z) = −4z, n₀ = {THRESHOLD}": FIRE(1, 1),
}


class SameWord(NamedTuple):
    """Scores of one head for the same word in every place, (n, n), by encoding; the first has positions added."""

    scores: dict[str, Array]


def data(seed: int = 1) -> SameWord:
    """One random query and one random key, repeated."""
    rng = np.random.default_rng(seed)
    word, (W_q, W_k) = rng.standard_normal(WIDTH), rng.standard_normal((2, WIDTH, WIDTH)) / np.sqrt(WIDTH)
    X = np.tile(word, (N, 1))
    found = {"added sinusoids (8)": four_terms(X, sinusoids(N, WIDTH), W_q, W_k)[0]}
    for name, encoding in ENCODINGS.items():
        params = with_some_parameters(encoding, rng)
        Q, K = (np.broadcast_to(X @ W, (getattr(encoding, "heads", 1), N, WIDTH)) for W in (W_q, W_k))
        found[name] = scores_of(encoding, params, Q, K)[0]
    return SameWord(found)


DRAWN = {  # what to see in each
    "added sinusoids (8)": "no stripes",
    "TUPE (9)": "no stripes",
    "FIRE": "stripes up\nto row $n_0$",
    "T5 (11)": "stripes,\never broader",
    "Shaw (10)": "stripes,\nthen nothing\nchanges",
    "DeBERTa (13)": "stripes,\nthen nothing\nchanges",
    "a factor (12)": "stripes,\nthen nothing\nchanges",
    "RoPE": "stripes\nwithout end",
}


def draw(data: SameWord) -> Figure:
    """A panel for each idea, from its lowest score (dark) to its highest (bright). Beside it stand its name, both scores, and
    what to see: red where there are no stripes, or not everywhere.
    """
    fig, axes = figure(4, 2, width=10.4, height=13.2, sharex=True, sharey=True)
    for ax, (idea, seen) in zip(axes.flat, DRAWN.items(), strict=True):
        name, S = next(found for found in data.scores.items() if found[0].startswith(idea))
        ax.imshow(S)
        ax.set_anchor("W")
        told = name.replace("added ", "added\n").split(", ")
        if told[-1].startswith("n₀"):
            ax.text(N, THRESHOLD, f"– {told.pop()}", va="center")  # at its row
        everywhere = varies_along_diagonals(S) < 1e-12
        ax.text(N + 1, N - 1, seen, va="bottom", linespacing=1.2, color="#20639b" if everywhere else "#c8553d")
        told.append(f"{S.min():.1f} … {S.max():.1f}".replace("-", "−"))
        ax.text(N + 1, -0.5, "\n".join(told), va="top", linespacing=1.3)
        ax.set_xticks([0, 16, 32, 47])
        ax.set_yticks([0, 16, 32, 47])
        ax.spines[:].set_visible(False)
    outer_labels(axes, "key $j$", "query $i$")
    return fig
