"""A grid of offsets: the definition in loops, and what a line does not know. What all promise: test_every_encoding.py."""

import math

import numpy as np
import pytest

from minitransformer import random_like
from minitransformer.attention import attend
from minitransformer.models import LanguageModel
from minitransformer.positions import GridScalars, grid_offsets


@pytest.mark.parametrize(("n", "m"), [(6, 6), (2, 6), (5, 5)])
def test_the_definition(n, m, rng):
    """S_ij = ⟨q_i, k_j⟩/√d + π_{Δy, Δx}, Δy = y_j − y_i, Δx = x_j − x_i, of a picture of 3 columns."""
    H, d, columns = 2, 4, 3
    encoding = GridScalars(H, 6, columns)
    params = random_like(encoding.init(rng, np.float64), rng)
    Q, K, V = (rng.standard_normal((2, H, length, d)) for length in (n, m, m))
    Y, _ = attend(encoding, params, Q, K, V)
    for s, h, i in np.ndindex(2, H, n):
        y_i, x_i = divmod(m - n + i, columns)
        weights = []
        for j in range(m):
            y_j, x_j = divmod(j, columns)
            content = sum(Q[s, h, i, c] * K[s, h, j, c] for c in range(d)) / math.sqrt(d)
            weights.append(math.exp(content + params.table[h, y_j - y_i + encoding.rows - 1, x_j - x_i + columns - 1]))
        assert np.allclose(Y[s, h, i], sum(w * v for w, v in zip(weights, V[s, h], strict=True)) / sum(weights))


def test_neighbours_in_a_line_are_no_neighbours_in_a_picture():
    """The last pixel of a row and the first of the next are one token apart, and as far apart as a row is long."""
    index = grid_offsets(6, 6, columns=3, rows=2)
    assert index[0, 1] == index[3, 4] != index[2, 3]
    assert index[0, 3] == index[2, 5]
    assert np.array_equal(
        index + index.T, np.full((6, 6), 2 * index[0, 0])
    )  # what stands opposite has the opposite offset


def test_one_row_is_a_line(rng):
    """Limiting case: the numbers of one row are those of the signed offsets in a line, and the scores too."""
    encoding = GridScalars(2, 5, columns=5)
    params = random_like(encoding.init(rng, np.float64), rng)
    Q = rng.standard_normal((2, 5, 3))
    S, _ = encoding.scores(params, Q, Q)
    for h, i, j in np.ndindex(2, 5, 5):
        assert np.isclose(S[h, i, j] - Q[h, i] @ Q[h, j] / math.sqrt(3), params.table[h, 0, j - i + 4])


def test_in_a_model_and_what_is_refused(rng):
    model = LanguageModel(17, 64, width=8, depth=1, heads=2, positions="grid:columns=4")
    assert model.body.blocks[0].attention.core.encoding == GridScalars(2, 64, 4)
    params = model.init(rng)
    with pytest.raises(ValueError, match="K: 65 pixels, and the table is for 16 rows of 4"):
        model(params, np.zeros(65, int))
    with pytest.raises(ValueError, match="memory"):
        LanguageModel(positions="grid", stack="transformer-xl:memory=8")
    with pytest.raises(ValueError, match="n: 3 queries for 2 keys: should be at most 2"):
        grid_offsets(3, 2, 4, 4)
    with pytest.raises(ValueError, match="m: 17 pixels should be at most 4 rows of 4"):
        grid_offsets(3, 17, 4, 4)


def test_a_last_row_that_is_not_full_has_all_its_columns():
    encoding = GridScalars(heads=1, longest=9, columns=4)
    params, Q = encoding.init(np.random.default_rng(0), np.float64), np.zeros((1, 13, 4))
    assert encoding.rows == 3
    assert encoding.scores(params, Q[:, :12], Q[:, :12])[0].shape == (1, 12, 12)
    with pytest.raises(ValueError, match="13 pixels"):
        encoding.scores(params, Q, Q)
