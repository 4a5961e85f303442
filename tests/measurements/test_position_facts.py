"""The table of encodings: its terms are those of the code, and what the chapter says of it holds."""

import numpy as np
import pytest

import minitransformer as mt
from minitransformer.attention import MultiHeadAttention, SoftmaxAttention, attend
from minitransformer.backend import available
from minitransformer.experiments.positions import TABLES
from minitransformer.measurements import position_facts
from minitransformer.measurements.position_facts import WRITTEN, kind_of, terms_of
from minitransformer.positions import AT_EMBEDDING, IN_ATTENTION, four_terms, place


@pytest.fixture(scope="module")
def facts():
    return position_facts.data()


def kind_written(term):
    if term == "–":
        return "nothing"
    if "[i]" in term or "[j]" in term:
        return "places"
    return "offset" if "[o]" in term or "|o|" in term else "words"


def test_every_name_is_there(facts):
    assert set(facts) == set(WRITTEN) == {*AT_EMBEDDING, *IN_ATTENTION}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_what_the_code_does(facts, name):
    *terms, values = WRITTEN[name]
    assert tuple(map(kind_written, terms)) == facts[name].kinds
    assert facts[name].values == (values != "v")


def test_silencing_takes_the_four_terms_apart():
    rng = np.random.default_rng(0)
    Q, K, Pi_q, Pi_k = rng.standard_normal((4, 5, 3))
    found = terms_of(lambda Q, K: (Q + Pi_q) @ (K + Pi_k).T, Q, K)
    for term, expected in zip(found, (Q @ K.T, Q @ Pi_k.T, Pi_q @ K.T, Pi_q @ Pi_k.T), strict=True):
        np.testing.assert_allclose(term, expected, atol=1e-13)
    X, Pi = rng.standard_normal((2, 5, 3))
    S, pullback = four_terms(X, Pi, np.eye(3), np.eye(3), scale=1.0)
    found = terms_of(lambda Q, K: (Q + Pi) @ (K + Pi).T, X, X)
    np.testing.assert_allclose(found, [pullback.cc, pullback.cp, pullback.pc, pullback.pp], atol=1e-13)
    np.testing.assert_allclose(sum(found), S, atol=1e-13)


def test_the_kind_of_a_term():
    i, j = np.indices((4, 4))
    for term, kind in ((0 * i, "nothing"), (0 * i + 2, "words"), (j - i, "offset"), (i * j, "places")):
        assert kind_of(term.astype(float)) == kind


def test_what_scores_are_divided_by(facts):
    """√d as a rule; T5 and TENER by nothing, two terms of variance d by √2d, three by √3d."""
    others = {name: f.divisor for name, f in facts.items() if f.divisor != 1}
    assert others == {"t5": 0, "tener": 0, "tupe": 2, "deberta": 3}


def test_who_knows_the_offset_only(facts):
    """At n₀ = 24, and 128 tokens: FIRE squeezes. In a picture an offset in the line is one or two in the grid."""
    places = {name for name, f in facts.items() if not f.offset_only}
    assert places == {"sinusoidal", "learnable sinusoids", "learned", "tupe", "fire", "grid"}


def test_who_has_a_table_that_ends(facts):
    assert {name for name, f in facts.items() if not f.longer} == {*TABLES, "grid"}


def test_who_does_not_form_the_scores(facts):
    formed = {name for name, f in facts.items() if f.forms_scores}
    assert set(facts) - formed == {*AT_EMBEDDING, "t5", "alibi", "kerple", "rope"}


@pytest.mark.skipif("numba" not in available(), reason="needs the fused loops")
@pytest.mark.parametrize("name", IN_ATTENTION)
def test_what_is_remembered_grows_with_n_unless_scores_are_formed(facts, name):
    """From 128 tokens to 1024 it is eight times as much; where scores are formed it grows faster."""
    e, rng = place(name, width=64, heads=4, longest=1024).in_attention, np.random.default_rng(0)
    remembered = []
    for n in (128, 1024):
        Q, K, V = rng.standard_normal((3, 4, n, 16), np.float32)
        with mt.backend("numba"):
            _, pullback = attend(e, e.init(rng), Q, K, V)
        remembered.append(mt.tree_bytes(pullback))
    growth = remembered[1] / remembered[0]
    assert growth > 12 if facts[name].forms_scores else growth < 8.1


@pytest.mark.parametrize("name", ["shaw", "t5", "kerple", "transformer-xl", "deberta", "tupe", "rope", "fire"])
def test_numbers_are_those_of_the_layers(facts, name):
    """Six layers of attention with the encoding, less six without; and what is shared counted once."""
    rng = np.random.default_rng(0)
    e = place(name, width=64, heads=4, longest=128).in_attention
    params = MultiHeadAttention(64, 4, core=SoftmaxAttention(encoding=e)).init(rng)
    plain = MultiHeadAttention(64, 4).init(rng)
    one = mt.tree_size(params) - mt.tree_size(plain)
    shared = sum(mt.tree_size(getattr(params.core, part)) for part in facts[name].shared)
    assert facts[name].numbers == 6 * one - 5 * shared


def test_the_table_has_a_line_for_each_and_marks_what_is_new(facts):
    lines = position_facts.table(facts, ["sinusoidal", "t5"], new=["t5"]).split("\n")
    assert len(lines) == 3
    assert "129?" in lines[0]
    assert lines[1].split()[:2] == ["sinusoidal", "√d"]
    assert lines[2].split() == "→ t5 1 q·k – – b[o] v 128 yes yes no".split()  # noqa: SIM905
    lines = position_facts.table(facts, ["tupe", "deberta", "none"]).split("\n")
    assert [line.split()[1] for line in lines[1:]] == ["√2d", "√3d", "√d"]


def test_what_is_shared_is_there(facts):
    """A parameter that an encoding does not have in this form is none that its layers share."""
    shared = {name: f.shared for name, f in facts.items() if f.shared}
    assert shared == {
        "t5": ("table",),
        "tupe": ("table", "gamma", "beta", "U_q", "U_k"),
        "transformer-xl": ("u", "v"),
        "deberta": ("P",),
    }
