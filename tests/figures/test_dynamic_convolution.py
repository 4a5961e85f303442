"""What the caption of fig_dynamic_convolution claims, and the text under it."""

import numpy as np
import pytest

from minitransformer.experiments.convolutions_on_text import TAPS
from minitransformer.figures import dynamic_convolution

LETTERS = "hent"


@pytest.fixture(scope="module")
def matrices():
    return dynamic_convolution.data()


def rows_of(matrices, model, letter):
    """By offset, as far as all rows of this letter reach that have at least three tokens in front of them."""
    places = [i for i, other in enumerate(matrices.letters) if other == letter and i >= 3]
    reach = min(TAPS, min(places) + 1)
    return np.array([matrices.offsets(model, i)[:reach] for i in places])


def test_both_reach_fifteen_tokens_back(matrices):
    for A in matrices.A.values():
        assert not A[~matrices.reach].any()
    assert (matrices.reach.sum(1) <= 15).all()
    assert matrices.reach.sum(1).max() == 15
    np.testing.assert_allclose(matrices.A["window"].sum(1), 1, atol=2e-3)  # on record with four places


@pytest.mark.parametrize("letter", LETTERS)
def test_rows_of_a_letter_are_the_same_where_the_token_alone_decides(matrices, letter):
    rows = rows_of(matrices, "dynamic convolution", letter)
    assert len(rows) >= 3
    assert np.abs(rows - rows[0]).max() <= 2e-4
    rows = rows_of(matrices, "window", letter)
    assert np.abs(rows - rows[0]).max() > 0.1


def test_some_letters_look_at_one_place(matrices):
    """Which letters, and how far back, is another matter in another training."""
    largest = [rows_of(matrices, "dynamic convolution", letter)[0].max() for letter in LETTERS]
    assert sorted(largest)[-2] > 0.75


def test_it_draws_every_weight(matrices):
    panels = dynamic_convolution.draw(matrices).axes[:2]  # the third is the colour bar
    assert [ax.images[0].get_array().shape for ax in panels] == [(23, 23)] * 2
    assert np.array_equal(panels[0].images[0].get_array().mask, ~matrices.reach)
    assert [label.get_text() for label in panels[0].get_xticklabels()] == list("the·hen·then·went·there")
