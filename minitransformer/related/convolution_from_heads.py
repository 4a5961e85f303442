"""A convolution as multi-head attention: every head fetches one neighbour of each token, and W_o holds the kernel.

    head_h = softmax(Π_h) X,    Π_h = β where j = i − o_h, and 0 elsewhere      as β → ∞, row i of head_h is x_{i − o_h}
    Y = [head_1 … head_H] W_o,  W_o = [w_1; …; w_H]                             then y_i = Σ_h x_{i − o_h} w_h

Queries and keys are zero, so content says nothing; the scores are a number for each offset, as encodings of positions have it.
w_h is a number times the identity for one kernel that all channels share, or any matrix (C, E) for a full one.
"""

import math
from typing import NamedTuple

import numpy as np

from minitransformer.arrays import one_dtype
from minitransformer.attention.multi_head import MultiHeadAttention, MultiHeadParams
from minitransformer.attention.softmax import SoftmaxAttention
from minitransformer.positions.grid import GridScalars, GridScalarsParams
from minitransformer.positions.t5 import OffsetScalarParams, OffsetScalars
from minitransformer.ranges import NonNegativeNumber
from minitransformer.typing import Array, Float, checked

HEIGHT = 50.0  # e^−50 is 2·10⁻²²: below what float64 can add to 1


class ConvolutionFromHeads(NamedTuple):
    """Attention that is a convolution, and its parameters."""

    attention: MultiHeadAttention
    params: MultiHeadParams


@checked
def convolution_from_heads(
    kernel: Float[Array, "..."], shape: tuple[int, ...], *, channels: int = 1, height: NonNegativeNumber = HEIGHT
) -> ConvolutionFromHeads:
    """Multi-head attention, with a head for each tap, that convolves rows of `channels` numbers with a kernel.

        y_i = Σ_o x_{i − o} w_o            i and o are numbers, or pairs of them in a picture that is read line by line

    Row i of Y is exact, to n e^−β, where all i − o are inside. Where one is outside, its head has no large score and takes the
    mean of all rows; with zeros around the text or the picture, as wide as the kernel reaches, all that was inside is exact.

    kernel    (taps,) or (rows, columns), one number for each tap; or with two axes more, (…, C, E), a matrix for each
    shape     (n,) of a text, or (rows, columns) of a picture
    channels  C, where the kernel has numbers only
    height    β, of the score at a head's own offset; all others are 0
    source    Borealis II (22) and (23), whose offsets need a sign (E22); Cordonnier, Loukas and Jaggi 2020
    cost      O(H n² C), where the convolution itself is O(H n C E)
    returns   attention of width H · max(C, ⌈E / H⌉), and parameters in the dtype of the kernel: X is in its first C channels,
              with zeros in the others (`widened`), and Y in its first E
    raises    ValueError for a kernel whose axes do not go with the shape, or that has no taps
    """
    axes = len(shape)
    if axes not in (1, 2) or kernel.ndim not in (axes, axes + 2) or not kernel.size:
        raise ValueError(
            f"kernel: shape {kernel.shape} should have the axes of the text or picture, {shape}, and perhaps (C, E) behind them"
        )
    sizes = kernel.shape[:axes]  # the middle tap has the offset 0; of an even number, the left one of the two
    taps = np.indices(sizes).reshape(axes, -1).T - (np.array(sizes) - 1) // 2
    blocks = kernel.reshape(len(taps), *kernel.shape[axes:])
    if kernel.ndim == axes:
        blocks = blocks[:, None, None] * np.eye(channels, dtype=kernel.dtype)
    heads, C, E = blocks.shape
    d = max(C, math.ceil(E / heads))
    width = heads * d
    W_v, W_o = np.zeros((width, heads, d), kernel.dtype), np.zeros((heads, d, width), kernel.dtype)
    for c in range(C):
        W_v[c, :, c] = 1  # every head takes all channels as they are
    W_o[:, :C, :E] = blocks
    scores, table = _scores(taps, np.array(shape), kernel.dtype.type(height))
    attention = MultiHeadAttention(width, heads, bias=False, core=SoftmaxAttention(encoding=scores))
    zeros = np.zeros((width, width), kernel.dtype)
    params = MultiHeadParams(zeros, zeros, W_v.reshape(width, width), W_o.reshape(width, width), core=table)
    return ConvolutionFromHeads(attention, params)


def _scores(taps: Array, shape: Array, height: float) -> tuple[OffsetScalars | GridScalars, object]:
    """An encoding of scores with β at −o_h, the offset j − i of the key that head h fetches; a tap beyond the text has none."""
    heads, longest = len(taps), int(shape.prod())
    table = np.zeros((heads, *(2 * shape - 1)), type(height))
    inside = np.flatnonzero((np.abs(taps) < shape).all(1))
    table[(inside, *(shape - 1 - taps[inside]).T)] = height
    if len(shape) == 1:
        return OffsetScalars(heads, longest), OffsetScalarParams(table)
    return GridScalars(heads, longest, columns=int(shape[1])), GridScalarsParams(table)


@checked
def widened(X: Float[Array, "*batch n C"], width: int) -> Float[Array, "*batch n {width}"]:
    """X with zeros for the channels that it does not have. Raises ValueError if it has more than `width`."""
    if X.shape[-1] > width:
        raise ValueError(f"X: {X.shape[-1]} channels, more than the width {width}")
    return np.concatenate([X, np.zeros((*X.shape[:-1], width - X.shape[-1]), X.dtype)], -1)


@checked
def convolve_with_heads(
    X: Float[Array, "*batch n C"],
    kernel: Float[Array, "..."],
    shape: tuple[int, ...],
    *,
    height: NonNegativeNumber = HEIGHT,
) -> Float[Array, "*batch n E"]:
    """Rows X, of a text or of a picture read line by line, through the attention that is this convolution.

    raises   TypeError for X and a kernel of two dtypes, ValueError for a kernel that goes with neither the shape nor the
             channels of X, or an X that has none, or another number of rows
    """
    one_dtype(X=X, kernel=kernel)
    n, C = X.shape[-2:]
    if n != math.prod(shape) or not C:
        raise ValueError(
            f"X: {n} rows of {C} channels should be the {math.prod(shape)} rows of {shape}, with a channel"
        )
    if kernel.ndim == len(shape) + 2 and kernel.shape[-2] != C:
        raise ValueError(f"kernel: shape {kernel.shape} should end in ({C}, E), as X has {C} channels")
    attention, params = convolution_from_heads(kernel, shape, channels=C, height=height)
    Y, _ = attention(params, widened(X, attention.width))
    return Y[..., : kernel.shape[-1] if kernel.ndim == len(shape) + 2 else C]
