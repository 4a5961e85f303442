"""Where the Lecture notes slip on BigBird: what is printed fails, what we use holds."""

import numpy as np
import pytest

from minitransformer.attention import BigBird, Graph, RandomKeys, Window, block_sparse_attention


def test_E40_two_windows_called_w():
    """Lecture notes, BigBird, window.

    printed  A block j sees blocks j − (w−1)/2 … j + (w−1)/2, and a token i sees tokens i − w/2 … i + w/2.
    wrong    The first is written for an odd w, the second for an even one: w = 4 gives 3 blocks and 5 tokens.
    holds    A radius on either side: 2 radius + 1, in blocks or tokens.
    """
    n, middle = 60, 30
    for w in (3, 4, 5, 6):
        tokens = sum(middle - w / 2 <= j <= middle + w / 2 for j in range(n))
        blocks = sum(middle - (w - 1) / 2 <= j <= middle + (w - 1) / 2 for j in range(n))
        assert (blocks, tokens) == ((w, w) if w % 2 else (w - 1, w + 1))

    assert BigBird(window=1, global_tokens=0, random=0, block=1)(n, n, causal=False).mask[middle].sum() == 3
    assert Window(2)(n, n, causal=False).mask[middle].sum() == 5  # ours is a radius: 2 radius + 1, in blocks or tokens


def test_E41_a_random_graph_has_no_neighbourhoods():
    """C.3 calls the Erdős–Rényi graph's short paths its "small world property".

    A small world (Watts and Strogatz) has short paths and clusters: two that a token sees see each other. Random edges
    alone have the paths without the clusters; BigBird adds windows because of that.
    """
    n = 400
    random, window, world = (both_ways(p.graph(n)) for p in (RandomKeys(3), Window(3), Window(2) | RandomKeys(1)))

    assert random.average_path() < 5
    assert random.clustering() < 0.05
    assert window.clustering() > 0.5
    assert window.average_path() > 30
    assert world.average_path() < 6
    assert world.clustering() > 0.1


def both_ways(graph):
    """The same edges, without a direction."""
    return Graph(graph.A | graph.A.T)


def test_E41_paths_are_short_only_from_enough_edges_on():
    """ "With Θ(n) edges": with half an edge for each node most pairs are not connected at all; with ln n of them all are."""
    n = 400
    rng = np.random.default_rng(0)
    for edges, connected in ((0.5 * n / 2, False), (1.5 * n * np.log(n) / 2, True)):
        A = np.triu(rng.random((n, n)) < edges / (n * (n - 1) / 2), 1)
        D = Graph(A | A.T).distances()
        assert np.isfinite(D).all() == connected
        if connected:
            assert D.max() <= 2 * np.log(n)
        else:
            assert np.isinf(D).mean() > 0.5


def test_E42_scale_and_sigma():
    """Lecture notes, BigBird, generalized attention.

    printed  ATTN_D(X)_i = x_i + Σ_h σ(Q_h(x_i) K_h(X_N(i))ᵀ) V_h(X_N(i)): no 1/√d, and no word on what σ is. (The
             paper says softmax or hardmax.)
    wrong    Without the scale it is another function, off by more than 0.1; so it is with a hardmax, which has a
             gradient of 0.
    holds    Softmax and scale: attention over the out-neighbours, plus a residual.
    """
    rng = np.random.default_rng(0)
    n, d = 9, 16
    X, Q, K, V = rng.standard_normal((4, n, d))
    pattern = BigBird(block=1, random=1)(n, n, causal=False)
    Y, _ = block_sparse_attention(Q, K, V, pattern)

    def printed(sigma, scale):
        rows = []
        for i in range(n):
            neighbours = np.flatnonzero(pattern.mask[i])
            rows.append(X[i] + sigma(scale * K[neighbours] @ Q[i]) @ V[neighbours])
        return np.array(rows)

    def soft(s):
        return np.exp(s) / np.exp(s).sum()

    def hard(s):
        return (s == s.max()) * 1.0

    assert np.allclose(printed(soft, 1 / np.sqrt(d)), X + Y)
    assert not np.allclose(printed(soft, 1.0), X + Y, atol=0.1)
    assert not np.allclose(printed(hard, 1.0), X + Y, atol=0.1)
    before = printed(hard, 1.0)
    Q = Q + 1e-9 * rng.standard_normal(Q.shape)
    assert np.array_equal(printed(hard, 1.0), before), "a small change of a query changes nothing: no gradient"


def test_E43_the_columns_that_were_gathered():
    """torch.gather of a table 0 … 39 in rows of ten: it prints 3, 17, 24, 31, and not what was asked for: columns 3, 7, 4, 1."""
    table = np.arange(40).reshape(4, 10)
    columns = np.array([[3], [7], [4], [1]])
    np.testing.assert_array_equal(np.take_along_axis(table, columns, 1), [[3], [17], [24], [31]])
    with pytest.raises(IndexError):
        np.take_along_axis(table, np.array([[3], [17], [24], [31]]), 1)  # the numbers printed are not the columns
