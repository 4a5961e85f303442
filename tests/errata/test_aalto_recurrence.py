"""What the Aalto thesis leaves out of Transformer-XL and of the Universal Transformer: what is said does not suffice."""

from dataclasses import replace

import numpy as np
import pytest

from minitransformer import tree_map
from minitransformer.contract import some
from minitransformer.models import LanguageModel
from minitransformer.models.universal import HaltingParams
from minitransformer.positions import sinusoids

SIZES = {"vocabulary": 40, "context": 4, "width": 12, "depth": 2, "heads": 2, "hidden": 10}


def test_E57_one_encoding_for_two_segments():
    """3.3.2 says that absolute positions would give "the previous and current segment … the same encoding", and stops there.

    So they would: row 2 of a segment and row 2 of the one before differ by nothing. The relative scores that the thesis does
    not print see the distance, which is 4.
    """
    segment, width = 4, 12
    absolute = np.concatenate([sinusoids(segment, width)] * 2)  # the memory, then the segment
    np.testing.assert_array_equal(absolute[2], absolute[2 + segment])
    with pytest.raises(ValueError, match="sinusoidal does not go with a memory"):
        LanguageModel(**SIZES, stack="transformer-xl:memory=4", positions="sinusoidal")

    model = LanguageModel(**SIZES, stack="transformer-xl:memory=4", positions="transformer-xl")
    params, token = some(model), np.full(4, 7)
    _, first = model(params, token)
    _, second = model(params, token, memory=first.stack.memory)
    A = second.blocks[0].attention.A[:, 3]  # of the last query; all keys have the same content, position apart
    assert np.abs(A[:, 2] - A[:, 6]).min() > 1e-3


def test_E57_reusing_states_is_not_the_gradient_of_the_whole():
    """Aalto, 3.3.2.

    printed  "reusing hidden states between segments", without an equation.
    wrong    Left out: as constants. The values are those of one long text, the gradient is not; that of W_v differs
             by more than 0.01.
    holds    A memory has no gradient, and that is what makes a step affordable.
    """
    model = LanguageModel(**SIZES, stack="transformer-xl:memory=8", positions="transformer-xl")
    params, text = some(model), np.arange(8)[None]
    dY = np.random.default_rng(2).standard_normal((1, 8, 40))
    whole, of_all = replace(model, stack="plain")(params, text)
    a, first = model(params, text[:, :4])
    b, second = model(params, text[:, 4:], memory=first.stack.memory)

    np.testing.assert_allclose(np.concatenate([a, b], 1), whole, atol=1e-12)
    cut = tree_map(np.add, first(dY[:, :4]), second(dY[:, 4:]))
    full = of_all(dY)
    changed = np.abs(cut.stack.blocks[0].attention.W_v - full.stack.blocks[0].attention.W_v).max()
    assert changed > 1e-2
    same = cut.stack.blocks[1].attention.W_q - full.stack.blocks[1].attention.W_q
    assert np.abs(same).max() < 1e-11, "queries of the last layer are asked in their own segment"


def test_E58_dynamically_adjusted_by_what():
    """Aalto, 3.3.3.

    printed  It "dynamically adjust[s] the number of steps"; (18) and (19) have one t for all rows.
    wrong    As printed every token takes T = 6 steps.
    holds    Adaptive computation time: each token has its own number of steps, its weights sum to one, and a step
             costs.
    """
    printed = LanguageModel(**{**SIZES, "depth": 6}, stack="universal:halting=fixed", order="post")
    meant = replace(printed, stack="universal:halting=accumulated")
    tokens = np.arange(12)[None] * 3
    _, pullback = printed(some(printed), tokens)
    assert (pullback.stack.N == 6).all()

    params = some(meant)
    halting = HaltingParams(params.stack.halting.w, np.full(1, -0.3))
    _, pullback = meant(params._replace(stack=params.stack._replace(halting=halting)), tokens)
    assert len(np.unique(pullback.stack.N)) > 2
    np.testing.assert_allclose(pullback.stack.combine.w.sum(0), 1, atol=1e-14)
    assert pullback.stack.added > 0


def test_E58_m_is_a_number_of_positions():
    """3.3.3: "H^t ∈ R^{m×d} for all input positions m". m counts the rows; there is one H^t, not one for each of them."""
    model = LanguageModel(**SIZES, stack="universal:halting=fixed", outputs="none")
    for m in (1, 5, 9):
        assert model(some(model), np.arange(m))[0].shape == (m, 12)
