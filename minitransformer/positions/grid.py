"""A picture, read line by line: one number for each head and each offset in two directions, added to the scores.

    S_ij = ⟨q_i, k_j⟩/√d + π_{Δy, Δx},     (Δy, Δx) = (y_j − y_i, x_j − x_i)

Token t stands in row y = ⌊t / columns⌋ and column x = t mod columns. The offset j − i = columns · Δy + Δx alone says less: by it
the last pixel of a row and the first of the next are neighbours, and here they are not.
"""

from typing import NamedTuple

import numpy as np

from minitransformer.arrays import one_dtype
from minitransformer.checks import frozen
from minitransformer.functional import ScoresPullback, scores
from minitransformer.gather_scatter import refuse_other_heads, sum_by_index, unbroadcast
from minitransformer.positions.encoding import ScoreEncoding, queries_last
from minitransformer.pullback import Pullback
from minitransformer.ranges import NonNegative, so_many
from minitransformer.typing import Array, Int, checked


@checked
def grid_offsets(n: NonNegative, m: NonNegative, columns: int, rows: int) -> Int[Array, "n m"]:
    """Which entry of a table of (2 rows − 1) (2 columns − 1) numbers belongs to (i, j), the queries being the last n of m.

    The table is read row by row: Δy from −(rows − 1) to rows − 1, and within it Δx from −(columns − 1) to columns − 1.
    raises   ValueError for more queries than keys, or more keys than pixels
    """
    if n > m:
        raise ValueError(f"n: {n} queries for {so_many(m, 'key')}: should be at most {m}")
    if m > rows * columns:
        raise ValueError(f"m: {m} pixels should be at most {rows} rows of {columns}")
    y, x = np.divmod(np.arange(m), columns)
    i = slice(m - n, m)
    return (y - y[i, None] + rows - 1) * (2 * columns - 1) + (x - x[i, None] + columns - 1)


class GridScalarsParams(NamedTuple):
    """π of each head, (H, 2 rows − 1, 2 columns − 1): the offset (0, 0) is in the middle."""

    table: Array


class GridScalarsPullback(Pullback):
    """S = C + π: dS goes to the contents, and dπ_o is the sum of dS over the batch and all pairs with this offset."""

    content: ScoresPullback
    pairs: Array  # the entry of the table that belongs to (i, j)
    shape: tuple[int, ...]

    def __call__(self, dS: Array) -> tuple[GridScalarsParams, Array, Array]:
        heads, rows, columns = self.shape
        dtable = sum_by_index(unbroadcast(dS, dS.shape[-3:]), self.pairs, rows * columns)
        return GridScalarsParams(dtable.reshape(heads, rows, columns)), *self.content(dS)


@frozen
class GridScalars(ScoreEncoding):
    """One learned number for each head and each offset between two pixels of a picture.

    heads     H
    longest   tokens of the largest picture: ⌈longest / columns⌉ rows
    columns   pixels in a row
    source    Liu et al. 2021a (Swin), within a window; Cordonnier, Loukas and Jaggi 2020 with numbers that are functions of
              the offset
    cost      O(n m H) memory. Can be causal: a picture that is written pixel by pixel
    raises    ValueError for other heads, more queries than keys, or more keys than rows · columns
    """

    heads: int
    longest: int
    columns: int = 8

    relative = False

    @property
    def rows(self) -> int:
        """Rows of the largest picture."""
        return -(-self.longest // self.columns)

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> GridScalarsParams:
        """Small random numbers, of standard deviation 0.02."""
        shape = self.heads, 2 * self.rows - 1, 2 * self.columns - 1
        return GridScalarsParams((0.02 * rng.standard_normal(shape)).astype(dtype))

    def scores(self, params: GridScalarsParams, Q: Array, K: Array) -> tuple[Array, GridScalarsPullback]:
        """S (*batch, H, n, m). Pullback: dS to (dparams, dQ, dK)."""
        one_dtype(Q=Q, table=params.table)
        refuse_other_heads(Q, self.heads)
        n, m = queries_last(Q, K)
        if m > self.rows * self.columns:
            raise ValueError(f"K: {m} pixels, and the table is for {self.rows} rows of {self.columns}")
        C, content = scores(Q, K)
        pairs = grid_offsets(n, m, self.columns, self.rows)
        flat = params.table.reshape(self.heads, params.table[0].size)
        return C + flat[:, pairs], GridScalarsPullback(content, pairs, params.table.shape)
