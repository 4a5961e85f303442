"""gMLP: one learned matrix, the same for every text, mixes half of the channels among the tokens; the result multiplies the rest.

    Z₁, Z₂ = two linear maps of X,     Y = (Z₁ ⊙ (M Z₂ + b)) V

    paper's form     Z₁ = GELU(X U₁ + b₁),  Z₂ = LN(GELU(X U₂ + b₂))      the mixed half is the gate, and it is linear
    source's form    Z₁ = σ(X U₁),          Z₂ = X U₂,           b = 0     the other half is the gate, and it is a sigmoid

There are no queries, keys or heads, so it is no core but a mixer; and no scores: M has a number for each pair of places,
whatever stands there. So places are known without an encoding, and there are only as many as M has rows.
"""

import math
from typing import Any, Literal, NamedTuple

import numpy as np

from minitransformer.arrays import one_dtype
from minitransformer.attention.cache.keys_values import KeysValues
from minitransformer.attention.compressed.products import MixPullback, mix
from minitransformer.attention.core import seen_tokens, where_seen
from minitransformer.attention.projected import Projected, Projection
from minitransformer.checks import frozen
from minitransformer.functional import LinearPullback, gelu, layer_norm, linear, normed, sigmoid
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Bool, Float, checked

EPS = 1e-5  # of the norm of the half that is mixed


class SpatialGatePullback(Pullback):
    """S = Z₁ ⊙ G, G = M Z₂ + b: dZ₁ = dS ⊙ G, and G gets dG = dS ⊙ Z₁. Then dM = Σ dG Z₂ᵀ over the batch, dZ₂ = Mᵀ dG,

    and db_i is the sum of dG's row i. Above the diagonal of a causal M stands nothing, so nothing goes back there.
    """

    Z_1: Array
    G: Array
    mixed: MixPullback
    causal: bool
    seen: Array | None

    def __call__(self, dS: Array) -> tuple[Array, Array, Array, Array]:
        dG = dS * self.Z_1
        dM, dZ_2 = self.mixed(dG)
        db = dG.sum((*range(dG.ndim - 2), -1))
        return dS * self.G, where_seen(self.seen, dZ_2), np.tril(dM) if self.causal else dM, db


@checked
def spatial_gate(
    Z_1: Float[Array, "*batch n E"],
    Z_2: Float[Array, "*batch n E"],
    M: Float[Array, "n n"],
    b: Float[Array, "n"],
    *,
    causal: bool = False,
    mask: Bool[Array, "*batch n"] | None = None,
) -> tuple[Float[Array, "*batch n E"], SpatialGatePullback]:
    """One half times the other, after that one's rows have been mixed: the spatial gating unit.

        S = Z₁ ⊙ (M Z₂ + b),     S_ic = Z₁_ic (Σ_j M_ij Z₂_jc + b_i)

    At M = 0 and b = 1 it is Z₁: nothing is mixed. With M_ij = w_{i−j} the rows of Z₂ are convolved with w.
    causal   whether only j ≤ i counts, whatever stands above the diagonal of M
    mask     True where a token is there; the others are zero before the mixing
    source   Liu et al. 2021b
    cost     O(n² E) time, O(n E) memory besides M
    returns  S and a pullback: dZ_1, dZ_2, dM, db = pullback(dS)
    raises   TypeError for a wrong shape, or a mixture of dtypes
    """
    one_dtype(Z_1=Z_1, Z_2=Z_2, M=M, b=b)
    seen = None if mask is None else mask[..., None]
    G, mixed = mix(np.tril(M) if causal else M, where_seen(seen, Z_2))
    G = G + b[:, None]
    return Z_1 * G, SpatialGatePullback(Z_1, G, mixed, causal, seen)


class GMLPParams(NamedTuple):
    """U_1, U_2 (D, E), M (longest, longest), V (E, D); the rest of the paper's form: b_1, b_2, gamma and beta (E,),
    b (longest,), b_v (D,), which are None in the source's.
    """

    U_1: Array
    U_2: Array
    M: Array
    V: Array
    b_1: Array | None = None
    b_2: Array | None = None
    gamma: Array | None = None
    beta: Array | None = None
    b: Array | None = None
    b_v: Array | None = None


class GMLPPullback(Pullback):
    """Backwards: the last map, the gate, and then both halves to X, whose gradient is the sum."""

    longest: int
    linear_1: LinearPullback
    linear_2: LinearPullback
    activation_1: Pullback
    activation_2: Pullback | None
    norm: Pullback | None
    gate: SpatialGatePullback
    v: LinearPullback

    def __call__(self, dY: Array) -> tuple[GMLPParams, Array]:
        dS, dV, *db_v = self.v(dY)
        dZ_1, dZ_2, dM, db = self.gate(dS)
        dgamma = dbeta = None
        if self.norm is not None and self.activation_2 is not None:
            dZ_2, dgamma, dbeta = self.norm(dZ_2)
            dZ_2 = self.activation_2(dZ_2)
        dX_1, dU_1, *db_1 = self.linear_1(self.activation_1(dZ_1))
        dX_2, dU_2, *db_2 = self.linear_2(dZ_2)
        rest = self.longest - len(db)  # places that no token stood at
        dM = np.pad(dM, ((0, rest), (0, rest)))
        if self.norm is None:
            return GMLPParams(dU_1, dU_2, dM, dV), dX_1 + dX_2
        rows = db_1[0], db_2[0], dgamma, dbeta, np.pad(db, (0, rest)), db_v[0]
        return GMLPParams(dU_1, dU_2, dM, dV, *rows), dX_1 + dX_2


@frozen
class GMLP(Projected):
    """One learned matrix over the places mixes half of the channels, which then multiply the other half.

    longest   n of the matrix M: no longer text can be read
    form      "paper", or "source" for Borealis II (25) as printed: a sigmoid gate on the half that is not mixed, no norm and
              no biases (E25)
    hidden    E, the width of each half; 2 D by default, so that both together have the usual 4 D
    source    Liu et al. 2021b; Borealis II (25)
    cost      O(n² E + n D E); 3 D E + n² parameters. Causal: M is lower triangular
    raises    ValueError for more than `longest` tokens
    """

    width: int
    longest: int
    form: Literal["paper", "source"] = "paper"
    hidden: int | None = None

    stage = "all of them"
    cost = "O(n²)"
    remembers = "the half that is mixed"
    needs = "n ≤ context"

    @property
    def _hidden(self) -> int:
        return 2 * self.width if self.hidden is None else self.hidden

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> GMLPParams:
        """Both forms start with nothing mixed. Paper's: b = 1, and M near zero. Source's: M = 1, the identity.

        M near zero is uniform on ±10⁻³/longest. Other weights are uniform with variance 1/D and 1/E; gains are one, biases zero.
        """
        D, E, n = self.width, self._hidden, self.longest

        def uniform(bound: float, *shape: int) -> Array:
            return rng.uniform(-bound, bound, shape).astype(dtype)

        U_1, U_2 = uniform(math.sqrt(3 / D), D, E), uniform(math.sqrt(3 / D), D, E)
        V = uniform(math.sqrt(3 / E), E, D)
        if self.form == "source":
            return GMLPParams(U_1, U_2, np.eye(n, dtype=dtype), V)
        zeros, ones = np.zeros(E, dtype), np.ones(E, dtype)
        M, b, b_v = uniform(1e-3 / n, n, n), np.ones(n, dtype), np.zeros(D, dtype)
        return GMLPParams(U_1, U_2, M, V, zeros, zeros.copy(), ones, zeros.copy(), b, b_v)

    def _refuse_longer(self, n: int) -> None:
        if n > self.longest:
            raise ValueError(f"X: {n} tokens, and the matrix M of this GMLP mixes at most longest = {self.longest}")

    def _halves(self, params: GMLPParams, X: Array) -> tuple[Array, Array, Any]:
        """Z₁ and Z₂ (*batch, n, E), and what leads back."""
        A_1, linear_1 = linear(X, params.U_1, params.b_1)
        A_2, linear_2 = linear(X, params.U_2, params.b_2)
        if self.form == "source":
            Z_1, activation_1 = sigmoid(A_1)
            return Z_1, A_2, (linear_1, linear_2, activation_1, None, None)
        (Z_1, activation_1), (F_2, activation_2) = gelu(A_1), gelu(A_2)
        Z_2, norm = layer_norm(F_2, params.gamma, params.beta, eps=EPS)  # type: ignore[arg-type]
        return Z_1, Z_2, (linear_1, linear_2, activation_1, activation_2, norm)

    def _bias(self, params: GMLPParams) -> Array:
        return np.zeros(self.longest, params.M.dtype) if params.b is None else params.b

    @checked
    def __call__(
        self, params: GMLPParams, X: Float[Array, "*batch n {self.width}"], *, causal: bool = False,
        mask: Bool[Array, "..."] | None = None, rng: Any = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], GMLPPullback]:  # fmt: skip
        """Pullback: dY to (dparams, dX). Raises ValueError for a mask that is not of keys alone, (*batch, 1, 1, n)."""
        n = X.shape[-2]
        self._refuse_longer(n)
        Z_1, Z_2, back = self._halves(params, X)
        S, gate = spatial_gate(
            Z_1, Z_2, params.M[:n, :n], self._bias(params)[:n], causal=causal, mask=seen_tokens(mask, X)
        )
        Y, v = linear(S, params.V, params.b_v)
        return Y, GMLPPullback(self.longest, *back, gate, v)  # type: ignore[call-arg]

    def projections(self, params: GMLPParams) -> list[Projection]:
        """The two maps that lead to the halves, without heads."""
        return [Projection(W, b, None, self._hidden) for W, b in ((params.U_1, params.b_1), (params.U_2, params.b_2))]

    def _output(self, params: GMLPParams) -> tuple[Array, Array | None]:
        return params.V, params.b_v

    @property
    def mixed(self) -> int:
        """E, the width of a half."""
        return self._hidden

    def _go_on(self, params: GMLPParams, arrays: list[Array], state: KeysValues | None) -> tuple[Array, KeysValues]:
        """The state is Z₂ of all tokens, since any row of M wants them. O(m E) for one token after m − 1."""
        A_1, A_2 = arrays
        if self.form == "source":
            Z_1, Z_2 = sigmoid(A_1)[0], A_2
        else:
            Z_1, Z_2 = gelu(A_1)[0], normed(gelu(A_2)[0], params.gamma, params.beta, eps=EPS)  # type: ignore[arg-type]
        nothing = Z_2[..., :0]  # a state of keys alone
        state = KeysValues.of(Z_2, nothing) if state is None else state.extended(Z_2, nothing)
        m = state.length
        self._refuse_longer(m)
        n = Z_1.shape[-2]
        new = slice(m - n, m)
        M = params.M[new, :m] if n == 1 else np.tril(params.M[new, :m], m - n)
        G = M @ state.keys + self._bias(params)[new, None]
        return Z_1 * G, state
