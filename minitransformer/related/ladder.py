"""From the GRU to attention in nine rungs.

    1  GRU                       h_i = u_i ⊙ h_{i−1} + (1 − u_i) ⊙ c_i,   y_i = h_i
    2  ... unrolled              y_i = Σ_{j≤i} C_{i,j} ⊙ c_j                  the same numbers
    3  free the weights          y_i = Σ_{j≤i} A_{ij} c_j,   S_ij = ⟨x_i W_q, c_j⟩/√E
    4  free the candidates       c_j = f(x_j)                                no recurrence from here on
    5  separate Q, K and V       Q = F W_q, K = F W_k, V = F W_v,   y_i = Σ_{j≤i} A_{ij} v_j
    6  H heads                   y_i = [y_i¹; …; y_iᴴ]
    7  look both ways            the sums run over all j
    8  add positions             f(x_j) + π_j for f(x_j), in queries, keys and values
    9  a nonlinearity after      g([y_i¹; …; y_iᴴ]), or [g(y_i¹); …; g(y_iᴴ)]

Throughout, A is the softmax of the scores S, and F has the rows f(x_j) = tanh(x_j W + b). The source calls the query t
and the key i. A rung is a chain of layers: `rungs` lists them.
Every step but the second changes the model: the weights of a GRU are vectors, one number per coordinate, those of
attention are one number per head.
source   From GRU to attention
"""

from typing import NamedTuple

import numpy as np

from minitransformer.arrays import outer_sum, refuse_indivisible, uniform
from minitransformer.attention import dot_product_attention, merge_heads, split_heads
from minitransformer.attention.around import AroundAttention
from minitransformer.checks import frozen
from minitransformer.functional import LinearPullback, PointwisePullback, linear, relu, tanh
from minitransformer.positions.absolute import LearnedPositions
from minitransformer.pullback import Layer, Pullback
from minitransformer.related.gru import GRU, UnrolledGRU
from minitransformer.typing import Array, Float, checked

# ------------------------------------------------------------------------------------- 3: free the weights


class FreeWeightsParams(NamedTuple):
    """Candidate: W_c (D, E), U_c (E, E), b_c (E,). W_q (D, E) makes a query of the input."""

    W_c: Array
    U_c: Array
    b_c: Array
    W_q: Array


class FreeWeightsPullback(Pullback):
    """Candidate j is key and value of every step i ≥ j, so dc_j is complete when backpropagation arrives at step j:

    dc_j = Σ_{i≥j} (dk_{i,j} + dv_{i,j}),   da_j = dc_j ⊙ (1 − c_j²),   dh_{j−1} = dy_{j−1} + da_j U_cᵀ.
    """

    input: LinearPullback
    query: LinearPullback
    c: Array
    states: Array  # h_1 … h_n
    U_c: Array
    attention: tuple[Pullback, ...]  # one for each step

    @property
    def A(self) -> Array:  # noqa: N802
        """The weights, (*batch, n, n), zero above the diagonal."""
        n = len(self.attention)
        A = np.zeros((*self.c.shape[:-1], n), self.c.dtype)
        for i, step in enumerate(self.attention):
            A[..., i : i + 1, : i + 1] = step.A
        return A

    def __call__(self, dY: Array) -> tuple[FreeWeightsParams, Array]:
        da, dQ, dc = np.empty_like(dY), np.empty_like(dY), np.zeros_like(dY)
        from_next = 0.0
        for i, step in reversed(list(enumerate(self.attention))):
            dh = (dY[..., i, :] + from_next)[..., None, :]
            dQ[..., i : i + 1, :], dK, dV = step(dh)
            dc[..., : i + 1, :] += dK + dV
            da[..., i, :] = dc[..., i, :] * (1 - self.c[..., i, :] ** 2)
            from_next = da[..., i, :] @ self.U_c.T
        dX_c, dW_c, db_c = self.input(da)
        dX_q, dW_q = self.query(dQ)
        dU_c = outer_sum(self.states[..., :-1, :], da[..., 1:, :])  # h_0 is zero
        return FreeWeightsParams(dW_c, dU_c, db_c, dW_q), dX_c + dX_q


@frozen
class FreeWeights:
    """Rung 3: the weights no longer come from gates, the candidates still come from the state.

        c_i = tanh(x_i W_c + h_{i−1} U_c + b_c),   A_{ij} = softmax_{j≤i} ⟨x_i W_q, c_j⟩/√E,   h_i = Σ_{j≤i} A_{ij} c_j

    inputs, width    D and E
    source           From GRU to attention, "free the dependent weights"
    cost             O(n² E + n (D E + E²)), in n steps that cannot be done at once. Causal.
    """

    inputs: int
    width: int

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> FreeWeightsParams:
        """Matrices that keep the variance of a row; b zero."""
        D, E = self.inputs, self.width
        W_c, U_c, W_q = (uniform(rng, (rows, E), dtype) for rows in (D, E, D))
        return FreeWeightsParams(W_c, U_c, np.zeros(E, dtype), W_q)

    @checked
    def __call__(
        self, params: FreeWeightsParams, X: Float[Array, "*batch n {self.inputs}"]
    ) -> tuple[Float[Array, "*batch n {self.width}"], FreeWeightsPullback]:
        """All states, from h_0 = 0. Pullback: dY to (dparams, dX)."""
        XW, input = linear(X, params.W_c, params.b_c)
        Q, query = linear(X, params.W_q)
        c, Y, steps = np.empty_like(XW), np.empty_like(XW), []
        for i in range(X.shape[-2]):
            before = Y[..., i - 1, :] if i else np.zeros_like(XW[..., 0, :])
            c[..., i, :] = np.tanh(XW[..., i, :] + before @ params.U_c)
            past = c[..., : i + 1, :]
            Y[..., i : i + 1, :], step = dot_product_attention(Q[..., i : i + 1, :], past, past)
            steps.append(step)
        return Y, FreeWeightsPullback(input, query, c, Y, params.U_c, tuple(steps))


# ---------------------------------------------------------------------------------- 4: free the candidates


class CandidatesParams(NamedTuple):
    """W (D, E) and b (E,)."""

    W: Array
    b: Array


class CandidatesPullback(Pullback):
    """Backwards through the two steps."""

    linear: LinearPullback
    activation: PointwisePullback

    def __call__(self, dF: Array) -> tuple[CandidatesParams, Array]:
        dX, dW, db = self.linear(self.activation(dF))
        return CandidatesParams(dW, db), dX


@frozen
class Candidates:
    """Rung 4, first half: candidates that read their own token only, f(x_j) = tanh(x_j W + b), a GRU's with U_c = 0."""

    inputs: int
    width: int

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> CandidatesParams:
        """W keeps the variance of a row; b zero."""
        return CandidatesParams(uniform(rng, (self.inputs, self.width), dtype), np.zeros(self.width, dtype))

    @checked
    def __call__(
        self, params: CandidatesParams, X: Float[Array, "*batch n {self.inputs}"]
    ) -> tuple[Float[Array, "*batch n {self.width}"], CandidatesPullback]:
        """All candidates at once. Pullback: dF to (dparams, dX)."""
        a, linear_pullback = linear(X, params.W, params.b)
        F, activation = tanh(a)
        return F, CandidatesPullback(linear_pullback, activation)


class AlikePullback(AroundAttention):
    """F is query, key and value: the sum of the three gradients. There are no parameters."""

    attention: Pullback

    def __call__(self, dY: Array) -> tuple[tuple[()], Array]:
        dQ, dK, dV = self.attention(dY)
        return (), dQ + dK + dV


@frozen
class Alike:
    """Rung 4, second half: every candidate looks for earlier ones that are like it. softmax_causal(F Fᵀ/√D) F."""

    width: int

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> tuple[()]:
        """There is nothing to learn."""
        return ()

    @checked
    def __call__(
        self, params: tuple, F: Float[Array, "*batch n {self.width}"]
    ) -> tuple[Float[Array, "*batch n {self.width}"], AlikePullback]:
        """All rows at once. Pullback: dY to ((), dF)."""
        Y, attention = dot_product_attention(F, F, F, causal=True)
        return Y, AlikePullback(attention)


# ---------------------------------------------------------------- 5, 6, 7: separate, H heads, look both ways


class AttendParams(NamedTuple):
    """Three matrices (D, D). With d = D/H, head h gets columns h·d … (h + 1)·d − 1 of each."""

    W_q: Array
    W_k: Array
    W_v: Array


class AttendPullback(AroundAttention):
    """Split, attend, project, backwards; F was used three times. A is (*batch, H, n, n)."""

    q: LinearPullback
    k: LinearPullback
    v: LinearPullback
    attention: Pullback
    heads: int

    def __call__(self, dY: Array) -> tuple[AttendParams, Array]:
        dQ, dK, dV = (merge_heads(d) for d in self.attention(split_heads(dY, self.heads)))
        (dF_q, dW_q), (dF_k, dW_k), (dF_v, dW_v) = self.q(dQ), self.k(dK), self.v(dV)
        return AttendParams(dW_q, dW_k, dW_v), dF_q + dF_k + dF_v


@frozen
class Attend:
    """Rungs 5 to 7: separate keys, queries and values, in H heads that are concatenated, causal or not.

        Yʰ = softmax(F W_qʰ (F W_kʰ)ᵀ/√d) F W_vʰ,   Y = [Y¹; …; Yᴴ],   d = D/H

    It is multi-head attention without W_o: with W_o = I they are equal.
    source   From GRU to attention, "separate keys and values", "multiple attention heads", "the entire input sequence"
    cost     O(n² D + n D²), all tokens at once. Causal by default.
    raises   ValueError if the width is not divisible by the heads
    """

    width: int
    heads: int = 1
    causal: bool = True

    def __post_init__(self) -> None:
        refuse_indivisible(self.width, self.heads)

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> AttendParams:
        """Matrices that keep the variance of a row."""
        return AttendParams(*(uniform(rng, (self.width, self.width), dtype) for _ in range(3)))

    @checked
    def __call__(
        self, params: AttendParams, F: Float[Array, "*batch n {self.width}"]
    ) -> tuple[Float[Array, "*batch n {self.width}"], AttendPullback]:
        """All rows at once. Pullback: dY to (dparams, dF)."""
        (Q, q), (K, k), (V, v) = (linear(F, W) for W in params)
        heads, attention = dot_product_attention(*(split_heads(M, self.heads) for M in (Q, K, V)), causal=self.causal)
        return merge_heads(heads), AttendPullback(q, k, v, attention, self.heads)


# --------------------------------------------------------------------------------- 9: a nonlinearity after


class AfterParams(NamedTuple):
    """(w, hidden), (hidden,), (hidden, w), (w,) with w = D/H, the width that g is applied to."""

    W_1: Array
    b_1: Array
    W_2: Array
    b_2: Array


class AfterPullback(Pullback):
    """Backwards through g, with the heads as more rows."""

    linear_1: LinearPullback
    activation: PointwisePullback
    linear_2: LinearPullback

    def __call__(self, dY: Array) -> tuple[AfterParams, Array]:
        w = self.linear_2.W.shape[-1]
        dU, dW_2, db_2 = self.linear_2(dY.reshape(*dY.shape[:-1], dY.shape[-1] // w, w))
        dX, dW_1, db_1 = self.linear_1(self.activation(dU))
        return AfterParams(dW_1, db_1, dW_2, db_2), dX.reshape(dY.shape)


@frozen
class After:
    """Rung 9: a small network g(x) = relu(x W₁ + b₁) W₂ + b₂ on every row, or with heads = H on every head of it.

    On every head W₁ and W₂ have H times fewer parameters, and the heads never meet: no entry of one reaches
    another. The transformer mixes them with W_o, and adds residuals and norms (E66).
    source   From GRU to attention, "non-linear attention"
    cost     O(n D · hidden). Each token by itself.
    raises   ValueError if the width is not divisible by the heads
    """

    width: int
    hidden: int
    heads: int = 1

    def __post_init__(self) -> None:
        refuse_indivisible(self.width, self.heads)

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> AfterParams:
        """Matrices that keep the variance of a row; biases zero."""
        w, e = self.width // self.heads, self.hidden
        return AfterParams(
            uniform(rng, (w, e), dtype), np.zeros(e, dtype), uniform(rng, (e, w), dtype), np.zeros(w, dtype)
        )

    @checked
    def __call__(
        self, params: AfterParams, X: Float[Array, "*batch n {self.width}"]
    ) -> tuple[Float[Array, "*batch n {self.width}"], AfterPullback]:
        """Pullback: dY to (dparams, dX)."""
        U, linear_1 = linear(X.reshape(*X.shape[:-1], self.heads, self.width // self.heads), params.W_1, params.b_1)
        R, activation = relu(U)
        Y, linear_2 = linear(R, params.W_2, params.b_2)
        return Y.reshape(X.shape), AfterPullback(linear_1, activation, linear_2)


# ------------------------------------------------------------------------------------------- the whole ladder


@checked
def rungs(inputs: int, width: int, *, heads: int, longest: int, hidden: int) -> dict[int, tuple[Layer, ...]]:
    """The layers of each rung: `chain(*layers)(params, X)`, with `params = tuple(layer.init(rng) for layer in layers)`.

    inputs    width of the tokens
    width     of states, candidates and all that follows
    heads     H, from rung 6 on
    longest   number of positions that have a vector π_i, from rung 8 on
    hidden    width inside g, in rung 9
    """
    f, p = Candidates(inputs, width), LearnedPositions(width, longest)
    return {
        1: (GRU(inputs, width),),
        2: (UnrolledGRU(inputs, width),),
        3: (FreeWeights(inputs, width),),
        4: (f, Alike(width)),
        5: (f, Attend(width)),
        6: (f, Attend(width, heads)),
        7: (f, Attend(width, heads, causal=False)),
        8: (f, p, Attend(width, heads, causal=False)),
        9: (f, p, Attend(width, heads, causal=False), After(width, hidden)),
    }
