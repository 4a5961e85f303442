"""Where a position enters a score. Content and position of both words meet in four products:

    S_ij = scale · ⟨(x_i + π_i) W_q, (x_j + π_j) W_k⟩
         = scale · ( x_i W_q W_kᵀ x_jᵀ     content–content      cc
                   + x_i W_q W_kᵀ π_jᵀ     content–position     cp
                   + π_i W_q W_kᵀ x_jᵀ     position–content     pc
                   + π_i W_q W_kᵀ π_jᵀ )   position–position    pp

What was proposed since keeps some of the four, gives positions matrices U_q, U_k of their own ("untied"), or puts a vector
r_{j−i} for the offset in the place of π_i and π_j. This file is the definition that they have in common:

    (8)   added positions       all four
    (9)   TUPE                  cc, pp            untied
    (10)  Shaw                  cc, cp            relative, U_k = I
    (13)  DeBERTa               cc, cp, pc        relative, untied
    (11)  T5                    cc, pp            relative: position–position is then one number for each offset
"""

from collections.abc import Sequence

import numpy as np

from minitransformer.arrays import one_dtype, outer_sum, scale_for
from minitransformer.positions.shaw import by_clipped_offset, sum_by_clipped_offset
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Float, checked

TERMS = ("cc", "cp", "pc", "pp")


class FourTermsPullback(Pullback):
    """S is a sum of products of Q = X W_q, K = X W_k with each other and with P_q = Π U_q, P_k = Π U_k.

    Each of the four gets its gradient from the terms that it is in; then back through the projections.
    What is used twice gets the sum: P and X always, W_q and W_k where positions share them.
    The terms themselves are there to look at: `pullback.cp`, scaled, (*batch, n, n); `pullback.pp` is (n, n).
    """

    X: Array
    P: Array
    W_q: Array
    W_k: Array
    U_q: Array | None  # None where positions share W_q
    U_k: Array | None
    Q: Array
    K: Array
    P_q: Array
    P_k: Array
    terms: tuple[str, ...]
    relative: bool
    scale: float

    @property
    def cc(self) -> Array:
        """The content–content term ⟨q_i, k_j⟩."""
        return self.scale * self.Q @ self.K.mT

    @property
    def cp(self) -> Array:
        """Content–position: ⟨q_i, P_k at j⟩, or at the offset j − i."""
        return self._by_row(self.scale * self.Q @ self.P_k.T)

    @property
    def pc(self) -> Array:
        """Position–content: ⟨P_q at i, k_j⟩, or at i − j: seen from the key, where the query is."""
        return self._by_row(self.scale * self.K @ self.P_q.T).mT

    @property
    def pp(self) -> Array:
        """Position–position: ⟨P_q at i, P_k at j⟩, or at i − j and j − i. Content has no part in it."""
        if not self.relative:
            return self.scale * self.P_q @ self.P_k.T
        bias = self.scale * (self.P_q[::-1] * self.P_k).sum(-1)
        return self._by_row(np.broadcast_to(bias, (self.X.shape[-2], len(bias))))

    def _by_row(self, T: Array) -> Array:
        """T as a matrix (…, n, n): row i of T has a number for each position, or, if relative, for each offset from i."""
        return by_clipped_offset(T, self.X.shape[-2]) if self.relative else T

    def _by_row_back(self, dT: Array) -> Array:
        return sum_by_clipped_offset(dT, dT.shape[-1] - 1) if self.relative else dT

    def __call__(self, dS: Array) -> tuple[Array, ...]:
        Q, K, P_q, P_k = self.Q, self.K, self.P_q, self.P_k
        dS = self.scale * dS
        dQ, dK, dP_q, dP_k = (np.zeros_like(M) for M in (Q, K, P_q, P_k))
        if "cc" in self.terms:
            dQ += dS @ K
            dK += dS.mT @ Q
        if "cp" in self.terms:
            dT = self._by_row_back(dS)
            dQ += dT @ P_k
            dP_k += outer_sum(dT, Q)
        if "pc" in self.terms:
            dT = self._by_row_back(dS.mT)
            dK += dT @ P_q
            dP_q += outer_sum(dT, K)
        if "pp" in self.terms:
            dT = dS.sum(tuple(range(dS.ndim - 2)))
            if self.relative:
                dbias = self._by_row_back(dT).sum(0)[:, None]
                dP_q += (dbias * P_k)[::-1]
                dP_k += dbias * P_q[::-1]
            else:
                dP_q += dT @ P_k
                dP_k += dT.T @ P_q
        return self._projections(dQ, dK, dP_q, dP_k)

    def _projections(self, dQ: Array, dK: Array, dP_q: Array, dP_k: Array) -> tuple[Array, ...]:
        """Back through X W_q, X W_k, Π U_q and Π U_k: dX, dΠ, dW_q, dW_k, and those of dU_q and dU_k that are not shared."""
        U_q = self.W_q if self.U_q is None else self.U_q
        U_k = self.W_k if self.U_k is None else self.U_k
        dX = dQ @ self.W_q.T + dK @ self.W_k.T
        dP = dP_q @ U_q.T + dP_k @ U_k.T
        dW_q, dW_k = outer_sum(self.X, dQ), outer_sum(self.X, dK)
        dU_q, dU_k = self.P.T @ dP_q, self.P.T @ dP_k
        if self.U_q is None:
            dW_q += dU_q
        if self.U_k is None:
            dW_k += dU_k
        own = [dU for dU, U in ((dU_q, self.U_q), (dU_k, self.U_k)) if U is not None]
        return dX, dP, dW_q, dW_k, *own


@checked
def four_terms(
    X: Float[Array, "*batch n D"],
    Pi: Float[Array, "p E"],
    W_q: Float[Array, "D d"],
    W_k: Float[Array, "D d"],
    U_q: Float[Array, "E d"] | None = None,
    U_k: Float[Array, "E d"] | None = None,
    *,
    terms: Sequence[str] = TERMS,
    relative: bool = False,
    scale: float | None = None,
) -> tuple[Float[Array, "*batch n n"], FourTermsPullback]:
    """The scores of one head, from content X and positions Π, as the sum of those of the four terms that are wanted.

        S = scale · (Q Kᵀ + Q P_kᵀ + P_q Kᵀ + P_q P_kᵀ),    Q = X W_q, K = X W_k, P_q = Π U_q, P_k = Π U_k

    Pi         one row for each position, π_i, (n, E); or for each offset, r_{j−i}, (2n − 1, E), in row j − i + n − 1
    U_q, U_k   matrices for positions; W_q, W_k where there is none (then E = D)
    terms      any of "cc", "cp", "pc", "pp"
    relative   Pi is by offset; position–content has r_{i−j}, as in (13): where the query is, seen from the key
    scale      1/√d by default; it is in (5) and (6), and has been dropped from (7) on (E1)
    source     Borealis II (5) to (8). Softmax of it times (X + Π) W_v is (5), times X W_v is (6)
    cost       O(n² d) time, O(n²) memory, also if relative. Can be causal: mask it.
    returns    S and a pullback to (dX, dΠ, dW_q, dW_k), and dU_q, dU_k for those given; pullback.cc … pullback.pp are the terms
    raises     ValueError for an unknown term, or none; TypeError for a number or a width of rows of Pi that does not fit
    """
    one_dtype(X=X, Pi=Pi, W_q=W_q, W_k=W_k, U_q=U_q, U_k=U_k)
    if not terms or not set(terms) <= set(TERMS):
        raise ValueError(f"terms: {tuple(terms)} should be one or more of {', '.join(TERMS)}")
    n, (p, E), (D, d) = X.shape[-2], Pi.shape, W_q.shape
    if p != (rows := 2 * n - 1 if relative else n):
        raise TypeError(
            f"Pi: {p} rows, but {n} tokens have {rows} {'offsets' if relative else 'positions'}, and each has a row"
        )
    if E != D and (U_q is None or U_k is None):
        raise TypeError(f"Pi: rows of width {E} need matrices U_q and U_k of their own, W_q and W_k are for width {D}")
    scale = X.dtype.type(scale_for(d, scale))
    P_q, P_k = Pi @ (W_q if U_q is None else U_q), Pi @ (W_k if U_k is None else U_k)
    wanted = tuple(term for term in TERMS if term in terms)
    pullback = FourTermsPullback(X, Pi, W_q, W_k, U_q, U_k, X @ W_q, X @ W_k, P_q, P_k, wanted, relative, scale)
    S = np.zeros((*X.shape[:-1], n), X.dtype)
    for term in wanted:
        S += getattr(pullback, term)
    return S, pullback
