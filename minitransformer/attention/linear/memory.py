"""What cores with a fading memory have in common: gates from X in front of it, a norm and a gate of its own behind it.

    convolve    Q, K and V, each row with those before it           where the core has taps (short_convolution.py)
    prepare     Q, K, V and streams → what the memory takes         scales, norms, decays, how far each write goes
    repeated    a query and a key for each head of values           where several of these have one of those (`key_heads`)
    hide        a position that the mask hides neither writes nor fades
    recall      Y of `gated_linear_attention`, or of `gated_delta_rule` where there is a β
    finish      Z = RMS norm of y_t ⊙ swish(g_t)                    in each head, or in the order that a model has

What is read from a memory without a denominator grows with what was written. The norm takes care of that; and g, which is
projected from X, lets a token say what it wants of what it reads.
"""

from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from minitransformer.arrays import must_broadcast, refuse_other_lengths
from minitransformer.attention.core import NO_PAIRS, Core, seen_keys, where_seen
from minitransformer.attention.linear.gated_delta_rule import gated_delta_rule, gated_delta_step
from minitransformer.attention.linear.gated_linear_attention import gated_linear_attention, gated_linear_step
from minitransformer.attention.linear.short_convolution import Kernel, short_convolution
from minitransformer.functional import loops_in, rms_norm
from minitransformer.gather_scatter import for_each_head, sum_over_heads
from minitransformer.marks import DecodingState
from minitransformer.pullback import NoParams, Pullback, Tree
from minitransformer.ranges import so_many
from minitransformer.typing import Array


class Entries(NamedTuple):
    """What a memory takes, (*batch, H, n, …), or the gradient of that; no β where nothing is corrected."""

    Q: Array
    K: Array
    V: Array
    beta: Array | None
    log_decay: Array

    def repeated(self) -> "Entries":
        """The same, with a query and a key for each head of values, where several of these share one."""
        Q, K = (for_each_head(X, self.V.shape[:-2]) for X in (self.Q, self.K))
        return self._replace(Q=Q, K=K)

    def summed(self, key_heads: int | None) -> "Entries":
        """The inverse for gradients: dQ and dK summed over the heads of values that shared them."""
        if key_heads is None:
            return self
        shape = *self.Q.shape[:-3], key_heads, *self.Q.shape[-2:]
        return self._replace(Q=sum_over_heads(self.Q, shape), K=sum_over_heads(self.K, shape))

    def hide(self, seen: Array | None) -> "Entries":
        """The same, with K, V, β and ln α zero at the positions that are not there; gradients likewise. Queries stay."""
        if seen is None:
            return self
        row = seen[..., 0]
        beta = None if self.beta is None else where_seen(row, self.beta)
        there = row if self.log_decay.ndim < self.K.ndim else seen
        K, V = where_seen(seen, self.K), where_seen(seen, self.V)
        return Entries(self.Q, K, V, beta, where_seen(there, self.log_decay))

    def recall(self, initial: Array | None = None) -> tuple[Any, Pullback]:
        """Y and its pullback; from an initial state on, (Y, the state after these positions) and their pullback."""
        if self.beta is None:
            return gated_linear_attention(self.Q, self.K, self.V, self.log_decay, initial)
        return gated_delta_rule(self.Q, self.K, self.V, self.beta, self.log_decay, initial)

    def step(self, S: Array) -> tuple[Array, Array]:
        """Y of these positions after the state S, and the state after them."""
        if self.beta is None:
            return gated_linear_step(self.Q, self.K, self.V, self.log_decay, S)
        return gated_delta_step(self.Q, self.K, self.V, self.beta, self.log_decay, S)


def _there(X: Array | None, dtype: Any, axes: int = 1) -> Array:
    """X in this dtype; an empty array for None."""
    return np.empty((0,) * axes, dtype) if X is None else X.astype(dtype, copy=False)


class WriteAndRead(NamedTuple):
    """How a compiled loop decays, writes and reads a memory for one token.

    speed        of each head, (H,), or (1,) of all; `learned`: its logarithm
    shift, W     the logits of α are x + shift, (H,); or x W + shift, (H·d,), all heads side by side; None where there are none
    sign         α = exp(−speed softplus(sign · logits)), or exp(−speed) without logits
    reach        the largest β, which is reach σ(write); if 0, nothing is corrected
    unit         queries and keys x are divided by √(‖x‖² + unit); −1 if they are not
    scale        what queries are multiplied by after that
    steps        whether softplus(logits) v is written in place of v
    """

    speed: Array
    shift: Array | None = None
    W: Array | None = None
    sign: float = 1.0
    learned: bool = False
    reach: float = 0.0
    unit: float = -1.0
    scale: float = 1.0
    steps: bool = False

    def arrays(self, dtype: Any) -> tuple[Array, Array, Array]:
        """speed, shift and W, for a loop."""
        return _there(self.speed, dtype), _there(self.shift, dtype), _there(self.W, dtype, 2)

    @property
    def numbers(self) -> tuple[float, float, float, float]:
        """The numbers, in the order in which a loop takes them."""
        return self.unit, self.scale, self.reach, self.sign


class NormAndGate(NamedTuple):
    """What a compiled loop makes of y + D v: its RMS norm ⊙ f(g), or the RMS norm of (y + D v) ⊙ f(g) if `gate_first`.

    gain         of the norm, (d,) for each head, or (H·d,) for all heads together
    skip         D (H,); None where nothing is added
    gate         f, by name
    gate_first   whether the gate comes before the norm
    eps          of the norm
    """

    gain: Array
    skip: Array | None = None
    gate: Literal["silu", "sigmoid"] = "silu"
    gate_first: bool = False
    eps: float = 1e-5

    def arrays(self, dtype: Any) -> tuple[Array, Array]:
        """gain and skip, for a loop."""
        return _there(self.gain, dtype), _there(self.skip, dtype)


class NormAndGatePullback(Pullback):
    """z = n ⊙ s with n the norm of y, s = f(g):  dn = dz ⊙ s, ds = dz ⊙ n."""

    normed: Array
    opened: Array
    norm: Pullback
    activation: Pullback

    def __call__(self, dZ: Array) -> tuple[Array, Array, Array]:
        dY, dgain = self.norm(dZ * self.opened)
        return dY, self.activation(dZ * self.normed), dgain


def norm_and_gate(
    Y: Array, G: Array, gain: Array, activation: Any, eps: float = 1e-5
) -> tuple[Array, NormAndGatePullback]:
    """z = RMS norm of y, times the gain, times f(g); pullback: dz to (dy, dg, dgain)."""
    (N, norm), (opened, pullback) = rms_norm(Y, gain, eps=eps), activation(G)
    return N * opened, NormAndGatePullback(N, opened, norm, pullback)


class MemoryState(DecodingState):
    """The memory after `length` positions, S (*batch, H, r, dv) with r = d, or as many as keys have features.

    rows   the last rows of queries, keys and values, which a convolution will see again, (*batch, 3H, taps − 1, d); fewer than 3H
           if heads of values share queries and keys
    """

    S: Array
    length: int
    rows: Array | None = None


class MemoryPullback(Pullback):
    """The stages in opposite order. A parameter stands in front of the memory or behind it; V may be used in both places."""

    learned: type
    convolve: Pullback | None
    prepare: Pullback
    recall: Pullback
    finish: Pullback
    seen: Array | None
    key_heads: int | None

    def __call__(self, dZ: Array) -> tuple[Any, ...]:
        behind, dY, dV_behind, dgate = self.finish(dZ)
        dQ, dK, dV, *dbeta, dlog_decay = self.recall(dY)
        entries = Entries(dQ, dK, dV, dbeta[0] if dbeta else None, dlog_decay).hide(self.seen)
        entries = entries.summed(self.key_heads)
        front, dQ, dK, dV, *dgates = self.prepare(entries)
        dV = dV if dV_behind is None else dV + where_seen(self.seen, dV_behind)
        if self.convolve is not None:
            dX, *dkernel = self.convolve(np.concatenate([dQ, dK, dV], -3))
            dQ, dK, dV = (where_seen(self.seen, d) for d in apart(dX, dQ, dK))
            front["kernel"] = Kernel(*dkernel)
        return self.learned(**front, **behind), dQ, dK, dV, *dgates, dgate


def apart(X: Array, Q: Array, K: Array) -> list[Array]:
    """X, in which heads of queries, keys and values stand one after another, in these three parts."""
    return np.split(X, [Q.shape[-3], Q.shape[-3] + K.shape[-3]], -3)


class Memory(Core):
    """A core whose past is one matrix for each head; a subclass says what stands in front of it and behind it.

    taps                                 of a convolution in front, whose kernel is then `params.kernel`; None for no convolution
    prepare(params, Q, K, V, *streams)   → Entries, and a pullback from their gradient to (front, dQ, dK, dV, *dstreams)
    finish(params, Y, V, gate)           → Z, and a pullback to (behind, dY, dV or None, dgate); `gate` is the last stream
    learned                              the type of the parameters; front and behind are their gradients by name
    """

    learned: ClassVar[type] = NoParams
    taps: int | None = None

    stage = "aggregate"
    unplaced = NO_PAIRS
    cost = "O(n)"
    causal = "always"
    one_width = True  # a norm and a gate stand behind

    @property
    def remembers(self) -> str:  # type: ignore[override]
        """The memory, and the tokens that the convolution sees again."""
        return "S, d·dv for each head" + (f", and {so_many(self.taps - 1, 'token')}" if self.taps else "")

    def _convolve(
        self, params: Any, seen: Array | None, *arrays: Array, before: Array | None = None
    ) -> tuple[list[Array], Pullback | None]:
        """Q, K and V after the short convolution, if there is one, and its pullback or None. Hidden positions count as zeros."""
        if self.taps is None:
            return list(arrays), None
        X = np.concatenate([where_seen(seen, X) for X in arrays], -3)
        Y, pullback = short_convolution(X, *params.kernel, before=before)
        return apart(Y, *arrays[:2]), pullback

    def prepare(self, params: Any, Q: Array, K: Array, V: Array, *streams: Array) -> tuple[Entries, Any]:
        raise TypeError(f"{type(self).__name__} does not say what its memory takes")

    def finish(self, params: Any, Y: Array, V: Array, gate: Array) -> tuple[Array, Any]:
        raise TypeError(f"{type(self).__name__} does not say what it makes of Y")

    def for_loops(self, params: Any, d: int, first: int) -> tuple[WriteAndRead, NormAndGate] | None:
        """`prepare` and `finish` of one token, as data for compiled loops; None if these have to be called."""
        return None

    def __call__(
        self, params: Tree, Q: Array, K: Array, V: Array, *streams: Array, causal: bool = True,
        mask: Array | None = None, rng: Any = None,
    ) -> tuple[Array, MemoryPullback]:  # fmt: skip
        """Pullback: dY to (dparams, dQ, dK, dV, *dstreams). Raises ValueError if m ≠ n, or for a mask that hides pairs."""
        self.refuse(causal=causal)
        refuse_other_lengths(Q, K, "a memory writes as it reads")
        seen = seen_keys(mask, Q, K, "a memory")
        if mask is not None:
            must_broadcast(mask, (*V.shape[:-1], K.shape[-2]))
        *gates, gate = streams
        K, V, *gates = (where_seen(seen, X) for X in (K, V, *gates))
        (Q, K, V), convolve = self._convolve(params, seen, Q, K, V)
        entries, prepare = self.prepare(params, Q, K, V, *gates)
        Y, recall = entries.repeated().hide(seen).recall()
        Z, finish = self.finish(params, Y, where_seen(seen, V), gate)
        return Z, MemoryPullback(self.learned, convolve, prepare, recall, finish, seen, self.key_heads)

    def step(
        self, params: Tree, Q: Array, K: Array, V: Array, *streams: Array, state: MemoryState | None = None
    ) -> tuple[Array, MemoryState]:
        """O(d dv) for one new token."""
        if state is None:
            state = MemoryState(np.zeros((*V.shape[:-2], K.shape[-1], V.shape[-1]), K.dtype), 0)
        *gates, gate = streams
        (Q, K, V), convolve = self._convolve(params, None, Q, K, V, before=state.rows)
        rows = None if convolve is None else convolve.rows[..., Q.shape[-2] :, :].copy()
        after = state.length + Q.shape[-2]
        if (
            Q.shape[-2] == 1
            and (loops := loops_in("step"))
            and (how := self.for_loops(params, K.shape[-1], state.length))
        ):
            Y, S = loops.write_and_read(Q, K, V, gates, state.S, how[0])
            return loops.finish(Y, V, gate, how[1]), MemoryState(S, after, rows)
        Y, S = self.prepare(params, Q, K, V, *gates)[0].repeated().step(state.S)
        return self.finish(params, Y, V, gate)[0], MemoryState(S, after, rows)
