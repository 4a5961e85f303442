"""Kernel attention: the weight of a key is a product of features, so the sums over keys can be made before anyone asks.

    W_ij = ⟨φ(q_i), φ(k_j)⟩                       instead of exp ⟨q_i, k_j⟩
    y_i  = Σ_j W_ij v_j / Σ_j W_ij

      = Σ_j (φ(q_i)ᵀ φ(k_j)) v_jᵀ / …             as a matrix W:      O(n m (r + dv))
      = φ(q_i)ᵀ (Σ_j φ(k_j) v_jᵀ) / …             sums first:         O((n + m) r dv)
      = φ(q_i)ᵀ S_i / φ(q_i)ᵀ z_i                 as a recurrence:    S_i = S_{i−1} + φ(k_i) v_iᵀ,  z_i = z_{i−1} + φ(k_i)

The functions here are given the features, FQ for φ(Q) and FK for φ(K), whatever made them: `elu_features` (the linear
transformer) is one choice, random features are another, none at all a third. A key whose features are zero is not there:
that is how padding is left out.
"""

from typing import Any, Literal, NamedTuple

import numpy as np

from minitransformer.arrays import inverse, one_dtype
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.core import NO_PAIRS, Core, seen_keys, where_seen
from minitransformer.attention.masks import causal_mask
from minitransformer.checks import frozen
from minitransformer.functional import loops_in
from minitransformer.marks import DecodingState
from minitransformer.pullback import NoParams, Pullback, Tree, tree_add
from minitransformer.ranges import Integer, NonNegativeNumber
from minitransformer.typing import Array, Float, checked


class EluFeaturesPullback(Pullback):
    """φ' is 1 for x > 0, where φ = x + 1 > 1, and eˣ = φ ≤ 1 otherwise: the smaller of φ and 1."""

    Y: Array

    def __call__(self, dY: Array) -> Array:
        return dY * np.minimum(self.Y, 1)


@checked
def elu_features(X: Float[Array, "*batch n d"]) -> tuple[Float[Array, "*batch n d"], Pullback]:
    """φ(x) = elu(x) + 1 = x + 1 for x > 0, eˣ otherwise: positive features, d of them.

    source   Borealis II (19), (20); Aalto (13) to (15)
    cost     O(n d)
    """
    if loops := loops_in("chunks"):
        return loops.compiled_elu_features(X)
    Y = np.where(X > 0, X + 1, np.exp(np.minimum(X, 0)))
    return Y, EluFeaturesPullback(Y)


class KernelAttentionPullback(Pullback):
    """Y = N / D with N = W V and D = Σ_j W_ij + ε:  dN = dY / D,  dD_i = −⟨dN_i, y_i⟩.

    δN = δW V + W δV and δD = Σ_j δW_ij:  dW_ij = ⟨dN_i, v_j⟩ + dD_i where i sees j,  dV = Wᵀ dN.
    W = FQ FKᵀ:  dFQ = dW FK,  dFK = dWᵀ FQ.  Without normalisation D = 1 and dD = 0.
    With S_0 and z_0 given, N has FQ S_0 more and D has FQ z_0 more, and the last sums are S_0 + FKᵀ V and z_0 + Σ_j φ(k_j).
    """

    FQ: Array
    FK: Array
    V: Array
    Y: Array
    W: Array
    D: Array
    sees: Array
    normalise: bool
    initial: tuple[Array, Array] | None = None

    @property
    def A(self) -> Array:  # noqa: N802
        """The weights W / D, (*batch, n, m)."""
        return self.W * inverse(self.D)[..., None]

    def __call__(self, dY: Any) -> tuple[Any, ...]:
        dY, last = (dY, None) if self.initial is None else dY
        dN = dY * inverse(self.D)[..., None]
        dD = -np.vecdot(dN, self.Y)[..., None] if self.normalise else dN.dtype.type(0)
        dW = np.where(self.sees, dN @ self.V.mT + dD, 0)
        dFQ, dFK, dV = dW @ self.FK, dW.mT @ self.FQ, self.W.mT @ dN
        if self.initial is None or last is None:
            return dFQ, dFK, dV
        (S, z), (dS, dz) = self.initial, last
        dFQ += dN @ S.mT + dD * z[..., None, :]
        dFK += self.V @ dS.mT + dz[..., None, :]
        return dFQ, dFK, dV + self.FK @ dS, (dS + self.FQ.mT @ dN, dz + (dD * self.FQ).sum(-2))


@checked
def kernel_attention(
    FQ: Float[Array, "*batch n r"],
    FK: Float[Array, "*batch m r"],
    V: Float[Array, "*batch m dv"],
    initial: tuple[Float[Array, "*batch r dv"], Float[Array, "*batch r"]] | None = None,
    *,
    causal: bool = False,
    normalise: bool = True,
    eps: NonNegativeNumber = 0.0,
) -> tuple[Any, Pullback]:
    """Attention whose weights are products of features.

        y_i = Σ_j ⟨φ(q_i), φ(k_j)⟩ v_j / (Σ_j ⟨φ(q_i), φ(k_j)⟩ + ε)

    initial     (S, z) of the positions before, as in `kernel_state`: causal, and with as many queries as keys. With it the
                value is (Y, (S, z)), the sums after the last position, and the gradients end in (dS, dz) of the first ones
    causal      query i sees keys j ≤ i only; with m ≠ n the queries are the last n of the m positions
    normalise   False leaves out the denominator: the sum rule of fast weights
    eps         ε keeps the denominator from zero where features can cancel; with 0 the weights sum to one
    source      Borealis II (18) to (21); Aalto (13) to (15)
    cost        O((n + m) r dv) time, O((n + m)(r + dv) + n r dv/64) memory at most; in the tier "numpy", the definition, O(n m).
                Can be causal.
    returns     Y (*batch, n, dv) and a pullback: dFQ, dFK, dV = pullback(dY); `pullback.A` is the matrix of weights.
                A query whose denominator is zero gives zeros, and sends back zeros.
    raises      TypeError for a wrong shape or dtype, ValueError for a negative ε, or for (S, z) if not causal or n ≠ m
    """
    S, z = (None, None) if initial is None else initial
    one_dtype(FQ=FQ, FK=FK, V=V, S=S, z=z)
    n, m = FQ.shape[-2], FK.shape[-2]
    if initial is not None and not (causal and n == m):
        raise ValueError(f"initial: to go on from sums takes causal=True and n = m, got {causal=}, {n=}, {m=}")
    if loops := loops_in("chunks"):
        return loops.tiled_kernel_attention(FQ, FK, V, initial, causal=causal, normalise=normalise, eps=eps)
    sees = causal_mask(n, m) if causal else np.ones((n, m), bool)
    W = np.where(sees, FQ @ FK.mT, 0)
    N, D = W @ V, W.sum(-1) + W.dtype.type(eps)
    if S is not None and z is not None:
        N, D = N + FQ @ S, D + (FQ @ z[..., None])[..., 0]
    D = D if normalise else np.ones_like(D)
    Y = N * inverse(D)[..., None]
    value = Y if S is None or z is None else (Y, (S + FK.mT @ V, z + FK.sum(-2)))
    return value, KernelAttentionPullback(FQ, FK, V, Y, W, D, sees, normalise, initial)


class FromFeaturesPullback(AroundAttention):
    """Back through kernel attention, then through the features of queries and keys, which have nothing to learn."""

    q: Pullback
    k: Pullback
    attention: Pullback

    def __call__(self, dY: Array) -> tuple[Array, Array, Array]:
        dFQ, dFK, dV = self.attention(dY)
        return self.q(dFQ), self.k(dFK), dV


# ------------------------------------------------------------------------------------------- generation


class KernelState(DecodingState):
    """All that kernel attention remembers of `length` positions, however many: S = Σ_j φ(k_j) v_jᵀ and z = Σ_j φ(k_j)."""

    S: Array
    z: Array
    length: int


@checked
def kernel_state(FK: Float[Array, "*batch m r"], V: Float[Array, "*batch m dv"]) -> KernelState:
    """The state after m positions: S (*batch, r, dv) and z (*batch, r), zeros for m = 0.

    source   Borealis II (20)
    cost     O(m r dv)
    """
    one_dtype(FK=FK, V=V)
    return KernelState(FK.mT @ V, FK.sum(-2), FK.shape[-2])


@checked
def kernel_attention_step(
    FQ: Float[Array, "*batch n r"],
    FK: Float[Array, "*batch n r"],
    V: Float[Array, "*batch n dv"],
    state: KernelState,
    *,
    normalise: bool = True,
    eps: NonNegativeNumber = 0.0,
) -> tuple[Float[Array, "*batch n dv"], KernelState]:
    """Attention of n new positions, most often one, to the past that is in the state and to each other, causally.

        S_i = S_{i−1} + φ(k_i) v_iᵀ,   z_i = z_{i−1} + φ(k_i),   y_i = φ(q_i)ᵀ S_i / (φ(q_i)ᵀ z_i + ε)

    others   normalise and eps as in `kernel_attention`
    source   Borealis II (19) to (21): a decoder that is a recurrent network
    cost     O(n r dv), the past is not read again
    returns  Y and the state after the new positions; the old state is not changed
    raises   TypeError for a wrong shape or dtype, ValueError for a state of another shape
    """
    one_dtype(FQ=FQ, FK=FK, V=V, S=state.S, z=state.z)
    *batch, n, r = FQ.shape
    if state.S.shape != (*batch, r, V.shape[-1]) or state.z.shape != (*batch, r):
        shapes = f"S {state.S.shape} and z {state.z.shape}"
        raise ValueError(f"state: {shapes} should be {(*batch, r, V.shape[-1])} and {(*batch, r)}")
    longer = state.length + n
    if loops := loops_in("step"):
        if normalise:
            Y, S, z = loops.recurrence(FQ, FK, V, state.S, z=state.z, eps=eps)
        else:
            (Y, S), z = loops.recurrence(FQ, FK, V, state.S), state.z + FK.sum(-2)
        return Y, KernelState(S, z, longer)
    S, z, Y, D = state.S, state.z, np.empty_like(V), np.ones(FQ.shape[:-1], V.dtype)
    for t in range(n):
        S = S + FK[..., t, :, None] * V[..., t, None, :]
        z = z + FK[..., t, :]
        Y[..., t, :] = (FQ[..., t, :, None] * S).sum(-2)
        if normalise:
            D[..., t] = np.vecdot(FQ[..., t, :], z) + V.dtype.type(eps)
    return Y * inverse(D)[..., None], KernelState(S, z, longer)


# --------------------------------------------------------------------------------------------- the core


class Features(NamedTuple):
    """What features a query and a key have, for a compiled loop that makes them for one token.

    kind    "elu"            x + 1 or eˣ
            "cosine"         [a relu(x); b relu(x)]
            "neighbours"     x̂ ⊙ roll(x̂, s) for s = 1 … times, with x̂ = [relu(x); relu(−x)]
            "powers"         1, a x, (a x)^⊗2/√2!, … up to the power `times`
            "exponentials"   e^(u − ‖a x‖²/2)/√r, of r: those of u = a W x, and if times = 2 those of −u, too.
                             No exponent is above b; a query's features are divided by their sum
    W       (H, rows, d), or None
    """

    kind: Literal["elu", "cosine", "neighbours", "powers", "exponentials"]
    times: int = 1
    a: float = 0.0
    b: float = 0.0
    W: Array | None = None


class FeaturesPullback(Pullback):
    """Features that have nothing to learn: dF to (dparams, dX)."""

    features: Pullback

    def __call__(self, dF: Array) -> tuple[NoParams, Array]:
        return NoParams(), self.features(dF)


@frozen
class EluFeatures:
    """`elu_features` as a part of a core, the same for queries and keys.

    Every object that makes features is called in this way: features(params, X, first=…, query=…) → F (*batch, H, n, r) and a
    pullback from dF to (dparams, dX). The rows of X stand at the positions from `first` on. With `query`, a row of features may
    have any factor, which cancels in the average.
    """

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> NoParams:
        """There is nothing to learn."""
        return NoParams()

    @checked
    def __call__(
        self, params: NoParams, X: Array, *, first: Integer = 0, query: bool = False
    ) -> tuple[Array, FeaturesPullback]:
        F, pullback = elu_features(X)
        return F, FeaturesPullback(pullback)


class KernelCorePullback(AroundAttention):
    """Back through the sums, then through the features of queries and of keys, whose parameters are the same."""

    q: Pullback
    k: Pullback
    attention: Pullback
    seen: Array | None

    def __call__(self, dY: Array) -> tuple[Tree, Array, Array, Array]:
        dFQ, dFK, dV = self.attention(dY)
        dparams_q, dQ = self.q(dFQ)
        dparams_k, dK = self.k(where_seen(self.seen, dFK))
        return tree_add(dparams_q, dparams_k), dQ, dK, where_seen(self.seen, dV)


class FeatureAttention(Core):
    """Attention whose weights are products of features, whatever they are: a subclass says what makes them, as `phi`."""

    stage = "normalise"
    unplaced = NO_PAIRS
    cost = "O(n)"
    remembers = "S and z, d·dv + d for each head"

    def phi(self, params: Tree, X: Array, *, first: Integer, query: bool) -> tuple[Array, Pullback]:
        """Features (*batch, H, n, r) of queries or of keys X, and a pullback from dF to (dparams, dX)."""
        raise TypeError(f"{type(self).__name__} does not say what its features are")

    def for_loops(self, params: Tree, d: int, first: int) -> Features | None:
        """`phi` of a query and a key of width d at this position, as data; None if it has to be called."""
        return None

    def __call__(
        self, params: Tree, Q: Array, K: Array, V: Array, *streams: Array, causal: bool = False,
        mask: Array | None = None, rng: Any = None,
    ) -> tuple[Array, KernelCorePullback]:  # fmt: skip
        """A key that the mask hides has no features, and its value counts as zero. Pullback: dY to (dparams, dQ, dK, dV)."""
        seen = seen_keys(mask, Q, K, "kernel attention")
        FQ, q = self.phi(params, Q, first=K.shape[-2] - Q.shape[-2], query=True)
        FK, k = self.phi(params, where_seen(seen, K), first=0, query=False)
        Y, attention = kernel_attention(FQ, where_seen(seen, FK), where_seen(seen, V), causal=causal)
        return Y, KernelCorePullback(q, k, attention, seen)

    def step(
        self, params: Tree, Q: Array, K: Array, V: Array, *streams: Array, state: KernelState | None = None
    ) -> tuple[Array, KernelState]:
        """O(r dv) for one new token: the past is not read again."""
        first = 0 if state is None else state.length
        if state is not None and Q.shape[-2] == 1 and (loops := loops_in("step")):
            how = self.for_loops(params, Q.shape[-1], first)
            if how is not None and (done := loops.sum_features(Q, K, V, state.S, state.z, how)):
                Y, S, z = done
                return Y, KernelState(S, z, first + 1)
        FQ, _ = self.phi(params, Q, first=first, query=True)
        FK, _ = self.phi(params, K, first=first, query=False)
        if state is None:
            state = kernel_state(FK[..., :0, :], V[..., :0, :])
        return kernel_attention_step(FQ, FK, V, state)


@frozen
class KernelAttention(FeatureAttention):
    """Attention whose weights are products of features: the linear transformer, with elu + 1.

    features   what makes φ(q) and φ(k). A rotary encoding turns q and k before that, so the weight of a pair does not depend on
               its offset alone, as it does in softmax attention
    source     Borealis II (18) to (21); Aalto (13) to (15)
    cost       O(n r dv) time, O(n) memory; one new token costs O(r dv), however many there were. Can be causal
    """

    features: Any = EluFeatures()

    def __post_init__(self) -> None:
        if isinstance(self.features, type) or not (hasattr(self.features, "init") and callable(self.features)):
            raise TypeError(f"features: {self.features!r} should be an object that makes features, like EluFeatures()")

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> Tree:
        """The parameters of the features."""
        return self.features.init(rng, dtype)

    def phi(self, params: Tree, X: Array, *, first: Integer, query: bool) -> tuple[Array, Pullback]:
        """The features that the given object makes."""
        return self.features(params, X, first=first, query=query)

    def for_loops(self, params: Tree, d: int, first: int) -> Features | None:
        """Those of the linear transformer; any other object has to be called."""
        return Features("elu") if type(self.features) is EluFeatures else None
