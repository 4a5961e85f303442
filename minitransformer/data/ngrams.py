"""Byte n-grams, the honest control of the chapter on language models: counting, and nothing learned.

    P_k(b | c) = (N(c b) + T(c) · P_{k−1}(b | c′)) / (N(c) + T(c)),      P_0(b) = 1/256

c is the context of the last k − 1 bytes and c′ the same without its first. N counts in the training text, and T(c) is
the number of different bytes that were seen after c: a context that was followed by many kinds of bytes is trusted
less, and more is left for the shorter one (interpolated Witten–Bell). A context that was never seen adds nothing.
"""

from typing import NamedTuple

import numpy as np

from minitransformer.arrays import row_of_integers
from minitransformer.typing import Array, checked

BYTES = 256
LONGEST = 8  # bytes that fit in one unsigned 64-bit number


class Counts(NamedTuple):
    """The counts of order k. Byte strings are packed in integers and sorted, so that a look-up is a binary search."""

    grams: Array  # the distinct (c, b)
    occurrences: Array  # N(c b)
    contexts: Array  # the distinct c
    total: Array  # N(c)
    kinds: Array  # T(c)


class NGrams(NamedTuple):
    """Counts of the orders 1, 2, …, order."""

    orders: tuple[Counts, ...]

    @property
    def order(self) -> int:
        """The longest gram, in bytes: a trigram model has order 3, and sees two bytes of context."""
        return len(self.orders)


@checked
def fit(train: Array, order: int) -> NGrams:
    """Count the grams of length 1 to `order` in a text.

    train    bytes, as integers 0 … 255
    cost     O(order · n log n)
    raises   ValueError for an empty text, for what is not a byte, or an order outside 1 … 8
    """
    if not 1 <= order <= LONGEST:
        raise ValueError(f"order: {order} is not within 1 … {LONGEST}")
    train = _bytes(train, "train")
    if not train.size:
        raise ValueError("train: an empty text has no n-grams")
    return NGrams(tuple(_count(train, k) for k in range(1, order + 1)))


@checked
def probabilities(model: NGrams, text: Array) -> Array:
    """P(text[i] | the bytes before it) of every order at once, (order, n).

    Where fewer than k − 1 bytes come before, order k answers as the longest order that has its context.
    raises   ValueError for what is not a row of bytes, and for counts that no `fit` has made
    """
    text = _bytes(text, "text")
    _refuse_other_counts(model)
    P = np.empty((model.order + 1, text.size))
    P[0] = 1 / BYTES
    for k, counts in enumerate(model.orders, start=1):
        P[k] = P[k - 1]
        grams = _pack(text, k)
        N, total, kinds = _look_up(counts, grams)
        P[k, k - 1 :] = (N + kinds * P[k - 1, k - 1 :]) / np.maximum(total + kinds, 1)
        unseen = np.flatnonzero(total == 0) + k - 1
        P[k, unseen] = P[k - 1, unseen]
    return P[1:]


@checked
def bits_per_byte(model: NGrams, text: Array) -> Array:
    """−(1/n) Σ log₂ P(text[i] | …), one number for each order 1 … `model.order`.

    raises   as `probabilities`, and ValueError for an empty text
    """
    if not text.size:
        raise ValueError("text: an empty text has no bytes to be judged by")
    return -np.log2(probabilities(model, text)).mean(-1)


@checked
def distribution(model: NGrams, context: bytes) -> Array:
    """P(b | context) for all 256 bytes b, by the highest order for which the context is long enough."""
    texts = np.empty((BYTES, len(context) + 1), np.uint8)
    texts[:, :-1] = np.frombuffer(context, np.uint8)
    texts[:, -1] = np.arange(BYTES)
    keep = min(len(context) + 1, model.order)
    return np.array([probabilities(model, row[-keep:])[-1, -1] for row in texts])


def _refuse_other_counts(model: NGrams) -> None:
    """Raise ValueError unless the counts are rows of integers that belong together, as `fit` makes them."""
    for k, counts in enumerate(model.orders, start=1):
        for name, X in counts._asdict().items():
            row_of_integers(X, f"model.orders[{k - 1}].{name}")
        if len(counts.grams) != len(counts.occurrences) or len({len(X) for X in counts[2:]}) > 1:
            raise ValueError(
                f"model: its counts of order {k} have the lengths {[len(X) for X in counts]}; the first two should be equal, "
                "and so should the other three"
            )


def _bytes(text: Array, name: str) -> Array:
    """A row of bytes as unsigned 64-bit numbers. Raises ValueError for anything else."""
    row_of_integers(text, name)
    if text.size and not (0 <= text.min() and text.max() < BYTES):
        raise ValueError(f"{name}: {text.min()} … {text.max()} is not within 0 … {BYTES - 1}")
    return text.astype(np.uint64)


def _pack(text: Array, k: int) -> Array:
    """The grams text[i : i + k] as numbers, first byte highest, so that gram >> 8 is the context of the last byte."""
    n = max(text.size - k + 1, 0)
    packed = np.zeros(n, np.uint64)
    for j in range(k):
        packed = packed << np.uint64(8) | text[j : j + n]
    return packed


def _count(train: Array, k: int) -> Counts:
    """The counts of order k in a text."""
    grams, occurrences = np.unique(_pack(train, k), return_counts=True)
    # sorted grams stand in groups of one context each
    contexts, starts, kinds = np.unique(grams >> np.uint64(8), return_index=True, return_counts=True)
    total = np.add.reduceat(occurrences, starts) if grams.size else np.zeros(0, np.int64)
    return Counts(grams, occurrences, contexts, total, kinds)


def _look_up(counts: Counts, grams: Array) -> tuple[Array, Array, Array]:
    """N(c b), N(c) and T(c) for each gram (c, b); zeros for what was never seen."""
    (N,) = _found(counts.grams, grams, counts.occurrences)
    total, kinds = _found(counts.contexts, grams >> np.uint64(8), counts.total, counts.kinds)
    return N, total, kinds


def _found(known: Array, wanted: Array, *values: Array) -> list[Array]:
    """The values that belong to the wanted ones among the known; 0 for what is not among them, be it that nothing is."""
    if not known.size:
        return [np.zeros(wanted.shape, np.int64) for _ in values]
    place = np.minimum(np.searchsorted(known, wanted), known.size - 1)
    return [np.where(known[place] == wanted, X[place], 0) for X in values]
