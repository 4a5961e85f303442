"""Sequence to sequence: gradients, padding, causality, translation, bad input."""

import math

import numpy as np
import pytest

from minitransformer import check_pullback, random_like, tree_items, tree_map, tree_size
from minitransformer.attention import padding_mask
from minitransformer.attention.linear import Performer
from minitransformer.models import EncoderDecoder
from minitransformer.positions import sinusoids
from minitransformer.pullback import added_losses, with_added
from tests.models.test_stack import without_effect

pytestmark = pytest.mark.usefixtures("definitions")

VOCABULARY, D = 9, 6
SOURCE = np.array([[1, 5, 1, 2, 8], [4, 3, 3, 0, 0]])
TARGET = np.array([[6, 2, 7], [6, 5, 6]])
LENGTHS = np.array([5, 3])


def model(**options):
    defaults = {"vocabulary": VOCABULARY, "longest": 7, "width": D, "depth": 2, "heads": 2}
    return EncoderDecoder(**(defaults | options))


def some(model, size=0.5):
    """Parameters at which nothing hides: random gains and biases; not too large, or softmax has made up its mind."""
    rng = np.random.default_rng(3)
    return tree_map(lambda a: size * a, random_like(model.init(rng, np.float64), rng))


@pytest.mark.parametrize(
    "options",
    [
        {"positions": "learned", "order": "pre", "depth": 1, "ffn": "gelu"},
        {"positions": "sinusoidal", "order": "post", "depth": 1, "norm": "rms"},
        {"positions": "learned", "dropout": 0.2, "depth": 2, "ffn": "gelu"},
        {"positions": "t5", "depth": 1, "groups": 1},
        {"positions": "shaw", "depth": 1, "head_width": 4},
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_gradient(options):
    """One table used three times, positions used twice, rows that every block looked at; sources are padded."""
    ed = model(**options)
    params = some(ed)
    check_pullback(
        lambda params: ed(params, SOURCE, TARGET, lengths=LENGTHS, rng=np.random.default_rng(4)),
        params,
        zero=without_effect(params),
        entries=1,
    )


def test_every_part_drops_what_the_generator_says():
    """Source and target, and each step of each block of both stacks; and nothing without a generator."""
    ed = model(dropout=0.4)
    params = some(ed)

    def dropping(**options):
        _, pullback = ed(params, SOURCE, TARGET, lengths=LENGTHS, **options)
        blocks = (*pullback.encoder.blocks, *pullback.decoder.blocks)
        steps = [step for block in blocks for step in (block.attention, block.cross, block.ffn) if step is not None]
        return [hasattr(part.dropout, "slope") for part in (pullback.source, pullback.target, *steps)]

    assert dropping(rng=np.random.default_rng(4)) == [True] * (2 + 2 * 2 + 2 * 3)
    assert not any(dropping())


def test_what_moves_by_itself_moves_in_both_stacks():
    """Performer's features are drawn anew after a step, in the encoder and in the decoder, and no gradient reaches them."""
    ed = model(attention=Performer(2, 3, redraw=1))
    params = ed.init(np.random.default_rng(3), np.float64)
    core = [f"{stack}.blocks.{k}.attention.core" for stack in ("encoder", "decoder") for k in range(2)]
    assert ed.untrained == tuple(f"{path}.{leaf}" for path in core for leaf in ("W", "age"))
    logits, pullback = ed(params, SOURCE, TARGET, lengths=LENGTHS)
    dparams = dict(tree_items(pullback(np.ones_like(logits))))
    assert not {*ed.untrained} & {path for path, gradient in dparams.items() if gradient is not None}
    assert ed.moves
    moved = dict(tree_items(ed.after_step(params, ed.observe(pullback), np.random.default_rng(0))))
    changed = {path for path, before in tree_items(params) if (moved[path] != before).any()}
    assert changed == {f"{path}.W" for path in core}, "their age is 0 again"


def test_what_its_attention_adds_is_that_of_both_stacks():
    """An indexer learns from a loss of its own, in each block."""
    ed = model(attention="indexer:chosen=2,narrow=3")
    params = ed.init(np.random.default_rng(3), np.float64)
    logits, pullback = ed(params, SOURCE, TARGET, lengths=LENGTHS)
    assert (ed.adds_loss, len(added_losses(pullback))) == (True, 4)
    paid = with_added(pullback, 1.0)(0 * logits)
    for block in (*paid.encoder.blocks, *paid.decoder.blocks):
        assert any(array.any() for _, array in tree_items(block.attention.core))


def test_gradient_of_every_entry_of_the_shared_table():
    ed = model(depth=1, ffn="gelu")
    params = some(ed)

    def tied(E):
        here = tree_map(lambda a: a.astype(E.dtype), params._replace(E=E))
        logits, pullback = ed(here, SOURCE, TARGET, lengths=LENGTHS)
        return logits, lambda dlogits: pullback(dlogits).E

    check_pullback(tied, params.E, entries=params.E.size)


def test_the_equation():
    """Encoder, decoder and the two embeddings, put together by hand."""
    ed = model()
    params, mask = some(ed), padding_mask(LENGTHS, 5)[:, None]
    encoded, _ = ed.encoder(params.encoder, math.sqrt(D) * params.E[SOURCE] + sinusoids(5, D), mask=mask)
    X = math.sqrt(D) * params.E[TARGET] + sinusoids(3, D)
    N, _ = ed.decoder(params.decoder, X, encoded, causal=True, Z_mask=mask)
    logits, pullback = ed(params, SOURCE, TARGET, lengths=LENGTHS)
    assert np.allclose(logits, N @ params.E.T, rtol=1e-12)
    assert pullback.decoder.blocks[1].cross.A.shape == (2, 2, 3, 5)
    assert not pullback.decoder.blocks[1].cross.A[1, :, :, 3:].any()
    assert not pullback.encoder.blocks[0].attention.A[1, :, :, 3:].any()


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_padding_of_the_source_does_not_matter(positions):
    """Neither what stands there, bit by bit, nor (to rounding, the shapes differ) whether anything stands there."""
    ed = model(positions=positions)
    params = some(ed)
    logits, _ = ed(params, SOURCE, TARGET, lengths=LENGTHS)
    other = SOURCE.copy()
    other[1, 3:] = [7, 8]
    assert np.array_equal(ed(params, other, TARGET, lengths=LENGTHS)[0], logits)
    assert np.allclose(ed(params, SOURCE[1, :3], TARGET[1])[0], logits[1], rtol=1e-11, atol=1e-12)
    assert not np.allclose(ed(params, SOURCE, TARGET)[0][1], logits[1]), "without lengths, zeros are tokens"


def test_the_source_reaches_every_output_and_the_target_only_later_ones():
    ed = model()
    params = some(ed)
    logits, _ = ed(params, SOURCE, TARGET)
    changed = SOURCE.copy()
    changed[:, 4] = 6
    assert not np.isclose(ed(params, changed, TARGET)[0], logits).all(-1).any()
    for t in range(3):
        changed = TARGET.copy()
        changed[:, t] = 8
        after, _ = ed(params, SOURCE, changed)
        assert np.array_equal(after[:, :t], logits[:, :t])
        assert not np.isclose(after[:, t:], logits[:, t:]).all(-1).any()


def test_samples_do_not_see_each_other():
    ed = model()
    params, source, target = some(ed), SOURCE.copy(), TARGET.copy()
    source[1], target[1] = 7, 7
    logits, _ = ed(params, SOURCE, TARGET, lengths=LENGTHS)
    assert np.array_equal(ed(params, source, target, lengths=LENGTHS)[0][0], logits[0])
    assert np.allclose(ed(params, SOURCE[0], TARGET[0])[0], logits[0], rtol=1e-11), "and a batch is not needed"


def test_an_empty_source():
    """Length 0: the decoder has nothing to look at, gets zeros from there, and still answers."""
    ed = model()
    params = some(ed)
    empty, pullback = ed(params, SOURCE, TARGET, lengths=np.array([5, 0]))
    assert np.isfinite(empty).all()
    assert all(np.isfinite(leaf).all() for _, leaf in tree_items(pullback(empty)))
    assert np.allclose(ed(params, SOURCE[1, :0], TARGET[1])[0], empty[1], rtol=1e-11)
    assert ed(params, SOURCE, TARGET[:, :0])[0].shape == (2, 0, VOCABULARY)


def test_number_of_parameters():
    """Encoder block 12 D² + 13 D; decoder block 4 D² + 4 D more for cross-attention, 2 D for its norm."""
    ed = model(width=8, depth=3)
    encoder = 3 * (12 * 64 + 13 * 8) + 16
    assert tree_size(ed.init(np.random.default_rng(0))) == 9 * 8 + 2 * encoder + 3 * (4 * 64 + 4 * 8 + 2 * 8)


# -------------------------------------------------------------------------------------------- translation

BEGIN, END = 6, 7


def plain_translation(ed, params, source, length, longest):
    """One sentence, one token after another, everything computed anew each time."""
    target = [BEGIN]
    for _ in range(longest):
        logits, _ = ed(params, source[:length], np.array(target))
        target.append(int(logits[-1].argmax()))
        if target[-1] == END:
            break
    return target[1:]


def test_translation_is_one_sentence_at_a_time():
    """In a batch, sentences end at different times; what follows an end is filled with ends."""
    ed, written = model(depth=1), set()
    for seed in (0, 1, 2, 3, 92):  # in the last, one that has ended would go on with other tokens
        rng = np.random.default_rng(seed)
        params = random_like(ed.init(rng, np.float64), rng)
        source, lengths = rng.integers(0, VOCABULARY, (5, 5)), np.array([5, 1, 3, 4, 2])
        found = ed.translate(params, source, begin=BEGIN, end=END, longest=6, lengths=lengths)
        for sample in range(5):
            expected = plain_translation(ed, params, source[sample], lengths[sample], 6)
            assert found[sample].tolist() == expected + [END] * (found.shape[1] - len(expected))
            written.add(len(expected))
    assert len(written) > 2, "some ended early and some did not, or this would test little"


def test_translation_stops_when_all_have_ended():
    """Tokens that look alike all say `end`: nothing but it is written, and once is enough."""
    ed = model(depth=1)
    params = some(ed)
    params = params._replace(E=np.where(np.arange(VOCABULARY)[:, None] == END, 1.0, -1.0) * np.abs(params.E))
    params = params._replace(
        decoder=params.decoder._replace(norm=params.decoder.norm._replace(gamma=np.zeros(D), beta=np.ones(D)))
    )
    assert ed.translate(params, SOURCE, begin=BEGIN, end=END, longest=6).tolist() == [[END], [END]]


@pytest.mark.parametrize("longest", [0, 1, 7])
def test_translation_has_at_most_longest_tokens(longest):
    """Also with a learned table of seven positions: the token `begin` takes one, the last one written takes none."""
    ed = model(positions="learned", depth=1)
    found = ed.translate(some(ed), SOURCE, begin=BEGIN, end=VOCABULARY + 1, longest=longest)  # an end that never comes
    assert found.shape == (2, longest)


# ----------------------------------------------------------------------------------------------- bad input


def test_what_can_not_be_translated():
    """Checked before it runs, as everywhere; 2⁴⁰ tokens would never be written."""
    ed = model(depth=1)
    params, options = some(ed), {"begin": BEGIN, "end": END, "longest": 3}
    for wrong, message in (
        ({"longest": 2**40}, "longest: 1099511627776 should be a number from 0 to 65536"),
        ({"longest": -1}, "longest: -1 should be a number from 0"),
        ({"longest": 2.5}, "parameter 'longest'"),
        ({"begin": -1}, "begin: -1 should be at least 0"),
        ({"begin": VOCABULARY}, f"begin: {VOCABULARY} is outside the vocabulary"),
        ({"source": SOURCE + 1}, f"source: {VOCABULARY} is outside the vocabulary"),
        ({"begin": "a"}, "parameter 'begin'"),
        ({"source": SOURCE.astype(float)}, "source: float64 should be int64"),
        ({"source": SOURCE[0]}, "parameter 'source'"),
        ({"source": SOURCE.tolist()}, "source: a list should be an array"),
        ({"lengths": np.array([1, 2, 3])}, "parameter 'lengths'"),
        ({"params": params._replace(E=params.E[1:])}, r"params\.E: shape"),
        ({"params": None}, "params: should be EncoderDecoderParams, is None"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            ed.translate(**{"params": params, "source": SOURCE, **options, **wrong})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 4}, "width: 6 is not divisible into 4 heads"),
        ({"positions": "rotary"}, "positions: no 'rotary'"),
        ({"width": 3, "heads": 1}, "width: sines and cosines come in pairs"),
        ({"attention": "delta"}, "attention: DeltaRule is always causal: it reads from left to right"),
        (
            {"attention": "linear", "positions": "t5"},
            "positions: t5 acts on the scores, and linear sums over the keys before it sees a query",
        ),
        ({"groups": 3}, "groups: 2 heads can't be divided into 3 groups"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        model(**options)


def test_bad_input_is_refused():
    ed = model(positions="learned")
    params = some(ed)
    with pytest.raises(ValueError, match="source: 9 is outside the vocabulary 0 … 8"):
        ed(params, SOURCE + 1, TARGET)
    with pytest.raises(ValueError, match="target: -1 is outside the vocabulary"):
        ed(params, SOURCE, TARGET - 7)
    with pytest.raises(ValueError, match="lengths: 5 … 6 is not within 0 … 5"):
        ed(params, SOURCE, TARGET, lengths=np.array([5, 6]))
    with pytest.raises(ValueError, match="X: position 7 is beyond the learned table, which ends at 6"):
        ed(params, SOURCE, np.zeros((2, 8), int))
    with pytest.raises(TypeError, match="parameter 'target'"):
        ed(params, SOURCE, TARGET[:1])
    with pytest.raises(TypeError, match="parameter 'lengths'"):
        ed(params, SOURCE, TARGET, lengths=LENGTHS[:1])
    with pytest.raises(TypeError, match="source: float64 should be int64"):
        ed(params, SOURCE.astype(float), TARGET)


def test_one_source_with_a_length_and_no_batch():
    """As in a batch of one; the length is a number of its own, ()."""
    translator = model()
    params = some(translator)
    alone, _ = translator(params, SOURCE[1], TARGET[1], lengths=np.array(3))
    batch, _ = translator(params, SOURCE[1:], TARGET[1:], lengths=np.array([3]))
    np.testing.assert_allclose(alone, batch[0], rtol=1e-12)
    cut, _ = translator(params, SOURCE[1, :3], TARGET[1])
    np.testing.assert_allclose(alone, cut, rtol=1e-12)
