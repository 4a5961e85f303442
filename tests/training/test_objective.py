import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pytest

import minitransformer as mt
from minitransformer.data import dates
from minitransformer.data.text import Text, read_text
from minitransformer.experiments.many_pairs import KEYS, VALUES, ManyPairs
from minitransformer.experiments.positions import Drawn
from minitransformer.models import EncoderDecoder, LanguageModel, SequenceModel
from minitransformer.training import parallel
from minitransformer.training.loop import start, train
from minitransformer.training.objective import (
    DrawnTask,
    LastRowsPullback,
    NextByte,
    Segments,
    WriteISO,
    bits_of,
    in_parts,
    loss_of,
)
from minitransformer.training.recipes import usual_training

MODEL = LanguageModel(context=6, width=8, depth=1, heads=2)
TRANSLATOR = EncoderDecoder(dates.VOCABULARY, width=8, depth=1, heads=2)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "short.txt"
    path.write_text("".join(chr(65 + k * k % 26) for k in range(400)))
    return read_text(path)


@pytest.fixture(scope="module")
def params():
    return MODEL.init(np.random.default_rng(0), np.float64)


def test_the_loss_is_the_mean_surprise_at_the_next_byte(text, params):
    objective = NextByte(text, 6)
    inputs, targets = batch = objective.batch(3, np.random.default_rng(0))
    logits, _ = MODEL(params, inputs)
    surprises = [
        math.log(sum(math.exp(z) for z in logits[b, i])) - logits[b, i, targets[b, i]]
        for b in range(3)
        for i in range(6)
    ]
    loss, _ = objective.loss(MODEL, params, batch)
    assert math.isclose(loss, sum(surprises) / 18, rel_tol=1e-12)


def test_what_is_held_out_is_never_trained_on():
    """Of a text whose two parts have no byte in common."""
    text = Text(np.arange(100, dtype=np.uint8), np.arange(100, 130, dtype=np.uint8), "halves", "")
    for seed in range(5):
        both = np.concatenate(NextByte(text, 6).batch(20, np.random.default_rng(seed)), 1)
        assert both.max() < 100
    for step in range(1, 9):
        assert np.concatenate(Segments(text, 6).segment(4, step, ()), 1).max() < 100
    assert np.concatenate(Segments(text, 11).segment(9, 1, ()), 1).shape == (9, 22), "99 bytes with a next one"
    with pytest.raises(ValueError, match="halves: too short for 9 streams of 12 bytes"):
        Segments(text, 12).segment(9, 1, ())


class Sums(NamedTuple):
    tokens: np.ndarray
    targets: np.ndarray


@dataclass(frozen=True)
class AddTwo(DrawnTask):
    """The last token of three is the sum of the others."""

    largest: int

    def batch(self, size, rng):
        a = rng.integers(0, self.largest, (size, 2))
        return Sums(np.column_stack([a, 0 * a[:, 0]]), a.sum(1, keepdims=True))


def test_a_task_that_is_drawn_looks_at_a_hundred_samples_of_its_own(params):
    """The same each time, and none of those that a training draws from [seed, step]; in bits."""
    task = AddTwo(9)
    assert task.data == {"task": "AddTwo", "name": "AddTwo(largest=9)", "sha256": ""}
    own = task.batch(100, np.random.default_rng(2**32 + 1))
    logits, _ = MODEL(params, own.tokens)
    bits = bits_of(logits[:, -1:], own.targets)
    assert bits.shape == (100, 1)
    for _ in range(2):
        assert task.look(MODEL, params) == pytest.approx(bits.mean(), rel=1e-12)
    first, second = in_parts(own, 2)
    assert type(first) is Sums
    assert np.array_equal(second.targets, own.targets[50:])


def test_dropout_reaches_a_loss(text):
    """With a generator the loss is another one; the same generator gives the same."""
    model, translator = replace(MODEL, dropout=0.5), replace(TRANSLATOR, dropout=0.5)
    for task, dropping, given in (
        (AddTwo(9), model, AddTwo(9).batch(5, np.random.default_rng(0))),
        (NextByte(text, 6), model, NextByte(text, 6).batch(3, np.random.default_rng(0))),
        (Segments(text, 6), model, Segments(text, 6).segment(3, 1, ())),
        (WriteISO(), translator, WriteISO().batch(3, np.random.default_rng(0))),
    ):
        params = dropping.init(np.random.default_rng(0), np.float64)
        usual, one, same, other = (
            task.loss(dropping, params, given, seed and np.random.default_rng(seed))[0] for seed in (None, 1, 1, 2)
        )
        assert one == same
        assert len({usual, one, other}) == 3


def test_a_loss_counts_what_its_mask_lets(params, text):
    inputs, targets = NextByte(text, 6).batch(3, np.random.default_rng(0))
    mask = np.arange(6) < np.array([[6], [2], [0]])
    said = MODEL(params, inputs)
    loss, back = loss_of(said, targets, mask)
    assert loss == pytest.approx(bits_of(said[0], targets)[mask].mean() * math.log(2), rel=1e-12)
    other, again = loss_of(said, np.where(mask, targets, 0), mask)
    assert loss == other
    for (path, a), (_, b) in zip(mt.tree_items(back(1.0)), mt.tree_items(again(1.0)), strict=True):
        assert np.array_equal(a, b), path


def test_bits_of_logits_that_are_large():
    """e^1000 would be infinite; and a surprise of 2⁻³⁰ bits in float32 is one of float64."""
    logits = np.array([[1000.0, 0, 990], [-1000, -1000, -1000]], np.float32)
    bits = bits_of(logits, np.array([2, 1]))
    assert bits.dtype == np.float64
    np.testing.assert_allclose(bits, [10 / math.log(2), math.log2(3)], rtol=1e-4)
    assert 0 < bits_of(np.array([[20.0, 0]], np.float32), np.array([0]))[0] < 1e-8


@pytest.mark.parametrize("part", [0, 1, 2])
def test_the_loss_of_a_batch_is_the_mean_over_its_parts(text, params, part):
    objective = NextByte(text, 6)
    batch = objective.batch(12, np.random.default_rng(0))
    parts = in_parts(batch, 3)
    assert np.array_equal(parts[part][0], batch[0][4 * part : 4 * part + 4])
    losses = [objective.loss(MODEL, params, p)[0] for p in parts]
    assert math.isclose(objective.loss(MODEL, params, batch)[0], np.mean(losses), rel_tol=1e-12)


def test_the_gradient_of_the_text_loss(text, params):
    objective = NextByte(text, 6)
    batch = objective.batch(2, np.random.default_rng(1))
    shaken = mt.tree_map(lambda leaf: leaf + 0.1 * np.random.default_rng(2).standard_normal(leaf.shape), params)
    mt.check_pullback(
        lambda p: objective.loss(MODEL, p, batch), shaken, entries=4, zero=["p.stack.blocks.0.attention.b_k"]
    )


def test_the_gradient_of_the_date_loss():
    objective = WriteISO()
    batch = objective.batch(3, np.random.default_rng(1))
    params = TRANSLATOR.init(np.random.default_rng(0), np.float64)
    shaken = mt.tree_map(lambda leaf: leaf + 0.1 * np.random.default_rng(2).standard_normal(leaf.shape), params)
    zero = ["p.encoder.blocks.0.attention.b_k", "p.decoder.blocks.0.attention.b_k", "p.decoder.blocks.0.cross.b_k"]
    mt.check_pullback(lambda p: objective.loss(TRANSLATOR, p, batch), shaken, entries=4, zero=zero)


def test_held_out_bits_are_those_of_each_byte_in_its_window(text, params):
    bits = NextByte(text, 6).bits(MODEL, params)
    held_out = text.held_out.astype(np.int64)
    assert bits.shape == (len(held_out) - 1,)
    for target in (
        1,
        5,
        6,
        7,
        20,
        len(held_out) - 1,
    ):  # byte 7 is the first that the second window, from byte 3, counts
        start = 0 if target <= 6 else min(3 * math.ceil((target - 6) / 3), len(held_out) - 7)
        logits = MODEL(params, held_out[start:target])[0][-1]
        expected = (np.log(np.exp(logits).sum()) - logits[held_out[target]]) / math.log(2)
        assert math.isclose(bits[target - 1], expected, rel_tol=1e-9), target


def test_a_quick_look_is_near_the_whole(text, params):
    objective = NextByte(text, 6)
    assert math.isclose(objective.look(MODEL, params), objective.bits(MODEL, params).mean(), rel_tol=0.1)


@pytest.mark.parametrize(("length", "windows"), [(7, 1), (40, 12), (1000, 332), (300_000, 99_999)])
def test_a_quick_look_goes_from_the_first_window_to_the_last(length, windows, monkeypatch):
    """32 of them, or all, evenly spread; and no other is so much as made, however long the text is."""
    seen = []

    class Witness:
        def __call__(self, params, inputs):
            seen.extend(inputs)
            return np.zeros((*inputs.shape, 256)), None

    held_out = (np.arange(length) * 7 % 251).astype(np.uint8)
    monkeypatch.setattr(parallel, "cores", lambda: 1)
    objective = NextByte(Text(held_out, held_out, "made up", ""), 6)
    assert math.isclose(objective.look(Witness(), None), 8)
    starts = np.append(np.arange(0, length - 7, 3), length - 7)
    assert len(starts) == windows
    expected = starts[np.linspace(0, windows - 1, min(32, windows)).astype(int)]
    assert {0, length - 7} <= set(expected)
    assert np.array_equal(seen, held_out[expected[:, None] + np.arange(6)])


def test_the_data_is_named(text):
    assert NextByte(text, 6).data == {"task": "text", "name": "short.txt", "sha256": text.sha256}
    assert WriteISO().data["task"] == "dates"
    assert WriteISO().length == len("2024-05-01") + 1


@pytest.mark.parametrize(("context", "part"), [(40, "held-out"), (360, "training")])
def test_a_text_that_is_too_short_for_the_context_is_refused(text, context, part):
    with pytest.raises(ValueError, match=rf"short\.txt, {part} part: \d+ bytes, too short for a context of {context}"):
        NextByte(text, context)


@pytest.mark.parametrize("objective", [NextByte, Segments])
def test_a_name_is_no_text(objective):
    with pytest.raises(TypeError, match=r"^text: 'short\.txt' should be Text"):
        objective("short.txt", 6)


def test_dates_are_judged_by_those_that_are_held_out():
    params = TRANSLATOR.init(np.random.default_rng(0), np.float64)
    loss, _ = WriteISO().loss(TRANSLATOR, params, dates.held_out_set(100))
    assert WriteISO().look(TRANSLATOR, params) == pytest.approx(loss / math.log(2), rel=1e-12)


def test_padding_changes_no_loss():
    params = TRANSLATOR.init(np.random.default_rng(0), np.float64)
    batch = WriteISO().batch(4, np.random.default_rng(1))
    longer = batch._replace(source=np.pad(batch.source, ((0, 0), (0, 5)), constant_values=7))
    losses = [WriteISO().loss(TRANSLATOR, params, b)[0] for b in (batch, longer)]
    assert math.isclose(*losses, rel_tol=1e-12)


def test_translations_are_those_of_one_date_at_a_time():
    params = mt.random_like(TRANSLATOR.init(np.random.default_rng(0)), np.random.default_rng(1))
    written = dates.held_out_set(40).written
    together = WriteISO().translate(TRANSLATOR, params, written)
    assert together == [WriteISO().translate(TRANSLATOR, params, [text])[0] for text in written]
    assert len(set(together)) > 10


def test_a_translation_is_spelled_out():
    class Clerk:
        """Translates the first three of four dates, and makes one wrong digit in the last."""

        def translate(self, params, source, *, begin, end, longest, lengths):
            iso = held_out.target[:, 1:].copy()
            iso[-1, -2] ^= 1
            assert (begin, end, longest) == (dates.BOS, dates.EOS, 11)
            return iso

    held_out = dates.held_out_set(4)
    answers = WriteISO().translate(Clerk(), None, held_out.written)
    assert [a == b for a, b in zip(answers, held_out.iso, strict=True)] == [True, True, True, False]


def test_an_unknown_character_is_refused():
    with pytest.raises(ValueError, match="no token for 'é'"):
        WriteISO().translate(TRANSLATOR, TRANSLATOR.init(np.random.default_rng(0)), ["3 décembre 2021"])


def test_only_the_last_rows_are_asked_for(rng):
    dlast = rng.standard_normal((2, 2, 3)).astype("f")
    dlogits = LastRowsPullback(lambda dlast: dlast, (2, 5, 3))(dlast)
    assert dlogits.dtype == np.float32
    np.testing.assert_array_equal(dlogits[:, 3:], dlast)
    assert not dlogits[:, :3].any()


@pytest.mark.parametrize(
    ("task", "vocabulary", "outputs"),
    [(ManyPairs(4), KEYS * (VALUES + 1), VALUES), (Drawn("span", 12), 21, 2)],
    ids=["last rows", "transposed"],
)
def test_a_drawn_task_trains_attention_that_moves_parameters_by_itself(task, vocabulary, outputs):
    """`after_step` needs the pullback of the model, whatever stands between the logits and the loss."""
    model = SequenceModel(vocabulary, 12, 8, 1, 2, 8, attention="routing:clusters=2", outputs=outputs)
    training = usual_training(2, 4, 1e-2, 0)
    states = start(model, training), train(model, task, training, progress=False)
    for path in model.untrained:
        before, after = (mt.pullback.tree_get(state.params, path) for state in states)
        assert (before != after).any()


def test_streams_begin_again_before_a_target_is_missing():
    """96 bytes in four streams: of 24 the last has no byte to predict after it, so each has two segments of eight."""
    text = np.arange(96).astype(np.uint8)
    objective = Segments(Text(text, text[:9], "count", ""), 8)
    starts = [objective.segment(4, step, ())[0][:, 0].tolist() for step in (1, 2, 3)]
    assert starts == [[0, 23, 46, 69], [8, 31, 54, 77], [0, 23, 46, 69]]


def test_a_look_at_one_segment():
    model = LanguageModel(256, 5, 8, 1, 2, positions="none", stack="transformer-xl:memory=5")
    params, text = model.init(np.random.default_rng(0)), np.arange(41).astype(np.uint8)
    objective = Segments(Text(text, text[:6], "count", ""), 5)
    assert objective.look(model, params) == pytest.approx(objective.bits(model, params).mean())
