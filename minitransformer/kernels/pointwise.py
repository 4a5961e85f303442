"""The loops of a training step that go through an array entry by entry: activations, gates, scatter-add, rotations, AdamW.

    for each part of the array, four for each thread, in parallel:       one part if the array is small
        for each entry x of the part:
            y = f(x)                                         4, 8 or 16 entries to an instruction
    in the backward pass
            dx = f′(x) dy                                    f′ is found again from x; nothing else is remembered

Why this is fast. An array that does not fit into the cache is read and written at the speed of memory, which is far
below that of arithmetic. NumPy goes through memory once for each operation, and once more for each intermediate result;
here an entry is read once, all is done with it in registers, and the result is written once. There is no call to `tanh`
or `erf`, which take one number at a time: both are made of `exp2` (minitransformer/kernels/exp2.py).

No entry depends on another one, so the same input gives the same bits with any number of threads. Entries are counted from
the start of a slice, so that the compiler sees that no index is negative.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minitransformer.arrays import for_reading
from minitransformer.kernels.compiling import compiled, inlined, inside
from minitransformer.kernels.exp2 import LOG2E, exp2
from minitransformer.kernels.threads import borrowed, claimed, in_parallel
from minitransformer.pullback import Pullback
from minitransformer.typing import Array

SMALL = 2**17  # entries: with fewer, to call the helpers would take longer than the loop
BLOCK = 2048  # entries that stay in the cache while two or three loops go through them


def for_loops(X: Array, dtype: np.dtype, shape: tuple[int, ...]) -> Array:
    """X in the form that the loops take: contiguous, of one dtype, and broadcast to the shape."""
    if X.shape == shape and X.dtype == dtype:
        return for_reading(X)
    return np.require(np.broadcast_to(X, shape), dtype, requirements=["C", "A", "W"])


def run(loop: Callable, size: int, *arguments: Any) -> None:
    """A loop over all parts of an array of `size` entries, in parallel; one part on this thread if it is small."""
    in_parallel(1 if size < SMALL else size, loop, *arguments)


@inlined
def cut(length, part, parts):
    """Where a part begins and ends: at multiples of 64, so that an entry keeps its place in a vector in any number of parts."""
    step = (length + 64 * parts - 1) // (64 * parts) * 64
    return min(part * step, length), min((part + 1) * step, length)


# ------------------------------------------------------------------------------------------ activations

RELU, GELU, GELU_TANH = 0, 1, 2
K = 3.0  # Φ(−a) = e^(−a²/2) R(t), t = (a − K)/(a + K): where a goes from 0 to ∞, t goes from −1 to 1 and R is smooth


# R(t) = erfcx(a / √2) / 2 as a polynomial, t¹⁰ first: its interpolation at Chebyshev's points, which a test repeats with SciPy
R = tuple(
    np.float32(c)
    for c in (
        *(-1.2345226e-05, 3.8034344e-05, 0.00013038865, -0.00031854687, -0.0009901793, 0.002894747),
        *(0.0061332295, -0.04621152, 0.12322496, -0.2064027, 0.12151395),
    )
)
TWO_K, K32, SQRT_TAU = np.float32(2 * K), np.float32(K), np.float32(1 / math.sqrt(2 * math.pi))
SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
HALF_LOG2E, ONE32 = np.float32(-0.5 * LOG2E), np.float32(1)


@inside
def normal(x):
    """Φ(x) and x φ(x) in float32, with one exponential for both."""
    a = abs(x)
    e = exp2(x * x * HALF_LOG2E)
    t = ONE32 - TWO_K / (a + K32)
    r = R[0]
    for c in R[1:]:
        r = r * t + c
    tail = e * r
    return (tail if x < 0 else ONE32 - tail), x * e * SQRT_TAU


@inside
def half_tanh(x, c, a, one, base):
    """(1 + tanh u)/2 = 1/(1 + e^−2u) with u = c (x + a x³), and its slope; e^−2|u| = 2^(base |u|) gives both."""
    square = x * x
    u = c * x * (one + a * square)
    e = exp2(base * abs(u))
    s = one / (one + e)
    slope = (one + one) * c * (one + (one + one + one) * a * square) * e * s * s
    return (s if u >= 0 else e * s), slope


@inside
def activate_some(kind, x, y):
    """y = f(x), entry by entry; f is RELU, GELU or GELU_TANH, as `kind` says."""
    zero, one, base = x.dtype.type(0), x.dtype.type(1), x.dtype.type(-2 * LOG2E)
    c, a = x.dtype.type(SQRT_2_OVER_PI), x.dtype.type(0.044715)
    if kind == RELU:
        for i in range(len(x)):
            y[i] = zero if x[i] <= zero else x[i]  # NaN stays NaN
    elif kind == GELU:
        for i in range(len(x)):
            y[i] = x[i] * normal(x[i])[0]
    else:
        for i in range(len(x)):
            y[i] = x[i] * half_tanh(x[i], c, a, one, base)[0]


@compiled
def activate(kind, X, Y, queue):
    """Y = f(X), in parts."""
    for part in claimed(queue, queue[1]):
        start, stop = cut(len(X), part, queue[1])
        activate_some(kind, X[start:stop], Y[start:stop])


@compiled
def activate_back(kind, X, dY, dX, queue):
    """dX = f′(X) ⊙ dY, in parts."""
    for part in claimed(queue, queue[1]):
        start, stop = cut(len(X), part, queue[1])
        x, dy, dx = X[start:stop], dY[start:stop], dX[start:stop]
        zero, one, base = X.dtype.type(0), X.dtype.type(1), X.dtype.type(-2 * LOG2E)
        c, a = X.dtype.type(SQRT_2_OVER_PI), X.dtype.type(0.044715)
        if kind == RELU:
            for i in range(len(x)):
                dx[i] = (one if x[i] > zero else zero) * dy[i]
        elif kind == GELU:
            for i in range(len(x)):
                cdf, x_pdf = normal(x[i])
                dx[i] = (cdf + x_pdf) * dy[i]
        else:
            for i in range(len(x)):
                half, slope = half_tanh(x[i], c, a, one, base)
                dx[i] = (half + x[i] * slope) * dy[i]


def _forward(kind: int, X: Array) -> Array:
    Y = np.empty(X.shape, X.dtype)
    run(activate, X.size, kind, for_loops(X, X.dtype, X.shape).reshape(-1), Y.reshape(-1))
    return Y


def _back(kind: int, X: Array, dY: Array) -> Array:
    dX = np.empty(X.shape, X.dtype)
    arrays = *(for_loops(A, X.dtype, X.shape).reshape(-1) for A in (X, dY)), dX.reshape(-1)
    run(activate_back, X.size, kind, *arrays)
    return dX


class ReluPullback(Pullback):
    """dx = [x > 0] dy. X is the value, not the argument: it is positive where that is, and the next layer remembers it anyway."""

    X: Array

    @property
    def slope(self) -> Array:
        """The slope f′(x), made again when it is asked for."""
        return _back(RELU, self.X, np.ones((), self.X.dtype))

    def __call__(self, dY: Array) -> Array:
        return _back(RELU, self.X, dY)


class GeluPullback(Pullback):
    """dx = (Φ(x) + x φ(x)) dy, with the slope found again from x."""

    X: Array

    @property
    def slope(self) -> Array:
        """The slope f′(x), made again when it is asked for."""
        return _back(GELU, self.X, np.ones((), self.X.dtype))

    def __call__(self, dY: Array) -> Array:
        return _back(GELU, self.X, dY)


class GeluTanhPullback(Pullback):
    """dx = f′(x) dy, with the slope found again from x."""

    X: Array

    @property
    def slope(self) -> Array:
        """The slope f′(x), made again when it is asked for."""
        return _back(GELU_TANH, self.X, np.ones((), self.X.dtype))

    def __call__(self, dY: Array) -> Array:
        return _back(GELU_TANH, self.X, dY)


def relu(X: Array) -> tuple[Array, ReluPullback]:
    """max(x, 0) for each entry."""
    Y = _forward(RELU, X)
    return Y, ReluPullback(Y)


def gelu(X: Array) -> tuple[Array, GeluPullback]:
    """x Φ(x), float32 only: the polynomial has eleven terms, and float64 would take more than twice as many."""
    return _forward(GELU, X), GeluPullback(X)


def gelu_tanh(X: Array) -> tuple[Array, GeluTanhPullback]:
    """x/2 (1 + tanh u), u = √(2/π) (x + 0.044715 x³)."""
    return _forward(GELU_TANH, X), GeluTanhPullback(X)


# ------------------------------------------------------------------------------------------------- gates

GATES = {"sigmoid": 0, "relu": 1, "gelu": 2, "silu": 3, "none": 4}


@inlined
def sigma(x, one, base):
    """σ(x) = 1/(1 + e^−x), from e^−|x| = 2^(base |x|)."""
    e = exp2(base * abs(x))
    s = one / (one + e)
    return s if x >= 0 else e * s


@inside
def open_gate(kind, a, b, y):
    """y = f(a) b, entry by entry; `kind` is the number of f in GATES."""
    zero, one, base = a.dtype.type(0), a.dtype.type(1), a.dtype.type(-LOG2E)
    if kind == 0:
        for i in range(len(a)):
            y[i] = sigma(a[i], one, base) * b[i]
    elif kind == 1:
        for i in range(len(a)):
            y[i] = (zero if a[i] <= zero else a[i]) * b[i]
    elif kind == 2:
        for i in range(len(a)):
            y[i] = a[i] * normal(a[i])[0] * b[i]
    elif kind == 3:
        for i in range(len(a)):
            y[i] = a[i] * sigma(a[i], one, base) * b[i]
    else:
        for i in range(len(a)):
            y[i] = a[i] * b[i]


@compiled
def open_gates(kind, A, B, Y, queue):
    """Y = f(A) ⊙ B, in parts."""
    for part in claimed(queue, queue[1]):
        start, stop = cut(len(A), part, queue[1])
        open_gate(kind, A[start:stop], B[start:stop], Y[start:stop])


@inside
def gate_back(kind, a, b_dy, da):
    """da = f′(a) b dy, entry by entry; b_dy is b dy."""
    zero, one, base = a.dtype.type(0), a.dtype.type(1), a.dtype.type(-LOG2E)
    if kind == 0:
        for i in range(len(a)):
            s = sigma(a[i], one, base)
            da[i] = s * (one - s) * b_dy[i]
    elif kind == 1:
        for i in range(len(a)):
            da[i] = (one if a[i] > zero else zero) * b_dy[i]
    elif kind == 2:
        for i in range(len(a)):
            cdf, x_pdf = normal(a[i])
            da[i] = (cdf + x_pdf) * b_dy[i]
    elif kind == 3:
        for i in range(len(a)):
            s = sigma(a[i], one, base)
            da[i] = s * (one + a[i] * (one - s)) * b_dy[i]
    else:
        for i in range(len(a)):
            da[i] = b_dy[i]


@compiled
def gates_back(kind, A, B, dY, dA, dB, queue):
    """dA = f′(A) ⊙ B ⊙ dY and dB = f(A) ⊙ dY, in parts, and each part in blocks that stay in the cache."""
    for part in claimed(queue, queue[1]):
        start, stop = cut(len(A), part, queue[1])
        for i0 in range(start, stop, BLOCK):
            i1 = min(i0 + BLOCK, stop)
            a, b, dy, da, db = A[i0:i1], B[i0:i1], dY[i0:i1], dA[i0:i1], dB[i0:i1]
            for i in range(len(db)):
                db[i] = b[i] * dy[i]
            gate_back(kind, a, db, da)
            open_gate(kind, a, dy, db)


class GatedPullback(Pullback):
    """da = f′(a) b dy and db = f(a) dy, with f and its slope found again from a."""

    A: Array
    B: Array
    gate: str

    @property
    def F(self) -> Array:  # noqa: N802
        """f(A), made again when it is asked for."""
        return gated(self.A, np.ones_like(self.B), self.gate)[0]

    def __call__(self, dY: Array) -> tuple[Array, Array]:
        dA, dB = np.empty(self.A.shape, self.A.dtype), np.empty(self.A.shape, self.A.dtype)
        arrays = (for_loops(X, self.A.dtype, self.A.shape).reshape(-1) for X in (self.A, self.B, dY))
        run(gates_back, dA.size, GATES[self.gate], *arrays, dA.reshape(-1), dB.reshape(-1))
        return dA, dB


def gated(A: Array, B: Array, gate: str) -> tuple[Array, GatedPullback]:
    """f(A) ⊙ B; the gate f is a name of GATES. GELU is for float32 only, see `gelu`."""
    Y = np.empty(A.shape, A.dtype)
    arrays = (for_loops(X, A.dtype, A.shape).reshape(-1) for X in (A, B))
    run(open_gates, A.size, GATES[gate], *arrays, Y.reshape(-1))
    return Y, GatedPullback(A, B, gate)


# ------------------------------------------------------------------------------------------- scatter-add


@compiled
def scatter(tokens, dY, dE, queue):
    """dE[tokens[t]] += dY[t], in parts of the columns, so that each part adds the rows in their order."""
    for part in claimed(queue, queue[1]):
        start, stop = cut(dE.shape[1], part, queue[1])
        for t in range(len(tokens)):
            de, dy = dE[tokens[t], start:stop], dY[t, start:stop]
            for j in range(len(de)):
                de[j] += dy[j]


def scatter_add(tokens: Array, dY: Array, vocabulary: int) -> Array:
    """dE (vocabulary, D): the sum of the rows of dY that belong to each token."""
    rows = for_loops(dY, dY.dtype, (*tokens.shape, dY.shape[-1])).reshape(tokens.size, dY.shape[-1])
    flat = for_loops(tokens.reshape(-1), np.dtype(np.int64), (tokens.size,))
    dE = np.zeros((vocabulary, dY.shape[-1]), dY.dtype)
    run(scatter, rows.size, flat, rows, dE)
    return dE


# --------------------------------------------------------------------------------------------- rotations


@compiled
def turn_part(X, cos, sin, interleaved, Y, queue):
    """Y = X with each pair of channels turned, some rows at a time; row t stands at position t mod n of cos and sin (n, pairs).

    Pair f is the channels 2f and 2f + 1 if `interleaved`, else f and pairs + f.

    A row is copied first and turned in place: with few arrays the compiler can prove them apart.
    """
    n, pairs = cos.shape
    X, cos, sin, Y = borrowed((X, cos, sin, Y))
    for part in claimed(queue, queue[1]):
        start = part * len(X) // queue[1]
        position = start % n
        for t in range(start, (part + 1) * len(X) // queue[1]):
            x, y, c, s = X[t], Y[t], cos[position], sin[position]
            position = position + 1 if position + 1 < n else 0
            for k in range(len(x)):
                y[k] = x[k]
            if interleaved:
                for f in range(pairs):
                    a, b = y[2 * f], y[2 * f + 1]
                    y[2 * f] = a * c[f] - b * s[f]
                    y[2 * f + 1] = a * s[f] + b * c[f]
            else:
                left, right = y[:pairs], y[pairs : 2 * pairs]
                for f in range(pairs):
                    a, b = left[f], right[f]
                    left[f] = a * c[f] - b * s[f]
                    right[f] = a * s[f] + b * c[f]


def turn(X: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """X (*batch, n, d) with each pair of channels turned by the angle of its position; the other channels stay as they are."""
    Y = np.empty(X.shape, X.dtype)
    if X.size:
        x, y = (A.reshape(-1, X.shape[-1]) for A in (for_loops(X, X.dtype, X.shape), Y))
        c, s = (for_loops(a, X.dtype, cos.shape) for a in (cos, sin))
        run(turn_part, X.size, x, c, s, interleaved, y)
    return Y


# ------------------------------------------------------------------------------------------------ AdamW


@compiled
def adamw_part(theta, g, m, v, numbers, new_theta, new_m, new_v, queue):
    """A step for one array, in parts. Three short loops: each has few enough arrays for the compiler to prove them apart."""
    beta1, rest1, beta2, rest2, root_c2, eps, rate, keep = numbers
    for part in claimed(queue, queue[1]):
        start, stop = cut(len(theta), part, queue[1])
        for i0 in range(start, stop, BLOCK):
            i1 = min(i0 + BLOCK, stop)
            g_, m_, v_, theta_ = g[i0:i1], new_m[i0:i1], new_v[i0:i1], new_theta[i0:i1]
            old_m, old_v, old_theta = m[i0:i1], v[i0:i1], theta[i0:i1]
            for i in range(len(m_)):
                m_[i] = beta1 * old_m[i] + rest1 * g_[i]
            for i in range(len(v_)):
                v_[i] = beta2 * old_v[i] + rest2 * (g_[i] * g_[i])
            for i in range(len(theta_)):
                theta_[i] = keep * old_theta[i] - rate * (m_[i] / (np.sqrt(v_[i]) * root_c2 + eps))


def adamw(
    theta: Sequence[Array],
    g: Sequence[Array],
    m: Sequence[Array],
    v: Sequence[Array],
    kept: Sequence[float],
    *,
    betas: tuple[float, float],
    t: int,
    eps: float,
    rate: float,
) -> list[tuple[Array, Array, Array]]:
    """Step t of AdamW: the new (θ, m, v) of each array. `kept` has the factor of each θ under weight decay, 1 for none."""
    beta1, beta2 = betas
    new = []
    for arrays, keep in zip(zip(theta, g, m, v, strict=True), kept, strict=True):
        dtype, shape = np.result_type(*arrays), arrays[0].shape
        factors = beta1, 1 - beta1, beta2, 1 - beta2, (1 - beta2**t) ** -0.5, eps, rate / (1 - beta1**t), keep
        result = np.empty(shape, dtype), np.empty(shape, dtype), np.empty(shape, dtype)
        old, to = (tuple(for_loops(X, dtype, shape).reshape(-1) for X in group) for group in (arrays, result))
        run(adamw_part, to[0].size, *old, tuple(map(dtype.type, factors)), *to)
        new.append(result)
    return new
