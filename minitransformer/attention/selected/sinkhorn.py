"""Sinkhorn attention: blocks of keys are put into another order that is learned, and each block of queries looks at its own
block and at the one that comes to stand beside it. Replaces the stage "pattern (which pairs)".

    R_u = relu(x_u W_1 + b_1) W_2                    x_u: the sum of the keys of block u
    ln S = R, of whose rows and columns in turn their log-sum-exp is subtracted: in the limit all rows and columns of S sum to one
    K̃_u = Σ_v S_uv K_v,  Ṽ_u = Σ_v S_uv V_v        block by block, the t-th row with the t-th
    Y_u = Attention(Q_u, [K̃_u; K_u], [Ṽ_u; V_u])      one softmax over both

All of it is differentiable: where the other learned patterns choose, this one mixes.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from minitransformer.arrays import as_one_axis, from_blocks, in_blocks, must_broadcast, one_dtype
from minitransformer.attention.core import Core, seen_keys, where_seen
from minitransformer.attention.dot_product import dot_product_attention
from minitransformer.attention.merge import log_sum_exp
from minitransformer.checks import frozen
from minitransformer.gather_scatter import unbroadcast
from minitransformer.pullback import Pullback
from minitransformer.ranges import Iterations, PositiveNumber
from minitransformer.typing import Array, Bool, Float, checked


class SinkhornPullback(Pullback):
    """r′ = r − lse(r) along an axis: dr = dr′ − exp(r′) Σ dr′, the steps in reverse; at the end dr = dS ⊙ S.

    steps   exp r′ after each step, rows and columns in turn
    """

    steps: tuple[Array, ...]
    S: Array

    def __call__(self, dS: Array) -> Array:
        dr = dS * self.S
        for k, weights in reversed(list(enumerate(self.steps))):
            dr = dr - weights * dr.sum(-1 - k % 2, keepdims=True)
        return dr


@checked
def sinkhorn(
    R: Float[Array, "*batch N N"], *, iterations: Iterations = 8, there: Bool[Array, "*some N"] | None = None
) -> tuple[Float[Array, "*batch N N"], SinkhornPullback]:
    """exp of R after its rows, then its columns, have been normalised `iterations` times: S with all sums near one.

        r ← r − lse_v(r_uv),   r ← r − lse_u(r_uv)

    Columns come last and sum to one exactly; rows come nearer to one with each iteration.

    there    rows and columns that take part; the others are zero
    source   Sinkhorn 1964; in logarithms, so that no R is too large
    cost     O(iterations · N²) time and memory
    """
    if there is not None:
        must_broadcast(there, R.shape[:-1], "there", "the rows of R")
    r = R if there is None else np.where(there[..., None] & there[..., None, :], R, R.dtype.type(-np.inf))
    steps = []
    for _ in range(iterations):
        for axis in (-1, -2):
            total = np.expand_dims(log_sum_exp(r, axis), axis)
            r = r - np.where(total == -np.inf, R.dtype.type(0), total)
            steps.append(np.exp(r))
    return steps[-1], SinkhornPullback(tuple(steps), steps[-1])


class SortedPullback(Pullback):
    """K̃_u = Σ_v S_uv K_v: dS_uv = ⟨dK̃_u, K_v⟩, dK_v = Σ_u S_uv dK̃_u; the blocks as long rows."""

    S: Array
    X: Array

    def __call__(self, dX: Array) -> tuple[Array, Array]:
        d = as_one_axis(dX, -2)
        return d @ as_one_axis(self.X, -2).mT, (self.S.mT @ d).reshape(self.X.shape)


def in_order(S: Array, X: Array) -> tuple[Array, SortedPullback]:
    """The mixtures of blocks X (*batch, N, block, w) by S (*batch, N, N), and a pullback: dX̃ to (dS, dX)."""
    return (S @ as_one_axis(X, -2)).reshape(X.shape), SortedPullback(S, X)


class SinkhornAttentionPullback(Pullback):
    """Back through attention to sorted and own blocks, through the mixing to S, and through the normalisations to R.

    cut   how many sorted blocks all queries look at; None if a query looks at the one beside its block and at its own
    """

    order: SinkhornPullback
    K: SortedPullback
    V: SortedPullback
    attention: Pullback
    seen: Array
    n: int
    temperature: float
    cut: int | None

    def __call__(self, dY: Array) -> tuple[Array, Array, Array, Array]:
        block = self.K.X.shape[-2]
        if self.cut is None:
            dQ, dKs, dVs = self.attention(in_blocks(dY, block))
            dQ = from_blocks(dQ, self.n)
            parts = [(dX[..., :block, :], dX[..., block:, :]) for dX in (dKs, dVs)]
        else:
            dQ, dKs, dVs = self.attention(dY)
            parts = []
            for dX, X in ((dKs, self.K.X), (dVs, self.V.X)):
                dsorted = np.zeros_like(X)
                dsorted[..., : self.cut, :, :] = dX.reshape(dsorted[..., : self.cut, :, :].shape)
                parts.append((dsorted, np.zeros_like(X)))
        dS: Any = 0
        gradients = []
        for (dsorted, down), pullback in zip(parts, (self.K, self.V), strict=True):
            dS_part, dX = pullback(dsorted)
            dS = dS + dS_part
            gradients.append(where_seen(self.seen, from_blocks(dX + down, self.n)))
        dR = self.order(dS) / dY.dtype.type(self.temperature)
        return dQ, *gradients, dR


@checked
def sinkhorn_attention(
    Q: Float[Array, "*batch n d"],
    K: Float[Array, "*batch n d"],
    V: Float[Array, "*batch n dv"],
    R: Float[Array, "*batch N N"],
    *,
    block: int = 32,
    iterations: Iterations = 8,
    temperature: PositiveNumber = 1.0,
    cut: int | None = None,
    mask: Bool[Array, "..."] | None = None,
    rng: np.random.Generator | None = None,
    scale: float | None = None,
) -> tuple[Float[Array, "*batch n dv"], SinkhornAttentionPullback]:
    """Each block of queries attends to its own block and to a mixture of all blocks, one softmax over both.

        S = Sinkhorn((R + G)/τ),   Y_u = Attention(Q_u, [Σ_v S_uv K_v; K_u], [Σ_v S_uv V_v; V_u])

    R            logits of the order, N = ⌈n/block⌉: how much sorted block u is made of block v
    temperature  τ: S → 1/N for a large one, a permutation for a small one
    cut          SortCut: all queries look at the first `cut` sorted blocks, and at nothing else
    mask         True for keys that are there, (…, 1, n): a mixture can't be hidden from a single query. A hidden key adds
                 nothing to a mixture; a block of hidden keys takes no part in the order
    rng          for Gumbel noise G; none without
    scale        1/√d by default
    source       Named in Borealis II; Tay, Bahri, Yang, Metzler and Juan 2020
    cost         O(n block d + N² (block d + iterations)) time. Not causal: a column of S is brought to one over all rows,
                 so the past's share in a block depends on the blocks that follow
    returns      Y and a pullback: dQ, dK, dV, dR = pullback(dY); the noise is constant
    raises       TypeError for a wrong shape or dtype, ValueError for R of another number of blocks, a mask of pairs, or τ = 0
    """
    one_dtype(Q=Q, K=K, V=V, R=R)
    n, N = Q.shape[-2], R.shape[-1]
    if -(-n // block) != N:
        raise ValueError(f"R: {N} blocks, but {n} rows in blocks of {block} are {-(-n // block)}")
    seen: Any = seen_keys(mask, Q, K, "what a sorted block mixes")
    seen = np.ones((n, 1), bool) if seen is None else seen
    K, V = where_seen(seen, K), where_seen(seen, V)
    own = in_blocks(seen, block)[..., 0]  # (…, N, block)
    there: Any = own.any(-1)
    if rng is not None:
        R = R + rng.gumbel(size=R.shape).astype(R.dtype)
    S, order = sinkhorn(R / R.dtype.type(temperature), iterations=iterations, there=there)
    (sorted_K, K_back), (sorted_V, V_back) = (in_order(S, in_blocks(X, block)) for X in (K, V))
    mixed = there[..., None] & own.any(-2, keepdims=True)  # rows of a sorted block that hold something
    if cut is None:
        keys, values = (np.concatenate(pair, -2) for pair in ((sorted_K, K_back.X), (sorted_V, V_back.X)))
        sees = np.concatenate([mixed, own], -1)[..., None, :]
        Y, attention = dot_product_attention(in_blocks(Q, block), keys, values, mask=sees, scale=scale)
        Y = from_blocks(Y, n)
    else:
        cut = min(cut, N)
        keys, values = (from_blocks(X[..., :cut, :, :], cut * block) for X in (sorted_K, sorted_V))
        sees = as_one_axis(mixed[..., :cut, :], -2)[..., None, :]
        Y, attention = dot_product_attention(Q, keys, values, mask=sees, scale=scale)
    return Y, SinkhornAttentionPullback(order, K_back, V_back, attention, seen, n, temperature, cut)


# --------------------------------------------------------------------------------------------- the core


class SinkhornParams(NamedTuple):
    """The network that makes R, for each head: W_1 (H, d, d), b_1 (H, d), W_2 (H, d, N). A bias of R would cancel."""

    W_1: Array
    b_1: Array
    W_2: Array


class SortNetworkPullback(Pullback):
    """Back through R = relu(x W_1 + b_1) W_2, whose weights all samples share, to the keys: x_u sums block u, so each of its rows
    gets dx_u.
    """

    x: Array
    hidden: Array
    params: SinkhornParams
    block: int

    def __call__(self, dR: Array) -> tuple[SinkhornParams, Array]:
        W_1, _, W_2 = self.params
        N = dR.shape[-1]
        dhidden = np.where(self.hidden > 0, dR @ W_2[..., :N].mT, dR.dtype.type(0))

        dW_2 = np.zeros_like(W_2)
        dW_2[..., :N] = unbroadcast(self.hidden.mT @ dR, (*W_2.shape[:-1], N))
        dW_1 = unbroadcast(self.x.mT @ dhidden, W_1.shape)
        db_1 = unbroadcast(dhidden.sum(-2), (*W_1.shape[:-2], W_1.shape[-1]))
        dK = np.repeat(dhidden @ W_1.mT, self.block, -2)
        return SinkhornParams(dW_1, db_1, dW_2), dK


class SinkhornCorePullback(Pullback):
    """Back through attention and through the network that made R: the keys get gradients from both."""

    network: SortNetworkPullback
    attention: SinkhornAttentionPullback

    def __call__(self, dY: Array) -> tuple[SinkhornParams, Array, Array, Array]:
        dQ, dK, dV, dR = self.attention(dY)
        dparams, dK_network = self.network(dR)
        return dparams, dQ, dK + where_seen(self.attention.seen, dK_network[..., : dK.shape[-2], :]), dV


@frozen
class Sinkhorn(Core):
    """Learns to sort blocks of keys, softly; a block of queries looks at its own block and at the one sorted into its place.

    heads, d, longest   filled in by the model; longer sequences than `longest` have no logits
    block               rows of a block
    iterations          how often rows and columns are normalised
    temperature         τ
    noise               whether Gumbel noise is added to the logits in training, when there is a generator
    cut                 SortCut: all look at the first `cut` sorted blocks only; None for the usual form

    Not causal, though the paper has a causal form: a column is normalised over the rows of later blocks too, so these say how
    much of an early block an early query gets. Without that S is no permutation, or, if it is a causal one, the identity.

    source   Named in Borealis II; Tay, Bahri, Yang, Metzler and Juan 2020
    cost     O(n block d + (n/block)² (block d + iterations)) time
    """

    heads: int
    d: int
    longest: int
    block: int = 32
    iterations: Iterations = 8
    temperature: PositiveNumber = 1.0
    noise: bool = False
    cut: int | None = None

    stage = "pattern"
    unplaced = "has keys that are mixtures of blocks, and these stand nowhere"
    cost = "O(n block + (n/block)²)"
    causal = "never"
    remembers = None
    needs = "a network that sorts"

    def refuse(self, *, causal: bool) -> None:
        """Raise ValueError for causal=True."""
        if causal:
            raise ValueError("attention: Sinkhorn can't be causal: the columns of S are normalised over later blocks")

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> SinkhornParams:
        """Weights drawn uniformly from ±√(3/d)."""
        b = math.sqrt(3 / self.d)
        W_1, W_2 = (
            rng.uniform(-b, b, (self.heads, self.d, columns)).astype(dtype)
            for columns in (self.d, -(-self.longest // self.block))
        )
        return SinkhornParams(W_1, np.zeros((self.heads, self.d), dtype), W_2)

    def __call__(
        self, params: SinkhornParams, Q: Array, K: Array, V: Array, *streams: Array, causal: bool = False,
        mask: Array | None = None, rng: Any = None,
    ) -> tuple[Array, SinkhornCorePullback]:  # fmt: skip
        """Pullback: dY to (dparams, dQ, dK, dV).

        raises   ValueError for causal=True, m ≠ n, more rows than `longest`, or a mask of pairs
        """
        self.refuse(causal=causal)
        n, m = Q.shape[-2], K.shape[-2]
        if n != m or m > self.longest:
            raise ValueError(f"K: {m} keys for {n} queries; Sinkhorn takes as many, and no more than {self.longest}")
        seen = seen_keys(mask, Q, K, "what a sorted block mixes")
        x = in_blocks(where_seen(seen, K), self.block).sum(-2)
        hidden = np.maximum(x @ params.W_1 + params.b_1[:, None], 0)
        R = hidden @ params.W_2[..., : x.shape[-2]]
        Y, attention = sinkhorn_attention(
            *(Q, K, V, R),
            block=self.block, iterations=self.iterations, temperature=self.temperature, cut=self.cut, mask=mask,
            rng=rng if self.noise else None,
        )  # fmt: skip
        return Y, SinkhornCorePullback(SortNetworkPullback(x, hidden, params, self.block), attention)
