"""Kernel attention piece by piece, for so many features that those of a whole text would not fit into memory.

    M_i = φ(q_i)ᵀ S⁺ + Σ_j φ(q_i)ᵀ φ(k_j) v_j⁺ᵀ        S⁺ of the pieces before; j in the piece, and not after i
    y_i = M_i without its last number, over its last number
    S⁺  ← S⁺ + Σ_j φ(k_j) v_j⁺ᵀ                         v⁺ = (v, 1), so S⁺ is S with z as its last column

The features of a piece are made when it is its turn, and again in the backward pass; between pieces only the sums are kept. If
attention is not causal, all keys go into the sums before the first query reads them.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from minitransformer.arrays import inverse
from minitransformer.attention.core import seen_keys, where_seen
from minitransformer.attention.kernel_attention import FeatureAttention, kernel_attention
from minitransformer.pullback import NoParams, Pullback
from minitransformer.typing import Array

WHOLE = 2**28  # bytes of features that may be there at once; beyond that, they are made piece by piece


class Text(NamedTuple):
    """Queries and keys of a whole text, and its values with a column of ones beside them, to be taken `rows` at a time."""

    core: FeatureAttention
    Q: Array
    K: Array
    V: Array
    seen: Array | None
    causal: bool
    rows: int

    @property
    def before(self) -> int:
        """How many of the first keys every query sees."""
        return self.K.shape[-2] - self.Q.shape[-2] if self.causal else self.K.shape[-2]

    def pieces(self, first: int, last: int) -> Iterator[slice]:
        """The rows first … last − 1, piece by piece."""
        return (slice(a, min(a + self.rows, last)) for a in range(first, last, self.rows))

    def queries(self, piece: slice) -> tuple[Array, Any]:
        """The features of these queries, and their pullback."""
        first = self.K.shape[-2] - self.Q.shape[-2] + piece.start
        return self.core.phi(NoParams(), self.Q[..., piece, :], first=first, query=True)

    def keys(self, piece: slice) -> tuple[Array, Array, Any]:
        """The features and values of these keys, and the pullback of the features."""
        F, pullback = self.core.phi(NoParams(), self.K[..., piece, :], first=piece.start, query=False)
        return where_seen(self.there(piece), F), self.V[..., piece, :], pullback

    def there(self, piece: slice) -> Array | None:
        """Which of these keys are there, (…, rows, 1); None if all are."""
        return None if self.seen is None else self.seen[..., piece, :]

    def beside(self, piece: slice) -> slice:
        """The keys at the positions of these queries."""
        return slice(self.before + piece.start, self.before + piece.stop)


class InPiecesPullback(Pullback):
    """From the last piece to the first, with G = dS⁺: dM = [dY / D, −⟨dY / D, Y⟩], and where a piece has both,

    dφ(Q) = dM S⁺ᵀ + …,   dφ(K) = V⁺ Gᵀ + …,   dV⁺ = φ(K) G + …,   then G ← G + φ(Q)ᵀ dM

    in which … is what the pullback of kernel attention within the piece says.
    """

    text: Text
    Y: Array
    D: Array
    sums: tuple[Array, ...]

    @property
    def A(self) -> Array:  # noqa: N802
        """The weights, (*batch, H, n, m), for which the features of the whole text are made after all."""
        text = self.text
        FQ, FK = text.queries(slice(0, text.Q.shape[-2]))[0], text.keys(slice(0, text.K.shape[-2]))[0]
        A: Array = kernel_attention(FQ, FK, text.V, causal=text.causal)[1].A
        return A

    def __call__(self, dY: Array) -> tuple[NoParams, Array, Array, Array]:
        text, share = self.text, inverse(self.D)
        dQ, dK, dV = (np.zeros(X.shape, X.dtype) for X in (text.Q, text.K, text.V))
        dN = dY * share
        dM = np.concatenate([dN, -np.vecdot(dN, self.Y)[..., None]], -1)
        G = np.zeros_like(self.sums[0])

        def to_keys(piece: slice, FK: Array, V: Array, back: Any, dFK: Any = 0, dV_piece: Any = 0) -> None:
            dV[..., piece, :] = dV_piece + FK @ G
            dK[..., piece, :] = back(where_seen(text.there(piece), dFK + V @ G.mT))[1]

        for piece, S in zip([*text.pieces(0, text.Q.shape[-2])][::-1], self.sums[::-1], strict=True):
            FQ, back = text.queries(piece)
            dFQ = dM[..., piece, :] @ S.mT
            if text.causal:
                beside = text.beside(piece)
                FK, V, back_k = text.keys(beside)
                _, within = kernel_attention(FQ, FK, V, causal=True, normalise=False)
                dFQ_within, dFK, dV_within = within(dM[..., piece, :])
                dFQ += dFQ_within
                to_keys(beside, FK, V, back_k, dFK, dV_within)
            dQ[..., piece, :] = back(dFQ)[1]
            G += FQ.mT @ dM[..., piece, :]
        for piece in text.pieces(0, text.before):
            to_keys(piece, *text.keys(piece))
        return NoParams(), dQ, dK, where_seen(text.seen, dV[..., :-1])


def in_pieces(
    core: FeatureAttention, Q: Array, K: Array, V: Array, *, causal: bool, mask: Array | None
) -> tuple[Array, InPiecesPullback] | None:
    """Attention, piece by piece, of a core whose features have no parameters and are made row by row.

    None if all features fit at once, and for more causal queries than keys: then the caller makes them whole.

    Of p rows in a piece there are p r features at a time and n/p sums of r dv: together they are fewest at p = √(n dv).

    cost   O((n + m) r dv) time, O(r √(n dv)) memory besides queries, keys and values
    """
    n, m = Q.shape[-2], K.shape[-2]
    one = core.phi(NoParams(), K[..., :1, :], first=0, query=False)[0]  # of one position
    if max(n, m) * one.nbytes <= WHOLE or (causal and n > m):
        return None
    seen = seen_keys(mask, Q, K, "kernel attention")
    seen = None if seen is None else np.broadcast_to(seen, (*K.shape[:-1], 1))
    V = where_seen(seen, V)
    V = np.concatenate([V, np.ones((*V.shape[:-1], 1), V.dtype)], -1)
    text = Text(core, Q, where_seen(seen, K), V, seen, causal, math.isqrt(max(n, m) * V.shape[-1]))
    S = np.zeros((*one.shape[:-2], one.shape[-1], V.shape[-1]), V.dtype)
    for piece in text.pieces(0, text.before):
        FK, V_piece, _ = text.keys(piece)
        S += FK.mT @ V_piece
    M, sums = np.empty((*Q.shape[:-1], V.shape[-1]), V.dtype), []
    for piece in text.pieces(0, n):
        sums.append(S)
        FQ, _ = text.queries(piece)
        M[..., piece, :] = FQ @ S
        if causal:
            FK, V_piece, _ = text.keys(text.beside(piece))
            M[..., piece, :] += kernel_attention(FQ, FK, V_piece, causal=True, normalise=False)[0]
            S = S + FK.mT @ V_piece
    Y, D = M[..., :-1], M[..., -1:]
    Y = Y * inverse(D)
    return Y, InPiecesPullback(text, Y, D, tuple(sums))
