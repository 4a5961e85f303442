"""How many singular values of a trained BERT's attention matrices matter, and what is lost with fewer keys?

The text is the documentation inside Python, in passages of 512 word pieces. Beside the trained heads stand those of the same
model with fresh weights, on the same text, and random queries and keys.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.attention.compressed import linformer_attention, nystrom_attention
from minitransformer.backend import backend
from minitransformer.data.text import Text, decode, python_docs
from minitransformer.functional import softmax
from minitransformer.measurements.low_rank import held, held_of
from minitransformer.measurements.rows import in_use
from minitransformer.models import BERT, SequenceParams
from minitransformer.models.bert_files import load_bert
from minitransformer.typing import Array

IN_A_TEST = {"passages": 1, "n": 128}
RANKS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512)
KEYS = (32, 128)
METHODS = ("best", "neighbours", "every", "landmarks", "random", "mean")
BYTES = 8  # of text for each token, more than are needed


@dataclass(frozen=True)
class Trial:
    """Passages of n tokens, evenly spread over the text."""

    passages: int = 4
    n: int = 512


def trials() -> list[Trial]:
    """A single trial: nothing is drawn or trained."""
    return [Trial()]


def run(trial: Trial) -> dict[str, Any]:
    """Measure every head, averaged over the passages. A minute.

    text       name and SHA-256
    trained    (blocks, ranks) part of the sum of a matrix's singular values that the first r of RANKS hold, mean of the heads
    fresh      the same of the model with fresh weights, on the first passage
    random     (ranks,) of softmax(Q Kᵀ/√d) with random Q and K
    heads      (passages, blocks, heads) that part for r = n/4
    used       (2, blocks) keys in use, exp of the entropy of a row, mean of rows and heads: trained, and with fresh weights
    ranks      (blocks,) rank of the scores, the largest of all heads
    errors     by method and number of keys, (blocks,): ‖Y′ − Y‖/‖Y‖ of what a head says, mean of the heads
    """
    model, params, tokenizer = load_bert()
    tokens = passages_of(python_docs(), tokenizer, trial.passages, trial.n)
    rng = np.random.default_rng(1)
    d = model.width // model.heads
    Q, K = rng.standard_normal((2, model.heads, trial.n, d))
    trained, heads, ranks, used, errors = measure(model, params, tokens, rng)
    del params  # two BERTs at once would take twice the memory
    fresh, _, _, used_fresh, _ = measure(model, model.init(np.random.default_rng(0)), tokens[:1], None)
    A, _ = softmax(Q @ K.mT / np.sqrt(d))
    of_random = held(A)[..., places(trial.n)].mean(0)
    return {
        "text": {"name": python_docs().name, "sha256": python_docs().sha256},
        "trained": trained.round(4).tolist(),
        "fresh": fresh.round(4).tolist(),
        "random": of_random.round(4).tolist(),
        "heads": heads.round(4).tolist(),
        "ranks": ranks.tolist(),
        "used": [used.round(1).tolist(), used_fresh.round(1).tolist()],
        "errors": {f"{method}, {k}": found.round(4).tolist() for (method, k), found in errors.items()},
    }


def passages_of(docs: Text, tokenizer: Any, count: int, n: int) -> Array:
    """(count, n) tokens from places that are evenly spread over the whole text, each row between [CLS] and [SEP]."""
    text, length = decode(np.concatenate([docs.train, docs.held_out])), BYTES * n
    starts = np.linspace(0, len(text) - length, count).astype(int)
    return tokenizer([text[start : start + length] for start in starts], longest=n).tokens


def relative_error(Y: Array, want: Array) -> Array:
    """‖Y′ − Y‖/‖Y‖ of each head."""
    return np.linalg.norm(Y - want, axis=(-2, -1)) / np.linalg.norm(want, axis=(-2, -1))


def places(n: int) -> Array:
    """Where each r of RANKS stands among 1 … n; the last place for an r beyond n."""
    return np.minimum(RANKS, n) - 1


def heads_of(model: BERT, params: SequenceParams, tokens: Array) -> Iterator[tuple[Array, Array, Array, Array]]:
    """Q, K, V and A of each block, (heads, n, …), in float64."""
    with backend("numpy"):  # the tier that keeps A
        _, pullback = model(params, tokens)
    for block in pullback.blocks:
        attention = block.attention.layer.core.attention
        arrays = attention.scores.Q, attention.scores.K, attention.aggregate.V, attention.A
        Q, K, V, A = (X[0].astype(np.float64) for X in arrays)
        yield Q, K, V, A


def measure(model: BERT, params: SequenceParams, tokens: Array, rng: np.random.Generator | None) -> Any:
    """Curves (blocks, ranks), heads at n/4 (passages, blocks, heads), ranks of scores, keys in use; with a generator, errors."""
    curves = np.zeros((len(tokens), model.depth, len(RANKS)))
    quarter = np.zeros((len(tokens), model.depth, model.heads))
    ranks, used = np.zeros((len(tokens), model.depth), int), np.zeros((len(tokens), model.depth))
    errors = {(method, k): np.zeros((len(tokens), model.depth)) for method in METHODS for k in KEYS}
    for passage, row in enumerate(tokens):
        for block, (Q, K, V, A) in enumerate(heads_of(model, params, row[None])):
            left, sigma, right = np.linalg.svd(A)
            share = held_of(sigma)
            curves[passage, block] = share[:, places(len(row))].mean(0)
            quarter[passage, block] = share[:, len(row) // 4 - 1]
            used[passage, block] = in_use(A).mean()
            ranks[passage, block] = np.linalg.matrix_rank(Q @ K.mT).max()
            if rng is not None:
                Y = A @ V
                for k in KEYS:
                    said = _with_fewer(k, Q, K, V, A, (left, sigma, right), rng)
                    for method, other in zip(METHODS, said, strict=True):
                        errors[method, k][passage, block] = relative_error(other, Y).mean()
    means = {key: found.mean(0) for key, found in errors.items()}
    return curves.mean(0), quarter, ranks.max(0), used.mean(0), means


def averages(k: int, n: int) -> Array:
    """E (k, n) whose row a is the mean of the a-th of k blocks of neighbours."""
    which = np.arange(n) * k // n  # the block of each
    return (which == np.arange(k)[:, None]) / np.bincount(which, minlength=k)[:, None]


def _with_fewer(
    k: int, Q: Array, K: Array, V: Array, A: Array, svd: tuple[Array, Array, Array], rng: np.random.Generator
) -> list[Array]:
    """Outputs of heads with k singular values, keys or landmarks in place of n keys, untrained: one for each of METHODS."""
    n = K.shape[-2]
    left, sigma, right = svd
    every = np.eye(n)[np.arange(k) * n // k]
    R = rng.standard_normal((k, n)) / np.sqrt(k)
    return [
        (left[..., :k] * sigma[..., None, :k]) @ (right[..., :k, :] @ V),
        linformer_attention(Q, K, V, averages(k, n))[0],
        linformer_attention(Q, K, V, every)[0],
        nystrom_attention(Q, K, V, landmarks=k)[0],
        A @ (R.T @ (R @ V)),
        V.mean(-2, keepdims=True),
    ]
