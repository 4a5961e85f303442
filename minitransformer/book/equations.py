"""The equation map: for every equation of the sources, the function that is it, its test, its cell and its figure.

The data stand in `equations.toml`; here they are read, checked for gaps and dangling names, and printed.
"""

import ast
import importlib
import json
import re
import textwrap
import tomllib
import types
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from minitransformer.terminal import columns

MAP = Path(__file__).with_name("equations.toml")
IN_REPOSITORY = Path("minitransformer", "book", MAP.name)
SOURCES = ("Borealis II", "Lecture notes", "Aalto", "From GRU to attention", "CS224N")  # in the order of the table
README_BLOCK = re.compile(r"(<!-- chapters[^>]*-->\n).*?(<!-- /chapters -->)", re.DOTALL)


class Equation(NamedTuple):
    """One row of the map; `equations.toml` says what the fields mean."""

    id: str
    source: str
    number: str
    name: str
    function: str
    test: str
    notebook: str
    figure: str

    @property
    def printed(self) -> str:
        """Number and name, as a table shows them."""
        return f"({self.number}) {self.name}" if self.number else self.name


def load(path: Path = MAP) -> list[Equation]:
    """The rows of the map, source by source.

    raises   ValueError for a file that is not TOML, or a row with a missing, unknown or non-text field
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("equation", [])
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path.name}: {error}") from None
    for table in tables:
        if set(table) != set(Equation._fields) or not all(isinstance(value, str) for value in table.values()):
            fields = ", ".join(Equation._fields)
            raise ValueError(f"{path.name}: row {table.get('id')!r} should have {fields}, all text")
    rows = [Equation(**table) for table in tables]
    return sorted(rows, key=lambda row: SOURCES.index(row.source) if row.source in SOURCES else len(SOURCES))


# -------------------------------------------------------------------------------------------- checking


def check(root: Path) -> list[str]:
    """Every gap and every dangling name of the map of the repository at `root`, one line each; [] if there is none."""
    rows = load(root / IN_REPOSITORY)
    return [
        *_unclear(rows),
        *(f"{row.id}: {problem}" for row in rows for problem in _dangling(row, root)),
        *_without_row(rows, root),
    ]


def _unclear(rows: list[Equation]) -> Iterator[str]:
    """Two rows with one id or one test, and numbers out of order."""
    for field in ("id", "test"):
        count = Counter(getattr(row, field) for row in rows)
        yield from (f"{value}: {times} rows have this {field}" for value, times in count.items() if times > 1)
    for source in dict.fromkeys(row.source for row in rows):
        numbered = [row for row in rows if row.source == source and row.number]
        for before, after in pairwise(numbered):
            if _order(after.number) < _order(before.number):
                yield f"{after.id}: stands after {before.id}, so the numbers of {source} do not ascend"


def _order(number: str) -> list[Any]:
    """A key that puts "2" before "10" and "3a" before "3b"."""
    return [int(part) if part.isdigit() else part for part in re.findall(r"\d+|\D+", number)]


def resolve(name: str) -> Any:
    """The object under a dotted name. A function takes precedence over the module of the same name, which holds it.

    raises   ImportError if there is nothing
    """
    first, *parts = name.split(".")
    found = importlib.import_module(first)
    for end, part in enumerate(parts, 2):
        found = getattr(found, part, None) or importlib.import_module(".".join(name.split(".")[:end]))
    return found


def _dangling(row: Equation, root: Path) -> Iterator[str]:
    try:
        function = resolve(row.function)
    except ImportError as error:
        yield f"no function {row.function} ({error})"
    else:
        if not isinstance(function, (type, types.FunctionType)):
            yield f"{row.function} is a {type(function).__name__}, and should be a function or a class"
        doc = function.__doc__ or ""
        if not doc or doc.startswith(f"{getattr(function, '__name__', '')}("):  # what dataclass writes by itself
            yield f"{row.function} has no docstring"
    file, _, test = row.test.partition("::")
    if test not in tests_of(root / file):
        yield f"no test {row.test}"
    notebook = root / "notebooks" / f"{row.notebook}.ipynb"
    if not notebook.is_file():
        yield f"no notebook {row.notebook}"
    elif f"eq-{row.id}" not in tags_of(notebook):
        yield f"no cell of {row.notebook} has the tag eq-{row.id}"
    if row.figure and not list((root / "figures").glob(f"{row.figure}.*")):
        yield f"no figure {row.figure}"


def _without_row(rows: list[Equation], root: Path) -> Iterator[str]:
    """Tests in tests/equations, and tagged cells of chapters, that have no row in the map."""
    known = {row.test for row in rows}
    for file in sorted((root / "tests" / "equations").glob("test_*.py")):
        for test in tests_of(file):
            if (name := f"{file.relative_to(root).as_posix()}::{test}") not in known:
                yield f"{name}: no row has this test"
    tagged = {(row.notebook, f"eq-{row.id}") for row in rows}
    for notebook in notebooks(root):
        for tag in tags_of(notebook):
            if tag.startswith("eq-") and (notebook.stem, tag) not in tagged:
                yield f"{notebook.stem}: no row of this chapter has the id of the tag {tag}"


def tests_of(file: Path) -> list[str]:
    """The names of the tests in a file, which is read and not run."""
    if not file.is_file():
        return []
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return [node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def notebooks(root: Path) -> list[Path]:
    """The chapters, in reading order."""
    return sorted((root / "notebooks").glob("[0-9]*.ipynb"))


def tags_of(notebook: Path) -> list[str]:
    """The tags of all cells of a notebook."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [tag for cell in cells for tag in cell["metadata"].get("tags", [])]


# -------------------------------------------------------------------------------------------- printing


def table(rows: list[Equation]) -> str:
    """The map as text for a terminal, grouped by source."""
    lines = []
    for source in dict.fromkeys(row.source for row in rows):
        lines += ["", source]
        for row in (row for row in rows if row.source == source):
            line = f"  {row.id:<36} {row.printed:<48} {row.function.removeprefix('minitransformer.')}"
            lines += textwrap.wrap(line, columns(), subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(lines).strip("\n")


def markdown(rows: list[Equation]) -> str:
    """The map as a Markdown table with links from the top of the repository."""
    lines = ["| source | equation | function | test | chapter | figure |", "|---|---|---|---|---|---|"]
    for row in rows:
        test = f"[`{row.id}`]({row.test.partition('::')[0]})"
        chapter = f"[{row.notebook[:2]}](notebooks/{row.notebook}.ipynb)"
        lines.append(f"| {row.source} | {row.printed} | `{row.function}` | {test} | {chapter} | {row.figure} |")
    return "\n".join(lines)


def chapters(root: Path) -> str:
    """The Markdown table of chapters that README shows: number, title and question."""
    lines = ["| | chapter | its question |", "|---|---|---|"]
    for notebook in notebooks(root):
        title, question = _opening(notebook)
        lines.append(f"| {notebook.stem[:2]} | [{title}](notebooks/{notebook.name}) | {question} |")
    return "\n".join(lines)


def _opening(notebook: Path) -> tuple[str, str]:
    """Title and question of a chapter: the heading of its first cell, and the first question after it."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    heading, _, text = "".join(cells[0]["source"]).partition("\n")
    question = re.search(r"[^.?!|#>]+\?", " ".join(text.split()))
    title = heading.lstrip("# ").strip()
    return re.sub(r"^\d+\W+", "", title), question.group().strip(" *_") if question else ""


def readme(root: Path) -> str:
    """README with its table of chapters as the notebooks have it now.

    raises   ValueError if README lacks the two comments between which the table stands
    """
    text = (root / "README.md").read_text(encoding="utf-8")
    if not README_BLOCK.search(text):
        raise ValueError("README.md: the lines <!-- chapters --> and <!-- /chapters --> are missing")
    return README_BLOCK.sub(lambda block: f"{block[1]}{chapters(root)}\n{block[2]}", text)
