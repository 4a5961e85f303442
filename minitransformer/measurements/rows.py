"""Two measures that figures and experiments take of the rows of a matrix."""

import numpy as np

from minitransformer.typing import Array


def unit(X: Array) -> Array:
    """The rows of X, divided by their lengths: rows of norm one."""
    return X / np.linalg.norm(X, axis=-1, keepdims=True)


def in_use(A: Array) -> Array:
    """How many keys each row of weights uses: exp of its entropy, 1 if one key has all the weight and m if m have the same."""
    return np.exp(-(A * np.log(np.maximum(A, 1e-30))).sum(-1))
