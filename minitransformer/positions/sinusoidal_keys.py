"""Shaw's vectors of offsets, made of sinusoids: nothing to learn but, if wished, the frequencies.

    S_ij = ⟨q_i, k_j + r_{j−i}⟩ / √d,        r_o = (sin ω_0 o, cos ω_0 o, sin ω_1 o, …)

It stands between Shaw's tables and Transformer-XL. With the sinusoids of absolute.py there is then each of the four: absolute or
relative, with given frequencies or learned ones.
"""

import numpy as np

from minitransformer.arrays import one_dtype
from minitransformer.checks import frozen
from minitransformer.functional import ScoresPullback, scores
from minitransformer.gather_scatter import unbroadcast
from minitransformer.positions.absolute import (
    LearnableSinusoidParams,
    LearnableSinusoidPullback,
    LearnableSinusoids,
    must_be_even,
    sinusoids,
)
from minitransformer.positions.encoding import NoParams, ScoreEncoding, refuse_other_width
from minitransformer.positions.relative_sinusoids import relative_shift, unshift
from minitransformer.pullback import Pullback, Tree
from minitransformer.typing import Array


class SinusoidalKeysPullback(Pullback):
    """T = scale · Q Rᵀ was shifted into the scores: dT = unshift(dS), dQ gets scale · dT R too, and dR = scale · dTᵀ Q."""

    content: ScoresPullback
    R: Array
    table: LearnableSinusoidPullback | None

    def __call__(self, dS: Array) -> tuple[Tree, Array, Array]:
        dQ, dK = self.content(dS)
        dT = unshift(self.content.scale * dS)
        dQ = dQ + dT @ self.R
        if self.table is None:
            return NoParams(), dQ, dK
        dR = unbroadcast(dT.mT @ self.content.Q, self.R.shape)
        return self.table(dR)[0], dQ, dK


@frozen
class SinusoidalKeys(ScoreEncoding):
    """A sinusoid of the offset, added to the key; with `learn=True` its frequencies are learned.

    d        width of a head, even
    learn    whether the frequencies are learned (their logarithms, shared by the heads), from 10000^(−2f/d) on
    source   Borealis II, after (12): "pre-defined sinusoidal embeddings have also been used" in (10); figure 4
    cost     O(n (n + m) d) for each head, O(n (n + m)) memory. Can be causal.
    raises   ValueError for an odd d
    """

    d: int
    learn: bool = False

    def __post_init__(self) -> None:
        must_be_even(self.d, "d")

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> LearnableSinusoidParams | NoParams:
        """The logarithms of the frequencies if they are learned, else NoParams()."""
        return LearnableSinusoids(self.d).init(rng, dtype) if self.learn else NoParams()

    def scores(self, params: Tree, Q: Array, K: Array) -> tuple[Array, SinusoidalKeysPullback]:
        """S (*batch, H, n, m), in which ⟨q_i, r_o⟩ is computed once for each query and offset o, from −(m − 1) to n."""
        n, m = Q.shape[-2], K.shape[-2]
        refuse_other_width(self.d, Q=Q)
        R, table = sinusoids(n + m, self.d, first=1 - m).astype(Q.dtype), None
        if self.learn:
            one_dtype(Q=Q, log_omega=params.log_omega)
            R, table = LearnableSinusoids(self.d)(params, np.zeros_like(R), first=1 - m)
        S, content = scores(Q, K, scale=self.scale)
        S += relative_shift((content.scale * Q) @ R.T)
        return S, SinusoidalKeysPullback(content, R, table)
