"""MoBA: each query looks at its own block of keys, and at the few other blocks whose mean key it likes best. Replaces the
stage "pattern (which pairs)".

    K̄_c = mean of the keys of block c
    i sees its own block, and the k − 1 complete blocks before it with the largest ⟨q_i, K̄_c⟩
    one softmax over all keys of these blocks

Only what is past and complete is ranked, so that which keys are seen is as causal as what they hold. The choice is constant,
and K̄ is used for nothing else: no gradient teaches it to choose better, queries and keys learn from what was read.
"""

import math
from typing import Any

import numpy as np

from minitransformer.arrays import one_dtype, refuse_more_queries
from minitransformer.attention.core import NothingLearnedPullback
from minitransformer.attention.selected.chosen import (
    BlocksCore,
    BlocksState,
    ChosenPullback,
    EncodedChosenPullback,
    attend_to_blocks,
    attend_to_chosen,
    block_means,
    largest_places,
    parts,
)
from minitransformer.attention.selected.gathered import only_those_there, who_is_there
from minitransformer.checks import frozen
from minitransformer.functional import loops_in
from minitransformer.positions.encoding import Encoding
from minitransformer.pullback import Pullback, Tree
from minitransformer.typing import Array, Bool, Float, checked


@checked
def moba_attention(
    Q: Float[Array, "*batch n d"],
    K: Float[Array, "*batch m d"],
    V: Float[Array, "*batch m dv"],
    *,
    block: int = 16,
    chosen: int = 3,
    causal: bool = False,
    mask: Bool[Array, "..."] | None = None,
    scale: float | None = None,
    encoding: Encoding | None = None,
    params: Any = None,
) -> tuple[Float[Array, "*batch n dv"], ChosenPullback | EncodedChosenPullback]:
    """Softmax attention to a query's own block and to the blocks that it has chosen by their mean key.

    block    keys of a block; blocks begin at 0, block, 2 · block, …
    chosen   k: the own block, and k − 1 others
    causal   keys j ≤ i alone, and only complete blocks of the past are ranked; otherwise all blocks but the query's own
    mask     True where query i sees key j. A key that no query sees is in no mean; one that some see is in the mean for all
    scale    1/√d by default, or that of the encoding
    encoding an encoding of positions in the scores, and params, its parameters; blocks are chosen without it, for a mean has no
             position
    source   Lu et al. 2025, Mixture of Block Attention
    cost     O(n m/block · d) time to choose and O(n · chosen · block · d) to attend; O(n + m) memory.
             O(n m d) and O(n m) with an encoding
    returns  Y and a pullback: dQ, dK, dV = pullback(dY), after dparams if there is an encoding; `pullback.blocks` is the choice
    raises   TypeError for a wrong shape or dtype, ValueError for more queries than keys, or a mask that does not fit
    """
    one_dtype(Q=Q, K=K, V=V)
    shape = *Q.shape[:-1], K.shape[-2]
    n, m = shape[-2:]
    refuse_more_queries(n, m)
    mask, there = who_is_there(mask, shape)
    K, V = only_those_there(there, K, V)
    means, _ = block_means(K, there, block)
    places = _others(Q, means, there, block, chosen - 1, causal)
    own = np.broadcast_to((np.arange(m - n, m) // block)[:, None], (*Q.shape[:-1], 1))
    lists = np.concatenate([places, own], -1)
    options: dict[str, Any] = {"scale": scale, "encoding": encoding, "params": params}
    return attend_to_chosen(Q, K, V, lists, block, causal=causal, mask=mask, **options)


def _others(Q: Array, means: Array, there: Array, block: int, k: int, causal: bool) -> Array:
    """The k blocks besides its own that each query likes best, (*batch, n, k), −1 where there are fewer.

    They are ranked for some queries at a time, so the scores of all queries and all blocks are never in memory at once.
    """
    n, m, blocks = Q.shape[-2], there.shape[-1], means.shape[-2]
    own, c = np.arange(m - n, m) // block, np.arange(blocks)
    has_keys = np.logical_or.reduceat(there, c * block, -1)[..., None, :]
    places = np.empty((*Q.shape[:-1], min(k, blocks)), int)
    for rows in parts(n, math.prod(Q.shape[:-2]) * blocks):
        stop = own[rows][-1] if causal else blocks
        S, others = Q[..., rows, :] @ means[..., :stop, :].mT, has_keys[..., :stop]
        ends = (own if causal else np.full(n, blocks))[rows]
        among = others if causal else others & (c != own[rows, None])
        places[..., rows, :] = largest_places(S, places.shape[-1], ends, None if among.all() else among)
    return places


# --------------------------------------------------------------------------------------------- the core


@frozen
class MoBA(BlocksCore):
    """Each query looks at its own block, and at the `chosen` − 1 others whose mean key it likes best.

    encoding  of positions in the scores of the chosen pairs; a model puts its own there
    source   Lu et al. 2025
    cost     O(n (n/block + chosen · block) d) time and O(n d) memory; O(n² d) and O(n²) with an encoding. Can be causal, and so
             is the choice
    """

    block: int = 16
    chosen: int = 3
    encoding: Encoding | None = None

    stage = "pattern"
    cost = "O(n²/block + n chosen block)"
    remembers = "keys, values and means of blocks"

    def __call__(
        self, params: Tree, Q: Array, K: Array, V: Array, *streams: Array, causal: bool = False,
        mask: Array | None = None, rng: Any = None,
    ) -> tuple[Array, Pullback]:  # fmt: skip
        """Pullback: dY to (dparams, dQ, dK, dV)."""
        options: dict[str, Any] = {"block": self.block, "chosen": self.chosen, "encoding": self.encoding}
        Y, attention = moba_attention(Q, K, V, causal=causal, mask=mask, params=params, **options)
        return Y, NothingLearnedPullback(attention) if self.encoding is None else attention

    def _last_query(self, Q: Array, state: BlocksState, *streams: Array) -> Array:
        """O((m/block + chosen · block) d)."""
        if loops := loops_in("chosen_keys"):
            arrays = Q, state.past.K, state.past.V, state.means.K
            if (Y := loops.best_of_last(*arrays, state.length, self.block, self.chosen)) is not None:
                return Y
        own = (state.length - 1) // self.block
        S = Q @ state.means.keys[..., :own, :].mT
        others = largest_places(S, min(self.chosen - 1, own), np.array([own]))
        lists = np.concatenate([others, np.full((*Q.shape[:-1], 1), own)], -1)
        return attend_to_blocks(Q, state.past, lists, self.block)
