"""The two tasks of chapter 07, and how they are judged."""

import numpy as np
import pytest

from minitransformer.data.text import python_docs
from minitransformer.experiments.linformer_recall import ASKED, KEYS, VALUES, LookUp
from minitransformer.experiments.smaller_matrices import JUDGED, TAKEN_OUT, Missing


def test_who_looks_up_has_to_say_the_value_beside_the_key():
    pairs = 5
    tokens, values = LookUp(pairs).batch(50, np.random.default_rng(0))
    assert tokens.shape == (50, 2 * pairs + ASKED)
    for row, wanted in zip(tokens, values, strict=True):
        told = dict(zip(row[: 2 * pairs : 2], row[1 : 2 * pairs : 2], strict=True))
        assert len(told) == pairs  # all keys differ
        questions = row[2 * pairs :] - KEYS - VALUES  # a key that is asked for is another token
        assert [told[key] - KEYS for key in questions] == list(wanted)
    assert tokens.max() < 2 * KEYS + VALUES
    assert values.max() < VALUES


def test_about_15_percent_are_missing_and_the_rest_is_the_text():
    objective = Missing(python_docs(), 64)
    for tokens, wanted, missing in (objective.batch(200, np.random.default_rng(0)), objective.judged()):
        assert (tokens[missing] == TAKEN_OUT).all()
        np.testing.assert_array_equal(tokens[~missing], wanted[~missing])
        assert wanted.max() < TAKEN_OUT
        assert missing.mean() == pytest.approx(0.15, abs=0.015)
    for once, again in zip(objective.judged(), objective.judged(), strict=True):
        np.testing.assert_array_equal(once, again)


@pytest.mark.parametrize("context", [64, 1024])
def test_only_missing_bytes_are_judged_and_of_every_length_as_many_bytes(context):
    """Who says all 257 tokens with the same chance needs log₂ 257 bits; who knows what is missing, and nothing else, none."""
    objective = Missing(python_docs(), context)
    _, wanted, missing = objective.judged()
    assert wanted.size == JUDGED * 256
    assert objective.look(lambda params, tokens, rng: (np.zeros((*tokens.shape, 257)), None), ()) == pytest.approx(
        np.log2(257)
    )
    said = iter(np.array_split(np.where(missing, wanted, TAKEN_OUT), max(len(wanted) // 16, 1)))
    known = objective.look(lambda params, tokens, rng: (1000.0 * np.eye(257)[next(said)], None), ())
    assert known == pytest.approx(0, abs=1e-12)
