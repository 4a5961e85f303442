"""The word window: every token sees its neighbours only. A one-dimensional convolution, with a nonlinearity."""

from typing import Annotated, NamedTuple

import numpy as np

from minitransformer.arrays import outer_sum, uniform
from minitransformer.checks import frozen
from minitransformer.functional import PointwisePullback, tanh
from minitransformer.pullback import Pullback
from minitransformer.ranges import Range
from minitransformer.typing import Array, Float, checked


class WordWindowParams(NamedTuple):
    """One matrix for each offset, W (w, D, E), and b (E,)."""

    W: Array
    b: Array


class WordWindowPullback(Pullback):
    """a_i = Σ_k x_{i+k−r} W_k + b, so dW_k = Σ_i x_{i+k−r}ᵀ da_i, db = Σ_i da_i, and a token collects from every window

    that it stands in: dx_j = Σ_k da_{j−k+r} W_kᵀ.
    """

    padded: Array
    W: Array
    activation: PointwisePullback

    def __call__(self, dY: Array) -> tuple[WordWindowParams, Array]:
        da = self.activation(dY)
        n, r = dY.shape[-2], len(self.W) // 2
        dW = np.empty_like(self.W)
        dpadded = np.zeros_like(self.padded)
        for k, W_k in enumerate(self.W):
            dW[k] = outer_sum(self.padded[..., k : k + n, :], da)
            dpadded[..., k : k + n, :] += da @ W_k.T
        db = da.reshape(-1, da.shape[-1]).sum(0)
        return WordWindowParams(dW, db), dpadded[..., r : r + n, :]


@frozen
class WordWindow:
    """A new row for each token, made from the w tokens around it.

        y_i = tanh(Σ_k x_{i+k−r} W_k + b),    k = 0 … w − 1,   r = (w − 1)/2,   zeros beyond the ends

    Stacked, each layer lets a row depend on r more tokens to each side of it, and on no other.
    inputs, width    D and E, the widths of the rows of X and Y
    window           w, odd
    source           Lecture notes A.2, where w = 5
    cost             O(n w D E), all tokens at once. Not causal.
    raises           ValueError for a window that is even or below 1
    """

    inputs: int
    width: int
    window: Annotated[int, Range("odd, with a token in the middle", lambda w: w > 0 and w % 2 == 1)] = 5

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> WordWindowParams:
        """Matrices that together keep the variance of a row; b zero."""
        W = uniform(rng, (1, self.window * self.inputs, self.width), dtype)
        return WordWindowParams(W.reshape(self.window, self.inputs, self.width), np.zeros(self.width, dtype))

    @checked
    def __call__(
        self, params: WordWindowParams, X: Float[Array, "*batch n {self.inputs}"]
    ) -> tuple[Float[Array, "*batch n {self.width}"], WordWindowPullback]:
        """All rows at once. Pullback: dY to (dparams, dX)."""
        n, r = X.shape[-2], self.window // 2
        padded = np.zeros((*X.shape[:-2], n + 2 * r, self.inputs), X.dtype)
        padded[..., r : r + n, :] = X
        a = sum(padded[..., k : k + n, :] @ W_k for k, W_k in enumerate(params.W)) + params.b
        Y, activation = tanh(a)
        return Y, WordWindowPullback(padded, params.W, activation)
