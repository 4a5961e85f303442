"""Sums of rows, E X, with one E for all heads or one for each: a linear layer whose weights are the rows of X.

Like `linear`, it runs on the threads of the compiled loops where there are any. BLAS would start threads of its own, which
get in the way of the loops that come next.
"""

import math

import numpy as np

from minitransformer.functional import LinearPullback, linear
from minitransformer.pullback import Pullback
from minitransformer.typing import Array


class MixPullback(Pullback):
    """δ(E X) = δE X + E δX, so dE = dY Xᵀ, summed over what shares this E, and dX = Eᵀ dY: those of `linear`, of each E."""

    of_each: tuple[LinearPullback, ...]
    E_shape: tuple[int, ...]

    def __call__(self, dY: Array) -> tuple[Array, Array]:
        if len(self.E_shape) == 2:
            dE, dX = self.of_each[0](_in_front(dY))
            return dE, _back(dX, (*dY.shape[:-2], dX.shape[0], dY.shape[-1]))
        both = [MixPullback((pullback,), self.E_shape[1:])(dY[..., h, :, :]) for h, pullback in enumerate(self.of_each)]
        return np.stack([dE for dE, _ in both]), np.stack([dX for _, dX in both], -3)


def _in_front(X: Array) -> Array:
    """(*batch, m, d) as (m, everything else)."""
    return np.moveaxis(X, -2, 0).reshape(X.shape[-2], math.prod(X.shape[:-2]) * X.shape[-1])


def _back(X: Array, shape: tuple[int, ...]) -> Array:
    """The inverse of `_in_front`: (m, everything else) to (*batch, m, d), the given shape."""
    *batch, m, d = shape
    return np.ascontiguousarray(np.moveaxis(X.reshape(m, *batch, d), 0, -2))


def mix(E: Array, X: Array) -> tuple[Array, MixPullback]:
    """E X for E (k, m), or (H, k, m) with one for each head, and X (*batch, m, d). Pullback: dY to (dE, dX)."""
    if E.ndim == 2:
        Y, pullback = linear(np.ascontiguousarray(E), _in_front(X))
        return _back(Y, (*X.shape[:-2], len(E), X.shape[-1])), MixPullback((pullback,), E.shape)
    each = [mix(E[h], X[..., h, :, :]) for h in range(len(E))]
    return np.stack([Y for Y, _ in each], -3), MixPullback(tuple(p.of_each[0] for _, p in each), E.shape)
