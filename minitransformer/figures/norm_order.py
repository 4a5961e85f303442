"""Where the norm stands decides how much gradient reaches the first block of a deep stack at the start of training."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import FAINT, figure
from minitransformer.models import Block, Stack
from minitransformer.pullback import tree_leaves
from minitransformer.typing import Array


class NormOrder(NamedTuple):
    """Norm of the gradient of each block's parameters, relative to the last block's: (seeds, depth) each."""

    pre: Array
    post: Array


def data(depth: int = 24, width: int = 64, seeds: int = 5) -> NormOrder:
    """Fresh stacks of both orders, random inputs, a random gradient at the top."""
    norms = {}
    for order in ("pre", "post"):
        stack = Stack((Block.of(width, heads=4, hidden=4 * width, order=order),) * depth)
        rows = []
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            params = stack.init(rng, np.float64)
            _, pullback = stack(params, rng.standard_normal((4, 32, width)))
            dparams, _ = pullback(rng.standard_normal((4, 32, width)))
            rows.append([np.sqrt(sum((g**2).sum() for g in tree_leaves(block))) for block in dparams.blocks])
        rows = np.array(rows)
        norms[order] = rows / rows[:, -1:]
    return NormOrder(**norms)


def draw(data: NormOrder) -> Figure:
    """Both orders on one logarithmic axis; the band is the range over seeds."""
    fig, ax = figure(height=5.6)
    blocks = np.arange(1, data.pre.shape[1] + 1)
    for values, label in ((data.pre, "pre-norm:  X + F(LN(X))"), (data.post, "post-norm:  LN(X + F(X))")):
        (line,) = ax.plot(blocks, np.median(values, 0), label=label)
        ax.fill_between(blocks, values.min(0), values.max(0), color=line.get_color(), alpha=0.2, linewidth=0)
    ax.set(xlabel="block (1 = next to the input)", xticks=[1, 6, 12, 18, 24])
    ax.set(yscale="log", ylim=(0.2, 11), ylabel="gradient norm\n÷ that of block 24")
    ax.set_yticks([0.25, 0.5, 1, 2, 4, 8], ["¼", "½", "1", "2", "4", "8"])
    ax.minorticks_off()
    ax.axhline(1, color=FAINT, linewidth=0.8, linestyle="-", zorder=0)
    ax.legend()
    return fig
