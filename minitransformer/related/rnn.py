"""The recurrent network: one state, carried from token to token."""

from typing import NamedTuple

import numpy as np

from minitransformer.arrays import one_dtype, outer_sum, uniform
from minitransformer.checks import frozen
from minitransformer.functional import LinearPullback, linear
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Float, checked


def first_state(X: Array, width: int, h_0: Array | None) -> Array:
    """The state before the first token: the one given, or zeros. Raises TypeError for one of another dtype than X."""
    one_dtype(X=X, h_0=h_0)
    return np.zeros((*X.shape[:-2], width), X.dtype) if h_0 is None else h_0


class RNNParams(NamedTuple):
    """W (D, E) reads the input, U (E, E) the state before, b (E,)."""

    W: Array
    U: Array
    b: Array


class RNNPullback(Pullback):
    """h_i = tanh a_i with a_i = x_i W + h_{i−1} U + b. State i reaches the loss as y_i = h_i, and through step i + 1:

    dh_i = dy_i + da_{i+1} Uᵀ,   da_i = dh_i ⊙ (1 − h_i²),   from the last i to the first. Then
    dU = Σ h_{i−1}ᵀ da_i, and W, b and X are those of a linear layer.
    """

    input: LinearPullback
    states: Array  # h_0 … h_n
    U: Array
    started: bool  # was h_0 an argument?

    def __call__(self, dY: Array) -> tuple:
        da, from_next = np.empty_like(dY), np.zeros_like(self.states[..., 0, :])
        for i in reversed(range(1, dY.shape[-2] + 1)):  # token i stands in row i − 1
            dh = dY[..., i - 1, :] + from_next
            da[..., i - 1, :] = dh * (1 - self.states[..., i, :] ** 2)
            from_next = da[..., i - 1, :] @ self.U.T
        dX, dW, db = self.input(da)
        dparams = RNNParams(dW, outer_sum(self.states[..., :-1, :], da), db)
        return (dparams, dX, from_next) if self.started else (dparams, dX)


@frozen
class RNN:
    """The state is made anew at every token, from the token and the state before.

        h_i = tanh(x_i W + h_{i−1} U + b),    y_i = h_i

    inputs   D, the width of the rows of X
    width    E, the width of the state
    source   Lecture notes A.1; CS224N notes, linear interaction distance
    cost     O(n (D E + E²)) time in n steps that cannot be done at once; remembers X and the states. Causal.
    raises   ValueError for a width below 1
    """

    inputs: int
    width: int

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> RNNParams:
        """Matrices that keep the variance of a row; b zero."""
        D, E = self.inputs, self.width
        return RNNParams(uniform(rng, (D, E), dtype), uniform(rng, (E, E), dtype), np.zeros(E, dtype))

    @checked
    def __call__(
        self,
        params: RNNParams,
        X: Float[Array, "*batch n {self.inputs}"],
        h_0: Float[Array, "*batch {self.width}"] | None = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], RNNPullback]:
        """All states h_1 … h_n; h_0 is zero if not given. Pullback: dY to (dparams, dX), and dh_0 if it was given."""
        XW, input = linear(X, params.W, params.b)
        states = [first_state(X, self.width, h_0)]
        for i in range(X.shape[-2]):
            states.append(np.tanh(XW[..., i, :] + states[-1] @ params.U))
        all_states = np.stack(states, axis=-2)
        return all_states[..., 1:, :], RNNPullback(input, all_states, params.U, h_0 is not None)
