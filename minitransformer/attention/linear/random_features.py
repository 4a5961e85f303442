"""Random features: exp ⟨x, y⟩ as the mean of a product over random directions w, so that m of them are m features.

    w ~ N(0, I):   E e^⟨w, z⟩ = e^(‖z‖²/2)          and so, with ‖x + y‖² = ‖x‖² + ‖y‖² + 2 ⟨x, y⟩,

    positive        e^⟨x, y⟩ = E [e^(⟨w, x⟩ − ‖x‖²/2) · e^(⟨w, y⟩ − ‖y‖²/2)]
    hyperbolic      the same with w and −w together
    trigonometric   e^⟨x, y⟩ = E [e^(‖x‖²/2) e^(‖y‖²/2) cos ⟨w, x − y⟩],   cos(a − b) = cos a cos b + sin a sin b

All three have the right mean. Chapter 10 derives how far single draws are from it. Rows of W that are orthogonal to each other
are nearer to it than independent ones.
"""

import math
from typing import Any

import numpy as np

from minitransformer.arrays import must_broadcast, one_dtype
from minitransformer.functional import softmax
from minitransformer.pullback import Pullback
from minitransformer.ranges import NonNegativeNumber
from minitransformer.typing import Array, Float, checked

CAP = 60.0  # the largest exponent that a feature may have: sums of e⁶⁰ still fit into float32, as e⁸⁸ just does


# ------------------------------------------------------------------------------------------ directions


@checked
def gaussian_rows(rng: Any, shape: tuple[int | np.integer, ...]) -> Float[Array, "*own m d"]:
    """W (*own, m, d) whose rows are independent, w ~ N(0, I)."""
    _refuse_other_than_rows(rng, shape)
    return rng.standard_normal(shape)


@checked
def orthogonal_rows(rng: Any, shape: tuple[int | np.integer, ...]) -> Float[Array, "*own m d"]:
    """W (*own, m, d) whose rows are each w ~ N(0, I), and orthogonal within each block of d.

    A square matrix of normal numbers is Q R. Q is uniform over all rotations and reflections only if the diagonal of R is
    positive; as LAPACK leaves it, some directions are likelier than others, and features are biased. The rows then get the
    lengths of rows that were drawn without being orthogonal.

    source   Choromanski et al. 2021; the sign: Mezzadri 2007. The authors' code leaves it out
    """
    _refuse_other_than_rows(rng, shape)
    *own, m, d = shape
    Q, R = np.linalg.qr(rng.standard_normal((*own, -(-m // d), d, d)))
    Q = Q * np.sign(np.diagonal(R, axis1=-2, axis2=-1))[..., None, :]
    rows = Q.mT.reshape(*own, -1, d)[..., :m, :]
    return rows * np.linalg.norm(rng.standard_normal(shape), axis=-1, keepdims=True)


def _refuse_other_than_rows(rng: Any, shape: tuple[int | np.integer, ...]) -> None:
    """Raise TypeError for an rng without `standard_normal`, ValueError for a shape that is not (*own, m, d) with d ≥ 1."""
    if not hasattr(rng, "standard_normal"):
        raise TypeError(f"rng: {type(rng).__name__} draws no normal numbers; np.random.default_rng(seed) does")
    if len(shape) < 2 or min(shape) < 0 or shape[-1] == 0 or math.prod(shape) > 2**40:
        raise ValueError(f"shape: {shape} should be (*own, m, d), with d above 0 and 2⁴⁰ numbers at most")


@checked
def of_same_length(W: Float[Array, "*own m d"]) -> Float[Array, "*own m d"]:
    """Rows of length √d, the root of the mean square of ‖w‖: the kernel is then SMREG, no longer exp, and never above it."""
    length = np.linalg.norm(W, axis=-1, keepdims=True)
    return W * (math.sqrt(W.shape[-1]) / np.maximum(length, 1e-30))


# -------------------------------------------------------------------------------------------- features


def directions(X: Array, W: Array) -> Array:
    """⟨w_r, x_i⟩, (*batch, n, m). Raises ValueError if W (*own, m, d) is not for the last batch axes of X."""
    one_dtype(X=X, W=W)
    must_broadcast(W, (*X.shape[:-2], *W.shape[-2:]), "W", "the rows of X")
    return X @ W.mT


def half_square(X: Array) -> Array:
    """‖x‖²/2 of each row, (…, n, 1)."""
    return np.vecdot(X, X)[..., None] / 2


class ExponentialFeaturesPullback(Pullback):
    """F_r = e^(u_r − ‖x‖²/2) with u = W x, so G = dF ⊙ F is what comes back to the exponent: dx = Σ_r G_r w_r − (Σ_r G_r) x.

    Of the features of −w the part of u is negative. To an exponent that was capped nothing comes back.
    """

    X: Array
    W: Array
    F: Array
    capped: Array | None

    def __call__(self, dF: Array) -> Array:
        G = dF * self.F
        if self.capped is not None:
            G[self.capped] = 0
        return signed(G, self.W) @ self.W - G.sum(-1, keepdims=True) * self.X


def signed(G: Array, W: Array) -> Array:
    """What comes back to u = W x: G of the features of u, less that of the features of −u if there are such."""
    m = W.shape[-2]
    return G if G.shape[-1] == m else G[..., :m] - G[..., m:]


class RatiosPullback(Pullback):
    """Features divided by their sum are the softmax of their exponents: back through it to u = W x, and dx = Σ_r du_r w_r."""

    W: Array
    softmax: Pullback

    def __call__(self, dF: Array) -> Array:
        return signed(self.softmax(dF), self.W) @ self.W


@checked
def positive_features(
    X: Float[Array, "*batch n d"], W: Float[Array, "*own m d"], *, both_signs: bool = False, query: bool = False
) -> tuple[Float[Array, "*batch n r"], Pullback]:
    """φ⁺(x) = e^(−‖x‖²/2)/√m · e^(W x): features above zero, whose product is exp ⟨x, y⟩ on average.

    ⟨w, x⟩ − ‖x‖²/2 = ‖w‖²/2 − ‖x − w‖²/2: a feature is a hill around w, and no exponent is above ‖w‖²/2. It is capped at 60:
    float32 overflows above 88, which takes a ‖w‖² > 176 and an x near that w.

    both_signs   hyperbolic features, e^(−‖x‖²/2)/√(2m) · [e^(W x); e^(−W x)]: 2 m of them
    query        divided by their sum, which cancels in the average: nothing can overflow
    source       Lecture notes, Performer (5); Choromanski et al. 2021
    cost         O(n m d)
    raises       TypeError for a wrong shape or dtype, ValueError for a W with other batch axes
    """
    U = directions(X, W)
    if both_signs:
        U = np.concatenate([U, -U], -1)
    if query:
        F, pullback = softmax(U)
        return F, RatiosPullback(W, pullback)
    U -= half_square(X)
    capped = U > CAP if U.max(initial=0) > CAP else None
    F = np.exp(U if capped is None else np.minimum(U, CAP), out=U)
    F *= X.dtype.type(max(U.shape[-1], 1) ** -0.5)
    return F, ExponentialFeaturesPullback(X, W, F, capped)


class TrigonometricFeaturesPullback(Pullback):
    """F = g [sin u; cos u] with u = W x and g = e^(‖x‖²/2)/√m: du = dF_1 F_2 − dF_2 F_1, and g brings ⟨dF, F⟩ x.

    Where g is capped, or left out for a query, it brings nothing.
    """

    X: Array
    W: Array
    F: Array
    grows: Array

    def __call__(self, dF: Array) -> Array:
        (sin, cos), (dsin, dcos) = np.split(self.F, 2, -1), np.split(dF, 2, -1)
        dX = (dsin * cos - dcos * sin) @ self.W
        return dX + np.where(self.grows, np.vecdot(dF, self.F)[..., None], dF.dtype.type(0)) * self.X


@checked
def trigonometric_features(
    X: Float[Array, "*batch n d"], W: Float[Array, "*own m d"], *, query: bool = False
) -> tuple[Float[Array, "*batch n r"], TrigonometricFeaturesPullback]:
    """φ(x) = e^(‖x‖²/2)/√m · [sin W x; cos W x]: 2 m features whose product is exp ⟨x, y⟩ on average.

    They have both signs, and so may a weight; where exp ⟨x, y⟩ is small they are furthest from it.

    query    without e^(‖x‖²/2), which cancels in the average; otherwise ‖x‖²/2 counts as 60 at most
    source   Rahimi and Recht 2007; Choromanski et al. 2021
    cost     O(n m d)
    raises   TypeError for a wrong shape or dtype, ValueError for a W with other batch axes
    """
    U, h = directions(X, W), half_square(X)
    size = np.ones_like(h) if query else np.exp(np.minimum(h, CAP))
    F = np.concatenate([np.sin(U), np.cos(U)], -1) * (size / X.dtype.type(math.sqrt(max(W.shape[-2], 1))))
    return F, TrigonometricFeaturesPullback(X, W, F, (h < CAP) & (not query))


class ReluFeaturesPullback(Pullback):
    """F = relu(W x) + ε: dx = Σ_r dF_r w_r, over the r with ⟨w_r, x⟩ > 0."""

    W: Array
    positive: Array

    def __call__(self, dF: Array) -> Array:
        return np.where(self.positive, dF, dF.dtype.type(0)) @ self.W


@checked
def relu_features(
    X: Float[Array, "*batch n d"], W: Float[Array, "*own m d"], *, eps: NonNegativeNumber = 1e-3
) -> tuple[Float[Array, "*batch n m"], ReluFeaturesPullback]:
    """φ(x) = relu(W x) + ε: another kernel than exp, that of the angle between x and y, times their lengths.

    source   Lecture notes, generalized kernelizable attention; Choromanski et al. 2021, with ε = 10⁻³
    cost     O(n m d)
    raises   TypeError for a wrong shape or dtype, ValueError for a W with other batch axes, or a negative ε
    """
    U = directions(X, W)
    return np.maximum(U, 0) + X.dtype.type(eps), ReluFeaturesPullback(W, U > 0)
