"""Two phases of training: what the choices mean, and that rows of phase two are learned in phase two."""

from dataclasses import replace

import numpy as np
import pytest

from minitransformer.data.text import Text, python_docs
from minitransformer.training.two_phase import TwoPhase, position_tables

BRIEF = TwoPhase(short=4, long=12, steps=20, width=8, hidden=8)


@pytest.fixture(scope="module")
def docs():
    return python_docs()


@pytest.fixture(scope="module")
def record(docs):
    return position_tables(BRIEF, docs)


def test_the_record(record):
    assert record.choices == BRIEF
    for table in (record.fresh, record.two_phase, record.full):
        assert table.shape == (12, 8)
        assert np.isfinite(table).all()
    assert set(record.bits) == {"two phases", "full length"}
    assert all(2 < bits < 9 for bits in record.bits.values())


def test_both_have_moved_every_row(record):
    for table in (record.two_phase, record.full):
        assert (np.abs(table - record.fresh).max(1) > 1e-5).all()


def test_rows_beyond_the_short_length_move_in_phase_two_only(docs, record):
    """With a share so large that phase two has no step left, they stay as they were."""
    only_short = position_tables(replace(BRIEF, share=0.99), docs)
    kept = only_short.two_phase[4:] / only_short.fresh[4:]
    assert kept.mean() < 1
    np.testing.assert_allclose(kept, kept.mean(), rtol=1e-5)  # weight decay and nothing else
    assert np.ptp(record.two_phase[4:] / record.fresh[4:]) > 0.1
    assert np.abs(only_short.two_phase[:4] - only_short.fresh[:4]).max() > 0.01


def test_the_same_choices_give_the_same_tables(docs, record):
    again = position_tables(BRIEF, docs)
    assert np.array_equal(again.two_phase, record.two_phase)
    assert np.array_equal(again.full, record.full)


def test_bad_choices_are_refused(docs):
    with pytest.raises(ValueError, match="short: 5 is not a divisor of 12"):
        TwoPhase(short=5, long=12)
    with pytest.raises(ValueError, match=r"share: 1\.0 is not between 0 and 1"):
        TwoPhase(share=1.0)
    with pytest.raises(ValueError, match="too short for a context of 12"):
        position_tables(BRIEF, Text(docs.train[:5], docs.held_out[:50], "few bytes", ""))
