"""What the caption of fig_compressed_matrix claims."""

import numpy as np
import pytest

from minitransformer.figures import compressed_matrix


@pytest.fixture(scope="module")
def matrices():
    return compressed_matrix.data()


def test_a_quarter_of_the_columns(matrices):
    assert matrices.dense.shape == (24, 24)
    assert matrices.compressed.shape == (24, 6)
    assert matrices.causal.shape == (24, 7)
    for A in (matrices.dense, matrices.compressed, matrices.dense_causal, matrices.causal):
        np.testing.assert_allclose(A.sum(1), 1, atol=1e-12)


def test_every_key_is_in_one_block(matrices):
    assert np.array_equal(matrices.mixing > 0, np.arange(24) // 4 == np.arange(6)[:, None])


def test_a_block_is_seen_from_its_last_token_on(matrices):
    seen = matrices.causal > 0
    assert seen[:, 0].all()
    assert seen[:, 1:].argmax(0).tolist() == [3, 7, 11, 15, 19, 23]
    assert not seen[:3, 1:].any()
    assert seen[23].all()


def test_it_draws_every_weight(matrices):
    panels = compressed_matrix.draw(matrices).axes
    drawn = [ax.images[0].get_array() for ax in panels]
    assert [A.shape for A in drawn] == [(24, 24), (24, 6), (24, 24), (24, 7)]
    assert not drawn[0].mask.any()
    assert not drawn[1].mask.any()
    assert np.array_equal(drawn[2].mask, np.triu(np.ones((24, 24)), 1) == 1)
    assert np.array_equal(drawn[3].mask, matrices.causal == 0)
    assert [label.get_text() for label in panels[3].get_xticklabels()] == ["0", "6"]  # the null, and six blocks
