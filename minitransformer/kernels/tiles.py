"""Products of tiles, and the space for them: what the kernels for attention, for sparse and for kernel attention share.

    for each four rows of A:                             C (rows, 64)  +=  A (rows, inner)  B (inner, 64)
        for each four rows of B:
            for i in 0 … 63:
                C[r + 0 … 3, i] += A[r + 0 … 3, k + 0 … 3] B[k + 0 … 3, i]

Why this order is fast. The innermost loop runs along rows of 64 numbers that stand side by side, with a length that the
compiler knows: it becomes vector instructions. Four rows by four make 16 multiply-adds for 12 loads and stores of C
and B, and four loads of A. Three tiles of float32 fit into the first-level cache (16 kB each), or stream from the second.

In the tier "micro" the same product is made by the micro-kernel, which keeps its part of C in registers.
"""

import numpy as np

from minitransformer.backend import current
from minitransformer.kernels.compiling import compiled, inlined
from minitransformer.kernels.micro_kernel import NARROW, REGISTER, WIDE, four_rows, four_rows_narrow, six_rows

LANES = 64  # columns of a tile
LINE = 64  # bytes in a line of the cache; a vector that straddles two of them is read twice


@inlined
def room(number, rows, like):
    """Room for tiles, (number, rows, LANES), in the type of `like`, that begins with a line of the cache."""
    size, line = number * rows * LANES, LINE // like.itemsize
    space = np.empty(size + line, like.dtype)
    skip = (-space.ctypes.data // like.itemsize) % line
    return space[skip : skip + size].reshape(number, rows, LANES)


@compiled
def tiles(number, rows, like):
    """The same, filled with zeros."""
    space = room(number, rows, like)
    space[:] = 0
    return space


@inlined
def tile(rows, like):
    """One tile of zeros, (rows, LANES)."""
    return tiles(1, rows, like)[0]


def plain_loops():
    """What `loops`, the last argument of a product, should be: None for the micro-kernel, True for plain loops.

    A value of None is known before a function is compiled, and with it that the branch of the loops is not needed.
    """
    return None if current() == "micro" else True


@inlined
def product(A, B, C, columns, loops):
    """C = A B, in the first `columns` columns at least. Rows of A (for plain loops columns, too) are a multiple of four."""
    product_from(C[:0], A, B, C, columns, loops)


@inlined
def add_product(A, B, C, columns, loops):
    """C += A B, in the first `columns` columns at least. For plain loops, columns of A are a multiple of four as well."""
    product_from(C, A, B, C, columns, loops)


@compiled
def product_from(S, A, B, C, columns, loops):
    """C = S + A B. S has as many rows as C or none; for the micro-kernel also one, which is added to each row."""
    if loops is None:
        wide, narrow = WIDE * REGISTER // C.itemsize, NARROW * REGISTER // C.itemsize
        sixes = len(A) // 12 * 12
        c = 0
        while c + wide <= columns:
            for r in range(0, sixes, 6):
                six_rows(A, B, S, C, r, c)
            for r in range(sixes, len(A), 4):
                four_rows(A, B, S, C, r, c)
            c += wide
        while c < columns:
            for r in range(0, len(A), 4):
                four_rows_narrow(A, B, S, C, r, c)
            c += narrow
    else:
        if len(S) == 0:
            C[: len(A)] = 0
        add_product_by_loops(A, B.reshape(-1), C.reshape(-1))


@compiled
def add_product_by_loops(A, B, C):
    """C += A B, four rows of A by four rows of B at a time.

    B and C are taken as one long row, because the compiler then sees how their rows lie to each other, and need not ask
    each time whether they overlap.
    """
    rows, inner = A.shape
    for r in range(0, rows, 4):
        c = C[r * LANES : (r + 4) * LANES]
        for k in range(0, inner, 4):
            b = B[k * LANES : (k + 4) * LANES]
            a00, a01, a02, a03 = A[r, k], A[r, k + 1], A[r, k + 2], A[r, k + 3]
            a10, a11, a12, a13 = A[r + 1, k], A[r + 1, k + 1], A[r + 1, k + 2], A[r + 1, k + 3]
            a20, a21, a22, a23 = A[r + 2, k], A[r + 2, k + 1], A[r + 2, k + 2], A[r + 2, k + 3]
            a30, a31, a32, a33 = A[r + 3, k], A[r + 3, k + 1], A[r + 3, k + 2], A[r + 3, k + 3]
            for i in range(LANES):
                b0, b1, b2, b3 = b[i], b[i + LANES], b[i + 2 * LANES], b[i + 3 * LANES]
                c[i] = c[i] + a00 * b0 + a01 * b1 + a02 * b2 + a03 * b3
                c[i + LANES] = c[i + LANES] + a10 * b0 + a11 * b1 + a12 * b2 + a13 * b3
                c[i + 2 * LANES] = c[i + 2 * LANES] + a20 * b0 + a21 * b1 + a22 * b2 + a23 * b3
                c[i + 3 * LANES] = c[i + 3 * LANES] + a30 * b0 + a31 * b1 + a32 * b2 + a33 * b3


@compiled
def transpose_into(XT, X, factor):
    """XT = factor · Xᵀ, with zeros where X has fewer than LANES rows."""
    for c in range(XT.shape[0]):
        for r in range(X.shape[0]):
            XT[c, r] = factor * X[r, c]
        for r in range(X.shape[0], LANES):
            XT[c, r] = 0


@inlined
def fours(count):
    """The next multiple of four."""
    return (count + 3) // 4 * 4
