"""The notebook runner, on notebooks of a few cells: the same bytes every time, and every kind of staleness is found."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import nbformat
import pytest

from minitransformer.book import book, running
from tests.fresh_python import fresh_python

DRAW = """
import numpy as np
from minitransformer.figures import figure, save
fig, axes = figure()
axes.plot(np.random.default_rng(0).normal(size=9))
save(fig, "line")
"""
SLOW = """
import os, time
open("pid", "w").write(str(os.getpid()))
os.replace("pid", os.environ["NOTE"])
time.sleep(3600)
"""
MEET = """
import os, time
from pathlib import Path
note = Path(os.environ["NOTES"])
(note / "{mine}").touch()
while not (note / "{other}").exists():
    time.sleep(0.01)
"""
CHAPTERS = {
    "00_first": [
        ("import os\nos.environ['MPLBACKEND']", []),
        ("print(hash('a'))", []),  # another one in every process, unless its seed is fixed
        ("import time\nprint(time.time())", ["live"]),
    ],
    "01_second": [
        ("assert 'time' not in globals()  # the kernel is clean", []),
        (DRAW, []),
        ("save(fig, 'heavy', format='png')", []),
    ],
}


def write_notebook(folder, name, cells):
    made = [nbformat.v4.new_code_cell(source.strip(), id=f"cell-{i}") for i, (source, _) in enumerate(cells)]
    for cell, (_, tags) in zip(made, cells, strict=True):
        cell.metadata = {"tags": tags} if tags else {}
    nbformat.write(nbformat.v4.new_notebook(cells=made), folder / "notebooks" / f"{name}.ipynb")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A repository of two chapters, after `minitransformer book`."""
    root = tmp_path_factory.mktemp("repository")
    for part in ("notebooks", "minitransformer", "figures"):
        (root / part).mkdir()
    for name, cells in CHAPTERS.items():
        write_notebook(root, name, cells)
    with pytest.MonkeyPatch.context() as readers_own:
        readers_own.setenv("MPLBACKEND", "agg")
        book.write(root, [])
    return root


@pytest.fixture
def root(made, tmp_path):
    """A copy of it, to be spoiled."""
    return shutil.copytree(made, tmp_path / "repository")


def spoil(root, name, change):
    """Change the JSON of a notebook on disk."""
    path = root / "notebooks" / f"{name}.ipynb"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_run_keeps_outputs_and_figures(made):
    first = nbformat.read(made / "notebooks" / "00_first.ipynb", as_version=4)
    assert first.cells[0].outputs[0].data["text/plain"] == "'module://matplotlib_inline.backend_inline'"
    assert [cell.execution_count for cell in first.cells] == [1, 2, None]
    assert {path.name for path in (made / "figures").iterdir()} == {"fig_line.svg", "fig_heavy.png"}


def test_a_run_leaves_no_time_no_version_and_no_path(made):
    for path in (made / "notebooks").iterdir():
        notebook = nbformat.read(path, as_version=4)
        assert notebook.metadata.language_info == {"name": "python"}
        assert set(notebook.metadata) <= {"kernelspec", "language_info"}
        assert all(set(cell.metadata) <= {"tags"} for cell in notebook.cells)
        assert "minitransformer-" not in path.read_text()


def test_a_live_cell_is_run_and_its_output_not_kept(made, root):
    assert nbformat.read(made / "notebooks" / "00_first.ipynb", as_version=4).cells[2].outputs == []
    write_notebook(root, "02_live", [("assert 1 > 2, 'never'", ["live"])])
    with pytest.raises(book.BookError, match=r"02_live.ipynb, cell 1: AssertionError: never"):
        book.check(root, ["02"])


def test_a_live_cell_keeps_no_figure(root):
    write_notebook(root, "02_live", [(DRAW, ["live"])])
    with pytest.raises(book.BookError, match=r"figures/fig_line.svg: a cell that is live can't keep a figure"):
        book.write(root, ["02"])


def test_what_differs_by_a_trace_is_left_as_it_was(root):
    """... but for what is read from a record, which has no traces."""
    write_notebook(root, "02_sum", [("print(1 / 3)", []), ("print(0.12)  # of experiments.load('a')", [])])
    book.write(root, ["02"])
    path = root / "notebooks" / "02_sum.ipynb"
    path.write_text(path.read_text().replace("0.3333333333333333", "0.3333333333333331"))
    drawing = root / "figures" / "fig_line.svg"
    drawing.write_text(drawing.read_text() + " ")
    before = {path: path.read_bytes() for path in root.rglob("*.*") if path.is_file()}
    book.write(root, [])
    assert {path: path.read_bytes() for path in root.rglob("*.*") if path.is_file()} == before
    given = nbformat.read(path, as_version=4)
    path.write_text(path.read_text().replace('"0.12', '"0.13'))
    assert list(book._cells_differ(path, given)) == ["cell 2: the number 0.13 became 0.12"]
    path.write_text(path.read_text().replace("0.3333333333333331", "0.34"))
    book.write(root, ["02"])
    assert "0.3333333333333333" in path.read_text()
    assert '"0.12' in path.read_text()


def test_a_figure_that_no_notebook_writes_is_named(tmp_path):
    """... but no file that is hidden, as macOS leaves some in every folder."""
    (tmp_path / "figures").mkdir()
    for name in (".DS_Store", "fig_b.svg", "fig_a.png", "fig_c.svg"):
        (tmp_path / "figures" / name).touch()
    named = [f"figures/{name}: no notebook writes it" for name in ("fig_a.png", "fig_b.svg")]
    assert book._orphans(tmp_path, {"fig_c.svg"}) == named


def test_cells_that_are_run_are_those_with_code():
    made = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_markdown_cell("1"), *map(nbformat.v4.new_code_cell, ("1", " ", ""))]
    )
    assert [cell.source for cell in book._code(made)] == ["1"]


def test_a_kernel_whose_port_was_taken_gets_another_one(root, monkeypatch):
    """It is free when it is chosen, and another process has it when the kernel comes."""
    from jupyter_client.connect import LocalPortCache

    find, given = LocalPortCache.find_available_port, []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()

        def the_first_is_taken(cache, ip):
            given.append(find(cache, ip) if given else taken.getsockname()[1])
            return given[-1]

        monkeypatch.setattr(LocalPortCache, "find_available_port", the_first_is_taken)
        book.write(root, ["01"])
    assert len(given) == 10  # five for each kernel


def test_a_second_run_gives_the_same_bytes(root):
    before = {path: path.read_bytes() for path in root.rglob("*.*") if path.is_file()}
    book.write(root, ["01"])
    assert {path: path.read_bytes() for path in root.rglob("*.*") if path.is_file()} == before


def test_a_fresh_book_is_up_to_date_though_the_clock_went_on(root):
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert book.check(root, []) == []
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_stale_outputs_and_figures_are_found(root):
    spoil(root, "00_first", lambda nb: nb["cells"][1]["outputs"][0].update(text=["12345\n"]))
    spoil(root, "01_second", lambda nb: nb["cells"][1].update(outputs=[]))
    drawing = root / "figures" / "fig_line.svg"
    drawing.write_text(drawing.read_text().replace("M ", "M 1", 1))
    (root / "figures" / "fig_heavy.png").unlink()
    (root / "figures" / "fig_old.svg").write_text("<svg/>")
    stale = "\n".join(book.check(root, []))
    assert "00_first, cell 2: the number 12345 became" in stale
    assert "01_second, cell 2: outputs were none" in stale
    assert "figures/fig_line.svg: the drawing changed" in stale
    assert "figures/fig_heavy.png: is missing" in stale
    assert "figures/fig_old.svg: no notebook writes it" in stale
    assert len(stale.splitlines()) == 5


def test_an_exception_names_notebook_and_cell_and_changes_nothing(root):
    cells = [("fine = 1", []), ("print('half')\nfine / 0", [])]
    write_notebook(root, "02_broken", cells)
    before = (root / "notebooks" / "02_broken.ipynb").read_bytes()
    with pytest.raises(book.BookError) as caught:
        book.write(root, ["02"])
    message = str(caught.value)
    assert message.startswith("02_broken.ipynb, cell 2: ZeroDivisionError: division by zero\n")
    assert "    fine / 0\n" in message
    assert "Traceback" in message
    assert "\x1b" not in message
    assert (root / "notebooks" / "02_broken.ipynb").read_bytes() == before


def test_a_kernel_that_dies_is_one_clear_line(root):
    write_notebook(root, "02_dies", [("import os\nos._exit(1)", [])])
    with pytest.raises(book.BookError, match=r"02_dies.ipynb, cell 1: the kernel died"):
        book.check(root, ["02"])


def test_a_figure_of_a_failing_notebook_is_not_kept(root):
    write_notebook(root, "02_broken", [(DRAW.replace("line", "half"), []), ("1 / 0", [])])
    with pytest.raises(book.BookError):
        book.write(root, ["02"])
    assert not (root / "figures" / "fig_half.svg").exists()


def test_chapters_run_side_by_side(root, monkeypatch, tmp_path):
    monkeypatch.setenv("NOTES", str(tmp_path))
    monkeypatch.setattr(book, "cores", lambda: 2)
    write_notebook(root, "02_here", [(MEET.format(mine="here", other="there"), []), (DRAW.replace("line", "two"), [])])
    write_notebook(
        root, "03_there", [(MEET.format(mine="there", other="here"), []), (DRAW.replace("line", "three"), [])]
    )
    book.write(root, ["02", "03"])
    assert {path.name for path in (root / "figures").glob("*_t*")} == {"fig_two.svg", "fig_three.svg"}


def test_a_chapter_has_one_core_unless_the_reader_says_otherwise(tmp_path, monkeypatch):
    (tmp_path / ".surroundings").mkdir()
    for name in running.THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = running.surroundings(tmp_path, tmp_path / "figures")
    assert [found[name] for name in running.THREADS] == ["1", "3", "1", "1"]


def test_where_one_chapter_fails_the_others_are_stopped(root, monkeypatch, tmp_path):
    note = tmp_path / "pid"
    monkeypatch.setenv("NOTE", str(note))
    monkeypatch.setattr(book, "cores", lambda: 2)
    wait = f"import os, time\nwhile not os.path.exists({str(note)!r}):\n    time.sleep(0.01)\n1 / 0"
    write_notebook(root, "02_slow", [(SLOW, [])])
    write_notebook(root, "03_broken", [(wait, [])])
    with pytest.raises(book.BookError, match=r"03_broken.ipynb, cell 1: ZeroDivisionError"):
        book.check(root, ["02", "03"])
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


def test_links_between_chapters_are_written_and_old_ones_are_found(root):
    path = root / "notebooks" / "02_titled.ipynb"
    cells = [
        nbformat.v4.new_markdown_cell("# 02 · Titled", id="title"),
        nbformat.v4.new_code_cell("print(2)", id="code"),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    stale = [
        "02_titled, its links to chapters and sections are old",
        "02_titled, cell 3: outputs were none, are stdout",
    ]
    assert book.check(root, ["02"]) == stale
    book.write(root, ["02"])
    written = [cell.id for cell in nbformat.read(path, as_version=4).cells]
    assert written == ["title", "navigation-top", "code", "navigation-end"]
    assert book.check(root, ["02"]) == []


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_the_kernel_and_changes_nothing(root, sent):
    write_notebook(root, "02_slow", [(SLOW, [])])
    before = (root / "notebooks" / "02_slow.ipynb").read_bytes()
    note = root / "pid"
    run = subprocess.Popen(
        [sys.executable, "-m", "minitransformer", "book", "02"],
        cwd=root,
        env=os.environ | {"NOTE": str(note)},
        stderr=subprocess.PIPE,
        text=True,
    )
    while not note.exists() and run.poll() is None:
        time.sleep(0.1)
    run.send_signal(sent)
    assert run.wait() == 130
    assert run.stderr.read().strip() == "minitransformer: interrupted"
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)
    assert (root / "notebooks" / "02_slow.ipynb").read_bytes() == before


def test_names_choose_chapters(made):
    assert [path.stem for path in book.choose(made, [])] == ["00_first", "01_second"]
    assert [path.stem for path in book.choose(made, ["01"])] == ["01_second"]
    assert [path.stem for path in book.choose(made, ["notebooks/01_second.ipynb", "00"])] == ["00_first", "01_second"]
    for name, said in (("07", "07"), ("", "''")):
        with pytest.raises(book.BookError, match=f"no notebook {said}; there are 00_first, 01_second"):
            book.choose(made, [name])


def test_a_number_of_one_digit_is_that_chapter(root):
    (root / "notebooks" / "10_tenth.ipynb").write_bytes((root / "notebooks" / "01_second.ipynb").read_bytes())
    assert [path.stem for path in book.choose(root, ["1"])] == ["01_second"]
    assert [path.stem for path in book.choose(root, ["10"])] == ["10_tenth"]
    assert [path.stem for path in book.choose(root, ["10_t", "0"])] == ["00_first", "10_tenth"]
    with pytest.raises(book.BookError, match="no notebook 2; there are 00_first, 01_second, 10_tenth"):
        book.choose(root, ["2"])


def test_without_nbclient_one_line_says_what_to_install(made, monkeypatch):
    monkeypatch.setitem(sys.modules, "nbclient", None)
    with pytest.raises(book.BookError, match="notebooks need nbclient"):
        book.check(made, [])


def test_outside_a_repository_one_line_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(book, "__file__", str(tmp_path / "lib" / "minitransformer" / "book" / "book.py"))
    with pytest.raises(book.BookError, match="run this in a copy of the repository"):
        book.repository()


def test_a_full_disk_is_one_clear_line(root, monkeypatch):
    def full(*_, **__):
        raise shutil.Error([("a", "b", "[Errno 28] No space left on device: 'a' -> 'b'")] * 300)

    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(book.BookError, match=r"^\S+ can't hold the copy .*: \[Errno 28\] No space left on device$"):
        book.check(root, ["00"])


def test_a_home_that_can_not_be_written_leaves_no_warning_in_a_chapter(tmp_path):
    (tmp_path / "home").touch()
    (tmp_path / ".surroundings").mkdir()
    code = f"""
from pathlib import Path
from minitransformer.book.running import surroundings
print(Path(surroundings(Path({str(tmp_path)!r}), Path())["MPLCONFIGDIR"]).is_dir())
"""
    home = str(tmp_path / "home")
    assert fresh_python(code, without=("MPL", "XDG"), HOME=home, USERPROFILE=home) == "True\n"


def test_a_copy_that_can_not_be_removed_is_left_where_it_is(root, monkeypatch):
    """A kernel may still hold a file of it: that is no reason to lose the chapter that was run there."""
    unlink = os.unlink

    def busy(path, **options):
        if os.path.basename(path) == "busy":
            raise OSError(16, "Device or resource busy")
        unlink(path, **options)

    with book.workspace(root) as copy:
        (copy / "busy").touch()
        monkeypatch.setattr(os, "unlink", busy)
    assert (copy / "busy").exists()
    monkeypatch.undo()
    shutil.rmtree(copy.parent)
