"""What the caption of fig_learned_tables claims: of the trained tables on a shorter training, of BERT on the real one."""

import numpy as np
import pytest

from minitransformer.data.text import python_docs
from minitransformer.figures import learned_tables
from minitransformer.models.bert_files import BertMissing, load_bert
from minitransformer.training.two_phase import TwoPhase, position_tables

S = 32


@pytest.fixture(scope="module")
def record():
    return position_tables(TwoPhase(steps=900), python_docs())


@pytest.fixture(scope="module")
def d(record):
    tables = {"two": record.two_phase, "full": record.full}
    return learned_tables.data(tables, {"two": S})


def test_cosines():
    table = np.array([[2.0, 0], [0, 3], [1, 1]], np.float32)
    root = np.sqrt(0.5)
    np.testing.assert_allclose(learned_tables.cosines(table), [[1, 0, root], [0, 1, root], [root, root, 1]], atol=1e-7)
    assert table[0, 0] == 2


def test_two_phases_leave_a_break_at_the_short_length(d):
    C, near = d.cosines["two"], d.neighbours["two"]
    assert near[: S - 1].mean() > 0.7
    assert near[S:].mean() < 0.45
    assert C[S // 2 : S, S // 2 : S].mean() > 0.7
    assert abs(C[S // 2 : S, S:].mean()) < 0.2  # the rows of phase two have nothing to do with those of phase one


def test_lengths_of_the_rows_break_there_too_and_not_in_the_other_training(record):
    two, full = (np.linalg.norm(table, axis=1) for table in (record.two_phase, record.full))
    assert two[S - 4 : S].mean() > 5 * two[S : S + 4].mean()
    assert full[S - 4 : S].mean() < 1.5 * full[S : S + 4].mean()


def test_read_in_full_from_the_start_there_is_no_break(d):
    """Rows next to each other across S are about as alike as those on either side."""
    near = d.neighbours["full"]
    assert abs(near[S - 6 : S + 5].mean() - near[S + 6 : S + 17].mean()) < 0.25
    assert d.breaks == {"two": S, "full": None}


def test_the_real_bert_has_a_scar_at_128():
    """Rows 127 and 128: neighbours there are least alike, except at the two ends of the table."""
    try:
        _, params, _ = load_bert()
    except BertMissing as missing:
        pytest.skip(str(missing))
    table = params.position.table
    near = learned_tables.data({"bert": table}, {}).neighbours["bert"]
    inside = near[2:507]
    assert set(np.argsort(inside)[:2] + 2) == {126, 127}
    assert np.sort(inside)[:2].max() < 0.56
    assert np.sort(inside)[3] > 0.8
    norms = np.linalg.norm(table, axis=1)
    assert norms[64:127].mean() < 0.43 < 0.47 < norms[128:192].mean()


def test_it_draws_a_column_for_each_table(d):
    assert len(learned_tables.draw(d).axes) == 2 * 2 + 1  # and the colour bar
