"""Tables of positions learned in one phase or two: that phase two alone moves its rows, and what the record says."""

from dataclasses import replace

import numpy as np
import pytest

from minitransformer import experiments
from minitransformer.experiments.learned_tables import BERT, LONG, MODEL, SHORT, Trial, coarse, cosines, train_table
from minitransformer.models import BertMissing, load_bert

BRIEF = Trial("two phases", steps=20)


def test_rows_beyond_the_short_length_move_in_phase_two_only():
    """With a share so large that phase two has no step left, they stay as they were but for weight decay."""
    fresh = MODEL.init(np.random.default_rng([BRIEF.seed, 0])).positions.table
    only_short, _ = train_table(replace(BRIEF, share=0.99))
    both, bits = train_table(BRIEF)
    kept = only_short[SHORT:] / fresh[SHORT:]
    assert np.ptp(kept) < 0.02
    assert np.ptp(both[SHORT:] / fresh[SHORT:]) > 0.1
    assert np.abs(only_short[:SHORT] - fresh[:SHORT]).max() > 0.01
    assert both.shape == (LONG, 32)
    assert 2 < bits < 9


def test_cosines():
    table = np.array([[2.0, 0], [0, 3], [1, 1]], np.float32)
    root = np.sqrt(0.5)
    np.testing.assert_allclose(cosines(table), [[1, 0, root], [0, 1, root], [root, root, 1]], atol=1e-7)
    assert table[0, 0] == 2


def test_coarse():
    C = np.arange(64.0).reshape(8, 8)
    np.testing.assert_allclose(coarse(C), [[C[:4, :4].mean(), C[:4, 4:].mean()], [C[4:, :4].mean(), C[4:, 4:].mean()]])


def test_the_record_of_the_real_table_is_that_of_its_weights():
    try:
        table = load_bert()[1].positions.table
    except BertMissing as missing:
        pytest.skip(str(missing))
    record = next(result for trial, result in experiments.load("learned_tables") if trial.table == BERT)
    np.testing.assert_allclose(record["lengths"], np.linalg.norm(table, axis=1), atol=6e-4)
    np.testing.assert_allclose(record["neighbours"], np.diagonal(cosines(table), 1), atol=6e-4)
    np.testing.assert_allclose(np.array(record["percent"]) / 100, coarse(cosines(table)), atol=6e-3)
