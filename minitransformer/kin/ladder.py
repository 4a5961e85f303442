"""From the GRU to attention in nine rungs, each of which changes one thing of the rung below.

    1  GRU                       h_t = u_t ⊙ h_{t−1} + (1 − u_t) ⊙ c_t
    2  ... unrolled              h_t = Σ_{i≤t} C_{t,i} ⊙ c_i                        the same numbers
    3  free the weights          α_{t,i} ∝ exp ATT(c_i, x_t),  h_t = Σ_{i≤t} α_{t,i} c_i
    4  free the candidates       c_i = f(x_i),  α_{t,i} ∝ exp ATT(f(x_i), f(x_t))   no recurrence from here on
    5  separate K, Q and V       α_{t,i} ∝ exp ATT(K f(x_i), Q f(x_t)),  h_t = Σ_{i≤t} α_{t,i} V f(x_i)
    6  N heads                   h_t = [h_t¹; …; h_tᴺ]
    7  look both ways            the sums run over all i
    8  add positions             f(x_i) + p(i) for f(x_i), in keys, queries and values
    9  a nonlinearity after      g([h_t¹; …; h_tᴺ]), or [g(h_t¹); …; g(h_tᴺ)]

Throughout, ATT(k, q) = ⟨k, q⟩/√width and f(x) = tanh(x W + b). A rung is a chain of layers: `rungs` lists them.
Every step but the second changes the model: the weights of a GRU are vectors, one number per coordinate, those of
attention are one number per head.
source   From GRU to attention
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from minitransformer.attention import dot_product_attention, merge_heads, split_heads
from minitransformer.functional import LinearPullback, PointwisePullback, linear, relu, tanh
from minitransformer.kin.gru import GRU, UnrolledGRU
from minitransformer.kin.rnn import outer_sum, uniform
from minitransformer.positions import LearnedPositions
from minitransformer.pullback import Layer, Pullback
from minitransformer.typing import Array, Float, checked

# ------------------------------------------------------------------------------------- 3: free the weights


class FreeWeightsParams(NamedTuple):
    """Candidate: W_c (D, d), U_c (d, d), b_c (d,). W_q (D, d) makes a query of the input."""

    W_c: Array
    U_c: Array
    b_c: Array
    W_q: Array


class FreeWeightsPullback(NamedTuple):
    """Candidate i is key and value of every step t ≥ i, so dc_i is complete when backpropagation arrives at step i:

    dc_i = Σ_{t≥i} (dk_{t,i} + dv_{t,i}),   da_i = dc_i ⊙ (1 − c_i²),   dh_{i−1} = dH_{i−1} + da_i U_cᵀ.
    """

    input: LinearPullback
    query: LinearPullback
    C: Array
    H: Array
    U_c: Array
    attention: tuple[Pullback, ...]  # one for each step

    @property
    def A(self) -> Array:  # noqa: N802
        """The weights α, (*batch, n, n), zero above the diagonal."""
        n = len(self.attention)
        A = np.zeros((*self.C.shape[:-1], n), self.C.dtype)
        for t, step in enumerate(self.attention):
            A[..., t : t + 1, : t + 1] = step.A
        return A

    def __call__(self, dH: Array) -> tuple[FreeWeightsParams, Array]:
        dA, dQ, dC = np.empty_like(dH), np.empty_like(dH), np.zeros_like(dH)
        around = 0.0
        for t, step in reversed(list(enumerate(self.attention))):
            dh = (dH[..., t, :] + around)[..., None, :]
            dQ[..., t : t + 1, :], dK, dV = step(dh)
            dC[..., : t + 1, :] += dK + dV
            dA[..., t, :] = dC[..., t, :] * (1 - self.C[..., t, :] ** 2)
            around = dA[..., t, :] @ self.U_c.T
        dX_c, dW_c, db_c = self.input(dA)
        dX_q, dW_q = self.query(dQ)
        dU_c = outer_sum(self.H[..., :-1, :], dA[..., 1:, :])  # h_0 is zero
        return FreeWeightsParams(dW_c, dU_c, db_c, dW_q), dX_c + dX_q


@dataclass(frozen=True)
class FreeWeights:
    """Rung 3: the weights no longer come from gates, the candidates still come from the state.

        c_t = tanh(x_t W_c + h_{t−1} U_c + b_c),   α_t = softmax_{i≤t}⟨c_i, x_t W_q⟩/√d,   h_t = Σ_{i≤t} α_{t,i} c_i

    inputs, width    D and d
    source           From GRU to attention, "free the dependent weights"
    cost             O(n² d + n (D d + d²)), in n steps that cannot be done at once. Causal.
    """

    inputs: int
    width: int

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> FreeWeightsParams:
        """Matrices that keep the variance of a row; b zero."""
        D, d = self.inputs, self.width
        W_c, U_c, W_q = (uniform(rng, (rows, d), dtype) for rows in (D, d, D))
        return FreeWeightsParams(W_c, U_c, np.zeros(d, dtype), W_q)

    @checked
    def __call__(
        self, params: FreeWeightsParams, X: Float[Array, "*batch n {self.inputs}"]
    ) -> tuple[Float[Array, "*batch n {self.width}"], FreeWeightsPullback]:
        """All states, from h_0 = 0. Pullback: dH to (dparams, dX)."""
        XW, input = linear(X, params.W_c, params.b_c)
        Q, query = linear(X, params.W_q)
        C, H, steps = np.empty_like(XW), np.empty_like(XW), []
        for t in range(X.shape[-2]):
            before = H[..., t - 1, :] if t else np.zeros_like(XW[..., 0, :])
            C[..., t, :] = np.tanh(XW[..., t, :] + before @ params.U_c)
            past = C[..., : t + 1, :]
            H[..., t : t + 1, :], step = dot_product_attention(Q[..., t : t + 1, :], past, past)
            steps.append(step)
        return H, FreeWeightsPullback(input, query, C, H, params.U_c, tuple(steps))


# ---------------------------------------------------------------------------------- 4: free the candidates


class CandidatesParams(NamedTuple):
    """W (D, d) and b (d,)."""

    W: Array
    b: Array


class CandidatesPullback(NamedTuple):
    """Backwards through the two steps."""

    linear: LinearPullback
    activation: PointwisePullback

    def __call__(self, dF: Array) -> tuple[CandidatesParams, Array]:
        dX, dW, db = self.linear(self.activation(dF))
        return CandidatesParams(dW, db), dX


@dataclass(frozen=True)
class Candidates:
    """Rung 4, first half: candidates that read their own token only, f(x_i) = tanh(x_i W + b), a GRU's with U_c = 0."""

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
        A, linear_pullback = linear(X, params.W, params.b)
        F, activation = tanh(A)
        return F, CandidatesPullback(linear_pullback, activation)


class AlikePullback(NamedTuple):
    """F is query, key and value: the sum of the three gradients. There are no parameters."""

    attention: Pullback

    @property
    def A(self) -> Array:  # noqa: N802
        """The weights α, (*batch, n, n)."""
        return self.attention.A

    def __call__(self, dH: Array) -> tuple[tuple[()], Array]:
        dQ, dK, dV = self.attention(dH)
        return (), dQ + dK + dV


@dataclass(frozen=True)
class Alike:
    """Rung 4, second half: every candidate looks for earlier ones that are like it. softmax_causal(F Fᵀ/√d) F."""

    width: int

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> tuple[()]:
        """Nothing to learn."""
        return ()

    @checked
    def __call__(
        self, params: tuple, F: Float[Array, "*batch n {self.width}"]
    ) -> tuple[Float[Array, "*batch n {self.width}"], AlikePullback]:
        """All states at once. Pullback: dH to ((), dF)."""
        H, attention = dot_product_attention(F, F, F, causal=True)
        return H, AlikePullback(attention)


# ---------------------------------------------------------------- 5, 6, 7: separate, N heads, look both ways


class AttendParams(NamedTuple):
    """Three matrices (d, d). Head n gets columns n·d/N … (n + 1)·d/N − 1 of each."""

    W_q: Array
    W_k: Array
    W_v: Array


class AttendPullback(NamedTuple):
    """Split, attend, project, backwards; F was used three times."""

    q: LinearPullback
    k: LinearPullback
    v: LinearPullback
    attention: Pullback
    heads: int

    @property
    def A(self) -> Array:  # noqa: N802
        """The weights α of the heads, (*batch, N, n, n)."""
        return self.attention.A

    def __call__(self, dH: Array) -> tuple[AttendParams, Array]:
        dQ, dK, dV = (merge_heads(d) for d in self.attention(split_heads(dH, self.heads)))
        (dF_q, dW_q), (dF_k, dW_k), (dF_v, dW_v) = self.q(dQ), self.k(dK), self.v(dV)
        return AttendParams(dW_q, dW_k, dW_v), dF_q + dF_k + dF_v


@dataclass(frozen=True)
class Attend:
    """Rungs 5 to 7: separate keys, queries and values, in N heads that are concatenated, causal or not.

        hⁿ = softmax(F W_qⁿ (F W_kⁿ)ᵀ/√(d/N)) F W_vⁿ,   H = [h¹; …; hᴺ]

    It is multi-head attention without W_o: with W_o = I they are equal.
    source   From GRU to attention, "separate keys and values", "multiple attention heads", "the entire input sequence"
    cost     O(n² d + n d²), all tokens at once. Causal by default.
    raises   ValueError if the width is not divisible by the heads
    """

    width: int
    heads: int = 1
    causal: bool = True

    def __post_init__(self) -> None:
        if self.heads < 1 or self.width < 1 or self.width % self.heads:
            raise ValueError(f"width: {self.width} is not divisible into {self.heads} heads")

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> AttendParams:
        """Matrices that keep the variance of a row."""
        return AttendParams(*(uniform(rng, (self.width, self.width), dtype) for _ in range(3)))

    @checked
    def __call__(
        self, params: AttendParams, F: Float[Array, "*batch n {self.width}"]
    ) -> tuple[Float[Array, "*batch n {self.width}"], AttendPullback]:
        """All states at once. Pullback: dH to (dparams, dF)."""
        (Q, q), (K, k), (V, v) = (linear(F, W) for W in params)
        heads, attention = dot_product_attention(*(split_heads(M, self.heads) for M in (Q, K, V)), causal=self.causal)
        return merge_heads(heads), AttendPullback(q, k, v, attention, self.heads)


# --------------------------------------------------------------------------------- 9: a nonlinearity after


class AfterParams(NamedTuple):
    """(w, hidden), (hidden,), (hidden, w), (w,) with w = d/N, the width that g is applied to."""

    W_1: Array
    b_1: Array
    W_2: Array
    b_2: Array


class AfterPullback(NamedTuple):
    """Backwards through g, with the heads as more rows."""

    linear_1: LinearPullback
    activation: PointwisePullback
    linear_2: LinearPullback

    def __call__(self, dY: Array) -> tuple[AfterParams, Array]:
        w = self.linear_2.W.shape[-1]
        dU, dW_2, db_2 = self.linear_2(dY.reshape(*dY.shape[:-1], dY.shape[-1] // w, w))
        dH, dW_1, db_1 = self.linear_1(self.activation(dU))
        return AfterParams(dW_1, db_1, dW_2, db_2), dH.reshape(dY.shape)


@dataclass(frozen=True)
class After:
    """Rung 9: a small network g(h) = relu(h W₁ + b₁) W₂ + b₂ on every state, or with heads = N on every head of it.

    On every head it is cheaper, by a factor of N in W₁ and W₂, and the heads never meet: no entry of one reaches
    another. The transformer mixes them with W_o, and adds residuals and norms (E66).
    source   From GRU to attention, "non-linear attention"
    cost     O(n d · hidden). Each token by itself.
    raises   ValueError if the width is not divisible by the heads
    """

    width: int
    hidden: int
    heads: int = 1

    def __post_init__(self) -> None:
        if self.heads < 1 or self.width < 1 or self.width % self.heads:
            raise ValueError(f"width: {self.width} is not divisible into {self.heads} heads")

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> AfterParams:
        """Matrices that keep the variance of a row; biases zero."""
        w, e = self.width // self.heads, self.hidden
        return AfterParams(
            uniform(rng, (w, e), dtype), np.zeros(e, dtype), uniform(rng, (e, w), dtype), np.zeros(w, dtype)
        )

    @checked
    def __call__(
        self, params: AfterParams, H: Float[Array, "*batch n {self.width}"]
    ) -> tuple[Float[Array, "*batch n {self.width}"], AfterPullback]:
        """Pullback: dY to (dparams, dH)."""
        U, linear_1 = linear(H.reshape(*H.shape[:-1], self.heads, self.width // self.heads), params.W_1, params.b_1)
        R, activation = relu(U)
        Y, linear_2 = linear(R, params.W_2, params.b_2)
        return Y.reshape(H.shape), AfterPullback(linear_1, activation, linear_2)


# ------------------------------------------------------------------------------------------- the whole ladder


def rungs(inputs: int, width: int, *, heads: int, longest: int, hidden: int) -> dict[int, tuple[Layer, ...]]:
    """The layers of each rung: `chain(*layers)(params, X)`, with `params = tuple(layer.init(rng) for layer in layers)`.

    inputs, width    D and d        longest    number of positions that have a vector p(i), used from rung 8 on
    heads            N, from 6 on   hidden     width inside g, in 9
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
