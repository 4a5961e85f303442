"""What the caption of fig_sinusoid_table claims."""

import numpy as np

from minitransformer.figures import sinusoid_table


def test_every_row_is_different_and_the_right_half_hardly_moves():
    d = sinusoid_table.data()
    distances = np.linalg.norm(d.table[:, None] - d.table, axis=-1)
    assert distances[~np.eye(len(d.table), dtype=bool)].min() > 1
    spread = np.ptp(d.table, axis=0)
    assert (spread[:20] > 1.9).all()  # a whole wave fits into the table
    assert (spread[40:] < 0.35).all()


def test_the_lines_are_waves_of_the_printed_length():
    d = sinusoid_table.data()
    assert [round(d.wavelengths[f]) for f in d.pairs] == [11, 35, 199]
    assert (np.diff(d.wavelengths) > 0).all()
    i = np.arange(len(d.table))
    for f in d.pairs:
        np.testing.assert_allclose(d.table[:, 2 * f], np.sin(2 * np.pi * i / d.wavelengths[f]), rtol=0, atol=1e-12)
        np.testing.assert_allclose(d.table[:, 2 * f + 1], np.cos(2 * np.pi * i / d.wavelengths[f]), rtol=0, atol=1e-12)


def test_it_draws_sine_and_cosine_of_each_pair():
    d = sinusoid_table.data()
    fig = sinusoid_table.draw(d)
    assert [len(ax.lines) for ax in fig.axes if ax.lines] == [2] * len(d.pairs)
