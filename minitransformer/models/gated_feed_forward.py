"""The block's second half with a gate in it: one linear map opens and closes another, and a third leads back to the width.

    FFN(x) = (f(x U₁ + b₁) ⊙ (x U₂ + b₂)) W + b

With three matrices in place of two it has as many parameters as the plain one if its hidden width is two thirds of that.
"""

import math
from typing import Literal, NamedTuple

import numpy as np

from minitransformer.checks import frozen
from minitransformer.functional import Gate, GLUPullback, LinearPullback, affine, gated, glu, linear, loops_in
from minitransformer.models.subclasses import keeps_up
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Float, checked

Gated = Literal["glu", "reglu", "geglu", "swiglu", "bilinear"]
GATES: dict[str, Gate] = {"glu": "sigmoid", "reglu": "relu", "geglu": "gelu", "swiglu": "silu", "bilinear": "none"}


class GatedFeedForwardParams(NamedTuple):
    """(D, hidden) and (hidden,) twice, (hidden, D), (D,); biases are None in a network without them."""

    U_1: Array
    b_1: Array | None
    U_2: Array
    b_2: Array | None
    W: Array
    b: Array | None


class GatedFeedForwardPullback(Pullback):
    """Backwards through the last map and the gated unit."""

    glu: GLUPullback
    linear: LinearPullback

    def __call__(self, dY: Array) -> tuple[GatedFeedForwardParams, Array]:
        dF, dW, *db = self.linear(dY)
        dX, dU_1, dU_2, *db_12 = self.glu(dF)
        db_1, db_2, db_3 = (*db_12, *db) or (None, None, None)
        return GatedFeedForwardParams(dU_1, db_1, dU_2, db_2, dW, db_3), dX


@frozen
class GatedFeedForward:
    """FFN(x) = (f(x U₁ + b₁) ⊙ (x U₂ + b₂)) W + b for each row.

    kind     "glu" for f = σ, "reglu", "geglu", "swiglu" for ReLU, GELU and SiLU, "bilinear" for no f
    bias     whether there are b₁, b₂ and b
    source   Shazeer 2020, without biases; the gated unit itself is Borealis II (24)
    cost     O(n D · hidden), and 3 D · hidden parameters
    """

    width: int
    hidden: int
    kind: Gated = "swiglu"
    bias: bool = True

    @property
    def gate(self) -> Gate:
        """The name of f, as `glu` takes it."""
        return GATES[self.kind]

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> GatedFeedForwardParams:
        """Weights uniform with variance 1/D, 1/D and 1/hidden, biases zero.

        A row of variance 1 then comes out with about the variance E f(a)², for a ~ N(0, 1).
        """
        a, c = math.sqrt(3 / self.width), math.sqrt(3 / self.hidden)
        U_1, U_2 = (rng.uniform(-a, a, (self.width, self.hidden)).astype(dtype) for _ in range(2))
        W = rng.uniform(-c, c, (self.hidden, self.width)).astype(dtype)
        b_1, b_2, b = (np.zeros(n, dtype) if self.bias else None for n in (self.hidden, self.hidden, self.width))
        return GatedFeedForwardParams(U_1, b_1, U_2, b_2, W, b)

    @checked
    def __call__(self, params: GatedFeedForwardParams, X: Float[Array, "*batch {self.width}"]):
        """Apply it to every row."""
        F, unit = glu(X, params.U_1, params.U_2, params.b_1, params.b_2, gate=self.gate)
        Y, last = linear(F, params.W, params.b)
        return Y, GatedFeedForwardPullback(unit, last)

    def value(self, params: GatedFeedForwardParams, X: Array) -> Array:
        """Y alone, without a pullback."""
        if not keeps_up(type(self), "value"):
            return self(params, X)[0]
        if self.bias and (loops := loops_in("few_rows")):
            Y = loops.gated_feed_forward(X, *params, self.gate)
            if Y is not None:
                return Y
        F, _ = gated(affine(X, params.U_1, params.b_1), affine(X, params.U_2, params.b_2), self.gate)
        return affine(F, params.W, params.b)
