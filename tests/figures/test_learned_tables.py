"""What the caption of fig_learned_tables claims, of every seed of ours and of the real table."""

import numpy as np
import pytest

from minitransformer import experiments
from minitransformer.experiments.learned_tables import BERT, cosines
from minitransformer.experiments.learned_tables import SHORT as S
from minitransformer.figures import learned_tables


@pytest.fixture(scope="module")
def tables():
    """By name, those of the three seeds."""
    found = {}
    for trial, result in experiments.load("learned_tables"):
        if trial.table != BERT:
            found.setdefault(trial.table, []).append(np.array(result["table"]))
    assert {len(tables) for tables in found.values()} == {3}
    return found


@pytest.fixture(scope="module")
def d():
    return learned_tables.data()


def test_two_phases_leave_a_break_at_the_short_length(tables):
    for table in tables["two phases"]:
        C = cosines(table)
        near = np.diagonal(C, 1)
        assert near[: S - 1].mean() > 0.7
        assert near[S:].mean() < 0.6
        assert C[S // 2 : S, S // 2 : S].mean() > 0.7
        assert abs(C[S // 2 : S, S:].mean()) < 0.2  # the rows of phase two have nothing to do with those of phase one


def test_lengths_of_the_rows_break_there_too_and_not_in_the_other_training(tables):
    for two, full in zip(tables["two phases"], tables["long from the start"], strict=True):
        two, full = (np.linalg.norm(table, axis=1) for table in (two, full))
        assert two[S - 4 : S].mean() > 5 * two[S : S + 4].mean()
        assert full[S - 4 : S].mean() < 1.5 * full[S : S + 4].mean()


def test_the_real_table_has_a_scar_at_row_127_and_no_break(d):
    """Rows 127 and 128: neighbours there are least alike, except at the two ends of the table."""
    inside = d.neighbours[BERT][2:507]
    assert set(np.argsort(inside)[:2] + 2) == {126, 127}
    assert np.sort(inside)[:2].max() < 0.56
    assert np.sort(inside)[3] > 0.8
    lengths = d.lengths[BERT]
    assert lengths[64:127].mean() < 0.43 < 0.47 < lengths[128:192].mean()


def test_the_real_table_has_waves_that_bend(d):
    """Along a diagonal the cosines change little, from one diagonal to the next much; and not nothing along one."""
    C = d.cosines[BERT]
    of_offset = np.array([np.diagonal(C, o).mean() for o in range(100)])
    within = np.mean([np.diagonal(C, o).var() for o in range(2, 100)])
    assert of_offset[2:].var() > 0.5 * within
    assert (np.diff(np.sign(np.diff(of_offset))) < 0).sum() > 5


def test_it_draws_a_row_for_each_table(d):
    assert len(learned_tables.draw(d).axes) == 2 * 3 + 1  # and the colour bar
