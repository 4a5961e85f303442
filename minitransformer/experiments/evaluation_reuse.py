"""How much faster is a text judged if each byte is computed once, and not once for every window that it is in?

A model of Transformer-XL with random weights; each prediction sees `sees` bytes in a window that slides by one byte, or at
least as many in a memory, once it is full: it is empty at first.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minitransformer.data.text import python_docs
from minitransformer.experiments.speed import seconds
from minitransformer.models import LanguageModel

ALONE = True
IN_A_TEST = {"read": 130, "slid": 2, "width": 16, "depth": 1, "runs": 1}
SEGMENT = 64


@dataclass(frozen=True)
class Trial:
    """What a prediction sees; the shortest of some runs is kept.

    sees   bytes of the window, and of the memory
    read   bytes that are judged with the memory
    slid   bytes that are judged with the window
    """

    sees: int
    read: int = 2048
    slid: int = 32
    width: int = 128
    depth: int = 4
    runs: int = 5


def trials() -> list[Trial]:
    """From a segment to sixteen."""
    return [Trial(sees) for sees in (64, 256, 1024)]


def run(trial: Trial) -> dict[str, Any]:
    """Bytes per second with a memory, and with a window."""
    slides = LanguageModel(context=SEGMENT, width=trial.width, depth=trial.depth, heads=4, positions="transformer-xl")
    remembers = replace(slides, stack=f"transformer-xl:memory={trial.sees}")
    params = remembers.init(np.random.default_rng(0))
    text = np.resize(python_docs().held_out, trial.sees + max(trial.read, trial.slid)).astype(np.int64)

    def with_memory() -> None:
        memory = None
        for k in range(0, trial.read, SEGMENT):
            memory = remembers(params, text[k : k + SEGMENT], memory=memory)[1].stack.memory

    def sliding() -> None:
        for k in range(trial.slid):
            slides(params, text[k : k + trial.sees])

    return {
        "with memory": round(trial.read / min(seconds(with_memory, trial.runs))),
        "sliding": round(trial.slid / min(seconds(sliding, trial.runs)), 1),
    }
