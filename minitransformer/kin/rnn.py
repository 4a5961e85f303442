"""The recurrent network: one state, carried from token to token."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from minitransformer.functional import LinearPullback, linear
from minitransformer.typing import Array, Float, checked


def uniform(rng: np.random.Generator, shape: tuple[int, ...], dtype: type) -> Array:
    """A matrix (or a stack of them) with entries of variance 1 / rows: it keeps the variance of what it multiplies."""
    return rng.uniform(-1, 1, shape).astype(dtype) * dtype(math.sqrt(3 / shape[-2]))


def first_state(X: Array, width: int, h_0: Array | None) -> Array:
    """The state before the first token: the one given, or zeros."""
    return np.zeros((*X.shape[:-2], width), X.dtype) if h_0 is None else h_0


def outer_sum(X: Array, dA: Array) -> Array:
    """Σ x_tᵀ da_t over tokens and batch: the gradient of W in a = x W."""
    return X.reshape(-1, X.shape[-1]).T @ dA.reshape(-1, dA.shape[-1])


class RNNParams(NamedTuple):
    """W (D, d) reads the input, U (d, d) the state before, b (d,)."""

    W: Array
    U: Array
    b: Array


class RNNPullback(NamedTuple):
    """h_t = tanh a_t with a_t = x_t W + h_{t−1} U + b. State t reaches the loss as an output, and through step t + 1:

    dh_t = dH_t + da_{t+1} Uᵀ,   da_t = dh_t ⊙ (1 − h_t²),   from the last t to the first. Then
    dU = Σ h_{t−1}ᵀ da_t, and W, b and X are those of a linear layer.
    """

    input: LinearPullback
    states: Array  # h_0 … h_n
    U: Array
    started: bool  # was h_0 an argument?

    def __call__(self, dH: Array) -> tuple:
        dA = np.empty_like(dH)
        dh = np.zeros_like(self.states[..., 0, :])
        for t in reversed(range(dH.shape[-2])):
            dA[..., t, :] = (dH[..., t, :] + dh) * (1 - self.states[..., t + 1, :] ** 2)
            dh = dA[..., t, :] @ self.U.T
        dX, dW, db = self.input(dA)
        dparams = RNNParams(dW, outer_sum(self.states[..., :-1, :], dA), db)
        return (dparams, dX, dh) if self.started else (dparams, dX)


@dataclass(frozen=True)
class RNN:
    """The state is made anew at every token, from the token and the state before.

        h_t = tanh(x_t W + h_{t−1} U + b)

    inputs   D, the width of the rows of X
    width    d, the width of the state
    source   Lecture notes A.1; CS224N notes, linear interaction distance
    cost     O(n (D d + d²)) time in n steps that cannot be done at once; remembers X and H. Causal.
    raises   ValueError for a width below 1
    """

    inputs: int
    width: int

    def __post_init__(self) -> None:
        if min(self.inputs, self.width) < 1:
            raise ValueError(f"inputs and width must be at least 1, got {self.inputs} and {self.width}")

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> RNNParams:
        """Matrices that keep the variance of a row; b zero."""
        D, d = self.inputs, self.width
        return RNNParams(uniform(rng, (D, d), dtype), uniform(rng, (d, d), dtype), np.zeros(d, dtype))

    @checked
    def __call__(
        self,
        params: RNNParams,
        X: Float[Array, "*batch n {self.inputs}"],
        h_0: Float[Array, "*batch {self.width}"] | None = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], RNNPullback]:
        """All states h_1 … h_n; h_0 is zero if not given. Pullback: dH to (dparams, dX), and dh_0 if it was given."""
        XW, input = linear(X, params.W, params.b)
        states = [first_state(X, self.width, h_0)]
        for t in range(X.shape[-2]):
            states.append(np.tanh(XW[..., t, :] + states[-1] @ params.U))
        H = np.stack(states, axis=-2)
        return H[..., 1:, :], RNNPullback(input, H, params.U, h_0 is not None)
