"""From which length on is attention without a matrix faster, and where does the matrix no longer fit?

One pre-norm block of a language model, forwards and backwards: with every matrix formed, with dense attention in tiles, with a
Performer, with the linear transformer, and with attention that returns V unchanged: none can take less time.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.attention import Core, KernelAttention, MultiHeadAttention, SoftmaxAttention
from minitransformer.attention.linear import Performer
from minitransformer.backend import available, backend
from minitransformer.experiments.speed import seconds
from minitransformer.experiments.which_cost import there_and_back
from minitransformer.machine import keep_freed_memory, peak_memory
from minitransformer.models import Block, FeedForward
from minitransformer.pullback import NoParams, Pullback
from minitransformer.typing import Array

ALONE = True
IN_A_TEST = {"n": 64}
WIDTH, HEADS = 256, 4
ROOM = 2 * 2**30  # bytes that a block may take
MATRICES = 4  # n × n matrices for each head that are in memory at once on the way back
KINDS = {
    "every matrix": SoftmaxAttention(),
    "in tiles": SoftmaxAttention(),
    "performer": Performer(HEADS, WIDTH // HEADS),
    "linear": KernelAttention(),
}


class ValuesPullback(Pullback):
    """dV = dY, and nothing for queries and keys."""

    def __call__(self, dY: Array) -> tuple[NoParams, Array, Array, Array]:
        return NoParams(), np.zeros_like(dY), np.zeros_like(dY), dY


class Values(Core):
    """Y = V: what is left of the time if attention costs nothing."""

    def __call__(self, params: Any, Q: Array, K: Array, V: Array, *streams: Array, **options: Any) -> Any:
        return V, ValuesPullback()


@dataclass(frozen=True)
class Trial:
    """One kind at one length."""

    kind: str
    n: int


def trials() -> list[Trial]:
    """Lengths from 256, by doubling, to 65,536; dense attention in tiles to half of that."""
    lengths = [2**k for k in range(8, 17)]
    return [Trial(kind, n) for n in lengths for kind in (*KINDS, "values") if (kind, n) != ("in tiles", lengths[-1])]


def run(trial: Trial) -> dict[str, Any]:
    """Seconds, the shortest of some runs, and the most MiB at one time; -1 for both where the block does not fit."""
    keep_freed_memory()
    with backend("numpy" if trial.kind == "every matrix" else available()[-1]):
        if trial.kind == "every matrix" and MATRICES * HEADS * trial.n**2 * 4 > ROOM:
            return {"seconds": -1.0, "MB": -1.0}
        work = block_of(trial.kind, trial.n)
        shortest = min(seconds(work, 5 if trial.n <= 4096 else 2))
        with peak_memory() as peak:
            work()
            return {"seconds": round(shortest, 5), "MB": round(peak() / 2**20, 1)}


def block_of(kind: str, n: int) -> Any:
    """A function that goes once forwards and backwards through a block on one text of n tokens."""
    mixer = MultiHeadAttention(WIDTH, HEADS, core=KINDS.get(kind, Values()))
    block = Block(mixer, FeedForward(WIDTH, 4 * WIDTH))
    X = np.random.default_rng(1).standard_normal((1, n, WIDTH), np.float32)
    forwards = there_and_back(block, X, causal=True)
    return lambda: forwards()()
