"""What the caption of fig_table_rank claims."""

import numpy as np

from minitransformer.figures import table_rank


def test_rank_grows_with_the_length_and_more_slowly_than_it():
    d = table_rank.data()
    assert list(d.rank.values()) == [56, 151, 267, 512]
    n128, n512, n2048, _ = d.rank.values()
    assert n512 < 3 * n128  # four times as long
    assert n2048 < 2 * n512
    assert n2048 < d.width / 2


def test_sinusoids_fall_off_a_cliff_and_random_rows_do_not():
    d = table_rank.data()
    for name, sizes in d.sizes.items():
        assert (np.diff(sizes) <= 0).all()
        if name.startswith("sinusoids"):
            rank = d.rank[name]
            assert sizes[rank - 30] > 1e6 * sizes[rank]
        else:
            assert sizes[-1] > 0.1 * sizes[0]


def test_it_marks_the_rank_of_each_table_of_sinusoids():
    d = table_rank.data()
    ax = table_rank.draw(d).axes[0]
    assert {"56", "151", "267"} <= {text.get_text() for text in ax.texts}
