"""What the caption of fig_heads claims."""

import numpy as np
import pytest

from minitransformer.figures import heads

THE, MAN, ATE, THE_2, FISH = range(5)


@pytest.fixture(scope="module")
def d():
    return heads.data()


def test_rows_sum_to_one(d):
    for A in d[1:]:
        np.testing.assert_allclose(A.sum(1), 1, rtol=0, atol=1e-14)


def test_without_weights_every_word_looks_most_at_its_own_kind(d):
    assert (d.unweighted.max(1) == np.diag(d.unweighted)).all()


def test_the_verb_finds_who_and_what(d):
    assert d.head_1[ATE].argmax() == MAN
    assert d.head_2[ATE].argmax() == FISH
    assert d.head_1[ATE, MAN] > 0.85
    assert d.head_2[ATE, FISH] > 0.85


def test_nouns_look_at_the_verb_although_it_asks_for_something_else(d):
    assert d.head_1[MAN].argmax() == d.head_1[FISH].argmax() == ATE
    assert d.head_1[ATE, FISH] < 0.05 < 0.85 < d.head_1[FISH, ATE]  # fish looks at ate, ate not at fish


def test_one_softmax_has_to_share(d):
    assert d.both[ATE, MAN] == pytest.approx(d.both[ATE, FISH], abs=1e-15)
    assert d.both[ATE, MAN] < 0.5


def test_both_articles_look_alike(d):
    """Without positions the same word gets the same row, wherever it stands."""
    for A in d[1:]:
        np.testing.assert_array_equal(A[THE], A[THE_2])
        np.testing.assert_allclose(A[:, THE], A[:, THE_2], rtol=0, atol=1e-15)


def test_a_word_that_asks_for_nothing_gets_the_average(d):
    np.testing.assert_allclose(d.head_2[THE], 0.2, rtol=0, atol=1e-15)


def test_it_writes_every_weight(d):
    fig = heads.draw(d)
    assert [len(ax.texts) for ax in fig.axes] == [25] * 4
