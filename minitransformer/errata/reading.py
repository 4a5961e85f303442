"""What an equation gives as it is printed, and what it gives as it is meant."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from minitransformer.functional import softmax
from minitransformer.typing import Array


class Reading(NamedTuple):
    """What was measured on a small example.

    numbers   by name, as the sentence of the list has them
    error     ‖printed − meant‖/‖meant‖ of what the layer says, where both readings say something of one shape; else None
    """

    numbers: dict[str, float]
    error: float | None = None


def relative_error(printed: Array, meant: Array) -> float:
    """‖printed − meant‖/‖meant‖, over all entries."""
    return float(np.linalg.norm(printed - meant) / np.linalg.norm(meant))


def largest_weight(S: Array) -> float:
    """The largest weight in a row of softmax(S), on average over the rows."""
    return float(softmax(S)[0].max(-1).mean())


def queries_keys_values(rng: np.random.Generator, *shape: int) -> Array:
    """Three arrays of this shape, Q, K and V, with normal entries of variance one."""
    return rng.standard_normal((3, *shape))


def mean_of(scores: Iterable[float]) -> float:
    """The plain mean of the scores of a printed table."""
    return math.fsum(values := list(scores)) / len(values)
