"""What the caption of fig_masks claims."""

import numpy as np
import pytest

from minitransformer.attention import causal_mask
from minitransformer.figures import masks


@pytest.fixture(scope="module")
def d():
    return masks.data()


def test_hidden_weights_are_exactly_zero_and_the_others_sum_to_one(d):
    for name, mask in d.masks.items():
        A = d.weights[name]
        assert (A[~mask] == 0).all()
        assert (A[mask] > 0).all()
        np.testing.assert_allclose(A.sum(-1), 1, rtol=0, atol=1e-14)


def test_the_patterns_are_what_their_titles_say(d):
    causal, cached, padding, packed = d.masks.values()
    n = len(causal)
    np.testing.assert_array_equal(causal, np.tri(n, dtype=bool))
    np.testing.assert_array_equal(cached, causal[5:])  # the rows of the new tokens, over all keys
    np.testing.assert_array_equal(padding.sum(1), 6)
    assert padding[:, :6].all()
    assert not packed[3:, :3].any()  # the second sentence doesn't see the first
    np.testing.assert_array_equal(packed[3:, 3:], causal_mask(n - 3))


def test_a_row_under_the_causal_mask_does_not_depend_on_whether_the_past_was_cached(d):
    causal, cached, *_ = d.weights.values()
    np.testing.assert_allclose(cached, causal[5:], rtol=0, atol=1e-15)


def test_it_draws_one_panel_a_pattern(d):
    fig = masks.draw(d)
    titles = [ax.get_title() for ax in fig.axes]
    assert titles[:4] == list(d.masks)
