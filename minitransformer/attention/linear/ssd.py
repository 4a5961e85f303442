"""Mamba-2's state-space form, which is linear attention with one gate for each head: state-space duality.

    Δ_t = softplus(x_t w + b),   a_t = exp(−e^A Δ_t)           a step of time, and what it leaves of the state
    S_t = a_t S_{t−1} + k_t (Δ_t v_t)ᵀ,   y_t = q_tᵀ S_t       there: h_t = a_t h_{t−1} + Δ_t B_t x_tᵀ, C_tᵀ h_t
    Z   = RMS norm of (y_t + D v_t) ⊙ swish(x_t W_g), over all heads

    Y = (L ⊙ Q Kᵀ) (Δ ⊙ V)                                     the same as one masked matrix; C, B and x are Q, K and V

A long step Δ forgets more and writes more. The decay is that of the differential equation h′ = −e^A h + B x over a time of Δ,
exactly. The writing is one step of Euler's, which is a little more: in the long run 1.05 times as much for Δ e^A = 0.1, and 1.58
times for Δ e^A = 1.
"""

from typing import NamedTuple

import numpy as np

from minitransformer.attention.linear.memory import Entries, Memory, NormAndGate, WriteAndRead
from minitransformer.attention.linear.short_convolution import Kernel, drawn, refuse_uneven
from minitransformer.attention.multi_head import merge_heads, split_heads
from minitransformer.checks import frozen
from minitransformer.functional import rms_norm, silu, softplus
from minitransformer.gather_scatter import unbroadcast
from minitransformer.pullback import Pullback
from minitransformer.typing import Array


class SSDParams(NamedTuple):
    """For each head ln of its speed A (H,), the offset of Δ b (H,), and D (H,); the gain of the norm, (H·d,).

    kernel   of the short convolution, with its b; None if there is none
    """

    A: Array
    b: Array
    D: Array
    gain: Array
    kernel: Kernel | None = None


class StepPullback(Pullback):
    """ln a = −e^A Δ and the value is Δ v:  dΔ = ⟨dv′, v⟩ − e^A dln a,  dv = Δ dv′,  dA = Σ ln a dln a."""

    V: Array
    delta: Array
    speed: Array
    log_decay: Array
    softplus: Pullback

    def __call__(self, entries: Entries) -> tuple[dict[str, Array], Array, Array, Array, Array]:
        ddelta = self.softplus(np.vecdot(entries.V, self.V) - self.speed * entries.log_decay)
        dA, db = (unbroadcast(X, self.speed.shape)[:, 0] for X in (self.log_decay * entries.log_decay, ddelta))
        return {"A": dA, "b": db}, entries.Q, entries.K, self.delta * entries.V, ddelta[..., None]


class GateAndNormPullback(Pullback):
    """z = RMS norm of (y + D v) ⊙ s, s = swish(g), the heads side by side."""

    V: Array
    D: Array
    Y: Array
    opened: Array
    activation: Pullback
    norm: Pullback

    def __call__(self, dZ: Array) -> tuple[dict[str, Array], Array, Array, Array]:
        d, dgain = self.norm(merge_heads(dZ))
        d = split_heads(d, dZ.shape[-3])
        dY = d * self.opened
        dD = unbroadcast(np.vecdot(dY, self.V)[..., None], self.D.shape)[:, 0, 0]
        return {"D": dD, "gain": dgain}, dY, self.D * dY, self.activation(d * self.Y)


@frozen
class SSD(Memory):
    """The state space of Mamba-2 in every head: a step of time from each token, which fades and writes.

    heads, d   H, and the width of a head
    taps       τ, how many tokens queries, keys and values are each made of, as in `short_convolution`; 4 in the model. None for
               no convolution
    key_heads  heads of queries and keys, C and B, each of which serves H/key_heads heads of values. H if None; 1 in the model
    source     Dao and Gu 2024. As in its code, the gate comes before the norm, which is over all heads
    cost       O(n d dv) time; one new token costs O(d dv). Always causal. Queries are not scaled
    raises     ValueError for an H that key_heads does not divide
    """

    heads: int
    d: int
    taps: int | None = None
    key_heads: int | None = None

    learned = SSDParams
    needs = "Δ and a gate from X"

    def __post_init__(self) -> None:
        refuse_uneven(self.heads, self.key_heads)

    @property
    def streams(self) -> dict[str, int]:  # type: ignore[override]
        """What Δ is made of, and what opens the gate of the output."""
        return {"delta": 1, "gate": self.d}

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> SSDParams:
        """e^A uniform on 1 … 16, and Δ for x = 0 between 0.001 and 0.1, every order of magnitude as likely; D = 1."""
        A, b = speeds(rng, self.heads).astype(dtype), time_offsets(rng, self.heads).astype(dtype)
        kernel = drawn(rng, self.heads, self.key_heads, self.taps, self.d, dtype, bias=True)
        return SSDParams(A, b, np.ones(self.heads, dtype), np.ones(self.heads * self.d, dtype), kernel)

    def prepare(self, params: SSDParams, Q: Array, K: Array, V: Array, *streams: Array) -> tuple[Entries, StepPullback]:
        """What the memory takes: q, k, Δ v in the place of v, and ln a = −e^A Δ."""
        delta, pullback = softplus(streams[0][..., 0] + params.b[:, None])
        speed = np.exp(params.A)[:, None]
        log_decay, wide = -speed * delta, delta[..., None]
        return Entries(Q, K, wide * V, None, log_decay), StepPullback(V, wide, speed, log_decay, pullback)

    def for_loops(self, params: SSDParams, d: int, first: int) -> tuple[WriteAndRead, NormAndGate]:
        """`prepare` and `finish` of one token, as data for compiled loops.

        −ln a = e^A Δ, and Δ v is written; to what is read D v is added, then come the gate and the norm.
        """
        how = WriteAndRead(params.A, params.b, learned=True, steps=True)
        return how, NormAndGate(params.gain, params.D, gate_first=True)

    def finish(self, params: SSDParams, Y: Array, V: Array, gate: Array) -> tuple[Array, GateAndNormPullback]:
        """RMS norm of (Y + D V) ⊙ swish(gate), over all heads."""
        D, (opened, activation) = params.D[:, None, None], silu(gate)
        Y = Y + D * V
        Z, norm = rms_norm(merge_heads(Y * opened), params.gain, eps=1e-5)
        return split_heads(Z, self.heads), GateAndNormPullback(V, D, Y, opened, activation, norm)


def time_offsets(rng: np.random.Generator, number: int) -> Array:
    """b with softplus(b) between 0.001 and 0.1, every order of magnitude as likely."""
    delta = np.exp(rng.uniform(np.log(1e-3), np.log(1e-1), number))
    return delta + np.log(-np.expm1(-delta))


def speeds(rng: np.random.Generator, number: int) -> Array:
    """A with e^A uniform on 1 … 16."""
    return np.log(1 + 15 * rng.random(number))
