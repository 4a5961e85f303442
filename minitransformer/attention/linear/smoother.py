"""Attention as a kernel smoother: any measure of similarity makes weights. Replaces the stages `scores` and `normalise`.

    W_ij = sim(q_i, k_j)
    y_i  = Σ_j W_ij v_j / Σ_j W_ij

Statistics has smoothed data in this way since Nadaraya (1964) and Watson (1964): the value at a point is the average of the
values nearby, weighted by a kernel. With exp ⟨q, k⟩/√d it is attention as we know it.
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from minitransformer.arrays import inverse, must_broadcast, one_dtype, refuse_more_queries, scale_for, those_seen, times
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.cache.keys_values import KeysValues
from minitransformer.attention.core import Core, NothingLearnedPullback
from minitransformer.attention.dot_product import attend_to_buffer, dot_product_attention, scores
from minitransformer.attention.masks import causal_mask
from minitransformer.checks import frozen, must_be_pair
from minitransformer.pullback import NoParams, Pullback
from minitransformer.ranges import Degree
from minitransformer.typing import Array, Bool, Float, checked


class KernelSmootherPullback(Pullback):
    """Y = N / D with N = W V and D = Σ_j W_ij:  dN = dY / D,  dD_i = −⟨dN_i, y_i⟩.

    dW_ij = ⟨dN_i, v_j⟩ + dD_i where i sees j, and dV = Wᵀ dN; then back through the similarity.
    """

    similarity: Pullback
    W: Array
    V: Array
    D: Array
    Y: Array
    sees: Array

    @property
    def A(self) -> Array:  # noqa: N802
        """The weights W / D, (*batch, n, m)."""
        return self.W * inverse(self.D)[..., None]

    def __call__(self, dY: Array) -> tuple[Array, Array, Array]:
        dN = dY * inverse(self.D)[..., None]
        dW = dN @ self.V.mT - np.vecdot(dN, self.Y)[..., None]
        found = self.similarity(np.where(self.sees, dW, dW.dtype.type(0)))
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            gives = len(found) if isinstance(found, (tuple, list)) else type(found).__name__
            raise ValueError(f"similarity: its pullback should give 2 gradients, dQ and dK, and gives {gives}")
        return *found, self.W.mT @ dN


@checked
def kernel_smoother(
    Q: Float[Array, "*batch n d"],
    K: Float[Array, "*batch m d"],
    V: Float[Array, "*batch m dv"],
    similarity: Callable[[Array, Array], tuple[Array, Pullback]],
    *,
    causal: bool = False,
    mask: Bool[Array, "..."] | None = None,
) -> tuple[Float[Array, "*batch n dv"], KernelSmootherPullback]:
    """The average of the values, weighted by how similar their keys are to the query.

        y_i = Σ_j sim(q_i, k_j) v_j / Σ_j sim(q_i, k_j)

    similarity   from Q and K to W (*batch, n, m) and a pullback, dQ, dK = pullback(dW); below are three
    causal       query i sees keys j ≤ i only; with m > n the queries are the last n of the m positions
    mask         True where query i sees key j
    source       Borealis II (16), where sim is exp without 1/√d; Aalto (13). Nadaraya 1964, Watson 1964
    cost         O(n m (d + dv)) time, O(n m) memory. Can be causal
    returns      Y and a pullback: dQ, dK, dV = pullback(dY); `pullback.A` is the matrix of weights. A query whose weights are
                 all zero gives zeros, and sends back zeros
    raises       TypeError for a wrong shape or dtype, ValueError for n > m if causal, a mask or a W that does not fit
    """
    one_dtype(Q=Q, K=K, V=V)
    n, m = Q.shape[-2], K.shape[-2]
    if mask is not None:
        K, V = those_seen(must_broadcast(mask, (*Q.shape[:-1], m)), K, V)
    W, pullback = must_be_pair(similarity(Q, K), "similarity:", TypeError)
    if not isinstance(W, np.ndarray) or W.dtype != Q.dtype:
        kind = getattr(W, "dtype", type(W).__name__)
        raise TypeError(f"similarity: gave weights of {kind}, which should be an array of {Q.dtype}, as Q is")
    if W.shape != (*Q.shape[:-1], m):
        raise ValueError(f"similarity: gave weights {W.shape}, which should be {(*Q.shape[:-1], m)}")
    sees = np.ones((n, m), bool)
    if causal:
        refuse_more_queries(n, m)
        sees = causal_mask(n, m)
    if mask is not None:
        sees = sees & mask
    W = np.where(sees, W, W.dtype.type(0))
    D = W.sum(-1)
    Y = times(W, V) * inverse(D)[..., None]
    return Y, KernelSmootherPullback(pullback, W, V, D, Y, sees)


# ------------------------------------------------------------------------------------------ similarities


class OfScoresPullback(Pullback):
    """W = f(S), entry by entry: dS = f′(S) dW, and then back through the scores."""

    scores: Pullback
    slope: Array

    def __call__(self, dW: Array) -> tuple[Array, Array]:
        return self.scores(self.slope * dW)


@checked
def exponential(
    Q: Float[Array, "*batch n d"], K: Float[Array, "*batch m d"], *, scale: float | None = None
) -> tuple[Float[Array, "*batch n m"], OfScoresPullback]:
    """exp(scale · ⟨q, k⟩): softmax attention. No maximum is subtracted first, so in float32 a score above 88 overflows.

    scale    1/√d by default
    """
    S, pullback = scores(Q, K, scale=scale)
    W = np.exp(S)
    return W, OfScoresPullback(pullback, W)


class GaussianPullback(Pullback):
    """ln W = −s ‖q − k‖²/2:  dq_i = s Σ_j dW_ij W_ij (k_j − q_i),  dk_j = s Σ_i dW_ij W_ij (q_i − k_j)."""

    Q: Array
    K: Array
    W: Array
    scale: Array

    def __call__(self, dW: Array) -> tuple[Array, Array]:
        G = self.scale * dW * self.W
        dQ = G @ self.K - G.sum(-1)[..., None] * self.Q
        return dQ, G.mT @ self.Q - G.sum(-2)[..., None] * self.K


@checked
def gaussian(
    Q: Float[Array, "*batch n d"], K: Float[Array, "*batch m d"], *, scale: float | None = None
) -> tuple[Float[Array, "*batch n m"], GaussianPullback]:
    """exp(−scale · ‖q − k‖²/2): softmax attention in which a long key has no advantage.

    ‖q − k‖² = ‖q‖² + ‖k‖² − 2 ⟨q, k⟩. A factor e^(−s‖q‖²/2) of a query cancels, that of a key is what makes the difference.

    scale    1/√d by default
    """
    one_dtype(Q=Q, K=K)
    s = Q.dtype.type(scale_for(Q.shape[-1], scale))
    far = np.vecdot(Q, Q)[..., :, None] + np.vecdot(K, K)[..., None, :] - 2 * (Q @ K.mT)
    W = np.exp(-s / 2 * np.maximum(far, 0))
    return W, GaussianPullback(Q, K, W, s)


@checked
def polynomial(
    Q: Float[Array, "*batch n d"], K: Float[Array, "*batch m d"], *, degree: Degree = 2, scale: float | None = None
) -> tuple[Float[Array, "*batch n m"], OfScoresPullback]:
    """(1 + scale · ⟨q, k⟩)^degree. With an even degree it is never negative, but large where q and k are opposite.

    scale    1/√d by default
    """
    S, pullback = scores(Q, K, scale=scale)
    return (1 + S) ** degree, OfScoresPullback(pullback, degree * (1 + S) ** (degree - 1))


# --------------------------------------------------------------------------------------------- the core


class GaussianAttentionPullback(AroundAttention):
    """The last entry of K⁺ = [k; −‖k‖²/2] is made from k: dk = (what comes back to k) − (what comes back to it) · k."""

    attention: Pullback
    K: Array

    def __call__(self, dY: Array) -> tuple[Array, Array, Array]:
        dQ, dK, dV = self.attention(dY)
        return dQ[..., :-1], dK[..., :-1] - dK[..., -1:] * self.K, dV


def gaussian_attention(Q: Array, K: Array, V: Array, **options: Any) -> tuple[Array, GaussianAttentionPullback]:
    """The smoother with `gaussian`, as softmax attention in one dimension more: safe from underflow, and in tiles.

    −‖q − k‖²/2 = ⟨q, k⟩ − ‖k‖²/2 − ‖q‖²/2, of which the last cancels: the rest is ⟨[q; 1], [k; −‖k‖²/2]⟩.
    """
    scale = scale_for(Q.shape[-1])
    K, V = those_seen(options.get("mask"), K, V)
    Q = np.concatenate([Q, np.ones_like(Q[..., :1])], -1)
    longer = np.concatenate([K, -np.vecdot(K, K)[..., None] / 2], -1)
    Y, attention = dot_product_attention(Q, longer, V, scale=scale, **options)
    return Y, GaussianAttentionPullback(attention, K)


@frozen
class Smoother(Core):
    """An average of the values, weighted by any similarity of query and key.

    similarity   "gaussian", "exponential" (that of softmax), or "polynomial" (of degree 2), with the scale 1/√d
    source       Borealis II (16); Aalto (13)
    cost         O(n² d) time. O(n²) memory for "polynomial", and for all in the tier "numpy"; else O(n). Can be causal
    """

    similarity: Literal["gaussian", "exponential", "polynomial"] = "gaussian"

    stage = "scores, normalise"
    unplaced = "weighs pairs by their similarity, which need not be the exponential of a score"

    def __call__(
        self, params: NoParams, Q: Array, K: Array, V: Array, *streams: Array, causal: bool = False,
        mask: Array | None = None, rng: Any = None,
    ) -> tuple[Array, NothingLearnedPullback]:  # fmt: skip
        """Pullback: dY to (dparams, dQ, dK, dV)."""
        pullback: Pullback
        if self.similarity == "polynomial":
            Y, pullback = kernel_smoother(Q, K, V, polynomial, causal=causal, mask=mask)
        else:
            attend = gaussian_attention if self.similarity == "gaussian" else dot_product_attention
            Y, pullback = attend(Q, K, V, causal=causal, mask=mask)
        return Y, NothingLearnedPullback(pullback)

    def step(self, params: NoParams, Q: Array, K: Array, V: Array, *streams: Array, state: Any) -> tuple[Array, Any]:
        """As any core with keys and values; of one new token nothing is copied: −‖k‖²/(2 √d) is a bias of its scores."""
        if Q.shape[-2] != 1 or self.similarity == "polynomial":
            return super().step(params, Q, K, V, state=state)
        state = KeysValues.of(K, V) if state is None else state.extended(K, V)
        bias = None
        if self.similarity == "gaussian":
            bias = np.vecdot(state.keys, state.keys) * Q.dtype.type(-0.5 * scale_for(Q.shape[-1]))
        return attend_to_buffer(Q, state.K, state.V, state.length, bias), state
