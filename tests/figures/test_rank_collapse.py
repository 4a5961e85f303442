"""What the caption of fig_rank_collapse claims."""

import numpy as np
import pytest
import scipy

from minitransformer.attention import unweighted_attention
from minitransformer.figures import rank_collapse


@pytest.fixture(scope="module")
def d():
    return rank_collapse.data()


def test_no_token_leaves_the_hull_of_the_layer_before(d):
    for before, after in zip(d.points[:-1], d.points[1:], strict=True):
        assert (scipy.spatial.Delaunay(before).find_simplex(after) >= 0).all()


def test_the_hull_has_the_corners_of_scipys(d):
    """scipy.spatial draws the same polygon, and may begin elsewhere; it is not there in a browser."""
    square = np.array([[0.0, 0], [1, 0], [0.5, 0], [1, 1], [0, 1], [0.2, 0.7]])
    for X in (*d.points, np.random.default_rng(5).standard_normal((200, 2)), square):
        ours, theirs = rank_collapse.hull(X), X[scipy.spatial.ConvexHull(X).vertices]
        first = int(np.flatnonzero((theirs == ours[0]).all(1))[0])
        assert np.array_equal(ours, np.roll(theirs, -first, axis=0))


def test_the_points_draw_together(d):
    sizes = [np.linalg.norm(X - X.mean(0)) for X in d.points]
    assert (np.diff(sizes) < 0).all()
    assert sizes[-1] < 0.1 * sizes[0]


def test_attention_alone_collapses_within_four_layers_and_a_network_does_not_help(d):
    for name in ("attention", "attention, FFN"):
        assert (d.spread[name][:, 3] < 1e-4).all()
        assert (d.spread[name][:, 4:] == rank_collapse.FLOOR).all()


def test_faster_than_any_fixed_factor(d):
    """The factor from layer to layer gets smaller and smaller: the logarithm falls ever more steeply."""
    factors = d.spread["attention"][:, 1:4] / d.spread["attention"][:, :3]
    assert (np.diff(factors, axis=1) < 0).all()
    assert (factors[:, 2] < 0.01).all()


def test_a_residual_slows_it_down(d):
    values = d.spread["attention + residual"]
    assert (values[:, 4] > 0.5).all()
    assert (values[:, 24] < 0.02).all()
    assert (values[:, 24] > 1e-4).all()


def test_a_block_keeps_its_tokens_apart_if_its_norm_comes_first(d):
    first, after = d.spread["block, norm first"], d.spread["block, norm after"]
    assert (first[:, 24] > 0.3).all()
    assert 0.4 < np.median(first[:, 24]) < 0.6
    assert (after[:, 24] < 0.02).all()


def test_points_far_from_the_origin_form_clusters_and_do_not_collapse():
    points = rank_collapse.data(depth=1, seeds=1).points[0]
    for size, clusters in ((1, 1), (3, 2)):
        X = size * points
        for _ in range(200):
            X, _ = unweighted_attention(X)
        assert len(np.unique(X.round(6), axis=0)) == clusters


def test_spread_is_zero_for_equal_rows_and_one_for_centred_ones():
    X = np.random.default_rng(0).standard_normal((5, 3))
    assert rank_collapse.spread(np.tile(X[:1], (5, 1))) < 1e-15
    assert rank_collapse.spread(X - X.mean(0)) == pytest.approx(1, abs=1e-14)


def test_it_draws_every_stack(d):
    left, right = rank_collapse.draw(d).axes
    assert len(right.lines) == len(d.spread) == 5
    assert left.get_xlabel()
    assert right.get_ylabel()
