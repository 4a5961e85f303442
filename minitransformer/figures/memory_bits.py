"""Bits per byte against the memory in evaluation, for models that were trained with a memory or without: from the record."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.segment_memory import JUDGED
from minitransformer.figures.style import figure
from minitransformer.typing import Array


class MemoryBits(NamedTuple):
    """For each memory in training the bits per byte of every seed, (seeds, memories in evaluation)."""

    judged: tuple[int, ...]
    bits: dict[int, Array]


def data() -> MemoryBits:
    """By the memory in training."""
    record = experiments.load("segment_memory")
    trained = dict.fromkeys(trial.memory for trial in record.trials)
    return MemoryBits(JUDGED, {M: np.array([result["bits"] for result in record.where(memory=M)]) for M in trained})


def draw(data: MemoryBits) -> Figure:
    """A line for each memory in training, the mean over seeds; bars reach from the best seed to the worst."""
    fig, ax = figure(width=9, height=5.5)
    places = np.arange(len(data.judged))
    for (M, bits), beside, marker in zip(data.bits.items(), (-0.05, 0, 0.05), "os^", strict=True):
        mean = bits.mean(0)
        spread = np.abs(np.stack([bits.min(0), bits.max(0)]) - mean)
        name = f"trained with M = {M}" if M else "trained without"
        ax.errorbar(places + beside, mean, spread, marker=marker, capsize=4, label=name)
    ax.set(xticks=places, xticklabels=data.judged, xlabel="memory in evaluation, bytes", ylabel="bits per byte")
    ax.legend()
    return fig
