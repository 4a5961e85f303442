"""The numbers that chapter 19 shows: for each erratum with consequences, by how much what is printed fails and what we use holds.

The other tests in this folder tell each story in full. Here one line says which margin has to be kept.
"""

import ast
import math
import re

import numpy as np
import pytest

from minitransformer import errata

ROWS = {row.id: row for row in errata.load()}
MEASURED = [row.id for row in ROWS.values() if row.measured]
EXACT = 1e-12

HOLDS = {
    "E1": lambda r: r.printed > 0.7 and r.meant < 0.2 and r.factor == math.sqrt(r.d),
    "E4": lambda r: (r.d64, r.d512, r.d1024, r.near) == (5, 43, 68, 0),
    "E7": lambda r: r.regressed == 0 and 0.005 < r.classified < 0.1,
    "E8": lambda r: abs(r.printed - 0.5) < 1e-9 and r.meant > 0.999,
    "E9": lambda r: abs(r.printed - 0.5) < 1e-9 and r.meant > 0.999 and (r.offsets, r.buckets) == (1023, 31),
    "E11": lambda r: r.printed > 0.8 and r.meant < 0.2,
    "E13": lambda r: r.relative_span > r.absolute_span + 0.01 and r.absolute_order > r.relative_order + 0.2,
    "E14": lambda r: r.outside > 0.2,
    "E17": lambda r: r.from_average < EXACT and r.error > 0.1,
    "E21": lambda r: r.weights == 0 and r.output > 0.5,
    "E22": lambda r: abs(r.printed - 12) < EXACT and abs(r.meant - 6) < EXACT,
    "E23": lambda r: abs(r.border - 18) < EXACT and r.rest < EXACT,
    "E24": lambda r: r.missed > 0.5 and (r.printed, r.meant) == (3, 12),
    "E25": lambda r: r.printed == 0 and r.low < -1 and r.high > 2,
    "E26": lambda r: 0 < r.ahead < 1 and (r.tasks, r.of) == (4, 5) and r.behind > 2 * r.ahead,
    "E73": lambda r: (r.printed, r.meant, r.of) == (100, 0, 100),
    "E75": lambda r: (r.short, r.long, r.times) == (1024, 16384, 16),
    "E27": lambda r: r.printed < -30 and r.meant < EXACT,
    "E28": lambda r: (
        r.large > 9.9 and r.small < 0.11 and abs(r.large_meant - 1) < 1e-3 and abs(r.small_meant - 1) < 0.1
    ),
    "E29": lambda r: (r.undefined, r.second, r.itself) == (1, 1, 0),
    "E30": lambda r: r.printed < 1.25 * r.average and r.meant > 5 * r.average,
    "E31": lambda r: r.error > 0.5,
    "E33": lambda r: r.sum < 0.5 and r.leaked > 0.05 and r.meant == 0,
    "E34": lambda r: r.error > 0.5,
    "E35": lambda r: r.low < 0.8 and r.high > 1.5,
    "E37": lambda r: r.without > 2 * r.eps and r.with_mean < r.eps / 2,
    "E38": lambda r: (r.ahead, r.of) == (1, 6) and 0 < r.best - r.roberta < 0.1,
    "E39": lambda r: r.spread > 0.3 and r.ratio < 0.75,
    "E40": lambda r: (r.blocks3, r.tokens3, r.blocks4, r.tokens4) == (3, 3, 3, 5),
    "E42": lambda r: r.printed > 0.65 and r.meant < 0.5,
    "E45": lambda r: abs(r.printed * 16 - 1) < 0.03 and abs(r.meant - 1) < 0.03,
    "E46": lambda r: abs(r.row - 2 / 6.5) < EXACT and r.blocks > 0.7,
    "E47": lambda r: (r.brackets, r.meant, r.length) == (12, 48, 144),
    "E48": lambda r: r.ahead > 100 and r.missed > 100 and r.of == 465 and r.meant == 0,
    "E49": lambda r: r.meant == r.n * r.B and r.printed == r.B**2,
    "E50": lambda r: r.printed > 0.85 and r.meant < 0.15,
    "E52": lambda r: r.meant < r.same < r.adjacent,
    "E53": lambda r: r.printed > 0.8 and r.meant == 0,
    "E54": lambda r: r.error > 0.5,
    "E57": lambda r: r.rows == 0 and r.values < EXACT and r.gradient > 0.05,
    "E58": lambda r: r.printed == 1 and r.low < r.high < r.all,
    "E59": lambda r: r.printed > 3 * r.meant,
    "E77": lambda r: r.before < 0.02 and r.after > 0.1,
    "E78": lambda r: r.moved == 0 and r.queries > 0.1,
    "E61": lambda r: np.allclose((r.sum, r.printed, r.meant), (0.45, 0.405, 0.04)),
    "E62": lambda r: r.convention > 0.5 and r.unread == 0 and r.read > 0.1,
    "E64": lambda r: r.printed == 0 and r.meant > 0.1,
    "E65": lambda r: (r.channels, r.of) == (24, 64) and r.twice > 2 * r.bits,
    "E66": lambda r: r.printed == 0 and r.meant > 0.3,
    "E80": lambda r: r.states > 0.3 and (round(r.cell, 1), r.tokens, round(r.average, 3)) == (9, 9, 1),
    "E67": lambda r: (r.printed, r.meant) == (3, 5),
    "E68": lambda r: abs(r.printed - 0.5) < 1e-9 and r.other < 0.004 and r.gradients > 50 and 1e-6 < r.ordinary < 1e-5,
    "E69": lambda r: abs(r.printed * r.d - 1) < 0.1 and abs(r.meant - 1) < 0.1,
    "E70": lambda r: r.changed < EXACT and r.printed < 0.2 and r.meant > 0.99,
}


class Numbers:
    """The numbers of a reading as attributes."""

    def __init__(self, numbers):
        self.__dict__.update(numbers)


@pytest.fixture(scope="module")
def readings():
    return errata.measure()


def test_every_erratum_with_consequences_has_a_margin():
    assert list(HOLDS) == MEASURED


@pytest.mark.parametrize("name", MEASURED)
def test_what_is_printed_fails_by_a_margin_and_what_we_use_holds(name, readings):
    numbers, error = readings[name]
    assert HOLDS[name](Numbers(numbers)), numbers
    assert error is None or error > 0.1, "both readings give nearly the same"
    assert all(np.isfinite(float(value)) for value in numbers.values())


def test_a_sentence_has_its_numbers_and_they_are_the_same_each_time(readings):
    for name in readings:
        told = ROWS[name].consequence()
        assert told == ROWS[name].consequence(readings[name]), "measured twice, and not the same"
        assert not re.search(r"[{}]", told)
        assert re.search(r"\d", told)


def test_the_story_of_each_has_four_parts(root):
    for name in MEASURED:
        file, _, test = ROWS[name].test.partition("::")
        body = ast.parse((root / file).read_text(encoding="utf-8")).body
        (function,) = (node for node in body if isinstance(node, ast.FunctionDef) and node.name == test)
        where, *parts = ast.get_docstring(function).splitlines()
        assert ROWS[name].source in where, test
        assert [line[:9].strip() for line in parts if line[:9].strip()] == ["printed", "wrong", "holds"], test


def test_a_matter_of_wording_is_not_measured():
    for row in ROWS.values():
        if not row.measured:
            assert row.consequence() == row.wrong
            with pytest.raises(AttributeError):
                row.reading()


@pytest.mark.parametrize("source", dict.fromkeys(row.source for row in ROWS.values()))
def test_a_page_shows_each_with_its_links(source, root, readings):
    shown = errata.entries(source, readings)
    text = shown._repr_markdown_()
    for e in shown.errata:
        assert f"**{e.id} · " in text
        assert e.id in repr(shown)
    links = re.findall(r"\]\(([^)]+)\)", re.sub(r"\$[^$]*\$", "", text))
    assert len(links) == sum(1 + bool(e.test) for e in shown.errata)
    assert all((root / "notebooks" / link).exists() for link in links)
    words = re.sub(r"\$[^$]*\$", "", text)
    assert not re.search(r"(?<!\\)_", re.sub(r"\]\([^)]*\)", "", words)), "would be read as an emphasis"
