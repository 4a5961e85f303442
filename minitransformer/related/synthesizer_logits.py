"""What a synthesizer has in the place of dot products: four ways to make the logits S of its weights, and their gradients.

Where S is a product of rows like queries and rows like keys, it is left as one, `Products`.
"""

from typing import NamedTuple

import numpy as np

from minitransformer.functional import relu
from minitransformer.gather_scatter import unbroadcast
from minitransformer.pullback import Pullback, Tree
from minitransformer.typing import Array


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
