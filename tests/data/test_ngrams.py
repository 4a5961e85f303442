import itertools
import math

import numpy as np
import pytest

from minitransformer.data.ngrams import bits_per_byte, distribution, fit, probabilities
from minitransformer.data.text import python_docs

RNG = np.random.default_rng(0)
TRAIN = RNG.choice(list(b"abcab "), 300).astype(np.uint8)
TEXT = RNG.choice(list(b"abcd "), 60).astype(np.uint8)


def witten_bell(train: bytes, context: bytes, byte: int) -> float:
    """The definition, by counting again every time."""
    lower = witten_bell(train, context[1:], byte) if context else 1 / 256
    followers = [train[i + len(context)] for i in range(len(train) - len(context)) if train[i:].startswith(context)]
    if not followers:
        return lower
    kinds = len(set(followers))
    return (followers.count(byte) + kinds * lower) / (len(followers) + kinds)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_probabilities_are_those_of_the_definition(order):
    P = probabilities(fit(TRAIN, order), TEXT)
    train, text = bytes(TRAIN), bytes(TEXT)
    for k, i in itertools.product(range(1, order + 1), range(len(text))):
        expected = witten_bell(train, text[max(0, i - k + 1) : i], text[i])
        assert math.isclose(P[k - 1, i], expected, rel_tol=1e-12), (k, i)


@pytest.mark.parametrize("context", [b"", b"a", b"ab", b"abcab", b"zz", b"a\x00"])
def test_probabilities_of_all_bytes_sum_to_one(context):
    P = distribution(fit(TRAIN, 4), context)
    assert P.shape == (256,)
    assert (P > 0).all()
    assert math.isclose(P.sum(), 1, rel_tol=1e-12)


def test_bits_are_the_mean_of_minus_log2():
    model = fit(TRAIN, 3)
    assert np.allclose(bits_per_byte(model, TEXT), -np.log2(probabilities(model, TEXT)).mean(1), rtol=1e-15)


def test_an_unseen_byte_costs_more_than_eight_bits_and_not_infinity():
    bits = bits_per_byte(fit(TRAIN, 3), np.array([255], np.uint8))
    assert (bits > 8).all()
    assert np.isfinite(bits).all()


def test_higher_orders_are_the_better_ones_on_the_text_they_have_seen():
    bits = bits_per_byte(fit(TRAIN, 6), TRAIN)
    assert (np.diff(bits) < 0).all()


def test_the_highest_order_reads_eight_bytes():
    """Eight bytes fill a 64-bit number to the last bit."""
    text = np.array([255, 0, 255, 255, 1, 2, 3, 255] * 4, np.uint8)
    P = probabilities(fit(text, 8), text)[-1]
    expected = [witten_bell(bytes(text), bytes(text[max(0, i - 7) : i]), text[i]) for i in range(len(text))]
    assert np.allclose(P, expected, rtol=1e-12)


def test_a_text_shorter_than_the_order_can_be_counted_and_scored():
    P = probabilities(fit(np.frombuffer(b"ab", np.uint8), 5), np.frombuffer(b"a", np.uint8))
    assert np.allclose(P[:, 0], witten_bell(b"ab", b"", ord("a")))


def test_arguments_are_not_changed():
    train, text = TRAIN.copy(), TEXT.copy()
    bits_per_byte(fit(train, 3), text)
    assert np.array_equal(train, TRAIN)
    assert np.array_equal(text, TEXT)


@pytest.mark.parametrize(
    ("train", "order", "message"),
    [
        (np.zeros(0, np.uint8), 2, "train: an empty text"),
        (np.array([1, 256]), 2, r"train: 1 … 256 is not within 0 … 255"),
        (np.array([-1, 2]), 2, r"train: -1 … 2"),
        (np.zeros((2, 3), np.uint8), 2, "train: should be a one-dimensional array of integers"),
        (np.zeros(3), 2, "train: should be a one-dimensional array of integers, got float64"),
        (TRAIN, 0, "order: 0 should be at least 1"),
        (TRAIN, 9, "order: 9"),
    ],
)
def test_what_can_not_be_counted_is_refused(train, order, message):
    with pytest.raises(ValueError, match=message):
        fit(train, order)


def test_the_control_on_the_default_text():
    """Near the published 2.50 and 1.63 bits for trigram and 6-gram on the text of Python 3.11; others have other texts."""
    text = python_docs()
    bits = bits_per_byte(fit(text.train, 6), text.held_out)
    assert (np.diff(bits) < 0).all()
    assert 1 < bits[5] < bits[2] < 3
    if text.sha256.startswith("939fdd476b82f822"):
        assert 2.3 < bits[2] < 2.8
        assert 1.4 < bits[5] < 1.9


def test_a_text_shorter_than_the_order_has_no_grams_of_it():
    model = fit(TRAIN[:2], 4)
    assert [tuple(len(part) for part in counts) for counts in model[0]] == [
        (2, 2, 1, 1, 1),
        (1, 1, 1, 1, 1),
        *[(0,) * 5] * 2,
    ]
    P = probabilities(model, TRAIN[:6])
    np.testing.assert_array_equal(P[2:], P[[1, 1]])  # and answers by the longest that it has


def test_nobody_is_judged_by_an_empty_text():
    with pytest.raises(ValueError, match="text: an empty text has no bytes to be judged by"):
        bits_per_byte(fit(TRAIN, 2), TRAIN[:0])


@pytest.mark.parametrize("other", [-1, 256, 2**40])
def test_what_is_no_byte_is_refused(other):
    """... whatever the others are: be it too small or too large."""
    for text in ([other], [0, other, 255]):
        for call in (lambda text: fit(text, 2), lambda text: probabilities(fit(TRAIN, 2), text)):
            with pytest.raises(ValueError, match=rf"{other}.* is not within 0 … 255"):
                call(np.array(text))


def test_contexts_that_do_not_fit_their_counts():
    model = fit(np.arange(20).astype(np.uint8), 2)
    fewer = model.orders[1]._replace(contexts=model.orders[1].contexts[:-1])
    uncounted = model.orders[1]._replace(occurrences=model.orders[1].occurrences[:-1])
    for odd in (fewer, uncounted):
        with pytest.raises(ValueError, match="should be equal"):
            probabilities(model._replace(orders=(model.orders[0], odd)), np.arange(5).astype(np.uint8))
