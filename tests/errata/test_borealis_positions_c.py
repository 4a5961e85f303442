"""Where Borealis II slips on DeBERTa: what is printed fails, what we use holds."""

import math

import numpy as np
import pytest

from minitransformer.functional import softmax
from minitransformer.positions.deberta import DeBERTa, DeBERTaParams


def unit_scores(encoding, n, rng):
    """Scores of random content and a random table, where every query and key, of either kind, has entries of variance 1."""
    D = encoding.width
    P = rng.standard_normal((2 * encoding.k, D))
    params = DeBERTaParams(P, *rng.standard_normal((2, D, D)) / math.sqrt(D))
    Q, K = rng.standard_normal((2, 1, n, D))
    return encoding.scores(params, Q, K)[0][0], params, Q[0], K[0]


def test_E11_three_products_need_a_scale_for_three():
    """Equation (13) as printed is the sum of three products of d terms, and divided by nothing.

    Its variance is 3d, and softmax of that is nearly an argmax: at d = 64 the largest of 64 weights is above 0.8 on
    average, and hardly a gradient is left. The √d of a single product would leave a variance of 3. What DeBERTa
    divides by is √(3d).
    """
    d, n = 64, 64
    encoding = DeBERTa(d, 1, n)
    S, *_ = unit_scores(encoding, n, np.random.default_rng(11))
    printed = S * math.sqrt(3 * d)

    assert math.isclose(encoding.scale, 1 / math.sqrt(3 * d))
    assert 2 * d < printed.var() < 4 * d
    assert 2 < (printed / math.sqrt(d)).var() < 4
    assert 0.7 < S.var() < 1.3

    assert softmax(printed)[0].max(-1).mean() > 0.8
    assert softmax(S)[0].max(-1).mean() < 0.2


def test_E11_offsets_are_clipped_or_the_table_ends():
    """(13) has a π for each signed offset i − j. For n tokens those are 2n − 1, and a longer text has offsets without a row.

    What is not said: δ(i,j) = clip(i − j + k, 0, 2k − 1). A table of 2k rows then serves a text of any length.
    """
    k, n = 4, 12
    P = np.arange(2 * k)

    def printed(offset):
        row = offset + k
        if row < 0:
            raise IndexError  # where Python would count from the other end
        return P[row]

    encoding = DeBERTa(6, 1, k)
    for offset in range(-k, k):
        assert printed(offset) == encoding.rows(np.array(offset))
    for offset in (k, n - 1, -k - 1, 1 - n):
        with pytest.raises(IndexError):
            printed(offset)
        assert encoding.rows(np.array(offset)) == (2 * k - 1 if offset > 0 else 0)
    S, *_ = unit_scores(encoding, n, np.random.default_rng(12))
    assert S.shape == (n, n)


def test_E11_the_published_code_has_another_index():
    """In (13), as in the paper, the last term has π_{j−i}. The published code gathers with that sign from the side of the
    key, and then transposes: what arrives at (i, j) is π_{i−j}, the same row as in the term before.

    Both are good models, trained from the start. But they are not the same: published weights need index="code".
    """
    n, k, D = 5, 5, 6
    rng = np.random.default_rng(13)
    paper, code = DeBERTa(D, 1, k, index="paper"), DeBERTa(D, 1, k, index="code")
    S, params, Q, K = unit_scores(paper, n, rng)

    keys, queries = params.P @ params.W_kr, params.P @ params.W_qr
    of_key = np.zeros(
        (n, n)
    )  # one row for each key, as the code gathers it: key j has the place of a query, −(j − i) + k
    for j in range(n):
        for i in range(n):
            of_key[j, i] = K[j] @ queries[-(j - i) + k]
    gathered, printed = np.zeros((n, n)), np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            shared = Q[i] @ K[j] + Q[i] @ keys[i - j + k]
            gathered[i, j] = (shared + of_key.T[i, j]) * paper.scale
            printed[i, j] = (shared + K[j] @ queries[j - i + k]) * paper.scale

    assert np.abs(gathered - printed).max() > 0.5  # what is printed is not what the published weights were trained with
    np.testing.assert_allclose(S, printed, rtol=0, atol=1e-12)
    np.testing.assert_allclose(code.scores(params, Q[None], K[None])[0][0], gathered, rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.diag(gathered), np.diag(printed), rtol=0, atol=1e-12)  # except at distance 0
