"""The table of chapter 20: what it counts and whom it compares, by hand."""

import math

import numpy as np
import pytest

import minitransformer as mt
from minitransformer.attention.registry import EXAMPLE, attention_of
from minitransformer.experiments import which, which_cost
from minitransformer.experiments.table import BOTH, Row, Table, table
from minitransformer.pullback import tree_get

SOFTMAX = attention_of("softmax", EXAMPLE)


def cost(*seconds):
    return {n: which_cost.Cost([t, t], [t, t], [1.0, 1.0]) for n, t in zip(which_cost.LENGTHS, seconds, strict=True)}


def test_noise_is_two_standard_errors_of_a_difference():
    scores = {"a": (0.1, 0.2, 0.3), "b": (0.5, 0.5, 0.8), "bag": (0.0, 0.0, 0.0)}
    a, b, bag = (Row(name, SOFTMAX, scores={"recall": of}) for name, of in scores.items())
    variance = (0.01 + 0.03 + 0) / 3
    assert Table({"a": a, "b": b}, a, bag, "").noise("recall") == pytest.approx(2 * math.sqrt(2 * variance / 3))


def test_what_a_kind_cannot_do_is_said_in_a_few_words():
    said = {row.name: row.cannot for row in table().rows.values()}
    longer = "read more than it was made for"
    assert said["softmax"] == said["linear"] == said["bigbird"] == ""
    assert said["fnet"] == said["etc"] == "be causal"
    assert said["delta"] == said["pooled"] == "look ahead"
    assert said["gmlp"] == said["cosformer"] == longer
    assert said["linformer"] == f"be causal; {longer}"
    assert said["reformer"] == "choose its keys without looking ahead; decode from a state"


def test_the_spread_goes_from_the_worst_seed_to_the_best():
    row = Row("x", SOFTMAX, scores={"text": (2.5, 2.0, 2.1)})
    assert row.spread("text") == pytest.approx(0.5)
    assert row.spread("recall") is None


def test_it_pays_forwards_and_not_with_the_way_back():
    dense, row = (
        Row(name, SOFTMAX, {n: which_cost.Cost(t, t, [1.0, 1.0]) for n in which_cost.LENGTHS})
        for name, t in (("softmax", [1.0, 1.0]), ("x", [0.5, 2.0]))
    )
    said = Table({"softmax": dense, "x": row}, dense, dense, "").paying(row)
    assert said == "forwards from 1,024 tokens on; with the backward pass never, up to 65,536"


def test_the_slope_leaves_out_the_first_length():
    first, *rest = (100.0, *(4.0**k for k in range(len(which_cost.LENGTHS) - 1)))
    assert Row("x", SOFTMAX, cost(first, *rest)).slope(BOTH) == pytest.approx(1)


def test_of_two_that_take_as_long_the_better_one_is_in_front():
    same = cost(*[1.0] * len(which_cost.LENGTHS))
    rows = {name: Row(name, SOFTMAX, same, "", {"recall": (s,) * 3}) for name, s in (("worse", 0.5), ("better", 0.9))}
    found = Table(rows, rows["better"], Row("bag", SOFTMAX, scores={"recall": (0.1,) * 3}), "")
    assert [row.name for row in found.front(list(found), 1024, BOTH)] == ["better"]


def test_who_looks_ahead_and_who_is_compared_with_whom():
    found = table()
    ahead = {row.name for row in found if "choose its keys without looking ahead" in row.cannot}
    assert ahead == {row.name for row in found if row.part.looks_ahead} != set()
    assert found.dense(found.rows["fnet"]) is found.both_sides
    assert found.dense(found.rows["linear"]) is found.rows["softmax"]


def test_what_never_is_causal_keeps_nothing():
    rows = table().rows
    assert rows["fnet"].state == "nothing: it can't write"
    assert rows["softmax"].state == "keys and values"


def test_what_is_held_out_has_its_own_seed():
    for name in ("recall", "listops"):
        task = which.TASKS[name]
        same = task.batch(task.judged, np.random.default_rng(2**32))
        assert all(np.array_equal(a, b) for a, b in zip(task.held_out(), same, strict=True))


def test_a_table_that_is_frozen_is_not_learned():
    model = which.model_of(which.BAG, which.TASKS["listops"])
    params = model.init(np.random.default_rng(0))
    frozen = sum(mt.tree_size(tree_get(params, path)) for path in model.untrained)
    assert which.learned(model) == mt.tree_size(params) - frozen < mt.tree_size(params)
