"""The position-wise feed-forward network: two linear layers with a nonlinearity between, the same for every token."""

import math
from typing import Literal, NamedTuple

import numpy as np

from minitransformer import functional
from minitransformer.checks import frozen
from minitransformer.functional import LinearPullback, PointwisePullback, affine, linear, loops_in
from minitransformer.models.subclasses import keeps_up
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Float, checked

Activation = Literal["relu", "gelu", "gelu_tanh"]


class FeedForwardParams(NamedTuple):
    """(D, hidden), (hidden,), (hidden, D), (D,); biases are None in a network without them."""

    W_1: Array
    b_1: Array | None
    W_2: Array
    b_2: Array | None


class FeedForwardPullback(Pullback):
    """Backwards through the three steps."""

    linear_1: LinearPullback
    activation: PointwisePullback
    linear_2: LinearPullback

    def __call__(self, dY: Array) -> tuple[FeedForwardParams, Array]:
        dhidden, dW_2, *db_2 = self.linear_2(dY)
        dX, dW_1, *db_1 = self.linear_1(self.activation(dhidden))
        return FeedForwardParams(dW_1, db_1[0] if db_1 else None, dW_2, db_2[0] if db_2 else None), dX


@frozen
class FeedForward:
    """FFN(x) = f(x W₁ + b₁) W₂ + b₂ for each row; f is ReLU in the paper.

    bias     whether there are b₁ and b₂
    source   Lecture notes, m_i = MLP(x_i), whose input is the attention's output (E32); Aalto 2.1.6;
             CS224N notes, where one of the two linear layers is missing (E71)
    cost     O(n D · hidden)
    """

    width: int
    hidden: int
    activation: Activation = "relu"
    bias: bool = True

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> FeedForwardParams:
        """Weights uniform with variance 2/D and 1/hidden, which keep the variance of a row through ReLU; biases zero."""
        a, b = math.sqrt(6 / self.width), math.sqrt(3 / self.hidden)
        W_1 = rng.uniform(-a, a, (self.width, self.hidden)).astype(dtype)
        W_2 = rng.uniform(-b, b, (self.hidden, self.width)).astype(dtype)
        b_1, b_2 = (np.zeros(n, dtype) if self.bias else None for n in (self.hidden, self.width))
        return FeedForwardParams(W_1, b_1, W_2, b_2)

    @checked
    def __call__(self, params: FeedForwardParams, X: Float[Array, "*batch {self.width}"]):
        """Apply it to every row."""
        U, linear_1 = linear(X, params.W_1, params.b_1)
        F, activation = getattr(functional, self.activation)(U)
        Y, linear_2 = linear(F, params.W_2, params.b_2)
        return Y, FeedForwardPullback(linear_1, activation, linear_2)

    def value(self, params: FeedForwardParams, X: Array) -> Array:
        """Y alone, without a pullback."""
        if not keeps_up(type(self), "value"):
            return self(params, X)[0]
        if self.bias and (loops := loops_in("few_rows")):
            Y = loops.feed_forward(X, *params, self.activation)
            if Y is not None:
                return Y
        F, _ = getattr(functional, self.activation)(affine(X, params.W_1, params.b_1))
        return affine(F, params.W_2, params.b_2)
