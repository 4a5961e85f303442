"""Attention where every query has chosen its own keys: each has a list of blocks, and their keys are gathered for it."""

import math
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np

from minitransformer.arrays import as_one_axis, scale_for, zero_if_minus_infinite
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.attend import attend
from minitransformer.attention.cache.keys_values import KeysValues, WithPast
from minitransformer.attention.core import Core
from minitransformer.attention.merge import log_sum_exp
from minitransformer.attention.selected.gathered import rows_at, sum_rows
from minitransformer.functional import loops_in
from minitransformer.gather_scatter import for_each_head, sum_over_heads
from minitransformer.positions.encoding import Encoding
from minitransformer.pullback import Pullback, Tree
from minitransformer.typing import Array

AT_ONCE = 2**19  # how many scores, or numbers in gathered keys, are in memory at once


def largest(S: Array, k: int, among: Array) -> Array:
    """True at the k largest of each row of S (…, n, m), among those that may be chosen; of equal ones the first.

    cost     O(m) for each row: the k-th largest is found, and nothing is sorted. NaN counts as −∞
    """
    among = np.broadcast_to(among, S.shape)
    m = S.shape[-1]
    if k >= m:
        return among.copy()
    S = np.where(among & ~np.isnan(S), S, S.dtype.type(-np.inf))
    least = np.partition(S, m - k, -1)[..., m - k, None] if k else S.dtype.type(np.inf)
    more = S > least
    equal = (S == least) & among
    room = k - more.sum(-1, keepdims=True)
    return more | (equal & (equal.cumsum(-1) <= room))


def listed(found: Array, k: int) -> Array:
    """The places where each row of found (…, n, m) is True, (…, n, k), then −1; no row may have more than k."""
    lists = np.full((*found.shape[:-1], k), -1)
    *rows, j = np.nonzero(found)
    lists[(*rows, found.cumsum(-1)[(*rows, j)] - 1)] = j
    return lists


def largest_places(S: Array, k: int, ends: Array, among: Array | None = None) -> Array:
    """Where the k largest of each row of S (*batch, n, m) are, (*batch, n, k), in rising order, −1 first where there are fewer.

    ends     (n,), how many keys each row may choose from, counted from the first
    among    True at those of them that it may choose, broadcast to S; None for all. Of equal ones the first, as in `largest`
    """
    m = S.shape[-1]
    if loops := loops_in("chosen_keys"):
        rows = math.prod(S.shape[:-1])
        if among is not None:
            among = as_one_axis(np.broadcast_to(among, S.shape), 0, -1)
        ends = np.ascontiguousarray(np.broadcast_to(ends, S.shape[:-1])).reshape(rows)
        found = loops.largest(as_one_axis(S, 0, -1), k, among, ends).reshape(*S.shape[:-1], k)
    else:
        before = np.arange(m) < ends[:, None]
        found = listed(largest(S, k, before if among is None else before & among), k)
    found.sort(-1)
    return found


def parts(n: int, size: int) -> Iterator[slice]:
    """The n queries in parts that need AT_ONCE numbers at most, if one query needs `size`; at least one query in each."""
    step = max(1, AT_ONCE // max(size, 1))
    return (slice(start, min(start + step, n)) for start in range(0, n, step))


# ------------------------------------------------------------------------------------------------- attention


class Choice(NamedTuple):
    """Which blocks of keys each of n queries has chosen; the queries are the last of m positions.

    lists   (…, n, c), the numbers of the blocks, −1 for none; each list serves equally many neighbouring heads
    mask    what hides more pairs, (*batch, n, m) or what broadcasts to it, or None
    """

    lists: Array
    block: int
    m: int
    causal: bool
    mask: Array | None

    @property
    def slots(self) -> int:
        """How many keys a query can choose."""
        return self.lists.shape[-1] * self.block

    @property
    def blocks(self) -> Array:
        """Which blocks each query has chosen, (…, n, ⌈m/block⌉), for each list."""
        found = np.zeros((*self.lists.shape[:-1], -(-self.m // self.block) + 1), bool)
        np.put_along_axis(found, self.lists, True, -1)  # −1 is the last, nobody's
        return found[..., :-1]

    def pairs(self, batch: tuple[int, ...]) -> Array:
        """True where query i sees key j, (*batch, n, m), before the causal mask."""
        n = self.lists.shape[-2]
        sees = as_one_axis(np.repeat(self.blocks, self.block, -1)[..., : self.m], 0, -2)
        sees = np.repeat(sees, math.prod(batch) // max(len(sees), 1), 0).reshape(*batch, n, self.m)
        return sees if self.mask is None else sees & self.mask

    def keys(self, rows: slice, batch: tuple[int, ...]) -> tuple[Array, Array]:
        """The keys in the slots of these queries, (P, rows, c · block) for P heads, and which of them count."""
        lists, n = as_one_axis(self.lists, 0, -2)[:, rows], self.lists.shape[-2]
        j = as_one_axis(lists[..., None] * self.block + np.arange(self.block), -2)
        sees = np.repeat(lists >= 0, self.block, -1) & (j < self.m)
        if self.causal:
            sees &= j <= np.arange(self.m - n, self.m)[rows, None]
        heads = math.prod(batch)
        j, sees = (np.repeat(X, heads // max(len(lists), 1), 0) for X in (j, sees))
        if self.mask is not None:
            whole = np.broadcast_to(self.mask, (*batch, n, self.m)).reshape(heads, n, self.m)[:, rows]
            sees &= np.take_along_axis(whole, np.clip(j, 0, self.m - 1), -1)
        return np.where(sees, j, -1), sees


class ChosenPullback(Pullback):
    """Attention's own gradients, of the pairs that were chosen; the choice is constant.

        A_it = exp(s_it − L_i),  dS = A ⊙ (dA − D),  D_i = ⟨dy_i, y_i⟩,  dq_i = scale Σ_t dS_it k_j(i,t)
        dk_j and dv_j are sums over whoever has chosen j

    weights  what the heads of a list give to its slots, summed, (…, n, c · block); empty unless asked for by `weigh`
    """

    Q: Array
    K: Array
    V: Array
    choice: Choice
    scale: float
    Y: Array
    L: Array
    weights: Array

    @property
    def A(self) -> Array:  # noqa: N802
        """The attention matrices, (*batch, n, m)."""
        *batch, n, _ = self.Q.shape
        A = np.zeros((math.prod(batch), n, self.K.shape[-2] + 1), self.Q.dtype)
        for part in self.gathered():
            np.put_along_axis(A[:, part.rows], part.j, part.A(self.scale, self.L), -1)  # −1 is the last, nobody's
        return A[..., :-1].reshape(*batch, n, self.K.shape[-2])

    @property
    def blocks(self) -> Array:
        """Which blocks each query has chosen, (…, n, ⌈m/block⌉), for each list."""
        return self.choice.blocks

    def gathered(self) -> "Iterator[_Part]":
        """The queries, part by part, with their keys and values."""
        choice, batch = self.choice, self.Q.shape[:-2]
        K, V = (for_each_head(X, batch) for X in (self.K, self.V))
        q, k, v = (as_one_axis(X, 0, -2) for X in (self.Q, K, V))
        for rows in parts(q.shape[1] if len(q) else 0, len(q) * choice.slots * max(k.shape[-1], v.shape[-1])):
            j, sees = choice.keys(rows, batch)
            k_j, v_j = (np.where(sees[..., None], rows_at(X, j), X.dtype.type(0)) for X in (k, v))
            yield _Part(rows, q[:, rows, None], k_j, v_j, j, sees)

    def __call__(self, dY: Array) -> tuple[Array, Array, Array]:
        Q, K, V, choice, scale, Y, L, _ = self
        if loops := loops_in("chosen_keys"):
            return loops.backward(Q, K, V, choice, scale, Y, L, dY)
        D, m = np.vecdot(dY, Y)[..., None], K.shape[-2]
        # zeros in C order, whatever the order of Q: parts are written through a reshaped view
        dQ, dK, dV = (np.zeros(X.shape, X.dtype) for X in (Q, K, V))
        for part in self.gathered():
            A, dy = part.A(scale, L), as_one_axis(dY, 0, -2)[:, part.rows, None]
            dS = scale * A * ((dy @ part.V.mT)[..., 0, :] - as_one_axis(D, 0, -2)[:, part.rows])
            as_one_axis(dQ, 0, -2)[:, part.rows] = (dS[..., None, :] @ part.K)[..., 0, :]
            for dX, weights, rows in ((dK, dS, part.Q), (dV, A, dy)):
                of_heads = sum_rows(weights[..., None] * rows, part.j, m)
                dX += sum_over_heads(of_heads.reshape(*Q.shape[:-2], *dX.shape[-2:]), dX.shape)
        return dQ, dK, dV


class EncodedChosenPullback(AroundAttention):
    """As `ChosenPullback`, with an encoding of positions in the scores: dY to (dparams, dQ, dK, dV)."""

    attention: Pullback
    choice: Choice

    @property
    def blocks(self) -> Array:
        """Which blocks each query has chosen, (…, n, ⌈m/block⌉), for each list."""
        return self.choice.blocks

    @property
    def weights(self) -> Array:
        """What the heads of a list give to its slots, summed, (…, n, c · block)."""
        *batch, n, m = self.A.shape
        j, sees = self.choice.keys(slice(None), tuple(batch))
        given = np.take_along_axis(self.A.reshape(len(j), n, m), np.maximum(j, 0), -1)
        of_slots = np.where(sees, given, given.dtype.type(0))
        lists = self.choice.lists.shape[:-1]
        number = math.prod(lists[:-1])
        shared = of_slots.reshape(number, len(j) // max(number, 1), *of_slots.shape[1:])
        return shared.sum(1).reshape(*lists, of_slots.shape[-1])

    def __call__(self, dY: Array) -> tuple[Any, ...]:
        return self.attention(dY)


class _Part(NamedTuple):
    """Some queries of P heads, and what is in their slots.

    rows   which queries; Q (P, rows, 1, d)
    K, V   keys and values of the slots, (P, rows, slots, …)
    j      where these stand, (P, rows, slots), −1 for nobody
    sees   whether they count
    """

    rows: slice
    Q: Array
    K: Array
    V: Array
    j: Array
    sees: Array

    def scores(self, scale: float) -> Array:
        """S (P, rows, slots), −∞ where nothing is seen."""
        S = ((self.Q * self.Q.dtype.type(scale)) @ self.K.mT)[..., 0, :]
        return np.where(self.sees, S, S.dtype.type(-np.inf))

    def A(self, scale: float, L: Array) -> Array:  # noqa: N802
        """The weights exp(S − L) of the slots, (P, rows, slots)."""
        L = L.reshape(len(self.Q), -1)[:, self.rows, None]
        return np.exp(self.scores(scale) - zero_if_minus_infinite(L))


def attend_to_chosen(
    Q: Array, K: Array, V: Array, lists: Array, block: int, *, causal: bool, mask: Array | None = None,
    scale: float | None = None, weigh: bool = False, encoding: Encoding | None = None, params: Any = None,
) -> tuple[Array, Any]:  # fmt: skip
    """Attention to the keys of the blocks that each query has chosen, and to no others.

    K, V     (*batch, m, …), or one for each group of neighbouring heads
    lists    numbers of blocks, (…, n, c), −1 for none; for each head, or fewer, and then neighbouring heads share a list
    mask     what broadcasts to (*batch, n, m)
    weigh    whether the weights of the slots are wanted, summed over the heads that share a list
    encoding an encoding of positions in the scores, and params, its parameters: then dparams is the first of the gradients
    cost     O(n c block d) time, O(n c) memory besides what is given and returned; O(n m d) and O(n m) with an encoding
    """
    n = Q.shape[-2]
    choice = Choice(lists, block, K.shape[-2], causal, None if mask is None else np.atleast_2d(mask))
    if encoding is not None:
        Y, attention = attend(encoding, params, Q, K, V, causal=causal, mask=choice.pairs(Q.shape[:-2]), scale=scale)
        return Y, EncodedChosenPullback(attention, choice)
    scale = float(scale_for(Q.shape[-1], scale))
    Y, L = np.empty((*Q.shape[:-1], V.shape[-1]), Q.dtype), np.empty(Q.shape[:-1], Q.dtype)
    weights = np.zeros((*lists.shape[:-1], choice.slots) if weigh else (0, 0, 0), Q.dtype)
    pullback = ChosenPullback(Q, K, V, choice, scale, Y, L, weights)
    if loops := loops_in("chosen_keys"):
        loops.forward(Q, K, V, choice, scale, Y, L, weights)
        return Y, pullback
    for part in pullback.gathered():
        L.reshape(len(part.Q), n)[:, part.rows] = log_sum_exp(part.scores(scale))
        A = part.A(scale, L)
        as_one_axis(Y, 0, -2)[:, part.rows] = (A[..., None, :] @ part.V)[..., 0, :]
        if weigh:
            of_lists = as_one_axis(weights, 0, -2)
            of_lists[:, part.rows] = A.reshape(len(of_lists), -1, *A.shape[1:]).sum(1)
    return Y, pullback


# ---------------------------------------------------------------------------------------------------- means


class BlockMeansPullback(Pullback):
    """The mean of a block sends each of its rows that are there the same share of the gradient."""

    share: Array
    block: int

    def __call__(self, dM: Array) -> Array:
        return np.repeat(dM, self.block, -2)[..., : self.share.shape[-2], :] * self.share


def block_means(X: Array, there: Array, block: int) -> tuple[Array, BlockMeansPullback]:
    """The mean of those rows of each block that are there, (*batch, m, w) to (*batch, ⌈m/block⌉, w); 0 without any."""
    m = X.shape[-2]
    edges = np.arange(0, m, block)
    number = np.add.reduceat(there.astype(X.dtype), edges, -1)
    share = (there / np.maximum(np.repeat(number, block, -1)[..., :m], 1))[..., None].astype(X.dtype)
    return np.add.reduceat(share * X, edges, -2), BlockMeansPullback(share, block)


# ---------------------------------------------------------------------------------------------- generation


class BlocksState(WithPast):
    """Keys and values of the positions so far, and the means of those blocks that are complete: of keys, and of values if wanted.

    Where means of values are not wanted, they have no columns.
    """

    past: KeysValues
    means: KeysValues

    def extended(self, K: Array, V: Array, block: int) -> "BlocksState":
        """The state after these n more positions. A block is averaged once, when it is complete."""
        if self.means.length != self.length // block:
            raise ValueError(f"state: means of {self.means.length} blocks do not belong to {self.length} positions")
        past = self.past.extended(K, V)
        old, new = (m // block * block for m in (self.length, past.length))
        if new == old:
            return BlocksState(past, self.means)
        rows = past.K[..., old:new, :], past.V[..., old:new, : self.means.V.shape[-1]]
        means = (block_means(X, np.ones(new - old, bool), block)[0] for X in rows)
        return BlocksState(past, self.means.extended(*means))


class BlocksCore(Core):
    """A core whose queries choose blocks by their means: how it decodes.

    block           keys of a block
    encoding        of positions in the scores; with one, the past is looked at as a whole
    mean_values     whether the last query reads means of values, too
    """

    block: int
    encoding: Any
    mean_values: ClassVar[bool] = False

    def _last_query(self, Q: Array, state: BlocksState, *streams: Array) -> Array:
        """Y of the query of the last position alone, (*batch, H, 1, dv), without an encoding."""
        raise TypeError(f"{type(self).__name__} does not say how one query looks at blocks")

    def step(
        self, params: Tree, Q: Array, K: Array, V: Array, *streams: Array, state: BlocksState | None = None
    ) -> tuple[Array, BlocksState]:
        """For one new token, if there is no encoding, only means and what was chosen are read. A mean is made once."""
        if state is None:
            columns = V.shape[-1] if self.mean_values else 0
            no_K, no_V = K[..., :0, :], V[..., :0, :]
            state = BlocksState(KeysValues.of(no_K, no_V), KeysValues.of(no_K, no_V[..., :columns]))
        state = state.extended(K, V, self.block)
        if self.encoding is None and Q.shape[-2] == 1:
            return self._last_query(Q, state, *streams), state
        past = state.past
        return self(params, Q, past.keys, past.values, *streams, causal=True, mask=None, rng=None)[0], state


def attend_to_blocks(Q: Array, past: KeysValues, lists: Array, block: int) -> Array:
    """Attention of the last query alone to the blocks in its lists, the last of which is its own: O(chosen block d)."""
    j = as_one_axis(lists[..., None] * block + np.arange(block), -2)
    there = j.shape[-1] - (-past.length % block)  # the last ones of its own block are not there yet
    return attend_to_chosen(Q, past.K, past.V, j[..., :there], 1, causal=False)[0]
