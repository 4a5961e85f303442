"""The encoder that says something about each token."""

import numpy as np
import pytest

from minitransformer import check_pullback, random_like, tree_map
from minitransformer.models import LanguageModel
from minitransformer.models.tagger import Tagger
from minitransformer.positions import LearnedPositions, NoPositions, SinusoidalPositions
from minitransformer.positions.absolute import LearnableSinusoids

TOKENS = np.array([[1, 6, 1, 0], [5, 2, 2, 1]])
SIZES = {"width": 6, "depth": 2, "heads": 2, "hidden": 5}


def some(model):
    rng = np.random.default_rng(2)
    return tree_map(lambda a: 0.5 * a, random_like(model.init(rng, np.float64), rng))


@pytest.mark.parametrize("positions", [LearnedPositions(6, 4), LearnableSinusoids(6)], ids=["learned", "frequencies"])
def test_gradient(positions):
    model = Tagger(7, **SIZES, positions=positions)
    params = some(model)
    zero = tuple(f"params.stack.blocks.{b}.attention.b_k" for b in range(2))
    check_pullback(lambda params: model(params, TOKENS), params, zero=zero, entries=3)


def test_it_is_the_language_model_without_the_mask():
    """The last token of a language model with one block sees everything: there both say the same."""
    sizes = SIZES | {"depth": 1}
    tagger = Tagger(7, **sizes)
    lm = LanguageModel(vocabulary=7, context=4, **sizes, activation="relu")
    params = some(tagger)
    ours, theirs = tagger(params, TOKENS)[0], lm(params, TOKENS)[0]
    np.testing.assert_allclose(ours[:, -1], theirs[:, -1], rtol=0, atol=1e-12)
    assert np.abs(ours[:, 0] - theirs[:, 0]).max() > 1e-3


def test_without_positions_outputs_move_with_their_tokens():
    order = [2, 0, 3, 1]
    for positions, invisible in ((NoPositions(6), True), (SinusoidalPositions(6), False)):
        model = Tagger(7, **SIZES, positions=positions)
        params = some(model)
        moved, stood = model(params, TOKENS[:, order])[0], model(params, TOKENS)[0][:, order]
        assert np.allclose(moved, stood, rtol=0, atol=1e-12) == invisible


def test_bad_choices_are_refused():
    with pytest.raises(ValueError, match="vocabulary: 0 is not at least 1"):
        Tagger(0)
    with pytest.raises(ValueError, match="width: sines and cosines come in pairs, and 5 is not"):
        Tagger(7, width=5, heads=1)
    model = Tagger(7, **SIZES)
    with pytest.raises(ValueError, match="tokens: 9 is outside the vocabulary"):
        model(some(model), TOKENS + 3)
