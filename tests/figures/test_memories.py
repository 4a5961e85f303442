"""What the captions of the figures on memories claim."""

import itertools

import numpy as np
import pytest

from minitransformer.attention import decay_mask
from minitransformer.figures import memory_paths, memory_through_time, one_mask, recall, state_filling


@pytest.fixture(scope="module")
def through():
    return memory_through_time.data()


@pytest.fixture(scope="module")
def asked():
    return recall.data()


def test_a_state_has_its_size_from_the_first_token_and_a_cache_grows():
    data = state_filling.data()
    assert data.S.shape == (8, 6, 5)
    assert (np.diff(data.z, axis=0) > 0).all(), "features are positive"
    assert set(data.state_bytes) == {4 * 4 * (32 * 32 + 32) * 4}  # blocks, heads, S and z, bytes of a number
    assert data.cache_bytes.tolist() == [n * 4 * 2 * 128 * 4 for n in data.lengths]
    assert (data.cache_bytes < data.state_bytes).tolist() == [n <= 16 for n in data.lengths]
    state_filling.draw(data)


def test_a_state_is_the_sum_of_what_came():
    """Each token adds a matrix of rank one."""
    S, _ = state_filling.filled()
    for before, after in itertools.pairwise(S):
        assert np.linalg.matrix_rank(after - before) == 1


def test_delta_reads_exactly_what_was_written_last(through):
    for t, pair in enumerate(through.written):
        assert through.error[2, pair, t] < 1e-12
        assert through.error[3, pair, t] < 1e-12


def test_the_sum_reads_old_and_new_together(through):
    """After the rewrites, its rewritten pairs are worse than with any other rule, and all of it is."""
    t = memory_through_time.BORDER - 1
    rewritten = through.error[:, list(memory_through_time.REWRITTEN), t].mean(1)
    assert (rewritten[0] > rewritten[1:] + 0.2).all()
    mean = np.nanmean(through.error[:, :, t], 1)
    assert mean[0] > mean[1] > mean[2] == mean[3]


def test_behind_the_border_the_gate_helps(through):
    first = memory_through_time.BORDER
    assert through.error[3, memory_through_time.WRITTEN, first] < 1e-12
    end = np.nanmean(through.error[:, :, -1], 1)
    assert end[0] > end[1] > end[2] > end[3] + 0.05
    assert np.isnan(through.error[:, : memory_through_time.WRITTEN, first:]).all(), "nobody asks for the old text"
    memory_through_time.draw(through)


def test_the_sum_errs_as_keys_overlap(asked):
    """Keys at random: √((m − 1)/d), within a twelfth. With a common part: more than twice as much from four pairs on."""
    m = np.array(asked.pairs)
    at_random, common = (error[0] for error in asked.error.values())
    expected = np.sqrt((m - 1) / recall.WIDTH)
    assert (abs(at_random - expected)[m >= 12] < expected[m >= 12] / 12).all()
    assert (common[m >= 4] > 1.9 * at_random[m >= 4]).all()


def test_delta_errs_less_and_least_squares_only_beyond_the_width(asked):
    m = np.array(asked.pairs)
    for total, delta, best in asked.error.values():
        assert (delta[m > 1] < total[m > 1]).all()
        assert (delta < 1).all()
        assert (best[m <= recall.WIDTH] < 1e-6).all()
        assert (best[m > recall.WIDTH] > 0.3).all()
    recall.draw(asked)


def test_the_block_has_rank_one_and_the_costs_cross_where_they_are_equal():
    data = one_mask.data()
    assert np.linalg.matrix_rank(data.block) == 1
    assert np.array_equal(data.block, data.L[one_mask.SPLIT :, : one_mask.SPLIT])
    assert np.allclose(data.L, decay_mask(np.log(np.append(1, np.diag(data.L, -1)))))
    matrix, chunks, recurrence = data.multiplications.values()
    n = np.array(data.lengths)
    assert ((matrix < recurrence) == (n < 128)).all()
    assert ((chunks < matrix) == (n > 192)).all()
    assert (chunks[n > 64] < 1.6 * recurrence[n > 64]).all()
    one_mask.draw(data)


def test_paths_of_learners():
    data = memory_paths.data()
    total, _, delta, half = data.paths
    for t, j in enumerate(data.pair):  # on the line where the pair just seen is right
        assert memory_paths.KEYS[j] @ delta[t + 1] == pytest.approx(memory_paths.VALUES[j, 0])
        before, after = (memory_paths.KEYS[j] @ half[k] - memory_paths.VALUES[j, 0] for k in (t, t + 1))
        assert after == pytest.approx(before / 2)
    assert np.allclose(total[6], 2 * total[3]), "the sum does not look at where it is"
    ends = [memory_paths.loss(path[-1]) for path in data.paths]
    assert ends[0] > ends[1] > 1 > 0.1 > max(ends[2:]) > memory_paths.loss(data.best)
    memory_paths.draw(data)
