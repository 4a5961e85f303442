"""The list of errata is whole: every test that it names is there, every test has a row, a chapter has a box for it."""

import re
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

from minitransformer.book.cross_references import prose
from minitransformer.book.equations import SOURCES, tests_of
from minitransformer.errata import Erratum, load

IN_REPOSITORY = Path("minitransformer", "errata", "errata.toml")
NAMED = re.compile(r"test_(E\d+)_")


def check(root: Path) -> list[str]:
    """Every gap and every dangling name of the list of the repository at `root`, one line each; [] if there is none."""
    rows = load(root / IN_REPOSITORY)
    ids, known = {row.id for row in rows}, sorted(int(row.id[1:]) for row in rows if re.fullmatch(r"E\d+", row.id))
    return [
        *(f"E{number} is missing" for number in range(1, len(rows) + 1) if number not in known),
        *(f"{row.id}: {problem}" for row in rows for problem in _dangling(row, root)),
        *(
            f"{file.relative_to(root).as_posix()}::{test}: no row has this number"
            for file in sorted((root / "tests" / "errata").glob("test_*.py"))
            for test in tests_of(file)
            if (found := NAMED.match(test)) and found[1] not in ids
        ),
    ]


def _dangling(row: Erratum, root: Path) -> Iterator[str]:
    if row.source not in SOURCES:
        yield f"{row.source} is no source"
    if row.severity not in ("A", "B", "C"):
        yield f"its severity is {row.severity!r}, and should be A, B or C"
    named = {field for _, field, _, _ in Formatter().parse(row.wrong) if field is not None}
    if bool(named) != row.measured:
        yield "it says no number" if row.measured else "a matter of wording has no number"
    file, _, test = row.test.partition("::")
    if row.measured and not row.test:
        yield "it has no test"
    if row.test and test not in tests_of(root / file):
        yield f"no test {row.test}"
    notebook = root / "notebooks" / f"{row.chapter}.ipynb"
    if not notebook.is_file():
        yield f"no notebook {row.chapter}"
    elif row.test and not any(f"](../{file})" in box for box in boxes(notebook)):
        yield f"no box in {row.chapter} links {file}"


def boxes(notebook: Path) -> list[str]:
    """The boxes on errata of a chapter, without the > at the beginning of each line."""
    found = re.findall(r"^> \*\*Errat(?:um|a)\*\*.*?(?=\n[^>]|\n\n|\Z)", prose(notebook), re.DOTALL | re.MULTILINE)
    return [re.sub(r"^> ?", "", box, flags=re.MULTILINE) for box in found]
