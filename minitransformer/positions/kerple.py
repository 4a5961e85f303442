"""KERPLE: the further away a key is, the lower its score, along a curve that each head learns.

    S_ij = ⟨q_i, k_j⟩/√d − p ln(1 + a t)                       logarithmic;  t = |i − j|
    S_ij = ⟨q_i, k_j⟩/√d − a t^p                               power; p = 1 is ALiBi with slopes a
    S_ij = exp(−a′ t^p′) · ⟨q_i, k_j⟩/√d − a t^p               weighted power: the match fades as well

Each head has its own p, a, p′ and a′. They are clamped: to 0.01 from below, and the powers to 2 from above. There the
bias is a conditionally positive definite kernel of the two positions (Σ_ij c_i c_j b_ij ≥ 0 for every c with sum 0).

A pullback is the derivative of its own forward function, so a parameter beyond its bound gets no gradient, and stays there.
The published code sets the parameter itself to the bound, where it gets a gradient: so does `clamped`, for a loop that calls it
between steps. Training in this package does not.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from minitransformer.arrays import one_dtype
from minitransformer.checks import frozen
from minitransformer.functional import ScoresPullback, scores
from minitransformer.gather_scatter import by_offset, refuse_other_heads, sum_by_offset, unbroadcast
from minitransformer.positions.encoding import OffsetBias, ScoreEncoding, offsets
from minitransformer.pullback import Pullback
from minitransformer.typing import Array

SMALLEST, STEEPEST = 0.01, 2.0  # bounds of the published code


class KerpleParams(NamedTuple):
    """For each head p, (H,), and a, (H,)."""

    p: Array
    a: Array


class KerpleWeightedParams(NamedTuple):
    """For each head p and a of the bias, p′ and a′ of the weights; (H,) each."""

    p: Array
    a: Array
    p_w: Array
    a_w: Array


Params = TypeVar("Params", KerpleParams, KerpleWeightedParams)


def within(params: Params, steepest: float) -> Params:
    """The parameters, brought within their bounds: at least 0.01, p and p′ at most `steepest`. At a bound they can learn."""
    bounds = (steepest if name.startswith("p") else math.inf for name in params._fields)
    return type(params)(*(np.clip(x, SMALLEST, bound) for x, bound in zip(params, bounds, strict=True)))


def where_free(params: Params, inside: Params, dinside: Params) -> Params:
    """Back through `within`: dx = dx̄ where x̄ = x, and 0 where x was moved to a bound."""
    return type(params)(*(np.where(x == y, dy, 0) for x, y, dy in zip(params, inside, dinside, strict=True)))


def of_each_head(heads: int, largest: float, rng: np.random.Generator, dtype: type) -> Array:
    """One number for each head, uniform from 0.01 to `largest`."""
    return rng.uniform(SMALLEST, largest, heads).astype(dtype)


def distances(n: int, m: int, dtype: np.dtype) -> Array:
    """t = |j − i| for the n + m − 1 diagonals."""
    return np.abs(offsets(n, m)).astype(dtype)


# --------------------------------------------------------------------------------------- the two curves


class LogCurvePullback(Pullback):
    """δF = δp ln(1 + a t) + p t δa/(1 + a t), summed over the offsets of a head."""

    p: Array
    a: Array
    t: Array

    def __call__(self, dF: Array) -> tuple[Array, Array]:
        at = self.a[:, None] * self.t
        return (dF * np.log1p(at)).sum(-1), self.p * (dF * self.t / (1 + at)).sum(-1)


def log_curve(p: Array, a: Array, t: Array) -> tuple[Array, LogCurvePullback]:
    """F = p ln(1 + a t) for each head and distance, (H, o)."""
    return p[:, None] * np.log1p(a[:, None] * t), LogCurvePullback(p, a, t)


class PowerCurvePullback(Pullback):
    """δF = δa t^p + a t^p ln t δp, where t^p ln t → 0 as t → 0: at distance 0 nothing can change."""

    a: Array
    power: Array
    t: Array

    def __call__(self, dF: Array) -> tuple[Array, Array]:
        G = dF * self.power
        log_t = np.log(np.maximum(self.t, 1))  # t is a whole number; where it is 0, so is t^p
        return self.a * (G * log_t).sum(-1), G.sum(-1)


def power_curve(p: Array, a: Array, t: Array) -> tuple[Array, PowerCurvePullback]:
    """F = a t^p for each head and distance, (H, o)."""
    power = t ** p[:, None]
    return a[:, None] * power, PowerCurvePullback(a, power, t)


# ------------------------------------------------------------------------------------------- as a bias


class KerplePullback(Pullback):
    """bias = −F(clamped p, a), so dF = −dbias."""

    curve: LogCurvePullback | PowerCurvePullback
    params: KerpleParams
    inside: KerpleParams

    def __call__(self, dbias: Array) -> KerpleParams:
        return where_free(self.params, self.inside, KerpleParams(*self.curve(-dbias)))


@frozen
class Kerple(OffsetBias):
    """A bias −F of the distance: what both curves F share, each head with its own p and a."""

    heads: int

    steepest: ClassVar[float]  # the bound of p
    _curve: ClassVar[Callable[..., tuple[Array, Any]]]  # F(p, a, t) and its pullback

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> KerpleParams:
        """p uniform from 0.01 to 2, a from 0.01 to 1."""
        return KerpleParams(*(of_each_head(self.heads, largest, rng, dtype) for largest in (2, 1)))

    def clamped(self, params: KerpleParams) -> KerpleParams:
        """The parameters, each brought within its bounds."""
        return within(params, self.steepest)

    def bias(self, params: KerpleParams, n: int, m: int, *, causal: bool) -> tuple[Array, KerplePullback]:
        """−F(|o|) for each offset o."""
        inside = self.clamped(params)
        F, curve = self._curve(*inside, distances(n, m, params.p.dtype))
        return -F, KerplePullback(curve, params, inside)


@frozen
class KerpleLog(Kerple):
    """The bias −p ln(1 + a |i − j|), with p and a of each head at least 0.01.

    One of three curves: "kerple:curve=power" is KerplePower, and "kerple:curve=weighted" is KerpleWeighted.

    heads    H
    source   Chi, Fan, Ramadge and Rudnicky 2022, for causal attention; here t = |i − j| both ways
    cost     O(H (n + m)) besides attention itself. 2 H parameters for each layer
    """

    steepest = math.inf
    _curve = staticmethod(log_curve)


@frozen
class KerplePower(Kerple):
    """The bias −a |i − j|^p, with a of each head at least 0.01 and p from 0.01 to 2.

    heads    H
    source   Chi, Fan, Ramadge and Rudnicky 2022, for causal attention; here t = |i − j| both ways
    cost     O(H (n + m)) besides attention itself. 2 H parameters for each layer
    """

    steepest = STEEPEST
    _curve = staticmethod(power_curve)


# ------------------------------------------------------------------------------- as a weight and a bias


class KerpleWeightedPullback(Pullback):
    """S = W ⊙ C + B, so dC = W ⊙ dS, dB = dS, dW = C ⊙ dS; and W = exp(−F′), so dF′ = −W ⊙ dW.

    W and B have one number for each head and offset: their gradients are summed over the batch and along diagonals.
    """

    content: ScoresPullback
    C: Array
    W: Array
    bias: PowerCurvePullback
    fade: PowerCurvePullback
    params: KerpleWeightedParams
    inside: KerpleWeightedParams

    def __call__(self, dS: Array) -> tuple[KerpleWeightedParams, Array, Array]:
        n, m = dS.shape[-2:]
        db = sum_by_offset(unbroadcast(dS, dS.shape[-3:]))
        dw = sum_by_offset(unbroadcast(dS * self.C, dS.shape[-3:]))
        dinside = KerpleWeightedParams(*self.bias(-db), *self.fade(-self.W * dw))
        return where_free(self.params, self.inside, dinside), *self.content(dS * by_offset(self.W, n, m))


@frozen
class KerpleWeighted(ScoreEncoding):
    """S_ij = exp(−a′ t^p′) ⟨q_i, k_j⟩/√d − a t^p, t = |i − j|: the power bias, and content that counts less far away.

    Less, not lower: to multiply a negative score by a number below 1 raises it.

    heads    H
    source   the weighted form in the code of Chi, Fan, Ramadge and Rudnicky 2022
    cost     O(n m) memory. 4 H parameters for each layer
    """

    heads: int

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> KerpleWeightedParams:
        """p and p′ uniform from 0.01 to 2, a and a′ from 0.01 to 1."""
        return KerpleWeightedParams(*(of_each_head(self.heads, largest, rng, dtype) for largest in (2, 1, 2, 1)))

    def clamped(self, params: KerpleWeightedParams) -> KerpleWeightedParams:
        """The parameters, each brought within its bounds."""
        return within(params, STEEPEST)

    def scores(self, params: KerpleWeightedParams, Q: Array, K: Array) -> tuple[Array, KerpleWeightedPullback]:
        """W ⊙ C + B, where C are the scaled scores of the contents."""
        one_dtype(Q=Q, p=params.p)
        refuse_other_heads(Q, self.heads)
        n, m = Q.shape[-2], K.shape[-2]
        t = distances(n, m, Q.dtype)
        inside = self.clamped(params)
        F, bias = power_curve(inside.p, inside.a, t)
        F_w, fade = power_curve(inside.p_w, inside.a_w, t)
        W = np.exp(-F_w)
        C, content = scores(Q, K)
        S = C * by_offset(W, n, m) - by_offset(F, n, m)
        return S, KerpleWeightedPullback(content, C, W, bias, fade, params, inside)
