"""NSA, native sparse attention: three views of the past, weighted by three gates. Replaces the stage "pattern (which pairs)".

    compressed   attention to the mean key and value of each complete block          all of them, coarsely
    selected     attention to the keys of k blocks: the first, the own, the one before, and those that weigh most in A_c
    window       attention to the last w keys                                          what is near
    Y = g_c Y_c + g_s Y_s + g_w Y_w,      g = σ(…) of the token

No gradient goes through the choice. But A_c, by which it is made, also makes Y_c: so the choice learns with the coarse view.
"""

import math
from typing import Any, ClassVar

import numpy as np

from minitransformer.arrays import one_dtype, refuse_more_queries, scale_for
from minitransformer.attention.attend import attend
from minitransformer.attention.block_sparse import block_sparse_attention, complete_blocks
from minitransformer.attention.dot_product import attend_to_buffer
from minitransformer.attention.selected.chosen import (
    BlockMeansPullback,
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
from minitransformer.attention.sparse.window import Window
from minitransformer.checks import frozen
from minitransformer.functional import loops_in, sigmoid, softmax
from minitransformer.gather_scatter import for_each_head
from minitransformer.positions.encoding import Encoding
from minitransformer.pullback import NoParams, Pullback, Tree, tree_add
from minitransformer.typing import Array, Bool, Float, checked


class NSAPullback(Pullback):
    """Y = Σ_b g_b Y_b: dg_b = ⟨dy, y_b⟩ and dY_b = g_b dY; keys and values get the sum of what the three send back.

    branches   Y of the compressed, the selected and the window branch
    """

    gates: Array
    branches: tuple[Array, ...]
    compressed: Pullback
    K_means: BlockMeansPullback
    V_means: BlockMeansPullback
    selected: ChosenPullback | EncodedChosenPullback
    window: Pullback

    @property
    def blocks(self) -> Array:
        """Which blocks each group of heads has chosen, (*batch, G, n, ⌈m/block⌉)."""
        return self.selected.blocks

    def __call__(self, dY: Array) -> tuple[Any, ...]:
        dgates = np.stack([np.vecdot(dY, Y) for Y in self.branches], -1)
        parts = (self.compressed, self.selected, self.window)
        found = [pullback(self.gates[..., b : b + 1] * dY) for b, pullback in enumerate(parts)]
        (dQ, dK_means, dV_means), *exact = found
        dK, dV = self.K_means(dK_means), self.V_means(dV_means)
        dparams: list[Tree] = []
        for *more_dparams, more_dQ, more_dK, more_dV in exact:
            for whole, part in ((dQ, more_dQ), (dK, more_dK), (dV, more_dV)):
                whole += part
            dparams += more_dparams
        return *([tree_add(*dparams)] if dparams else []), dQ, dK, dV, dgates


@checked
def nsa_attention(
    Q: Float[Array, "*batch heads n d"],
    K: Float[Array, "*batch groups m d"],
    V: Float[Array, "*batch groups m dv"],
    gates: Float[Array, "*batch heads n 3"],
    *,
    block: int = 16,
    chosen: int = 4,
    window: int = 32,
    mask: Bool[Array, "..."] | None = None,
    scale: float | None = None,
    encoding: Encoding | None = None,
    params: Any = None,
) -> tuple[Float[Array, "*batch heads n dv"], NSAPullback]:
    """Attention to the means of blocks, to the keys of chosen blocks, and to the last keys, weighted by gates.

    Heads that share their keys choose together: their A_c are added, and the blocks with the largest sums are chosen, the
    first block, the query's own and the one before it always among them.

    gates    of the compressed, the selected and the window branch
    block    keys of a block, both of those that are averaged and of those that are chosen. (The authors' overlap, and are
             pooled by a network with positions in it; means are what the code of flash-linear-attention has)
    chosen   k blocks, among them the three that are always seen, and so never fewer than 3
    window   w: a query sees itself and the w − 1 keys before it
    mask     True where query i sees key j. A key that no query sees counts in no mean; a mean that holds a key hidden from a
             query is not shown to it
    scale    1/√d by default, or that of the encoding
    encoding an encoding of positions in the scores of the selected branch and of the window, and params; a mean has no position
    source   Yuan et al. 2025, Native Sparse Attention
    cost     O(n (m/block + chosen · block + window) d) time, O(n + m) memory. Always causal, the choice as well: only complete
             blocks are averaged. O(n m d) and O(n m) with an encoding
    returns  Y and a pullback: dQ, dK, dV, dgates = pullback(dY), after dparams if there is an encoding. `pullback.blocks` is
             the choice
    raises   TypeError for a wrong shape or dtype, ValueError for more queries than keys, no window, or a mask that does not fit
    """
    one_dtype(Q=Q, K=K, V=V, gates=gates)
    *batch, H, n, d = Q.shape
    G, m = K.shape[-3:-1]
    refuse_more_queries(n, m)
    mask, there = who_is_there(mask, (*batch, H, n, m))
    if H != G and mask is not None and mask.ndim > 2 and mask.shape[-3] != 1:
        raise ValueError(f"mask: shape {mask.shape} has one for each head; heads that share keys should have the same")
    K, V = only_those_there(there, K, V)

    # compressed: without positions, but with the scale of the encoding, which `attend` takes by default
    factor = scale_for(d, encoding.scale if encoding is not None and scale is None else scale)
    (K_c, K_means), (V_c, V_means) = (block_means(X, there, block) for X in (K, V))
    whole, has_keys = _means_shown(there, mask, block)
    complete = complete_blocks(m - n, n, K_c.shape[-2], block)
    Y_c, compressed = block_sparse_attention(Q, K_c, V_c, complete, mask=None if whole.all() else whole, scale=factor)

    # selected
    lists = _best(Q, K_c, whole, has_keys, m, block, max(chosen, 3), factor)
    seen: dict[str, Any] = {"causal": True, "mask": mask, "scale": scale}
    Y_s, selected = attend_to_chosen(Q, K, V, lists, block, **seen, encoding=encoding, params=params)

    # window
    near = Window(window - 1)(n, m, causal=True)
    if encoding is None:
        Y_w, last = block_sparse_attention(Q, K, V, near, **seen)
    else:
        Y_w, last = attend(encoding, params, Q, K, V, pattern=near, **seen)

    branches = Y_c, Y_s, Y_w
    Y: Any = sum(gates[..., b : b + 1] * Y_b for b, Y_b in enumerate(branches))
    return Y, NSAPullback(gates, branches, compressed, K_means, V_means, selected, last)


def _means_shown(there: Array, mask: Array | None, block: int) -> tuple[Array, Array]:
    """Which means a query may see, (…, n or 1, blocks), as none of their keys is hidden from it; and which have a key at all."""
    edges = np.arange(0, there.shape[-1], block)
    has_keys = np.logical_or.reduceat(there, edges, -1)[..., None, :]
    if mask is None:
        return has_keys, has_keys
    return has_keys & ~np.logical_or.reduceat(there[..., None, :] & ~mask, edges, -1), has_keys


def _best(Q: Array, K_c: Array, whole: Array, has_keys: Array, m: int, block: int, chosen: int, scale: float) -> Array:
    """The blocks that weigh most in A_c, summed over the heads of a group, and those always chosen: (*batch, G, n, chosen).

    Some rows of A_c are made at a time, so the whole is never in memory.
    """
    *batch, H, n, _ = Q.shape
    G, blocks = K_c.shape[-3:-1]
    keys, whole = for_each_head(K_c, (*batch, H)), np.broadcast_to(whole, (*whole.shape[:-2], n, blocks))
    lists = np.empty((*batch, G, n, min(chosen, blocks)), int)
    for rows in parts(n, math.prod((*batch, H, blocks))):
        i = np.arange(m - n, m)[rows, None]
        own = i // block
        c = np.arange(own[-1, 0] + 1)
        A, _ = softmax(
            (scale * Q[..., rows, :]) @ keys[..., : len(c), :].mT,
            mask=whole[..., rows, : len(c)] & ((c + 1) * block <= i + 1),
        )
        weight = A.reshape(*batch, G, H // G, *A.shape[-2:]).sum(-3)
        always = (c == 0) | (c == own) | (c == own - 1)
        among = None if has_keys.all() else has_keys[..., : len(c)]
        lists[..., rows, :] = largest_places(np.where(always, np.inf, weight), lists.shape[-1], own[:, 0] + 1, among)
    return lists


# --------------------------------------------------------------------------------------------- the core


class NSACorePullback(Pullback):
    """Back through attention, then through g = σ(x) to the stream x of the gates."""

    gate: Pullback
    attention: NSAPullback

    def __call__(self, dY: Array) -> tuple[Any, ...]:
        *dparams, dQ, dK, dV, dgates = self.attention(dY)
        return *(dparams or [NoParams()]), dQ, dK, dV, self.gate(dgates)


def views_of_last(Q: Array, state: BlocksState, block: int, chosen: int, window: int) -> tuple[Array, Array, Array]:
    """Y of the three branches for the query of the last position alone, each (*batch, H, 1, dv)."""
    (past, means), (*batch, H, _, d) = state, Q.shape
    m, G, complete, blocks = past.length, past.K.shape[-3], means.length, -(-past.length // block)
    chosen, window = min(max(chosen, 3), blocks), min(window, m)
    if loops := loops_in("chosen_keys"):
        return loops.views_of_last(Q, *past[:2], *means[:2], m, complete, block, chosen, window)
    K_c, V_c = (for_each_head(X, (*batch, H)) for X in (means.keys, means.values))
    A, _ = softmax(Q.dtype.type(scale_for(d)) * Q @ K_c.mT)
    # the first block, its own and the one before are always chosen
    weight = np.full((*batch, G, 1, blocks), np.inf, Q.dtype)
    weight[..., 1 : blocks - 2] = A.reshape(*batch, G, H // G, 1, complete).sum(-3)[..., 1 : blocks - 2]
    lists, last = largest_places(weight, chosen, np.array([blocks])), slice(m - window, m)
    Y_w = attend_to_buffer(Q, past.K[..., last, :], past.V[..., last, :], window)
    return A @ V_c, attend_to_blocks(Q, past, lists, block), Y_w


@frozen
class NSA(BlocksCore):
    """A coarse view of the whole past, an exact one of a few blocks of it, and a window, added as gates of the token say.

    block, chosen, window   as in `nsa_attention`. The three branches have the same keys and values; in the paper each has its own
    encoding                of positions in the scores of the selected branch and of the window; a model puts its own there
    source                  Yuan et al. 2025
    cost                    O(n (n/block + chosen · block + window) d) time and O(n d) memory; O(n² d) and O(n²) with an encoding.
                            Always causal, the choice as well
    """

    block: int = 16
    chosen: int = 4
    window: int = 32
    encoding: Encoding | None = None

    stage = "pattern"
    cost = "O(n²/block + n (chosen block + window))"
    causal = "always"
    remembers = "keys, values and means of blocks"
    needs = "three gates from X"
    groups = True
    streams: ClassVar[dict[str, int]] = {"gates": 3}
    mean_values = True

    def __call__(
        self, params: Tree, Q: Array, K: Array, V: Array, *streams: Array, causal: bool = True,
        mask: Array | None = None, rng: Any = None,
    ) -> tuple[Array, NSACorePullback]:  # fmt: skip
        """Pullback: dY to (dparams, dQ, dK, dV, dgates)."""
        self.refuse(causal=causal)
        gates, gate = sigmoid(streams[0])
        options: dict[str, Any] = {"block": self.block, "chosen": self.chosen, "window": self.window}
        Y, attention = nsa_attention(Q, K, V, gates, mask=mask, **options, encoding=self.encoding, params=params)
        return Y, NSACorePullback(gate, attention)

    def _last_query(self, Q: Array, state: BlocksState, *streams: Array) -> Array:
        """O((m/block + chosen · block + window) d)."""
        gates, _ = sigmoid(streams[0])
        Y_c, Y_s, Y_w = views_of_last(Q, state, self.block, self.chosen, self.window)
        return gates[..., 0:1] * Y_c + gates[..., 1:2] * Y_s + gates[..., 2:3] * Y_w
