"""`minitransformer exercises`: run notebooks in which exercises were answered, and gather what the checkers say.

Each notebook runs in a process of its own, in its folder, and nothing is written into it. A cell that raises is passed over.
What counts is what a notebook prints: one that prints "Exercise 2.1 is right." itself is believed. Where a cell shows that it
may do so, or names what only a checker needs, what is right is `right?`.
"""

import asyncio
import csv
import io
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from minitransformer import files, terminal
from minitransformer.book.running import BookError, clear, jupyter, run_tasks, surroundings
from minitransformer.machine import cores, may_open_many_files

ASKED = re.compile(r"""check_exercise\(\s*["'](\d+\.\d+)["']""")
SAID = re.compile(r"^Exercise (\d+\.\d+)(?:,| is)? (right\.|not yet: .*|waits for your answer\.)$", re.MULTILINE)
SUSPECT = re.compile(
    r"check_exercise\s*=(?!=)|(?:def|as) +check_exercise|hint_for|CHECKERS|exercises\.chapter|answers_\d\d|Exercise .*is right\."
)
LONGEST_LINE = 10_000  # letters that are kept of a line
LONGEST_CELL = 300  # seconds, after which it is interrupted
LONGEST_STOP = 10  # ... and these, after which its kernel is ended: `except:` in a loop catches an interrupt


def report(paths: Sequence[Path], tell: Callable[[str], None], table: Path | None = None) -> None:
    """Tell the lines on each notebook, in the order of the paths; of several notebooks, a table at the end.

    As many run at a time as there are cores, and the lines come as soon as one and all before it have run.
    table    a .csv file, which is written at the end: the same table for a spreadsheet, also of one notebook
    raises   BookError that names all files that are no notebooks, before any of them runs, or where no notebook can be run;
             also for a table that could not be written, or would be written over an answer. OSError without a loopback
    """
    if table and table.suffix != ".csv":
        raise BookError(f"{table}: should be a .csv file for the table, such as marks.csv")
    if table and not table.parent.is_dir():
        raise BookError(f"{table}: there is no folder {table.parent}")
    jupyter()
    notebooks, wrong = [], []
    for path in paths:
        try:
            notebooks.append(_read(path))
        except BookError as error:
            wrong.append(str(error))
    if wrong:
        raise BookError("\n".join(wrong))
    may_open_many_files()
    handed_in = {path: path.read_bytes() for path in paths if path.is_file()}  # a pipe can be read once
    try:
        with tqdm(total=len(paths), desc="marking", unit=" notebooks", leave=False, disable=None) as bar:
            marks = run_tasks(_side_by_side(paths, notebooks, bar, tell))
    finally:
        for path, data in handed_in.items():
            if not path.is_file() or path.read_bytes() != data:
                files.write(path, data)
                tell(f"{path}: was changed while notebooks ran, and is put back as it was handed in")
    if len(paths) > 1:
        for line in ("", *_table(marks)):
            tell(line)
    if table:
        written = io.StringIO(newline="")
        csv.writer(written).writerows(_rows(marks))
        files.write(table, "\ufeff" + written.getvalue())  # the mark by which a spreadsheet knows UTF-8


async def _side_by_side(
    paths: Sequence[Path], notebooks: list[Any], bar: tqdm, tell: Callable[[str], None]
) -> dict[Path, dict[str, str]]:
    free, marks = asyncio.Semaphore(cores()), {}

    async def one(notebook: Any, path: Path) -> dict[str, str]:
        async with free:
            found = await mark(notebook, path)
        bar.update()
        return found

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(*each)) for each in zip(notebooks, paths, strict=True)]
        for path, task in zip(paths, tasks, strict=True):
            marks[path] = await task
            kinds = [_kind(said) for said in marks[path].values()]
            counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
            with tqdm.external_write_mode():
                tell(f"{path}: {counts or 'no exercise'}")
                for number, said in marks[path].items():
                    tell(f"  {number:<6} {terminal.shown(said)}")
    return marks


def _read(path: Path) -> Any:
    import nbformat

    if path.is_char_device():
        raise BookError(f"{path}: should be a notebook, and a device has no end")
    try:
        with warnings.catch_warnings(action="ignore"):  # cells without an id, or two with the same, run like any others
            notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            cell.source = str(cell.get("source", ""))
        return notebook
    except OSError as error:
        raise BookError(f"{path}: {error.strerror}") from None
    except Exception as error:  # nbformat has many words for it
        raise BookError(f"{path}: should be a notebook ({type(error).__name__})") from None


async def mark(notebook: Any, path: Path) -> dict[str, str]:
    """What the checkers say of each exercise of a notebook, in its order; and why, where one could say nothing."""
    Client, failures = jupyter()
    clear(notebook)
    died = "it was not run"
    with tempfile.TemporaryDirectory("", "minitransformer-", files.temporary(), ignore_cleanup_errors=True) as name:
        place = Path(name)
        (place / ".surroundings").mkdir()
        goes_on: dict[str, Any] = {"timeout": LONGEST_CELL, "interrupt_on_timeout": True, "allow_errors": True}
        client = Client(notebook, place / "kernel.json", path.resolve().parent, **goes_on)
        _keep_what_is_said(client)
        stuck, begun = _end_what_goes_on(client)
        try:
            await client.async_execute(env=surroundings(place, place))
        except failures:  # what it had printed counts
            died = "its kernel died"
            died += f" in cell {begun[-1] + 1}" if begun else ""
            died += f" or after cell {begun[-2] + 1}" if begun[1:] else ""  # where `exit()` may stand
        except RuntimeError as error:
            died = f"its kernel did not start: {error}"
    if stuck:
        died = "its kernel was ended, because a cell before it would not stop"
    found: dict[str, str] = {}
    first = ""
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            spoken = SAID.findall("".join(out.get("text", "") for out in cell.outputs if out.get("name") == "stdout"))
            raised = [f"raised {out.ename}: {out.evalue}".splitlines()[0] for out in cell.outputs if "ename" in out]
            if index in stuck or (raised and raised[0].startswith("raised KeyboardInterrupt")):
                raised = [f"too long: stopped after {LONGEST_CELL} seconds"]
            why = raised[0] if raised else "no answer" if cell.execution_count else died
            if why.startswith("raised NameError") and first:  # that cell may be why there is no such name
                why += f"; {first}"
            new = dict.fromkeys(ASKED.findall(cell.source), why) | dict(spoken)
            found |= {one: says for one, says in new.items() if one not in found or not says.startswith("waits")}
            if raised and not first:
                first = f"before it, cell {index + 1} {raised[0]}"
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and (suspect := SUSPECT.search(cell.source)):
            read = f"right? Cell {index + 1} has `{suspect[0]}` in it: read it."
            return {number: read if said == "right." else said for number, said in found.items()}
    return found


def _keep_what_is_said(client: Any) -> None:
    """Let a client keep errors, and of what is printed the lines of checkers: a loop that prints would fill the memory."""
    output = client.output

    def kept(outs: list[Any], msg: dict[str, Any], display_id: str | None, cell_index: int) -> Any:
        if msg["msg_type"] == "error":
            return output(outs, msg, display_id, cell_index)
        if msg["msg_type"] == "stream" and msg["content"]["name"] == "stdout":
            before = "".join(out.text for out in outs if out.output_type == "stream")
            *lines, last = (before + msg["content"]["text"]).split("\n")
            said = {number: line for line in lines for number, _ in SAID.findall(line)}  # the last of each
            outs[:] = [out for out in outs if out.output_type != "stream"]
            msg["content"]["text"] = "\n".join([*said.values(), last[:LONGEST_LINE]])
            return output(outs, msg, display_id, cell_index)
        return None

    client.output = kept


def _end_what_goes_on(client: Any) -> tuple[list[int], list[int]]:
    """Let a client end its kernel where a cell goes on after the interrupt.

    In the first list is then the index of that cell; in the second are those of all cells that have begun.
    """
    stuck: list[int] = []
    begun: list[int] = []
    running: list[asyncio.Task[None]] = []

    async def end(cell_index: int) -> None:
        await asyncio.sleep(LONGEST_CELL + LONGEST_STOP)
        stuck.append(cell_index)
        if client.km is not None:  # else it has died itself
            await client.km.shutdown_kernel(now=True)

    def begins(cell: Any, cell_index: int) -> None:
        begun.append(cell_index)
        running.append(asyncio.create_task(end(cell_index)))

    def is_done(**_: Any) -> None:
        running.pop().cancel()

    client.on_cell_execute, client.on_cell_executed = begins, is_done
    return stuck, begun


def _kind(said: str) -> str:
    """The first words of a mark, which stand for it in a table."""
    return next(
        (kind for kind in ("right?", "right", "not yet", "waits", "raised", "too long") if said.startswith(kind)),
        "no kernel" if said.startswith("its kernel") else "no answer",
    )


def _rows(marks: dict[Path, dict[str, str]]) -> Iterator[list[str]]:
    """A row for each notebook, a column for each exercise that one of them has; above them the numbers."""
    numbers = sorted({number for one in marks.values() for number in one}, key=lambda n: [*map(int, n.split("."))])
    yield ["", *numbers]
    for path, one in marks.items():
        yield [str(path), *(_kind(one[number]) if number in one else "—" for number in numbers)]


def _table(marks: dict[Path, dict[str, str]]) -> Iterator[str]:
    wide = max(len(str(path)) for path in marks)
    for name, *cells in _rows(marks):
        yield (f"{name:{wide}}" + "".join(f"  {cell:<9}" for cell in cells)).rstrip()
