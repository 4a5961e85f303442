"""The errata of the Lecture notes, measured: one function for each that has consequences, named after its number."""

import math

import numpy as np

from minitransformer.attention import (
    BigBird,
    MultiHeadAttention,
    MultiHeadParams,
    block_sparse_attention,
    causal_mask,
    dot_product_attention,
    scores,
)
from minitransformer.attention.compressed import linformer_attention
from minitransformer.attention.linear import of_same_length, positive_features
from minitransformer.errata.reading import Reading, largest_weight, mean_of, queries_keys_values, relative_error
from minitransformer.functional import layer_norm, softmax
from minitransformer.measurements.low_rank import projected_errors, rows_needed
from minitransformer.measurements.random_features import smreg, softmax_kernel

DOWNSTREAM = {  # the table of the notes for n = 512, and for 1024 where it says so: SST-2, IMDB, QNLI, QQP, average
    "RoBERTa-base": (93.1, 94.1, 90.9, 90.9, 92.25),
    "Linformer, 256": (93.2, 94.0, 90.6, 90.5, 92.08),
    "Linformer, 256, shared kv": (93.3, 93.6, 90.6, 90.6, 92.03),
    "Linformer, 256, shared kv, layer": (93.1, 94.1, 91.2, 90.8, 92.30),
    "Linformer, 128": (92.4, 94.0, 90.4, 90.2, 91.75),
    "Linformer, 128, shared kv": (93.4, 93.4, 90.3, 90.3, 91.85),
    "Linformer, 128, shared kv, layer": (93.2, 93.8, 90.1, 90.2, 91.83),
    "1024: Linformer, 256": (93.0, 93.8, 90.4, 90.4, 91.90),
    "1024: Linformer, 256, shared kv": (93.0, 93.6, 90.3, 90.4, 91.83),
    "1024: Linformer, 256, shared kv, layer": (93.2, 94.2, 90.8, 90.5, 92.18),
}


def e27() -> Reading:
    """A row of five numbers around 10, less its sum and less its mean."""
    x = 10 + np.random.default_rng(27).standard_normal((1, 5))
    one, zero = np.ones(5), np.zeros(5)
    mu = x.sum()  # as printed, where μ is used again in σ
    sigma = math.sqrt(((x - mu) ** 2).mean())
    meant, _ = layer_norm(x, one, zero)
    numbers = {"printed": float((x - mu).mean()), "meant": abs(float(meant.mean())), "sigma": sigma}
    return Reading(numbers, relative_error((x - mu) / sigma, meant))


def e28() -> Reading:
    """Rows whose entries have a standard deviation of 1/100 and of 100, divided by the root of the root."""
    rng = np.random.default_rng(28)
    eps, one, zero = 1e-5, np.ones(64), np.zeros(64)
    spread = {"small": 0.01, "large": 100.0}
    numbers, errors = {}, []
    for name, size in spread.items():
        x = rng.standard_normal((1, 64))
        x = size * (x - x.mean()) / x.std()
        printed, meant = x / math.sqrt(x.std() + eps), layer_norm(x, one, zero, eps=eps)[0]
        numbers |= {name: float(printed.std()), f"{name}_meant": float(meant.std())}
        errors.append(relative_error(printed, meant))
    return Reading(numbers, max(errors))


def e29() -> Reading:
    """Four words of which each sees those before it and not itself: what softmax says in plain arithmetic."""
    n, d = 4, 3
    Q, K, V = queries_keys_values(np.random.default_rng(29), n, d)
    before = np.tri(n, k=-1) > 0
    e = np.where(before, scores(Q, K)[0], -np.inf)
    with np.errstate(invalid="ignore"):
        A = np.exp(e) / np.exp(e).sum(1, keepdims=True)
    numbers = {
        "undefined": float(np.isnan(A).any(1).sum()),
        "second": float(A[1, 0]),
        "itself": float(np.diag(A)[1:].max()),
    }
    Y, meant = A[1:] @ V, dot_product_attention(Q, K, V, causal=True)[0]
    return Reading(numbers, relative_error(Y, meant[1:]))


def e30() -> Reading:
    """Scores of heads of width 1024/4, divided by the width and by its root."""
    rng = np.random.default_rng(30)
    width, keys = 1024 // 4, 64
    Q, K, V = rng.standard_normal((200, 1, width)), *rng.standard_normal((2, 200, keys, width))
    said, meant = scores(Q, K, scale=1 / width)[0], scores(Q, K)[0]
    numbers = {"printed": largest_weight(said), "meant": largest_weight(meant), "average": 1 / keys}
    return Reading(numbers, relative_error(softmax(said)[0] @ V, softmax(meant)[0] @ V))


def e31() -> Reading:
    """Cross-attention to as many words as there are channels, where the printed product exists."""
    rng = np.random.default_rng(31)
    n, d = 3, 4
    Z, H = rng.standard_normal((n, d)), rng.standard_normal((d, d))
    Q, K, V = queries_keys_values(rng, d, d)
    printed = softmax(Z @ Q @ (H @ K.T))[0] @ (H @ V)
    meant, _ = MultiHeadAttention(d, heads=1, bias=False).cross(MultiHeadParams(Q, K, V, np.eye(d)), Z, H)
    return Reading({"d": d, "error": relative_error(printed, meant)}, relative_error(printed, meant))


def e33() -> Reading:
    """Weights that are set to 0 after softmax: what is left of the rows, and what the first words hear of the last ones."""
    rng = np.random.default_rng(33)
    n, t = 5, 3
    Q, K, V = queries_keys_values(rng, n, 4)
    other = np.vstack([K[:t], rng.standard_normal((n - t, 4))])
    visible = causal_mask(n)

    def zeroed(K: np.ndarray) -> np.ndarray:
        return np.where(visible, softmax(scores(Q, K)[0])[0], 0)

    meant, _ = dot_product_attention(Q, K, V, causal=True)
    leaked = float(np.abs(zeroed(other)[:t] - zeroed(K)[:t]).max())
    kept = dot_product_attention(Q, other, V, causal=True)[0][:t]
    numbers = {"sum": float(zeroed(K).sum(1).min()), "leaked": leaked, "meant": float(np.abs(kept - meant[:t]).max())}
    return Reading(numbers, relative_error(zeroed(K) @ V, meant))


def e34() -> Reading:
    """E of the printed shape, n × k, where k = n by accident: the product exists, of its transpose."""
    n, d = 7, 4
    rng = np.random.default_rng(34)
    Q, K, V = queries_keys_values(rng, n, d)
    E = rng.standard_normal((n, n))  # column c is to say what goes into the key c
    printed, _ = linformer_attention(Q, K, V, E)
    meant, _ = linformer_attention(Q, K, V, np.ascontiguousarray(E.T))
    return Reading({"error": relative_error(printed, meant)}, relative_error(printed, meant))


def e35() -> Reading:
    """exp(A) divided by columns and by rows."""
    n = 5
    rng = np.random.default_rng(35)
    A, V = rng.standard_normal((n, n)), rng.standard_normal((n, 3))
    D_A = np.diag(np.exp(A).sum(1))
    printed, meant = np.exp(A) @ np.linalg.inv(D_A), softmax(A)[0]
    sums = printed.sum(1)
    return Reading({"low": float(sums.min()), "high": float(sums.max())}, relative_error(printed @ V, meant @ V))


def e37() -> Reading:
    """Theorem 1 at ε = 1/2, with the k that it gives, for a w whose mean is zero and for one whose mean is not."""
    rng = np.random.default_rng(37)
    n, d, eps = 1024, 32, 0.5
    k = math.ceil(rows_needed(n, eps))
    P, _ = softmax(rng.standard_normal((n, d)) @ rng.standard_normal((d, n)) / math.sqrt(d))
    w = rng.standard_normal(n)
    without, with_mean = (projected_errors(P, u, k, rng, draws=5) for u in (w - w.mean(), w + 2))
    return Reading({"eps": eps, "k": k, "n": n, "without": float(without.min()), "with_mean": float(with_mean.max())})


def e38() -> Reading:
    """The averages of the table at k = 256, beside that of RoBERTa."""
    averages = {name: mean_of(row[:4]) for name, row in DOWNSTREAM.items()}
    rows = {name: average for name, average in averages.items() if "Linformer, 256" in name}
    ahead = [name for name, average in rows.items() if average > averages["RoBERTa-base"]]
    best = DOWNSTREAM[max(rows, key=rows.__getitem__)][-1]
    return Reading({"ahead": len(ahead), "of": len(rows), "best": best, "roberta": DOWNSTREAM["RoBERTa-base"][-1]})


def e39() -> Reading:
    """Averages of 16 draws, their expectation SMREG, and the softmax kernel, for one pair of vectors."""
    rng = np.random.default_rng(39)
    d, m = 6, 16
    x = np.eye(d)[0]

    def hat() -> float:
        f = positive_features(x[None], of_same_length(rng.standard_normal((m, d))))[0][0]
        return float(f @ f)

    spread = np.std([hat() for _ in range(500)]) / smreg(x, x)
    return Reading({"spread": float(spread), "m": m, "ratio": float(smreg(x, x) / softmax_kernel(x, x))})


def e40() -> Reading:
    """How many blocks and how many tokens the two windows have, for an even and an odd w."""
    n, middle = 60, 30
    numbers = {}
    for w in (3, 4):
        blocks = sum(abs(j - middle) <= (w - 1) / 2 for j in range(n))
        tokens = sum(abs(j - middle) <= w / 2 for j in range(n))
        numbers |= {f"blocks{w}": blocks, f"tokens{w}": tokens}
    return Reading(numbers)


def e42() -> Reading:
    """Attention to the neighbours in a graph, plus x_i: as printed with σ a softmax, and with the scale."""
    rng = np.random.default_rng(42)
    n, d = 9, 16
    X, Q, K, V = rng.standard_normal((4, n, d))
    pattern = BigBird(block=1, random=1)(n, n, causal=False)
    meant, _ = block_sparse_attention(Q, K, V, pattern)
    printed, _ = block_sparse_attention(Q, K, V, pattern, scale=1.0)
    hidden = np.where(pattern.mask, Q @ K.T, -np.inf)
    numbers = {"printed": largest_weight(hidden), "meant": largest_weight(hidden / math.sqrt(d)), "d": d}
    return Reading(numbers, relative_error(X + printed, X + meant))
