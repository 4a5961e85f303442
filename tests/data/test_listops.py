"""Expressions of ListOps: they come to what they should, are as long as was asked for, and can't be told by a bag of tokens."""

import numpy as np
import pytest

from minitransformer.data.listops import DIGITS, END, FILL, OPERATORS, VOCABULARY, listops, value_of

MIN, MAX = DIGITS, DIGITS + 1


def loops(tokens):
    """The innermost expression is replaced by its value, again and again: another way to read than with a stack."""
    tokens = [token for token in tokens if token != FILL]
    while len(tokens) > 1:
        end = tokens.index(END)
        start = max(k for k in range(end) if tokens[k] in (MIN, MAX))
        inner = tokens[start + 1 : end]
        tokens[start : end + 1] = [min(inner) if tokens[start] == MIN else max(inner)]
    return tokens[0]


def test_the_example_of_the_docstring():
    assert value_of(np.array([MAX, 4, MIN, 7, 2, 9, END, 1, END])) == 4
    assert value_of(np.array([FILL, FILL, MIN, 7, MAX, 2, 9, END, END])) == 7


def test_every_value_is_that_of_its_expression():
    tokens, values = listops(200, 20, np.random.default_rng(0))
    assert [value_of(row) for row in tokens] == [loops(row.tolist()) for row in tokens] == values.tolist()
    assert tokens.max() < VOCABULARY == DIGITS + len(OPERATORS) + 2


@pytest.mark.parametrize(("n", "shortest"), [(20, 8), (9, 9), (17, 4)])
def test_lengths_are_those_asked_for_and_the_filling_comes_first(n, shortest):
    tokens, _ = listops(100, n, np.random.default_rng(1), shortest=shortest)
    lengths = (tokens != FILL).sum(1)
    assert tokens.shape == (100, n)
    assert shortest <= lengths.min()
    for row, length in zip(tokens, lengths, strict=True):
        assert (row[: n - length] == FILL).all()
        assert (row[n - length :] != FILL).all()


def test_depth_and_arguments_stay_within_their_bounds():
    tokens, _ = listops(200, 60, np.random.default_rng(2), depth=3, most=3, nested=0.9)
    opened = np.cumsum(np.isin(tokens, (MIN, MAX)).astype(int) - (tokens == END), axis=1)
    assert opened.max() == 3
    assert (opened[:, -1] == 0).all()


def test_how_often_an_argument_is_an_expression():
    """Of the first of two arguments, where one more level is allowed and every length is taken."""
    for nested in (0.0, 0.2, 0.8):
        tokens, _ = listops(400, 10, np.random.default_rng(3), most=2, nested=nested, shortest=4)
        first = np.array([row[row != FILL][1] for row in tokens])
        assert abs(np.isin(first, (MIN, MAX)).mean() - nested) <= 0.3 * nested


def test_the_order_of_the_tokens_matters():
    """The same bag, two values."""
    assert value_of(np.array([MAX, 1, MIN, 5, 9, END, END])) == 5
    assert value_of(np.array([MAX, 9, MIN, 5, 1, END, END])) == 9


@pytest.mark.parametrize(
    "bad", [[MAX, 1, 2], [MAX, 1], [1, 2], [END], [MAX, END], [MAX, 1, FILL, 2, END], [MAX, -3, -4, END], [[3]], []]
)
def test_what_is_no_expression_is_refused(bad):
    with pytest.raises(ValueError, match="tokens: "):
        value_of(np.array(bad, np.int64))


@pytest.mark.parametrize(
    "choices", [{"shortest": 21}, {"depth": 1, "shortest": 8}, {"most": 2, "n": 6, "shortest": 5}, {"nested": 0.0}]
)
def test_expressions_that_nobody_can_draw_are_refused(choices):
    with pytest.raises(ValueError, match="shortest: no expression"):
        listops(1, choices.pop("n", 20), np.random.default_rng(0), **choices)


def test_an_operator_of_one_argument_is_refused():
    with pytest.raises(ValueError, match="most: 1 should be at least 2"):
        listops(1, 20, np.random.default_rng(0), most=1)


def test_lengths_that_are_possible_are_those_that_are_drawn():
    drawn = (listops(400, 10, np.random.default_rng(0), most=2, shortest=4).tokens != FILL).sum(1)
    assert set(drawn) == {4, 7, 10}
