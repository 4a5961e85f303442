"""A small classifier with capsules: pieces of an image vote for what it shows.

piece p of the image, side × side pixels, as a row x_p
u_(p t) = squash(x_p W_t + b_t)          T types of capsules at each piece, the same for all pieces
v_1 … v_K = capsules of the classes      routed by agreement (capsules.py)
the answer is the longest v_k
"""

import math
from typing import NamedTuple

import numpy as np

from minitransformer.arrays import as_one_axis, one_dtype
from minitransformer.checks import frozen
from minitransformer.functional import LinearPullback, linear
from minitransformer.pullback import Pullback
from minitransformer.ranges import Iterations
from minitransformer.related.capsules import Capsules, CapsulesParams, CapsulesPullback, SquashPullback, squash
from minitransformer.typing import Array, Float, Int, checked


class PiecesPullback(Pullback):
    """A pixel that stands in several pieces gets the sum of their gradients."""

    size: tuple[int, int]
    side: int
    stride: int

    def __call__(self, dpieces: Array) -> Array:
        height, width = self.size
        dimages = np.zeros((*dpieces.shape[:-2], height, width), dpieces.dtype)
        for p, (y, x) in enumerate(corners(height, width, self.side, self.stride)):
            piece = dpieces[..., p, :].reshape(*dpieces.shape[:-2], self.side, self.side)
            dimages[..., y : y + self.side, x : x + self.side] += piece
        return dimages


def corners(height: int, width: int, side: int, stride: int) -> list[tuple[int, int]]:
    """Where the pieces of an image begin, row by row."""
    return [(y, x) for y in range(0, height - side + 1, stride) for x in range(0, width - side + 1, stride)]


@checked
def pieces(
    images: Float[Array, "*batch height width"], *, side: int, stride: int
) -> tuple[Float[Array, "*batch pieces pixels"], PiecesPullback]:
    """Squares of side × side pixels, `stride` apart, each as a row. Pullback: dpieces to dimages.

    raises   ValueError for a square that is larger than the image
    """
    height, width = images.shape[-2:]
    if side > min(height, width):
        raise ValueError(f"side: {side} should be at most {min(height, width)}, that of the images")
    rows = [images[..., y : y + side, x : x + side] for y, x in corners(height, width, side, stride)]
    stacked = np.stack(rows, -3)
    return stacked.reshape(*stacked.shape[:-2], side * side), PiecesPullback((height, width), side, stride)


class CapsuleClassifierParams(NamedTuple):
    """W (side², types · width) and b (types · width) of all types of capsules at a piece; and those of the classes."""

    W: Array
    b: Array
    classes: CapsulesParams


class CapsuleClassifierPullback(Pullback):
    """Back through the capsules of the classes, squash, the linear map, and the cut into pieces."""

    pieces: PiecesPullback
    linear: LinearPullback
    squash: SquashPullback
    classes: CapsulesPullback

    def __call__(self, dV: Array) -> tuple[CapsuleClassifierParams, Array]:
        dclasses, dU = self.classes(dV)
        dH = self.squash(dU.reshape(self.squash.S.shape))
        drows, dW, db = self.linear(as_one_axis(dH, -2))
        return CapsuleClassifierParams(dW, db, dclasses), self.pieces(drows)


@frozen
class CapsuleClassifier:
    """An image to one capsule for each class.

    classes     K
    size        side of the images, which are squares
    side        of a piece
    stride      from one piece to the next
    types       of capsules at each piece
    width       of a capsule below
    d           of a capsule of a class
    iterations  rounds of routing
    source      after Sabour, Frosst and Hinton 2017, without their first layer of convolutions, and without the network that
                reconstructs the image
    raises      ValueError for pieces that are larger than the images; when called, for images whose capsules are NaN
    """

    classes: int = 10
    size: int = 8
    side: int = 4
    stride: int = 2
    types: int = 4
    width: int = 8
    d: int = 8
    iterations: Iterations = 3

    def __post_init__(self) -> None:
        if self.side > self.size:
            raise ValueError(f"side: {self.side} should be at most {self.size}, that of the images")

    @property
    def layer(self) -> Capsules:
        """The capsules of the classes."""
        count = len(corners(self.size, self.size, self.side, self.stride)) * self.types
        return Capsules(count, self.classes, self.width, self.d, self.iterations)

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> CapsuleClassifierParams:
        """W uniform on ±√(3/side²), biases zero, and the matrices of the classes."""
        columns = self.types * self.width
        W = rng.uniform(-1, 1, (self.side**2, columns)) * math.sqrt(3) / self.side
        return CapsuleClassifierParams(W.astype(dtype), np.zeros(columns, dtype), self.layer.init(rng, dtype))

    @checked
    def __call__(
        self, params: CapsuleClassifierParams, images: Float[Array, "*batch {self.size} {self.size}"]
    ) -> tuple[Float[Array, "*batch {self.classes} {self.d}"], CapsuleClassifierPullback]:
        """The capsules of the classes. Pullback: dV to (dparams, dimages)."""
        one_dtype(images=images, W=params.W)
        rows, cut = pieces(images, side=self.side, stride=self.stride)
        H, projection = linear(rows, params.W, params.b)
        U, squashed = squash(H.reshape(*H.shape[:-1], self.types, self.width))
        if np.isnan(U).any():
            raise ValueError(
                f"images: {np.isnan(U).sum()} numbers of their capsules are NaN; pixels should be of the order of 1"
            )
        layer = self.layer
        V, routed = layer(params.classes, U.reshape(*U.shape[:-3], layer.inputs, self.width))
        return V, CapsuleClassifierPullback(cut, projection, squashed, routed)


class MarginLossPullback(Pullback):
    """d|v|/dv = v/|v|, taken as 0 at v = 0, times the slope of the square that counts for this class."""

    V: Array
    slope: Array  # ∂loss/∂|v_k|
    norm: Array

    def __call__(self, dloss: Array) -> Array:
        return dloss * (self.slope / np.where(self.norm == 0, 1, self.norm))[..., None] * self.V


@checked
def margin_loss(V: Float[Array, "*batch classes d"], labels: Int[Array, "*batch"]):
    """The class that is there should be longer than 0.9, any other shorter than 0.1; mean over the samples.

        L = max(0, 0.9 − |v_k|)² for the label k, and ½ Σ max(0, |v_l| − 0.1)² over the others

    source   Sabour, Frosst and Hinton 2017
    raises   ValueError for a label that is no class
    """
    if labels.size and not (0 <= labels.min() and labels.max() < V.shape[-2]):
        raise ValueError(f"labels: {labels.min()} … {labels.max()} is not within 0 … {V.shape[-2] - 1}")
    norm, dtype = np.sqrt((V * V).sum(-1)), V.dtype.type
    here = np.arange(V.shape[-2]) == labels[..., None]
    short, long = np.maximum(0, dtype(0.9) - norm), np.maximum(0, norm - dtype(0.1))
    each = np.where(here, short * short, dtype(0.5) * long * long)
    samples = dtype(max(labels.size, 1))
    slope = np.where(here, -2 * short, long) / samples
    return each.sum() / samples, MarginLossPullback(V, slope.astype(V.dtype), norm)
