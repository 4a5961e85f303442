"""What four memories hold of each pair while they go through a text: it is written, rewritten, and then another text begins."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import gated_delta_step, gated_linear_step
from minitransformer.figures.style import figure, outer_labels
from minitransformer.measurements.rows import unit
from minitransformer.typing import Array

WRITTEN, REWRITTEN, NEW = 10, (2, 5, 7), 6  # pairs, which of them get another value, pairs of the next text
BORDER = WRITTEN + len(REWRITTEN)  # the next text begins here
RULES = ("sum", "decay 0.9", "delta", "gated delta")


class MemoryThroughTime(NamedTuple):
    """‖kᵀ S_t − v‖ / ‖v‖ for every rule, (rules, pairs, positions); NaN before a pair is there, or where its text is over."""

    error: Array
    written: tuple[int, ...]  # which pair is written at each position


def data(d: int = 16, seed: int = 11) -> MemoryThroughTime:
    """Keys that have something in common; β = 1, and a gate that closes at the border."""
    rng = np.random.default_rng(seed)
    pairs = WRITTEN + NEW
    K = unit(0.6 * unit(rng.standard_normal(d)) + rng.standard_normal((pairs, d)) / np.sqrt(d))
    first, second = (unit(rng.standard_normal((pairs, d))) for _ in range(2))
    written = (*range(WRITTEN), *REWRITTEN, *range(WRITTEN, pairs))
    error = np.full((len(RULES), pairs, len(written)), np.nan)
    for rule, name in enumerate(RULES):
        S, V = np.zeros((d, d)), first.copy()
        for t, pair in enumerate(written):
            if WRITTEN <= t < BORDER:
                V[pair] = second[pair]
            k, v, one = K[pair][None], V[pair][None], np.ones(1)
            log_decay = np.zeros(1)
            if name == "decay 0.9":
                log_decay = np.log(0.9 * one)
            elif name == "gated delta" and t == BORDER:
                log_decay = -np.inf * one
            if "delta" in name:
                _, S = gated_delta_step(k, k, v, one, log_decay, S)
            else:
                _, S = gated_linear_step(k, k, v, log_decay, S)
            there = [p for p in set(written[: t + 1]) if (p >= WRITTEN) == (t >= BORDER)]
            error[rule, there, t] = np.linalg.norm(K[there] @ S - V[there], axis=-1)
    return MemoryThroughTime(error, written)


def draw(data: MemoryThroughTime) -> Figure:
    """A panel for each rule: pairs downwards, time to the right."""
    fig, axes = figure(2, 2, height=8.0, sharex=True, sharey=True)
    for ax, name, error in zip(axes.flat, RULES, data.error, strict=True):
        image = ax.imshow(np.ma.masked_invalid(error), vmin=0, vmax=1.75, cmap="viridis", aspect="auto")
        ax.axvline(BORDER - 0.5, color="black", linestyle=":", linewidth=2)
        ax.set_title(name)
    outer_labels(axes, "position $t$", "pair")
    fig.colorbar(image, ax=axes, label="error of what its key reads")
    return fig
