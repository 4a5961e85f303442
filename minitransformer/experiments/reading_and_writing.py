"""What does it cost to read a text, and to write one more token behind it? Keys and values beside memories of fixed size.

An untrained model of two blocks: what its numbers are makes no difference to the time.
"""

from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any

import numpy as np

from minitransformer.attention import KeysValues
from minitransformer.attention.cache.recent import Recent
from minitransformer.data.text import python_docs
from minitransformer.experiments.speed import REST
from minitransformer.machine import keep_freed_memory, peak_memory
from minitransformer.models import LanguageModel
from minitransformer.models.generate import read
from minitransformer.pullback import Tree, tree_bytes
from minitransformer.typing import Array

ALONE = True
IN_A_TEST = {"length": 64}
ATTENTIONS = ("softmax", "linear", "gated-delta")
ROUNDS, WRITTEN = 15, 40  # of a timing, and tokens in each


@dataclass(frozen=True)
class Trial:
    """A text of `length` bytes is read; then tokens are written one by one. In another round all is done again."""

    attention: str
    length: int
    round: int


def trials() -> list[Trial]:
    """From 64 to 65536 bytes, five times."""
    return [Trial(attention, 64 * 4**k, round) for round in range(5) for attention in ATTENTIONS for k in range(6)]


def run(trial: Trial) -> dict[str, Any]:
    """Seconds to read the text, the most MiB that it took at once, tokens per second in writing, and bytes of the state."""
    keep_freed_memory()
    model = LanguageModel(context=2 * trial.length, width=128, depth=2, heads=4, attention=trial.attention)
    params = model.init(np.random.default_rng(0))
    text = np.resize(python_docs().held_out, trial.length).astype(np.int64)
    read(model, params, text[:64])  # compiled, and warm
    with peak_memory() as peak:
        _, state = read(model, params, text)
        MB = peak() / 2**20
    began = perf_counter()
    read(model, params, text)
    return {
        "seconds": float(f"{perf_counter() - began:.3g}"),
        "MB": round(MB, 1),
        "written per second": round(writing(model, params, text, state)),
        "state": sum(size_of(block) for block in state.blocks),
    }


def writing(model: LanguageModel, params: Tree, text: Array, state: Any) -> float:
    """Tokens per second after a text that has been read, the median of some rounds."""
    sleep(REST)
    rates = []
    for n in (1, *[WRITTEN] * ROUNDS):  # the first one may move all keys and values to a larger room
        began = perf_counter()
        for _ in range(n):
            _, state = model.step(params, text[:1], state)
        rates.append(n / (perf_counter() - began))
    return float(np.median(rates[1:]))


def size_of(state: Any) -> int:
    """Bytes of what counts; keys and values have room for more."""
    return state.keys.nbytes + state.values.nbytes if isinstance(state, (KeysValues, Recent)) else tree_bytes(state)
