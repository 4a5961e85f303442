"""The claims of the caption of fig_date_attention, and of chapter 03 about the three translators."""

import numpy as np
import pytest

from minitransformer import experiments
from minitransformer.figures import date_attention

MARCH = {"weekday": slice(0, 11), "month": slice(11, 17), "day": slice(17, 22), "year": slice(22, 26)}
JULY = {"day": slice(0, 3), "month": slice(3, 5), "year": slice(5, 9)}
ROWS = {
    "year": [2, 3],
    "month": [5, 6],
    "day": [8, 9],
}  # of an ISO date; the year's first two digits are 19 or 20 anyway


@pytest.mark.parametrize("seed", range(3))
def test_each_part_is_looked_for_where_it_stands(seed):
    looked = date_attention.data(seed)
    assert looked.written == ["2021-03-03", "1989-07-14"]
    for A, places in zip(looked.A, (MARCH, JULY), strict=True):
        np.testing.assert_allclose(A.sum(1), 1, atol=0.02)
        for part, rows in ROWS.items():
            weight = {place: A[rows][:, columns].sum(1).mean() for place, columns in places.items()}
            assert max(weight, key=weight.get) == part
            assert weight[part] > (0.9 if part == "year" else 0.5)  # "hardly elsewhere", "mostly"


def test_the_translators_are_nearly_always_right_and_what_they_get_wrong_is_mostly_the_order_of_two_digits():
    results = experiments.load("dates").results
    exact = [result["exact"] for result in results]
    assert len(exact) == 3
    assert min(exact) >= 0.99
    wrong = [row for result in results for row in result["wrong"]]
    swapped = [sorted(answer) == sorted(iso) for _, answer, iso in wrong]
    assert len(wrong) == sum(round(1000 * (1 - e)) for e in exact)  # all of them are kept
    assert sum(swapped) > len(swapped) / 2


def test_the_figure_has_a_row_for_each_character_written():
    looked = date_attention.data()
    panels = date_attention.draw(looked).axes[:2]
    for ax, read, written in zip(panels, looked.read, looked.written, strict=True):
        assert "".join(label.get_text() for label in ax.get_xticklabels()) == read
        assert "".join(label.get_text() for label in ax.get_yticklabels()) == written
