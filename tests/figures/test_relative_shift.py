"""The relative shift: what is drawn is what the code does, entry by entry."""

import numpy as np
import pytest

from minitransformer.figures import relative_shift
from minitransformer.positions.relative_sinusoids import relative_shift as shifted
from minitransformer.positions.relative_sinusoids import unshift


@pytest.mark.parametrize("n", [1, 2, 4, 7])
def test_every_entry_of_S_is_the_product_of_its_query_and_its_offset(n):
    d = relative_shift.data(n)
    for i in range(n):
        for j in range(n):
            assert d.query_and_offset(d.S[i, j]) == (i, j - i)
            assert d.S[i, j] == d.T[i, j - i + n - 1]


@pytest.mark.parametrize("n", [1, 2, 4, 7])
def test_S_is_the_framed_part_of_the_line_that_was_cut_again(n):
    d = relative_shift.data(n)
    np.testing.assert_array_equal(d.cut[:, :n], d.S)
    dropped = set(d.T.ravel()) - set(d.cut.ravel())
    assert dropped == {*d.T[0, : n - 1], d.T[-1, -1]}


def test_backwards_every_entry_goes_where_it_came_from():
    d = relative_shift.data()
    back = unshift(d.S + 1.0)
    kept = np.isin(d.T, d.S)
    np.testing.assert_array_equal(back[kept], d.T[kept] + 1)
    np.testing.assert_array_equal(back[~kept], 0)
    np.testing.assert_array_equal(shifted(back), d.S + 1)


def test_the_figure_shows_every_index_and_a_frame_around_S():
    d = relative_shift.data()
    above, below = relative_shift.draw(d).axes
    for ax, entries in ((above, d.T), (below, d.cut)):
        shown = {tuple(map(round, text.get_position())): text.get_text() for text in ax.texts}
        for (row, column), entry in np.ndenumerate(entries):
            i, o = d.query_and_offset(entry)
            assert shown[column, row] == f"{i}, {o}".replace("-", "−")
    assert below.patches[-1].get_bbox().bounds == (-0.5, -0.5, 4, 4)
    bright = [p for p in below.patches[:-1] if tuple(p.get_facecolor()) != (1, 1, 1, 1)]
    assert {(round(p.get_x() + 0.5), round(p.get_y() + 0.5)) for p in bright} == {
        (x, y) for x in range(4) for y in range(4)
    }
