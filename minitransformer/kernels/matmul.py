"""The matrix products of a linear layer, forwards and backwards, in tiles of 64 around the micro-kernel.

    Y = X W + b                                      dW = Xᵀ dY,  db = Σ dY
    for each 64 rows of X, in parallel:              for each 64 columns of X and of dY, in parallel:
        for each 64 columns of W:                        for each 64 rows:
            C = 0                                            C += (tile of X)ᵀ (tile of dY)
            for each 64 of the inner length:             write C to dW
                C += (tile of X) (tile of W)
            write C + b to Y

Why not BLAS, which is as fast? BLAS brings threads of its own, and when it has done a product they go on spinning for a
while, on the cores that the next compiled loop wants: a training step that mixes the two is several times slower than either
(`benchmarks/`). These loops run on the threads of all the others, and the sum with b happens while C is in the cache.
W is copied once into panels of 64 columns, so that the micro-kernel reads a tile of it from consecutive lines.
"""

import numpy as np
from numba import prange

from minitransformer.kernels.compiling import compiled, compiled_parallel
from minitransformer.kernels.threads import one_parallel_loop
from minitransformer.kernels.tiles import LANES, add_product, fours, product, tile, tiles
from minitransformer.typing import Array


@compiled
def copy_into(space, X):
    """X in the corner of a tile, zeros below it up to the next multiple of four rows."""
    for r in range(X.shape[0]):
        for c in range(X.shape[1]):
            space[r, c] = X[r, c]
    space[X.shape[0] : fours(X.shape[0])] = 0


@compiled
def some_rows(X, panels, b, Y):
    """Y = X W + b for up to LANES rows."""
    C, space = tile(LANES, X), tile(LANES, X)
    rows, inner = X.shape
    for p in range(len(panels)):
        columns = min(LANES, Y.shape[1] - p * LANES)
        for k in range(0, inner, LANES):
            A = X[:, k : k + LANES]
            if rows % 4:
                copy_into(space, A)
                A = space[: fours(rows), : A.shape[1]]
            if k == 0:
                product(A, panels[p, k : k + LANES], C, columns, True)
            else:
                add_product(A, panels[p, k : k + LANES], C, columns, True)
        for r in range(rows):
            for c in range(columns):
                Y[r, p * LANES + c] = C[r, c] + b[p * LANES + c]


@compiled_parallel
def rows_times(X, W, b, Y):
    """Y = X W + b."""
    panels = tiles((W.shape[1] + LANES - 1) // LANES, len(W), X)
    for p in prange(len(panels)):
        copy_into(panels[p], W[:, p * LANES : (p + 1) * LANES])
    for t in prange((len(X) + LANES - 1) // LANES):
        some_rows(X[t * LANES : (t + 1) * LANES], panels, b, Y[t * LANES : (t + 1) * LANES])


@compiled
def one_tile(X, dY, dW, db):
    """dW = Xᵀ dY and db = Σ dY for up to LANES columns of X and of dY; columns of X are a multiple of four."""
    C, space = tile(LANES, X), tile(LANES, X)
    columns = dY.shape[1]
    for r in range(0, len(X), LANES):
        copy_into(space, dY[r : r + LANES])
        A = X[r : r + LANES]
        add_product(A.T, space, C, columns, True)
        for k in range(len(A) if db.size else 0):
            for c in range(columns):
                db[c] += space[k, c]
    for r in range(len(dW)):
        for c in range(columns):
            dW[r, c] = C[r, c]


@compiled_parallel
def columns_times(X, dY, dW, db):
    """dW = Xᵀ dY and db = Σ dY."""
    across = (dY.shape[1] + LANES - 1) // LANES
    for task in prange(((X.shape[1] + LANES - 1) // LANES) * across):
        k, c = task // across * LANES, task % across * LANES
        first = db[c : c + LANES] if k == 0 else db[:0]
        one_tile(X[:, k : k + LANES], dY[:, c : c + LANES], dW[k : k + LANES, c : c + LANES], first)


def times(X: Array, W: Array, b: Array | None = None) -> Array:
    """X W + b, (rows, D) times (D, E)."""
    Y = np.empty((len(X), W.shape[1]), X.dtype)
    if W.shape[0] == 0:
        Y[:] = 0 if b is None else b
    else:
        b = np.zeros(W.shape[1], X.dtype) if b is None else np.require(b, requirements=["C", "W"])
        with one_parallel_loop:
            rows_times(*(np.require(A, requirements=["A", "W"]) for A in (np.ascontiguousarray(X), W)), b, Y)
    return Y


def transposed_times(X: Array, dY: Array) -> tuple[Array, Array]:
    """Xᵀ dY and the sum of the rows of dY, (rows, D) and (rows, E) to (D, E) and (E,)."""
    if X.shape[1] % 4 or not X.size:
        return X.T @ dY, dY.sum(0)
    dW, db = np.empty((X.shape[1], dY.shape[1]), X.dtype), np.zeros(dY.shape[1], X.dtype)
    with one_parallel_loop:
        columns_times(*(np.require(A, requirements=["C", "A", "W"]) for A in (X, dY)), dW, db)
    return dW, db
