"""Every gap and every dangling name of an equation map is found, and so is a name beside that of an equation."""

import json
import re
import subprocess
import sys

import pytest

from minitransformer.book import equations

ROW = {
    "id": "lecture-basic",
    "source": "Lecture notes",
    "number": "",
    "name": "Basic self-attention",
    "function": "minitransformer.attention.unweighted_attention",
    "test": "tests/equations/test_lecture.py::test_lecture_basic",
    "notebook": "02_self_attention",
    "figure": "fig_heads",
}
TWO = {**ROW, "id": "lecture-2", "number": "2", "test": ROW["test"] + "_2"}
TEN = {**ROW, "id": "lecture-10", "number": "10", "test": ROW["test"] + "_10"}
QUESTION = ["# 02 Self-attention\n", "\n", "**What does a row of attention *average*?** It depends."]


def write_map(root, *rows):
    tables = (
        "[[equation]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in row.items()) for row in rows
    )
    (root / equations.IN_REPOSITORY).write_text("\n".join(tables))


@pytest.fixture
def root(tmp_path):
    """A repository in which one row has everything it names."""
    for part in ("minitransformer/book", "notebooks", "figures", "tests/equations"):
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / "figures" / "fig_heads.svg").touch()
    (tmp_path / "tests" / "equations" / "test_lecture.py").write_text(
        "import nowhere\n\ndef test_lecture_basic(): pass\n"
    )
    cells = [{"source": QUESTION, "metadata": {"tags": ["eq-lecture-basic"]}}]
    (tmp_path / "notebooks" / "02_self_attention.ipynb").write_text(json.dumps({"cells": cells}))
    (tmp_path / "README.md").write_text("Chapters:\n\n<!-- chapters -->\nold\n<!-- /chapters -->\n\nEnd.\n")
    write_map(tmp_path, ROW)
    return tmp_path


def test_a_whole_row_is_no_problem(root):
    assert equations.check(root) == []
    write_map(root, {**ROW, "figure": ""})  # not every equation has one
    assert equations.check(root) == []


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("function", "minitransformer.attention.no_such", "no function minitransformer.attention.no_such"),
        ("function", "minitransformer.nowhere.f", "no function minitransformer.nowhere.f"),
        ("function", "minitransformer.attention.masks.np.bool_.shape.x", "no function"),
        ("function", "minitransformer.pullback.ChainPullback.__call__", "has no docstring"),
        ("function", "minitransformer.attention.masks", "is a module, and should be a function or a class"),
        ("test", "tests/equations/test_lecture.py::test_other", "no test tests/equations/test_lecture.py::test_other"),
        ("test", "tests/equations/test_none.py::test_lecture_basic", "no test tests/equations/test_none.py"),
        ("notebook", "03_none", "no notebook 03_none"),
        ("figure", "fig_none", "no figure fig_none"),
    ],
)
def test_a_dangling_name_is_found(root, field, value, problem):
    write_map(root, {**ROW, field: value})
    assert any(line.startswith("lecture-basic: ") and problem in line for line in equations.check(root))


def test_a_function_goes_before_the_module_that_it_stands_in():
    from minitransformer.attention import delta_rule

    assert equations.resolve("minitransformer.attention.delta_rule") is delta_rule


def test_a_row_names_what_its_test_calls(pytestconfig):
    """What conftest.py looks for while a test of the map runs: the function itself, not what checks its arguments."""
    from minitransformer.attention import dot_product_attention
    from minitransformer.related import GRU

    (conftest,) = (p for p in pytestconfig.pluginmanager.get_plugins() if hasattr(p, "codes_of"))
    (code,) = conftest.codes_of(dot_product_attention)
    assert code.co_filename.endswith("dot_product.py")
    assert "__call__" in {code.co_name for code in conftest.codes_of(GRU)}
    assert {row.id for row in equations.load()} == {row.id for row in conftest.ROWS.values()}


def test_a_cell_without_its_tag_is_found(root):
    write_map(root, {**ROW, "id": "lecture-other"})
    assert "lecture-other: no cell of 02_self_attention has the tag eq-lecture-other" in equations.check(root)
    assert "02_self_attention: no row of this chapter has the id of the tag eq-lecture-basic" in equations.check(root)


def test_a_tag_in_another_chapter_is_found(root):
    cells = [{"source": QUESTION, "metadata": {"tags": ["eq-lecture-basic", "navigation"]}}]
    (root / "notebooks" / "03_other.ipynb").write_text(json.dumps({"cells": cells}))
    assert equations.check(root) == ["03_other: no row of this chapter has the id of the tag eq-lecture-basic"]


def test_a_test_without_a_row_is_found(root):
    (root / "tests" / "equations" / "test_new.py").write_text("def test_new_eq_7(): pass\n\ndef helper(): pass\n")
    assert equations.check(root) == ["tests/equations/test_new.py::test_new_eq_7: no row has this test"]


def test_two_rows_with_one_id_or_one_test_are_found(root):
    write_map(root, ROW, ROW)
    problems = equations.check(root)
    assert "lecture-basic: 2 rows have this id" in problems
    assert f"{ROW['test']}: 2 rows have this test" in problems


def test_numbers_ascend_as_numbers(root):
    write_map(root, ROW, TWO, TEN)
    assert not any("ascend" in line for line in equations.check(root))
    write_map(root, ROW, TEN, TWO)
    assert any(line.startswith("lecture-2: stands after lecture-10") for line in equations.check(root))


@pytest.mark.parametrize("text", ["[[equation]\n", "[[equation]]\nid = 'x'\n", "[[equation]]\nid = 1\n"])
def test_a_malformed_map_is_one_clear_error(root, text):
    path = root / equations.IN_REPOSITORY
    path.write_text(text)
    with pytest.raises(ValueError, match=r"^equations\.toml: "):
        equations.load(path)


def test_a_number_in_place_of_text_is_named(root):
    path = root / equations.IN_REPOSITORY
    fields = "".join(f'{name} = "x"\n' for name in equations.Equation._fields if name != "number")
    path.write_text(f"[[equation]]\n{fields}number = 8\n")
    with pytest.raises(ValueError, match=r"^equations\.toml: row 'x' should have id, .*, all text"):
        equations.load(path)


def test_rows_are_printed_by_source(root):
    write_map(root, ROW, {**ROW, "source": "Borealis II", "id": "borealis-1", "number": "1"})
    rows = equations.load(root / equations.IN_REPOSITORY)
    table = equations.table(rows)
    assert [line for line in table.splitlines() if line and line[0] != " "] == ["Borealis II", "Lecture notes"]
    assert "(1) Basic self-attention" in table
    assert re.findall(r"^  (\S+) ", table, re.MULTILINE) == ["borealis-1", ROW["id"]]
    assert len(equations.markdown(rows).splitlines()) == 4


def test_readme_gets_its_table_of_chapters(root):
    text = equations.readme(root)
    link = "[Self-attention](notebooks/02_self_attention.ipynb)"
    assert f"| 02 | {link} | What does a row of attention *average*? |" in text
    assert "old" not in text
    assert text.startswith("Chapters:\n")
    assert text.endswith("\nEnd.\n")
    (root / "README.md").write_text(text)
    assert equations.readme(root) == text
    (root / "README.md").write_text("nothing")
    with pytest.raises(ValueError, match="are missing"):
        equations.readme(root)


def test_an_unknown_equation_lists_near_ones(request):
    row = equations.load()[-1]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--equation", row.id[:-1] + "x"]
    run = subprocess.run(command, cwd=request.config.rootpath, capture_output=True, text=True)
    assert run.returncode == 4
    assert row.id in run.stderr
    assert "Traceback" not in run.stderr
