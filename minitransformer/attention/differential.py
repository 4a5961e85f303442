"""Differential attention: what two softmaxes have in common is taken away. Replaces the stage `normalise`.

    Y = (A_1 − λ A_2) V,    A_s = softmax(Q_s K_sᵀ/√d),    λ = e^{⟨a_1, c_1⟩} − e^{⟨a_2, c_2⟩} + λ₀
    Z = (1 − λ₀) · RMS norm of each row of Y, head by head

Weight that both give to keys which don't matter cancels, as noise does in a differential amplifier. Two neighbouring heads of
queries and keys, 2p and 2p + 1, make one pair, and their values, side by side, are one value of width 2d: so H softmaxes of width
d are H/2 heads of width 2d. The scores cost what those of H heads do, and A V twice as much, for both softmaxes of a pair
weigh the wide value. Rows sum to 1 − λ, which makes Y smaller, and the norm undoes that.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from minitransformer.arrays import FEW, must_be_for_heads, one_dtype, scale_for
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.cache.keys_values import KeysValues
from minitransformer.attention.core import Core
from minitransformer.attention.dot_product import attend_to_buffer, dot_product_attention
from minitransformer.checks import frozen
from minitransformer.functional import loops_in, rms_norm
from minitransformer.gather_scatter import merge_heads, split_heads, unbroadcast
from minitransformer.pullback import Pullback
from minitransformer.ranges import Fraction, NonNegative
from minitransformer.typing import Array, Bool, Float, checked

EPS = 1e-5  # of the norm of Y


class DifferencePullback(Pullback):
    """dA_1 = dY Vᵀ and dA_2 = −λ dA_1, so the second softmax gets −λ dY;  dλ = −⟨dA_1, A_2⟩ = −⟨dY, A_2 V⟩."""

    first: Pullback
    second: Pullback
    lambda_: Array
    Y_2: Array

    @property
    def A(self) -> Array:  # noqa: N802
        """A_1 − λ A_2, (*batch, n, m): some weights are negative."""
        return self.first.A - self.lambda_[..., None, None] * self.second.A

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        dQ_1, dK_1, dV = self.first(dY)
        dQ_2, dK_2, dV_2 = self.second(-self.lambda_[..., None, None] * dY)
        dlambda = unbroadcast(-(dY * self.Y_2).sum((-2, -1)), self.lambda_.shape)
        return dQ_1, dK_1, dQ_2, dK_2, dV + dV_2, dlambda


@checked
def differential_attention(
    Q_1: Float[Array, "*batch n d"],
    K_1: Float[Array, "*batch m d"],
    Q_2: Float[Array, "*batch n d"],
    K_2: Float[Array, "*batch m d"],
    V: Float[Array, "*batch m dv"],
    lambda_: Float[Array, "*own"],
    *,
    causal: bool = False,
    mask: Bool[Array, "..."] | None = None,
    scale: float | None = None,
) -> tuple[Float[Array, "*batch n dv"], DifferencePullback]:
    """Y = (softmax(scale · Q_1 K_1ᵀ) − λ softmax(scale · Q_2 K_2ᵀ)) V.

    lambda_  one number for each head, or for all: what broadcasts to (*batch,)
    others   as in `dot_product_attention`
    source   Ye et al. 2024, without the norm that follows
    cost     two of `dot_product_attention`. Can be causal
    returns  Y and a pullback: dQ_1, dK_1, dQ_2, dK_2, dV, dλ = pullback(dY)
    raises   TypeError for a wrong shape or dtype, ValueError for a mask or a λ that does not fit
    """
    one_dtype(Q_1=Q_1, K_1=K_1, Q_2=Q_2, K_2=K_2, V=V, lambda_=lambda_)
    must_be_for_heads(lambda_, Q_1.shape[:-2], "lambda_")
    Y_1, first = dot_product_attention(Q_1, K_1, V, causal=causal, mask=mask, scale=scale)
    Y_2, second = dot_product_attention(Q_2, K_2, V, causal=causal, mask=mask, scale=scale)
    return Y_1 - lambda_[..., None, None] * Y_2, DifferencePullback(first, second, lambda_, Y_2)


@checked
def first_lambda(layer: NonNegative) -> float:
    """λ₀ = 0.8 − 0.6 e^{−0.3 l} of layer l = 0, 1, …: 0.2 in the first one, and 0.76 in the tenth.

    LanguageModel(attention=tuple(Differential(heads, d, first_lambda(layer)) for layer in range(depth)))
    source   Ye et al. 2024, where layers are counted from 1, and l − 1 stands in the exponent
    """
    return 0.8 - 0.6 * math.exp(-0.3 * layer)


# --------------------------------------------------------------------------------------------- the core


class DifferentialParams(NamedTuple):
    """The four vectors that λ is made of, (d,), and the gain of the norm, (2d,). All heads share them."""

    a_1: Array
    c_1: Array
    a_2: Array
    c_2: Array
    gain: Array


class DifferentialPullback(AroundAttention):
    """With s = e^{⟨a, c⟩}:  ds = ±dλ,  da = s c dλ,  dc = s a dλ; then the norm and the difference, last stage first."""

    params: DifferentialParams
    difference: DifferencePullback
    norm: Pullback
    left: float
    inside = "difference"  # A is (*batch, H/2, n, m)

    def __call__(self, dZ: Array) -> tuple[DifferentialParams, Array, Array, Array]:
        a_1, c_1, a_2, c_2, _ = self.params
        dY, dgain = self.norm(self.left * merge_pairs(dZ))
        dQ_1, dK_1, dQ_2, dK_2, dV, dlambda = self.difference(dY)
        up, down = dlambda * np.exp(a_1 @ c_1), -dlambda * np.exp(a_2 @ c_2)
        dparams = DifferentialParams(up * c_1, up * a_1, down * c_2, down * a_2, dgain)
        return dparams, in_turns(dQ_1, dQ_2), in_turns(dK_1, dK_2), split_pairs(dV)


def in_turns(X_1: Array, X_2: Array) -> Array:
    """Heads of two arrays as 2p and 2p + 1 of one: (*batch, P, n, d) twice to (*batch, 2P, n, d)."""
    X = np.stack([X_1, X_2], -3)
    return X.reshape(*X.shape[:-4], 2 * X.shape[-4], *X.shape[-2:])


def merge_pairs(X: Array) -> Array:
    """Two neighbouring heads as one of twice the width: (*batch, 2P, n, d) to (*batch, P, n, 2d)."""
    return merge_heads(X.reshape(*X.shape[:-3], X.shape[-3] // 2, 2, *X.shape[-2:]))


def split_pairs(X: Array) -> Array:
    """The inverse of `merge_pairs`, and so also its gradient."""
    X = split_heads(X, 2)
    return X.reshape(*X.shape[:-4], 2 * X.shape[-4], *X.shape[-2:])


@frozen
class Differential(Core):
    """The difference of two softmaxes, in pairs of neighbouring heads.

    heads, d     H, an even number of softmaxes, and the width of each
    lambda_init  λ₀, which λ begins near; `first_lambda` says what it is in each layer of the paper
    source       Ye et al. 2024
    cost         O(n²), as for H heads of softmax whose values are 2d wide
    raises       ValueError for an odd number of heads
    """

    heads: int
    d: int
    lambda_init: Fraction = 0.8

    stage = "normalise"
    one_width = True  # the norm has a gain for each of 2d channels
    unplaced = "has two scores for each pair, and an encoding changes one"

    def __post_init__(self) -> None:
        if self.heads % 2:
            raise ValueError(f"heads: {self.heads} should be even; differential attention subtracts one from another")

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> DifferentialParams:
        """The four vectors are drawn with a deviation of 0.1, so that λ begins near λ₀; the gain is one."""
        a_1, c_1, a_2, c_2 = (0.1 * rng.standard_normal((4, self.d))).astype(dtype)
        return DifferentialParams(a_1, c_1, a_2, c_2, np.ones(2 * self.d, dtype))

    def __call__(
        self, params: DifferentialParams, Q: Array, K: Array, V: Array, *streams: Array, causal: bool = False,
        mask: Array | None = None, rng: Any = None,
    ) -> tuple[Array, DifferentialPullback]:  # fmt: skip
        """Pullback: dY to (dparams, dQ, dK, dV)."""
        lambda_, left = self._lambda(params), Q.dtype.type(1 - self.lambda_init)
        if mask is not None and mask.ndim > 2 and mask.shape[-3] > 1:
            raise ValueError(
                f"mask: shape {mask.shape} should be one for all heads, for the two softmaxes of a pair must see the same keys"
            )
        Q_1, Q_2, K_1, K_2 = Q[..., 0::2, :, :], Q[..., 1::2, :, :], K[..., 0::2, :, :], K[..., 1::2, :, :]
        Y, difference = differential_attention(Q_1, K_1, Q_2, K_2, merge_pairs(V), lambda_, causal=causal, mask=mask)
        Z, norm = rms_norm(Y, params.gain, eps=EPS)
        return split_pairs(left * Z), DifferentialPullback(params, difference, norm, left)

    def _lambda(self, params: DifferentialParams) -> Array:
        a_1, c_1, a_2, c_2, gain = params
        return np.asarray(np.exp(a_1 @ c_1) - np.exp(a_2 @ c_2) + self.lambda_init, gain.dtype)

    def step(
        self, params: DifferentialParams, Q: Array, K: Array, V: Array, *streams: Array, state: KeysValues | None = None
    ) -> tuple[Array, KeysValues]:
        """O(m d) for one new token. The state has the keys of a pair side by side; a query has zeros for the other one."""
        left = Q.dtype.type(1 - self.lambda_init)
        if state is not None and Q.shape[-2] == 1 and (loops := loops_in("one_query")):
            done = loops.attend_and_differ(Q, K, V, state, self._lambda(params), left, params.gain, EPS)
            if done is not None:
                return done
        new = merge_pairs(K), merge_pairs(V)
        state = KeysValues.of(*new) if state is None else state.extended(*new)
        if Q.shape[-2] > FEW:
            return self(params, Q, split_pairs(state.keys), split_pairs(state.values), causal=True)[0], state
        queries, d = np.zeros((*Q.shape[:-1], 2 * Q.shape[-1]), Q.dtype), Q.shape[-1]
        for s in (0, 1):
            queries[..., s::2, :, s * d : (s + 1) * d] = Q[..., s::2, :, :]
        Y = attend_to_buffer(queries, state.K, state.V, state.length, scale=scale_for(d))
        Y = Y[..., 0::2, :, :] - self._lambda(params) * Y[..., 1::2, :, :]
        return split_pairs(left * rms_norm(Y, params.gain, eps=EPS)[0]), state
