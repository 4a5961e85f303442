"""The gated feed-forward network: the equation in loops, its limiting cases, and one word for it in every model."""

import math
from functools import partial

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback, random_like, tree_size
from minitransformer.models import (
    BERT,
    Block,
    EncoderDecoder,
    FeedForward,
    GatedFeedForward,
    LanguageModel,
    SequenceModel,
)
from minitransformer.models.gated_feed_forward import GATES

pytestmark = pytest.mark.each_value

fixed = np.random.default_rng(0)
X = fixed.standard_normal((2, 3, 4))
F = {
    "glu": lambda a: 1 / (1 + math.exp(-a)),
    "reglu": lambda a: max(a, 0.0),
    "geglu": lambda a: a * 0.5 * math.erfc(-a / math.sqrt(2)),
    "swiglu": lambda a: a / (1 + math.exp(-a)),
    "bilinear": lambda a: a,
}


@pytest.mark.parametrize("kind", GATES)
def test_gradient(kind, tier, rng):
    layer = GatedFeedForward(4, 7, kind)
    check_pullback(layer, random_like(layer.init(rng), rng), X)


@pytest.mark.parametrize("kind", GATES)
def test_two_linear_maps_and_a_gate_entry_by_entry(kind, tier, rng):
    layer = GatedFeedForward(4, 7, kind)
    p = random_like(layer.init(rng, np.float64), rng)
    Y, _ = layer(p, X)
    alone = layer.value(p, X[1, 2:])
    for s, i, c in np.ndindex(2, 3, 4):
        y = p.b[c]
        for e in range(7):
            a = sum(X[s, i, k] * p.U_1[k, e] for k in range(4)) + p.b_1[e]
            b = sum(X[s, i, k] * p.U_2[k, e] for k in range(4)) + p.b_2[e]
            y += F[kind](a) * b * p.W[e, c]
        assert np.isclose(Y[s, i, c], y, rtol=1e-12)
    assert np.allclose(alone, Y[1, 2:], rtol=1e-12)


def test_a_gate_of_ones_is_a_linear_layer(rng):
    """Limiting case: b₁ so large that σ is 1 everywhere."""
    layer = GatedFeedForward(4, 7, "glu")
    p = random_like(layer.init(rng, np.float64), rng)
    p = p._replace(U_1=0 * p.U_1, b_1=np.full(7, 50.0))
    assert np.allclose(layer(p, X)[0], (X @ p.U_2 + p.b_2) @ p.W + p.b, rtol=1e-12)


def test_reglu_with_equal_maps_is_the_square_of_relu(rng):
    """Limiting case: U₁ = U₂ and no biases, relu(a) a = relu(a)²."""
    layer = GatedFeedForward(4, 7, "reglu")
    p = random_like(layer.init(rng, np.float64), rng)
    p = p._replace(U_2=p.U_1, b_2=p.b_1)
    assert np.allclose(layer(p, X)[0], np.maximum(X @ p.U_1 + p.b_1, 0) ** 2 @ p.W + p.b, rtol=1e-12)


def test_two_thirds_of_the_width_have_as_many_weights(rng):
    D, hidden = 24, 96
    plain, gated = FeedForward(D, hidden).init(rng), GatedFeedForward(D, hidden * 2 // 3).init(rng)
    matrices = [sum(W.size for W in params if W.ndim == 2) for params in (plain, gated)]
    assert matrices[0] == matrices[1] == 2 * D * hidden
    assert tree_size(gated) - tree_size(plain) == 2 * (hidden * 2 // 3) - hidden  # what the biases are apart


def test_what_is_drawn_keeps_a_row_of_its_size(rng):
    """Without a gate the square mean of a row stays 1; the others let through the square mean of f(a), a normal."""
    X = np.random.default_rng(2).standard_normal((400, 200))
    a = np.random.default_rng(3).standard_normal(10**5)
    for kind in GATES:
        layer = GatedFeedForward(200, 400, kind)
        Y, _ = layer(layer.init(np.random.default_rng(1), np.float64), X)
        wanted = np.mean([F[kind](x) ** 2 for x in a[:20000]])
        assert abs((Y**2).mean() / wanted - 1) < 0.1, kind
    assert layer.init(rng).W.dtype == np.float32


# ------------------------------------------------------------------------------------------------- in models


@pytest.mark.parametrize("ffn", ["relu", "gelu", "gelu_tanh", *GATES, "none"])
@pytest.mark.parametrize("kind", [SequenceModel, LanguageModel, BERT, EncoderDecoder])
def test_by_one_word_in_every_model(kind, ffn, rng):
    sizes = {"width": 12, "depth": 1, "heads": 2, "hidden": 10, "ffn": ffn}
    model = kind(40, 24, **sizes)
    params = model.init(rng)
    tokens = rng.integers(0, 40, (2, 9))
    logits, pullback = model(params, tokens, *([tokens] if kind is EncoderDecoder else []))
    grads = pullback(np.ones_like(logits))
    mt.tree_map(lambda *_: None, grads, params)  # of the same form
    ffn_of = (model.decoder if kind is EncoderDecoder else model.body).blocks[0].ffn
    assert ffn_of == (None if ffn == "none" else (GatedFeedForward if ffn in GATES else FeedForward)(12, 10, ffn))


def test_words_that_are_none_are_refused():
    for kind in (LanguageModel, partial(EncoderDecoder, 9), partial(Block.of, 8, 2, 8)):
        with pytest.raises(ValueError, match=r"ffn: no 'siglu'; there are relu, gelu, gelu_tanh, glu, .*, none"):
            kind(ffn="siglu")
    with pytest.raises(ValueError, match="kind: no 'plain'; there are glu"):
        GatedFeedForward(4, 7, "plain")
    with pytest.raises(ValueError, match="two halves"):
        LanguageModel(ffn="none", stack="reversible")
    layer = GatedFeedForward(4, 7)
    with pytest.raises(TypeError, match="parameter 'X'"):
        layer(layer.init(np.random.default_rng(0), np.float64), X[..., :3])
