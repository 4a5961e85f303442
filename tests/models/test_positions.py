"""Every encoding of positions in every model: gradients, generation with a cache, checkpoints."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest

import minitransformer as mt
from minitransformer.attention import MultiHeadAttention, SoftmaxAttention
from minitransformer.models import BERT, Block, EncoderDecoder, FeedForward, LanguageModel, Norm, Stack
from minitransformer.positions import (
    AT_EMBEDDING,
    IN_ATTENTION,
    ALiBi,
    DeBERTa,
    KerpleLog,
    KerplePower,
    KerpleWeighted,
    OffsetBias,
    RoPE,
    Shaw,
    place,
)
from minitransformer.pullback import Pullback, tree_items, tree_leaves, tree_set
from minitransformer.typing import Array
from tests.pieces import in_pieces

OTHER_FORMS = "kerple:curve=power", "kerple:curve=weighted", "deberta:index=code,buckets=4"
NAMES = (*AT_EMBEDDING, *IN_ATTENTION, *OTHER_FORMS)
WITHOUT_DIRECTION = ("none", "alibi", "kerple", "fire", "multiplicative")  # they know a distance, not to which side
SIZES = {"width": 8, "depth": 2, "heads": 2, "hidden": 6}


def parameters(model, rng):
    """Random ones, so that no gain of one and no bias of zero hides a mistake; positions near their start."""
    start = model.init(rng, np.float64)
    paths = iter([path for path, _ in tree_items(start)])

    def moved(p):
        if next(paths).endswith("L_mult"):  # FIRE's threshold, times 512: of the size of the sequences here
            return np.full(1, 0.02)
        return p + 0.3 * rng.standard_normal(p.shape)

    return mt.pullback.tree_map(moved, start)


def without_effect(params, name):
    """What shifts every score of a row by the same number: the bias of FIRE's last layer, and a bias of the keys, unless
    something is done to each key by itself."""
    each_key = ("rope", "deberta", "multiplicative", "kerple:curve=weighted", "deberta:index=code,buckets=4")
    biases = [f"params.{path}" for path, _ in tree_items(params) if path.endswith(("b_k", "core.b_2"))]
    return [path for path in biases if name not in each_key or "cross" in path]


@pytest.mark.parametrize("name", NAMES)
def test_a_language_model_with_it(name, rng):
    model = LanguageModel(vocabulary=7, context=9, positions=name, **SIZES)
    params = parameters(model, rng)
    tokens = rng.integers(7, size=(2, 6))
    mt.check_pullback(lambda params: model(params, tokens), params, zero=without_effect(params, name), entries=2)


@pytest.mark.parametrize("name", NAMES)
def test_the_future_has_no_effect(name, rng):
    model = LanguageModel(vocabulary=7, context=9, positions=name, **SIZES)
    params = parameters(model, rng)
    tokens = rng.integers(7, size=(2, 9))
    other = tokens.copy()
    other[:, 5] = (tokens[:, 5] + 1) % 7
    before, after = model(params, tokens)[0], model(params, other)[0]
    assert np.array_equal(before[:, :5], after[:, :5])
    assert not np.allclose(before[:, 5], after[:, 5])


@pytest.mark.parametrize("name", NAMES)
def test_generation_with_a_cache_gives_the_same_logits(name, rng):
    model = LanguageModel(vocabulary=7, context=9, positions=name, **SIZES)
    params = parameters(model, rng)
    tokens = rng.integers(7, size=(2, 9))
    said, _ = in_pieces(model, params, tokens, range(4, 10), model.step(params, tokens[:, :4])[1])
    np.testing.assert_allclose(said, model(params, tokens)[0][:, 4:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pieces", [(3, 4, 1, 1), (1, 8), (1,) * 9])
def test_and_so_it_does_with_shared_keys_and_several_tokens_at_once(name, pieces, rng):
    """With one head of keys and values for four of queries."""
    model = LanguageModel(vocabulary=7, context=9, positions=name, **{**SIZES, "width": 16, "heads": 4}, groups=1)
    params, tokens = parameters(model, rng), rng.integers(7, size=(2, 9))
    said, state = in_pieces(model, params, tokens, np.cumsum((0, *pieces)))
    np.testing.assert_allclose(said, model(params, tokens)[0], rtol=0, atol=1e-12)
    assert state.blocks[0].keys.shape == (2, 1, 9, 4)


@pytest.mark.parametrize("name", ["learned", "t5", "deberta", "rope"])  # one of each kind
def test_a_translator_with_it(name, rng):
    model = EncoderDecoder(7, longest=9, positions=name, width=8, depth=1, heads=2, hidden=6)
    params = parameters(model, rng)
    source, target = rng.integers(7, size=(2, 5)), rng.integers(7, size=(2, 4))
    lengths = np.array([5, 3])
    mt.check_pullback(
        lambda params: model(params, source, target, lengths=lengths),
        params,
        zero=without_effect(params, name),
        entries=2,
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_bert_with_it_tells_the_order_of_tokens(name, rng):
    model = BERT(vocabulary=7, context=9, positions=name, **SIZES)
    params = parameters(model, rng)
    tokens = np.array([1, 2, 3, 4, 5])
    forwards, backwards = model(params, tokens)[0], model(params, tokens[::-1].copy())[0][::-1]
    assert np.allclose(forwards, backwards) == (name.partition(":")[0] in WITHOUT_DIRECTION)


@pytest.mark.parametrize("name", NAMES)
def test_float32_stays_float32(name, rng):
    model = LanguageModel(vocabulary=7, context=9, positions=name, **SIZES)
    params = model.init(rng)
    assert {leaf.dtype for leaf in tree_leaves(params)} == {np.dtype(np.float32)}
    logits, pullback = model(params, np.arange(6))
    assert logits.dtype == np.float32
    assert {leaf.dtype for leaf in tree_leaves(pullback(logits))} == {np.dtype(np.float32)}


class Two(NamedTuple):
    slope: Array
    table: Array


class TwoPullback(Pullback):
    o: Array

    def __call__(self, dbias):
        return Two((dbias * self.o).sum(-1), dbias.sum(-1))


@dataclass(frozen=True)
class SlopeForAll(OffsetBias):
    """b_o = slope_h · o + table_h · [o < 0]: the slope is shared by all layers, the table is each layer's own."""

    heads: int
    shared = ("slope",)

    def init(self, rng, dtype=np.float32):
        return Two(*rng.standard_normal((2, self.heads)).astype(dtype))

    def bias(self, params, n, m, *, causal):
        o = np.tanh(np.arange(n + m - 1) - (m - 1.0))
        return params.slope[:, None] * o + params.table[:, None], TwoPullback(o)


def test_what_layers_share_gets_the_sum_of_their_gradients(rng):
    attention = MultiHeadAttention(8, 2, core=SoftmaxAttention(encoding=SlopeForAll(2)))
    stack = Stack((Block(attention, FeedForward(8, 6)),) * 3)
    params = stack.init(rng, np.float64)
    assert [block.attention.core.slope for block in params.blocks] == [None] * 3
    assert list(params.shared) == ["attention.core.slope"]
    assert params.shared["attention.core.slope"].shape == (2,)
    X = rng.standard_normal((2, 5, 8))
    dparams, _ = stack(params, X)[1](X)
    dslopes = StackApart(stack, params).dslopes(X)
    assert len(dslopes) == 3
    np.testing.assert_allclose(dparams.shared["attention.core.slope"], sum(dslopes), rtol=1e-12)
    assert all(block.attention.core.slope is None for block in dparams.blocks)


class StackApart:
    """The same stack, its blocks called one by one, each with the shared slope."""

    def __init__(self, stack, params):
        self.stack, self.params = stack, params

    def dslopes(self, X):
        H, pullbacks = X, []
        for block, own in zip(self.stack.blocks, self.params.blocks, strict=True):
            H, pullback = block(tree_set(own, "attention.core.slope", self.params.shared["attention.core.slope"]), H)
            pullbacks.append(pullback)
        _, norm = Norm(8)(self.params.norm, H)
        dX, dslopes = norm(X)[1], []
        for pullback in reversed(pullbacks):
            dblock, dX = pullback(dX)
            dslopes.append(dblock.attention.core.slope)
        return dslopes


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="positions: no 'rotary'; there are none, sinusoidal, learned"):
        place("rotary", width=8, heads=2, longest=9)
    for other in (SoftmaxAttention(), 7, ALiBi):
        with pytest.raises(ValueError, match="is not a name, nor an encoding"):
            place(other, width=8, heads=2, longest=9)


def test_a_name_with_options():
    """Of its own; the sizes are those of the model. All others are as in the paper."""
    sizes = {"width": 8, "heads": 2, "longest": 9}
    assert place("rope:base=500,layout=halves", **sizes).in_attention == RoPE(4, base=500, layout="halves")
    assert place("shaw:clip=3", **sizes).in_attention == Shaw(4, 3)
    assert place("relative keys", **sizes).in_attention == Shaw(4, 16, values=False)
    assert place("deberta", **sizes).in_attention == DeBERTa(8, 2, 9)
    assert place("deberta:index=code,buckets=4", **sizes).in_attention == DeBERTa(8, 2, 9, "code", 4)
    curves = {"": KerpleLog, ":curve=log": KerpleLog, ":curve=power": KerplePower, ":curve=weighted": KerpleWeighted}
    for text, kind in curves.items():
        assert place("kerple" + text, **sizes).in_attention == kind(2)
    for wrong, message in {
        "rope:d=6": "positions: 'rope' has no option 'd=6'; d is filled in by the model; it has base, ",
        "rope:bse=5": "positions: 'rope' has no option 'bse=5'",
        "rope:base": "positions: base of 'rope' needs a value, as rope:base=…",
        "alibi:slope=3": "positions: 'alibi' has no option 'slope=3'; it has none",
        "rope:base=0.5": "base: 0.5 should be more than 1",
        "rope:base=ten": "positions: base of 'rope' should be float or int, got 'ten'",
        "kerple:curve=line": "curve: no 'line'; there are log, power, weighted",
        "deberta:buckets=16": "buckets: 16 should be at least 2, half of it below 8, the longest distance",
    }.items():
        with pytest.raises(ValueError, match=message):
            place(wrong, **sizes)


def test_an_encoding_of_ones_own(rng):
    """The same as by its name; and one for other heads is refused when the model is put together."""
    named, own = (LanguageModel(vocabulary=7, context=9, positions=p, **SIZES) for p in ("alibi", ALiBi(2)))
    params = named.init(rng)
    assert np.array_equal(named(params, np.arange(6))[0], own(params, np.arange(6))[0])
    with pytest.raises(ValueError, match="core: ALiBi is for 3 heads, not 2"):
        LanguageModel(vocabulary=7, context=9, positions=ALiBi(3), **SIZES).init(rng)
