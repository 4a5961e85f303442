"""What a query sees one by one, and which of the complete blocks an indexer has chosen for it: three at most."""

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import chosen_rows_attention, pool_pairs
from minitransformer.attention.selected.indexer import most_wanted
from minitransformer.figures.pooled_blocks import SHAPE, PooledBlocks, panels
from minitransformer.figures.style import figure
from minitransformer.functional import rms_norm

BLOCK, WINDOW, CHOSEN = 4, 6, 3


def data(n: int = 36, d: int = 8, seed: int = 0) -> PooledBlocks:
    """Random queries, rows, logits and an indexer of two heads; a block is pooled with the one before it; without a sink."""
    rng = np.random.default_rng(seed)
    Q, C = rng.standard_normal((2, n, d))
    rows, Z = rng.standard_normal((2, n, 2 * d))
    E, _ = rms_norm(pool_pairs(rows, Z, np.zeros((2 * BLOCK, d)))[0], np.ones(d))
    queries, w, keys = rng.standard_normal((2, n, d)), rng.standard_normal((n, 2)), rng.standard_normal((len(E), d))
    chosen = most_wanted(queries, w, keys, CHOSEN, np.arange(1, n + 1) // BLOCK)
    _, pullback = chosen_rows_attention(Q[None], C, E, np.full(1, -np.inf), chosen, window=WINDOW)
    A = pullback.A[0]
    return PooledBlocks(A[:, -n:], A[:, : len(E)], BLOCK)


def draw(data: PooledBlocks) -> Figure:
    """Left the tokens, right the blocks, each as wide as its tokens: colour is weight, hatched is not seen. Lines part blocks."""
    return panels(*figure(1, 2, **SHAPE), data)
