"""2ˣ for x ≤ 0, and tanh, in a form that the compiler turns into vector instructions.

    k = round(x)                     so that r = x − k lies in [−½, ½]
    y = Σ_i (r ln 2)^i / i!          the Taylor series of 2ʳ, to the last bit after 8 terms (float32) or 14 (float64)
    2ˣ = 2ᵏ y                        the float 2ᵏ has the bits of k + 127 in the place of its exponent (+ 1023 in float64)

Why not `math.exp`: it is a call for each number, where this is about fifteen instructions for 4, 8 or 16 numbers at once. Why
base 2: the exponent of a float is that of a power of two, so 2ᵏ is made by one shift of bits; a kernel that wants eˣ
multiplies its argument by log₂ e beforehand, where that costs nothing.

Adding 1.5 · 2²³ + 127 (1.5 · 2⁵² + 1023 in float64) to x leaves no room for binary places: x is rounded to an integer, and
that plus 127 stands in the lowest bits. The trick needs sums in the order in which they are written: of the liberties called
"fast-math" only `contract` is given. So NaN and −∞ also keep their meaning: 2^NaN is NaN, whatever bits it brings along
(R's "not available" is a NaN with 1954 in it), and 2^−∞ is 0.

tanh |x| = −e / (2 + e) with e = 2ᵗ − 1 and t = −2 |x| log₂ e. In e = 2ᵏ (y − 1) + (2ᵏ − 1) the series y is taken without its
term of i = 0, the 1, so that no digit is lost where x is small: there k = 0, and e is y − 1.
"""

import math

import numpy as np
from numba import types
from numba.extending import overload

from minitransformer.kernels.compiling import CONTRACT

TAYLOR32 = tuple(np.float32(math.log(2) ** k / math.factorial(k)) for k in range(7, -1, -1))
TAYLOR64 = tuple(math.log(2) ** k / math.factorial(k) for k in range(13, -1, -1))
ROUND32 = np.float32(1.5 * 2**23 + 127)  # 1.5 · 2²³ to round; 127 stands for 2⁰ in the exponent of a float
ROUND64 = 1.5 * 2.0**52 + 1023
LOG2E = math.log2(math.e)
TWICE = 2 * LOG2E  # e^(−2 |x|) is 2^(−TWICE |x|)


def exp2_float32(x):
    """2ˣ in float32; below 2⁻¹²⁶, the smallest normal number, zero."""
    if x < np.float32(-126):
        return np.float32(0)
    shifted = np.float32(x + ROUND32)
    r = x - (shifted - ROUND32)
    y = TAYLOR32[0]
    for c in TAYLOR32[1:]:
        y = y * r + c
    return y * np.int32(shifted.view(np.int32) << np.int32(23)).view(np.float32)


def exp2_float64(x):
    """2ˣ in float64; below 2⁻¹⁰²², the smallest normal number, zero."""
    if x < -1022.0:
        return 0.0
    shifted = np.float64(x + ROUND64)
    r = x - (shifted - ROUND64)
    y = TAYLOR64[0]
    for c in TAYLOR64[1:]:
        y = y * r + c
    return y * np.int64(shifted.view(np.int64) << np.int64(52)).view(np.float64)


def exp2(x):
    """2ˣ in the type of x, for x ≤ 0."""
    return exp2_float32(x) if isinstance(x, np.float32) else exp2_float64(x)


def tanh_float32(x):
    """tanh x in float32."""
    t = -np.float32(TWICE) * abs(x)
    t = np.float32(-126) if t < np.float32(-126) else t
    shifted = np.float32(t + ROUND32)
    r = t - (shifted - ROUND32)
    y = TAYLOR32[0]
    for c in TAYLOR32[1:-1]:
        y = y * r + c
    power = np.int32(shifted.view(np.int32) << np.int32(23)).view(np.float32)
    e = power * (y * r) + (power - np.float32(1))
    h = e / (np.float32(2) + e)
    return h if x < np.float32(0) else -h


def tanh_float64(x):
    """tanh x in float64."""
    t = -TWICE * abs(x)
    t = -1022.0 if t < -1022.0 else t
    shifted = np.float64(t + ROUND64)
    r = t - (shifted - ROUND64)
    y = TAYLOR64[0]
    for c in TAYLOR64[1:-1]:
        y = y * r + c
    power = np.int64(shifted.view(np.int64) << np.int64(52)).view(np.float64)
    e = power * (y * r) + (power - 1.0)
    h = e / (2.0 + e)
    return h if x < 0.0 else -h


def tanh(x):
    """tanh x in the type of x."""
    return tanh_float32(x) if isinstance(x, np.float32) else tanh_float64(x)


@overload(exp2, jit_options={"fastmath": CONTRACT})
def _compiled_exp2(x):
    """What compiled code calls under the name `exp2`."""
    return exp2_float32 if x == types.float32 else exp2_float64


@overload(tanh, jit_options={"fastmath": CONTRACT})
def _compiled_tanh(x):
    """What compiled code calls under the name `tanh`."""
    return tanh_float32 if x == types.float32 else tanh_float64
