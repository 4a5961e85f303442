"""A core that asks the seams for all they can carry at once, and has no other use: the contract suite runs over it too.

    y_i = (1 + g_i) (1 + ε) ⊙ Σ_j A_ij (v_j + e + c),     A = softmax(β_h Q Qᵀ/√d)      queries are the keys

ε is drawn, g a stream, e shared by all layers, c no gradient moves: it follows the mean of the values. Σ β² is added to the
loss.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from minitransformer.attention import Core, dot_product_attention
from minitransformer.pullback import Pullback


class EverythingParams(NamedTuple):
    e: np.ndarray
    c: np.ndarray
    beta: np.ndarray


class EverythingPullback(Pullback):
    """Y = (1 + g) (1 + ε) Z, so dZ = (1 + g) (1 + ε) dY and dg = ⟨dY, (1 + ε) Z⟩; Q′ = β Q."""

    Q: np.ndarray
    V: np.ndarray
    beta: np.ndarray
    g: np.ndarray
    noise: np.ndarray
    Z: np.ndarray
    attention: Any
    added: float
    dadded: float = 0.0

    @property
    def A(self):
        return self.attention.A

    def __call__(self, dY):
        dZ = (1 + self.g) * self.noise * dY
        dQ, dK, dV = self.attention(dZ)
        beta = self.beta[:, None, None]
        dbeta = (dQ * self.Q).sum((-2, -1)).reshape(-1, len(self.beta)).sum(0)
        dbeta = (dbeta + 2 * self.dadded * self.beta).astype(self.beta.dtype)
        de = dV.reshape(-1, dV.shape[-1]).sum(0)
        dg = (dY * self.noise * self.Z).sum(-1, keepdims=True)
        return EverythingParams(de, None, dbeta), beta * dQ, dK, dV, dg


@dataclass(frozen=True)
class Everything(Core):
    """The sizes are filled in by the model."""

    d: int
    heads: int

    queries_are_keys = True
    moves = True
    adds_loss = True
    shared = ("e",)
    untrained = ("c",)
    one_width = True  # e and c are d wide
    streams: ClassVar[dict[str, int]] = {"g": 1}

    def init(self, rng, dtype=np.float32):
        e, c, beta = rng.standard_normal(self.d), rng.standard_normal(self.d), 1 + 0.1 * rng.standard_normal(self.heads)
        return EverythingParams(*(X.astype(dtype) for X in (e, c, beta)))

    def __call__(self, params, Q, K, V, g, *, causal=False, mask=None, rng=None):
        rng = np.random.default_rng(0) if rng is None else rng
        noise = (1 + 0.1 * rng.standard_normal(self.d)).astype(Q.dtype)
        beta = params.beta[:, None, None]
        Z, attention = dot_product_attention(beta * Q, K, V + params.e + params.c, causal=causal, mask=mask)
        added = float((params.beta**2).sum())
        return (1 + g) * noise * Z, EverythingPullback(Q, V, params.beta, g, noise, Z, attention, added)

    def observe(self, pullback):
        return pullback.V.reshape(-1, self.d).mean(0)

    def after_step(self, params, observed, rng):
        return params._replace(c=(0.9 * params.c + 0.1 * observed).astype(params.c.dtype))
