"""Products of tiles, and the space for them: what the kernels for attention, for sparse and for kernel attention share.

    for each four rows of A:                             C (rows, 64)  +=  A (rows, inner)  B (inner, 64)
        for each four rows of B:
            for i in 0 … 63:
                C[r + 0 … 3, i] += A[r + 0 … 3, k + 0 … 3] B[k + 0 … 3, i]

Why this order is fast. The innermost loop runs along rows of 64 numbers that stand side by side, with a length that the
compiler knows: it becomes vector instructions. Four rows by four make 16 multiply-adds for 12 loads and stores of C
and B, and four loads of A. Three tiles of float32 fit into the first-level cache (16 KiB each), or stream from the second.

In the tier "micro" the same product is made by the micro-kernel, which keeps its part of C in registers.
"""

import numba
import numpy as np
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic

from minitransformer.backend import current, register
from minitransformer.kernels.compiling import as_it_is, compiled, inlined
from minitransformer.kernels.micro_kernel import NARROW, REGISTER, WIDE, four_rows, four_rows_narrow, six_rows

MICRO = register() > 0  # whether there is a micro-kernel here
LANES = 64  # columns of a tile
LINE = 64  # bytes in a line of the cache; a vector that straddles two of them is read twice
ZERO = np.float32(0)


@inlined
def room(number, rows, dtype):
    """Room for tiles, (number, rows, LANES), that begins with a line of the cache."""
    size = number * rows * LANES
    space = np.empty(size + LINE, dtype)
    skip = (-space.ctypes.data // space.itemsize) % (LINE // space.itemsize)
    return space[skip : skip + size].reshape(number, rows, LANES)


@compiled
def zeros(number, rows, dtype):
    """The same, filled with zeros."""
    space = room(number, rows, dtype)
    space[:] = 0
    return space


@inlined
def tiles(number, rows, like):
    """Room for tiles of zeros, (number, rows, LANES), in the type of `like`."""
    return zeros(number, rows, like.dtype)


@inlined
def tile(rows, like):
    """One tile of zeros, (rows, LANES)."""
    return tiles(1, rows, like)[0]


def plain_loops():
    """What `loops`, the last argument of a product, should be: whether it is made by plain loops, or by the micro-kernel.

    It is looked at when a product is made, so all that stands around the products is compiled once for both tiers.
    """
    return current() != "micro"


@intrinsic
def in_any_layout(typingctx, X):
    """The same array, of the type whose rows may lie anywhere: products are compiled once for all that have this one."""

    def code(context, builder, signature, arguments):
        return impl_ret_borrowed(context, builder, signature.return_type, arguments[0])

    return X.copy(layout="A")(X), code


if numba.config.DISABLE_JIT:
    in_any_layout = as_it_is


@inlined
def product(A, B, C, columns, loops):
    """C = A B, in the first `columns` columns at least. Rows of A (for plain loops columns, too) are a multiple of four."""
    product_from(C[:0], in_any_layout(A), B, C, columns, loops)


@inlined
def add_product(A, B, C, columns, loops):
    """C += A B, in the first `columns` columns at least. For plain loops, columns of A are a multiple of four as well."""
    product_from(C, in_any_layout(A), B, C, columns, loops)


@inlined
def product_in_registers(S, A, B, C, columns):
    """C = S + A B by the micro-kernel. S has as many rows as C, or one, which is added to each row, or none."""
    rows_in_registers(in_any_layout(S), in_any_layout(A), in_any_layout(B), in_any_layout(C), columns)


@compiled
def rows_in_registers(S, A, B, C, columns):
    """The same: six rows and four vectors at a time, then what is left over."""
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


@compiled
def product_from(S, A, B, C, columns, loops):
    """C = S + A B. S has as many rows as C or none."""
    if MICRO and not loops:
        product_in_registers(S, A, B, C, columns)
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
def larger(a, b):
    """The larger of two numbers, of which one is to be written where it was read.

    Without the sum LLVM writes it only where it has grown, vector by vector under a mask, and for such a vector AMD's processors
    take twelve cycles if they have AVX2 alone. a + 0 is a, but LLVM may not leave it out: it turns −0 into 0.
    """
    return (b if b > a else a) + ZERO


@inlined
def fours(count):
    """The next multiple of four."""
    return (count + 3) // 4 * 4
