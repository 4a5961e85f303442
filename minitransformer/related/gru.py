"""The gated recurrent unit without its reset gate: as steps, and as a weighted average of the past.

    h_i = u_i ⊙ h_{i−1} + (1 − u_i) ⊙ c_i        u near 1 keeps the state, u near 0 replaces it by the candidate c

One convention throughout; the source has both (E62), and writes h̃ for c. Unrolled, a state is an average of candidates
whose weights are products of gates: `gru_coefficients`. Attention keeps the average and makes the weights another way.
"""

from typing import NamedTuple

import numpy as np

from minitransformer.arrays import outer_sum, uniform
from minitransformer.checks import frozen
from minitransformer.functional import LinearPullback, linear, sigmoid
from minitransformer.pullback import Pullback
from minitransformer.related.rnn import first_state
from minitransformer.typing import Array, Float, checked


class GRUParams(NamedTuple):
    """Candidate: W_c (D, E), U_c (E, E), b_c (E,), in the source W, U, b. Gate: W_u, U_u, b_u, there W_x, U_h, b_u."""

    W_c: Array
    U_c: Array
    b_c: Array
    W_u: Array
    U_u: Array
    b_u: Array


class GRUPullback(Pullback):
    """State i reaches the loss as y_i = h_i, along the gated shortcut, and through candidate and gate of step i + 1:

    dh_i = dy_i + dh_{i+1} ⊙ u_{i+1} + da^c_{i+1} U_cᵀ + da^u_{i+1} U_uᵀ,   from the last i to the first, with
    dc_i = dh_i ⊙ (1 − u_i),         da^c_i = dc_i ⊙ (1 − c_i²),
    du_i = dh_i ⊙ (h_{i−1} − c_i),   da^u_i = du_i ⊙ u_i ⊙ (1 − u_i).
    """

    input_c: LinearPullback
    input_u: LinearPullback
    states: Array  # h_0 … h_n
    c: Array
    u: Array
    U_c: Array
    U_u: Array
    started: bool  # was h_0 an argument?

    def __call__(self, dY: Array) -> tuple:
        da_c, da_u = np.empty_like(dY), np.empty_like(dY)
        from_next = np.zeros_like(self.states[..., 0, :])
        for i in reversed(range(1, dY.shape[-2] + 1)):  # token i stands in row i − 1
            dh = dY[..., i - 1, :] + from_next
            dc = dh * (1 - self.u[..., i - 1, :])
            du = dh * (self.states[..., i - 1, :] - self.c[..., i - 1, :])
            da_c[..., i - 1, :], da_u[..., i - 1, :], through = self.step(i, dc, du)
            from_next = dh * self.u[..., i - 1, :] + through
        return self.finish(da_c, da_u, from_next)

    def step(self, i: int, dc: Array, du: Array) -> tuple[Array, Array, Array]:
        """Back through tanh and σ to what stands inside them, and from there to the state before."""
        c, u = self.c[..., i - 1, :], self.u[..., i - 1, :]
        da_c, da_u = dc * (1 - c * c), du * u * (1 - u)
        return da_c, da_u, da_c @ self.U_c.T + da_u @ self.U_u.T

    def finish(self, da_c: Array, da_u: Array, dh_0: Array) -> tuple:
        """From what stands inside tanh and σ, all steps at once, to the parameters and the input."""
        before = self.states[..., :-1, :]
        dX_c, dW_c, db_c = self.input_c(da_c)
        dX_u, dW_u, db_u = self.input_u(da_u)
        dparams = GRUParams(dW_c, outer_sum(before, da_c), db_c, dW_u, outer_sum(before, da_u), db_u)
        return (dparams, dX_c + dX_u, dh_0) if self.started else (dparams, dX_c + dX_u)


@frozen
class GRU:
    """Each coordinate of the state is kept or replaced, as much as its gate says.

        u_i = σ(x_i W_u + h_{i−1} U_u + b_u),   c_i = tanh(x_i W_c + h_{i−1} U_c + b_c)
        h_i = u_i ⊙ h_{i−1} + (1 − u_i) ⊙ c_i,   y_i = h_i

    inputs   D, the width of the rows of X
    width    E, the width of the state
    source   From GRU to attention, gated recurrent networks (no reset gate). The second pair of equations printed there
             swaps u and 1 − u and shifts x by one (E62)
    cost     O(n (D E + E²)) time in n steps that cannot be done at once; remembers X, the states, u and c. Causal.
    raises   ValueError for a width below 1
    """

    inputs: int
    width: int

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> GRUParams:
        """Matrices that keep the variance of a row; biases zero, so that gates start near one half."""
        D, E = self.inputs, self.width
        W_c, U_c, W_u, U_u = (uniform(rng, (rows, E), dtype) for rows in (D, E, D, E))
        return GRUParams(W_c, U_c, np.zeros(E, dtype), W_u, U_u, np.zeros(E, dtype))

    @checked
    def __call__(
        self,
        params: GRUParams,
        X: Float[Array, "*batch n {self.inputs}"],
        h_0: Float[Array, "*batch {self.width}"] | None = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], Pullback]:
        """All states h_1 … h_n; h_0 is zero if not given. Pullback: dY to (dparams, dX), and dh_0 if it was given."""
        p = params
        XW_c, input_c = linear(X, p.W_c, p.b_c)
        XW_u, input_u = linear(X, p.W_u, p.b_u)
        h = first_state(X, self.width, h_0)
        states, all_c, all_u = [h], np.empty_like(XW_c), np.empty_like(XW_u)
        for i in range(X.shape[-2]):
            c = all_c[..., i, :] = np.tanh(XW_c[..., i, :] + h @ p.U_c)
            u, _ = sigmoid(XW_u[..., i, :] + h @ p.U_u)
            all_u[..., i, :] = u
            h = u * h + (1 - u) * c
            states.append(h)
        all_h = np.stack(states, axis=-2)
        return all_h[..., 1:, :], GRUPullback(input_c, input_u, all_h, all_c, all_u, p.U_c, p.U_u, h_0 is not None)


# ------------------------------------------------------------------------------- the same, as a weighted sum


def _weights_of_start(u: Array) -> Array:
    """The weights in h_0, (*batch, n + 1, E): one for itself, none for any candidate."""
    row = np.zeros((*u.shape[:-2], u.shape[-2] + 1, u.shape[-1]), u.dtype)
    row[..., 0, :] = 1
    return row


def _next_weights(row: Array, u_i: Array, i: int) -> Array:
    """The weights in h_i from those in h_{i−1}: keep them as the gate says, and give the newest candidate the rest."""
    row = u_i[..., None, :] * row
    row[..., i, :] = 1 - u_i
    return row


class CoefficientsPullback(Pullback):
    """C_{i,j} = u_i ⊙ C_{i−1,j} for j < i, and C_{i,i} = 1 − u_i. With G_i what reaches row i,

    du_i = Σ_{j<i} G_{i,j} ⊙ C_{i−1,j} − G_{i,i}   and   G_{i−1} = dC_{i−1} + u_i ⊙ G_i.
    """

    u: Array
    C: Array

    def __call__(self, dC: Array) -> Array:
        du = np.empty_like(self.u)
        G = np.zeros_like(dC[..., 0, :, :])
        for i in reversed(range(1, dC.shape[-3])):
            du[..., i - 1, :], G = self.step(i, dC[..., i, :, :] + G)
        return du

    def step(self, i: int, G: Array) -> tuple[Array, Array]:
        """From row i to the gate u_i and to the row before."""
        du = (G * self.C[..., i - 1, :, :]).sum(-2) - G[..., i, :]
        return du, self.u[..., i - 1, None, :] * G


@checked
def gru_coefficients(u: Float[Array, "*batch n E"]):
    """How much of h_0 and of every candidate is in every state of a GRU, coordinate by coordinate.

        h_i = Σ_{j=0…i} C_{i,j} ⊙ c_j,   c_0 = h_0,   C_{i,j} = (∏_{k=j+1…i} u_k) ⊙ (1 − u_j),   C_{i,0} = ∏_{k=1…i} u_k

    The weights of a state sum to one in every coordinate. C is (*batch, n + 1, n + 1, E), both axes counted from h_0.
    u        the gates u_1 … u_n, as in `pullback.u` of a GRU
    source   From GRU to attention, unrolled; the products printed there run over other indices, and fail (E61)
    cost     O(n² E). Causal: later candidates have weight zero.
    """
    rows = [_weights_of_start(u)]
    for i in range(1, u.shape[-2] + 1):
        rows.append(_next_weights(rows[-1], u[..., i - 1, :], i))
    C = np.stack(rows, axis=-3)
    return C, CoefficientsPullback(u, C)


class UnrolledGRUPullback(Pullback):
    """In h_i = Σ_j C_{i,j} ⊙ c_j every candidate reaches every later state directly, not through the states between:

    dc_j = Σ_{i≥j} C_{i,j} ⊙ dh_i,   dC_{i,j} = dh_i ⊙ c_j,   where dh_i = dy_i + da^c_{i+1} U_cᵀ + da^u_{i+1} U_uᵀ.
    """

    gru: GRUPullback
    terms: Array  # h_0, c_1 … c_n
    coefficients: CoefficientsPullback

    @property
    def u(self) -> Array:
        """The gates of all steps."""
        return self.gru.u

    def __call__(self, dY: Array) -> tuple:
        C, terms = self.coefficients.C, self.terms
        da_c, da_u = np.empty_like(dY), np.empty_like(dY)
        dterms, G = np.zeros_like(terms), np.zeros_like(terms)
        from_next = np.zeros_like(terms[..., 0, :])
        for i in reversed(range(1, terms.shape[-2])):
            dh = (dY[..., i - 1, :] + from_next)[..., None, :]
            dterms += C[..., i, :, :] * dh
            du, G = self.coefficients.step(i, dh * terms + G)
            da_c[..., i - 1, :], da_u[..., i - 1, :], from_next = self.gru.step(i, dterms[..., i, :], du)
        return self.gru.finish(da_c, da_u, dterms[..., 0, :] + from_next)


class UnrolledGRU(GRU):
    """The GRU again, same parameters and same numbers, with every state written as a sum over the whole past.

        h_i = Σ_{j=0…i} C_{i,j} ⊙ c_j,   c_0 = h_0

    Gates and candidates still need the state before, so the n steps remain, and the sums cost O(n² E) more.
    source   From GRU to attention, unrolled. The gradient is computed from the sum, and equals the GRU's.
    """

    @checked
    def __call__(
        self,
        params: GRUParams,
        X: Float[Array, "*batch n {self.inputs}"],
        h_0: Float[Array, "*batch {self.width}"] | None = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], UnrolledGRUPullback]:
        """All states, and a pullback, as the GRU gives them."""
        p = params
        XW_c, input_c = linear(X, p.W_c, p.b_c)
        XW_u, input_u = linear(X, p.W_u, p.b_u)
        states, u, rows = [first_state(X, self.width, h_0)], np.empty_like(XW_u), [_weights_of_start(XW_u)]
        terms = np.concatenate([states[0][..., None, :], np.zeros_like(XW_c)], axis=-2)
        for i in range(1, X.shape[-2] + 1):
            terms[..., i, :] = np.tanh(XW_c[..., i - 1, :] + states[-1] @ p.U_c)
            u[..., i - 1, :], _ = sigmoid(XW_u[..., i - 1, :] + states[-1] @ p.U_u)
            rows.append(_next_weights(rows[-1], u[..., i - 1, :], i))
            states.append((rows[-1] * terms).sum(-2))
        all_h = np.stack(states, axis=-2)
        gru = GRUPullback(input_c, input_u, all_h, terms[..., 1:, :], u, p.U_c, p.U_u, h_0 is not None)
        return all_h[..., 1:, :], UnrolledGRUPullback(gru, terms, CoefficientsPullback(u, np.stack(rows, axis=-3)))
