"""DeltaNet: the delta rule in every head, and what its keys and its gate are made of.

    q, k    x/‖x‖, rows of norm one; or φ(x)/Σφ(x), features that sum to one (Schlag, Irie and Schmidhuber 2021)
    β       c σ(b), b from X, and c is 1, or up to 2

A write takes what is held along k times 1 − β: with β between 0 and 1 it fades, with β between 1 and 2 it also changes its sign.
So with c = 2 a memory can count: a token that writes with β = 2 mirrors it, and the next one mirrors it back.
"""

from typing import Any, ClassVar

import numpy as np

from minitransformer.arrays import refuse_other_lengths
from minitransformer.attention.core import NO_PAIRS, Core, numbers_where_seen, seen_keys, where_seen
from minitransformer.attention.delta_rule import delta_rule, delta_rule_step, opened, refuse_to_grow, unit
from minitransformer.attention.linear.dpfp import dpfp_features, sum_normalised
from minitransformer.attention.linear.memory import MemoryState, WriteAndRead
from minitransformer.checks import frozen
from minitransformer.functional import loops_in
from minitransformer.pullback import NoParams, Pullback
from minitransformer.ranges import Iterations, NonNegativeNumber
from minitransformer.typing import Array


class SharesPullback(Pullback):
    """Back through the division by the sum, then through the features."""

    features: Pullback
    shares: Pullback

    def __call__(self, dF: Array) -> Array:
        return self.features(self.shares(dF))


class DeltaCorePullback(Pullback):
    """Back through the memory, the norms or features, and the gate; a position that the mask hides has written nothing."""

    q: Pullback
    k: Pullback
    gate: Pullback
    memory: Pullback
    seen: Array | None

    def __call__(self, dY: Array) -> tuple[NoParams, Array, Array, Array, Array]:
        dQ, dK, dV, dbeta = self.memory(dY)
        dK, dV, dbeta = where_seen(self.seen, dK), where_seen(self.seen, dV), numbers_where_seen(self.seen, dbeta)
        return NoParams(), self.q(dQ), self.k(dK), dV, self.gate(dbeta)[..., None]


@frozen
class DeltaRule(Core):
    """The delta rule in every head: queries and keys have norm one, and each token says, by a number β, how much it writes.

    β = c σ(b), where b is projected from X

    nu       ν: queries and keys are 2 d ν features instead, those of `dpfp_features`, divided by their sum. None for norm one
    reach    c, at most 2. Above 1, a write can turn the sign of what is held, and a memory can keep track of a parity
    source   Borealis II, fast weight memory systems; Schlag, Irie and Schmidhuber 2021, where memory and features are from;
             Yang et al. 2024a for norm one; Grazzi et al. 2024 for c = 2
    cost     O(n r dv) time, r = d, or 2 d ν; one new token costs O(r dv). Always causal, with keys of the same tokens: m = n
    raises   ValueError for a reach that is not above 0 and at most 2
    """

    nu: Iterations | None = None
    reach: NonNegativeNumber = 1.0

    stage = "aggregate"
    unplaced = NO_PAIRS
    cost = "O(n)"
    causal = "always"
    needs = "β from X"
    streams: ClassVar[dict[str, int]] = {"beta": 1}

    def __post_init__(self) -> None:
        refuse_to_grow(self.reach)

    @property
    def remembers(self) -> str:  # type: ignore[override]
        """The memory S, and its size."""
        return f"S, {'d' if self.nu is None else f'{2 * self.nu} d'}·dv for each head"

    def rows(self, X: Array) -> tuple[Array, Pullback]:
        """Queries or keys as the memory takes them: of norm one, or features that sum to one."""
        if self.nu is None:
            return unit(X)
        F, features = dpfp_features(X, nu=self.nu)
        shares, pullback = sum_normalised(F)
        return shares, SharesPullback(features, pullback)

    def __call__(
        self, params: NoParams, Q: Array, K: Array, V: Array, *streams: Array, causal: bool = True,
        mask: Array | None = None, rng: Any = None,
    ) -> tuple[Array, DeltaCorePullback]:  # fmt: skip
        """Pullback: dY to (dparams, dQ, dK, dV, dbeta). Raises ValueError if m ≠ n, or for a mask that hides pairs."""
        self.refuse(causal=causal)
        refuse_other_lengths(Q, K, "this rule writes as it reads")
        seen = seen_keys(mask, Q, K, "the delta rule")
        K, V, x = (where_seen(seen, X) for X in (K, V, streams[0]))
        (Q, q), (K, k), (beta, gate) = self.rows(Q), self.rows(K), opened(x[..., 0], self.reach)
        Y, memory = delta_rule(Q, K, V, numbers_where_seen(seen, beta))
        return Y, DeltaCorePullback(q, k, gate, memory, seen)

    def for_loops(self, params: NoParams, d: int, first: int) -> tuple[WriteAndRead, None] | None:
        """One token as data for compiled loops: nothing fades, and there is no norm behind; None for features."""
        return (WriteAndRead(np.zeros(1), reach=self.reach, unit=1e-6 * d), None) if self.nu is None else None

    def step(
        self, params: NoParams, Q: Array, K: Array, V: Array, *streams: Array, state: MemoryState | None = None
    ) -> tuple[Array, MemoryState]:
        """O(r dv) for one new token."""
        if state is None:
            r = K.shape[-1] if self.nu is None else 2 * self.nu * K.shape[-1]
            state = MemoryState(np.zeros((*K.shape[:-2], r, V.shape[-1]), K.dtype), 0)
        how = self.for_loops(params, K.shape[-1], state.length)
        if how and Q.shape[-2] == 1 and V.ndim > 2 and (loops := loops_in("step")):
            Y, S = loops.write_and_read(Q, K, V, streams, state.S, how[0])
            return Y, MemoryState(S, state.length + 1)
        (Q, _), (K, _), (beta, _) = self.rows(Q), self.rows(K), opened(streams[0][..., 0], self.reach)
        Y, S = delta_rule_step(Q, K, V, beta, state.S)
        return Y, MemoryState(S, state.length + Q.shape[-2])
