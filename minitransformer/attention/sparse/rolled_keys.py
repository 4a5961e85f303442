"""BigBird as its paper computes it: keys are rolled and gathered until every row of blocks has its own, side by side.

    row t of queries    [K_0 | K_{t−1} K_t K_{t+1} | drawn | K_{N−1}]

A machine that is quick at products of matrices and slow at everything else wants all rows to look alike. The neighbours of all
blocks are three copies of the keys, each shifted by one block (`np.roll`); only what is drawn has to be gathered. The compiled
loops of this book need none of that: they walk through a list of tiles (bigbird.py). Both give the same.
"""

from typing import NamedTuple

import numpy as np

from minitransformer.arrays import from_blocks, in_blocks
from minitransformer.attention.core import seen_keys
from minitransformer.attention.dot_product import dot_product_attention
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Bool, Float, Int, checked


class Looks(NamedTuple):
    """The blocks of keys that rows 1 … N − 2 look at; for rows 1 and N − 2, a neighbour is one of the global blocks."""

    drawn: Array  # (H, N − 2, r)

    def of(self, X: Array) -> tuple[Array, Array, Array]:
        """The blocks of X (…, H, N, b, d) that row 1, the rows between and row N − 2 look at: 4 + r, 5 + r and 4 + r each."""
        H, rows, r = self.drawn.shape
        drawn = X[..., np.arange(H)[:, None, None], self.drawn, :, :]
        drawn = drawn.reshape(*X.shape[:-3], rows, r * X.shape[-2], X.shape[-1])
        first, last = (np.broadcast_to(X[..., at, :, :], X[..., 2:-2, :, :].shape) for at in ([0], [-1]))
        rolled = [np.roll(X, by, -3)[..., 2:-2, :, :] for by in (1, 0, -1)]
        middle = np.concatenate([first, *rolled, drawn[..., 1:-1, :, :], last], -2)
        ends = [
            np.concatenate([*(X[..., at, :, :] for at in blocks), drawn[..., row, :, :]], -2)
            for blocks, row in (((0, 1, 2, -1), 0), ((0, -3, -2, -1), -1))
        ]
        return ends[0], middle, ends[1]

    def back(self, dsecond: Array, dmiddle: Array, dlast: Array, b: int) -> Array:
        """The gradient of `of`: each block of X gets the sum over the places where it was looked at."""
        H, rows, r = self.drawn.shape
        dX = np.zeros((*dsecond.shape[:-2], rows + 2, b, dsecond.shape[-1]), dsecond.dtype)
        for dends, blocks in ((dsecond, (0, 1, 2, -1)), (dlast, (0, -3, -2, -1))):
            for place, at in enumerate(blocks):
                dX[..., at, :, :] += dends[..., place * b : (place + 1) * b, :]
        parts = dmiddle.reshape(*dmiddle.shape[:-2], 5 + r, b, dmiddle.shape[-1])  # (…, N − 4, 5 + r, b, d)
        dX[..., 0, :, :] += parts[..., 0, :, :].sum(-3)
        dX[..., -1, :, :] += parts[..., -1, :, :].sum(-3)
        for by in range(3):
            dX[..., 1 + by : rows - 1 + by, :, :] += parts[..., 1 + by, :, :]
        for head, row, place in np.ndindex(H, rows, r):
            if 0 < row < rows - 1:
                d = parts[..., head, row - 1, 4 + place, :, :]
            else:
                d = (dsecond if row == 0 else dlast)[..., head, (4 + place) * b : (5 + place) * b, :]
            dX[..., head, self.drawn[head, row, place], :, :] += d
        return dX


class BlockedPullback(Pullback):
    """Five attentions: of row 0, row 1, the rows between, row N − 2 and row N − 1. A block of keys gets the sum of them."""

    attention: tuple[Pullback, ...]
    looks: Looks
    n: int
    block: int

    def __call__(self, dY: Array) -> tuple[Array, Array, Array]:
        found = [back(d) for back, d in zip(self.attention, _rows(in_blocks(dY, self.block)), strict=True)]
        dQ, dK, dV = zip(*found, strict=True)
        dX = []
        for top, second, middle, last, bottom in (dK, dV):
            whole = from_blocks(self.looks.back(second, middle, last, self.block), self.n)
            dX.append(whole + (top + bottom)[..., : self.n, :])
        return from_blocks(_unrows(dQ), self.n), dX[0], dX[1]


def _rows(X: Array) -> tuple[Array, ...]:
    """Rows 0, 1, those between, N − 2 and N − 1."""
    return tuple(X[..., at, :, :] for at in (0, 1, slice(2, -2), -2, -1))


def _unrows(rows: tuple[Array, ...]) -> Array:
    return np.concatenate([X if k == 2 else X[..., None, :, :] for k, X in enumerate(rows)], -3)


@checked
def bigbird_attention(
    Q: Float[Array, "*batch heads tokens d"],
    K: Float[Array, "*batch heads tokens d"],
    V: Float[Array, "*batch heads tokens dv"],
    drawn: Int[Array, "heads rows r"],
    *,
    block: int,
    mask: Bool[Array, "..."] | None = None,
    scale: float | None = None,
) -> tuple[Float[Array, "*batch heads tokens dv"], BlockedPullback]:
    """BigBird by dense products alone, of keys that are rolled and gathered.

        row t = 2 … N − 3    [K_0 | K_{t−1} K_t K_{t+1} | drawn | K_{N−1}]      (5 + r) b keys
        row 1, row N − 2     [K_0 K_1 K_2 K_{N−1} | drawn], [K_0 K_{N−3} K_{N−2} K_{N−1} | drawn]     (4 + r) b
        row 0, row N − 1     all n

    The same as `block_sparse_attention` over BigBird(window=1, global_tokens=1, random=r), with 5 + r copies of K.

    drawn    (H, N − 2, r), the blocks that each head draws for rows 1 … N − 2: BigBird.drawn(N)
    block    b; N = ⌈n / b⌉
    mask     True where a key is there, (…, 1, n)
    scale    1/√d by default
    source   Zaheer et al. 2020, appendix D; Lecture notes C.3. n need be no multiple of b
    cost     O(n (5 + r) b d) time, O(n (5 + r) (b + d)) memory in the tier "numpy"
    returns  Y and a pullback: dQ, dK, dV = pullback(dY). Not causal
    raises   TypeError for a wrong shape or dtype; ValueError for fewer than 5 blocks, drawn blocks for another number of rows, or
             one that a row sees anyway: it would count twice
    """
    N = -(-Q.shape[-2] // block)
    if N < 5:
        raise ValueError(f"block: {Q.shape[-2]} tokens in blocks of {block} should be at least 5 blocks")
    _refuse_collisions(drawn, N)
    there = seen_keys(mask, Q, K, "BigBird's blocked form")
    n, looks = Q.shape[-2], Looks(drawn)
    there = np.broadcast_to(np.True_ if there is None else there, (*K.shape[:-1], 1))
    masks = looks.of(in_blocks(there, block))
    keys, values = looks.of(in_blocks(K, block)), looks.of(in_blocks(V, block))
    everywhere = [(K, V, there)]
    seen = [*everywhere, *zip(keys, values, masks, strict=True), *everywhere]
    found = [
        dot_product_attention(q, k, v, mask=m.mT, scale=scale)
        for q, (k, v, m) in zip(_rows(in_blocks(Q, block)), seen, strict=True)
    ]
    Y = from_blocks(_unrows(tuple(y for y, _ in found)), n)
    return Y, BlockedPullback(tuple(pullback for _, pullback in found), looks, n, block)


def _refuse_collisions(drawn: Array, N: int) -> None:
    rows = np.arange(1, N - 1)[:, None]
    if drawn.shape[1] != N - 2:
        raise ValueError(f"drawn: blocks for {drawn.shape[1]} rows, but {N - 2} stand between the first and the last")
    twice = (np.abs(drawn - rows) <= 1) | (drawn <= 0) | (drawn >= N - 1)
    if twice.any() or (np.diff(np.sort(drawn, -1), axis=-1) == 0).any():
        raise ValueError("drawn: a block that a row sees anyway would count twice")
