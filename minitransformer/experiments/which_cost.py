"""What does each attention cost at 1k, 4k, 16k and 64k tokens? Time and memory of one layer, forwards and with the way back.

A layer is all that stands between X and Y: projections, attention, what combines the heads. It has width 64 and two heads, is
causal if it can be, and has its usual options, but for those that have to grow with n (`GROWING`). One text, one core.

Time is that of the processor, not of the clock, so that other work of the machine hardly counts; and beside each kind a yardstick
is measured in the same round, dense attention at 1,024 tokens. What is compared is medians of the ratios to it.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from minitransformer.attention.registry import ATTENTIONS, EXAMPLE, attention_of
from minitransformer.experiments.speed import on
from minitransformer.machine import keep_freed_memory, peak_memory
from minitransformer.models.assemble import mixer_of
from minitransformer.typing import Array

Work = Callable[[], Callable[[], Any]]  # goes forwards, and gives what goes backwards
ALONE = True
MAKE = "zen-4"
GROWS = True  # a kind that is registered later has no trials in the record yet
WIDTH, HEADS = 64, 2
LENGTHS = (1024, 4096, 16384, 65536)
DENSE = "softmax"  # is run at all lengths: the others are compared with it
YARDSTICK, FIRST = 1024, 64  # tokens: of the yardstick, and of a first run that doesn't count
ROUNDS = 5
SECONDS = 5.0  # of one pass with its way back: what would take longer is not run, but for dense attention
LONG = 1.0  # seconds after which there is no further round
ROOM = 2 * 2**30  # bytes of one pass, and of the parameters
IN_A_TEST = {"longest": LENGTHS[0], "rounds": 1}
GROWING: dict[str, Callable[[int], str]] = {  # with √n
    "strided": lambda n: f"stride={_root(n)}",
    "fixed": lambda n: f"block={_root(n)}",
    "routing": lambda n: f"clusters={_root(n)}",
    "reformer": lambda n: f"buckets={_root(n)}",
    "sinkhorn": lambda n: f"block={_root(n)}",
}


def _root(n: int) -> int:
    """The power of two that is nearest to √n."""
    return int(2 ** round(math.log2(n) / 2))


@dataclass(frozen=True)
class Trial:
    """One kind at all lengths, up to the longest."""

    attention: str
    causal: bool
    longest: int = LENGTHS[-1]
    rounds: int = ROUNDS


def trials() -> list[Trial]:
    """All that are registered, causal if they can be; and dense attention that sees both sides, to compare the others with."""
    can_be = {name: attention_of(name, EXAMPLE).causal != "never" for name in ATTENTIONS}
    return [Trial(DENSE, False), *(Trial(name, causal) for name, causal in can_be.items())]


def run(trial: Trial) -> dict[str, Any]:
    """By length, as far as it goes: seconds, the same over those of the yardstick, and MiB; each forwards, and with the way back.

    stopped   why not further: "time", "memory", or an empty string
    """
    keep_freed_memory()
    found: dict[str, Any] = {"n": [], "seconds": [], "yardsticks": [], "MB": [], "stopped": ""}
    with on(1):
        for n in (length for length in LENGTHS if length <= trial.longest):
            if trial.attention != DENSE and (why := too_much(found)):
                return found | {"stopped": why}
            measured = measure(trial.attention, n, trial.causal, trial.rounds)
            for key, value in measured._asdict().items():
                found[key].append(value)
            found["n"].append(n)
    return found


def too_much(found: dict[str, Any]) -> str:
    """Why a kind is not run at the next length: "time" or "memory", of which it would take too much; or an empty string.

    Both are expected to grow by the same factor as from the length before the last to the last. After one length alone, which
    has no factor yet, they are expected to grow with n²: by 16, since each length is four times the one before.
    """
    for key, most, why in (("seconds", SECONDS, "time"), ("MB", ROOM / 2**20, "memory")):
        past = [both for _, both in found[key]]
        if past and past[-1] * (past[-1] / past[-2] if len(past) > 1 else 16) > most:
            return why
    return ""


class Cost(NamedTuple):
    """Costs of a layer at one length, two numbers each: of the forward pass, and of both passes."""

    seconds: list[float]
    yardsticks: list[float]
    MB: list[float]


def measure(name: str, n: int, causal: bool, rounds: int = ROUNDS) -> Cost:
    """The cost of one kind at one length; the MiB are those of NumPy's arrays at their most, parameters among them."""
    X = tokens(n)
    layer(name, FIRST, X[:, :FIRST], causal)()()  # compiled, and what is kept is there
    yardstick = layer(DENSE, YARDSTICK, X[:, :YARDSTICK], True)
    with peak_memory() as peak:
        work = layer(name, n, X, causal)
        back = work()
        peaks = [peak()]
        back()
        peaks.append(peak())
    del back
    # the lists of pairs, which are made once for a length, are there by now
    seconds, ratios = in_rounds(work, yardstick, rounds)
    return Cost(_digits(seconds), _digits(ratios), _digits(np.array(peaks) / 2**20))


def in_rounds(work: Work, yardstick: Work, rounds: int) -> tuple[Array, Array]:
    """Seconds, and the same over those of the yardstick: medians of this many rounds, or fewer if they take longer than LONG."""
    times: list[tuple[float, float]] = []
    ratios = []
    while len(times) < rounds and sum(both for _, both in times) < LONG:
        beside = np.min([spent(yardstick) for _ in range(5)], axis=0)  # the shortest times of five runs
        times.append(spent(work))
        ratios.append(np.array(times[-1]) / beside)
    return np.median(times, axis=0), np.median(ratios, axis=0)


def tokens(n: int) -> Array:
    """What a layer reads, (1, n, width)."""
    return np.random.default_rng(1).standard_normal((1, n, WIDTH), np.float32)


def layer(name: str, n: int, X: Array, causal: bool) -> Work:
    """The forward pass of a layer through X; what it returns is the backward pass."""
    text = f"{name}:{GROWING[name](n)}" if name in GROWING else name
    return there_and_back(mixer_of(text, None, width=WIDTH, heads=HEADS, groups=None, longest=n), X, causal=causal)


def there_and_back(part: Any, *inputs: Array, **options: Any) -> Work:
    """The forward pass of any part of a model, with fresh parameters; what it returns is the backward pass."""
    params = part.init(np.random.default_rng(0))

    def forwards() -> Callable[[], Any]:
        Y, pullback = part(params, *inputs, **options)
        return lambda: pullback(Y)

    return forwards


def spent(work: Work, clock: Callable[[], float] = time.process_time) -> tuple[float, float]:
    """Seconds of the processor, or by another clock, forwards, and forwards and backwards."""
    began = clock()
    back = work()
    between = clock()
    back()
    return between - began, clock() - began


def _digits(numbers: Array) -> list[float]:
    """Each number with three digits."""
    return [float(f"{number:.3g}") for number in numbers]
