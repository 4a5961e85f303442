"""Run the book: every notebook from a clean kernel, in order, always in the same surroundings.

`write` puts outputs and figures into the repository, where they differ from what is there; `check` only says where they do.
Both run in a temporary copy, so that a notebook that fails, or is interrupted, leaves no trace. A cell with the tag `live` is
run like any other, and nothing that it shows is kept: its numbers are those of one machine in one minute.
"""

import asyncio
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from minitransformer import files
from minitransformer.workshop.equations import notebooks
from minitransformer.workshop.output_comparison import data_differ, outputs_differ

LIVE = "live"
LONGEST_CELL = 1800  # seconds
COPIED = ("minitransformer", "notebooks", "tests", "pyproject.toml")  # what a notebook may look at


class BookError(Exception):
    """The book can't be run, or a cell failed; the message is for the reader."""


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
    raise BookError("no notebooks here: run this in a clone of the repository")


def choose(root: Path, names: list[str]) -> list[Path]:
    """The notebooks that the names begin (`02` means 02_self_attention), or all of them."""
    chosen = []
    for name in names:
        found = [path for path in notebooks(root) if path.name.startswith(Path(name).name)]
        if not found:
            raise BookError(f"no notebook {name}; there are {', '.join(path.stem for path in notebooks(root))}")
        chosen += found
    return sorted(set(chosen)) if names else notebooks(root)


# --------------------------------------------------------------------------------------------- running


@contextmanager
def workspace(root: Path) -> Iterator[Path]:
    """A temporary copy of what notebooks may look at, with an empty `figures`."""
    with tempfile.TemporaryDirectory("", "minitransformer-", files.temporary(), ignore_cleanup_errors=True) as name:
        copy = Path(name) / "book"
        for part in COPIED:
            if (root / part).is_dir():
                shutil.copytree(root / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", ".*"))
            elif (root / part).is_file():
                shutil.copy(root / part, copy / part)
        (copy / "figures").mkdir()
        (copy / ".surroundings").mkdir()
        yield copy


def surroundings(copy: Path) -> dict[str, str]:
    """The environment of a kernel: nothing of the reader's own settings, and nothing that changes from run to run."""
    empty = copy / ".surroundings"
    (empty / "matplotlibrc").touch()
    ours = {
        "IPYTHONDIR": str(empty),  # no start-up files, no history
        "MATPLOTLIBRC": str(empty / "matplotlibrc"),
        "MINITRANSFORMER_FIGURES": str(copy / "figures"),
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
        "SOURCE_DATE_EPOCH": "1767225600",
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",  # a progress bar leaves its times in the outputs
    }
    return {key: value for key, value in os.environ.items() if key != "MPLBACKEND"} | ours


class _Watch:
    """Follows the run of a notebook: who writes which figure, and whether Ctrl-C was pressed."""

    def __init__(self, copy: Path, kernel: Any, bar: tqdm) -> None:
        self.copy, self.kernel, self.bar = copy, kernel, bar
        self.figures: list[str] = []
        self.seen = _written(copy)
        self.interrupted = False
        self.refused = ""

    def started(self, **_: Any) -> None:
        with suppress(RuntimeError):  # on Windows
            for signal_ in (signal.SIGINT, signal.SIGTERM):  # nbclient would take both for a kernel that died
                asyncio.get_running_loop().add_signal_handler(signal_, self.interrupt)

    def interrupt(self) -> None:
        self.interrupted = True
        asyncio.ensure_future(self.kernel.shutdown_kernel(now=True))  # noqa: RUF006  (its end is the cell's end)

    def executed(self, cell: Any, **_: Any) -> None:
        now = _written(self.copy)
        written = sorted({figure for figure, _time in now.items() - self.seen.items()})
        if written and _is_live(cell):
            self.refused = f"figures/{written[0]}: a cell that is live can't keep a figure"
        self.figures += written
        self.seen = now
        self.bar.update()


def execute(name: str, copy: Path) -> Run:
    """Run the notebook of this name in the copy, from a clean kernel.

    raises   BookError for a cell that fails, with the cell and its traceback
    """
    nbformat, NotebookClient, AsyncKernelManager, failures = _jupyter()
    notebook = nbformat.read(copy / "notebooks" / name, as_version=4)
    _clear(notebook)
    cells = enumerate(notebook.cells, start=1)
    code = [(number, cell) for number, cell in cells if cell.cell_type == "code" and cell.source]
    kernel = AsyncKernelManager(kernel_name="python3", connection_file=str(copy / ".surroundings" / f"{name}.json"))
    with tqdm(total=len(code), desc=Path(name).stem, unit=" cells", leave=False, disable=None) as bar:
        watch = _Watch(copy, kernel, bar)
        client = NotebookClient(
            notebook,
            km=kernel,
            timeout=LONGEST_CELL,
            record_timing=False,
            coalesce_streams=True,
            store_widget_state=False,
            extra_arguments=["--IPKernelApp.log_level=40"],
            resources={"metadata": {"path": str(copy / "notebooks")}},
            on_notebook_start=watch.started,
            on_cell_executed=watch.executed,
        )
        try:
            client.execute(env=surroundings(copy), cleanup_kc=True)
        except failures as error:
            if watch.interrupted:
                raise KeyboardInterrupt from None
            number, cell = code[max(client.code_cells_executed, 1) - 1]
            raise BookError(_account(f"{name}, cell {number}", cell, error)) from None
        except RuntimeError as error:
            raise BookError(f"{name}: its kernel did not start: {error}") from None
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    if watch.refused:
        raise BookError(f"{name}: {watch.refused}")
    for cell in notebook.cells:
        if _is_live(cell):
            cell.outputs, cell.execution_count = [], None
    return Run(notebook, watch.figures)


def _is_live(cell: Any) -> bool:
    return cell.cell_type == "code" and LIVE in cell.metadata.get("tags", [])


def _clear(notebook: Any) -> None:
    """Leave nothing of an earlier run, nor of the editor."""
    for cell in notebook.cells:
        cell.metadata = {"tags": cell.metadata["tags"]} if cell.metadata.get("tags") else {}
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None


def _written(copy: Path) -> dict[str, int]:
    """When each figure was written."""
    return {path.name: path.stat().st_mtime_ns for path in (copy / "figures").iterdir()}


def _jupyter() -> tuple[Any, ...]:
    """What runs a notebook, imported only now: the rest of the book does not need it."""
    try:
        import ipykernel  # noqa: F401  (starts in a process of its own, where its absence would be a riddle)
        import nbformat
        from jupyter_client import AsyncKernelManager
        from nbclient import NotebookClient
        from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    except ImportError as error:
        raise BookError(f"notebooks need {error.name}: `make book`, or pip install nbclient ipykernel") from None
    return nbformat, NotebookClient, AsyncKernelManager, (CellExecutionError, CellTimeoutError, DeadKernelError)


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


def _runs(root: Path, chosen: list[Path], copy: Path) -> Iterator[tuple[Path, Run]]:
    """Run the notebooks one after the other, and say how long each took."""
    start = time.monotonic()
    for path in chosen:
        began = time.monotonic()
        run = execute(path.name, copy)
        cells = sum(cell.cell_type == "code" for cell in run.notebook.cells)
        print(f"{path.stem:<40} {cells:>3} cells {time.monotonic() - began:>7.1f} s", flush=True)
        yield path, run
    print(f"{len(chosen)} notebooks in {time.monotonic() - start:.0f} s")


def write(root: Path, names: list[str]) -> None:
    """Run notebooks, and put what is new in their outputs and figures into the repository, one after the other."""
    nbformat = _jupyter()[0]
    chosen, made = choose(root, names), set()
    with workspace(root) as copy:
        for path, run in _runs(root, chosen, copy):
            old = nbformat.read(path, as_version=4)
            for before, after in zip(old.cells, run.notebook.cells, strict=True):
                if after.cell_type == "code" and not outputs_differ(before.outputs, after.outputs):
                    after.outputs = before.outputs
            for figure in run.figures:
                made.add(figure)
                if _figures_differ(root / "figures" / figure, copy / "figures" / figure):
                    _replace(root / "figures" / figure, (copy / "figures" / figure).read_bytes())
            _replace(path, as_text(run.notebook).encode())
    for orphan in _orphans(root, made) if not names else []:
        print(orphan)


def _replace(path: Path, data: bytes) -> None:
    """Write a file in one step, unless it says so already."""
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(exist_ok=True)
    files.write(path, data)


def check(root: Path, names: list[str]) -> list[str]:
    """Run notebooks in the copy, and list what in the repository is not what they give now."""
    nbformat = _jupyter()[0]
    chosen, made, stale = choose(root, names), set(), []
    with workspace(root) as copy:
        for path, run in _runs(root, chosen, copy):
            old = nbformat.read(path, as_version=4)
            stale += [f"{path.stem}, {problem}" for problem in _cells_differ(old, run.notebook)]
            for figure in run.figures:
                made.add(figure)
                if difference := _figures_differ(root / "figures" / figure, copy / "figures" / figure):
                    stale.append(f"figures/{figure}: {difference}")
    return stale + (_orphans(root, made) if not names else [])


def _cells_differ(old: Any, new: Any) -> Iterator[str]:
    for number, (before, after) in enumerate(zip(old.cells, new.cells, strict=True), start=1):
        if after.cell_type == "code" and (difference := outputs_differ(before.outputs, after.outputs)):
            yield f"cell {number}: {difference}"


def _figures_differ(old: Path, new: Path) -> str:
    if not old.is_file():
        return "is missing"
    kind = "image/png" if new.suffix == ".png" else "image/svg+xml"
    return data_differ(kind, old.read_bytes(), new.read_bytes())


def _orphans(root: Path, made: set[str]) -> list[str]:
    there = {path.name for path in (root / "figures").glob("*") if not path.name.startswith(".")}
    return [f"figures/{name}: no notebook writes it" for name in sorted(there - made)]
