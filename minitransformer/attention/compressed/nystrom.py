"""Nyströmformer: the attention matrix is put together from its rows and columns at a few landmarks.

    Q̃, K̃ = means of the queries and of the keys of r segments
    L = softmax(s Q K̃ᵀ), M = softmax(s Q̃ K̃ᵀ), B = softmax(s Q̃ Kᵀ)        (n, r), (r, r) and (r, m)
    Y = L M⁺ B V,  plus a convolution of each channel of V along the sequence

Nyström's method takes some columns of a matrix, the same rows, and what they have in common, M, whose pseudo-inverse M⁺
makes L M⁺ B right at the landmarks and a guess elsewhere. If M has an inverse, rows of L M⁺ B
still sum to one; but their entries can be negative, and large where M is nearly singular.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np

from minitransformer.arrays import inverse, one_dtype, refuse_more_queries
from minitransformer.attention.compressed.products import mix
from minitransformer.attention.core import Core, ParamsFirstPullback, seen_keys, where_seen
from minitransformer.attention.depthwise import depthwise_convolution
from minitransformer.attention.dot_product import dot_product_attention
from minitransformer.checks import frozen
from minitransformer.functional import ScoresPullback, SoftmaxPullback, scores, softmax
from minitransformer.pullback import Pullback
from minitransformer.ranges import Range, Rounds
from minitransformer.typing import Array, Bool, Float, checked

# -------------------------------------------------------------------------------------------- pseudo-inverse


class ExactInversePullback(Pullback):
    """As long as the rank stays, δZ = −Z δA Z + Z Zᵀ δAᵀ (I − A Z) + (I − Z A) δAᵀ Zᵀ Z. A Z and Z A are symmetric, so

    dA = −Zᵀ dZ Zᵀ + (I − A Z) dZᵀ Z Zᵀ + Zᵀ Z dZᵀ (I − Z A).
    """

    A: Array
    Z: Array

    def __call__(self, dZ: Array) -> Array:
        A, Z = self.A, self.Z
        eye = np.eye(A.shape[-1], dtype=A.dtype)
        outside, inside = (eye - A @ Z) @ dZ.mT @ Z @ Z.mT, Z.mT @ Z @ dZ.mT @ (eye - Z @ A)
        return outside + inside - Z.mT @ dZ @ Z.mT


def _polynomials(P: Array) -> tuple[Array, Array, Array]:
    """U = 7 I − P, W = 15 I − P U, T = 13 I − P W."""
    eye = np.eye(P.shape[-1], dtype=P.dtype)
    U = 7 * eye - P
    W = 15 * eye - P @ U
    return U, W, 13 * eye - P @ W


class IteratedInversePullback(Pullback):
    """Each step backwards. Z′ = ¼ Z T gives dZ = ¼ dZ′ Tᵀ, dT = ¼ Zᵀ dZ′; then T, W and U give dP, and P = A Z the rest.

    Z₀ = Aᵀ/c gives dA = dZ₀ᵀ/c, and its largest column, which c is the sum of, dc = −⟨dZ₀, Z₀⟩/c in each entry.
    """

    A: Array
    Z: tuple[Array, ...]  # Z₀, Z₁, …
    c: Array

    def __call__(self, dZ: Array) -> Array:
        A, dA = self.A, np.zeros_like(self.A)
        for Z in reversed(self.Z[:-1]):
            P = A @ Z
            U, W, T = _polynomials(P)
            dT = 0.25 * Z.mT @ dZ
            dW = -P.mT @ dT
            dP = P.mT @ dW - dT @ W.mT - dW @ U.mT
            dZ = 0.25 * dZ @ T.mT + A.mT @ dP
            dA += dP @ Z.mT
        over = inverse(self.c)[..., None, None]
        largest = np.arange(A.shape[-1]) == A.sum(-2).argmax(-1)[..., None]
        dc = -(dZ * self.Z[0]).sum((-2, -1), keepdims=True) * over
        return dA + dZ.mT * over + dc * largest[..., None, :]


@checked
def pseudo_inverse(
    A: Float[Array, "*batch r r"], *, steps: Rounds | None = 6
) -> tuple[Float[Array, "*batch r r"], Pullback]:
    """A⁺ of matrices whose entries are not negative and whose rows sum to one (or are zero), as those of a softmax.

        Z₀ = Aᵀ / max_j Σ_i A_ij,   Z ← ¼ Z (13 I − P (15 I − P (7 I − P))) with P = A Z

    steps    of the iteration; None for the exact one, from singular values
    source   Xiong et al. 2021, where the largest sum is that of one matrix, as here. Published code may take one for all heads
             and samples of a batch, so that a sample's result depends on its neighbours
    cost     O(r³) for each step
    returns  Z and a pullback: dA = pullback(dZ), through the steps
    raises   TypeError for a wrong shape or dtype, ValueError for fewer steps than one, or matrices without rows
    """
    if A.shape[-1] == 0:
        raise ValueError(f"A: shape {A.shape} has no rows")
    if steps is None:
        Z = np.linalg.pinv(A, rtol=A.shape[-1] * float(np.finfo(A.dtype).eps))
        return Z, ExactInversePullback(A, Z)
    c = A.sum(-2).max(-1, initial=0)
    Zs = [A.mT * inverse(c)[..., None, None]]
    for _ in range(steps):
        Zs.append(0.25 * Zs[-1] @ _polynomials(A @ Zs[-1])[-1])
    return Zs[-1], IteratedInversePullback(A, tuple(Zs), c)


# ------------------------------------------------------------------------------------------------- landmarks


def segments(there: Array, r: int) -> Array:
    """The matrix of the means, (*batch, r, n): row a has 1/size at the tokens of segment a, and zeros elsewhere.

    there   which of the n tokens are there, (*batch, n). Of N, token t = 0 … N − 1 is in segment ⌊t r / N⌋, so that sizes differ
            by at most one; of fewer tokens than r each is a segment, and the rows that are left are zero.
    """
    N = there.sum(-1, keepdims=True)
    segment = (there.cumsum(-1) - 1) * np.minimum(N, r) // np.maximum(N, 1)
    members = (segment[..., None, :] == np.arange(r)[:, None]) & there[..., None, :]
    return members / np.maximum(members.sum(-1, keepdims=True), 1)


def _mixed(means: Array, X: Array) -> Array:
    """means · X, with one matrix for all samples, or one for each if samples lack different tokens."""
    return mix(means, X)[0] if means.ndim == 2 else means @ X


# ------------------------------------------------------------------------------------------------- attention


class NystromPullback(Pullback):
    """Y = L W, W = Z N, N = B V: two attentions, of all queries to landmarks and of landmarks to all keys, and Z between.

    dW comes out of the first; dN = Zᵀ dW goes into the second; dZ = dW Nᵀ through the inverse and the small softmax.
    A landmark is a mean, Q̃ = C Q, so dQ = Cᵀ dQ̃ besides the queries' own; the values also get what the convolution sends.
    """

    to_landmarks: Pullback
    from_landmarks: Pullback
    between: tuple[ScoresPullback, SoftmaxPullback, Pullback]  # scores, softmax, inverse
    Z: Array
    N: Array
    means: tuple[Array, Array]
    convolution: Pullback | None
    seen: Array | None

    @property
    def A(self) -> Array:  # noqa: N802
        """L M⁺ B, (*batch, H, n, m), which is never formed on the way; the convolution is not in it."""
        return self.to_landmarks.A @ self.Z @ self.from_landmarks.A

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        of_scores, of_softmax, of_inverse = self.between
        dQ, dK_few, dW = self.to_landmarks(dY)
        dQ_few, dK, dV = self.from_landmarks(self.Z.mT @ dW)
        dQ_between, dK_between = of_scores(of_softmax(of_inverse(dW @ self.N.mT)))
        of_queries, of_keys = self.means
        dQ = dQ + _mixed(of_queries.mT, dQ_few + dQ_between)
        dK = dK + _mixed(of_keys.mT, dK_few + dK_between)
        if self.convolution is None:
            return dQ, where_seen(self.seen, dK), where_seen(self.seen, dV)
        d_local = np.zeros_like(dV)
        d_local[..., dV.shape[-2] - dY.shape[-2] :, :] = dY  # the keys in front of the first query have no output
        dV_near, dtheta = self.convolution(d_local.swapaxes(-2, -3))
        dV = dV + dV_near.swapaxes(-2, -3)
        return dQ, where_seen(self.seen, dK), where_seen(self.seen, dV), dtheta[..., 0]


@checked
def nystrom_attention(
    Q: Float[Array, "*batch n d"],
    K: Float[Array, "*batch keys d"],
    V: Float[Array, "*batch keys dv"],
    theta: Float[Array, "heads taps"] | None = None,
    *,
    landmarks: int = 64,
    steps: Rounds | None = 6,
    mask: Bool[Array, "..."] | None = None,
    scale: float | None = None,
) -> tuple[Float[Array, "*batch n dv"], NystromPullback]:
    """Attention by way of a few landmarks.

        Y = softmax(s Q K̃ᵀ) softmax(s Q̃ K̃ᵀ)⁺ softmax(s Q̃ Kᵀ) V + θ ∗ V

    theta      kernels (H, taps) of the convolution, one for each head, an odd number of taps; None for no convolution
    landmarks  r, means of as many segments of queries and keys. A sequence of at most r tokens is its own landmarks, and
               then with the exact inverse this is plain attention
    steps      of the iteration for the pseudo-inverse; None for the exact one
    mask       True where a key is there, (…, 1, m); what is hidden is in no segment. The n queries are the last of the m
               positions
    scale      s = 1/√d by default
    source     Xiong et al. 2021
    cost       O((n + m) r d + r³) time; O((n + m) r) memory, for the means alone in the tiers of loops. Never causal: a
               landmark is a mean that knows the future
    returns    Y and a pullback: dQ, dK, dV = pullback(dY), and dtheta if there is a convolution
    raises     TypeError for a wrong shape or dtype; ValueError for no landmark, more queries than keys, an even number of
               taps, or a mask that hides pairs
    """
    one_dtype(Q=Q, K=K, V=V, theta=theta)
    n, m = Q.shape[-2], K.shape[-2]
    refuse_more_queries(n, m)
    if theta is not None and (theta.shape[1] % 2 == 0 or Q.shape[-3:-2] != theta.shape[:1]):
        wanted = f"(H, taps), an odd number of taps, for the heads of {Q.shape[:-2]}"
        raise ValueError(f"theta: shape {theta.shape} should be {wanted}")
    seen = seen_keys(mask, Q, K, "a landmark")
    K, V = where_seen(seen, K), where_seen(seen, V)
    there: Any = np.ones(m, bool)
    if seen is not None:
        there = np.broadcast_to(seen[..., 0], (*seen.shape[:-2], m))
    asking = there[..., m - n :]
    of_queries, of_keys = (segments(tokens, landmarks).astype(Q.dtype) for tokens in (asking, there))
    Q_few, K_few = _mixed(of_queries, where_seen(asking[..., None], Q)), _mixed(of_keys, K)
    # a sample with fewer than r tokens has landmarks without any, which are not used
    used = [means.max(-1, initial=0)[..., None, :] > 0 for means in (of_queries, of_keys)]
    few = None if used[1].all() else used[1]

    N, from_landmarks = dot_product_attention(
        Q_few, K, V, mask=None if seen is None else there[..., None, :], scale=scale
    )
    S, of_scores = scores(Q_few, K_few, scale=scale)
    M, of_softmax = softmax(S, mask=used[0].mT & used[1])
    Z, of_inverse = pseudo_inverse(M, steps=steps)
    Y, to_landmarks = dot_product_attention(Q, K_few, Z @ N, mask=few, scale=scale)
    near = None
    if theta is not None:
        local, near = depthwise_convolution(V.swapaxes(-2, -3), theta[..., None])
        Y = Y + local.swapaxes(-2, -3)[..., m - n :, :]
    between, means = (of_scores, of_softmax, of_inverse), (of_queries, of_keys)
    return Y, NystromPullback(to_landmarks, from_landmarks, between, Z, N, means, near, seen)


# --------------------------------------------------------------------------------------------- the core


class NystromParams(NamedTuple):
    """The kernels of the convolution (H, taps), or None."""

    theta: Array | None = None


@frozen
class Nystrom(Core):
    """Attention by way of a few landmarks, and a convolution of the values.

    landmarks   r, means of segments of queries and keys
    taps        of the convolution, an odd number; None for no convolution
    steps       of the iteration for the pseudo-inverse; None for the exact one
    source      Xiong et al. 2021, Nyströmformer
    cost        O(n r), and r³ for each step. Never causal
    raises      ValueError for no landmark, no step, or an even number of taps
    """

    heads: int
    landmarks: int = 64
    taps: Annotated[int, Range("odd, so that a kernel has a middle", lambda k: k > 0 and k % 2 == 1)] | None = 65
    steps: Rounds | None = 6

    stage = "normalise"
    unplaced = "has landmarks, which are means of queries and of keys and stand nowhere"
    cost = "O(n landmarks)"
    causal = "never"
    remembers = None

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> NystromParams:
        """Kernels uniform on ±1/√taps."""
        if self.taps is None:
            return NystromParams(None)
        return NystromParams(rng.uniform(-1, 1, (self.heads, self.taps)).astype(dtype) / dtype(np.sqrt(self.taps)))

    def __call__(
        self, params: NystromParams, Q: Array, K: Array, V: Array, *streams: Array, causal: bool = False,
        mask: Array | None = None, rng: Any = None,
    ) -> tuple[Array, ParamsFirstPullback]:  # fmt: skip
        """Pullback: dY to (dparams, dQ, dK, dV)."""
        self.refuse(causal=causal)
        Y, attention = nystrom_attention(Q, K, V, params.theta, landmarks=self.landmarks, steps=self.steps, mask=mask)
        return Y, ParamsFirstPullback(attention, NystromParams)
