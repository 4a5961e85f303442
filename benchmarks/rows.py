"""What is measured: the rows, their targets, and the inputs that all implementations of a row share."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

WINDOW = 256  # a query sees keys at most so far away
BLOCK = 64  # side of a BigBird block
WIDTHS = 0.85  # head widths other than 64, and n = 1000, keep this part of a target

MODEL = {"vocabulary": 256, "context": 256, "width": 128, "depth": 4, "heads": 4}
BATCH = 16
STEPS = 200  # tokens to generate


class Row(NamedTuple):
    """One line of the table: some work, its size, and who else does it.

    work      name of a function in ours.py, and with the name of a peer behind it in peers.py
    case      its arguments
    peers     the other implementations
    target    ratio to the best of the peers that we want to reach, if the processor can (report.goal)
    quick     whether `bench-quick` has the row
    ours      "ours", or "loops": the same without the micro-kernel
    measure   "time"; "memory": highest above the inputs; "import"; "cold" and "cached": first call, in a new process
    tokens    tokens in one call, where a rate is of interest
    alike     whether the peers compute the same
    mixed     whether it has several kinds of work, and is told how much time each takes
    """

    work: str
    case: dict[str, Any]
    peers: tuple[str, ...]
    target: float | None = None
    quick: bool = False
    ours: str = "ours"
    measure: str = "time"
    tokens: int = 0
    alike: bool = True
    mixed: bool = False

    @property
    def label(self) -> str:
        """The row in words."""
        words = [self.work.replace("_", " ")]
        if self.measure != "time":
            words.insert(0, {"memory": "memory,", "import": "import,"}.get(self.measure, f"{self.measure} first call,"))
        if self.ours != "ours":
            words.append(f"({self.ours})")
        if "backward" in self.case:
            words.append("forward+backward" if self.case["backward"] else "forward")
        words += [key for key, value in self.case.items() if value is True and key != "backward"]
        words += [f"{key}={value}" for key, value in self.case.items() if not isinstance(value, bool)]
        return " ".join(words)

    @property
    def operations(self) -> float | None:
        """Multiplications and additions that no exact algorithm can do without, where they are most of the work."""
        if self.measure != "time":
            return None
        if self.work == "attention":
            n, H, d, causal, backward = self.case.values()
            pairs = n * (n + 1) / 2 if causal else n**2
            return (14 if backward else 4) * pairs * d * H  # two products forwards, five backwards
        if self.work == "block_sparse":
            pattern, n, backward = self.case.values()
            window = n * (2 * WINDOW + 1) - WINDOW * (WINDOW + 1)
            pairs = BLOCK**2 * float(bigbird(n).sum()) if pattern == "bigbird" else window
            return (14 if backward else 4) * pairs * 64 * 8
        if self.work == "linear_attention":
            n, backward = self.case.values()
            times = 14 if backward else 4  # S is written and read; backwards S once more, and dS, which is read twice
            return times * n * 64**2 * 8
        if self.work == "linear_layer":
            n, D, E, backward = self.case.values()
            return (6 if backward else 2) * n * D * E
        if self.work == "training_step":
            D, depth, context = (MODEL[name] for name in ("width", "depth", "context"))
            weights = depth * 12 * D**2 + MODEL["vocabulary"] * D
            return BATCH * context * (6 * weights + depth * 14 * (context + 1) / 2 * D)
        return None


def yours(names: Iterable[str]) -> list[Row]:
    """A row for each kind of attention that a reader brings: a layer of it, beside one of dense attention."""
    return [Row("layer", {"attention": name, "n": 1024, "backward": True}, ("dense",), alike=False) for name in names]


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Standard normal float32 arrays, the same in every process."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


def features(X: np.ndarray) -> np.ndarray:
    """elu(x) + 1, which is positive."""
    return np.where(X > 0, X + 1, np.exp(np.minimum(X, 0)))


def unit(X: np.ndarray) -> np.ndarray:
    """Rows of length one."""
    return X / np.linalg.norm(X, axis=-1, keepdims=True)


def bigbird(n: int) -> np.ndarray:
    """Blocks that see each other, (n/64, n/64): neighbours, the first and the last block, three at random."""
    count, rng = n // BLOCK, np.random.default_rng(0)
    sees = np.abs(np.subtract.outer(np.arange(count), np.arange(count))) <= 1
    for block in range(count):
        sees[block, rng.choice(count, min(3, count), replace=False)] = True
    sees[[0, -1]] = sees[:, [0, -1]] = True
    return sees


def pairs(edges: int) -> np.ndarray:
    """`edges` different pairs (i, j) of a tenth as many nodes, drawn at random and sorted, (edges, 2): i sees j."""
    nodes, rng = edges // 10, np.random.default_rng(0)
    drawn = np.unique(rng.integers(0, nodes**2, 2 * edges))
    return np.stack(np.divmod(np.sort(rng.permutation(drawn)[:edges]), nodes), 1)


def visible(pattern: str, n: int) -> np.ndarray:
    """The pattern as a boolean matrix, (n, n)."""
    if pattern == "bigbird":
        return np.kron(bigbird(n), np.ones((BLOCK, BLOCK), bool))
    return np.abs(np.subtract.outer(np.arange(n), np.arange(n))) <= WINDOW


def rows() -> list[Row]:
    """All rows, those of one core together."""
    return [
        *_attention(),
        *_decoding(),
        *_sparse(),
        *_chosen(),
        *_graphs(),
        *_recurrent(),
        *_convolutions(),
        *_training(),
        *_start(),
    ]


def _attention() -> list[Row]:
    def row(n, H, d, causal, backward, target, quick, **options):
        case = {"n": n, "H": H, "d": d, "causal": causal, "backward": backward}
        return Row("attention", case, ("sdpa",), target, quick, **options)

    def goal(H, causal, backward):
        return (2.2 if H > 1 else 2.0) if backward else (2.2 if causal else 2.0)

    both = [(causal, backward) for backward in (False, True) for causal in (False, True)]
    lengths = (512, 1024, 2048, 4096, 8192, 16384)
    table = [
        row(
            n, H, 64, causal, backward, goal(H, causal, backward), n == 2048 or (n in (512, 4096) and H == 8 and causal)
        )
        for H in (8, 1)
        for causal, backward in both
        for n in lengths
    ]
    table += [
        row(n, 8, d, causal, backward, round(WIDTHS * goal(8, causal, backward), 2), causal)
        for n, d in ((2048, 32), (2048, 80), (2048, 128), (1000, 64))
        for causal, backward in both
    ]
    table += [
        row(n, 8, 64, causal, False, 1.1, n == 2048, ours="loops") for n in (1024, 4096, 2048) for causal, _ in both[:2]
    ]
    table += [row(8192, 8, 64, True, backward, 1.0, True, measure="memory") for backward in (False, True)]
    for work in ("masked_attention", "biased_attention"):
        for backward in (False, True):
            peers = ("sdpa",) if backward else ("sdpa", "flex")  # flex has no backward pass on a CPU
            table.append(Row(work, {"n": 2048, "backward": backward}, peers))
    return table


def _decoding() -> list[Row]:
    queries = [Row("one_query", {"n": n}, ("sdpa",), quick=n == 4096, tokens=1) for n in (1024, 4096, 16384)]
    kinds = ("softmax", "linear", "latent", "differential", "forgetting")
    return [
        *queries,
        *(Row("generate", {"attention": kind}, ("eager",), quick=True, tokens=STEPS) for kind in kinds),
    ]


def _sparse() -> list[Row]:
    table = []
    for backward in (False, True):
        for pattern in ("window", "bigbird"):
            for n in (2048, 4096, 8192, 16384):
                peers = ("chunked",) if backward else ("flex", "chunked")
                peers = (*peers, "sdpa") if n <= 4096 else peers  # at longer lengths it takes more than a minute
                target = 2.0 if backward else 2.2
                case = {"pattern": pattern, "n": n, "backward": backward}
                table.append(Row("block_sparse", case, peers, target, n == 4096))
    return table


def _chosen() -> list[Row]:
    """Layers that should pay in a long text, beside a layer of dense attention."""
    names = ("moba", "nsa", "indexer", "compressed", "strided:stride={root}")
    return [
        Row("layer", {"attention": name.format(root=root), "n": root**2, "backward": True}, ("dense",), alike=False)
        for name in names
        for root in (64, 128)
    ]


def _graphs() -> list[Row]:
    return [
        Row(
            "graph_attention",
            {"edges": edges, "dynamic": dynamic, "backward": backward},
            ("scatter", "compile"),
            2.0 if edges == 10**5 else None,
            edges == 10**5,
        )
        for dynamic in (False, True)
        for backward in (False, True)
        for edges in (10**5, 10**6)
    ]


def _recurrent() -> list[Row]:
    table = []
    for backward in (False, True):
        for n in (1024, 4096, 16384, 65536):
            cumsum = ("cumsum",) if n == 4096 else ()  # it stores n × d × d numbers, and takes its time
            case = {"n": n, "backward": backward}
            table.append(
                Row(
                    "linear_attention",
                    case,
                    ("chunk64", "chunk128", *cumsum),
                    4.0 if backward else 5.0,
                    n in (1024, 16384) or (n > 16384 and not backward),
                )
            )
    for backward in (False, True):
        for n in (1024, 4096, 16384):
            loop = ("recurrent",) if n == 1024 else ()
            table.append(Row("delta_rule", {"n": n, "backward": backward}, ("chunk64", *loop), quick=n == 4096))
    table += [Row("copy_of_V", {"n": n}, (), quick=n != 4096) for n in (1024, 4096, 16384, 65536)]
    return table


def _convolutions() -> list[Row]:
    table = []
    for kind, taps in (("light", 7), ("light", 31), ("dynamic", 7), ("dynamic", 31)):
        for backward in (False, True):
            for n in (512, 4096):
                peers = ("unfold", "taps", *(("conv1d",) if kind == "light" else ()), *(("band",) if n == 512 else ()))
                case = {"kind": kind, "n": n, "taps": taps, "backward": backward}
                table.append(Row("convolution", case, peers, 2.0, n == 4096 and taps == 7))
    return table


def _training() -> list[Row]:
    width, hidden, tokens = MODEL["width"], 4 * MODEL["width"], BATCH * MODEL["context"]
    step = Row("training_step", {}, ("eager", "compile"), 2.0, True, tokens=tokens, mixed=True)
    shapes = ((width, width), (width, 3 * width), (width, hidden), (hidden, width))
    products = [
        Row("linear_layer", {"n": tokens, "D": D, "E": E, "backward": backward}, ("eager",), quick=D == E)
        for backward in (False, True)
        for D, E in shapes
    ]
    return [step, *products]


def _start() -> list[Row]:
    case = {"n": 256, "H": 8, "d": 64, "causal": True, "backward": True}
    calls = [Row("attention", case, ("sdpa",), quick=True, measure=measure) for measure in ("cold", "cached")]
    return [*calls, Row("start", {}, ("eager",), quick=True, measure="import")]
