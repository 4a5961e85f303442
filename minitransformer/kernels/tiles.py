"""Products of tiles, and the memory for them: what the kernels of dense, sparse and kernel attention share.

    for each four rows of A:                             C (rows, 64)  +=  A (rows, inner)  B (inner, 64)
        for each four rows of B:
            for i in 0 … 63:
                C[r + 0 … 3, i] += A[r + 0 … 3, k + 0 … 3] B[k + 0 … 3, i]

Why this order is fast. The innermost loop runs along rows of 64 numbers that stand side by side, with a length that the
compiler knows: it becomes vector instructions. Four rows by four make 16 multiply-adds for 8 loads and 4 stores of B and
C; the 16 numbers of A are loaded once for all 64 columns. Three tiles of float32 have 16 KiB each: they fit into a
first-level cache of 48 KiB, and stream from the second where it is smaller.

In the tier "micro" the same product is made by the micro-kernel, which keeps its part of C in registers.
"""

import functools

import numba
import numpy as np
from numba import types
from numba.core.cgutils import get_item_pointer2, unpack_tuple
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic

from minitransformer.backend import current, vector_bytes
from minitransformer.kernels.compiling import any_order, as_it_is, inlined, inside
from minitransformer.kernels.eights import turn_eight
from minitransformer.kernels.micro_kernel import LINE, NARROW, REGISTER, WIDE, four_rows, four_rows_narrow, six_rows

MICRO = vector_bytes() > 0  # whether there is a micro-kernel here
LANES = 64  # columns of a tile
HALF = LANES // 2
ZERO = np.float32(0)


@inside
def put(X, into):
    """into[:] = X, row by row. (Numba takes seconds to compile the slice, most of them for the words of its error.)"""
    for i in range(len(into)):
        for c in range(into.shape[1]):
            into[i, c] = X[i, c]


@inlined
def room(number, rows, dtype):
    """Memory for tiles, (number, rows, LANES), not filled, that begins with a line of the cache."""
    size = number * rows * LANES
    space = np.empty(size + LINE, dtype)
    skip = (-space.ctypes.data // space.itemsize) % (LINE // space.itemsize)
    return space[skip : skip + size].reshape(number, rows, LANES)


@inside
def zeros(number, rows, dtype):
    """Tiles of zeros, (number, rows, LANES), that begin with a line of the cache."""
    space = room(number, rows, dtype)
    for t in range(number):
        for r in range(rows):
            for c in range(LANES):
                space[t, r, c] = 0
    return space


@inlined
def tiles(number, rows, like):
    """Tiles of zeros, (number, rows, LANES), of the dtype of `like`."""
    return zeros(number, rows, like.dtype)


@inlined
def tile(rows, like):
    """One tile of zeros, (rows, LANES), of the dtype of `like`."""
    return tiles(1, rows, like)[0]


def plain_loops():
    """Whether products are made by plain loops, and not by the micro-kernel: the argument `loops` of a product.

    A loop is told when it is called, so everything around its products is compiled once for both tiers.
    """
    return current() != "micro"


@intrinsic
def in_any_layout(typingctx, X):
    """The same array, but with the type "any strides": so a product is compiled once, whatever the layout of its arrays."""

    def code(context, builder, signature, arguments):
        return impl_ret_borrowed(context, builder, signature.return_type, arguments[0])

    return X.copy(layout="A")(X), code


@intrinsic
def rows_of(typingctx, X, start, stop):
    """X[start:stop], for 0 ≤ start ≤ stop ≤ len(X). (Numba's slice also asks for signs and steps, and compiles in more time.)"""

    def code(context, builder, signature, arguments):
        view, (_, start, stop) = context.make_array(X)(context, builder, arguments[0]), arguments
        rows = builder.sub(stop, start)
        shape, strides = (unpack_tuple(builder, axes, X.ndim) for axes in (view.shape, view.strides))
        first = [start] + [context.get_constant(types.intp, 0)] * (X.ndim - 1)
        view.data = get_item_pointer2(context, builder, view.data, shape, strides, X.layout, first)
        view.shape = builder.insert_value(view.shape, rows, 0)
        view.nitems = functools.reduce(builder.mul, shape[1:], rows)
        return impl_ret_borrowed(context, builder, X, view._getvalue())

    return X(X, types.intp, types.intp), code


if numba.config.DISABLE_JIT:
    in_any_layout = as_it_is

    def rows_of(X, start, stop):
        """The same in plain Python, where the bounds are looked at."""
        if not 0 <= start <= stop <= len(X):
            raise IndexError(f"rows {start} to {stop} of an array with {len(X)}: they should lie inside")
        return X[start:stop]


@inlined
def product(A, B, C, columns, loops):
    """C = A B, in the first `columns` columns at least. A has a multiple of four rows; for plain loops also of columns."""
    some_product(rows_of(C, 0, 0), in_any_layout(A), B, C, 0, columns, loops)


@inlined
def add_product(A, B, C, columns, loops):
    """C += A B, in the first `columns` columns at least. A has a multiple of four rows; for plain loops also of columns."""
    some_product(C, in_any_layout(A), B, C, 0, columns, loops)


@inlined
def product_in_registers(S, A, B, C, columns):
    """C = S + A B by the micro-kernel. S has as many rows as C, or one, which is added to each row, or none: then C = A B."""
    rows_in_registers(in_any_layout(S), in_any_layout(A), in_any_layout(B), in_any_layout(C), 0, columns)


@inside
def rows_in_registers(S, A, B, C, c, columns):
    """C = S + A B from column c on, in blocks: six rows by WIDE vectors, four rows where fewer than twelve are left, and NARROW
    vectors at the edge."""
    wide, narrow = WIDE * REGISTER // C.itemsize, NARROW * REGISTER // C.itemsize
    sixes = len(A) // 12 * 12
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


@inlined
def product_from(S, A, B, C, c, columns, loops):
    """C = A B if S has no rows; otherwise S is C itself, and C += A B. In columns c … columns − 1 at least; c is 0 or HALF."""
    some_product(S, in_any_layout(A), B, C, c, columns, loops)


@inside
def some_product(S, A, B, C, c, columns, loops):
    """`product_from`, compiled once for all layouts of A."""
    if MICRO and not loops:
        rows_in_registers(in_any_layout(S), A, in_any_layout(B), in_any_layout(C), c, columns)
    else:
        if len(S) == 0:
            C[: len(A)] = 0
        add_product_by_loops(A, B.reshape(-1), C.reshape(-1))


@inside
def add_product_by_loops(A, B, C):
    """C += A B, four rows of A by four rows of B at a time.

    B and C are taken as one long row, because the compiler then sees how their rows lie to each other, and need not ask
    each time whether they overlap.
    """
    rows, inner = A.shape
    for r in range(0, rows, 4):
        c = rows_of(C, r * LANES, (r + 4) * LANES)
        for k in range(0, inner, 4):
            b = rows_of(B, k * LANES, (k + 4) * LANES)
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


@inside
def turn(X, factors, XT):
    """XT[c, r] = factors[c] · X[r, c], for all rows of XT and as many columns as X has rows, or XT columns."""
    columns, rows = XT.shape[0], min(X.shape[0], XT.shape[1])
    wide, whole = columns // 8 * 8, rows // 8 * 8
    for r in range(0, whole, 8):
        for c in range(0, wide, 8):
            turn_eight(X, r, c, factors, XT)
    for c in range(columns):
        for r in range(whole if c < wide else 0, rows):
            XT[c, r] = factors[c] * X[r, c]


@inside
def transpose_into(XT, X, factor):
    """XT = factor · Xᵀ, with zeros where X has fewer than LANES rows."""
    factors = np.empty(len(XT), X.dtype)
    for c in range(len(XT)):
        factors[c] = factor
        for r in range(X.shape[0], LANES):
            XT[c, r] = 0
    turn(X, factors, XT)


@any_order
def dot(a, b):
    """The inner product ⟨a, b⟩."""
    total = a.dtype.type(0)
    for c in range(len(a)):
        total += a[c] * b[c]
    return total


@inlined
def share_of(one, total, tiny):
    """1 / total, and 0 where it is nearly zero, as `inverse` in arrays.py has it."""
    return one - one if abs(total) < tiny else one / total


@inlined
def larger(a, b):
    """The larger of a and b, to be written back to where a was read.

    Without the + 0 LLVM writes only those numbers that have grown, each vector under a mask, and such a write takes AMD's
    processors twelve cycles if they have AVX2 alone. a + 0 is a, but LLVM may not leave it out: it turns −0 into 0.
    """
    return (b if b > a else a) + ZERO


@inlined
def fours(count):
    """The next multiple of four."""
    return (count + 3) // 4 * 4
