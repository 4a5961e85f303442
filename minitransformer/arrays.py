"""What definitions and compiled loops both ask of their arrays: one dtype, a shape that fits, a quotient where D may be 0."""

import numpy as np

from minitransformer.typing import Array


def one_dtype(**arrays: Array | None) -> None:
    """Refuse a mixture of float32 and float64, which NumPy would quietly turn into float64."""
    if len({a.dtype for a in arrays.values() if a is not None}) > 1:
        dtypes = {name: str(a.dtype) for name, a in arrays.items() if a is not None}
        raise TypeError(f"{', '.join(dtypes)}: should have one dtype, got {', '.join(dtypes.values())}")


def inverse(D: Array) -> Array:
    """1 / D, and 0 where D is 0: a query whose weights sum to zero gives zeros."""
    return np.divide(1, D, out=np.zeros_like(D), where=D != 0)


def must_broadcast(mask: Array, shape: tuple[int, ...], name: str = "mask", what: str = "the scores") -> Array:
    """The mask (or another array), if it broadcasts to the shape of the scores without making them larger.

    raises   ValueError with both shapes, if not
    """
    try:
        fits = np.broadcast_shapes(mask.shape, shape) == tuple(shape)
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{name}: shape {mask.shape} does not broadcast to the shape of {what}, {tuple(shape)}")
    return mask
