"""The stairs of chapter 17 that need no compiler: attention in loops of Python, and tile by tile in NumPy.

    three_loops      the definition, one number at a time
    tiles_in_numpy   the online softmax: A is never whole, and the products are still made by BLAS

Each computes Y = softmax(Q Kᵀ / √d) V for one head: Q (n, d), K (m, d), V (m, dv). The stairs between them and the loops
of the package are in `compiled_stairs.py`.
"""

import math

import numpy as np


def three_loops(Q, K, V):
    """Dot order: the innermost loop is one sum, each step waits for the one before."""
    Y, s = np.zeros((len(Q), V.shape[1]), Q.dtype), np.zeros(len(K), Q.dtype)
    for i in range(len(Q)):
        for j in range(len(K)):
            s[j] = 0
            for c in range(Q.shape[1]):
                s[j] += Q[i, c] * K[j, c]
        w = np.exp((s - s.max()) / math.sqrt(Q.shape[1]))
        for c in range(V.shape[1]):
            for j in range(len(V)):
                Y[i, c] += w[j] * V[j, c]
        Y[i] /= w.sum()
    return Y


def tiles_in_numpy(Q, K, V, rows=256, keys=512):
    """The online softmax in NumPy: of the keys so far it keeps top, total and y."""
    Y = np.empty((len(Q), V.shape[1]), Q.dtype)
    Q = Q * Q.dtype.type(1 / math.sqrt(Q.shape[1]))
    for i in range(0, len(Q), rows):
        top, total, y = -np.inf, 0, 0
        for j in range(0, len(K), keys):
            S = Q[i : i + rows] @ K[j : j + keys].T
            new = np.maximum(top, S.max(1, keepdims=True))
            P, shrink = np.exp(S - new), np.exp(top - new)
            total = shrink * total + P.sum(1, keepdims=True)
            top, y = new, shrink * y + P @ V[j : j + keys]
        Y[i : i + rows] = y / total
    return Y
