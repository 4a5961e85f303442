"""Attention along edges is attention with a mask: in every tier and dtype, values and gradients, whatever the graph."""

from functools import partial

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback
from minitransformer.attention import dot_product_attention
from minitransformer.backend import available
from minitransformer.pullback import tree_items
from minitransformer.related import (
    additive_attention,
    additive_edge_attention,
    edge_attention,
    edges_of_mask,
    propagate,
)
from minitransformer.related.graph_convolution import edge_weights

pytestmark = pytest.mark.each_value


def graph(n, seed=0, density=0.3):
    """Any graph, in which one node sees nobody, one is seen by nobody, and one sees all."""
    mask = np.random.default_rng(seed).random((n, n)) < density
    mask[n // 2], mask[:, n // 3] = False, False
    mask[n - 1] = True
    return edges_of_mask(mask)


def heads(n, r, d, dtype=np.float64, batch=(2,), H=3):
    rng = np.random.default_rng(n + 10 * r + d)
    shapes = (*batch, H, n, r), (*batch, H, n, r), (*batch, H, n, d), (H, r), (*batch, H, n, d)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def hides(kind, n):
    """None; keys of all; keys of each sample; pairs of each head and sample."""
    rng = np.random.default_rng(9)
    shape = {
        "nothing": None,
        "keys": (1, n),
        "queries": (n, 1),
        "samples": (2, 1, 1, n),
        "heads": (3, n, n),
        "pairs": (2, 3, n, n),
    }[kind]
    return None if shape is None else rng.random(shape) < 0.7


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("hidden", ["nothing", "keys", "queries", "samples", "heads", "pairs"])
@pytest.mark.parametrize(("n", "r", "d"), [(1, 1, 1), (13, 1, 8), (13, 1, 5), (40, 7, 8), (40, 16, 24), (13, 3, 1)])
def test_along_edges_is_with_a_mask(n, r, d, hidden, dtype, tier):
    edges, mask = graph(n), hides(hidden, n)
    Q, K, V, a, dY = heads(n, r, d, dtype)
    whole = edges.mask if mask is None else edges.mask & mask
    found = [additive_edge_attention(Q, K, V, a, edges, mask=mask), edge_attention(Q, K, V, edges, mask=mask)]
    with mt.backend("numpy"):
        wanted = [additive_attention(Q, K, V, a, mask=whole), dot_product_attention(Q, K, V, mask=whole)]
    for (Y, back), (Z, other) in zip(found, wanted, strict=True):
        got = dict(tree_items({"Y": Y, "gradients": back(dY), "A": back.A}))
        A = other.A[..., edges.destinations, edges.sources]
        for path, array in tree_items({"Y": Z, "gradients": other(dY), "A": A}):
            assert got[path].dtype == dtype
            assert got[path].shape == array.shape
            size = max(np.abs(array).max(initial=0), 1)
            np.testing.assert_allclose(
                got[path], array, atol=(3e-5 if dtype == np.float32 else 1e-12) * size, err_msg=path
            )


@pytest.mark.parametrize("r", [1, 4])
@pytest.mark.parametrize("hidden", ["nothing", "samples"])
def test_every_gradient(tier, r, hidden):
    n, (Q, K, V, a, _) = 9, heads(9, r, 5)
    mask, edges = hides(hidden, n), graph(n)
    check_pullback(lambda Q, K, V, a: additive_edge_attention(Q, K, V, a, edges, mask=mask), Q, K, V, a)
    check_pullback(lambda Q, K, V: edge_attention(Q, K, V, edges, mask=mask), Q, K, V)
    for scaling in ("symmetric", "rows"):
        check_pullback(partial(propagate, edges=edges, scaling=scaling), V)
    check_pullback(partial(additive_attention, mask=mask), Q, K, V, a)
    check_pullback(partial(additive_attention, causal=True), Q[..., -4:, :], K, V, a)


def test_who_sees_nobody_gives_zeros_and_takes_no_gradient(tier):
    n, (Q, K, V, a, dY) = 12, heads(12, 4, 8)
    for edges in (edges_of_mask(np.zeros((n, n), bool)), graph(n)):
        alone = edges.degrees == 0
        for Y, back in (additive_edge_attention(Q, K, V, a, edges), edge_attention(Q, K, V, edges)):
            dQ, dK, dV, *_ = back(dY)
            assert not Y[..., alone, :].any()
            assert not dQ[..., alone, :].any()
            unseen = np.bincount(edges.sources, minlength=n) == 0
            assert not dK[..., unseen, :].any()
            assert not dV[..., unseen, :].any()


def test_no_batch_and_no_node(tier):
    Q, K, V, a, dY = heads(6, 2, 8, batch=())
    Y, back = additive_edge_attention(Q, K, V, a, graph(6))
    many, _ = additive_edge_attention(*(X[None, None] for X in (Q, K, V)), a, graph(6))
    np.testing.assert_allclose(many[0, 0], Y, atol=1e-13)
    Q, K, V, a, dY = heads(0, 2, 8)
    edges = edges_of_mask(np.zeros((0, 0), bool))
    Y, back = additive_edge_attention(Q, K, V, a, edges)
    assert Y.shape == V.shape
    assert [dX.shape for dX in back(dY)] == [Q.shape, K.shape, V.shape, a.shape]
    Q, K, V, a, dY = heads(6, 2, 8, batch=(0,))
    assert additive_edge_attention(Q, K, V, a, graph(6))[1](dY)[3].tolist() == [[0, 0]] * 3


def test_what_the_other_end_of_a_hidden_edge_holds_reaches_nothing(tier):
    """A node that nobody sees may hold NaN; so may one that a mask hides. Also with a matrix of all pairs."""
    n, (Q, K, V, a, dY) = 12, heads(12, 4, 8)
    hidden, found = np.arange(n) != 7, []
    edges = edges_of_mask(graph(n).mask & (np.arange(n) != n // 3))
    for what in (1.0, np.nan, np.inf):
        K[..., [7, n // 3], :] = V[..., [7, n // 3], :] = what
        with np.errstate(invalid="ignore"):
            for Y, back in (
                additive_edge_attention(Q, K, V, a, edges, mask=hidden[None]),
                edge_attention(Q, K, V, edges, mask=hidden[None]),
                additive_attention(Q, K, V, a, mask=edges.mask & hidden),
            ):
                found.append([Y, *back(dY)])
    for other in (found[3:6], found[6:]):
        for one, wanted in zip(other, found[:3], strict=True):
            for x, y in zip(one, wanted, strict=True):
                np.testing.assert_allclose(x, y, atol=1e-12)


@pytest.mark.parametrize("axes", [(2, 1), (1, 3), (2, 3), (1, 1)])
def test_a_mask_of_some_axes_of_a_batch(axes, tier):
    """Of two axes in front of the heads a mask may have one, as where the texts of a batch are read in several ways."""
    n, (Q, K, V, a, dY) = 9, heads(9, 4, 5, batch=(2, 3))
    edges, mask = graph(n), np.random.default_rng(9).random((*axes, 1, 1, n)) < 0.6
    for (Y, back), (Z, other) in (
        (edge_attention(Q, K, V, edges, mask=mask), dot_product_attention(Q, K, V, mask=edges.mask & mask)),
        (
            additive_edge_attention(Q, K, V, a, edges, mask=mask),
            additive_attention(Q, K, V, a, mask=edges.mask & mask),
        ),
    ):
        np.testing.assert_allclose(Y, Z, atol=1e-12)
        for found, wanted in zip(back(dY), other(dY), strict=True):
            np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_a_mask_or_a_dtype_that_does_not_fit_is_refused(tier):
    n, (Q, K, V, a, _) = 9, heads(9, 4, 5)
    wrong = np.ones((n, n - 1), bool)
    for call in (
        lambda V=V, mask=None: edge_attention(Q, K, V, graph(n), mask=mask),
        lambda V=V, mask=None: additive_edge_attention(Q, K, V, a, graph(n), mask=mask),
        lambda V=V, mask=None: additive_attention(Q, K, V, a, mask=mask),
    ):
        with pytest.raises(ValueError, match=r"mask: shape \(9, 8\) does not broadcast"):
            call(mask=wrong)


def test_extreme_scores_are_no_trouble():
    """A thousand above the others, where eˣ alone would overflow."""
    for tier in available():
        with mt.backend(tier):
            n, (Q, K, V, a, dY) = 12, heads(12, 1, 8)
            Y, back = additive_edge_attention(Q, 2000 * K, V, np.ones_like(a), graph(n))
            assert all(np.isfinite(x).all() for x in (Y, *back(dY)))


@pytest.mark.skipif(len(available()) < 2, reason="the loops need Numba")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("r", [1, 4])
def test_the_same_bits_with_any_number_of_threads(r, dtype):
    """Large enough that every thread has its share."""
    from minitransformer.kernels.threads import limit

    edges = graph(300, density=0.1)
    Q, K, V, a, dY = heads(300, r, 8, dtype)
    found = []
    for threads in (1, 2, 3, 8):
        with limit(threads):
            for _ in range(2):  # the first call of a loop may compile, on one thread
                Y, back = additive_edge_attention(Q, K, V, a, edges)
                Z, other = edge_attention(Q, K, V, edges)
                P, third = propagate(V, edges)
                arrays = [Y, *back(dY), Z, *other(dY), P, third(dY)]
            found.append(arrays)
    for other in found[1:]:
        for x, y in zip(found[0], other, strict=True):
            assert x.tobytes() == y.tobytes()


def test_on_the_complete_graph_a_convolution_is_an_average_and_attention_with_equal_scores():
    n, (_, _, V, _, _) = 12, heads(12, 1, 8)
    complete = edges_of_mask(np.ones((n, n), bool))
    average = np.broadcast_to(V.mean(-2, keepdims=True), V.shape)
    zero = np.zeros((2, 3, n, 1))
    for Y in (
        propagate(V, complete)[0],
        propagate(V, complete, scaling="rows")[0],
        edge_attention(zero, zero, V, complete)[0],
        additive_edge_attention(zero, zero, V, np.ones((3, 1)), complete)[0],
    ):
        np.testing.assert_allclose(Y, average, atol=1e-13)


def test_in_a_regular_graph_both_scalings_are_one():
    ring = np.abs(np.subtract.outer(np.arange(9), np.arange(9)))
    edges = edges_of_mask((ring <= 1) | (ring == 8))
    np.testing.assert_allclose(edge_weights(edges, "symmetric"), edge_weights(edges, "rows"))
    other = graph(9)
    assert not np.allclose(edge_weights(other, "symmetric"), edge_weights(other, "rows"))


@pytest.mark.parametrize(("dtype", "name"), [(np.int64, "int64"), (np.float16, "float16")])
def test_weights_are_float32_or_float64(dtype, name):
    """As integers all but 1 would be 0."""
    with pytest.raises(TypeError, match=rf"^dtype: {name} should be np\.float32 or np\.float64$"):
        edge_weights(graph(9), "rows", dtype)
