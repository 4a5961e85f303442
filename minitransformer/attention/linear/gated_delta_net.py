"""Gated DeltaNet and Kimi delta attention: the delta rule with gates in every head.

    q, k, v                                           through a short convolution each, if there are taps; 4 in both models
    α_t = exp(−e^A softplus(x_t w + b)),   β_t = c σ(x_t w_β)        one α for each head, or one for each channel
    y_t = q_tᵀ S_t of the gated delta rule, with k_t of norm one, x/√(‖x‖² + 10⁻⁶), and q_t likewise, then / √d
    Z   = RMS norm of y_t, head by head, ⊙ swish(x_t W_g)          ⊙ σ where there is one α for each channel

A border between two texts closes α, and the past is gone; a new value for an old key opens β, and replaces it. Neither can do
what the other does.
"""

from typing import NamedTuple

import numpy as np

from minitransformer.arrays import uniform
from minitransformer.attention.delta_rule import opened, refuse_to_grow, unit
from minitransformer.attention.linear.gla import GainPullback, WidenedPullback, narrow, widened
from minitransformer.attention.linear.memory import Entries, Memory, NormAndGate, WriteAndRead, norm_and_gate
from minitransformer.attention.linear.short_convolution import Kernel, drawn, refuse_uneven
from minitransformer.attention.linear.ssd import speeds, time_offsets
from minitransformer.checks import frozen
from minitransformer.functional import sigmoid, silu, softplus
from minitransformer.gather_scatter import unbroadcast
from minitransformer.pullback import Pullback
from minitransformer.ranges import NonNegativeNumber
from minitransformer.typing import Array


class GatedDeltaParams(NamedTuple):
    """A (H,), ln of the speed of each head; b (H,); the gain (d,). With a gate for each channel b is (H·d,), and W (H·w, H·d).

    kernel   of the short convolution; None if there is none
    """

    A: Array
    b: Array
    W: Array | None
    gain: Array
    kernel: Kernel | None = None


class GatesPullback(Pullback):
    """ln α = −e^A s with s = softplus:  ds = −e^A dln α,  dA = Σ ln α dln α; β = c σ; q and k are of norm one."""

    q: Pullback
    k: Pullback
    beta: Pullback
    scale: float
    speed: Array
    log_decay: Array
    softplus: Pullback
    widened: WidenedPullback | None

    def __call__(self, entries: Entries) -> tuple[dict[str, Array | None], Array, Array, Array, Array, Array]:
        dQ, dK, dbeta = self.q(self.scale * entries.Q), self.k(entries.K), self.beta(entries.beta)[..., None]
        dlogits = self.softplus(-self.speed * entries.log_decay)
        dA = unbroadcast(self.log_decay * entries.log_decay, self.speed.shape).ravel()
        if self.widened is None:
            db, dW, dstream = unbroadcast(dlogits, self.speed.shape)[:, 0], None, dlogits[..., None]
        else:
            dstream, dW, db = self.widened(dlogits)
        return {"A": dA, "b": db, "W": dW}, dQ, dK, entries.V, dbeta, dstream


@frozen
class GatedDelta(Memory):
    """The delta rule in a memory that fades: Gated DeltaNet, or with a gate for each channel Kimi delta attention.

    heads, d     H, and the width of a head
    channelwise  whether each channel has an α of its own
    taps         τ, how many tokens queries, keys and values are each made of, as in `short_convolution`; 4 in both models.
                 None for no convolution
    reach        c of β = c σ(…), at most 2. Above 1, a write can turn the sign of what is held
    key_heads    heads of queries and keys, each of which serves H/key_heads heads of values, every one with its own α and β. H if
                 None; half of H in Qwen3-Next
    eps          of the norm of y_t; 10⁻⁶ in Qwen3-Next
    source       Yang, Kautz and Hatamizadeh 2025; Kimi 2025, whose projection to the gates goes through d columns;
                 Grazzi et al. 2024 for c = 2
    cost         O(n d dv) time; one new token costs O(d dv). Always causal
    raises       ValueError for a reach that is not above 0 and at most 2, or an H that key_heads does not divide
    """

    heads: int
    d: int
    channelwise: bool = False
    taps: int | None = None
    reach: NonNegativeNumber = 1.0
    key_heads: int | None = None
    eps: NonNegativeNumber = 1e-5

    learned = GatedDeltaParams
    needs = "α, β and a gate from X"

    def __post_init__(self) -> None:
        refuse_to_grow(self.reach)
        refuse_uneven(self.heads, self.key_heads)

    @property
    def streams(self) -> dict[str, int]:  # type: ignore[override]
        """What β and α are made of, and what opens the gate of the output."""
        return {"beta": 1, "alpha": narrow(self.d, self.heads) if self.channelwise else 1, "gate": self.d}

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> GatedDeltaParams:
        """e^A uniform on 1 … 16, and softplus(b) between 0.001 and 0.1, every order of magnitude as likely."""
        A, W = speeds(rng, self.heads).astype(dtype), None
        b = time_offsets(rng, self.heads * (self.d if self.channelwise else 1)).astype(dtype)
        if self.channelwise:
            rows = narrow(self.d, self.heads) * self.heads
            W = uniform(rng, (rows, len(b)), dtype)
        kernel = drawn(rng, self.heads, self.key_heads, self.taps, self.d, dtype)
        return GatedDeltaParams(A, b, W, np.ones(self.d, dtype), kernel)

    def prepare(
        self, params: GatedDeltaParams, Q: Array, K: Array, V: Array, *streams: Array
    ) -> tuple[Entries, GatesPullback]:
        """What the memory takes: q/√d and k of norm one, v, β and ln α."""
        (Q, q), (K, k) = (unit(X, 1e-6 / self.d) for X in (Q, K))
        beta, dbeta = opened(streams[0][..., 0], self.reach)
        scale, wide = Q.dtype.type(self.d**-0.5), None
        if params.W is None:
            logits, speed = streams[1][..., 0] + params.b[:, None], np.exp(params.A)[:, None]
        else:
            logits, wide = widened(streams[1], params.W, params.b)
            speed = np.exp(params.A)[:, None, None]
        fades, pullback = softplus(logits)
        log_decay = -speed * fades
        entries = Entries(scale * Q, K, V, beta, log_decay)
        return entries, GatesPullback(q, k, dbeta, scale, speed, log_decay, pullback, wide)

    def for_loops(self, params: GatedDeltaParams, d: int, first: int) -> tuple[WriteAndRead, NormAndGate]:
        """`prepare` and `finish` of one token, as data for compiled loops: −ln α = e^A softplus(…), β, q and k of norm one."""
        numbers = {"reach": self.reach, "unit": 1e-6, "scale": self.d**-0.5}
        how = WriteAndRead(params.A, params.b, params.W, learned=True, **numbers)
        return how, NormAndGate(params.gain, gate="sigmoid" if self.channelwise else "silu", eps=self.eps)

    def finish(self, params: GatedDeltaParams, Y: Array, V: Array, gate: Array) -> tuple[Array, GainPullback]:
        """RMS norm of Y ⊙ swish(gate), or ⊙ σ(gate) where there is one α for each channel."""
        Z, norm = norm_and_gate(Y, gate, params.gain, sigmoid if self.channelwise else silu, self.eps)
        return Z, GainPullback(norm)
