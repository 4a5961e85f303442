"""How fast attention is: stair by stair, under its roofs, and against the length, from the record of one machine.

`python -m minitransformer.figures.speed` measures anew, in two or three minutes, and writes the record. The stairs are
functions that the chapter, the record and the tests share.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

from minitransformer.attention import dot_product_attention
from minitransformer.backend import available, backend
from minitransformer.figures.style import figure
from minitransformer.training.parallel import cores
from minitransformer.typing import Array

WIDTH = 64  # d = dv of everything that is measured
LONG = 4096  # A of this length is larger than any cache
HEADS = 4  # when lengths are compared
LENGTHS = tuple(2**k for k in range(7, 15))
RADIUS = 256
FITTED = 2048  # slopes are fitted from this length on


class Stair(NamedTuple):
    """One way to compute attention, on how many cores, timed at which n, and how often A goes to or from memory."""

    name: str
    attend: Callable[..., Array]
    cores: int
    n: int
    passes: int


def stairs() -> tuple[Stair, ...]:
    """All stairs that this machine can climb, lowest first."""
    from minitransformer.kernels import staircase as lower

    all_cores = cores()
    found = (
        Stair("three loops in Python", lower.three_loops, 1, 48, 0),
        Stair("the same, compiled", lower.dot_order, 1, 2048, 0),
        Stair("loops in saxpy order", lower.saxpy_order, 1, 2048, 0),
        Stair("NumPy, the definition", _in_tier("numpy"), 1, LONG, 10),
        Stair("NumPy in tiles", lower.tiles_in_numpy, 1, LONG, 0),
        Stair("compiled tiles, a query a row", lower.tiles_by_rows, 1, LONG, 0),
        Stair("a query a lane", lower.tiles_by_lanes, 1, LONG, 0),
        Stair("exp2 by a polynomial", _in_tier("numba"), 1, LONG, 0),
        Stair("all cores", _in_tier("numba"), all_cores, LONG, 0),
        Stair("the micro-kernel", _in_tier("micro"), all_cores, LONG, 0),
    )
    return found if "micro" in available() else found[:-1]


def _in_tier(name: str) -> Callable[..., Array]:
    def attend(Q: Array, K: Array, V: Array) -> Array:
        with backend(name):
            return dot_product_attention(Q, K, V)[0]

    return attend


# ----------------------------------------------------------------------------------------- measuring


@contextmanager
def on(number: int) -> Iterator[None]:
    """BLAS and Numba use so many cores."""
    import numba

    before = numba.get_num_threads()
    numba.set_num_threads(min(number, numba.config.NUMBA_NUM_THREADS))
    try:
        with threadpool_limits(number, "blas"):
            yield
    finally:
        numba.set_num_threads(before)


def seconds(job: Callable[[], Any], runs: int = 7, most: float = 4.0) -> list[float]:
    """The times of several runs after a first one that is not counted; fewer if they would take longer than `most`."""
    job()
    times: list[float] = []
    while len(times) < runs and (len(times) < 3 or sum(times) < most):
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return times


def gflops(stair: Stair, n: int | None = None, runs: int = 7) -> float:
    """10⁹ floating-point operations in a second, 4 n² d of them in one attention: the median of several runs."""
    n = stair.n if n is None else n
    Q, K, V = np.random.default_rng(0).standard_normal((3, n, WIDTH), np.float32)
    with on(stair.cores):
        return 4 * n**2 * WIDTH / float(np.median(seconds(lambda: stair.attend(Q, K, V), runs))) / 1e9


def intensity(stair: Stair, n: int = LONG) -> float:
    """Operations for each byte of main memory: 4 n² d over Q, K, V, Y once, and A as often as it passes by."""
    return 4 * n**2 * WIDTH / (4 * (4 * n * WIDTH + stair.passes * n**2))


def peak(number: int, runs: int = 15, rows: int = 12) -> float:
    """GFLOP/s of the micro-kernel on so many cores, on rows that stay in the first-level cache. A ceiling: the best run."""
    from minitransformer.kernels.staircase import multiply_adds
    from minitransformer.kernels.threads import one_parallel_loop
    from minitransformer.kernels.tiles import LANES

    A, B = np.ones((rows, LANES), np.float32), np.ones((LANES, LANES), np.float32)
    C, times = np.zeros((number, rows, LANES), np.float32), 400_000 // rows
    loops = None if "micro" in available() else True
    with on(number), one_parallel_loop():
        best = min(seconds(lambda: multiply_adds(A, B, C, times, loops), runs))
    return 2 * number * times * A.size * LANES / best / 1e9


def bandwidth(number: int, runs: int = 15) -> float:
    """GB/s, read and written, of a copy that fits into no cache, on so many cores. A ceiling: the best run."""
    from minitransformer.kernels.staircase import copy
    from minitransformer.kernels.threads import one_parallel_loop

    X, Y = np.ones(2**26, np.float32), np.zeros(2**26, np.float32)
    with on(number), one_parallel_loop():
        return 2 * X.nbytes / min(seconds(lambda: copy(X, Y, number), runs)) / 1e9


Job = Callable[[], tuple[Any, Any]]  # gives an output and a pullback


def jobs(n: int, heads: int = HEADS) -> dict[str, Job]:
    """What is compared at length n, by name: each gives Y, and a pullback that says what the backward pass remembers."""
    from minitransformer.attention import (
        bigbird_pattern,
        block_sparse_attention,
        elu_features,
        kernel_attention,
        window_pattern,
    )

    rng = np.random.default_rng(0)
    Q, K, V = rng.standard_normal((3, heads, n, WIDTH), np.float32)
    Y, window, bigbird = np.empty_like(V), window_pattern(n, RADIUS), bigbird_pattern(n, rng)

    def definition() -> tuple[Any, Any]:
        with backend("numpy"):
            return dot_product_attention(Q, K, V)

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
        "copy": lambda: (np.copyto(Y, V), (V,)),
    }


def lengths(which: tuple[int, ...] = LENGTHS, runs: int = 9) -> dict[str, dict[str, list[float]]]:
    """Median seconds, and bytes remembered, of each job at each length; the definition only as long as A fits in 256 MB."""
    from minitransformer.pullback import tree_bytes

    found: dict[str, dict[str, list[float]]] = {"seconds": {}, "bytes": {}}
    for n in which:
        for name, job in jobs(n).items():
            times, size = math.nan, math.nan
            if name != "definition" or n <= LONG:
                size = tree_bytes(job()[1])
                with on(cores()):
                    times = float(np.median(seconds(job, runs, 2.0)))
            found["seconds"].setdefault(name, []).append(times)
            found["bytes"].setdefault(name, []).append(size)
    return found


# ----------------------------------------------------------------------------------------- the record


class Speed(NamedTuple):
    """GFLOP/s and intensity of each stair, the ceilings by cores, time and memory by length, and whose they are."""

    names: list[str]
    cores: Array
    gflops: Array
    intensity: Array
    peak: dict[int, float]
    bandwidth: dict[int, float]
    n: Array
    seconds: dict[str, Array]
    bytes: dict[str, Array]
    circumstances: dict[str, Any]

    def slope(self, name: str, what: str = "seconds") -> float:
        """p of the law n^p that fits best, over the lengths from FITTED on."""
        values = getattr(self, what)[name]
        use = (self.n >= FITTED) & np.isfinite(values)
        if use.sum() < 3:  # the definition ends early
            use = np.isfinite(values) & (np.cumsum(np.isfinite(values[::-1]))[::-1] <= 3)
        return float(np.polyfit(np.log(self.n[use]), np.log(values[use]), 1)[0])

    def crossover(self, name: str, other: str = "dense") -> float:
        """The n from which on `name` takes a tenth less time than `other`, between two measured lengths in proportion.

        A tenth, because a pattern that leaves out nothing takes the same time, and noise decides which is ahead.
        """
        ahead = np.log(0.9 * self.seconds[other] / self.seconds[name])
        behind = np.flatnonzero(ahead <= 0)
        if not len(behind):
            return float(self.n[0])
        k = behind[-1]
        if k + 1 == len(self.n):
            return math.inf
        part = -ahead[k] / (ahead[k + 1] - ahead[k])
        return float(self.n[k] * (self.n[k + 1] / self.n[k]) ** part)

    def roof(self, number: int, intensity: Any) -> Any:
        """What so many cores can reach at most: the peak, or what memory delivers times the intensity."""
        return np.minimum(self.peak[number], self.bandwidth[number] * np.asarray(intensity))


def _record() -> Any:
    return resources.files("minitransformer.figures").joinpath("data/speed.json")


def data() -> Speed:
    """Read the committed record."""
    record = json.loads(_record().read_text("utf8"))
    rows = record["stairs"]
    tables = ({name: np.array(row, float) for name, row in record[what].items()} for what in ("seconds", "bytes"))
    return Speed(
        [row["name"] for row in rows],
        *(np.array([row[what] for row in rows]) for what in ("cores", "gflops", "intensity")),
        *({int(number): value for number, value in record[what].items()} for what in ("peak", "bandwidth")),
        np.array(record["n"]),
        *tables,
        record["circumstances"],
    )


def _rounded(value: float) -> float | None:
    """Four digits of a time, all of a number of bytes, and null for what was not measured."""
    if isinstance(value, int):
        return value
    return None if math.isnan(value) else float(f"{value:.4g}")


def main() -> None:
    """Measure everything, and write the record."""
    from minitransformer.training.record import circumstances

    start = time.perf_counter()
    some = sorted({1, cores()})
    ceilings = [{number: (peak(number), bandwidth(number)) for number in some}]
    found = stairs()
    rows = [
        {"name": s.name, "cores": s.cores, "gflops": round(gflops(s), 4), "intensity": round(intensity(s), 2)}
        for s in found
    ]
    tables = {
        what: {name: [_rounded(value) for value in row] for name, row in table.items()}
        for what, table in lengths().items()
    }
    ceilings += [{number: (peak(number), bandwidth(number)) for number in some}]  # before and after: others may be busy
    record = {
        "circumstances": circumstances(),
        "peak": {number: round(max(measured[number][0] for measured in ceilings), 1) for number in some},
        "bandwidth": {number: round(max(measured[number][1] for measured in ceilings), 2) for number in some},
        "stairs": rows,
        "n": LENGTHS,
        **tables,
    }
    with resources.as_file(_record()) as path:
        path.write_text(json.dumps(record, indent=1) + "\n", "utf8")
    print(f"{path}: {time.perf_counter() - start:.0f} s")
    for row in rows:
        print(f"{row['name']:32} {row['gflops']:9.3f} GFLOP/s")
    print("peak", record["peak"], "bandwidth", record["bandwidth"])


# ------------------------------------------------------------------------------------------- drawing

LABELS = {
    "definition": "NumPy, the definition",
    "dense": "dense, in tiles",
    "window": f"window ± {RADIUS}",
    "bigbird": "BigBird",
    "kernel": "kernel attention",
    "copy": "copy of V",
}


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1g}"


def draw_staircase(data: Speed) -> Figure:
    """A bar for each stair on a logarithmic axis, with its rate, and its ratio to the stair before."""
    fig, ax = figure(width=8.5, height=4.2)
    places = np.arange(len(data.names))
    colours = ["#20639b" if number > 1 else "#8fb4d4" for number in data.cores]
    ax.barh(places, data.gflops, 0.72, color=colours)
    for place, rate in enumerate(data.gflops):
        ratio = f"  (× {_ratio(rate / data.gflops[place - 1])})" if place else ""
        label = ax.text(rate * 1.12, place, _rate(rate) + ratio, va="center", fontsize=10)
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.8})
    for number, height in data.peak.items():
        ax.axvline(height, color="0.35", linewidth=1.2, linestyle="-" if number > 1 else "--", zorder=0)
    ax.set_yticks(places, data.names)
    ax.invert_yaxis()
    ax.set(xscale="log", xlabel="GFLOP/s, counting 4 n² d for one attention", xlim=(data.gflops.min() / 2, 4000))
    return fig


def _ratio(value: float) -> str:
    return f"{value:.0f}" if value >= 9.5 else f"{value:.1f}"


def draw_roofline(data: Speed) -> Figure:
    """Rate against intensity under the roofs of one core and of all."""
    fig, ax = figure(width=7.5, height=4.6)
    x = np.geomspace(0.5, 16384, 200)
    many = max(data.peak)
    for number, line in ((1, "--"), (many, "-")):
        label = "roof of one core" if number == 1 else f"roof of {number} cores"
        ax.plot(x, data.roof(number, x), color="0.35", linestyle=line, label=label)
    low = data.gflops[1] / 2.5  # Python loops would need two decades for themselves
    for name, number, rate, where in zip(data.names, data.cores, data.gflops, data.intensity, strict=True):
        if rate < low:
            ax.annotate(f"{name}: {_rate(rate)}", (where, low), (where * 0.7, low * 1.25), ha="right", fontsize=9)
            ax.annotate("", (where, low), (where, low * 1.8), arrowprops={"arrowstyle": "->", "color": "#20639b"})
            continue
        ax.plot(where, rate, "o" if number == 1 else "s", color="#20639b" if number == 1 else "#c8553d", markersize=6)
        slants = data.bandwidth[number] * where < data.peak[number]
        side, offset = ("left", 8) if slants or number > 1 else ("right", -8)  # away from the roof, and from each other
        label = ax.annotate(
            name, (where, rate), (offset, 0), textcoords="offset points", ha=side, va="center", fontsize=9
        )
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})
    ax.set(xscale="log", yscale="log", xlabel="operations per byte of main memory", ylabel="GFLOP/s")
    ax.set(xlim=(x[0], x[-1]), ylim=(low, data.peak[many] * 2))
    ax.legend(loc="lower left")
    return fig


def draw_lengths(data: Speed) -> Figure:
    """Left: time against n. Right: what the backward pass remembers."""
    fig, (ax, memory) = figure(1, 2, width=9.5, height=4.6)
    markers = dict(zip(LABELS, "vosD^.", strict=True))
    for name, label in LABELS.items():
        style = {"marker": markers[name], "markersize": 5, "linestyle": ":" if name == "copy" else "-"}
        if name == "copy":
            style["color"] = "0.35"
        ax.plot(data.n, 1e3 * data.seconds[name], label=f"{label}: time ∝ n^{data.slope(name):.2f}", **style)
        if name == "dense":  # seen where others lie upon it
            style |= {"markersize": 11, "fillstyle": "none"}
        memory.plot(data.n, data.bytes[name] / 2**20, **style)
    for name in ("window", "bigbird", "kernel"):
        where = data.crossover(name)
        if data.n[0] < where < data.n[-1]:
            height = 1e3 * np.exp(np.interp(np.log(where), np.log(data.n), np.log(data.seconds["dense"])))
            ax.plot(where, height, "o", markersize=16, fillstyle="none", color="0.2", zorder=5)
    ax.set(ylabel="ms")
    memory.set(ylabel="MiB remembered for the way back")
    for axes in (ax, memory):
        axes.set(xscale="log", yscale="log", xlabel="n")
        axes.set_xticks(data.n, [f"{n}" if n < 1024 else f"{n // 1024}k" for n in data.n])
        axes.minorticks_off()
    fig.legend(fontsize=9, loc="outside lower center", ncols=3)
    return fig


def draw(data: Speed) -> Figure:
    """The staircase; the other two pictures are `draw_roofline` and `draw_lengths`."""
    return draw_staircase(data)


if __name__ == "__main__":
    main()
