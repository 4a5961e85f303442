"""Random keys: as many as asked for, drawn once, each row for itself."""

import numpy as np
import pytest

from minitransformer.attention import RandomKeys, Window


def test_each_row_has_its_own_and_they_stay():
    mask = RandomKeys(3)(90, 90, causal=False).mask
    assert (mask.sum(1) == 3).all()
    assert len({row.tobytes() for row in mask}) > 80
    np.testing.assert_array_equal(mask, RandomKeys(3)(90, 90, causal=False).mask)
    assert not np.array_equal(mask, RandomKeys(3, seed=1)(90, 90, causal=False).mask)


def test_causal_rows_draw_from_what_came_before():
    mask = RandomKeys(3)(90, 90, causal=True).mask
    np.testing.assert_array_equal(mask.sum(1), np.minimum(np.arange(90) + 1, 3))
    assert not np.triu(mask, 1).any()


def test_no_key_is_favoured():
    counts = sum(RandomKeys(4, seed)(60, 60, causal=False).mask.sum(0) for seed in range(50))
    assert abs(counts - 200).max() < 5 * np.sqrt(200)


def test_window_and_globals_and_random_together():
    n = 40
    pattern = RandomKeys(2) | Window(1) | Window(0, global_tokens=1)
    mask = pattern(n, n, causal=False).mask
    assert mask[0].all()
    assert mask[:, 0].all()
    assert (np.diagonal(mask, 1) & np.diagonal(mask, -1)).all()
    assert mask[1:].sum() <= (n - 1) * (3 + 1 + 2)


def test_none_below_zero():
    with pytest.raises(ValueError, match="number: -1"):
        RandomKeys(-1)
