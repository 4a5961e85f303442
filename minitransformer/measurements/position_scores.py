"""The scores of any encoding before softmax, with parameters whose effect can be seen, and whether only offsets count."""

from typing import Any

import numpy as np

from minitransformer.attention import scores
from minitransformer.positions import FIRE, Encoding, KerpleLog, OffsetBias, RoPE, ScoreEncoding, rotate
from minitransformer.positions.encoding import pair_scores
from minitransformer.positions.fire import START
from minitransformer.pullback import Tree
from minitransformer.typing import Array

THRESHOLD = 24  # n₀ of FIRE, |L| in its paper


def scores_of(encoding: Encoding, params: Tree, Q: Array, K: Array) -> Array:
    """The scores before softmax, (*batch, H, n, m), whichever stage the encoding acts on."""
    if isinstance(encoding, (OffsetBias, ScoreEncoding)):
        return pair_scores(encoding, params, Q, K, causal=False)[0]
    if isinstance(encoding, RoPE):
        m = K.shape[-2]
        angles, magnitude = encoding.angles(m)
        turned = [
            rotate(X, angles=angles[m - X.shape[-2] :], layout=encoding.layout, magnitude=magnitude)[0] for X in (Q, K)
        ]
        return scores(*turned)[0]
    raise TypeError(f"{type(encoding).__name__}: no scores known")


def with_some_parameters(encoding: Any, rng: np.random.Generator) -> Tree:
    """Parameters whose effect can be seen: tables and vectors of variance 1, other values as the encoding draws them."""
    params = encoding.init(rng, np.float64)
    if isinstance(encoding, FIRE):
        f = {name: np.zeros_like(getattr(params, name)) for name in ("W_1", "b_1", "W_2", "b_2")}
        f["W_1"][:, 0], f["W_2"][0] = 1, -4  # one hidden number, the same for all heads
        return params._replace(L_mult=np.full(1, THRESHOLD / START), **f)
    if isinstance(encoding, KerpleLog):
        return params._replace(p=np.ones_like(params.p), a=np.ones_like(params.a))
    drawn = {
        name: rng.standard_normal(value.shape)
        for name, value in params._asdict().items()
        if value is not None and name in ("table", "theta", "a_k", "a_v", "a", "u", "v", "P")
    }
    return params._replace(**drawn) if drawn else params


def varies_along_diagonals(S: Array) -> float:
    """0 if S_ij of each head is a function of j − i: the largest range of the scores of one diagonal, in units of that of S."""
    n = S.shape[-1]
    return float(max(np.ptp(np.diagonal(S, o, -2, -1), -1).max() for o in range(1 - n, n)) / np.ptp(S))
