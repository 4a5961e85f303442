"""What the captions of the figures on sparse patterns claim."""

from itertools import pairwise

import numpy as np
import pytest

from minitransformer.attention import Local
from minitransformer.figures import (
    blocked_keys,
    factorised_pictures,
    global_tokens,
    interaction_matrices,
    pattern_graphs,
    streaming,
)


def test_interaction_matrices():
    """Blocks on the diagonal, their lower triangles, bands, bands with gaps, columns."""
    masks = interaction_matrices.data()
    n = len(masks["convolutional"])
    encoder, decoder, band, two, four, few = masks.values()
    np.testing.assert_array_equal(encoder, Local(6)(n, n, causal=False).mask)
    np.testing.assert_array_equal(decoder, np.tril(encoder))
    for mask, step in ((band, 1), (two, 2), (four, 4)):
        assert set(np.subtract(*np.nonzero(mask))) == {0, step, 2 * step, 3 * step}
        assert not np.triu(mask, 1).any()
    assert band.sum(1).max() == two.sum(1).max() == four.sum(1).max() == 4
    columns = np.flatnonzero(few.any(0))
    np.testing.assert_array_equal(columns, [5, 11, 17, 23])
    assert all(few[j:, j].all() for j in columns)
    assert len(interaction_matrices.draw(interaction_matrices.data()).axes) == 6


def test_factorised_pictures():
    """Strided: the pixels just before, and those above. Fixed: its line so far, and the last pixel of every line before."""
    drawn = factorised_pictures.data()
    near, far, query = factorised_pictures.NEAR, factorised_pictures.FAR, factorised_pictures.QUERY
    strided, fixed = drawn.pictures["strided"], drawn.pictures["fixed"]
    assert (strided[3, 2], fixed[3, 2]) == (query, query)
    assert (strided[:3, 2] == far).all()
    assert (strided[3, :2] == near).all()
    assert (strided[2, 3:] == near).all()
    assert (fixed[3, :2] == near).all()
    assert (fixed[:3, 5] == far).all()
    assert [(drawn.pictures[name] > 0).sum() for name in ("strided", "fixed")] == [6 + 3, 3 + 3]
    near_and_far = [np.count_nonzero(drawn.matrices[name]) for name in ("dense", "strided", "fixed")]
    assert near_and_far[0] > 2 * max(near_and_far[1:])
    factorised_pictures.draw(drawn)


def test_global_tokens():
    """A random row has two pairs; global rows and columns are whole; ETC's stand outside of the square of the text."""
    kinds = global_tokens.data()
    near, drawn, all_see = global_tokens.NEAR, global_tokens.DRAWN, global_tokens.GLOBAL
    assert ((kinds["random"] == drawn).sum(1) == 2).all()
    assert (kinds["global"][:2] == all_see).all()
    assert (kinds["global"][2:, 2:] == 0).all()
    assert (kinds["Longformer"][:, :2] == all_see).all()
    extra, n = global_tokens.GLOBALS, len(kinds["window"])
    ends = [0, 1, n - 2, n - 1]  # the first and the last block
    assert (kinds["BigBird"][ends] == all_see).all()
    assert (kinds["BigBird"][:, ends] == all_see).all()
    assert not (np.delete(kinds["BigBird"][2:-2], ends, 1) == all_see).any()
    etc = kinds["ETC"]
    assert etc.shape == (n + extra, n + extra)
    assert (etc[:extra] == all_see).all()
    np.testing.assert_array_equal(etc[extra:, extra:], kinds["window"])
    parts = np.maximum(kinds["window"], kinds["global"])
    np.testing.assert_array_equal(kinds["Longformer"], parts)
    middle = kinds["BigBird"][2:-2, 2:-2]
    assert set(np.unique(middle)) == {0, near, drawn}
    assert ((middle == drawn).sum(1) == 2).all(), "one block of two for each row"
    global_tokens.draw(global_tokens.data())


def test_blocked_keys():
    """Side by side stand 0, the three around the row, two that were drawn, and 9; together what the left panel shows."""
    drawn = blocked_keys.data()
    for t, keys in enumerate(drawn.keys, start=2):
        assert keys[0] == 0
        assert keys[1:4].tolist() == [t - 1, t, t + 1]
        assert keys[-1] == 9
        assert len(set(keys)) == 7
        assert set(keys) == set(np.flatnonzero(drawn.meets[t]))
    assert drawn.meets[[0, -1]].all()
    assert drawn.meets[[1, -2]].sum(1).tolist() == [6, 6]
    blocked_keys.draw(drawn)


@pytest.fixture(scope="module")
def graphs():
    return pattern_graphs.data()


def test_how_many_keys_a_query_has_in_the_graphs():
    for name, pattern in pattern_graphs.PATTERNS.items():
        for n in (16, 256):
            keys = pattern.graph(n).A.sum(1)
            if name == "BigBird":
                assert keys[keys < n].max() == 12
            else:
                assert 7 < keys.mean() < 9


def test_paths_in_a_window_double_with_n_and_others_grow_by_a_fraction_of_an_edge(graphs):
    for name, values in graphs.paths.items():
        steps = np.diff(values)
        if name == "window":
            assert all(1.7 < after / before < 2 for before, after in pairwise(values))
        else:
            assert (steps < 0.4).all()
    assert graphs.paths["BigBird"][-1] < 2


def test_the_gap_of_a_window_falls_to_a_quarter_and_that_of_others_stays(graphs):
    window = graphs.gaps["window"]
    assert all(0.22 < after / before < 0.26 for before, after in pairwise(window))
    for name in ("random", "window and random", "BigBird"):
        assert graphs.gaps[name][-1] > 0.3
    pattern_graphs.draw(graphs)


def test_streaming():
    """Two sinks and five of the last; places run from 0 without a gap, and never beyond 6."""
    drawn = streaming.data()
    for t, row in enumerate(drawn.place):
        there = np.flatnonzero(row >= 0)
        assert there.tolist() == [j for j in range(t + 1) if j < drawn.first or j > t - drawn.last]
        np.testing.assert_array_equal(row[there], np.arange(len(there)))
    assert drawn.place.max() == drawn.first + drawn.last - 1
    streaming.draw(drawn)
