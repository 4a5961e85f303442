"""What chapter 08 says about a training step on a long text."""

import numpy as np
import pytest

from minitransformer.figures import long_step


@pytest.fixture(scope="module")
def data():
    return long_step.data()


def slope(n, y):
    """Of a line through the points, on two logarithmic axes."""
    return np.polyfit(np.log(n), np.log(y), 1)[0]


def test_time_of_a_window_grows_with_the_length_and_that_of_dense_attention_with_its_square(data):
    window, dense, formed = (
        data.n[label] for label in ("window and 16 global words", "dense, in tiles", "dense, every matrix formed")
    )
    long = slice(-3, None)
    assert slope(window[long], data.seconds["window and 16 global words"][long]) < 1.45
    assert slope(dense[long], data.seconds["dense, in tiles"][long]) > 1.65
    assert list(dense) == list(window) == [2**k for k in range(10, 17)]
    assert list(formed) == [1024, 2048, 4096]
    ratio = data.seconds["dense, in tiles"] / data.seconds["window and 16 global words"]
    assert ratio[0] < 2
    assert ratio[-1] > 8


def test_memory_is_linear_in_tiles_and_a_square_with_matrices(data):
    for label in ("window and 16 global words", "dense, in tiles"):
        assert 0.95 < slope(data.n[label], data.bytes[label]) < 1.05
    np.testing.assert_allclose(data.bytes["dense, in tiles"], data.bytes["window and 16 global words"], rtol=0.01)
    label = "dense, every matrix formed"
    assert slope(data.n[label], data.bytes[label]) > 1.85
    assert data.bytes[label][-1] * 16**2 > 400 * 2**30  # of 65,536 bytes


def test_a_line_for_each_kind_in_both_pictures(data):
    seconds, memory = long_step.draw(data).axes
    assert len(seconds.lines) == len(memory.lines) == len(data.n)
