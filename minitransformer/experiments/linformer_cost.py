"""How much time and memory does Linformer save? Its Table 3 again, on one machine, for the attention alone and a whole block.

The published table is of whole models on a GPU. Here one text is read, forwards only and forwards and backwards, by a core of
four heads and by a block around it; memory is what NumPy's arrays took at their peak.
"""

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from minitransformer.attention import MultiHeadAttention
from minitransformer.attention.compressed import Linformer
from minitransformer.experiments.which_cost import Work, spent, there_and_back
from minitransformer.machine import peak_memory
from minitransformer.models import Block, FeedForward

ALONE = True
IN_A_TEST = {"n": 128, "k": 16, "runs": 1}
WIDTH, HEADS = 256, 4


@dataclass(frozen=True)
class Trial:
    """A text of n tokens and k rows. Dense attention and Linformer run in turns, `runs` times; the median ratio is kept."""

    n: int
    k: int
    runs: int = 7


def trials() -> list[Trial]:
    """The cells of the table for k up to 1024 and n up to 16384."""
    lengths, rows = (512, 1024, 2048, 4096, 8192, 16384), (128, 256, 512, 1024)
    return [Trial(n, k) for n in lengths for k in rows if k <= n // 2]


def run(trial: Trial) -> dict[str, Any]:
    """For attention and for the block, forwards and with the way back: dense over Linformer, and milliseconds of dense.

    time     ratios of times, in pairs (forwards, both ways)
    memory   ratios of peaks, in pairs
    dense    milliseconds, in pairs
    """
    rng = np.random.default_rng(1)
    X = rng.standard_normal((1, trial.n, WIDTH), np.float32)
    Q, K, V = rng.standard_normal((3, 1, HEADS, trial.n, WIDTH // HEADS), np.float32)
    dense = MultiHeadAttention(WIDTH, HEADS)
    fewer = MultiHeadAttention(WIDTH, HEADS, core=Linformer(HEADS, trial.n, trial.k))
    blocks = [Block(mixer, FeedForward(WIDTH, 4 * WIDTH)) for mixer in (dense, fewer)]
    cores = [dense.core, fewer.core]
    found: dict[str, Any] = {"time": {}, "memory": {}, "dense": {}}
    for name, pair, inputs in (("attention", cores, (Q, K, V)), ("block", blocks, (X,))):
        works = [there_and_back(part, *inputs, causal=False, mask=None, rng=None) for part in pair]
        for work in works:
            work()()  # compiled, and warm
        times = np.array([[spent(work, perf_counter) for work in works] for _ in range(trial.runs)])  # (runs, 2, 2)
        many, few = (np.array(_peaks(work)) for work in works)
        found["time"][name] = np.median(times[:, 0] / times[:, 1], axis=0).round(2).tolist()
        found["memory"][name] = (many / few).round(2).tolist()
        found["dense"][name] = (1000 * np.median(times[:, 0], axis=0)).round(2).tolist()
    return found


def _peaks(forwards: Work) -> tuple[int, int]:
    """The most bytes that were held at once, in the forward pass and in both."""
    with peak_memory() as peak:
        back = forwards()
        forward = peak()
        back()
        return forward, peak()
