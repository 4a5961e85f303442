"""The long short-term memory: a cell that is kept and added to, and a state that is read from it.

    s_i = u_i ⊙ s_{i−1} + t_i ⊙ c_i,   h_i = o_i ⊙ tanh(s_i)       u keeps, t takes in, o gives out

The names elsewhere are f, i and o for the gates (forget, input, output), c for the cell and g for the candidate.
"""

from typing import NamedTuple

import numpy as np

from minitransformer.arrays import one_dtype, outer_sum
from minitransformer.checks import frozen
from minitransformer.functional import LinearPullback, linear, sigmoid
from minitransformer.pullback import Pullback
from minitransformer.related.rnn import RNN, RNNParams, first_state
from minitransformer.typing import Array, Float, checked


class LSTMParams(NamedTuple):
    """Four times W (D, E), U (E, E) and b (E,): of the candidate, and of the gates that keep, take in and give out."""

    c: RNNParams
    u: RNNParams
    t: RNNParams
    o: RNNParams


class LSTMPullback(Pullback):
    """State i reaches the loss as y_i = h_i, and through all four maps of step i + 1; cell i through h_i and through cell i + 1:

    dh_i = dy_i + Σ_a da_{i+1} U_aᵀ,   a each of the four,   from the last i to the first, with
    ds_i = dh_i ⊙ o_i ⊙ (1 − tanh²(s_i)) + ds_{i+1} ⊙ u_{i+1},
    dc_i = ds_i ⊙ t_i,   du_i = ds_i ⊙ s_{i−1},   dt_i = ds_i ⊙ c_i,   do_i = dh_i ⊙ tanh(s_i).
    """

    inputs: tuple[LinearPullback, ...]  # of the four maps
    states: Array  # h_0 … h_n
    cells: Array  # s_0 … s_n
    opened: Array  # c, u, t and o of all steps, (4, *batch, n, E)
    U: tuple[Array, ...]
    started: tuple[bool, bool]  # were h_0 and s_0 arguments?

    def __call__(self, dY: Array) -> tuple:
        da = np.empty_like(self.opened)
        dh_next, ds_next = np.zeros_like(self.states[..., 0, :]), np.zeros_like(self.cells[..., 0, :])
        for i in reversed(range(1, dY.shape[-2] + 1)):  # token i stands in row i − 1
            c, u, t, o = self.opened[..., i - 1, :]
            shown = np.tanh(self.cells[..., i, :])
            dh = dY[..., i - 1, :] + dh_next
            ds = dh * o * (1 - shown * shown) + ds_next
            dc, du, dt, do = ds * t, ds * self.cells[..., i - 1, :], ds * c, dh * shown
            da[..., i - 1, :] = dc * (1 - c * c), du * u * (1 - u), dt * t * (1 - t), do * o * (1 - o)
            dh_next = sum(a @ U.T for a, U in zip(da[..., i - 1, :], self.U, strict=True))
            ds_next = ds * u
        return self.finish(da, dh_next, ds_next)

    def finish(self, da: Array, dh_0: Array, ds_0: Array) -> tuple:
        """From what stands inside tanh and σ, all steps at once, to the parameters and the input."""
        before, found = self.states[..., :-1, :], [input(a) for input, a in zip(self.inputs, da, strict=True)]
        dX = sum(of_X for of_X, _, _ in found)
        maps = [RNNParams(dW, outer_sum(before, a), db) for (_, dW, db), a in zip(found, da, strict=True)]
        first = [d for d, given in zip((dh_0, ds_0), self.started, strict=True) if given]
        return LSTMParams(*maps), dX, *first


@frozen
class LSTM:
    """What is kept and what is taken in have gates of their own, and so has what is shown of it.

        c_i = tanh(x_i W_c + h_{i−1} U_c + b_c),   u_i, t_i, o_i = σ(x_i W + h_{i−1} U + b), each with its own W, U and b
        s_i = u_i ⊙ s_{i−1} + t_i ⊙ c_i,   h_i = o_i ⊙ tanh(s_i),   y_i = h_i

    inputs   D, the width of the rows of X
    width    E, the width of state and cell
    source   named in From GRU to attention; Hochreiter and Schmidhuber 1997, with the gate u of Gers et al. 2000
    cost     O(n (D E + E²)) time in n steps that cannot be done at once; remembers X, states, cells and gates. Causal.
    raises   ValueError for a width below 1
    """

    inputs: int
    width: int

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> LSTMParams:
        """Matrices that keep the variance of a row; biases zero, so that gates start near one half."""
        one = RNN(self.inputs, self.width)
        return LSTMParams(*(one.init(rng, dtype) for _ in range(4)))

    @checked
    def __call__(
        self,
        params: LSTMParams,
        X: Float[Array, "*batch n {self.inputs}"],
        h_0: Float[Array, "*batch {self.width}"] | None = None,
        s_0: Float[Array, "*batch {self.width}"] | None = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], LSTMPullback]:
        """All states h_1 … h_n; h_0 and s_0 are zero if not given. Pullback: dY to (dparams, dX), and dh_0, ds_0 if given."""
        one_dtype(X=X, h_0=h_0, s_0=s_0)
        XW, inputs = zip(*(linear(X, p.W, p.b) for p in params), strict=True)
        states, cells = [first_state(X, self.width, h_0)], [first_state(X, self.width, s_0)]
        opened = np.empty((4, *XW[0].shape), X.dtype)
        for i in range(X.shape[-2]):
            a = [x[..., i, :] + states[-1] @ p.U for x, p in zip(XW, params, strict=True)]
            c, (u, t, o) = np.tanh(a[0]), (sigmoid(gate)[0] for gate in a[1:])
            opened[..., i, :] = c, u, t, o
            cells.append(u * cells[-1] + t * c)
            states.append(o * np.tanh(cells[-1]))
        H, S = np.stack(states, axis=-2), np.stack(cells, axis=-2)
        U, started = tuple(p.U for p in params), (h_0 is not None, s_0 is not None)
        return H[..., 1:, :], LSTMPullback(inputs, H, S, opened, U, started)
