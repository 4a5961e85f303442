"""Real images that are small enough for every test: 1,797 handwritten digits of 8 × 8 pixels, which come with the book.

They are the test set of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak 1998, UCI Machine Learning
Repository, CC BY 4.0; digits.txt stands beside the file).
"""

import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np

from minitransformer.typing import Array, checked

HELD_OUT = 360  # the last images of the file, a fifth


class Digits(NamedTuple):
    """Images (count, 8, 8) float32, from 0 for paper to 1 for ink, and what they show, (count,) int64 from 0 to 9."""

    images: Array
    labels: Array


@functools.cache
def _all() -> Digits:
    with np.load(Path(__file__).with_name("digits.npz")) as file:
        both = Digits(file["images"] / np.float32(16), file["labels"].astype(np.int64))
    for array in both:
        array.setflags(write=False)
    return both


@checked
def digits() -> tuple[Digits, Digits]:
    """1,437 images to learn from, and the last 360 of the file to be judged by. The arrays are read-only."""
    images, labels = _all()
    cut = len(labels) - HELD_OUT
    return Digits(images[:cut], labels[:cut]), Digits(images[cut:], labels[cut:])
