"""What happens to a tile of scores between the products, forwards and backwards: bias, cap, hidden pairs, empty quarters."""

import numpy as np

from minitransformer.kernels.attention_pairs import ALL_QUARTERS
from minitransformer.kernels.compiling import inlined, inside
from minitransformer.kernels.exp2 import tanh
from minitransformer.kernels.tiles import HALF, LANES, rows_of


@inside
def hide(S, columns, mask, r0, c0):
    """S[r, c] = −∞ where mask[r0 + r, c0 + c] is False, for c < columns. An axis of the mask with length 1 is broadcast."""
    hidden = S.dtype.type(-np.inf)
    for r in range(len(S)):
        s, row = S[r], mask[r0 + r if len(mask) > 1 else 0]
        if len(row) > 1:
            seen = rows_of(row, c0, c0 + columns)
            for c in range(columns):
                s[c] = s[c] if seen[c] else hidden
        elif not row[0]:
            for c in range(columns):
                s[c] = hidden


@inside
def add_bias(S, bias, start, step):
    """S[r, c] += bias[start + step · r + c]. (With `rows_of` in the place of the slice it takes longer.)"""
    for r in range(len(S)):
        b = bias[start + step * r : start + step * r + LANES]
        for c in range(LANES):
            S[r, c] += b[c]


@inside
def cap_scores(S, cap):
    """S = c tanh(S/c)."""
    s, inverse = S.reshape(-1), S.dtype.type(1) / cap
    for i in range(len(s)):
        s[i] = cap * tanh(s[i] * inverse)


@inlined
def quarters_of(pairs, number, i, j, ahead):
    """The quarters of tile `number`, whose first query and key stand at i and j; `ahead` is that of early queries, late keys."""
    some = pairs.quarters[number] if pairs.starts.size > 0 else ALL_QUARTERS
    return some & ~ahead if pairs.causal and i == j else some


@inside
def strips_of(rows, some):
    """Which rows of a tile are computed, from where to where, and how many at a time."""
    if some == ALL_QUARTERS:
        return 0, rows, rows
    return 0 if some & 3 else HALF, LANES if some & 12 else HALF, HALF


@inside
def columns_of(r, some):
    """From where to where a strip of rows that begins at row r has columns in which any pair counts."""
    some >>= r // HALF * 2
    return 0 if some & 1 else HALF, LANES if some & 2 else HALF
