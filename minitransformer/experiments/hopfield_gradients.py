"""What does the way back through many updates cost, unrolled and at the fixed point? One trial at a time, for it is timed.

64 noisy digits are retrieved among 512 others. With a larger β of these four it takes more updates until they have settled.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.data.digits import digits
from minitransformer.pullback import tree_bytes
from minitransformer.related import hopfield_attention

ALONE = True
IN_A_TEST = {"rounds": 1, "queries": 2}
BETAS = (0.1, 0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Trial:
    """The inverse temperature, and what is drawn with the seed: the noise, and the gradient that is sent back."""

    beta: float
    seed: int
    rounds: int = 15
    queries: int = 64


def trials() -> list[Trial]:
    """Three seeds for each β."""
    return [Trial(beta, seed) for beta in BETAS for seed in range(3)]


def run(trial: Trial) -> dict[str, Any]:
    """Both ways in turns, after a round that does not count.

    steps     how often the slowest query was compared with the patterns
    settled   whether all queries have settled
    seconds   medians of the forward and of the backward pass, unrolled and implicit
    ratio     of the backward passes, unrolled over implicit: the median of the rounds
    bytes     that each pullback holds
    differ    the largest difference of the two gradients of the patterns, relative to the largest entry
    queries   the largest entry of the gradient of the queries, unrolled, relative to that of the patterns; implicit it is 0
    """
    rng = np.random.default_rng(trial.seed)
    images = digits()[0].images.reshape(-1, 64) - digits()[0].images.mean()
    K, Q = images[64 : 64 + 512], images[: trial.queries]
    Q = Q + rng.normal(0, 0.3, Q.shape).astype(Q.dtype)
    dY, found = rng.standard_normal(Q.shape).astype(Q.dtype), {}
    seconds: dict[str, list[tuple[float, float]]] = {"unrolled": [], "implicit": []}
    for _ in range(1 + trial.rounds):
        for gradient, taken in seconds.items():
            begin = time.perf_counter()
            _, pullback = hopfield_attention(Q, K, K, trial.beta, steps=1000, gradient=gradient)  # type: ignore[arg-type]
            there = time.perf_counter()
            found[gradient] = pullback, pullback(dY)
            taken.append((there - begin, time.perf_counter() - there))
    ratios = [a[1] / b[1] for a, b in zip(seconds["unrolled"][1:], seconds["implicit"][1:], strict=True)]
    (pullback, (dQ, dK, dV)), (implicit, (_, dK_implicit, dV_implicit)) = found["unrolled"], found["implicit"]
    dK, dK_implicit = dK + dV, dK_implicit + dV_implicit
    return {
        "steps": int(pullback.steps.max()),
        "settled": bool(pullback.settled.all()),
        "seconds": {name: np.median(taken[1:], axis=0).round(5).tolist() for name, taken in seconds.items()},
        "ratio": round(float(np.median(ratios)), 3),
        "bytes": {"unrolled": tree_bytes(pullback), "implicit": tree_bytes(implicit)},
        "differ": float(f"{np.abs(dK - dK_implicit).max() / np.abs(dK).max():.3g}"),
        "queries": float(f"{np.abs(dQ).max() / np.abs(dK).max():.3g}"),
    }
