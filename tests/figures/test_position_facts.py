"""The table of encodings: what the chapter says of it, and that the answers are those of the code."""

import numpy as np
import pytest

import minitransformer as mt
from minitransformer.attention import MultiHeadAttention
from minitransformer.backend import available
from minitransformer.figures import position_facts
from minitransformer.positions import AT_EMBEDDING, IN_ATTENTION, place


@pytest.fixture(scope="module")
def facts():
    return {f.name: f for f in position_facts.data()}


def test_every_name_is_there(facts):
    assert set(facts) == {*AT_EMBEDDING, *IN_ATTENTION} - {"none"}


def test_where_they_act(facts):
    assert facts["shaw"].acts_on == ("scores", "values")
    assert facts["relative keys"].acts_on == ("scores",)
    assert facts["rope"].acts_on == ("queries and keys",)
    assert {f.acts_on for name, f in facts.items() if name in AT_EMBEDDING} == {("embeddings",)}


def test_who_knows_the_offset_only(facts):
    """At |L| = 24, and 128 tokens: FIRE squeezes."""
    places = {name for name, f in facts.items() if not f.offset_only}
    assert places == {"sinusoidal", "learnable sinusoids", "learned", "tupe", "fire"}


def test_who_has_a_table_that_ends(facts):
    assert {name for name, f in facts.items() if not f.longer} == {"learned", "tupe"}


def test_who_is_fused(facts):
    assert {name for name, f in facts.items() if f.fused} == {*AT_EMBEDDING, "t5", "alibi", "kerple", "rope"} - {"none"}


@pytest.mark.skipif("numba" not in available(), reason="needs the fused loops")
@pytest.mark.parametrize("name", IN_ATTENTION)
def test_what_the_fused_ones_remember_grows_with_n(facts, name):
    """From 128 tokens to 1024 it is eight times as much; where scores are formed it grows faster."""
    e, rng = place(name, width=64, heads=4, longest=1024).in_attention, np.random.default_rng(0)
    remembered = []
    for n in (128, 1024):
        Q, K, V = rng.standard_normal((3, 4, n, 16), np.float32)
        with mt.backend("numba"):
            _, pullback = e(e.init(rng), Q, K, V)
        remembered.append(mt.tree_bytes(pullback))
    growth = remembered[1] / remembered[0]
    assert growth < 8.1 if facts[name].fused else growth > 12


@pytest.mark.parametrize("name", ["shaw", "t5", "kerple", "transformer-xl", "deberta", "tupe", "rope", "fire"])
def test_numbers_are_those_of_the_layers(facts, name):
    """Six layers of attention with the encoding, less six without; and what is shared counted once."""
    rng = np.random.default_rng(0)
    e = place(name, width=64, heads=4, longest=128).in_attention
    params = MultiHeadAttention(64, 4, position=e).init(rng)
    plain = MultiHeadAttention(64, 4).init(rng)
    one = mt.tree_size(params) - mt.tree_size(plain)
    shared = sum(mt.tree_size(getattr(params.position, part)) for part in facts[name].shared)
    assert facts[name].numbers == 6 * one - 5 * shared


def test_the_table_has_a_line_for_each(facts):
    lines = position_facts.table(list(facts.values())).split("\n")
    assert len(lines) == 1 + len(facts)
    assert "129?" in lines[0]
    assert next(line for line in lines if line.startswith("t5 ")).split() == [
        "t5",
        "scores",
        "128",
        "yes",
        "yes",
        "yes",
        "table",
    ]
