import math

import numpy as np
import pytest

from minitransformer.data import ngrams
from minitransformer.data.text import Text, copied
from minitransformer.models import LanguageModel
from minitransformer.training.evaluation import Bits, bits_per_byte, judged, table
from minitransformer.training.objective import NextByte

MODEL = LanguageModel(context=6, width=8, depth=1, heads=2)


def text_with(copies):
    rng = np.random.default_rng(0)
    train = rng.integers(97, 110, 2000).astype(np.uint8)
    held_out = np.concatenate([rng.integers(97, 110, 100).astype(np.uint8), train[500 : 500 + copies]])
    return Text(train, held_out, "made up", "")


@pytest.fixture(scope="module")
def rows():
    objective = NextByte(text_with(copies=200), 6)
    return objective, bits_per_byte(objective, MODEL, MODEL.init(np.random.default_rng(0)), order=3)


def test_model_and_ngrams_are_judged_on_the_same_bytes(rows):
    objective, found = rows
    text = objective.text
    assert [row.name for row in found] == ["1-gram", "2-gram", "3-gram", "transformer"]
    P = ngrams.probabilities(ngrams.fit(text.train, 3), text.held_out)[:, 1:]
    for row, p in zip(found, P, strict=False):
        assert math.isclose(row.all, -np.log2(p).mean(), rel_tol=1e-12)
    assert math.isclose(
        found[-1].all, objective.bits(MODEL, MODEL.init(np.random.default_rng(0))).mean(), rel_tol=1e-12
    )


def test_copies_and_the_rest_make_up_the_whole(rows):
    objective, found = rows
    share = copied(objective.text.held_out, objective.text.train)[1:].mean()
    assert math.isclose(share, 200 / 299)
    for row in found:
        assert math.isclose(row.all, share * row.copies + (1 - share) * row.new, rel_tol=1e-12)
    assert found[2].copies < found[2].new - 0.5  # counting remembers what it has seen


def test_without_copies_there_is_nothing_to_say_of_them():
    objective = NextByte(text_with(copies=0), 6)
    row = bits_per_byte(objective, MODEL, MODEL.init(np.random.default_rng(0)), order=1)[0]
    assert math.isnan(row.copies)
    assert row.new == row.all


def test_the_table_is_one_line_for_each(rows):
    lines = table(rows[1]).splitlines()
    assert lines[0].split() == ["bits", "per", "byte", "all", "copies", "new"]
    assert [line.split()[0] for line in lines[1:]] == ["1-gram", "2-gram", "3-gram", "transformer"]
    assert all(len(line) == len(lines[0]) for line in lines)


def test_what_there_is_nothing_of_has_no_number():
    lines = table([Bits("1-gram", 4.5, 4.5, float("nan"))]).splitlines()
    assert lines[1].split() == ["1-gram", "4.500", "4.500", "–"]
    assert lines[2] == "–: the held-out text has no such bytes"


def test_a_long_text_is_judged_by_a_sample(monkeypatch):
    """Four megabytes, and of the work that grows with a text, only the search for copies goes through all of it."""
    rng = np.random.default_rng(0)
    train, held_out = (rng.integers(97, 123, size).astype(np.uint8) for size in (3_600_000, 400_000))
    held_out[:1000] = train[1_100_000:1_101_000]  # in no passage of the sample
    work = {"fitted": 0, "read": 0}
    fit = ngrams.fit

    def fit_and_count(text, order):
        work["fitted"] += len(text)
        return fit(text, order)

    class Idle:
        def __call__(self, params, inputs):
            work["read"] += inputs.size
            return np.zeros((*inputs.shape, 256), np.float32), None

    monkeypatch.setattr(ngrams, "fit", fit_and_count)
    objective = NextByte(Text(train, held_out, "long", ""), 128)
    rows = bits_per_byte(objective, Idle(), None, order=2)
    small, copies = judged(objective)
    assert work["fitted"] == len(small.text.train) == 2**21
    assert len(small.text.held_out) == 2**17
    assert work["read"] <= 2 * 2**17  # each window reaches back over half of the one before
    assert copies.sum() == 1000
    assert math.isclose(rows[-1].all, 8)
    assert 4.7 < rows[0].all < 4.71  # log₂ 26
