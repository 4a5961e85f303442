"""Numbers that need no file: what other frameworks were given, whose answers are stored, can be made again."""

import math

import numpy as np


def waves(shape, k):
    """The k-th array of this shape: sin(0.7 i² + k) for its entries i."""
    i = np.arange(math.prod(shape), dtype=float)
    return np.sin(0.7 * i * i + k).reshape(shape)
