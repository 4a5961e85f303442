"""What the caption of fig_one_query claims, and that what is drawn is what was computed."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from minitransformer.figures import one_query
from minitransformer.figures.one_query import ATE, BEHIND, LENGTH, OPPOSITE, SAME, UNIT, VALUE, WORDS

MAN = 1


@pytest.fixture(scope="module")
def d():
    return one_query.data()


@pytest.fixture(scope="module")
def ax(d):
    return one_query.draw(d).axes[0]


def alike(vectors, vector):
    """Cosines."""
    return vectors @ vector / np.linalg.norm(vectors, axis=1) / np.linalg.norm(vector)


def test_the_key_most_like_the_query_gets_the_largest_weight(d):
    for like in (alike(d.K, d.q), -np.linalg.norm(d.K - d.q, axis=1)):
        assert like.argmax() == d.A.argmax() == MAN
        assert like.argmin() == d.A.argmin() == ATE  # its own key
        order = [np.argsort(numbers.round(12), kind="stable") for numbers in (like, d.A)]
        assert np.array_equal(*order)
    assert d.A[MAN] > 0.75


def test_the_output_is_most_like_the_value_of_that_key(d):
    assert alike(d.V, d.y).argmax() == np.linalg.norm(d.V - d.y, axis=1).argmin() == MAN
    assert alike(d.V, d.y)[MAN] > 0.95 > 0.3 > np.delete(alike(d.V, d.y), MAN).max()


def test_all_keys_have_the_same_length(d):
    assert np.allclose(np.linalg.norm(d.K, axis=1), np.linalg.norm(d.q))


def test_scores_weights_and_output_are_those_of_the_loops(d):
    S = [sum(d.q[a] * d.K[j, a] for a in range(4)) / 4**0.5 for j in range(5)]
    total = sum(np.exp(s) for s in S)
    assert np.array_equal(d.S, S)
    assert np.allclose(d.A, [np.exp(s) / total for s in S])
    assert d.A.sum() == pytest.approx(1, abs=1e-15)
    assert np.allclose(d.y, [sum(d.A[j] * d.V[j, c] for j in range(5)) for c in range(3)])


def test_the_same_word_has_the_same_key_and_value(d):
    for vectors in (d.K, d.V):
        assert np.array_equal(vectors[0], vectors[3])


def rectangles(ax, *colours):
    """Those of some colours, left to right in rows, from above; blocks that explain a colour are left out."""
    found = [patch for patch in ax.patches if isinstance(patch, Rectangle) and to_hex(patch.get_facecolor()) in colours]
    return sorted(found, key=lambda patch: (-patch.get_y(), patch.get_x()))


def heights(ax, *colours):
    return [patch.get_height() / UNIT for patch in rectangles(ax, *colours)]


def test_bars_are_the_vectors(d, ax):
    """Bars stand on a line for each vector, from above; along a line they are channels."""
    keys = rectangles(ax, SAME, OPPOSITE)[: d.K.size]
    assert np.allclose([bar.get_height() / UNIT for bar in keys], d.K.ravel())
    colours = [to_hex(bar.get_facecolor()) for bar in keys]
    assert colours == [SAME if product > 0 else OPPOSITE for product in (d.q * d.K).ravel()]
    values = np.concatenate([np.concatenate([d.V, d.A[:, None] * d.V], 1).ravel(), d.y])
    assert np.allclose(heights(ax, VALUE), values)
    grey = np.concatenate([np.tile(d.q, 6), d.V[MAN]])
    assert np.allclose(heights(ax, to_hex(BEHIND)), grey)


def test_lengths_are_scores_and_weights(d, ax):
    scores, weights = np.reshape([bar.get_width() for bar in rectangles(ax, to_hex(LENGTH))], (5, 2)).T
    assert np.allclose(scores / scores[MAN], d.S / d.S[MAN])
    assert np.allclose(weights / weights[MAN], d.A / d.A[MAN])


def test_numbers_beside_them_are_those_numbers_and_the_weights_sum_to_one_as_printed(d, ax):
    written = [text.get_text().replace("−", "-") for text in ax.texts]
    numbers = [float(text) for text in written if text.replace(".", "").lstrip("-").isdigit()]
    assert numbers == [round(number, 2) for pair in zip(d.S, d.A, strict=True) for number in pair]
    assert sum(numbers[1::2]) == pytest.approx(1)
    assert [text for text in written if text.split()[-1] in WORDS] == [
        "3  ate",
        *(f"{j}  {word}" for j, word in enumerate(WORDS, 1)),
    ]


def test_the_value_behind_the_sum_is_called_by_its_number(ax):
    assert any(text.get_text() == f"sum $y_{ATE + 1}$, with $v_{MAN + 1}$ in grey" for text in ax.texts)
