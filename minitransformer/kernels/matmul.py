"""The matrix products of a linear layer, forwards and backwards, in tiles of 64 around the micro-kernel.

    Y = X W + b                                      dW = Xᵀ dY,  db = Σ dY
    for each 64 rows of X, in parallel:              for each part of the rows, in parallel:
        for each 64 columns of W:                        for each 64 rows of the part:
            for each 128 of the inner length:                for each tile of dW:
                tile of Y = b, or itself if not the first        its part += (tile of X)ᵀ (tile of dY)
                            + (tile of X) (tile of W)        dW = sum of the parts

Why not BLAS, which is as fast? BLAS brings threads of its own, and when it has done a product they go on spinning for a
while, on the cores that the next compiled loop wants. These loops run on the threads of all the others.
What is used many times is copied to a place of its own first: W forwards, a tile of dY backwards. In an array whose rows
are 512 or 1024 bytes apart the rows of a tile compete for the same few places of the first-level cache; copied, they lie
side by side, and all fit. A tile of Y is written straight to its place: it goes to memory during the next product.
"""

import numpy as np

from minitransformer.backend import current
from minitransformer.kernels.compiling import compiled, inside
from minitransformer.kernels.pointwise import for_loops
from minitransformer.kernels.threads import ENOUGH, claimed, in_parallel
from minitransformer.kernels.tiles import LANES, fours, product_in_registers, put, room, tile, tiles
from minitransformer.typing import Array

INNER = 128  # rows of W at a time, 32 KiB in float32


@inside
def some_rows(X, panels, r0, Y):
    """Y = X W + b for rows r0 … r0 + 63. A panel holds 64 columns of W, and below them the same columns of b."""
    D, rows = X.shape[1], min(LANES, len(X) - r0)
    A, space = X[r0 : r0 + rows, :D], tile(LANES, X)
    if rows % 4:
        A = np.zeros((fours(rows), D), X.dtype)[:, :D]
        put(X[r0 : r0 + rows], A[:rows])
    for p in range(len(panels)):
        c0 = p * LANES
        y = Y[r0 : r0 + rows, c0 : c0 + LANES]
        whole = rows % 4 == 0 and y.shape[1] == LANES
        C = y if whole else space[: len(A), :LANES]
        for k in range(0, D, INNER):
            W = panels[p, k : min(k + INNER, D)]
            if k == 0:
                product_in_registers(panels[p, D:], A[:, : len(W)], W, C, y.shape[1])
            else:
                product_in_registers(C, A[:, k : k + len(W)], W, C, y.shape[1])
        if not whole:
            put(C[:rows, : y.shape[1]], y)


@compiled
def rows_times(X, panels, Y, queue):
    """Y = X W + b, a task for each 64 rows."""
    for t in claimed(queue, (len(X) + LANES - 1) // LANES):
        some_rows(X, panels, t * LANES, Y)


@compiled
def panels_with_bias(W, b):
    """W cut into panels of 64 columns, each with the same columns of b as one more row: (panels, D + 1, 64).

    Where W has no column any more there are zeros. They are multiplied too, and if what stood in that memory before were numbers
    too small for a full mantissa (below 10⁻³⁸), an Intel processor would take twenty times as long.
    """
    D, E = W.shape
    panels = room((E + LANES - 1) // LANES, D + 1, W.dtype)
    for p in range(len(panels)):
        c0 = p * LANES
        columns = min(LANES, E - c0)
        for k in range(D):
            source, target = W[k, c0:], panels[p, k]
            for c in range(columns):
                target[c] = source[c]
        for c in range(columns):
            panels[p, D, c] = b[c0 + c]
        for k in range(D + 1):
            for c in range(columns, LANES):
                panels[p, k, c] = 0
    return panels


@inside
def columns_of_some_rows(X, dY, start, stop, C, db):
    """C[c] = Xᵀ (panel c of dY) and db += Σ dY, over the rows start … stop − 1, at least one."""
    B = tiles(len(C), LANES, X)
    D, spare = X.shape[1], tile(LANES, X)
    # the columns from here on are copied first, with zeros up to a multiple of four
    last = D // LANES * LANES if D % 4 else D
    for r0 in range(start, stop, LANES):
        rows = min(LANES, stop - r0)
        for r in range(rows):
            for k in range(last, D):
                spare[r, k - last] = X[r0 + r, k]
            for c in range(len(C)):
                its = slice(c * LANES, (c + 1) * LANES)
                dy, b, total = dY[r0 + r][its], B[c, r], db[its]
                for i in range(len(dy)):
                    b[i] = dy[i]
                    total[i] += dy[i]
        for c in range(len(C)):
            for k in range(0, D, LANES):
                its = C[c, k : k + LANES]
                A = (spare[:rows, : len(its)] if k == last else X[r0 : r0 + rows, k : k + LANES]).T
                if r0 == start:
                    product_in_registers(its[:0], A, B[c], its, LANES)
                else:
                    product_in_registers(its, A, B[c], its, LANES)


@compiled
def columns_times(X, dY, C, dbs, queue):
    """The parts of dW = Xᵀ dY and of db: each part of the rows fills a C and a db of its own."""
    parts = len(C)
    step = (len(X) + parts - 1) // parts
    for part in claimed(queue, parts):
        columns_of_some_rows(X, dY, min(part * step, len(X)), min((part + 1) * step, len(X)), C[part], dbs[part])


@compiled
def sum_of_parts(C, dW, queue):
    """dW = the sum of the parts, in their order."""
    for k in claimed(queue, len(dW)):
        for c in range(C.shape[1]):
            dw = dW[k, c * LANES : (c + 1) * LANES]
            for i in range(len(dw)):
                dw[i] = C[0, c, k, i]
            for part in range(1, len(C)):
                its = C[part, c, k]
                for i in range(len(dw)):
                    dw[i] += its[i]


def in_tiles(X: Array) -> bool:
    """Whether X is multiplied in tiles here: only the micro-kernel is as fast as BLAS, and a few rows don't fill a tile."""
    return current() == "micro" and len(X) >= LANES


def same_length(A: Array, i: int, B: Array, j: int) -> None:
    """Raise ValueError unless axis i of A is as long as axis j of B, and their dtypes are the same: loops check no index."""
    if A.shape[i] != B.shape[j] or A.dtype != B.dtype:
        raise ValueError(
            f"{A.dtype} {A.shape} and {B.dtype} {B.shape}: axis {i} of the first and axis {j} of the second should be equal, "
            "and so should the dtypes"
        )


def times(X: Array, W: Array, b: Array | None = None) -> Array:
    """X W + b, (rows, D) times (D, E)."""
    same_length(X, 1, W, 0)
    if not in_tiles(X) or W.shape[0] == 0:
        Y = X @ W
        return Y if b is None else np.add(Y, b, out=Y)
    Y = np.empty((len(X), W.shape[1]), X.dtype)
    b = np.zeros(W.shape[1], X.dtype) if b is None else b
    W = W if W.flags.behaved else np.require(W, requirements=["A", "W"])
    tasks = -(-len(X) // LANES) if X.size * W.shape[1] > ENOUGH else 1
    panels = panels_with_bias(W, for_loops(b, b.dtype, b.shape))
    in_parallel(tasks, rows_times, for_loops(X, X.dtype, X.shape), panels, Y)
    return Y


def transposed_times(X: Array, dY: Array) -> tuple[Array, Array]:
    """Xᵀ dY and the sum of the rows of dY, (rows, D) and (rows, E) to (D, E) and (E,)."""
    same_length(X, 0, dY, 0)
    if not in_tiles(X) or not X.size:
        return X.T @ dY, dY.sum(0)
    (rows, D), E = X.shape, dY.shape[1]
    parts = min(max(rows // 512, 2), 8, rows)  # whatever the number of threads, so that sums have one order
    C, dbs = np.empty((parts, -(-E // LANES), fours(D), LANES), X.dtype), np.zeros((parts, E), X.dtype)
    dW = np.empty((D, E), X.dtype)
    tasks = parts if X.size * E > ENOUGH else 1
    in_parallel(tasks, columns_times, *(for_loops(A, A.dtype, A.shape) for A in (X, dY)), C, dbs)
    in_parallel(D if C.size > ENOUGH else 1, sum_of_parts, C, dW)
    return dW, dbs.sum(0)
