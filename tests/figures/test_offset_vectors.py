"""Shaw's vectors: each pair gets the product of its query with the vector of its clipped offset."""

import numpy as np

from minitransformer.figures import offset_vectors
from minitransformer.measurements.position_scores import varies_along_diagonals
from minitransformer.positions.shaw import by_clipped_offset


def test_every_pair_has_its_clipped_offset():
    d = offset_vectors.data()
    for (i, j), o in np.ndenumerate(d.pairs):
        assert o == max(-2, min(2, j - i))
    assert varies_along_diagonals(d.pairs) == 0


def test_a_row_of_products_stays_in_its_row():
    T = np.random.default_rng(0).standard_normal((7, 5))
    S = by_clipped_offset(T, 7)
    for (i, j), o in np.ndenumerate(offset_vectors.data().pairs):
        assert S[i, j] == T[i, o + 2]


def test_the_figure_says_which_vector_each_pair_gets():
    d = offset_vectors.data()
    for ax, offsets in zip(offset_vectors.draw(d).axes, (d.products, d.pairs), strict=True):
        shown = {text.get_position(): text.get_text() for text in ax.texts}
        assert shown == {(j, i): f"{o}".replace("-", "−") for (i, j), o in np.ndenumerate(offsets)}
