"""Run the book: every notebook from a clean kernel, its cells in order, always in the same surroundings.

`write` puts outputs and figures into the repository, where they differ from what is there; `check` only says where they do.
Both run in a temporary copy, so that a notebook that fails, or is interrupted, leaves no trace. Notebooks run side by side,
each with one thread unless the environment says otherwise. A cell with the tag `live` is run like any other, and nothing that
it shows is kept: its numbers are those of one machine in one minute.
"""

import asyncio
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from minitransformer import files
from minitransformer.book import navigation
from minitransformer.book.equations import notebooks
from minitransformer.book.output_comparison import data_differ, outputs_differ
from minitransformer.book.running import BookError, clear, jupyter, run_tasks, surroundings, without_editor
from minitransformer.machine import cores, may_open_many_files
from minitransformer.ranges import so_many

LIVE = "live"
READS_A_RECORD = "experiments.load("
LONGEST_CELL = 1800  # seconds
COPIED = ("minitransformer", "notebooks", "tests", "pyproject.toml")  # what a notebook may look at


class Run(NamedTuple):
    """A notebook with new outputs, and the names of the figures that it wrote."""

    notebook: Any
    figures: list[str]


def repository() -> Path:
    """The top of the repository: of the one we stand in, or else of the one that this package was installed from.

    raises   BookError outside any repository
    """
    for place in (Path.cwd(), *Path.cwd().parents, Path(__file__).resolve().parents[2]):
        if (place / "notebooks").is_dir() and (place / "minitransformer").is_dir():
            return place
    raise BookError("no notebooks here: run this in a copy of the repository")


def choose(root: Path, names: list[str]) -> list[Path]:
    """The notebooks whose names begin with one of these (`02` means 02_self_attention, and so does `2`), or all of them.

    raises   BookError for a name with which none begins
    """
    chosen = []
    for name in names:
        start = f"0{name}" if re.fullmatch("[0-9]", name) else Path(name).name
        found = [path for path in notebooks(root) if start and path.name.startswith(start)]
        if not found:
            raise BookError(
                f"no notebook {name or repr(name)}; there are {', '.join(path.stem for path in notebooks(root))}"
            )
        chosen += found
    return sorted(set(chosen)) if names else notebooks(root)


# --------------------------------------------------------------------------------------------- running


@contextmanager
def workspace(root: Path) -> Iterator[Path]:
    """A temporary copy of what notebooks may look at, with an empty `figures`."""
    with tempfile.TemporaryDirectory("", "minitransformer-", files.temporary(), ignore_cleanup_errors=True) as name:
        copy = Path(name) / "book"
        try:
            for part in COPIED:
                if (root / part).is_dir():
                    shutil.copytree(root / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", ".*"))
                elif (root / part).is_file():
                    shutil.copy(root / part, copy / part)
        except shutil.Error as error:  # a list with every file that could not be copied
            why = error.args[0][0][2].partition(": ")[0]
            raise BookError(f"{name} can't hold the copy in which notebooks run: {why}") from None
        (copy / "figures").mkdir()
        (copy / ".surroundings").mkdir()
        yield copy


class _Watch:
    """Follows the run of a notebook: in which cell it is, and who writes which figure."""

    def __init__(self, figures: Path, bar: tqdm) -> None:
        self.folder, self.bar = figures, bar
        self.figures: list[str] = []
        self.seen = self.written()
        self.number = 0
        self.refused = ""

    def written(self) -> dict[str, int]:
        """When each figure was written."""
        return {path.name: path.stat().st_mtime_ns for path in self.folder.iterdir()}

    def begins(self, cell_index: int, **_: Any) -> None:
        self.number = cell_index + 1

    def executed(self, cell: Any, **_: Any) -> None:
        now = self.written()
        new = sorted({figure for figure, _time in now.items() - self.seen.items()})
        if new and _is_live(cell):
            self.refused = f"figures/{new[0]}: a cell that is live can't keep a figure"
        self.figures += new
        self.seen = now
        self.bar.update()


async def execute(notebook: Any, name: str, copy: Path, bar: tqdm) -> Run:
    """Run the notebook of this name in the copy, from a clean kernel.

    raises   BookError for a cell that fails, with the cell and its traceback; for a kernel that does not start; and for a
             cell tagged `live` that writes a figure
    """
    Client, failures = jupyter()
    clear(notebook)
    figures = _figures(copy, name)
    figures.mkdir()
    watch = _Watch(figures, bar)
    watched: dict[str, Any] = {"on_cell_start": watch.begins, "on_cell_executed": watch.executed}
    place = copy / ".surroundings" / f"{name}.json"
    client = Client(notebook, place, copy / "notebooks", timeout=LONGEST_CELL, store_widget_state=False, **watched)
    try:
        await client.async_execute(env=surroundings(copy, figures))
    except failures as error:
        cell = notebook.cells[watch.number - 1]
        raise BookError(_account(f"{name}, cell {watch.number}", cell, error)) from None
    except RuntimeError as error:
        raise BookError(f"{name}: its kernel did not start: {error}") from None
    without_editor(notebook)
    if watch.refused:
        raise BookError(f"{name}: {watch.refused}")
    for cell in notebook.cells:
        if _is_live(cell):
            cell.outputs, cell.execution_count = [], None
    return Run(notebook, watch.figures)


def _figures(copy: Path, name: str) -> Path:
    """Where in the copy a notebook puts its figures: in a folder of its own, so that we know whose they are."""
    return copy / "figures" / Path(name).stem


def _is_live(cell: Any) -> bool:
    return cell.cell_type == "code" and LIVE in cell.metadata.get("tags", [])


def _account(place: str, cell: Any, error: Exception) -> str:
    """What happened, where, in which lines."""
    last: Any = cell.outputs[-1] if cell.outputs else {}
    traceback = ""
    if last.get("output_type") == "error":
        happened = f"{last.ename}: {last.evalue}"
        traceback = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(last.traceback))
    elif isinstance(error, TimeoutError):
        happened = f"took longer than {LONGEST_CELL} seconds"
    else:
        happened = "the kernel died (out of memory?)"
    source = "\n".join(f"    {line}" for line in cell.source.splitlines())
    return f"{place}: {happened}\n\n{source}\n\n{traceback}".rstrip() + "\n\nThe notebook on disk is as it was."


def as_text(notebook: Any) -> str:
    """The text of a notebook file, the same for the same notebook."""
    import nbformat

    return nbformat.writes(notebook) + "\n"


# --------------------------------------------------------------------------------- writing and checking


def _run_all(root: Path, names: list[str], copy: Path, keep: Callable[[Path, Run], None]) -> None:
    """Run notebooks side by side, one on each core, say how long each took, and hand over each as soon as it is done.

    raises   BookError for the first that fails, and KeyboardInterrupt; the others are stopped
    """
    start, chosen, _ = time.monotonic(), choose(root, names), jupyter()
    may_open_many_files()
    run_tasks(_side_by_side(root, chosen, copy, keep))
    print(f"{so_many(len(chosen), 'notebook')} in {time.monotonic() - start:.0f} s")


async def _side_by_side(root: Path, chosen: list[Path], copy: Path, keep: Callable[[Path, Run], None]) -> None:
    """Run the chosen notebooks, those with the most cells first, and hand each to `keep`."""
    free = asyncio.Semaphore(cores())
    books = [(navigation.renewed(root, path), path) for path in chosen]
    books.sort(key=lambda book: -len(_code(book[0])))  # at the end no core waits for a long one
    total = sum(len(_code(notebook)) for notebook, _ in books)
    with tqdm(total=total, desc="running notebooks", unit=" cells", leave=False, disable=None) as bar:

        async def one(notebook: Any, path: Path) -> None:
            async with free:
                began = time.monotonic()
                run = await execute(notebook, path.name, copy, bar)
            cells = sum(cell.cell_type == "code" for cell in run.notebook.cells)
            with tqdm.external_write_mode():
                print(f"{path.stem:<40} {cells:>3} cells {time.monotonic() - began:>7.1f} s", flush=True)
            keep(path, run)

        async with asyncio.TaskGroup() as group:
            for notebook, path in books:
                group.create_task(one(notebook, path))


def _code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def write(root: Path, names: list[str]) -> None:
    """Run notebooks, and put what is new in their outputs and figures into the repository, each as soon as it is done."""
    made: set[str] = set()
    with workspace(root) as copy:

        def keep(path: Path, run: Run) -> None:
            old = navigation.renewed(root, path)
            for before, after in zip(old.cells, run.notebook.cells, strict=True):
                if after.cell_type == "code" and not _cell_differs(before, after):
                    after.outputs = before.outputs
                    for output in after.outputs:
                        if "execution_count" in output:  # a cell has been put in before it
                            output["execution_count"] = after.execution_count
            for figure in run.figures:
                made.add(figure)
                new = _figures(copy, path.name) / figure
                if _figures_differ(root / "figures" / figure, new):
                    _replace(root / "figures" / figure, new.read_bytes())
            _replace(path, as_text(run.notebook).encode())

        _run_all(root, names, copy, keep)
    for orphan in _orphans(root, made) if not names else []:
        print(orphan)


def _replace(path: Path, data: bytes) -> None:
    """Write a file in one step, unless it holds these bytes already."""
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(exist_ok=True)
    files.write(path, data)


def check(root: Path, names: list[str]) -> list[str]:
    """Run notebooks in the copy, and list what in the repository is not what they give now."""
    made, stale = set(), {path: [] for path in choose(root, names)}
    with workspace(root) as copy:

        def compare(path: Path, run: Run) -> None:
            stale[path] += [f"{path.stem}, {problem}" for problem in _cells_differ(path, run.notebook)]
            for figure in run.figures:
                made.add(figure)
                if difference := _figures_differ(root / "figures" / figure, _figures(copy, path.name) / figure):
                    stale[path].append(f"figures/{figure}: {difference}")

        _run_all(root, names, copy, compare)
    return [problem for path in stale for problem in stale[path]] + (_orphans(root, made) if not names else [])


def _cells_differ(path: Path, new: Any) -> Iterator[str]:
    """In what a chapter on the disk differs from a new run of it; cells are counted as in the new one."""
    import nbformat

    old = nbformat.read(path, as_version=4)
    if [cell.source for cell in old.cells] != [cell.source for cell in new.cells]:
        yield "its links to chapters and sections are old"
    kept = {cell.id: cell for cell in old.cells}
    for number, after in enumerate(new.cells, start=1):
        if after.cell_type == "code" and (difference := _cell_differs(kept[after.id], after)):
            yield f"cell {number}: {difference}"


def _cell_differs(old: Any, new: Any) -> str:
    """In what the outputs of a cell differ: exactly where it reads a record, or a renewed one would leave old digits behind."""
    return outputs_differ(old.outputs, new.outputs, exact=READS_A_RECORD in new.source)


def _figures_differ(old: Path, new: Path) -> str:
    if not old.is_file():
        return "is missing"
    kind = "image/png" if new.suffix == ".png" else "image/svg+xml"
    return data_differ(kind, old.read_bytes(), new.read_bytes())


def _orphans(root: Path, made: set[str]) -> list[str]:
    there = {path.name for path in (root / "figures").glob("*") if not path.name.startswith(".")}
    return [f"figures/{name}: no notebook writes it" for name in sorted(there - made)]
