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
from minitransformer.attention.dot_product import AggregatePullback, ScoresPullback, aggregate, attend_to_buffer, scores
from minitransformer.attention.dot_product import dot_product_attention as dot_product
from minitransformer.attention.masks import causal_mask
from minitransformer.checks import frozen
from minitransformer.functional import SoftmaxPullback, relu, sigmoid, softmax
from minitransformer.gather_scatter import unbroadcast
from minitransformer.pullback import Pullback, Tree
from minitransformer.typing import Array

# ------------------------------------------------------------------------------------------------ logits


class Products(NamedTuple):
    """Logits as a product, S = queries · keysᵀ: (…, H, n, r) and (…, H, m, r), each with the axes of the batch or without."""

    queries: Array
    keys: Array

    def formed(self, pullback: Pullback) -> tuple[Array, "ProductPullback"]:
        """S itself, and its pullback in front of that of the rows."""
        return self.queries @ self.keys.mT, ProductPullback(*self, pullback)


class ProductPullback(Pullback):
    """S = queries · keysᵀ, so dqueries = dS keys and dkeys = dSᵀ queries, summed over the samples if these share the keys."""

    queries: Array
    keys: Array
    rows: Pullback

    def __call__(self, dS: Array) -> tuple[Tree, Array | None]:
        dkeys = unbroadcast(dS.mT @ self.queries, self.keys.shape)
        return self.rows(Products(dS @ self.keys, dkeys))


Logits = Array | Products  # S itself has the axes (…, H, n, m)


def longer(dtable: Array, rows: int, first: int = 0) -> Array:
    """The gradient of a table of `rows` rows, of which those from `first` on were used: the others get zeros."""
    whole = np.zeros((*dtable.shape[:-2], rows, dtable.shape[-1]), dtable.dtype)
    whole[..., first : first + dtable.shape[-2], :] = dtable
    return whole


class DenseParams(NamedTuple):
    """The second layer: W (H, d, longest), whose columns are the w_j, and b (H, longest)."""

    W: Array
    b: Array


class DensePullback(Pullback):
    """S = [ReLU(Q), 1] [Wᵀ, b]ᵀ: what comes back to the queries goes on through ReLU, what comes back to the keys is (dW, db)."""

    relu: Pullback
    longest: int

    def __call__(self, dlogits: Products) -> tuple[DenseParams, Array]:
        dtable = longer(dlogits.keys, self.longest)
        dW, db = np.ascontiguousarray(dtable[..., :-1].mT), dtable[..., -1].copy()
        return DenseParams(dW, db), self.relu(dlogits.queries[..., :-1])


def dense_logits(params: DenseParams, Q: Array, m: int) -> tuple[Products, DensePullback]:
    """S_ij = ReLU(q_i) · w_j + b_j for the first m places, with q_i = x_i W_1 + b_1. Pullback: to (dparams, dQ)."""
    hidden, back = relu(Q)
    queries = np.concatenate([hidden, np.ones_like(Q[..., :1])], -1)
    keys = np.concatenate([params.W[..., :m].mT, params.b[..., :m, None]], -1)
    return Products(queries, keys), DensePullback(back, params.b.shape[-1])


class FactorsParams(NamedTuple):
    """Two second layers: W_a (H, d, a) and b_a (H, a) for the block of a place, W_b (H, d, b) and b_b for its place there."""

    W_a: Array
    b_a: Array
    W_b: Array
    b_b: Array


class FactorsPullback(Pullback):
    """S_i,(pb + q) = β_ip γ_iq, so dβ_ip = Σ_q dS_i,(pb + q) γ_iq and dγ_iq = Σ_p dS_i,(pb + q) β_ip; then two linear layers."""

    relu: Pullback
    hidden: Array
    beta: Array
    gamma: Array
    params: FactorsParams

    def __call__(self, dS: Array) -> tuple[FactorsParams, Array]:
        a, b = self.beta.shape[-1], self.gamma.shape[-1]
        unused = np.zeros((*dS.shape[:-1], a * b - dS.shape[-1]), dS.dtype)
        dS = np.concatenate([dS, unused], -1).reshape(*dS.shape[:-1], a, b)
        dbeta = (dS * self.gamma[..., None, :]).sum(-1)
        dgamma = (dS * self.beta[..., :, None]).sum(-2)
        p, grads = self.params, []
        for dfactor, W, bias in ((dbeta, p.W_a, p.b_a), (dgamma, p.W_b, p.b_b)):
            grads += [unbroadcast(self.hidden.mT @ dfactor, W.shape), unbroadcast(dfactor.sum(-2), bias.shape)]
        return FactorsParams(*grads), self.relu(dbeta @ p.W_a.mT + dgamma @ p.W_b.mT)


def factorised_dense_logits(params: FactorsParams, Q: Array, m: int) -> tuple[Array, FactorsPullback]:
    """S_ij = β_ip γ_iq for place j = p b + q, with β_i = ReLU(q_i) W_a + b_a and γ_i likewise. Pullback: to (dparams, dQ)."""
    hidden, back = relu(Q)
    beta = hidden @ params.W_a + params.b_a[..., None, :]
    gamma = hidden @ params.W_b + params.b_b[..., None, :]
    S = (beta[..., :, None] * gamma[..., None, :]).reshape(*Q.shape[:-1], beta.shape[-1] * gamma.shape[-1])
    return S[..., :m], FactorsPullback(back, hidden, beta, gamma, params)


class RandomParams(NamedTuple):
    """One number for each head and pair of places, R (H, longest, longest)."""

    R: Array | None


class RandomPullback(Pullback):
    """S is a piece of R, so dR is dS in that piece, and zero elsewhere; None if R is not learned."""

    n: int
    m: int
    longest: int
    learned: bool

    def __call__(self, dS: Array) -> tuple[RandomParams, None]:
        if not self.learned:
            return RandomParams(None), None
        dR = np.zeros((*dS.shape[:-2], self.longest, self.longest), dS.dtype)
        dR[..., self.m - self.n : self.m, : self.m] = dS
        return RandomParams(dR), None


def random_logits(params: RandomParams, n: int, m: int, *, learned: bool = True) -> tuple[Array, RandomPullback]:
    """S_ij = R_ij for the last n of m places. Pullback: to (dparams, None), as there are no queries."""
    assert params.R is not None
    return params.R[..., m - n : m, :m], RandomPullback(n, m, params.R.shape[-1], learned)


class LowRankParams(NamedTuple):
    """One row for each head and place: R_1 (H, longest, k) for places that ask, R_2 (H, longest, k) for those that are asked."""

    R_1: Array | None
    R_2: Array | None


class LowRankPullback(Pullback):
    """S = R_1 R_2ᵀ in the rows that were used; None if they are not learned."""

    first: int
    longest: int
    learned: bool

    def __call__(self, dlogits: Products) -> tuple[LowRankParams, None]:
        if not self.learned:
            return LowRankParams(None, None), None
        dR_1, dR_2 = longer(dlogits.queries, self.longest, self.first), longer(dlogits.keys, self.longest)
        return LowRankParams(dR_1, dR_2), None


def factorised_random_logits(
    params: LowRankParams, n: int, m: int, *, learned: bool = True
) -> tuple[Products, LowRankPullback]:
    """S_ij = ⟨r_i, r′_j⟩ for the last n of m places. Pullback: to (dparams, None)."""
    assert params.R_1 is not None
    assert params.R_2 is not None
    logits = Products(params.R_1[..., m - n : m, :], params.R_2[..., :m, :])
    return logits, LowRankPullback(m - n, params.R_1.shape[-2], learned)


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
        dA, dV = self.aggregate(dY if self.batch is None else side_by_side(dY))
        dS = unbroadcast(self.softmax(dA), self.shape)
        return dS, dV if self.batch is None else one_by_one(dV, self.batch, dY.shape[-1])


def side_by_side(X: Array) -> Array:
    """(*batch, H, n, dv) to (H, n, batch · dv): the samples as columns of one matrix for each head."""
    *batch, H, n, dv = X.shape
    return X.reshape(math.prod(batch), H, n, dv).transpose(1, 2, 0, 3).reshape(H, n, math.prod(batch) * dv)


def one_by_one(Y: Array, batch: tuple[int, ...], dv: int) -> Array:
    """The inverse of `side_by_side`."""
    H, n, _ = Y.shape
    return Y.reshape(H, n, math.prod(batch), dv).transpose(2, 0, 1, 3).reshape(*batch, H, n, dv)


def attend(logits: Logits, V: Array, *, causal: bool = False, mask: Array | None = None) -> tuple[Array, Pullback]:
    """Y = softmax(S) V, whatever made S. Pullback: dY to (dlogits, dV)."""
    if isinstance(logits, Products):
        keys = np.broadcast_to(logits.keys, (*V.shape[:-2], *logits.keys.shape[-2:]))
        Y, attention = dot_product(logits.queries, keys, V, causal=causal, mask=mask, scale=1.0)
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
    Y, weighed = aggregate(A, side_by_side(V))
    batch = V.shape[:-3]
    return one_by_one(Y, batch, V.shape[-1]), LogitsPullback(normalise, weighed, logits.shape, batch)


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
