"""Every gap and every dangling name of the list of errata is found."""

import json

import pytest

from minitransformer.book import errata
from minitransformer.errata import load

ROW = {
    "name": "a sum for a mean",
    "source": "Lecture notes",
    "place": "layer normalisation",
    "severity": "A",
    "printed": "a sum",
    "wrong": "It is {printed:.0f}.",
    "holds": "a mean",
    "test": "tests/errata/test_lecture.py::test_E1_a_sum",
    "chapter": "03_the_transformer",
}
BOX = "Text.\n\n> **Erratum** · Lecture notes <br>\n> A sum. <br>\n> [test](../tests/errata/test_lecture.py)\n\nMore."


def write(root, **rows):
    tables = (
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(v)}\n" for key, v in row.items()) for name, row in rows.items()
    )
    (root / errata.IN_REPOSITORY).write_text("\n".join(tables), encoding="utf-8")


@pytest.fixture
def root(tmp_path):
    """A repository with one row, which has everything it names."""
    for part in ("minitransformer/errata", "notebooks", "tests/errata"):
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / "tests/errata/test_lecture.py").write_text("def test_E1_a_sum(): pass\n\ndef helper(): pass\n")
    cells = [{"cell_type": "markdown", "source": BOX}]
    (tmp_path / "notebooks/03_the_transformer.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")
    write(tmp_path, E1=ROW)
    return tmp_path


def test_the_list_of_the_book_is_whole(pytestconfig):
    assert errata.check(pytestconfig.rootpath) == []
    assert {row.id for row in load()} >= {f"E{k}" for k in range(1, 73)}


def test_a_whole_row_is_no_problem(root):
    assert errata.check(root) == []


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("source", "A newspaper", "A newspaper is no source"),
        ("severity", "D", "its severity is 'D', and should be A, B or C"),
        ("severity", "C", "a matter of wording has no number"),
        ("wrong", "It is wrong.", "it says no number"),
        ("test", "", "it has no test"),
        ("test", "tests/errata/test_lecture.py::test_E1_other", "no test tests/errata/test_lecture.py::test_E1_other"),
        ("test", "tests/errata/test_none.py::test_E1_a_sum", "no box in 03_the_transformer links"),
        ("chapter", "03_none", "no notebook 03_none"),
    ],
)
def test_what_does_not_fit_is_found(root, field, value, problem):
    write(root, E1={**ROW, field: value})
    assert any(line.startswith("E1: ") and problem in line for line in errata.check(root)), errata.check(root)


def test_a_gap_and_a_test_without_a_row_are_found(root):
    write(root, E1=ROW, E3=ROW)
    assert "E2 is missing" in errata.check(root)
    (root / "tests/errata/test_new.py").write_text("def test_E7_new(): pass\n")
    assert "tests/errata/test_new.py::test_E7_new: no row has this number" in errata.check(root)


@pytest.mark.parametrize("text", ["[E1\n", "[E1]\nsource = 'x'\n", "[E1]\nsource = 1\n"])
def test_a_malformed_list_is_one_clear_error(root, text):
    path = root / errata.IN_REPOSITORY
    path.write_text(text)
    with pytest.raises(ValueError, match=r"^errata\.toml: "):
        load(path)
