"""What chapter 09 says about spans that cost something."""

import numpy as np

from minitransformer.figures import span_penalty


def test_spans_shrink_as_the_penalty_grows_and_nothing_is_lost():
    data = span_penalty.data()
    assert data.penalties == (0, 1e-5, 1e-4, 1e-3)
    assert data.spans.shape == (4, 3, 3, 4)
    means = data.spans.mean((2, 3))  # of each training
    assert (np.diff(means.min(1)) <= 0).all()
    assert (means[1:].max(1) < means[:-1].min(1)).all()  # of any seed shorter than with the smaller penalty
    assert np.median(data.spans[2]) < 1
    assert data.spans[3].max() < 16
    assert np.ptp(data.bits.mean(1)) < 0.03
    assert data.bits.mean(1).max() < data.dense.mean(), "on average"
    span_penalty.draw(data)
