"""A blur and an edge filter, made of nine attention heads each, on a photograph that comes with Matplotlib: Grace Hopper."""

from typing import NamedTuple

import numpy as np
from matplotlib import cbook
from matplotlib.figure import Figure
from matplotlib.image import imread

from minitransformer.figures.style import figure
from minitransformer.related import convolve_with_heads
from minitransformer.typing import Array

BLUR = np.outer([1.0, 2, 1], [1, 2, 1]) / 16
EDGES = np.array([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]])
CROP, STEP = (slice(40, 400), slice(110, 420)), 10  # of 600 × 512 pixels; a mean of 10 × 10 is one of ours


class ImageFilters(NamedTuple):
    """Pictures (rows, columns): what there was, and what heads and convolution made of it, by filter."""

    picture: Array
    by_heads: dict[str, Array]
    convolved: dict[str, Array]


def photograph() -> Array:
    """36 × 31 pixels from 0 to 1, a photograph of the U.S. Navy, in the public domain."""
    colours = imread(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False))[CROP] / 255
    grey = colours @ np.array([0.299, 0.587, 0.114])
    rows, columns = (size // STEP for size in grey.shape)
    return grey[: rows * STEP, : columns * STEP].reshape(rows, STEP, columns, STEP).mean((1, 3))


def convolved(picture: Array, kernel: Array) -> Array:
    """The convolution with zeros outside: one shifted picture for each tap of a kernel of 3 × 3."""
    framed, (rows, columns) = np.pad(picture, 1), picture.shape
    Y = np.zeros_like(picture)
    for (y, x), tap in np.ndenumerate(kernel):
        Y += tap * framed[2 - y : 2 - y + rows, 2 - x : 2 - x + columns]
    return Y


def data() -> ImageFilters:
    """Read line by line, the picture is a text of 1,116 tokens of one number each."""
    picture = photograph()
    found = ImageFilters(picture, {}, {})
    for name, kernel in (("blur", BLUR), ("edges", EDGES)):
        rows = convolve_with_heads(picture.reshape(-1, 1), kernel, picture.shape)
        found.by_heads[name] = rows.reshape(picture.shape)
        found.convolved[name] = convolved(picture, kernel)
    return found


def draw(data: ImageFilters) -> Figure:
    """Above, the photograph and the blur of nine heads. Below, their edges, and how far these are from a convolution.

    Only in the frame, one pixel wide, is there a difference.
    """
    fig, axes = figure(2, 2, width=9, height=10.6)
    apart = np.abs(data.by_heads["edges"] - data.convolved["edges"])
    panels = (
        ("36 × 31 pixels", data.picture, 0, 1, "gray"),
        ("blurred by nine heads", data.by_heads["blur"], 0, 1, "gray"),
        ("edges, by nine heads", data.by_heads["edges"], -0.6, 0.6, "gray"),
        ("heads and zero padding differ", np.ma.masked_less(apart, 1e-9), 0, 1, "Oranges"),
    )
    for ax, (title, picture, low, high, colours) in zip(axes.flat, panels, strict=True):
        image = ax.imshow(picture, vmin=low, vmax=high, cmap=colours)
        ax.set(title=title, xticks=(), yticks=())
        ax.spines[["top", "right"]].set_visible(True)
    bar = {"location": "bottom", "shrink": 0.8, "aspect": 20, "label": "difference in grey level; white: 0"}
    fig.colorbar(image, ax=axes[1, 1], ticks=(0, 0.5, 1), **bar)
    return fig
