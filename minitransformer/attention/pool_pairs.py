"""Blocks that overlap: each is pooled together with the block before it, in one softmax over the tokens of both."""

import numpy as np

from minitransformer.arrays import one_dtype
from minitransformer.attention.pooled import PoolPullback, pool_blocks
from minitransformer.pullback import Pullback
from minitransformer.ranges import so_many
from minitransformer.typing import Array, Bool, Float, checked


class PoolPairsPullback(Pullback):
    """`PoolPullback` gives each place of a pair of blocks its share; half of it belongs to the block before."""

    pool: PoolPullback
    m: int

    def __call__(self, dE: Array) -> tuple[Array, Array, Array]:
        dC, dZ, dbeta = self.pool(dE)
        return self._tokens(dC), self._tokens(dZ), dbeta

    def _tokens(self, pairs: Array) -> Array:
        """The gradient of `_pairs`: (*batch, 2 s ⌊m/s⌋, d) to (*batch, m, 2 d), zeros behind the last complete block."""
        *batch, count, places, d = self.pool.P.shape
        pairs, s = pairs.reshape(self.pool.P.shape), places // 2
        blocks = np.zeros((*batch, count, s, 2 * d), pairs.dtype)
        blocks[..., :-1, :, :d] = pairs[..., 1:, :s, :]
        blocks[..., d:] = pairs[..., s:, :]
        rows = np.zeros((*batch, self.m, 2 * d), pairs.dtype)
        rows[..., : count * s, :] = blocks.reshape(*batch, count * s, 2 * d)
        return rows


def _pairs(X: Array, s: int) -> Array:
    """Each block of s rows behind the block before it, (*batch, m, 2 d) to (*batch, 2 s ⌊m/s⌋, d).

    The block before gives its first d columns, the block itself the last d. Before the first block there are zeros.
    """
    (*batch, _, two), count = X.shape, X.shape[-2] // s
    d, blocks = two // 2, X[..., : count * s, :].reshape(*batch, count, s, two)
    pairs = np.zeros((*batch, count, 2 * s, d), X.dtype)
    pairs[..., 1:, :s, :] = blocks[..., :-1, :, :d]
    pairs[..., s:, :] = blocks[..., d:]
    return pairs.reshape(*batch, 2 * s * count, d)


@checked
def pool_pairs(
    C: Float[Array, "*batch m columns"],
    Z: Float[Array, "*batch m columns"],
    beta: Float[Array, "places d"],
    *,
    mask: Bool[Array, "*batch m"] | None = None,
) -> tuple[Float[Array, "*batch blocks d"], PoolPairsPullback]:
    """Each block of s rows becomes one, together with the block before it: an average of 2s rows, weighted as the tokens say.

        E_b = Σ_t P_bt ⊙ a_{b−1,t} + Σ_t P_b,s+t ⊙ e_{b,t},    P_b = softmax of z^a_{b−1,t} + β_t and z^e_{b,t} + β_{s+t} together

    C        for each token a row for the block behind its own, and one for its own: [a | e], twice as wide as E
    Z        the logits of the weights, [z^a | z^e], a number for each channel
    beta     what is added to them for each place: first those in the block before, then those in the block itself
    mask     True where a token is there; a block without any in both gives zeros
    source   DeepSeek-AI 2026 (DeepSeek-V4), equations 9 to 12
    cost     O(m d). Rows behind the last complete block are not used
    returns  E, before any norm, with ⌊m/s⌋ rows and a pullback: dC, dZ, dbeta = pullback(dE)
    raises   TypeError for a wrong dtype; ValueError for an odd or missing number of places, or rows that are not twice as wide
    """
    one_dtype(C=C, Z=Z, beta=beta)
    places, d = beta.shape
    if places == 0 or places % 2:
        raise ValueError(f"beta: {so_many(places, 'row')}, but there is one for each place in two blocks of one size")
    if C.shape[-1] != 2 * d:
        raise ValueError(f"C: rows of width {C.shape[-1]} should be {2 * d} wide, twice as wide as beta")
    s, m = places // 2, C.shape[-2]
    there = np.ones(C.shape[:-1], bool) if mask is None else np.broadcast_to(mask, C.shape[:-1])
    seen = _pairs(np.repeat(there[..., None], 2, -1), s)[..., 0]
    E, pool = pool_blocks(_pairs(C, s), _pairs(Z, s), beta, mask=seen)
    return E, PoolPairsPullback(pool, m)
