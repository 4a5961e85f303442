"""Which cells of a chapter run when it is marked: those that an answer could notice, and no mark depends on the others."""

import asyncio
import copy
import importlib
import json
import re

import nbformat
import pytest

from minitransformer.book import marking
from minitransformer.book.needed import ASKS, needed, of_the_book
from minitransformer.book.running import BookError
from tests.exercises.test_exercises import CODE, pages

FIRST = "import numpy as np\n\nimport minitransformer as mt\n\nrng = np.random.default_rng(0)"
ASK = "answer = {}\nmt.check_exercise('2.1', answer)"


def ran(*cells, own=()):
    """The cells of the book that run, each up to its last line that does."""
    sources = [FIRST, *cells, *own]
    lines = needed(sources, frozenset((FIRST, *cells)))
    assert lines[1 + len(cells) :] == [source.count("\n") + 1 for source in own], "of one's own every line runs"
    return ["\n".join(source.split("\n")[:count]) for source, count in zip(sources, lines, strict=True) if count][
        : -len(own)
    ]


IMPORTS = "import numpy as np\n\nimport minitransformer as mt"


@pytest.mark.parametrize(
    ("book", "own", "runs"),
    [
        (["W = rng.normal()", "print(W)"], "[1, 2]", []),
        (["W = np.eye(2)", "W *= 2", "V = np.eye(3)"], "W + 1", ["W = np.eye(2)", "W *= 2"]),
        (["W = np.eye(2)", "V = W", "V *= 2", "print(3)"], "W + 1", ["W = np.eye(2)", "V = W", "V *= 2"]),
        (
            ["W = np.eye(2)\nprint(W)", "def f():\n    return W"],
            "f()",
            ["W = np.eye(2)\nprint(W)", "def f():\n    return W"],
        ),
        (
            ["def f():\n    return g()", "def g():\n    return 3"],
            "f()",
            ["def f():\n    return g()", "def g():\n    return 3"],
        ),
        (["from math import pi\nprint(pi)", "print(2 * pi)"], "pi", ["from math import pi"]),
        (
            ["from minitransformer.figures import save\nsave()"],
            "mt.figures",
            ["from minitransformer.figures import save"],
        ),
        (["tier = mt.backend('numpy')\nprint(tier)"], "1", ["tier = mt.backend('numpy')"]),
        (["with mt.backend('numpy'):\n    print(1)"], "1", []),
        (["for k in range(3):\n    x = k", "y = x"], "[k for k in range(3)]", []),
        (["x = [0]", "x.append(1)"], "(lambda x: x)(3)", []),
        (["x = [0]", "x.append(1)"], "(lambda y: x)(3)", ["x = [0]", "x.append(1)"]),
    ],
)
def test_a_cell_of_the_book_runs_if_an_answer_could_notice(book, own, runs):
    assert ran(*book, own=[ASK.format(own)]) == [IMPORTS, *runs]


def test_whoever_draws_numbers_gets_those_that_the_chapter_gives():
    drawn = ["X = rng.normal()", "Y = 3"]
    assert ran(*drawn, own=["mine = rng.normal()", ASK.format(1)]) == [FIRST, drawn[0]]


def test_values_of_ones_own_cell_need_no_other():
    own = "errors = []\nfor h in (1, 2):\n    x = h\n    errors.append(x)\ndef answer(X):\n    return X, errors\n"
    assert ran("x = 1", "errors = [x]", "h = 3", own=[own + "mt.check_exercise('2.1', answer)"]) == [IMPORTS]
    later = "print(errors)"
    assert ran("x = 1", "errors.append(x)", own=[own, later]) == ["x = 1", "errors.append(x)"]


@pytest.mark.parametrize(
    "own",
    [
        "globals()['W']",
        "exec('print(W)')",
        "Out[1]",
        "_",
        "%time f(W)",
        "!ls",
        "x?",
        "from module import *",
        "import sys\nsys.modules['__main__'].W",
    ],
)
def test_where_names_tell_too_little_all_cells_run(own):
    book = ["W = np.eye(2)", "print(np)"]
    assert len(ran(*book, own=[own, ASK.format(1)])) == 3


def test_what_takes_the_place_of_a_module_makes_its_name_one_of_a_value():
    book = ["print(np)", "print(mt)"]
    assert ran(*book, own=["np = None", ASK.format("np")]) == [FIRST, book[0]]
    assert ran(*book, own=["mt.check_exercise = print", ASK.format("3")]) == [IMPORTS, book[1]]
    assert ran(*book, own=["np = None", ASK.format("3")]) == [IMPORTS]


def test_a_mistake_of_syntax_needs_nothing_and_what_ipython_repairs_does():
    book = ["W = np.eye(2)"]
    assert ran(*book, own=["answer = W +\nmt.check_exercise('2.1', answer)"]) == []
    assert ran(*book, own=["  print(W)"]) == ["import numpy as np", *book]
    assert ran(*book, own=[">>> print(W)"]) == ["import numpy as np", *book]


def test_of_chapters_as_they_are_handed_out_little_runs(root):
    book = of_the_book()
    for path in root.glob("notebooks/[0-9]*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        lines = needed(sources, book)
        assert sum(count > 0 and ASKS not in source for source, count in zip(sources, lines, strict=True)) <= 2, (
            path.name
        )


def test_without_the_chapters_every_cell_runs(monkeypatch):
    def nowhere():
        raise BookError

    monkeypatch.setattr("minitransformer.book.needed.repository", nowhere)
    assert of_the_book() == frozenset()
    assert needed(["x = 1", "y = 2", "print(3)"], frozenset()) == [1, 1, 1]


def answered(root, chapter):
    """A chapter with every answer, right or wrong, that the tests know; and how many of its exercises are right at the end."""
    [path] = root.glob(f"notebooks/{chapter}_*.ipynb")
    notebook, page = nbformat.read(path, as_version=4), pages(root)[chapter]
    module = f"tests.exercises.answers_{chapter}"
    cells, expected = [], []
    for cell in notebook.cells:
        cells.append(cell)
        number = cell.cell_type == "code" and re.search(r'check_exercise\("([\d.]+)", answer\)$', cell.source)
        if not number:
            continue
        expected.append("waits")
        tried, ask = importlib.import_module(module).ANSWERS[number[1]], f"\nmt.check_exercise{number[0][14:]}"
        if folded := CODE.findall(page.solutions.get(number[1], "")):
            cells.append(nbformat.v4.new_code_cell("\n".join(folded) + ask))
            expected.append("right")
        for kind, answers in (
            ("right", [None] * ("right" in tried)),
            ("also", tried.get("also", ())),
            ("wrong", tried["wrong"]),
        ):
            for place, _ in enumerate(answers):
                which = f"ANSWERS[{number[1]!r}][{kind!r}]" + f"[{place}]" * (kind != "right")
                cells.append(nbformat.v4.new_code_cell(f"from {module} import ANSWERS\n\nanswer = {which}{ask}"))
                expected.append("not yet" if kind == "wrong" else "right")
    notebook.cells = cells
    return notebook, path, expected


def kinds(notebook):
    asking = [cell for cell in notebook.cells if cell.cell_type == "code" and "check_exercise" in cell.source]
    said = [marking.SAID.findall("".join(out.get("text", "") for out in cell.outputs)) for cell in asking]
    return [marking._kind(one[0][1]) if one else "" for one in said]


@pytest.mark.parametrize(
    "chapter", ["02", *(pytest.param(f"{k:02}", marks=pytest.mark.full) for k in range(21) if k != 2)]
)
def test_no_mark_depends_on_the_cells_that_do_not_run(chapter, root, monkeypatch):
    """In a clean kernel each answer gets what it gets where everything has run."""
    pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(root))
    notebook, path, expected = answered(root, chapter)
    before = copy.deepcopy(notebook)
    asyncio.run(marking.mark(notebook, path, of_the_book()))
    assert kinds(notebook) == expected
    emptied = [
        old.source for old, new in zip(before.cells, notebook.cells, strict=True) if old.source and not new.source
    ]
    assert len(emptied) > 15
