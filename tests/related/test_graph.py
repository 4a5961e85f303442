"""Lists of edges: what they hold, what is refused, and the same set of pairs as a mask and as tiles."""

import numpy as np
import pytest

from minitransformer.attention import Window, block_sparse_attention, dot_product_attention
from minitransformer.related import edge_attention, edges_of, edges_of_mask, propagate
from minitransformer.related.graph_convolution import edge_weights


def test_the_lists_of_a_small_graph():
    edges = edges_of(np.array([[2, 0], [0, 1], [2, 1], [0, 1]]), 4)  # one of them twice
    assert edges.number == 3
    assert edges.row_starts.tolist() == [0, 1, 1, 3, 3]
    assert edges.sources.tolist() == [1, 0, 1]
    assert edges.destinations.tolist() == [0, 2, 2]
    assert edges.column_starts.tolist() == [0, 1, 3, 3, 3]
    assert edges.sources[edges.by_source].tolist() == [0, 1, 1]
    assert edges.degrees.tolist() == [1, 0, 2, 0]
    assert np.argwhere(edges.mask).tolist() == [[0, 1], [2, 0], [2, 1]]
    both = edges_of(np.array([[0, 1]], np.int32), 3, both_ways=True, loops=True)
    assert np.argwhere(both.mask).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [2, 2]]


@pytest.mark.parametrize("density", [0, 0.1, 1])
@pytest.mark.parametrize("n", [0, 1, 5, 70, 130])
def test_a_mask_and_back(n, density):
    mask = np.random.default_rng(n).random((n, n)) < density
    edges = edges_of_mask(mask)
    np.testing.assert_array_equal(edges.mask, mask)
    i, j = np.nonzero(mask)
    np.testing.assert_array_equal(edges.destinations, i)
    np.testing.assert_array_equal(edges.sources, j)
    np.testing.assert_array_equal(np.diff(edges.column_starts), mask.sum(0))
    np.testing.assert_array_equal(edges.sources[edges.by_source], np.sort(j))
    if n:
        np.testing.assert_array_equal(edges.tiles.mask, mask)


def test_a_graph_as_tiles_is_run_by_the_block_sparse_loops():
    pattern = Window(9) | Window(1, dilation=40)
    edges = edges_of_mask(pattern.graph(150).A)
    Q, K, V, dY = np.random.default_rng(0).standard_normal((4, 2, 150, 8))
    (Y, back), (Z, other), (W, dense) = (
        edge_attention(Q, K, V, edges),
        block_sparse_attention(Q, K, V, edges.tiles),
        dot_product_attention(Q, K, V, mask=edges.mask),
    )
    for found in (Z, W):
        np.testing.assert_allclose(found, Y, atol=1e-12)
    for found in (other(dY), dense(dY)):
        for a, b in zip(found, back(dY), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12)


def test_pairs_that_are_no_edges_are_refused_by_name():
    for bad in ((2, 5), (2, -1), (7, 0)):
        with pytest.raises(ValueError, match=rf"pairs: number 1 is \({bad[0]}, {bad[1]}\), but the nodes are 0 … 4"):
            edges_of(np.array([[0, 1], bad]), 5)
    for wrong in (np.ones((2, 2)), np.zeros((2, 3), int), np.zeros(2, int)):
        with pytest.raises(TypeError, match="pairs"):
            edges_of(wrong, 5)
    with pytest.raises(TypeError, match="mask"):
        edges_of_mask(np.ones((2, 3), bool))


def broken(edges):
    def changed(name, k, value):
        array = getattr(edges, name).copy()
        array[k] = value
        return edges._replace(**{name: array})

    yield "between 4 nodes, but there are 5 rows", edges._replace(nodes=4)
    yield "sources should be within", changed("sources", 0, 5)
    yield "sources should be within", changed("sources", 0, -1)
    yield "destinations should be within", changed("destinations", 1, 10**9)
    yield "by_source should be within", changed("by_source", 1, 4)
    yield "row_starts should be 6 numbers", changed("row_starts", 2, 9)
    yield "row_starts should be 6 numbers", changed("row_starts", 0, 1)
    yield "row_starts should be 6 numbers", changed("row_starts", -1, 5)
    yield "row_starts should be 6 numbers", edges._replace(row_starts=np.array([0, 3, 1, 2, 2, 4]))
    yield "column_starts should be 6 numbers", edges._replace(column_starts=edges.column_starts[:-1])
    yield "of one length", edges._replace(by_source=edges.by_source[:-1])
    yield "int64", edges._replace(sources=edges.sources.astype(np.int32))


def test_lists_that_lead_out_of_themselves_are_refused():
    edges, X = edges_of(np.array([[0, 1], [1, 0], [3, 2], [3, 4]]), 5), np.ones((1, 5, 2))
    for message, bad in broken(edges):
        with pytest.raises(ValueError, match=f"edges: .*{message}"):
            edge_attention(X, X, X, bad)
        with pytest.raises(ValueError, match=f"edges: .*{message}"):
            propagate(X, bad)
        if bad.nodes == 5:  # nothing says how many rows there are
            with pytest.raises(ValueError, match=f"edges: .*{message}"):
                edge_weights(bad, "rows")


def test_lists_can_not_be_changed_between_the_passes():
    edges = edges_of(np.array([[0, 1], [1, 0], [3, 2], [3, 4]]), 5)
    for array in edges[1:]:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 3
