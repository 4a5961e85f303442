"""Gated linear attention: how fast each channel of the memory fades, each token says for itself.

    α_t = σ(x_t W_1 W_2 + b)^(1/16)                            a number for each channel of the keys, near one
    S_t = Diag(α_t) S_{t−1} + k_t v_tᵀ,   y_t = q_tᵀ S_t / √d
    Z   = RMS norm of y_t, head by head, ⊙ swish(x_t W_g)

W_1 leads through 16 columns for all heads together, so that the gates cost few parameters. A σ that is open halfway leaves
2^(−1/16) = 0.96 of a channel: without the root, a fresh memory would last for a token.
"""

from typing import NamedTuple

import numpy as np

from minitransformer.arrays import uniform
from minitransformer.attention.linear.memory import (
    Entries,
    Memory,
    NormAndGate,
    NormAndGatePullback,
    WriteAndRead,
    norm_and_gate,
)
from minitransformer.attention.multi_head import merge_heads, split_heads
from minitransformer.checks import frozen
from minitransformer.functional import linear, silu, softplus
from minitransformer.pullback import Pullback
from minitransformer.typing import Array


class WidenedPullback(Pullback):
    """Back through a linear map of all heads side by side: dY to (dX, dW, db)."""

    linear: Pullback

    def __call__(self, dY: Array) -> tuple[Array, Array, Array]:
        dX, dW, db = self.linear(merge_heads(dY))
        return split_heads(dX, dY.shape[-3]), dW, db


def widened(X: Array, W: Array, b: Array) -> tuple[Array, WidenedPullback]:
    """(*batch, H, n, w) to (*batch, H, n, d) by W (H·w, H·d), from all heads to all: the second half of X W_1 W_2 + b."""
    Y, pullback = linear(merge_heads(X), W, b)
    return split_heads(Y, X.shape[-3]), WidenedPullback(pullback)


def narrow(rank: int, heads: int) -> int:
    """Columns for each head, so that all together have the rank, or a little more."""
    return -(-rank // heads)


class GLAParams(NamedTuple):
    """W (H·w, H·d) is W_2, b (H·d,); the gain of the norm (d,), which all heads share."""

    W: Array
    b: Array
    gain: Array


class RootPullback(Pullback):
    """ln α = −softplus(−x) / root, so dx = softplus′ dln α / root."""

    scale: float
    root: int
    gates: Pullback
    widened: WidenedPullback

    def __call__(self, entries: Entries) -> tuple[dict[str, Array], Array, Array, Array, Array]:
        dlow, dW, db = self.widened(self.gates(entries.log_decay) / self.root)
        return {"W": dW, "b": db}, self.scale * entries.Q, entries.K, entries.V, dlow


class GainPullback(Pullback):
    """Back through the norm and the gate behind the memory, where the gain is what is learned."""

    norm: NormAndGatePullback

    def __call__(self, dZ: Array) -> tuple[dict[str, Array], Array, None, Array]:
        dY, dgate, dgain = self.norm(dZ)
        return {"gain": dgain}, dY, None, dgate


@frozen
class GLA(Memory):
    """Gated linear attention: each token says how fast each channel of the memory fades.

    heads, d   H, and the width of a head
    rank       columns of W_1, for all heads together
    root       α = σ(…)^(1/root): how many times slower a channel fades than its sigmoid says
    source     Yang et al. 2024b; its code has one gain for all heads, and rank and root of 16
    cost       O(n d dv) time; one new token costs O(d dv). Always causal
    """

    heads: int
    d: int
    rank: int = 16
    root: int = 16

    learned = GLAParams
    needs = "gates from X"

    @property
    def streams(self) -> dict[str, int]:  # type: ignore[override]
        """x W_1, and what opens the gate of the output."""
        return {"low": narrow(self.rank, self.heads), "gate": self.d}

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> GLAParams:
        """W_2 uniform, so that x W_1 W_2 has the variance of x W_1; b = 0, so that α = 2^(−1/root) where x W_1 W_2 = 0."""
        rows, columns = narrow(self.rank, self.heads) * self.heads, self.heads * self.d
        return GLAParams(uniform(rng, (rows, columns), dtype), np.zeros(columns, dtype), np.ones(self.d, dtype))

    def prepare(self, params: GLAParams, Q: Array, K: Array, V: Array, *streams: Array) -> tuple[Entries, RootPullback]:
        """What the memory takes: q/√d, k, v, and ln α = ln σ(x W_1 W_2 + b) / root."""
        scale = Q.dtype.type(self.d**-0.5)
        logits, wide = widened(streams[0], params.W, params.b)
        closed, gates = softplus(-logits)
        return Entries(scale * Q, K, V, None, -closed / self.root), RootPullback(scale, self.root, gates, wide)

    def for_loops(self, params: GLAParams, d: int, first: int) -> tuple[WriteAndRead, NormAndGate]:
        """`prepare` and `finish` of one token, as data for compiled loops: −ln α = softplus(−(x W_1 W_2 + b)) / root."""
        how = WriteAndRead(np.array([1 / self.root]), params.b, params.W, -1.0, scale=self.d**-0.5)
        return how, NormAndGate(params.gain)

    def finish(self, params: GLAParams, Y: Array, V: Array, gate: Array) -> tuple[Array, GainPullback]:
        """RMS norm of Y ⊙ swish(gate)."""
        Z, norm = norm_and_gate(Y, gate, params.gain, silu)
        return Z, GainPullback(norm)
