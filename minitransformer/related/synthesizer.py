"""Synthesizers: the weights of attention are made without comparing two tokens. Replaces the stage `scores`.

    S_ij = ReLU(x_i W_1 + b_1) · w_j + b_j                 dense: from token i alone, for place j
    S_ij = β_i,⌊j/b⌋ · γ_i,(j mod b)                       factorised dense: likewise, from a + b numbers in place of a b
    S_ij = R_ij                                            random: from the two places alone
    S_ij = ⟨r_i, r′_j⟩                                     factorised random: likewise, of rank k
    Y = softmax(S) V

Where S is a product of rows like queries and rows like keys, the core of chapter 02 makes it, tile by tile: a dense
synthesizer is attention whose keys are a learned table of places. The sum with ⟨q_i, k_j⟩/√d is such a product too, of longer
rows. Where all samples have the same weights they are made once, and the samples stand side by side, as columns of one V.
"""

import math
from typing import Any, Literal, NamedTuple

import numpy as np

from minitransformer.arrays import FEW, refuse_more_queries, scale_for, uniform
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.cache.keys_values import KeysValues
from minitransformer.attention.core import Core
from minitransformer.attention.dot_product import attend_to_buffer, dot_product_attention
from minitransformer.attention.masks import causal_mask
from minitransformer.checks import frozen
from minitransformer.functional import (
    AggregatePullback,
    ScoresPullback,
    SoftmaxPullback,
    aggregate,
    scores,
    sigmoid,
    softmax,
)
from minitransformer.gather_scatter import unbroadcast
from minitransformer.pullback import Pullback, Tree
from minitransformer.related.synthesizer_logits import (
    DenseParams,
    FactorsParams,
    Logits,
    LowRankParams,
    Products,
    RandomParams,
    dense_logits,
    factorised_dense_logits,
    factorised_random_logits,
    random_logits,
)
from minitransformer.typing import Array

# ------------------------------------------------------------------------------------ with dot products


class MixedProductsPullback(Pullback):
    """Of rows side by side each part gets its columns of the gradient; a factor of queries gets dw = Σ ⟨dqueries, queries⟩."""

    Q: Array
    queries: Array
    shapes: tuple[tuple[int, ...], tuple[int, ...]]  # of queries and keys that were mixed in
    scale: Array
    w: tuple[Array, Array]

    def __call__(self, dlogits: Products) -> tuple[Products, Array, Array, tuple[Array, Array]]:
        d = self.Q.shape[-1]
        dcontent, dplace = dlogits.queries[..., :d], dlogits.queries[..., d:]
        dw = self.scale * (dcontent * self.Q).sum(), (dplace * self.queries).sum()
        dqueries = unbroadcast(self.w[1] * dplace, self.shapes[0])
        dkeys = unbroadcast(dlogits.keys[..., d:], self.shapes[1])
        return Products(dqueries, dkeys), self.w[0] * self.scale * dcontent, dlogits.keys[..., :d], dw


class MixedPullback(Pullback):
    """S′ = w_0 C + w_1 S with C = Q Kᵀ/√d, so ⟨dS′, C⟩ = ⟨dS′ K/√d, Q⟩: the gradient of w_0 without a score that is hidden."""

    content: ScoresPullback
    S: Array
    w: tuple[Array, Array]

    def __call__(self, dS: Array) -> tuple[Array, Array, Array, tuple[Array, Array]]:
        dQ, dK = self.content(dS)
        dw = (dQ * self.content.Q).sum(), (dS * self.S).sum()
        return unbroadcast(self.w[1] * dS, self.S.shape), self.w[0] * dQ, self.w[0] * dK, dw


def mixed(logits: Logits, Q: Array, K: Array, w: tuple[Array, Array]) -> tuple[Logits, Pullback]:
    """w_0 Q Kᵀ/√d + w_1 S, again a product if S is one. Pullback: to (dlogits, dQ, dK, dw)."""
    if not isinstance(logits, Products):
        C, content = scores(Q, K)
        return w[0] * C + w[1] * logits, MixedPullback(content, logits, w)
    scale, batch = Q.dtype.type(scale_for(Q.shape[-1])), Q.shape[:-2]
    queries, keys = (np.broadcast_to(X, (*batch, *X.shape[-2:])) for X in logits)
    rows = Products(np.concatenate([w[0] * scale * Q, w[1] * queries], -1), np.concatenate([K, keys], -1))
    shapes = logits.queries.shape, logits.keys.shape
    return rows, MixedProductsPullback(Q, queries, shapes, scale, w)


# --------------------------------------------------------------------------------------- softmax and A V


class ProductsPullback(AroundAttention):
    """Of keys that all samples share, the gradient is the sum over samples."""

    attention: Pullback
    shape: tuple[int, ...]  # of the keys

    def __call__(self, dY: Array) -> tuple[Products, Array]:
        dqueries, dkeys, dV = self.attention(dY)
        return Products(dqueries, unbroadcast(dkeys, self.shape)), dV


class LogitsPullback(AroundAttention):
    """Back through A V and softmax. A is (*batch, H, n, m), or (H, n, m) where all samples have the same."""

    softmax: SoftmaxPullback
    aggregate: AggregatePullback
    shape: tuple[int, ...]  # of S, before it was repeated for each sample
    batch: tuple[int, ...] | None  # of V, if its samples stand side by side
    inside = "softmax"

    def __call__(self, dY: Array) -> tuple[Array, Array]:
        dA, dV = self.aggregate(dY if self.batch is None else samples_as_columns(dY))
        dS = unbroadcast(self.softmax(dA), self.shape)
        return dS, dV if self.batch is None else columns_as_samples(dV, self.batch, dY.shape[-1])


def samples_as_columns(X: Array) -> Array:
    """(*batch, H, n, dv) to (H, n, batch · dv): the samples as columns of one matrix for each head."""
    *batch, H, n, dv = X.shape
    return X.reshape(math.prod(batch), H, n, dv).transpose(1, 2, 0, 3).reshape(H, n, math.prod(batch) * dv)


def columns_as_samples(Y: Array, batch: tuple[int, ...], dv: int) -> Array:
    """The inverse of `samples_as_columns`."""
    H, n, _ = Y.shape
    return Y.reshape(H, n, math.prod(batch), dv).transpose(2, 0, 1, 3).reshape(*batch, H, n, dv)


def attend(logits: Logits, V: Array, *, causal: bool = False, mask: Array | None = None) -> tuple[Array, Pullback]:
    """Y = softmax(S) V, whatever made S. Pullback: dY to (dlogits, dV)."""
    if isinstance(logits, Products):
        keys = np.broadcast_to(logits.keys, (*V.shape[:-2], *logits.keys.shape[-2:]))
        Y, attention = dot_product_attention(logits.queries, keys, V, causal=causal, mask=mask, scale=1.0)
        return Y, ProductsPullback(attention, logits.keys.shape)
    S, places = logits, logits.shape[-2:]
    if causal and places[0] > 1:  # the last place sees all
        mask = causal_mask(*places) if mask is None else mask & causal_mask(*places)
    if mask is not None and mask.ndim > S.ndim:  # each sample has its own
        S = np.broadcast_to(S, (*V.shape[:-2], *places))
    A, normalise = softmax(S, mask=mask)
    if A.ndim == V.ndim:
        Y, weighed = aggregate(A, V)
        return Y, LogitsPullback(normalise, weighed, logits.shape, None)
    Y, weighed = aggregate(A, samples_as_columns(V))
    batch = V.shape[:-3]
    return columns_as_samples(Y, batch, V.shape[-1]), LogitsPullback(normalise, weighed, logits.shape, batch)


# ---------------------------------------------------------------------------------------------- the core

Kind = Literal["dense", "factorised-dense", "random", "factorised-random"]
Mixture = Literal["none", "sum", "gated"]


class SynthesizerParams(NamedTuple):
    """What makes the logits, and α (1,), if a gate mixes them with dot products."""

    logits: Tree
    alpha: Array | None = None


class SynthesizerPullback(AroundAttention):
    """Back through A V and softmax, the mixture, and what made the logits. A network and dot products both use Q.

    w_0 = 1 − σ(α) and w_1 = σ(α), so dα = σ (1 − σ) (dw_1 − dw_0).
    """

    logits: Pullback
    mixed: Pullback | None
    attention: Pullback
    gate: Array | None
    shapes: tuple[tuple[int, ...], tuple[int, ...]]  # of Q and K

    def __call__(self, dY: Array) -> tuple[SynthesizerParams, Array, Array, Array]:
        dlogits, dV = self.attention(dY)
        dQ, dK = (np.zeros(shape, dY.dtype) for shape in self.shapes)
        dalpha = None
        if self.mixed is not None:
            dlogits, dQ, dK, dw = self.mixed(dlogits)
            if self.gate is not None:
                dalpha = self.gate * (1 - self.gate) * (dw[1] - dw[0])
        dparams, dhidden = self.logits(dlogits)
        return SynthesizerParams(dparams, dalpha), dQ if dhidden is None else dQ + dhidden, dK, dV


@frozen
class Synthesizer(Core):
    """The weights come from each token alone, or from the places alone; keys are not used, unless dot products are mixed in.

        Y = softmax(ReLU(X W_1 + b_1) W_2 + b_2) V

    W_1 and b_1 are what the other cores call W_q and b_q, and so each head has its own.

    kind      "dense" as above, "factorised-dense" with two thin W_2 whose outputs are multiplied, "random" with a matrix of
              numbers in place of the network, "factorised-random" with one of rank `rank`
    mixture   "sum" with the scores Q Kᵀ/√d, or "gated": (1 − σ(α)) Q Kᵀ/√d + σ(α) S with one α, as published
    learned   whether the numbers of a random one are; if not they stay as they were drawn
    source    Borealis II, after (21), which prints neither biases nor the bracket in front of Relu (E20); Tay et al. 2021b
    cost      O(n² d) for A V, as in dot-product attention; a random one makes its weights once for all samples. Tables of
              d · longest or longest² numbers for each head. Can be causal. An encoding that turns queries finds none to turn
              in a random one
    raises    ValueError for a sequence longer than the longest, or a dense one that should not be learned
    """

    heads: int
    d: int
    longest: int
    kind: Kind = "dense"
    mixture: Mixture = "none"
    rank: int = 8
    learned: bool = True

    stage = "scores"
    unplaced = "makes scores of its own, from what a token is or from where it stands"
    needs = "a longest length"

    def __post_init__(self) -> None:
        if not self.learned and "dense" in self.kind:
            raise ValueError(f"learned: False is for random logits, and {self.kind!r} ones come from a network")

    @property
    def queries(self) -> bool:  # type: ignore[override]
        """Whether any number depends on the token that asks."""
        return "dense" in self.kind or self.mixture != "none"

    @property
    def queries_are_keys(self) -> bool:  # type: ignore[override]
        """Whether there is no W_k, since the keys are not used."""
        return self.mixture == "none"

    @property
    def remembers(self) -> str:  # type: ignore[override]
        """What a state keeps: values, and keys only if they are used."""
        return "values" if self.mixture == "none" else "keys and values"

    @property
    def untrained(self) -> tuple[str, ...]:  # type: ignore[override]
        """Paths of parameters that stay as they were drawn."""
        if self.learned:
            return ()
        return ("logits.R",) if self.kind == "random" else ("logits.R_1", "logits.R_2")

    @property
    def factors(self) -> tuple[int, int]:
        """a and b of a factorised dense one: as near to each other as they can be, and a b ≥ longest."""
        a = math.isqrt(self.longest - 1) + 1
        return a, -(-self.longest // a)

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> SynthesizerParams:
        """Logits of a variance near one, or below; biases zero, and the gate half open."""
        H, d, m = self.heads, self.d, self.longest

        def layer(columns: int) -> tuple[Array, Array]:
            return uniform(rng, (H, d, columns), dtype), np.zeros((H, columns), dtype)

        def normal(*shape: int, deviation: float = 1.0) -> Array:
            return (deviation * rng.standard_normal((H, *shape))).astype(dtype)

        if self.kind == "dense":
            logits: Tree = DenseParams(*layer(m))
        elif self.kind == "factorised-dense":
            logits = FactorsParams(*(part for columns in self.factors for part in layer(columns)))
        elif self.kind == "random":
            logits = RandomParams(normal(m, m))
        else:
            logits = LowRankParams(*(normal(m, self.rank, deviation=self.rank**-0.25) for _ in range(2)))
        return SynthesizerParams(logits, np.zeros(1, dtype) if self.mixture == "gated" else None)

    def _refuse_longer(self, m: int) -> None:
        if m > self.longest:
            raise ValueError(f"K: {m} places, but this synthesizer has weights for {self.longest} at most")

    def _logits(self, params: SynthesizerParams, Q: Array, n: int, m: int) -> tuple[Logits, Pullback]:
        """What the softmax is taken of, without dot products, for n queries that are the last of m places."""
        refuse_more_queries(n, m)
        self._refuse_longer(m)
        if self.kind == "dense":
            return dense_logits(params.logits, Q, m)
        if self.kind == "factorised-dense":
            return factorised_dense_logits(params.logits, Q, m)
        if self.kind == "random":
            return random_logits(params.logits, n, m, learned=self.learned)
        return factorised_random_logits(params.logits, n, m, learned=self.learned)

    def __call__(
        self, params: SynthesizerParams, Q: Array, K: Array, V: Array, *streams: Array, causal: bool = False,
        mask: Array | None = None, rng: Any = None,
    ) -> tuple[Array, SynthesizerPullback]:  # fmt: skip
        """Pullback: dY to (dparams, dQ, dK, dV)."""
        n, m, one = Q.shape[-2], V.shape[-2], Q.dtype.type(1)
        logits, made = self._logits(params, Q, n, m)
        if isinstance(logits, Products) and (n <= FEW or not self.queries):
            logits, made = logits.formed(made)
        back = gate = None
        if self.mixture == "sum":
            logits, back = mixed(logits, Q, K, (one, one))
        elif params.alpha is not None:
            gate, _ = sigmoid(params.alpha)
            logits, back = mixed(logits, Q, K, (one - gate, gate))
        Y, attention = attend(logits, V, causal=causal, mask=mask)
        return Y, SynthesizerPullback(made, back, attention, gate, (Q.shape, K.shape))

    def step(
        self, params: SynthesizerParams, Q: Array, K: Array, V: Array, *streams: Array, state: Any = None
    ) -> tuple[Array, Any]:
        """Y of new tokens after those in the state, and the longer state, in which keys are kept only if they are used."""
        if self.mixture == "none":
            K = K[..., :0]
        state = KeysValues.of(K, V) if state is None else state.extended(K, V)
        if Q.shape[-2] != 1:
            return self(params, Q, state.keys, state.values, causal=True)[0], state
        S, Q = self._last_row(params, Q, state.length)[..., 0, :], Q[..., : K.shape[-1]]
        if params.alpha is not None:
            gate, _ = sigmoid(params.alpha)
            S, Q = gate * S, (1 - gate) * Q
        return attend_to_buffer(Q, state.K, state.V, state.length, S), state  # S is a bias of Q Kᵀ/√d, or of zeros

    def _last_row(self, params: SynthesizerParams, Q: Array, m: int) -> Array:
        """S (…, H, 1, m) of the last of m places, without dot products."""
        self._refuse_longer(m)
        if self.kind == "dense":
            return np.maximum(Q, 0) @ params.logits.W[..., :m] + params.logits.b[..., None, :m]
        logits, _ = self._logits(params, Q, 1, m)
        return logits.queries @ logits.keys.mT if isinstance(logits, Products) else logits
