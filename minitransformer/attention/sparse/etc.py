"""ETC, the extended transformer construction: tokens of its own in front of the text, and a label on every pair.

    [g; x]       g tokens that stand for no word and see everything, n of the text that see them and their neighbours
    S_ij = (⟨q_i, k_j + r_ℓ⟩ + b_ℓ) / √d,     ℓ = label(i, j)

How far is a word from a token that stands nowhere? Between the two there is no offset. So a position is a label: one for each
offset of two words, clipped; one for a word that looks at a global token, one for the reverse, one for two global tokens. A
row has one softmax: {word to word, word to global} for a word, {global to global, global to word} for a global token.

Replaces the stages "scores" and "pattern (which pairs)". A model puts g learned rows in front of the text (`prefix`), lets them
live through all layers, and drops them at the end.
"""

from typing import Annotated, NamedTuple

import numpy as np

from minitransformer.arrays import (
    from_blocks,
    in_blocks,
    must_broadcast,
    one_dtype,
    refuse_other_lengths,
    scale_for,
    times,
)
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.core import Core, ParamsFirstPullback, seen_keys
from minitransformer.attention.dot_product import AggregatePullback, aggregate
from minitransformer.checks import frozen
from minitransformer.functional import SoftmaxPullback, softmax
from minitransformer.gather_scatter import sum_by_index, unbroadcast
from minitransformer.pullback import Pullback
from minitransformer.ranges import NonNegative, Range, so_many
from minitransformer.typing import Array, Bool, Float, Int, checked

BLOCK = 16  # the smallest block of words that are computed together


class LabelledPullback(AroundAttention):
    """T = Q Rᵀ + b has a number for each query and label, and S = s (Q Kᵀ + T at the labels): dT sums dS over equal labels.

    dQ = s (dS K + dT R),   dK = s dSᵀ Q,   dR = s dTᵀ Q,   db = s Σ dT
    """

    Q: Array
    K: Array
    R: Array
    b: Array
    label: Array
    scale: float
    softmax: SoftmaxPullback
    aggregate: AggregatePullback
    inside = "softmax"

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        dA, dV = self.aggregate(dY)
        dS = self.scale * self.softmax(dA)
        n, labels = self.label.shape[0], self.R.shape[-2]
        own = self.label + labels * np.arange(n)[:, None]  # each row has a table of its own
        dT = sum_by_index(dS, own, n * labels).reshape(*dS.shape[:-1], labels)
        dR, db = unbroadcast(dT.mT @ self.Q, self.R.shape), unbroadcast(dT.sum(-2), self.b.shape)
        return times(dS, self.K) + dT @ self.R, times(dS.mT, self.Q), dV, dR, db


@checked
def labelled_attention(
    Q: Float[Array, "*batch n d"],
    K: Float[Array, "*batch m d"],
    V: Float[Array, "*batch m dv"],
    R: Float[Array, "*shared r d"],
    b: Float[Array, "*shared r"],
    label: Int[Array, "n m"],
    *,
    mask: Bool[Array, "..."] | None = None,
    scale: float | None = None,
) -> tuple[Float[Array, "*batch n dv"], LabelledPullback]:
    """Softmax attention in which a pair (i, j) is of a kind, and each kind has a vector and a number of its own.

        S_ij = scale · (⟨q_i, k_j + r_ℓ⟩ + b_ℓ),   ℓ = label_ij          Y = softmax(S) V

    R, b     what is learned for each label; their batch axes broadcast to those of Q
    label    the kind of each pair, 0 … r − 1
    mask     True where query i sees key j; must broadcast to (*batch, n, m). A query that sees no key gives zeros
    scale    1/√d by default
    source   Ainslie et al. 2020, ETC; with offsets as labels and b = 0 it is Shaw's (Borealis II (10))
    cost     O(n m (d + r)) time, O(n m) memory
    returns  Y and a pullback: dQ, dK, dV, dR, db = pullback(dY)
    raises   TypeError for a wrong shape or dtype, ValueError for a label outside 0 … r − 1, an R of other heads, or a mask that
             does not fit
    """
    one_dtype(Q=Q, K=K, V=V, R=R, b=b)
    must_broadcast(R, (*Q.shape[:-2], *R.shape[-2:]), "R", "the heads of the queries")
    if label.size and not (0 <= label.min() and label.max() < R.shape[-2]):
        raise ValueError(f"label: {label.min()} … {label.max()} is not within 0 … {R.shape[-2] - 1}")
    s = Q.dtype.type(scale_for(Q.shape[-1], scale))
    T = Q @ R.mT + b[..., None, :]
    A, normalise = softmax(s * (Q @ K.mT + T[..., np.arange(len(label))[:, None], label]), mask=mask)
    Y, average = aggregate(A, V)
    return Y, LabelledPullback(Q, K, R, b, label, float(s), normalise, average)


# ------------------------------------------------------------------------------------------------- words and blocks


def labels_of(i: Array, j: Array, *, global_tokens: int, clip: int) -> Array:
    """The label of query i and key j, where the first `global_tokens` positions stand for no word.

    0 … 2 clip      two words: j − i + clip, and the first or last of these if they are further apart than `clip`
    2 clip + 1      a word looks at a global token;  + 2  a global token at a word;  + 3  at a global token
    """
    far = np.where(i < global_tokens, np.where(j < global_tokens, 3, 2), 1) + 2 * clip
    return np.where((i < global_tokens) | (j < global_tokens), far, np.clip(j - i, -clip, clip) + clip)


def with_neighbours(X: Array) -> Array:
    """(…, N, B, d) to (…, N, 3 B, d): each block between the one before it and the one after it, zeros at the ends."""
    X = np.pad(X, [(0, 0)] * (X.ndim - 3) + [(1, 1), (0, 0), (0, 0)])
    return np.concatenate([X[..., :-2, :, :], X[..., 1:-1, :, :], X[..., 2:, :, :]], -2)


def from_neighbours(dX: Array) -> Array:
    """The gradient of `with_neighbours`: a block was looked at as itself, as the next of one, and as the one before another."""
    before, own, after = np.split(dX, 3, -2)
    own = own.copy()
    own[..., 1:, :, :] += after[..., :-1, :, :]
    own[..., :-1, :, :] += before[..., 1:, :, :]
    return own


class Blocks(NamedTuple):
    """How n words are cut: N blocks of B, the last one filled up; g tokens stand before them."""

    n: int
    g: int
    size: int

    def seen(self, X: Array) -> Array:
        """The rows of X = [g; x] that each block looks at, the global ones, then its neighbours: (…, N, g + 3 B, d)."""
        near = with_neighbours(in_blocks(X[..., self.g :, :], self.size))
        first = np.broadcast_to(X[..., None, : self.g, :], (*near.shape[:-2], self.g, X.shape[-1]))
        return np.concatenate([first, near], -2)

    def unseen(self, dX: Array) -> Array:
        """The gradient of `seen`: dX of the rows [g; x]."""
        near = from_blocks(from_neighbours(dX[..., self.g :, :]), self.n)
        return np.concatenate([dX[..., : self.g, :].sum(-3), near], -2)


class ETCPullback(Pullback):
    """The rows of Y come from two attentions, which share keys, values and labels: their gradients add up."""

    of_globals: LabelledPullback
    of_words: LabelledPullback
    blocks: Blocks

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        g = self.blocks.g
        dQ_g, dK_g, dV_g, dR_g, db_g = self.of_globals(dY[..., :g, :])
        dQ_w, dK_w, dV_w, dR_w, db_w = self.of_words(in_blocks(dY[..., g:, :], self.blocks.size))
        dQ = np.concatenate([dQ_g, from_blocks(dQ_w, self.blocks.n)], -2)
        dK, dV = dK_g + self.blocks.unseen(dK_w), dV_g + self.blocks.unseen(dV_w)
        return dQ, dK, dV, dR_g + dR_w[..., 0, :, :], db_g + db_w[..., 0, :]


@checked
def etc_attention(
    Q: Float[Array, "*batch n d"],
    K: Float[Array, "*batch n d"],
    V: Float[Array, "*batch n dv"],
    R: Float[Array, "*shared r d"],
    b: Float[Array, "*shared r"],
    *,
    global_tokens: NonNegative = 1,
    radius: NonNegative = 32,
    mask: Bool[Array, "..."] | None = None,
    scale: float | None = None,
) -> tuple[Float[Array, "*batch n dv"], ETCPullback]:
    """Attention of [g; x] in which words see words within a radius, and the first `global_tokens` rows see and are seen by all.

    R, b     a vector and a number for each of the r = 2 clip + 4 labels (labels_of): r even, at least 4
    mask     True where a key is there, (…, 1, n)
    scale    1/√d by default
    source   Borealis II, figure 9b; Ainslie et al. 2020
    cost     O(n (radius + global_tokens) d): words are cut into blocks; each sees itself, the two beside it and the global rows
    returns  Y and a pullback: dQ, dK, dV, dR, db = pullback(dY). Never causal: global rows see all, and are seen by all
    raises   TypeError for a wrong shape or dtype; ValueError for an odd number of labels or fewer than 4, a radius or number of
             global tokens below 0, or a mask of pairs
    """
    n, labels = Q.shape[-2], R.shape[-2]
    if labels % 2 or labels < 4:
        raise ValueError(f"R: {labels} labels should be even, and at least 4")
    clip, g, there = labels // 2 - 2, min(global_tokens, n), seen_keys(mask, Q, K, "ETC's attention")
    there = np.ones((n, 1), bool) if there is None else np.broadcast_to(there, (*there.shape[:-2], n, 1))
    i, j = np.arange(g)[:, None], np.arange(n)
    label = labels_of(i, j, global_tokens=g, clip=clip)
    Y_g, of_globals = labelled_attention(Q[..., :g, :], K, V, R, b, label, mask=there.mT, scale=scale)
    blocks = Blocks(n - g, g, min(max(radius, BLOCK), max(n - g, 1)))
    i = g + blocks.size + np.arange(blocks.size)[:, None]  # of the second of three blocks, behind the global rows
    j = np.arange(g + 3 * blocks.size)
    near = (np.abs(i - j) <= radius) | (j < g)
    Y_w, of_words = labelled_attention(
        *(in_blocks(Q[..., g:, :], blocks.size), blocks.seen(K), blocks.seen(V), R[..., None, :, :], b[..., None, :]),
        labels_of(i, j, global_tokens=g, clip=clip),
        mask=near & blocks.seen(there).mT,
        scale=scale,
    )
    return np.concatenate([Y_g, from_blocks(Y_w, blocks.n)], -2), ETCPullback(of_globals, of_words, blocks)


class ETCParams(NamedTuple):
    """For each head and label a vector, (H, 2 clip + 4, d), and a number, (H, 2 clip + 4)."""

    R: Array
    b: Array


@frozen
class ETC(Core):
    """A window between words, tokens in front of them that see and are seen by all, and a label on every pair.

    d, heads   the model fills them in
    radius     of the window
    global_tokens   g, rows that the model puts in front of the text, learned and for no word
    clip       offsets with a label of their own, to each side
    source     Ainslie et al. 2020; Borealis II, figure 9b. In their code the four kinds of pairs (word to word, word to
               global, …) can have keys and values of their own; by default they share one projection, as here, and only the
               outputs of global rows have another
    cost       O(n (radius + g) d)
    """

    d: int
    heads: int
    radius: NonNegative = 32
    global_tokens: Annotated[int, Range("at least 1; without a global token it is a Window", lambda g: g >= 1)] = 8
    clip: NonNegative = 16

    stage = "scores, pattern"
    unplaced = "has labels on its pairs already, for tokens that stand nowhere as for words"
    causal = "never"
    cost = "O(n radius)"
    remembers = None

    @property
    def prefix(self) -> int:  # type: ignore[override]
        """g, the number of global rows in front of the text."""
        return self.global_tokens

    @property
    def needs(self) -> str:  # type: ignore[override]
        """The rows that the model puts in front."""
        return f"{so_many(self.global_tokens, 'token')} in front"

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> ETCParams:
        """Small vectors, and numbers of 0: at first all kinds of pairs are nearly alike."""
        R = 0.02 * rng.standard_normal((self.heads, 2 * self.clip + 4, self.d))
        return ETCParams(R.astype(dtype), np.zeros((self.heads, 2 * self.clip + 4), dtype))

    def __call__(
        self, params: ETCParams, Q: Array, K: Array, V: Array, *streams: Array, causal: bool = False,
        mask: Array | None = None, rng: object = None,
    ) -> tuple[Array, Pullback]:  # fmt: skip
        """Pullback: dY to (dparams, dQ, dK, dV)."""
        self.refuse(causal=causal)
        refuse_other_lengths(Q, K, "in ETC each token has both")
        Y, attention = etc_attention(Q, K, V, *params, global_tokens=self.global_tokens, radius=self.radius, mask=mask)
        return Y, ParamsFirstPullback(attention, ETCParams)
