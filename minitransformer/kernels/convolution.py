"""Convolution along the tokens with few weights: K for each head, which differ from token to token or are always the same.

    for each 64 tokens of a text, in parallel:
        for each token i of these and each head h:
            a = softmax(S_ih)                            K numbers; or a is given
            y_i = Σ_s a_s x_{i − left + s}               one row of a head, over those taps s that fall on a token

In the backward pass da_s = ⟨dy_i, x_{i − left + s}⟩ and dS = a ⊙ (da − ⟨da, a⟩); and every token j collects from the outputs that
have read it: dx_j = Σ_s a_{j + left − s, s} dy_{j + left − s}. No task writes where another does; no sum depends on the threads.

Why this order is fast. Nothing is unfolded: a row of x is read K times while it is in the nearest cache, where a matrix of
windows, (n K, D), would be written to memory and read again. Four taps are added at a time, so that y is read and written once
for four multiply-adds; and the exponentials of all heads of a token stand side by side, for vector instructions.
"""

import math

import numpy as np

from minitransformer.arrays import for_reading
from minitransformer.gather_scatter import unbroadcast
from minitransformer.kernels.compiling import compiled, inlined, inside
from minitransformer.kernels.exp2 import LOG2E, exp2
from minitransformer.kernels.few_rows import product
from minitransformer.kernels.pointwise import GATES, open_gate
from minitransformer.kernels.threads import borrowed, claimed, in_parallel
from minitransformer.kernels.tiles import dot, rows_of
from minitransformer.pullback import Pullback
from minitransformer.typing import Array

ROWS = 64  # tokens of a task
SIGMOID = GATES["sigmoid"]
SMALL = 2**16  # multiply-adds; what has fewer is done before a second thread is awake


@inlined
def on_tokens(i, shift, length, taps):
    """(lo, hi): of the taps of output i, those from lo to hi − 1 fall on one of `length` tokens; tap 0 is at i − shift."""
    return min(max(0, shift - i), taps), max(0, min(taps, length + shift - i))


@inside
def weigh(s, a):
    """a = softmax(s) for each head, (H, K); 0 where all of s is −∞. One loop makes the exponentials of all heads."""
    low, zero, base = s.dtype.type(-np.inf), s.dtype.type(0), s.dtype.type(LOG2E)
    for h in range(len(s)):
        top = low
        for k in range(s.shape[1]):
            top = max(top, s[h, k])
        if top == low:
            top = zero
        for k in range(s.shape[1]):
            a[h, k] = (s[h, k] - top) * base
    flat = a.reshape(-1)
    for k in range(len(flat)):
        flat[k] = exp2(flat[k])
    for h in range(len(s)):
        total = zero
        for k in range(s.shape[1]):
            total += a[h, k]
        if total != zero:
            share = s.dtype.type(1) / total
            for k in range(s.shape[1]):
                a[h, k] *= share


@inside
def softmax_back(a, ds):
    """ds holds da and becomes a ⊙ (da − ⟨da, a⟩), for each head."""
    for h in range(len(a)):
        mean = a.dtype.type(0)
        for k in range(a.shape[1]):
            mean += a[h, k] * ds[h, k]
        for k in range(a.shape[1]):
            ds[h, k] = a[h, k] * (ds[h, k] - mean)


@inside
def add_one(a_0, x_0, y):
    """y += a_0 x_0."""
    for c in range(len(y)):
        y[c] += a_0 * x_0[c]


@inside
def add_two(a_0, a_1, x_0, x_1, y):
    """y += a_0 x_0 + a_1 x_1."""
    for c in range(len(y)):
        y[c] = y[c] + a_0 * x_0[c] + a_1 * x_1[c]


@inside
def add_four(a_0, a_1, a_2, a_3, x_0, x_1, x_2, x_3, y):
    """y += a_0 x_0 + a_1 x_1 + a_2 x_2 + a_3 x_3."""
    for c in range(len(y)):
        y[c] = y[c] + a_0 * x_0[c] + a_1 * x_1[c] + a_2 * x_2[c] + a_3 * x_3[c]


@compiled
def convolve(X, S, left, first, weighs, A, Y, queue):
    """Add to Y (B, n, H, w), which is zero before, at the tokens first … first + n − 1 of X (B, m, H, w).

    A         weights, (B, n, H, K), with 1 for B or n where samples or tokens share them
    weighs    whether A is to be filled first, A = softmax(S); then both are (B, n, H, K)
    """
    X, S, A, Y = borrowed((X, S, A, Y))
    (batch, n, heads, _), length, taps, shift = Y.shape, X.shape[1], A.shape[3], left - first
    pieces = (n + ROWS - 1) // ROWS
    for task in claimed(queue, batch * pieces):
        b, begin = task // pieces, task % pieces * ROWS
        x = X[b]
        for i in range(begin, min(begin + ROWS, n)):
            a = A[min(b, len(A) - 1), min(i, A.shape[1] - 1)]
            if weighs:
                weigh(S[b, i], a)
            lo, hi = on_tokens(i, shift, length, taps)
            for h in range(heads):
                y, k, j = Y[b, i, h], lo, i - shift + lo
                while k + 3 < hi:
                    add_four(
                        *(a[h, k], a[h, k + 1], a[h, k + 2], a[h, k + 3]),
                        *(x[j, h], x[j + 1, h], x[j + 2, h], x[j + 3, h], y),
                    )
                    k, j = k + 4, j + 4
                if k + 1 < hi:
                    add_two(a[h, k], a[h, k + 1], x[j, h], x[j + 1, h], y)
                    k, j = k + 2, j + 2
                if k < hi:
                    add_one(a[h, k], x[j, h], y)


@compiled
def convolve_last(A, B, past, kernel, dynamic, after):
    """y (B, D) of one token v = σ(a) ⊙ b; fills `after`, the rows for the next one: the last K − 1 of `past` (B, K − 1, D) and v.

    kernel    logits of the weights, (1, H, K); if `dynamic`, (D, H, K), and the logits are v times that
    """
    (samples, D), (_, H, K) = A.shape, kernel.shape
    V, Y, width = np.empty(A.shape, A.dtype), np.zeros(A.shape, A.dtype), D // H
    open_gate(SIGMOID, A.reshape(-1), B.reshape(-1), V.reshape(-1))
    S = kernel
    if dynamic:
        S = product(V, kernel.reshape(D, H * K), np.zeros(H * K, A.dtype)).reshape(samples, H, K)
    weights = np.empty(S.shape, S.dtype)
    for b in range(len(S)):
        weigh(S[b], weights[b])
    for b in range(samples):
        for k in range(K):
            row = past[b, k] if k < K - 1 else V[b]
            for h in range(H):
                head = h * width
                add_one(weights[b % len(S), h, k], rows_of(row, head, head + width), rows_of(Y[b], head, head + width))
            if k > 0:
                for c in range(D):
                    after[b, k - 1, c] = row[c]
    return Y


@compiled
def convolve_back(X, A, dY, left, first, weighs, dA, dX, queue):
    """Add to dX (B, m, H, w) and dA, which are zero before. dA is (B, n, H, K); if tokens share weights, (B, pieces of 64, H, K).

    weighs    whether A was softmax(S); then dA becomes dS
    """
    X, A, dY, dA, dX = borrowed((X, A, dY, dA, dX))
    (batch, n, heads, _), length, taps, shift = dY.shape, X.shape[1], A.shape[3], left - first
    pieces, each = (length + ROWS - 1) // ROWS, A.shape[1] - 1
    for task in claimed(queue, batch * pieces):
        b, begin = task // pieces, task % pieces * ROWS
        x, dy, a = X[b], dY[b], A[min(b, len(A) - 1)]
        for j in range(begin, min(begin + ROWS, length)):
            for h in range(heads):  # tap 0 of token i falls on j, tap 1 of the token before it, and so on
                dx, i = dX[b, j, h], j + shift  # undoes y_i += a_ik x_j, for x: dx_j += a_ik dy_i
                t, end = min(i, n - 1), max(0, i - taps + 1)
                while t - 3 >= end:
                    add_four(
                        *(a[min(t, each), h, i - t], a[min(t - 1, each), h, i - t + 1]),
                        *(a[min(t - 2, each), h, i - t + 2], a[min(t - 3, each), h, i - t + 3]),
                        *(dy[t, h], dy[t - 1, h], dy[t - 2, h], dy[t - 3, h], dx),
                    )
                    t -= 4
                if t > end:
                    s, u = i - t, t - 1
                    add_two(a[min(t, each), h, s], a[min(u, each), h, s + 1], dy[t, h], dy[u, h], dx)
                    t -= 2
                if t == end:
                    add_one(a[min(t, each), h, i - t], dy[t, h], dx)
            if j < n:
                da = dA[b, j if each or n == 1 else begin // ROWS]
                lo, hi = on_tokens(j, shift, length, taps)
                for h in range(heads):
                    for k in range(lo, hi):
                        da[h, k] += dot(dy[j, h], x[j - shift + k, h])  # and for a: da_ik = ⟨dy_i, x_j⟩
                if weighs:
                    softmax_back(a[j], da)  # undoes weigh(s, a)


# ------------------------------------------------------------------------------------------ from Python


def _texts(X: Array) -> Array:
    """(*batch, n, H, w) as (B, n, H, w), for a loop."""
    return for_reading(X.reshape(math.prod(X.shape[:-3]), *X.shape[-3:]))


def _shared(A: Array, X: Array) -> Array:
    """Weights A for X (*batch, m, H, w), which broadcast to (*batch, n, H, K), as (B or 1, n or 1, H, K)."""
    A = A.reshape(*(1,) * (3 - A.ndim), *A.shape)
    batch = A.shape[:-3] if math.prod(A.shape[:-3]) == 1 else X.shape[:-3]
    return _texts(np.broadcast_to(A, (*batch, A.shape[-3], X.shape[-2], A.shape[-1])))


class ConvolvePullback(Pullback):
    """dx_j = Σ_s a_{j + left − s, s} dy_{j + left − s} and da_{i, s} = ⟨dy_i, x_{i − left + s}⟩.

    If a was softmax(S), the second is dS = a ⊙ (da − ⟨da, a⟩) instead.
    """

    X: Array
    A: Array
    left: int
    first: int
    weighs: bool

    def __call__(self, dY: Array) -> tuple[Array, Array]:
        X, A, dy, batch = _texts(self.X), _shared(self.A, self.X), _texts(dY), self.X.shape[:-3]
        n, length = dy.shape[1], X.shape[1]
        rows = n if A.shape[1] == n else (length + ROWS - 1) // ROWS
        dX, dA = np.zeros(X.shape, X.dtype), np.zeros((len(X), rows, *A.shape[2:]), X.dtype)
        tasks = len(X) * ((length + ROWS - 1) // ROWS) if dX.size * A.shape[3] > SMALL else 1
        in_parallel(tasks, convolve_back, X, A, dy, self.left, self.first, self.weighs, dA, dX)
        dA = dA.reshape(*batch, *dA.shape[1:])
        if rows != n:
            dA = dA.sum(-3, keepdims=True)
        return dX.reshape(self.X.shape), unbroadcast(dA, self.A.shape)


def last_of(A: Array, B: Array, past: Array, kernel: Array) -> tuple[Array, Array]:
    """y of one token σ(a) ⊙ b, from a and b (*batch, 1, D), and the K − 1 rows before the next one; `past` are those before this.

    kernel   logits of the weights (H, K), or (D, H, K) if they are the token times this
    raises   ValueError for rows or weights of another shape or dtype
    """
    (*batch, _, D), (*own, H, K) = A.shape, kernel.shape
    fits = past.shape == (*batch, K - 1, D) and own in ([], [D]) and {X.dtype for X in (B, past, kernel)} == {A.dtype}
    if not fits:
        raise ValueError(
            f"state: rows {past.shape} of {past.dtype} do not fit tokens {A.shape} and weights {kernel.shape}"
        )
    n, after = math.prod(batch), np.empty(past.shape, past.dtype)
    given = A.reshape(n, D), B.reshape(n, D), past.reshape(n, K - 1, D), kernel.reshape(-1, H, K)
    Y = convolve_last(*map(for_reading, given), len(own) > 0, after.reshape(n, K - 1, D))
    return Y.reshape(A.shape), after


def depthwise(
    X: Array, A: Array, *, left: int, first: int = 0, n: int | None = None, softmax: bool = False
) -> tuple[Array, ConvolvePullback]:
    """y_i = Σ_s a_{i, s} x_{i − left + s} for the n tokens i from `first` on, by default all.

    X         (*batch, m, H, w)
    A         weights that broadcast to (*batch, n, H, K); if `softmax`, their logits, which have exactly this shape
    returns   Y (*batch, n, H, w); pullback: dY to (dX, dA), of logits to (dX, dS)
    """
    x, n = _texts(X), X.shape[-3] if n is None else n
    S = _shared(A, X)
    weights = np.empty(S.shape, S.dtype) if softmax else S
    Y = np.zeros((len(x), n, *x.shape[2:]), X.dtype)
    tasks = len(x) * ((n + ROWS - 1) // ROWS) if Y.size * S.shape[3] > SMALL else 1
    in_parallel(tasks, convolve, x, S, left, first, softmax, weights, Y)
    pullback = ConvolvePullback(X, weights.reshape(A.shape) if softmax else A, left, first, softmax)
    return Y.reshape(*X.shape[:-3], n, *X.shape[-2:]), pullback
