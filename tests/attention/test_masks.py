"""Which query sees which key."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer.attention import (
    Window,
    block_sparse_attention,
    causal_mask,
    dot_product_attention,
    flash_attention,
    padding_mask,
)


@given(st.integers(0, 7), st.integers(0, 7))
def test_causal_mask_entry_by_entry(n, m):
    """The n queries are the last n of the m positions: query i stands at position i + m − n."""
    mask = causal_mask(n, m)
    assert mask.shape == (n, m)
    assert mask.dtype == bool
    for i, j in np.ndindex(n, m):
        assert mask[i, j] == (j <= i + m - n)


def test_causal_mask_is_square_by_default():
    assert np.array_equal(causal_mask(3), [[1, 0, 0], [1, 1, 0], [1, 1, 1]])


def test_every_query_sees_itself_and_what_is_cached():
    """E29: with j ≤ i no row is empty. With two keys cached, the first query sees three."""
    assert np.diag(causal_mask(5)).all()
    assert np.array_equal(causal_mask(2, 4), [[1, 1, 1, 0], [1, 1, 1, 1]])


def test_more_queries_than_keys():
    """The first queries stand before every key, and see none."""
    assert np.array_equal(causal_mask(3, 1), [[0], [0], [1]])


def test_lengths_that_are_no_integers_are_refused():
    with pytest.raises(TypeError, match="parameter 'n'"):
        causal_mask(3.0)


@pytest.mark.parametrize("batch", [(), (0,), (2,), (2, 3)])
def test_padding_mask_entry_by_entry(batch):
    lengths = np.random.default_rng(0).integers(0, 5, batch)
    mask = padding_mask(np.asarray(lengths), 4)
    assert mask.shape == (*batch, 1, 4)
    for *index, _, j in np.ndindex(mask.shape):
        assert mask[(*index, 0, j)] == (j < lengths[tuple(index)])


def test_padding_mask_with_an_axis_for_the_heads():
    mask = padding_mask(np.array([1, 3]), 4)[..., None, :, :]
    assert np.broadcast_shapes(mask.shape, (2, 5, 6, 4)) == (2, 5, 6, 4)


@pytest.mark.parametrize("lengths", [[-1, 2], [2, 5]])
def test_lengths_outside_the_sequence_are_refused(lengths):
    with pytest.raises(ValueError, match=rf"lengths: {min(lengths)} … {max(lengths)} is not within 0 … 4"):
        padding_mask(np.array(lengths), 4)


def test_lengths_of_another_type_are_refused():
    for lengths in (np.array([1.0, 2.0]), [1, 2], np.array([True])):
        with pytest.raises(TypeError, match=r"parameter 'lengths'|lengths: a list should be"):
            padding_mask(lengths, 4)


SOFTMAX = {
    "dense": dot_product_attention,
    "with a bias": lambda *QKV, causal: dot_product_attention(
        *QKV, BIAS[: sum(X.shape[-2] for X in QKV[:2]) - 1], causal=causal
    ),
    "in blocks": partial(flash_attention, block=7),
    "of a pattern": lambda Q, K, V, causal: block_sparse_attention(
        Q, K, V, Window(9)(Q.shape[-2], K.shape[-2], causal=causal), causal=causal
    ),
}
BIAS = np.random.default_rng(3).standard_normal(150)


@pytest.mark.parametrize("n", [3, 70])
@pytest.mark.parametrize("attention", SOFTMAX.values(), ids=SOFTMAX)
def test_only_who_sees_a_nan_gets_it(attention, n, tier, rng):
    """Y and dQ of queries before a key that is NaN are what they were; with groups of heads as well."""
    Q, K, V = (rng.standard_normal((2, heads, length, 4)) for heads, length in ((2, n), (1, 70), (1, 70)))
    if attention is SOFTMAX["in blocks"]:
        K, V = (np.repeat(X, 2, 1) for X in (K, V))
    dY = rng.standard_normal(Q.shape)
    Y, pullback = attention(Q, K, V, causal=True)
    dQ = pullback(dY)[0]
    for what in (np.nan, np.inf):
        K[..., -2, :] = V[..., -2, :] = what
        with np.errstate(invalid="ignore", over="ignore"):
            Z, pullback = attention(Q, K, V, causal=True)
            dZ = pullback(dY)[0]
        np.testing.assert_allclose(Z[..., :-2, :], Y[..., :-2, :], atol=1e-12)
        np.testing.assert_allclose(dZ[..., :-2, :], dQ[..., :-2, :], atol=1e-12)
        assert np.isnan(Z[..., -2:, :]).all() or what == np.inf
