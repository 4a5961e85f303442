"""Linformer: the keys are mixed along the sequence into k rows, and so are the values, whatever the length.

    K̄ = E K,   V̄ = F V             E, F (k, m): a row of K̄ is a learned sum of all keys
    Y  = softmax(scale · Q K̄ᵀ) V̄   the matrix is (n, k)

Convolution with its stride (memory_compressed.py) is the same with a band in E; here every key may be in every row. So it
is linear in n, can't be causal, and has as many columns as the longest sequence that it can read.
"""

from typing import Any, Literal, NamedTuple

import numpy as np

from minitransformer.arrays import one_dtype
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.compressed.products import MixPullback, mix
from minitransformer.attention.core import Core, ParamsFirstPullback, seen_keys, where_seen
from minitransformer.attention.dot_product import dot_product_attention
from minitransformer.checks import frozen
from minitransformer.pullback import Pullback
from minitransformer.ranges import so_many
from minitransformer.typing import Array, Bool, Float, checked


class LinformerPullback(AroundAttention):
    """Attention to k rows, then back through what mixed them: dE = dK̄ Kᵀ and dK = Eᵀ dK̄, and so for F and V.

    What is hidden was zero, and gets zero; so do the columns of E beyond the m that were used. If E mixes the values too, its
    gradient is the sum of both. A holds the weights of the k rows, (*batch, n, k).
    """

    attention: Pullback
    k: MixPullback
    v: MixPullback
    seen: Array | None
    longest: int
    one: bool

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        dQ, dK_bar, dV_bar = self.attention(dY)
        (dE, dK), (dF, dV) = self.k(dK_bar), self.v(dV_bar)
        dK, dV = where_seen(self.seen, dK), where_seen(self.seen, dV)
        unused = [(0, 0)] * (dE.ndim - 1) + [(0, self.longest - dE.shape[-1])]
        dE, dF = np.pad(dE, unused), np.pad(dF, unused)
        return (dQ, dK, dV, dE + dF) if self.one else (dQ, dK, dV, dE, dF)


@checked
def linformer_attention(
    Q: Float[Array, "*batch n d"],
    K: Float[Array, "*batch m d"],
    V: Float[Array, "*batch m dv"],
    E: Float[Array, "*own k longest"],
    F: Float[Array, "*own k longest"] | None = None,
    *,
    mask: Bool[Array, "..."] | None = None,
    scale: float | None = None,
) -> tuple[Float[Array, "*batch n dv"], LinformerPullback]:
    """Attention to k learned sums of the keys.

        Y = softmax(scale · Q (E K)ᵀ) (F V)

    E, F     (k, longest) for all, or (H, k, longest) for each head; of m keys the first m columns are used. Without F, E
             mixes both
    mask     True where a key is there, (…, 1, m); hidden keys and values count as zero before they are mixed
    scale    1/√d by default, which Borealis lacks (E1)
    source   Borealis II (15); Aalto (12), where the transpose is missing (E54); Lecture notes, Linformer, where E and F have
             the shape of their transposes (E34)
    cost     O((n + m) k d) time, O((n + m) k) memory. Never causal: every row of E K is a sum over all positions
    returns  Y and a pullback: dQ, dK, dV, dE = pullback(dY), and dF if there is an F
    raises   TypeError for a wrong shape or dtype, ValueError for more keys than E has columns or a mask that hides pairs
    """
    one_dtype(Q=Q, K=K, V=V, E=E, F=F)
    own, heads = E.shape[:-2], Q.shape[:-2]
    if len(own) > 1 or own != heads[len(heads) - len(own) :]:
        raise TypeError(f"E: shape {E.shape} should be (k, longest), or (H, k, longest) with the heads of {heads}")
    if K.shape[-2] > E.shape[-1]:
        raise ValueError(f"K: {so_many(K.shape[-2], 'key')}, but E mixes at most {E.shape[-1]}")
    seen = seen_keys(mask, Q, K, "a sum of keys")
    m, longest = K.shape[-2], E.shape[-1]
    K_bar, k = mix(E[..., :m], where_seen(seen, K))
    V_bar, v = mix((E if F is None else F)[..., :m], where_seen(seen, V))
    Y, attention = dot_product_attention(Q, K_bar, V_bar, scale=scale)
    return Y, LinformerPullback(attention, k, v, seen, longest, F is None)


# --------------------------------------------------------------------------------------------- the core

Sharing = Literal["none", "headwise", "key-value", "layerwise"]


class LinformerParams(NamedTuple):
    """E and F, (H, k, longest) or (k, longest); F is None where E mixes both."""

    E: Array
    F: Array | None = None


@frozen
class Linformer(Core):
    """Attention to k learned sums of the keys, whatever the length.

    k         rows that the keys are mixed into
    sharing   "none": every head of every layer has its E and F; "headwise": every layer; "key-value": every layer has one
              E = F; "layerwise": the whole stack has one E = F
    source    Borealis II (15); Lecture notes, parameter sharing; Wang et al. 2020a
    cost      O(n k); k · longest parameters for each E and F. Never causal
    raises    ValueError for k < 1, or an unknown sharing; for a sequence longer than the longest
    """

    heads: int
    longest: int
    k: int = 64
    sharing: Sharing = "headwise"

    stage = "project"
    unplaced = "mixes keys of all positions in each of its k, and these stand nowhere"
    cost = "O(n k)"
    causal = "never"
    remembers = None
    needs = "a longest length"

    @property
    def shared(self) -> tuple[str, ...]:  # type: ignore[override]
        """The path of E, if one E serves all layers."""
        return ("E",) if self.sharing == "layerwise" else ()

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> LinformerParams:
        """Uniform on ±√(3/longest): a sum over the longest sequence has the variance of one key."""
        shape = (*((self.heads,) if self.sharing == "none" else ()), self.k, self.longest)
        bound = dtype(np.sqrt(3 / self.longest))
        E, F = (rng.uniform(-1, 1, shape).astype(dtype) * bound for _ in range(2))
        return LinformerParams(E, None if self.sharing in ("key-value", "layerwise") else F)

    def __call__(
        self, params: LinformerParams, Q: Array, K: Array, V: Array, *streams: Array, causal: bool = False,
        mask: Array | None = None, rng: Any = None,
    ) -> tuple[Array, ParamsFirstPullback]:  # fmt: skip
        """Pullback: dY to (dparams, dQ, dK, dV)."""
        self.refuse(causal=causal)
        Y, attention = linformer_attention(Q, K, V, *params, mask=mask)
        return Y, ParamsFirstPullback(attention, LinformerParams)
