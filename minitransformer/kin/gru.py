"""The gated recurrent unit without its reset gate: as steps, and as a weighted average of the past.

    h_t = u_t ⊙ h_{t−1} + (1 − u_t) ⊙ c_t        u near 1 keeps the state, u near 0 replaces it by the candidate c

One convention throughout; the source has both (E62), and writes h̃ for c. Unrolled, a state is an average of candidates
whose weights are products of gates: `gru_coefficients`. Attention keeps the average and makes the weights another way.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from minitransformer.functional import LinearPullback, linear, sigmoid
from minitransformer.kin.rnn import first_state, outer_sum, uniform
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Float, checked


class GRUParams(NamedTuple):
    """Candidate: W_c (D, d), U_c (d, d), b_c (d,), in the source W, U, b. Gate: W_u, U_u, b_u, there W_x, U_h, b_u."""

    W_c: Array
    U_c: Array
    b_c: Array
    W_u: Array
    U_u: Array
    b_u: Array


class GRUPullback(NamedTuple):
    """State t reaches the loss as an output, along the gated shortcut, and through candidate and gate of step t + 1:

    dh_t = dH_t + dh_{t+1} ⊙ u_{t+1} + da^c_{t+1} U_cᵀ + da^u_{t+1} U_uᵀ,   from the last t to the first, with
    dc_t = dh_t ⊙ (1 − u_t),         da^c_t = dc_t ⊙ (1 − c_t²),
    du_t = dh_t ⊙ (h_{t−1} − c_t),   da^u_t = du_t ⊙ u_t ⊙ (1 − u_t).
    """

    input_c: LinearPullback
    input_u: LinearPullback
    states: Array  # h_0 … h_n
    c: Array
    u: Array
    U_c: Array
    U_u: Array
    started: bool  # was h_0 an argument?

    def __call__(self, dH: Array) -> tuple:
        dA_c, dA_u = np.empty_like(dH), np.empty_like(dH)
        dh = np.zeros_like(self.states[..., 0, :])
        for t in reversed(range(1, dH.shape[-2] + 1)):  # token t stands in row t − 1
            dh = dh + dH[..., t - 1, :]
            dc = dh * (1 - self.u[..., t - 1, :])
            du = dh * (self.states[..., t - 1, :] - self.c[..., t - 1, :])
            dA_c[..., t - 1, :], dA_u[..., t - 1, :], around = self.step(t, dc, du)
            dh = dh * self.u[..., t - 1, :] + around
        return self.finish(dA_c, dA_u, dh)

    def step(self, t: int, dc: Array, du: Array) -> tuple[Array, Array, Array]:
        """Back through tanh and σ to what stands inside them, and from there to the state before."""
        c, u = self.c[..., t - 1, :], self.u[..., t - 1, :]
        da_c, da_u = dc * (1 - c * c), du * u * (1 - u)
        return da_c, da_u, da_c @ self.U_c.T + da_u @ self.U_u.T

    def finish(self, dA_c: Array, dA_u: Array, dh_0: Array) -> tuple:
        """From what stands inside tanh and σ, all steps at once, to the parameters and the input."""
        before = self.states[..., :-1, :]
        dX_c, dW_c, db_c = self.input_c(dA_c)
        dX_u, dW_u, db_u = self.input_u(dA_u)
        dparams = GRUParams(dW_c, outer_sum(before, dA_c), db_c, dW_u, outer_sum(before, dA_u), db_u)
        return (dparams, dX_c + dX_u, dh_0) if self.started else (dparams, dX_c + dX_u)


@dataclass(frozen=True)
class GRU:
    """Each coordinate of the state is kept or replaced, as much as its gate says.

        u_t = σ(x_t W_u + h_{t−1} U_u + b_u),   c_t = tanh(x_t W_c + h_{t−1} U_c + b_c)
        h_t = u_t ⊙ h_{t−1} + (1 − u_t) ⊙ c_t

    inputs   D, the width of the rows of X
    width    d, the width of the state
    source   From GRU to attention, gated recurrent networks (no reset gate). The second pair of equations printed there
             swaps u and 1 − u and shifts x by one (E62)
    cost     O(n (D d + d²)) time in n steps that cannot be done at once; remembers X, H, u and c. Causal.
    raises   ValueError for a width below 1
    """

    inputs: int
    width: int

    def __post_init__(self) -> None:
        if min(self.inputs, self.width) < 1:
            raise ValueError(f"inputs and width must be at least 1, got {self.inputs} and {self.width}")

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> GRUParams:
        """Matrices that keep the variance of a row; biases zero, so that gates start near one half."""
        D, d = self.inputs, self.width
        W_c, U_c, W_u, U_u = (uniform(rng, (rows, d), dtype) for rows in (D, d, D, d))
        return GRUParams(W_c, U_c, np.zeros(d, dtype), W_u, U_u, np.zeros(d, dtype))

    @checked
    def __call__(
        self,
        params: GRUParams,
        X: Float[Array, "*batch n {self.inputs}"],
        h_0: Float[Array, "*batch {self.width}"] | None = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], Pullback]:
        """All states h_1 … h_n; h_0 is zero if not given. Pullback: dH to (dparams, dX), and dh_0 if it was given."""
        p = params
        XW_c, input_c = linear(X, p.W_c, p.b_c)
        XW_u, input_u = linear(X, p.W_u, p.b_u)
        h = first_state(X, self.width, h_0)
        states, C, U = [h], np.empty_like(XW_c), np.empty_like(XW_u)
        for t in range(X.shape[-2]):
            c = C[..., t, :] = np.tanh(XW_c[..., t, :] + h @ p.U_c)
            u, _ = sigmoid(XW_u[..., t, :] + h @ p.U_u)
            U[..., t, :] = u
            h = u * h + (1 - u) * c
            states.append(h)
        H = np.stack(states, axis=-2)
        return H[..., 1:, :], GRUPullback(input_c, input_u, H, C, U, p.U_c, p.U_u, h_0 is not None)


# ------------------------------------------------------------------------------- the same, as a weighted sum


def _weights_of_start(u: Array) -> Array:
    """The weights in h_0, (*batch, n + 1, d): one for itself, none for any candidate."""
    row = np.zeros((*u.shape[:-2], u.shape[-2] + 1, u.shape[-1]), u.dtype)
    row[..., 0, :] = 1
    return row


def _next_weights(row: Array, u_t: Array, t: int) -> Array:
    """The weights in h_t from those in h_{t−1}: keep them as the gate says, and give the newest candidate the rest."""
    row = u_t[..., None, :] * row
    row[..., t, :] = 1 - u_t
    return row


class CoefficientsPullback(NamedTuple):
    """C_{t,i} = u_t ⊙ C_{t−1,i} for i < t, and C_{t,t} = 1 − u_t. With G_t what reaches row t,

    du_t = Σ_{i<t} G_{t,i} ⊙ C_{t−1,i} − G_{t,t}   and   G_{t−1} = dC_{t−1} + u_t ⊙ G_t.
    """

    u: Array
    C: Array

    def __call__(self, dC: Array) -> Array:
        du = np.empty_like(self.u)
        G = np.zeros_like(dC[..., 0, :, :])
        for t in reversed(range(1, dC.shape[-3])):
            du[..., t - 1, :], G = self.step(t, dC[..., t, :, :] + G)
        return du

    def step(self, t: int, G: Array) -> tuple[Array, Array]:
        """From row t to the gate u_t and to the row before."""
        du = (G * self.C[..., t - 1, :, :]).sum(-2) - G[..., t, :]
        return du, self.u[..., t - 1, None, :] * G


@checked
def gru_coefficients(u: Float[Array, "*batch n d"]):
    """How much of h_0 and of every candidate is in every state of a GRU, coordinate by coordinate.

        h_t = Σ_{i=0…t} C_{t,i} ⊙ c_i,   c_0 = h_0,   C_{t,i} = (∏_{j=i+1…t} u_j) ⊙ (1 − u_i),   C_{t,0} = ∏_{j=1…t} u_j

    The weights of a state sum to one in every coordinate. C is (*batch, n + 1, n + 1, d), both axes counted from h_0.
    u        the gates u_1 … u_n, as in `pullback.u` of a GRU
    source   From GRU to attention, unrolled; the products printed there run over other indices, and fail (E61)
    cost     O(n² d). Causal: later candidates have weight zero.
    """
    rows = [_weights_of_start(u)]
    for t in range(1, u.shape[-2] + 1):
        rows.append(_next_weights(rows[-1], u[..., t - 1, :], t))
    C = np.stack(rows, axis=-3)
    return C, CoefficientsPullback(u, C)


class UnrolledGRUPullback(NamedTuple):
    """In h_t = Σ_i C_{t,i} ⊙ c_i every candidate reaches every later state directly, not through the states between:

    dc_i = Σ_{t≥i} C_{t,i} ⊙ dh_t,   dC_{t,i} = dh_t ⊙ c_i,   where dh_t = dH_t + da^c_{t+1} U_cᵀ + da^u_{t+1} U_uᵀ.
    """

    gru: GRUPullback
    terms: Array  # h_0, c_1 … c_n
    coefficients: CoefficientsPullback

    @property
    def u(self) -> Array:
        """The gates."""
        return self.gru.u

    def __call__(self, dH: Array) -> tuple:
        C, terms = self.coefficients.C, self.terms
        dA_c, dA_u = np.empty_like(dH), np.empty_like(dH)
        dterms, G = np.zeros_like(terms), np.zeros_like(terms)
        around = np.zeros_like(terms[..., 0, :])
        for t in reversed(range(1, terms.shape[-2])):
            dh = (dH[..., t - 1, :] + around)[..., None, :]
            dterms += C[..., t, :, :] * dh
            du, G = self.coefficients.step(t, dh * terms + G)
            dA_c[..., t - 1, :], dA_u[..., t - 1, :], around = self.gru.step(t, dterms[..., t, :], du)
        return self.gru.finish(dA_c, dA_u, dterms[..., 0, :] + around)


class UnrolledGRU(GRU):
    """The GRU again, same parameters and same numbers, with every state written as a sum over the whole past.

        h_t = Σ_{i=0…t} C_{t,i} ⊙ c_i,   c_0 = h_0

    Gates and candidates still need the state before, so the n steps remain, and the sums cost O(n² d) more.
    source   From GRU to attention, unrolled. The gradient is computed from the sum, and equals the GRU's.
    """

    @checked
    def __call__(
        self,
        params: GRUParams,
        X: Float[Array, "*batch n {self.inputs}"],
        h_0: Float[Array, "*batch {self.width}"] | None = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], UnrolledGRUPullback]:
        """As for the GRU."""
        p = params
        XW_c, input_c = linear(X, p.W_c, p.b_c)
        XW_u, input_u = linear(X, p.W_u, p.b_u)
        states, U, rows = [first_state(X, self.width, h_0)], np.empty_like(XW_u), [_weights_of_start(XW_u)]
        terms = np.concatenate([states[0][..., None, :], np.zeros_like(XW_c)], axis=-2)
        for t in range(1, X.shape[-2] + 1):
            terms[..., t, :] = np.tanh(XW_c[..., t - 1, :] + states[-1] @ p.U_c)
            U[..., t - 1, :], _ = sigmoid(XW_u[..., t - 1, :] + states[-1] @ p.U_u)
            rows.append(_next_weights(rows[-1], U[..., t - 1, :], t))
            states.append((rows[-1] * terms).sum(-2))
        H = np.stack(states, axis=-2)
        gru = GRUPullback(input_c, input_u, H, terms[..., 1:, :], U, p.U_c, p.U_u, h_0 is not None)
        return H[..., 1:, :], UnrolledGRUPullback(gru, terms, CoefficientsPullback(U, np.stack(rows, axis=-3)))
