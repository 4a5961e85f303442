"""Every exercise with a checker: right answers pass, at least three wrong ones do not, and the page shows what it should.

Every hint of a checker is said for one of the wrong answers, or the test names it.

`answers_02.py` holds, for each exercise of chapter 02, wrong answers, the right one where the page has no folded solution,
and others that are as right.
"""

import ast
import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import minitransformer as mt
from minitransformer.exercises.check import (
    CHECKERS,
    NotYet,
    Untried,
    choice,
    close,
    derivative,
    exercise,
    expect,
    hint_for,
    numbers,
    several,
    unless,
    with_pullback,
    yes_or_no,
)
from tests.fresh_python import fresh_python

HERE = Path(__file__).parent
TASK = re.compile(r"^\*\*(\d+\.\d+)\*\* (★+) (\d+) min", re.MULTILINE)
SOLUTION = re.compile(r"<summary>Solution of (\d+\.\d+)</summary>(.*?)</details>", re.DOTALL)
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
SENTENCE = (ast.Constant, ast.JoinedStr)
CALL = re.compile(r'mt\.check_exercise\("(\d+\.\d+)", answer\)$')


class Page(NamedTuple):
    tasks: list[str]
    cells: dict[str, Any]
    solutions: dict[str, str]


def pages(root):
    """The exercises of each chapter that has them."""
    found = {}
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        words = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        code = {}
        for cell in cells:
            if cell["cell_type"] == "code" and (call := CALL.search("".join(cell["source"]))):
                code[call[1]] = cell
        tasks = [number for number, _, _ in TASK.findall(words)]
        if tasks:
            found[path.name[:2]] = Page(tasks, code, dict(SOLUTION.findall(words)))
    return found


def answers():
    found = {}
    for path in sorted(HERE.glob("answers_*.py")):
        found |= importlib.import_module(f"tests.exercises.{path.stem}").ANSWERS
    return found


def folded(solution):
    """What the code of a folded solution calls `answer`."""
    names = {"np": np, "mt": mt}
    for code in CODE.findall(solution):
        exec(code, names)
    return names.get("answer")


def told(what):
    """Numbers in a hint, or among right answers, that cannot stand there by chance: 10 and more, or no whole ones."""
    if isinstance(what, str):
        what = re.findall(r"\d+\.?\d*", what)
    else:
        what = [
            x
            for answer in what
            if not callable(answer) and np.asarray(answer).dtype.kind in "if"
            for x in np.ravel(answer)
        ]
    return {f"{float(x):.3g}" for x in what if abs(float(x)) >= 10 or float(x) % 1}


def hints_in(checker):
    """The sentences in a checker, each as the parts of it that are always the same."""
    definition = ast.parse(inspect.getsource(checker)).body[0]
    words = ast.walk(ast.Module(definition.body[1:], []))  # without the docstring
    texts = [node.values if isinstance(node, ast.JoinedStr) else [node] for node in words if isinstance(node, SENTENCE)]
    parts = [[str(one.value) for one in text if isinstance(one, ast.Constant)] for text in texts]
    return [hint for hint in parts if len(" ".join(hint).split()) > 2]


@pytest.mark.parametrize("number", numbers())
def test_right_answers_pass_and_wrong_ones_do_not(number, root):
    tried = answers()[number]
    solution = next((page.solutions[number] for page in pages(root).values() if number in page.solutions), "")
    known = (folded(solution), tried.get("right"), *tried.get("also", ()))
    right = [answer for answer in known if answer is not None]
    assert right, f"{number}: no right answer, folded or in answers_*.py"
    for answer in right:
        assert hint_for(number, answer) is None
    assert len(tried["wrong"]) >= 3
    said = []
    for answer in tried["wrong"]:
        hint = hint_for(number, answer)
        assert len((hint or "").split()) > 3, f"{number}: {answer!r} passes, or the hint says nothing"
        assert not told(hint) & told(right), f"{number}: {hint!r} holds the answer"
        said.append(hint)
    for parts in hints_in(CHECKERS[number]):
        assert any(all(part in hint for part in parts) for hint in said), f"{number}: nobody is told {parts}"
    with pytest.raises(Untried):
        hint_for(number, ...)


def test_each_page_has_its_exercises(root):
    found = pages(root)
    for chapter, page in found.items():
        assert page.tasks == [f"{int(chapter)}.{place + 1}" for place in range(len(page.tasks))]
        assert 8 <= len(page.tasks) <= 10, chapter
        assert 2 * len(page.solutions) >= len(page.tasks), f"{chapter}: solutions for half of them"
        assert len(page.tasks) - len(page.cells) <= 1, f"{chapter}: all but the open one have a checker"
        for number, cell in page.cells.items():
            assert "".join(cell["outputs"][0]["text"]) == f"Exercise {number} waits for your answer.\n", number
    assert {number for page in found.values() for number in page.cells} == set(numbers())


def test_a_few_exercises_of_each_page_can_be_handed_in(root):
    """TEACHING.md says how many have no folded solution; the open ones have no checker either."""
    for stem, page in pages(root).items():
        assert 1 <= len(page.cells.keys() - page.solutions.keys()) <= 3, stem


def test_an_answer_that_changes_what_it_was_given_is_told_so():
    right = answers()["16.4"]["right"]

    def answer(X, s, r):
        s[:] = right(X, s, r)
        return s

    def of_a_list(owners, mask):
        owners[0][0] += 1
        return 1.0

    def of_a_pair(Y_1, L_1, Y_2, L_2):
        def pullback(d):
            found = in_lists(d)
            d[1][:] = 0
            return found

        value, in_lists = answers()["17.8"]["right"](Y_1, L_1, Y_2, L_2)
        return value, pullback

    for number, changes in (("12.6", of_a_list), ("17.8", of_a_pair)):
        assert "changed an array that it was given." in hint_for(number, changes)
    assert hint_for("16.4", right) is None
    assert hint_for("16.4", answer).startswith("Your function changed an array that it was given.")


def test_a_cell_waits_as_the_page_has_it(root, capsys):
    for page in pages(root).values():
        for number, cell in page.cells.items():
            exec("".join(cell["source"]), {"np": np, "mt": mt})
            assert capsys.readouterr().out == f"Exercise {number} waits for your answer.\n"


def forgotten(X):
    """X, doubled."""
    X + X


def without_a_way_back(X, W):
    def pullback(dY):
        dY @ W.T

    return X @ W, pullback


def test_a_function_that_returns_none_is_told_so():
    def dots(X):
        """The mask."""
        ...

    def nothing(X):
        pass

    for answer in (None, ..., [..., None], dots, nothing, lambda X: ..., lambda X: [None, ...]):
        with pytest.raises(Untried):
            hint_for("2.4", answer)
    assert hint_for("2.4", forgotten) == "Your function forgotten returned None; is there a `return`?"
    assert hint_for("2.4", lambda s: print(end="")) == "Your function returned None; is there a `return`?"
    assert hint_for("0.5", without_a_way_back) == "Your function pullback returned None; is there a `return`?"
    one = hint_for("0.5", lambda X, W: (X @ W, lambda dY: (dY @ W.T, None)))
    assert one == "Your function returned None as one of 2 things."


def test_what_a_reader_sees(capsys):
    mt.check_exercise(numbers()[0], ...)
    assert "waits for your answer" in capsys.readouterr().out
    for unknown, there in (
        ("99.1", "0.1, 0.2"),
        ("2.10", "there are 2.1, "),
        ("two", "0.1, 0.2"),
    ):
        with pytest.raises(ValueError, match=f"no exercise {unknown!r} with a checker.* {there}"):
            mt.check_exercise(unknown, 1)
    with pytest.raises(TypeError, match=r'^number: 2\.1 should be text, as "2\.1"$'):
        mt.check_exercise(2.1, 3)  # 2.10 is the same number
    with pytest.raises(TypeError, match=r'^number: \[1, 2\] should be text, as "2\.1"$'):
        mt.check_exercise([1, 2], "2.1")  # the other way round


def test_a_checker_is_imported_with_its_chapter_alone():
    code = """
import sys, minitransformer as mt
mt.check_exercise("4.3", 16)
print(*sorted(name for name in sys.modules if "exercises.chapter" in name))
"""
    assert fresh_python(code) == "Exercise 4.3 is right.\nminitransformer.exercises.chapter_04\n"


def own_error(*_):
    raise TypeError("of the reader's own function")


def outer_error(*given):
    return own_error(*given)


def test_an_error_of_the_readers_own_shows_their_lines_alone(capsys):
    def without_message(*_):
        raise ValueError

    for number, answer, said, lines in (
        ("2.4", own_error, "TypeError in line 0: of the reader's own function", 1),
        ("2.6", lambda *_: outer_error(), "TypeError in line 0: of the reader's own function", 3),
        ("0.5", lambda X, W: (X @ W, lambda dY: unknown), "NameError in line 0: name 'unknown' is not defined", 1),
        ("2.4", lambda s: next(iter(())), "StopIteration in line 0", 1),
        ("2.4", without_message, "ValueError in line 0", 1),
        ("2.6", lambda Q, heads: mt.functional.softmax("no"), None, 1),
        ("2.6", lambda Q, heads: np.linalg.inv(Q), None, 1),
    ):
        mt.check_exercise(number, answer)
        first, *rest = capsys.readouterr().out.splitlines()
        assert first.startswith(f"Exercise {number}, not yet: Your function raised ")
        assert said is None or re.sub(r"line \d+", "line 0", first).endswith(f" raised {said}")
        frames = [line for line in rest if line.startswith("  File ")]
        assert [Path(__file__).name in frame for frame in frames] == [True] * lines, rest


@pytest.mark.parametrize("number", ["7.6", "8.3", "9.1", "10.3"])
def test_rows_of_different_lengths_are_told_in_our_words(number, capsys):
    mt.check_exercise(number, [[1, 2], [3]])
    assert capsys.readouterr().out == (
        f"Exercise {number}, not yet: The rows of your answer differ in length, and make no array of numbers.\n"
    )


def test_what_a_checker_cannot_read_is_told_in_one_line(capsys):
    cells = {
        "0.3": 10**400,
        "2.6": lambda X: X,
        "7.8": lambda A: np.zeros(1),
        "13.8": np.nan,
    }
    for number, answer in cells.items():
        mt.check_exercise(number, answer)
        told = capsys.readouterr().out
        assert told.startswith(f"Exercise {number}, not yet: That is not of the form that is asked for (")
        assert told.count("\n") == 1, told


def test_an_answer_of_another_kind_gets_a_hint():
    assert "A function is wanted" in hint_for("2.4", [True, False])
    with pytest.raises(TypeError, match="of the reader's own"):
        hint_for("2.4", own_error)
    assert hint_for("2.3", np.array([True, False, False, False, True])) is None
    assert hint_for("10.4", "A, d") is None
    for number in ("0.7", "7.5", "7.8", "11.4", "11.5"):
        for found in ("no", (np.eye(2), np.eye(3))):
            assert "Numbers are wanted here" in hint_for(number, lambda *_, found=found: found)
    rows = [np.ones(3), np.nan]  # the mean of no rows is a single number
    assert hint_for("14.5", lambda *_: rows).startswith(
        "Numbers are wanted here, and the rows of this differ in length."
    )


def test_nan_is_called_by_its_name():
    """A checker that counts, compares or sorts would say something else about it, which is not true."""
    hint = "There is NaN in {0} of {0} places. 0/0 gives that, ∞ − ∞, and the logarithm of a negative number."
    for number, shape in {"1.1": 5, "2.2": 4, "3.1": (2, 4), "5.9": 4}.items():
        nan = np.full(shape, np.nan)
        assert hint_for(number, nan) == hint.format(nan.size)
    for number, shape in {"1.6": (2, 2), "3.6": 4, "5.6": (5, 6), "5.7": (4, 8), "7.8": (6, 6)}.items():
        nan = np.full(shape, np.nan)
        assert hint_for(number, lambda *_, nan=nan: nan) == hint.format(nan.size)
    assert hint_for("4.6", lambda D, o: np.full((2, D, D), np.nan).tolist()) == hint.format(256)


def test_complex_numbers_are_no_answer():
    """NumPy drops the imaginary part, with a warning that a student may not see."""
    whole = {"0.1": np.array([[8, 1], [11, -6]]) + 1j, "4.3": 16 + 0j, "9.2": lambda C: np.complex128((1 - 1 / C) ** C)}
    for number, answer in whole.items():
        assert "Real numbers are wanted" in hint_for(number, answer)


def test_a_pullback_of_the_package_is_an_answer():
    from minitransformer.functional import linear

    assert hint_for("0.5", lambda X, W: (linear(X, W)[0], lambda dY: linear(X, W)[1](dY)[:2])) is None
    with_pullback(lambda X: linear(X, X), np.eye(2))
    with_pullback(lambda X: [*linear(X, X)], np.eye(2))
    for found in (1.0, (1.0, 2.0), np.zeros(2)):
        with pytest.raises(
            NotYet, match=r"^The function should return its value and a pullback, which can be called; "
        ):
            with_pullback(lambda found=found: found)


def test_a_gradient_need_not_keep_float32():
    def wide(X):
        return np.sin(X), lambda dY: (dY * np.cos(X)).astype(np.float64) * np.ones(X.shape)

    derivative(wide, np.random.default_rng(0).standard_normal((2, 3)), hint="")
    with pytest.raises(NotYet, match="rounded, to float32"):
        derivative(
            lambda X: (np.float32(np.sin(X)), wide(X)[1]), np.random.default_rng(0).standard_normal((2, 3)), hint=""
        )
    with pytest.raises(NotYet, match="rounded, to float32"):  # on the way, though it ends in float64
        derivative(
            lambda X: (np.sin(X.astype(np.float32)).astype(float), wide(X)[1]),
            np.random.default_rng(0).standard_normal((2, 3)),
            hint="",
        )
    with pytest.raises(NotYet, match=r"A hint. The checker says"):
        derivative(lambda X: (np.sin(X), np.cos), np.random.default_rng(0).standard_normal((2, 3)), hint="A hint.")


def test_a_loop_may_collect_rows_in_lists():
    """Of a value that is compared this has always been right."""
    X, w = np.random.default_rng(0).standard_normal((3, 4)), np.random.default_rng(1).standard_normal(4)
    derivative(lambda X: ([*np.sin(X)], lambda dY: (dY * np.cos(X)).tolist()), X, hint="")
    derivative(lambda X, w: ((X * w).tolist(), lambda dY: [[*(dY * w)], [*(dY * X).sum(0)]]), X, w, hint="")
    derivative(lambda X: (([*X], X.sum()), lambda d: [*(d[0] + d[1])]), X, hint="")
    derivative(lambda X: ([X.tolist(), [*X.sum(0)]], lambda d: d[0] + d[1]), X, hint="")
    with pytest.raises(NotYet, match="the pullback says"):
        derivative(lambda X: ([*np.sin(X)], lambda dY: [*dY]), X, hint="")


def test_a_gradient_of_another_shape_gets_no_hint_on_its_numbers():
    X, w = np.random.default_rng(0).standard_normal((3, 4)), np.random.default_rng(1).standard_normal(4)
    for dw, said in (
        (lambda dY: (dY * w, dY * X), "w: the gradient has shape (3, 4), the array (4,)"),
        (lambda dY: (dY * w, (dY * X).sum(0), w), "the pullback should return 2 gradients (X, w); got 3"),
        (lambda dY: (dY * w, ((dY * X).sum(0), w)), "w: the gradient of an array is a tuple"),
    ):
        with pytest.raises(NotYet) as told:
            derivative(lambda X, w, dw=dw: (X * w, dw), X, w, hint="A hint.")
        assert str(told.value) == f"The checker says: {said}"
    kept = np.zeros((3, 4))

    def shared(X, w):
        kept[:] = X
        return X * w, lambda dY: (dY * w, (dY * kept).sum(0))

    with pytest.raises(NotYet, match=r"^The checker says: w: calling the function again changed an earlier pullback"):
        derivative(shared, X, w, hint="A hint.")
    with pytest.raises(NotYet, match=r"^A hint\. The checker says: w.* the pullback says"):
        derivative(lambda X, w: (X * w, lambda dY: (dY * w, dY[0] * X[0])), X, w, hint="A hint.")


def test_rows_that_are_kept_in_a_list_come_back_as_an_array():
    right = answers()["11.6"]["right"]

    def answer(x, before, theta):
        assert before.shape == (len(theta) - 1, len(x))
        y, kept = right(x, before, theta)
        return y, kept.tolist()

    assert hint_for("11.6", answer) is None


def test_a_memory_has_at_most_the_rows_that_it_may_have():
    right = answers()["12.4"]["right"]

    def answer(memory, X, M):
        assert memory is None or memory.shape[-2] <= M
        return right(memory, X, M)

    assert hint_for("12.4", answer) is None


def test_parts_of_checkers():
    close([1.0, 2], [1, 2], "")
    for given in ([1, 2.1], [[1, 2]], "two", ["1", "2"], np.array(["1", "2"]), [1, np.nan], None):
        with pytest.raises(NotYet):
            close(given, [1, 2], "Look again.")
    with pytest.raises(NotYet, match=r"Look again\."):
        close(2e-9, 1e-9, "Look again.")
    with pytest.raises(NotYet, match=r"^There is NaN in 1 of 2 places\. Look again\.$"):
        close([1, np.nan], [1, 2], "Look again.")
    with pytest.raises(NotYet, match=r"^This is NaN\. Look again\.$"):
        close(np.nan, 1, "Look again.")
    with pytest.raises(NotYet, match=r"this is a function\. Look again\."):
        close(np.cos, 1, "Look again.")
    close(3.99, 4.0, "Look again.", 0.01)
    close([4.0, 3], np.array([4, 3]), "Look again.", 0.01)
    for given in (3.99, 4.01, 4.0001):  # of a count there is no tolerance
        with pytest.raises(NotYet, match=r"^Look again\.$"):
            close(given, 4, "Look again.", 0.01)
    choice(" Yes ", "yes", "")
    choice("Dynamic_NTK", "dynamic ntk", "")
    choice(np.int64(3), 3, "")
    for given, wanted in (("no", "yes"), (True, 1), (3.0, 3)):
        with pytest.raises(NotYet):
            choice(given, wanted, "Look again.")
    assert yes_or_no([True, np.False_], 2) == [True, False]
    for given in ([True], [True, False, True], [True, 1], True, "no"):
        with pytest.raises(NotYet, match="True or False"):
            yes_or_no(given, 2)
    assert several([1, 2], "Q", "K") == (1, 2)
    for given in (np.zeros(2), [1], [1, 2, 3]):
        with pytest.raises(NotYet, match="in this order: Q, K"):
            several(given, "Q", "K")
    unless([1, 2], [2, 1], "Turned.")
    expect(2.0, 2, "Look again.", (2, "No mistake."))
    for given, hint in ((1, "Half."), (4, "Twice."), (3, "Look again."), ([2], "The shape")):
        with pytest.raises(NotYet, match=hint):
            expect(given, 2, "Look again.", (1, "Half."), (4, "Twice."))
    with pytest.raises(ValueError, match="has a checker already"):
        exercise(numbers()[0])(close)
    assert numbers()[0] in CHECKERS
    assert numbers().index("9.1") < numbers().index("10.1"), "as numbers, not as words"
