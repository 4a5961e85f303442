"""Modern Hopfield networks: attention, fed back as the next query until the query stands still.

    ξ ← Kᵀ softmax(β K ξ)        an update: the state ξ becomes an average of the stored patterns, the rows of K
    y = Vᵀ softmax(β K ξ)        the reading, after the last update; with no update before it, it is attention

An update never lets this energy grow, whatever β > 0 is:

    E(ξ) = −(1/β) ln Σ_j exp(β⟨k_j, ξ⟩) + ½‖ξ‖² + (1/β) ln m + ½ M²,    M = max_j ‖k_j‖

The first term is concave, the second convex: an update goes to where the convex one and the tangent of the concave one have
their least sum (the concave–convex procedure, CCCP).

When does a query stand still? Let p and p′ be its weights before and after an update, and Δ, Δ′ two changes of ξ in a row.
The scores change by β K Δ, and Kᵀ(p′ − p) = Δ′. So β⟨Δ, Δ′⟩ = Σ_j (p′_j − p_j)(ln p′_j − ln p_j), the sum of both
Kullback–Leibler divergences, and by Pinsker's inequality

    ‖p′ − p‖₂ ≤ ‖p′ − p‖₁ ≤ √(β⟨Δ, Δ′⟩)

The right side needs no weight: every update is one call of dot-product attention, and no matrix is kept in any tier of loops.
"""

from typing import Any, Literal, NamedTuple

import numpy as np

from minitransformer.arrays import FEW, must_broadcast, one_dtype, scale_for, times
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.cache.keys_values import KeysValues
from minitransformer.attention.core import Core, NothingLearnedPullback
from minitransformer.attention.dot_product import attend_to_buffer, dot_product_attention
from minitransformer.checks import frozen
from minitransformer.functional import loops_in, softmax
from minitransformer.gather_scatter import unbroadcast
from minitransformer.pullback import NoParams, Pullback
from minitransformer.ranges import PositiveNumber, Rounds
from minitransformer.typing import Array, Bool, Float, checked

Gradient = Literal["unrolled", "implicit"]

# ------------------------------------------------------------------------------------------------- one step


class SharpenedPullback(AroundAttention):
    """Q′ = β Q, so dQ = β dQ′ and dβ = ⟨dQ′, Q⟩, summed over what shares a β."""

    Q: Array
    beta: Array
    attention: Pullback

    def __call__(self, dY: Array) -> tuple[Array, Array, Array, Array]:
        dQ, dK, dV = self.attention(dY)
        dbeta = unbroadcast((dQ * self.Q).sum((-2, -1)), self.beta.shape)
        return self.beta[..., None, None] * dQ, dK, dV, dbeta


def _attend(Q: Array, K: Array, V: Array, beta: Array | float | None, **seen: Any) -> tuple[Array, Pullback]:
    """softmax(β Q Kᵀ) V; its pullback has a fourth gradient, dβ, if β is an array."""
    if isinstance(beta, np.ndarray):
        Y, attention = dot_product_attention(beta[..., None, None] * Q, K, V, scale=1.0, **seen)
        return Y, SharpenedPullback(Q, beta, attention)
    return dot_product_attention(Q, K, V, scale=beta, **seen)


# ---------------------------------------------------------------------------------------------- all the steps


class Update(NamedTuple):
    """One update, and which queries it moved: those that had not settled before, (*batch, n)."""

    attention: Pullback
    moved: Array


class UnrolledPullback(AroundAttention):
    """The reading, then all updates backwards. An update has K as its keys and as its values, so dK gets both, each time.

    A query that had settled was handed on as it was, and so is its gradient.

    states    ξ₀ = Q, ξ₁, …, ξ_T, each (*batch, n, d)
    steps     how often each query was compared with the keys, the reading included, (*batch, n)
    settled   whether it stopped because it stood still, and not because `steps` were over, (*batch, n)
    """

    updates: tuple[Update, ...]
    reading: Pullback
    states: tuple[Array, ...]
    steps: Array
    settled: Array
    inside = "reading"

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        dxi, dK, dV, *dbeta = self.reading(dY)
        for attention, moved in reversed(self.updates):
            through = np.where(moved[..., None], dxi, 0)
            dq, dk, dv, *db = attention(through)
            dxi = dq + (dxi - through)
            dK = dK + dk + dv
            dbeta = [a + b for a, b in zip(dbeta, db, strict=True)]
        return dxi, dK, dV, *dbeta


class ImplicitPullback(AroundAttention):
    """At a fixed point ξ = f(ξ, K, β), δξ = J δξ + (what K and β do), with J = β Kᵀ(diag p − p pᵀ)K, symmetric.

    So if the reading sends back g, the update is sent u = (I − J)⁻¹ g, once. J u is what an update's pullback gives for its
    query, and I − J is positive definite at a minimum of the energy: conjugate gradients find u. Where the query came from
    plays no role any more: dQ = 0.

    state, steps, settled   as in `UnrolledPullback`; of a query that has not settled this is not the gradient
    tolerance               at which the residual of u counts as zero, relative to g
    """

    update: Pullback
    reading: Pullback
    state: Array
    steps: Array
    settled: Array
    tolerance: float
    inside = "reading"

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        g, dK, dV, *dbeta = self.reading(dY)
        _, dk, dv, *db = self.update(self.solve(g))
        return np.zeros_like(g), dK + dk + dv, dV, *(a + b for a, b in zip(dbeta, db, strict=True))

    def solve(self, g: Array) -> Array:
        """u with u − J u = g for every query at once, in at most d rounds of conjugate gradients."""
        u, r = g, self.update(g)[0]  # the first guess is u = g; what is missing is J g
        direction, size = r, np.vecdot(r, r)[..., None]
        enough = (self.tolerance * np.linalg.norm(g, axis=-1, keepdims=True)) ** 2
        for _ in range(g.shape[-1]):
            if not (size > enough).any():
                break
            moved = direction - self.update(direction)[0]
            step = _ratio(size, np.vecdot(direction, moved)[..., None])
            u, r = u + step * direction, r - step * moved
            before, size = size, np.vecdot(r, r)[..., None]
            direction = r + _ratio(size, before) * direction
        return u


def _ratio(a: Array, b: Array) -> Array:
    """a / b, and 0 where b is not above zero: this query is done, or is at no minimum."""
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)


def _refuse_few_steps(steps: int, gradient: str) -> None:
    """Raise ValueError for an implicit gradient that has no update before the reading."""
    if gradient == "implicit" and steps < 2:
        raise ValueError(f"steps: {steps} should be at least 2, for an implicit gradient")


def _refuse_other_beta(beta: Array | float | None, Q: Array, name: str = "Q") -> None:
    """Raise ValueError for a β that does not broadcast to the heads, or is not above zero; TypeError for another dtype."""
    if isinstance(beta, np.ndarray):
        one_dtype(**{name: Q, "beta": beta})
        must_broadcast(beta, Q.shape[:-2], "beta", "the heads")
    if beta is not None and not np.all(beta > 0):
        raise ValueError(f"beta: {np.min(beta)} should be above 0")


@checked
def hopfield_attention(
    Q: Float[Array, "*batch n d"],
    K: Float[Array, "*shared m d"],
    V: Float[Array, "*shared m dv"],
    beta: Float[Array, "*some"] | float | None = None,
    *,
    steps: Rounds = 8,
    tolerance: PositiveNumber = 1e-4,
    gradient: Gradient = "unrolled",
    causal: bool = False,
    mask: Bool[Array, "..."] | None = None,
) -> tuple[Float[Array, "*batch n dv"], UnrolledPullback | ImplicitPullback]:
    """Retrieve a value for every query: the query moves among the keys until it stands still, and then the values are read.

        ξ ← Kᵀ softmax(β K ξ)  from ξ = q,  at last  y = Vᵀ softmax(β K ξ)

    K, V       patterns and what is read of them, as in `dot_product_attention`; with V = K the pattern itself is retrieved
    beta       the inverse temperature: a number, or an array of one for each head that broadcasts to *batch and has a
               gradient; 1/√d by default
    steps      how often a query is compared with the keys at most, the reading included: 1 is attention
    tolerance  a query in a head has settled when an update surely changes its weights by less, ‖p′ − p‖₂ ≤ √(β⟨Δ, Δ′⟩); it
               makes the update Δ′, too, and then it reads
    gradient   "unrolled", back through every update; or "implicit", at the fixed point: one update is remembered whatever
               their number, the query gets the gradient zero, and a query that has not settled gets one that is not right
    mask       True where query i sees key j; must broadcast to (*batch, n, m). A query that sees no key gives zeros
    source     Borealis II, attention as memory retrieval, figure 15; Ramsauer et al. 2021. Their code stops a head for all its
               queries and for a whole batch at once; here each query has its own count, so that no sample depends on
               another, and no token on a later one. What is called update_steps_max there is steps − 1
    cost       O(T n m d) time for the T ≤ steps comparisons of the slowest query; for the backward pass, O(T n d) memory
               unrolled and O(n d) implicit, in the tiers of loops
    returns    Y and a pullback: dQ, dK, dV = pullback(dY), and dbeta if beta is an array. `pullback.steps` and
               `pullback.settled`, both (*batch, n), say how each query stopped
    raises     TypeError for a wrong shape or dtype, as patterns of another width than the queries; ValueError for a β or a
               tolerance that is not above 0, a β or a mask that does not fit, fewer steps than 1, or than 2 for an implicit
               gradient
    """
    _refuse_other_beta(beta, Q)
    _refuse_few_steps(steps, gradient)

    def attend(xi: Array, values: Array) -> tuple[Array, Pullback]:
        return _attend(xi, K, values, beta, causal=causal, mask=mask)

    updates, states, taken, moves = _until_settled(attend, Q, K, beta, steps, tolerance, gradient)
    Y, reading = attend(states[-1], V)
    if gradient == "implicit":
        return Y, ImplicitPullback(updates[-1].attention, reading, states[-1], taken, ~moves, tolerance)
    return Y, UnrolledPullback(tuple(updates), reading, tuple(states), taken, ~moves)


def _until_settled(attend: Any, Q: Array, K: Array, beta: Any, steps: int, tolerance: float, gradient: Gradient) -> Any:
    """The updates and states that the gradient needs; how often each query is compared with the keys, and whether it moves on."""
    sharp = np.asarray(scale_for(Q.shape[-1]) if beta is None else beta, Q.dtype)
    taken, moves = np.ones(Q.shape[:-1], np.int64), np.ones(Q.shape[:-1], bool)
    updates: list[Update] = []
    states, before = [Q], None
    for step in range(1, steps):
        if step > 1 and not moves.any():
            break
        xi, attention = attend(states[-1], K)
        xi = xi if moves.all() else np.where(moves[..., None], xi, states[-1])
        updates, states = [*updates, Update(attention, moves)], [*states, xi]
        taken += moves
        change = xi - states[-2]
        if before is not None:
            moves = moves & ~(sharp[..., None] * np.vecdot(before, change) <= tolerance**2)
        before = change
        if gradient == "implicit":
            updates, states = updates[-1:], states[-1:]
    return updates, states, taken, moves


# ---------------------------------------------------------------------------------------------- the energy


class EnergyPullback(Pullback):
    """With p the weights of ξ, H(p) their entropy and k_top the longest pattern:

    dξ = dE (ξ − Kᵀp),   dk_j = dE (−p_j ξ + [j = top] k_j),   dβ = dE (H(p) − ln m)/β², so that E falls as β grows.
    """

    xi: Array
    K: Array
    beta: Array | float | None
    A: Array
    top: Array  # one-hot, (*batch, n, m); zeros for a state that sees no pattern
    slope: Array  # ∂E/∂β

    def __call__(self, dE: Array) -> tuple[Array, ...]:
        dE = dE[..., None]
        dxi = dE * (self.xi - times(self.A, self.K))
        dK = times((dE * self.top).mT, np.ones_like(self.xi[..., :1])) * self.K - times((dE * self.A).mT, self.xi)
        dK = np.where((self.A != 0).any(-2)[..., None], dK, 0)
        if not isinstance(self.beta, np.ndarray):
            return dxi, dK
        return dxi, dK, unbroadcast((dE[..., 0] * self.slope).sum(-1), self.beta.shape)


@checked
def hopfield_energy(
    xi: Float[Array, "*batch n d"],
    K: Float[Array, "*batch m d"],
    beta: Float[Array, "*some"] | float | None = None,
    *,
    mask: Bool[Array, "..."] | None = None,
) -> tuple[Float[Array, "*batch n"], Pullback]:
    """The energy of n states among m patterns, which no update of `hopfield_attention` lets grow.

        E(ξ) = −(1/β) ln Σ_j exp(β⟨k_j, ξ⟩) + ½‖ξ‖² + (1/β) ln m + ½ M²,    M = max_j ‖k_j‖

    It is never below zero, and at most 2 M² for a state that is an average of the patterns.
    beta     a number, or an array that broadcasts to *batch and has a gradient; 1/√d by default
    mask     True where state i sees pattern j, as in attention: m and M are of those that it sees, and E = ½‖ξ‖² if it sees none
    source   Ramsauer et al. 2021
    cost     O(n m d) time, O(n m) memory
    returns  E and a pullback: dxi, dK = pullback(dE), and dbeta if beta is an array
    raises   TypeError for a wrong shape or dtype, ValueError for a β that is not above 0, or a β or a mask that does not fit
    """
    one_dtype(xi=xi, K=K)
    _refuse_other_beta(beta, xi, "xi")
    n, m, d = xi.shape[-2], K.shape[-2], xi.shape[-1]
    sharp = np.asarray(scale_for(d) if beta is None else beta, xi.dtype)[..., None]
    sees = np.ones((n, m), bool) if mask is None else must_broadcast(mask, (*xi.shape[:-1], m))
    sees = np.broadcast_to(sees, (*xi.shape[:-1], m))
    with np.errstate(invalid="ignore"):
        S = np.where(sees, sharp[..., None] * (xi @ K.mT), -np.inf)
        lengths = np.where(sees, (K * K).sum(-1)[..., None, :], -np.inf)
    A, _ = softmax(S)
    top = (np.arange(m) == lengths.argmax(-1)[..., None]) & sees if m else sees
    largest = np.where(top, lengths, 0).sum(-1)
    count = np.maximum(sees.sum(-1), 1).astype(xi.dtype)
    highest = np.where(sees.any(-1), S.max(-1, initial=-np.inf), 0)
    lse = highest + np.log(np.maximum(np.exp(S - highest[..., None]).sum(-1), np.finfo(xi.dtype).tiny))
    lse = np.where(sees.any(-1), lse, 0)
    E = (np.log(count) - lse) / sharp + (xi * xi).sum(-1) / 2 + largest / 2
    slope = (lse - (A * np.where(sees, S, 0)).sum(-1) - np.log(count)) / sharp**2
    return E, EnergyPullback(xi, K, beta, A, top.astype(xi.dtype), slope)


# ------------------------------------------------------------------------------------------------ the core


class HopfieldPullback(NothingLearnedPullback):
    """The pullback of `hopfield_attention`, and NoParams for the parameters: there are none."""

    attention: UnrolledPullback | ImplicitPullback

    @property
    def steps(self) -> Array:
        """How often each query was compared with the keys, (*batch, H, n)."""
        return self.attention.steps

    @property
    def settled(self) -> Array:
        """Whether each query stood still at the end, (*batch, H, n)."""
        return self.attention.settled


@frozen
class Hopfield(Core):
    """Every query moves among the keys until it stands still, a few times at most, and takes its average of the values there.

    steps      how often a query is compared with the keys at most; 1 is attention
    tolerance  a query has settled when an update surely changes its weights by less
    gradient   "unrolled" through all updates, or "implicit" at the fixed point, where W_q learns nothing
    beta       the inverse temperature; 1/√d by default
    source     Borealis II, figure 15; Ramsauer et al. 2021
    cost       O(T n² d) for each head, T ≤ steps
    raises     ValueError for fewer steps than 1, or than 2 for an implicit gradient
    """

    steps: Rounds = 8
    tolerance: PositiveNumber = 1e-4
    gradient: Gradient = "unrolled"
    beta: PositiveNumber | None = None

    stage = "scores, normalise"
    unplaced = "moves its queries among the keys, and a query that has moved has no position"
    cost = "O(T n²)"
    groups = True

    def __post_init__(self) -> None:
        _refuse_few_steps(self.steps, self.gradient)

    @property
    def scale(self) -> float | None:
        """The inverse temperature is what multiplies the product of queries and keys."""
        return self.beta

    def __call__(
        self, params: NoParams, Q: Array, K: Array, V: Array, *streams: Array, causal: bool = False,
        mask: Array | None = None, rng: Any = None,
    ) -> tuple[Array, HopfieldPullback]:  # fmt: skip
        """Pullback: dY to (dparams, dQ, dK, dV); with `steps` and `settled` of each query."""
        seen: dict[str, Any] = {"causal": causal, "mask": mask}
        Y, attention = hopfield_attention(
            Q, K, V, self.beta, steps=self.steps, tolerance=self.tolerance, gradient=self.gradient, **seen
        )
        return Y, HopfieldPullback(attention)

    def step(
        self, params: NoParams, Q: Array, K: Array, V: Array, *streams: Array, state: KeysValues | None = None
    ) -> tuple[Array, KeysValues]:
        """O(T m d) for one new token. The keys and values of the past are read where they are."""
        past = KeysValues.of(K, V) if state is None else state.extended(K, V)
        if (loops := loops_in("attention")) and Q.shape[-2] <= FEW:
            scale = scale_for(Q.shape[-1], self.beta)
            return loops.retrieve_from_buffer(Q, past.K, past.V, past.length, scale, self.steps, self.tolerance), past

        def attend(xi: Array, values: Array) -> tuple[Array, None]:
            return attend_to_buffer(xi, past.K, values, past.length, scale=self.beta), None

        _, states, *_ = _until_settled(attend, Q, past.K, self.beta, self.steps, self.tolerance, self.gradient)
        return attend(states[-1], past.V)[0], past
