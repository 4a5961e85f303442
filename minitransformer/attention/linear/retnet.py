"""RetNet: each head forgets at a speed of its own, and that is all there is to say about positions.

    S_t = γ_h S_{t−1} + k_t v_tᵀ,   y_t = q_tᵀ S_t / √d,        γ_h = 1 − 2^(−5−h),  h = 0 … H − 1
    Z   = RMS norm of y_t, head by head, ⊙ swish(X W_g)         then the heads are combined, as always

After ln 2 · 2^(5+h) tokens half is left: 22 in the first head, twice as many in each of the next. In the paper queries and keys
are turned before they come here: positions="rope".
"""

from functools import cached_property

import numpy as np

from minitransformer.attention.linear.memory import (
    Entries,
    Memory,
    NormAndGate,
    NormAndGatePullback,
    WriteAndRead,
    norm_and_gate,
)
from minitransformer.checks import frozen
from minitransformer.functional import silu
from minitransformer.pullback import NoParams, Pullback
from minitransformer.typing import Array, checked


@checked
def retention_decays(heads: int) -> Array:
    """γ_h = 1 − 2^(−5−h), (H,)."""
    return 1 - 2.0 ** (-5 - np.arange(heads))


class ScaledQueriesPullback(Pullback):
    """Queries were scaled; the decays are not learned, so they get no gradient."""

    scale: float

    def __call__(self, entries: Entries) -> tuple[dict[str, Array], Array, Array, Array]:
        return {}, self.scale * entries.Q, entries.K, entries.V


class PlainNormPullback(Pullback):
    """A norm whose gain is one and stays so."""

    norm: NormAndGatePullback

    def __call__(self, dZ: Array) -> tuple[dict[str, Array], Array, None, Array]:
        dY, dgate, _ = self.norm(dZ)
        return {}, dY, None, dgate


@frozen
class RetNet(Memory):
    """A memory that fades at a speed fixed for each head: retention.

    heads    H
    d        width of a head
    source   Sun et al. 2023; its code divides by √d, and its norm has no gain. There a row of weights is divided by |its sum|
             if that is above 1, which the norm undoes but for its ε
    cost     O(n d dv) time; one new token costs O(d dv). Always causal
    """

    heads: int
    d: int

    needs = "a gate from X"

    @property
    def streams(self) -> dict[str, int]:  # type: ignore[override]
        """What opens the gate of the output."""
        return {"gate": self.d}

    def prepare(
        self, params: NoParams, Q: Array, K: Array, V: Array, *streams: Array
    ) -> tuple[Entries, ScaledQueriesPullback]:
        """What the memory takes: q/√d, k, v, and ln γ_h for every position."""
        scale = Q.dtype.type(self.d**-0.5)
        log_decay = np.log(retention_decays(self.heads)).astype(Q.dtype)[:, None]
        return Entries(scale * Q, K, V, None, np.broadcast_to(log_decay, K.shape[:-1])), ScaledQueriesPullback(scale)

    @cached_property
    def _speed(self) -> Array:
        return -np.log(retention_decays(self.heads))

    def for_loops(self, params: NoParams, d: int, first: int) -> tuple[WriteAndRead, NormAndGate]:
        """`prepare` and `finish` of one token, as data for compiled loops: −ln γ_h, and a gain of one."""
        return WriteAndRead(self._speed, scale=self.d**-0.5), NormAndGate(np.ones(d))

    def finish(self, params: NoParams, Y: Array, V: Array, gate: Array) -> tuple[Array, PlainNormPullback]:
        """RMS norm of Y ⊙ swish(gate)."""
        Z, norm = norm_and_gate(Y, gate, np.ones(Y.shape[-1], Y.dtype), silu)
        return Z, PlainNormPullback(norm)
