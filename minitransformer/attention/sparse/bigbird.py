"""BigBird: neighbours, a few blocks that all see, and a few that are drawn.

    block t sees        t − 1, t, t + 1  |  the first and the last  |  r that are drawn
    first and last      see everything

A window alone needs n / w layers to bring a token to the other end; a few random edges make all paths short, and tokens that
all see make them two edges long. Everything happens in blocks of b tokens, because a product of matrices is quick where single
pairs are slow. What is drawn is drawn once, by a seed, for each head, and from the blocks that a row does not see anyway: a
block that came twice into one softmax would count twice.

Two forms of the global tokens: those of the text, as above (ITC), or `extra` rows of their own in front of it (ETC; etc.py has
that construction with its labels).
"""

import functools
from typing import Literal, NamedTuple

import numpy as np

from minitransformer.arrays import as_one_axis
from minitransformer.attention.block_sparse import TILE
from minitransformer.attention.core import seen_keys
from minitransformer.attention.dot_product import dot_product_attention
from minitransformer.attention.sparse.pattern import Pattern
from minitransformer.door import frozen
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Bool, Float, Int, checked


@frozen
class BigBird(Pattern):
    """Blocks of `block` tokens: `window` neighbours at each side, the first and last `globals_`, and `random` others for each.

    If causal, a block sees the `window` blocks before it, the first `globals_`, and `random` of those between. What a
    block draws depends on the seed, its number and the head; both ways, on the number of blocks as well.

    extra    rows that the model puts in front of the text, which see and are seen by all; then it can't be causal
    heads    of the layer, each of which draws its own; the model fills it in
    source   Zaheer et al. 2020; Borealis II, figure 9c; Aalto 3.1.3, whose "fixed random tokens" are drawn for each row (E59);
             Lecture notes C.3, whose window is w = 2 window + 1 blocks in one place and w tokens in another (E40)
    """

    window: int = 1
    globals_: int = 1
    random: int = 3
    seed: int = 0
    block: int = 64
    extra: int = 0
    heads: int = 1

    @property
    def cost(self) -> str:  # type: ignore[override]
        """That of its blocks."""
        return f"O({self.block} n)"

    @property
    def causal(self) -> Literal["either", "always", "never"]:
        """Not with rows in front: they see the whole text."""
        return "never" if self.extra else "either"

    @property
    def front(self) -> int:
        """The extra rows."""
        return self.extra

    @property
    def of_heads(self) -> tuple[Pattern, ...]:
        """One rule for each, that differ in what they draw."""
        return (self,) if self.heads == 1 else tuple(_OfHead(self, head) for head in range(self.heads))

    def drawn(self, number: int) -> Array:
        """Of `number` blocks, those that each head draws for the rows 1 … number − 2: (H, number − 2, random).

        raises   ValueError if there are fewer blocks to draw from
        """
        free = number - 2 * self.window - 1 - 2 * self.globals_
        if free < self.random:
            raise ValueError(f"number: {number} blocks leave {max(free, 0)} to draw from, for {self.random}")
        fixed = self._fixed(number, causal=False)
        rows = range(1, number - 1)
        return np.array([[self._draw(fixed, row, number, head) for row in rows] for head in range(self.heads)])

    def sees(self, i: Array, j: Array, m: int, *, causal: bool) -> Array:
        """All pairs of two blocks that see each other, or of a row in front."""
        if self.heads > 1:
            return super().sees(i, j, m, causal=causal)
        return self._pairs(i, j, m, causal, 0)

    def near(self, t: Array, k: Array, m: int, *, causal: bool) -> Array:
        """Tiles between whose blocks there are two that see each other."""
        return self._tiles(t, k, m, causal, 0)

    # ------------------------------------------------------------------------------------------- of one head

    def _pairs(self, i: Array, j: Array, m: int, causal: bool, head: int) -> Array:
        own = self._blocks(self._number(m), causal, head)
        t, k = (np.clip((x - self.extra) // self.block, 0, len(own) - 1) for x in (i, j))
        return own[t, k] | ((0 <= i) & (i < self.extra)) | (j < self.extra)

    def _tiles(self, t: Array, k: Array, m: int, causal: bool, head: int) -> Array:
        own = self._blocks(self._number(m), causal, head)
        before = np.pad(own.cumsum(0).cumsum(1), ((1, 0), (1, 0)))  # how many pairs of blocks up to here see each other

        def blocks(tile: Array) -> tuple[Array, Array]:
            ends = tile * TILE - self.extra, tile * TILE - self.extra + TILE - 1
            low, high = (np.clip(end // self.block, 0, len(own) - 1) for end in ends)
            return low, high + 1

        (t_low, t_high), (k_low, k_high) = blocks(t), blocks(k)
        some = before[t_high, k_high] - before[t_low, k_high] - before[t_high, k_low] + before[t_low, k_low] > 0
        return some | (t * TILE < self.extra) | (k * TILE < self.extra)

    def _number(self, m: int) -> int:
        return max(-(-(m - self.extra) // self.block), 1)

    def _fixed(self, number: int, causal: bool) -> Array:
        t, k = np.arange(number)[:, None], np.arange(number)[None]
        fixed = (np.abs(t - k) <= self.window) | (k < self.globals_)
        if not causal:
            fixed |= (t < self.globals_) | (np.maximum(t, k) >= number - self.globals_)
        return fixed

    def _draw(self, fixed: Array, row: int, number: int, head: int) -> Array:
        others = np.flatnonzero(~fixed[row, :number])  # nobody draws what is seen anyway
        return others[np.random.default_rng([self.seed, row, head]).permutation(len(others))[: self.random]]

    @functools.lru_cache(maxsize=64)  # noqa: B019  (patterns are few and small)
    def _blocks(self, number: int, causal: bool, head: int) -> Array:
        fixed = self._fixed(number, causal)
        own = fixed.copy()
        for row in range(number):
            own[row, self._draw(fixed, row, row if causal else number, head)] = True
        return np.tril(own) if causal else own


@frozen
class _OfHead(Pattern):
    of: BigBird
    head: int

    def sees(self, i: Array, j: Array, m: int, *, causal: bool) -> Array:
        """As BigBird, with what this head draws."""
        return self.of._pairs(i, j, m, causal, self.head)

    def near(self, t: Array, k: Array, m: int, *, causal: bool) -> Array:
        """As BigBird, with what this head draws."""
        return self.of._tiles(t, k, m, causal, self.head)


# --------------------------------------------------------------------------------------- rolled and gathered keys


class Looks(NamedTuple):
    """Which blocks of keys the rows 1 … N − 2 are multiplied with; rows 1 and N − 2 stand beside a global block."""

    drawn: Array  # (H, N − 2, r)

    def of(self, X: Array) -> tuple[Array, Array, Array]:
        """Of X (…, H, N, b, d) what row 1 looks at, the rows between, and row N − 2: 4 + r blocks, 5 + r, 4 + r."""
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
        """Its gradient: each block gets the sum over the places where it was looked at."""
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


class BlockedPullback(NamedTuple):
    """Five attentions: of row 0, row 1, the rows between, row N − 2 and row N − 1. A block of keys gets the sum of them."""

    attention: tuple[Pullback, ...]
    looks: Looks
    n: int
    block: int

    def __call__(self, dY: Array) -> tuple[Array, Array, Array]:
        dQ, dK, dV = zip(
            *(back(d) for back, d in zip(self.attention, _rows(_cut(dY, self.block)), strict=True)), strict=True
        )
        dX = []
        for top, second, middle, last, bottom in (dK, dV):
            whole = _joined(self.looks.back(second, middle, last, self.block), self.n)
            dX.append(whole + (top + bottom)[..., : self.n, :])
        return _joined(_unrows(dQ), self.n), dX[0], dX[1]


def _cut(X: Array, b: int) -> Array:
    """(…, n, d) to (…, N, b, d), zeros behind the end."""
    X = np.pad(X, [(0, 0)] * (X.ndim - 2) + [(0, -X.shape[-2] % b), (0, 0)])
    return X.reshape(*X.shape[:-2], X.shape[-2] // b, b, X.shape[-1])


def _joined(X: Array, n: int) -> Array:
    return as_one_axis(X, -3, -1)[..., :n, :]


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
) -> tuple[Float[Array, "*batch heads tokens dv"], BlockedPullback]:
    """BigBird as it is computed where only dense products are quick: keys are rolled and gathered until each row has its own.

        row t = 2 … N − 3    [K_0 | K_{t−1} K_t K_{t+1} | drawn | K_{N−1}]      (5 + r) b keys
        row 1, row N − 2     [K_0 K_1 K_2 K_{N−1} | drawn], [K_0 K_{N−3} K_{N−2} K_{N−1} | drawn]     (4 + r) b
        row 0, row N − 1     all n

    The three neighbours are three copies of K, shifted by one block, and so one product serves all rows between. The same as
    `block_sparse_attention` over BigBird(window=1, globals_=1, random=r), and slower: the copies are 5 + r times K.

    drawn    (H, N − 2, r), the blocks that each head draws for rows 1 … N − 2: BigBird.drawn(N)
    block    b; N = ⌈n / b⌉
    mask     which keys are there, (…, 1, n)
    source   Zaheer et al. 2020, appendix D; Lecture notes C.3. n need be no multiple of b
    cost     O(n (5 + r) b d) time, O(n (5 + r) (b + d)) memory in the tier "numpy"
    returns  Y and a pullback: dQ, dK, dV = pullback(dY). Not causal
    raises   ValueError for fewer than 5 blocks, or a drawn block that a row sees anyway: it would count twice
    """
    N = -(-Q.shape[-2] // block)
    if N < 5:
        raise ValueError(f"block: {Q.shape[-2]} tokens in blocks of {block} should be at least 5 blocks")
    _refuse_collisions(drawn, N)
    there = seen_keys(mask, Q, K, "BigBird's blocked form")
    n, looks = Q.shape[-2], Looks(drawn)
    there = np.broadcast_to(np.True_ if there is None else there, (*K.shape[:-1], 1))
    masks = looks.of(_cut(there, block))
    keys, values = looks.of(_cut(K, block)), looks.of(_cut(V, block))
    everywhere = [(K, V, there)]
    seen = [*everywhere, *zip(keys, values, masks, strict=True), *everywhere]
    found = [
        dot_product_attention(q, k, v, mask=m.mT) for q, (k, v, m) in zip(_rows(_cut(Q, block)), seen, strict=True)
    ]
    Y = _joined(_unrows(tuple(y for y, _ in found)), n)
    return Y, BlockedPullback(tuple(pullback for _, pullback in found), looks, n, block)


def _refuse_collisions(drawn: Array, N: int) -> None:
    rows = np.arange(1, N - 1)[:, None]
    if drawn.shape[1] != N - 2:
        raise ValueError(f"drawn: for {drawn.shape[1]} rows, and there are {N - 2} between the first and the last")
    twice = (np.abs(drawn - rows) <= 1) | (drawn <= 0) | (drawn >= N - 1)
    if twice.any() or (np.diff(np.sort(drawn, -1), axis=-1) == 0).any():
        raise ValueError("drawn: a block that a row sees anyway would count twice")
