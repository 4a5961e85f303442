"""From which length on does attention take longer than the four projections around it?

Time of one core, with the definition in NumPy: the projections, the two products with n × n matrices, and softmax between.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import process_time
from timeit import repeat
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from minitransformer.attention import aggregate, scores
from minitransformer.backend import backend
from minitransformer.functional import softmax

ALONE = True
IN_A_TEST = {"n": 16, "runs": 2}


@dataclass(frozen=True)
class Trial:
    """A batch of texts of n tokens; what is kept is the shortest of some runs."""

    n: int
    width: int = 256
    heads: int = 4
    batch: int = 4
    runs: int = 100


def trials() -> list[Trial]:
    """From n = D/8 to n = 4 D."""
    return [Trial(n) for n in (32, 64, 128, 256, 512, 1024)]


def run(trial: Trial) -> dict[str, Any]:
    """How many milliseconds each part takes."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((trial.batch * trial.n, trial.width), np.float32)
    W = rng.standard_normal((trial.width, 4 * trial.width), np.float32)
    Q, K, V = rng.standard_normal((3, trial.batch, trial.heads, trial.n, trial.width // trial.heads), np.float32)

    def shortest(work: Callable[[], Any]) -> float:
        return round(1000 * min(repeat(work, timer=process_time, number=1, repeat=trial.runs)), 2)

    with backend("numpy"), threadpool_limits(1):
        S, _ = scores(Q, K)
        A, _ = softmax(S)
        return {
            "projections": shortest(lambda: X @ W),
            "products": shortest(lambda: (scores(Q, K), aggregate(A, V))),
            "softmax": shortest(lambda: softmax(S)),
        }
