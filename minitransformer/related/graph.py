"""A graph as the list of its E edges, in both orders: the form in which attention costs O(E) and not O(n²).

Node i is a query and node j a key. An edge (i, j) says that i sees j, so what j has goes to i: i is its destination, j its
source. A boolean mask (n, n) is a set of pairs too, and `edges_of_mask` and `Edges.mask` lead there and back.
"""

from typing import Any, NamedTuple

import numpy as np

from minitransformer.attention.block_sparse import TILE, BlockPattern, block_pattern
from minitransformer.typing import Array, Bool, Int, checked


class Edges(NamedTuple):
    """E edges between n nodes, each once, sorted by destination and then by source. `edges_of` makes them from pairs.

    Edge e leads from node sources[e] to node destinations[e]. Those to node i are row_starts[i] … row_starts[i + 1] − 1;
    those that leave node j, for the way back, are by_source[column_starts[j] : column_starts[j + 1]].
    """

    nodes: int
    row_starts: Array
    sources: Array
    destinations: Array
    column_starts: Array
    by_source: Array

    @property
    def number(self) -> int:
        """E, how many edges there are."""
        return len(self.sources)

    @property
    def degrees(self) -> Array:
        """How many nodes each node sees, (n,)."""
        return np.diff(self.row_starts)

    @property
    def mask(self) -> Array:
        """The same as a boolean matrix, (n, n): True where i sees j."""
        mask = np.zeros((self.nodes, self.nodes), bool)
        mask[self.destinations, self.sources] = True
        return mask

    @property
    def tiles(self) -> BlockPattern:
        """The same as a list of tiles, for `block_sparse_attention`: worth it where the edges lie close to each other."""
        n, pairs = self.nodes, self.destinations * self.nodes + self.sources
        near = np.zeros((-(-n // TILE), -(-n // TILE)), bool)
        near[self.destinations // TILE, self.sources // TILE] = True
        return block_pattern(n, n, lambda i, j: np.isin(i * n + j, pairs) & (j < n), near)


@checked
def edges_of(pairs: Int[Array, "E 2"], nodes: int, *, both_ways: bool = False, loops: bool = False) -> Edges:
    """The edges (i, j) of a list of pairs, in which i sees j; a pair that is listed twice is one edge.

    both_ways  each pair also the other way round, as in a graph without directions
    loops      also (i, i) for every node. Without loops a node that no pair names sees nobody, and gets zeros
    cost       O(E log E), once
    raises     TypeError for anything but integers, ValueError that names a pair whose nodes are not 0 … nodes − 1
    """
    pairs = pairs.astype(np.int64)
    if (outside := np.flatnonzero(((pairs < 0) | (pairs >= nodes)).any(1))).size:
        i, j = pairs[outside[0]]
        raise ValueError(f"pairs: number {outside[0]} is ({i}, {j}), but the nodes are 0 … {nodes - 1}")
    lists = [pairs, pairs[:, ::-1]] if both_ways else [pairs]
    if loops:
        lists.append(np.repeat(np.arange(nodes)[:, None], 2, 1))
    i, j = np.concatenate(lists).T
    return _sorted(np.unique(i * nodes + j), nodes)


@checked
def edges_of_mask(mask: Bool[Array, "n n"]) -> Edges:
    """The edges of a boolean matrix, True where i sees j. A pattern of part II has the matrix `pattern.graph(n).A`."""
    return _sorted(np.flatnonzero(mask), len(mask))


def _sorted(pairs: Array, nodes: int) -> Edges:
    """The edges of pairs (i, j), given as rising numbers i n + j."""
    destinations, sources = np.divmod(pairs, max(nodes, 1))
    by_source = np.argsort(sources, kind="stable")
    row_starts, column_starts = (
        np.searchsorted(ends, np.arange(nodes + 1)) for ends in (destinations, sources[by_source])
    )
    return Edges(nodes, *map(_read_only_copy, (row_starts, sources, destinations, column_starts, by_source)))


def _read_only_copy(X: Any) -> Array:
    """A copy as int64 that can't be written to."""
    X = np.array(X, np.int64)
    X.flags.writeable = False
    return X


def fitting(edges: Edges, n: int) -> Edges:
    """The edges, if compiled code can follow them: between n nodes, and no list that leads out of itself.

    raises   ValueError that says what does not fit
    """
    nodes, *lists = edges
    if nodes != n:
        raise ValueError(f"edges: they are between {nodes} nodes, but there are {n} rows")
    if not all(isinstance(a, np.ndarray) and a.dtype == np.int64 for a in lists):
        raise ValueError("edges: all lists should be arrays of int64, as edges_of makes them")
    row_starts, sources, destinations, column_starts, by_source = lists
    E = sources.size
    if any(a.shape != (E,) for a in (sources, destinations, by_source)):
        raise ValueError("edges: sources, destinations and by_source should be of one length")
    for name, starts in (("row_starts", row_starts), ("column_starts", column_starts)):
        if starts.shape != (n + 1,) or starts[0] != 0 or starts[-1] != E or (np.diff(starts) < 0).any():
            raise ValueError(f"edges: {name} should be {n + 1} numbers that rise from 0 to {E}, the number of edges")
    for name, ends, below in (("sources", sources, n), ("destinations", destinations, n), ("by_source", by_source, E)):
        if E and not (ends.min() >= 0 and ends.max() < below):
            raise ValueError(f"edges: {name} should be within 0 … {below - 1}")
    return edges
