"""How fast is attention, stair by stair up to the roof of the machine, and from which length on do fewer pairs pay?

Everything is timed in rounds that take turns, so that a machine that becomes slower for a while does so for all. What is kept
are the times of every run. They are those of one machine at one time; chapters read them with `figures/speed.py`.
"""

import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from minitransformer.attention import (
    BigBird,
    Window,
    block_sparse_attention,
    dot_product_attention,
    elu_features,
    kernel_attention,
)
from minitransformer.backend import available, backend
from minitransformer.machine import cores, keep_freed_memory
from minitransformer.pullback import tree_bytes
from minitransformer.typing import Array

ALONE = True
IN_A_TEST = {"longest": 128}
ROUNDS = 5
WIDTH = 64  # d = dv of everything that is measured
LONG = 4096  # the length of the upper stairs
HEADS = 4  # when lengths are compared
RADIUS = 256  # of the window
REST = 0.3  # seconds after a product by BLAS, whose threads go on looking for work, on cores that the next job needs


@dataclass(frozen=True)
class Trial:
    """One round of one part, with no sequence longer than `longest`."""

    part: str
    round: int
    longest: int = 2**14


def trials() -> list[Trial]:
    """All parts, round after round."""
    return [Trial(part, round) for round in range(ROUNDS) for part in PARTS]


def run(trial: Trial) -> dict[str, Any]:
    """Times and rates, in four digits.

    A worker computes in a thread, whose memory goes back to the system with every array that is freed; that of a script's
    main thread does not. Here neither does.
    """
    keep_freed_memory()
    return _rounded(PARTS[trial.part](trial.longest))


# ------------------------------------------------------------------------------------------- the stairs


class Stair(NamedTuple):
    """One way to compute attention.

    tier        what it needs: "numpy", "numba" or "micro"
    all_cores   whether it runs on all cores; else on one
    n           the length at which it is timed
    passes      how often the n × n numbers of A go to memory or come from it
    """

    name: str
    attend: Callable[[Array, Array, Array], Array]
    tier: str
    all_cores: bool
    n: int
    passes: int = 0

    @property
    def cores(self) -> int:
        """The number of cores that it uses on this machine."""
        return cores() if self.all_cores else 1

    def intensity(self, n: int) -> float:
        """Operations for each byte of main memory: 4 n² d over Q, K, V, Y once, and A as often as it passes by."""
        return operations(n) / (4 * (4 * n * WIDTH + self.passes * n**2))


def _lower(module: str, name: str) -> Callable[..., Array]:
    """A stair of kernels/staircase.py or kernels/compiled_stairs.py, imported when somebody climbs it."""
    return lambda *QKV: getattr(import_module(f"minitransformer.kernels.{module}"), name)(*QKV)


def _in_tier(name: str) -> Callable[..., Array]:
    def attend(Q: Array, K: Array, V: Array) -> Array:
        with backend(name):
            return dot_product_attention(Q, K, V)[0]

    return attend


STAIRS = (  # lowest first
    Stair("three loops in Python", _lower("staircase", "three_loops"), "numpy", False, 48),
    Stair("the same, compiled", _lower("compiled_stairs", "dot_order"), "numba", False, 1024),
    Stair("loops in saxpy order", _lower("compiled_stairs", "saxpy_order"), "numba", False, 2048),
    Stair("NumPy, the definition", _in_tier("numpy"), "numpy", False, LONG, 10),
    Stair("NumPy in tiles", _lower("staircase", "tiles_in_numpy"), "numpy", False, LONG),
    Stair("compiled tiles, a query a row", _lower("compiled_stairs", "tiles_by_rows"), "numba", False, LONG),
    Stair("a query a lane", _lower("compiled_stairs", "tiles_by_lanes"), "numba", False, LONG),
    Stair("exp2 by a polynomial", _in_tier("numba"), "numba", False, LONG),
    Stair("all cores", _in_tier("numba"), "numba", True, LONG),
    Stair("the micro-kernel", _in_tier("micro"), "micro", True, LONG),
)


def climbable() -> list[Stair]:
    """The stairs that this machine has: all, or those that need no Numba."""
    return [stair for stair in STAIRS if stair.tier in available()]


def operations(n: int) -> int:
    """What every stair is said to compute: two products of n × n × d, a multiplication and an addition each."""
    return 4 * n**2 * WIDTH


def climb(stair: Stair, n: int, runs: int = 3) -> list[float]:
    """The times of several runs of a stair at length n."""
    Q, K, V = np.random.default_rng(0).standard_normal((3, n, WIDTH), np.float32)
    with on(stair.cores):
        return seconds(lambda: stair.attend(Q, K, V), runs)


# ------------------------------------------------------------------------------------------- measuring


@contextmanager
def on(number: int) -> Iterator[None]:
    """Let BLAS and the loops use this many cores while this block runs."""
    with threadpool_limits(number, "blas"):
        if "numba" not in available():
            yield
            return
        from minitransformer.kernels.threads import limit

        with limit(number):
            yield


def seconds(job: Callable[[], Any], runs: int = 3) -> list[float]:
    """The times of several runs, after a first one that is not counted."""
    job()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return times


def crossing(n: Array, ratios: Array) -> float | None:
    """From which n on the ratios are below 1, if between two lengths they follow straight lines in logarithms.

    The first n if all of them are; None if the last one is not.
    """
    logs = np.log(ratios)
    above = np.flatnonzero(logs >= 0)
    if not len(above):
        return float(n[0])
    k = above[-1]
    if k + 1 == len(logs):
        return None
    return float(n[k] * (n[k + 1] / n[k]) ** (logs[k] / (logs[k] - logs[k + 1])))


def _rounded(value: Any) -> Any:
    """Four digits of each float, in lists and tables of them."""
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


# ------------------------------------------------------------------------------------------- the parts


def ceilings(longest: int) -> dict[str, Any]:
    """Of one core and of all: GFLOP/s with everything in the first cache, GB/s of a copy that fits into none. Best runs."""
    some = [1, cores()]
    return {
        "cores": some,
        "peak": [peak(number, 64 * longest) for number in some],
        "bandwidth": [bandwidth(number, 4096 * longest) for number in some],
    }


def peak(number: int, times: int, rows: int = 12) -> float:
    """GFLOP/s of multiply-adds in `rows` rows that stay in the first-level cache, on `number` cores: the best of nine runs."""
    from minitransformer.kernels.compiled_stairs import multiply_adds
    from minitransformer.kernels.threads import in_parallel
    from minitransformer.kernels.tiles import LANES

    A, B = np.ones((rows, LANES), np.float32), np.ones((LANES, LANES), np.float32)
    C, loops = np.zeros((number, rows, LANES), np.float32), None if "micro" in available() else True
    with on(number):
        best = min(seconds(lambda: in_parallel(number, multiply_adds, A, B, times // rows, loops, C), 9))
    return 2 * number * (times // rows) * A.size * LANES / best / 1e9


def bandwidth(number: int, length: int) -> float:
    """GB/s, read and written, of a copy of `length` numbers, on `number` cores: the best of nine runs."""
    from minitransformer.kernels.compiled_stairs import copy
    from minitransformer.kernels.threads import in_parallel

    X, Y = np.ones(length, np.float32), np.zeros(length, np.float32)
    with on(number):
        return 2 * X.nbytes / min(seconds(lambda: in_parallel(number, copy, X, Y), 9)) / 1e9


def staircase(longest: int) -> dict[str, Any]:
    """The times of each stair."""
    return {stair.name: climb(stair, min(stair.n, longest)) for stair in climbable()}


def rows(longest: int) -> dict[str, Any]:
    """GFLOP/s of one core in blocks of four rows and of six, in turn; twelve rows are computed as two blocks of six."""
    found = [[peak(1, 64 * longest, rows) for rows in (4, 12)] for _ in range(3)]
    return {"4": [four for four, _ in found], "6": [six for _, six in found]}


def small_numbers(longest: int) -> dict[str, Any]:
    """Seconds for 10,000 products of a normal number, a subnormal one, and zero; and for the way back from two attentions.

    Scores of the second are thirty times as large, so that most of its weights are next to nothing.
    """
    found: dict[str, Any] = {}
    for exponent in (-100, -130, -160):
        x, y = np.full((2, 10_000), 2.0**exponent, np.float32)
        found[str(exponent)] = statistics.median(seconds(functools.partial(np.multiply, x, np.float32(0.75), y), 99))
    Q, K, V, dY = np.random.default_rng(0).standard_normal((4, HEADS, min(longest, 1024), WIDTH), np.float32)
    for name, factor in (("flat", 1), ("steep", 30)):
        _, pullback = dot_product_attention(np.float32(factor) * Q, K, V)
        found[name] = statistics.median(seconds(functools.partial(pullback, np.float32(1e-4) * dY), 9))
    return found


def jobs(n: int) -> dict[str, Callable[[], tuple[Any, Any]]]:
    """What is compared at length n, by name: each gives Y, and a pullback that says what the way back remembers."""
    rng = np.random.default_rng(0)
    Q, K, V = rng.standard_normal((3, HEADS, n, WIDTH), np.float32)
    Y, window, bigbird = np.empty_like(V), Window(RADIUS)(n, n, causal=False), BigBird()(n, n, causal=False)

    def definition() -> tuple[Any, Any]:
        with backend("numpy"):
            return dot_product_attention(Q, K, V)

    def copy() -> tuple[Any, Any]:
        Y[:] = V
        return Y, (V,)

    def linear() -> tuple[Any, Any]:
        (FQ, from_Q), (FK, from_K) = elu_features(Q), elu_features(K)
        out, from_features = kernel_attention(FQ, FK, V)
        return out, (from_Q, from_K, from_features)

    return {
        "definition": definition,
        "dense": lambda: dot_product_attention(Q, K, V),
        "window": lambda: block_sparse_attention(Q, K, V, window),
        "bigbird": lambda: block_sparse_attention(Q, K, V, bigbird),
        "kernel": linear,
        "copy": copy,
    }


def lengths(longest: int) -> dict[str, Any]:
    """Times, and bytes remembered, of each job at lengths 128, 256, …; the definition only as long as A has 256 MiB."""
    n = [2**k for k in range(7, 1 + int(math.log2(longest)))]
    times: dict[str, list[Any]] = {name: [] for name in jobs(n[0])}
    size: dict[str, list[int]] = {name: [] for name in times}
    for length in n:
        for name, job in jobs(length).items():
            if name != "definition" or length <= LONG:
                with on(cores()):
                    times[name].append(seconds(job, 9 if length < 2048 else 3))
                time.sleep(REST if name == "definition" else 0)
                size[name].append(tree_bytes(job()[1]))
    return {"n": n, "seconds": times, "bytes": size}


PARTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "small numbers": small_numbers,
    "ceilings": ceilings,
    "staircase": staircase,
    "rows": rows,
    "lengths": lengths,
}
