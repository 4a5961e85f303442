"""Notebooks that were handed in are marked: by what the checkers print, whatever else goes wrong in them."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import nbformat
import pytest

from minitransformer import cli
from minitransformer.book import marking

pytest.importorskip("nbclient")

CHECK = "import minitransformer as mt\nmt.check_exercise('{}', {})"
RIGHT = CHECK.format("2.1", "[4/11, 1/11, 2/11, 4/11]")
AT_ONCE = "print('Exercise 2.1 is', 'right.')"  # nothing to be imported, so a busy machine takes no longer


def hand_in(path, *cells):
    ran = [nbformat.v4.new_code_cell(cell, execution_count=7) for cell in cells]  # at home, once
    nbformat.write(nbformat.v4.new_notebook(cells=ran), path)
    return path.read_bytes()


def test_what_is_right_what_is_not_yet_what_waits_and_what_raises(tmp_path, capsys):
    (tmp_path / "data.txt").write_text("beside the notebook")
    cells = RIGHT, CHECK.format("2.2", "[1, 2, 3, 4]"), CHECK.format("2.3", "oops"), CHECK.format("2.8", "...")
    before = hand_in(tmp_path / "anna.ipynb", "assert open('data.txt').read()", "1 / 0", *cells)
    hand_in(tmp_path / "ben.ipynb", RIGHT, "import os; os._exit(3)", CHECK.format("2.10", 3))
    assert cli.main(["exercises", str(tmp_path / "anna.ipynb"), str(tmp_path / "ben.ipynb")]) == 0
    lines = capsys.readouterr().out.replace(f"{tmp_path}/", "").splitlines()
    assert lines[0] == "anna.ipynb: 1 right, 1 not yet, 1 raised, 1 waits"
    assert lines[1].split() == ["2.1", "right."]
    assert lines[2].startswith("  2.2    not yet: A constant added to the row changes nothing.")
    why = "; before it, cell 2 raised ZeroDivisionError: division by zero"
    assert lines[3] == f"  2.3    raised NameError: name 'oops' is not defined{why}"
    assert lines[4] == "  2.8    waits for your answer."
    assert lines[5:9] == [
        "ben.ipynb: 1 right, 1 no kernel",
        "  2.1    right.",
        "  2.10   its kernel died in cell 2 or after cell 1",
        "",
    ]
    assert [line.split() for line in lines[9:]] == [
        ["2.1", "2.2", "2.3", "2.8", "2.10"],
        ["anna.ipynb", "right", "not", "yet", "raised", "waits", "—"],
        ["ben.ipynb", "right", "—", "—", "—", "no", "kernel"],
    ]
    assert (tmp_path / "anna.ipynb").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["anna.ipynb", "ben.ipynb", "data.txt"]


def test_the_table_also_comes_as_a_file_for_a_spreadsheet(tmp_path, capsys):
    paths = [str(tmp_path / name) for name in ("Groß, Zoë.ipynb", "ben.ipynb")]
    hand_in(tmp_path / "Groß, Zoë.ipynb", AT_ONCE)
    hand_in(tmp_path / "ben.ipynb", "print('Exercise 2.3, not yet: because.')")
    assert cli.main(["exercises", "--csv", str(tmp_path / "marks.csv"), *paths]) == 0
    with open(tmp_path / "marks.csv", encoding="utf-8-sig", newline="") as file:
        assert list(csv.reader(file)) == [["", "2.1", "2.3"], [paths[0], "right", "—"], [paths[1], "—", "not yet"]]


def test_a_table_is_written_over_no_answers_and_into_no_folder_that_is_missing(tmp_path, capsys):
    before = hand_in(tmp_path / "anna.ipynb", "open('it ran', 'w')")
    for table, why in (("anna.ipynb", "should be a .csv file for the table"), ("no/marks.csv", "there is no folder")):
        assert cli.main(["exercises", "--csv", str(tmp_path / table), str(tmp_path / "anna.ipynb")]) == 1
        assert why in capsys.readouterr().err
    assert (tmp_path / "anna.ipynb").read_bytes() == before
    assert not (tmp_path / "it ran").exists()


def test_notebooks_run_side_by_side_and_are_told_in_their_order(tmp_path, capsys, monkeypatch):
    """The first waits for what the second does; the third has a kernel that dies."""
    monkeypatch.setattr(marking, "cores", lambda: 2)
    waits = "import os, time\nwhile not os.path.exists('second'):\n    time.sleep(0.1)"
    hand_in(tmp_path / "a.ipynb", waits, RIGHT)
    hand_in(tmp_path / "b.ipynb", "open('second', 'w').close()", RIGHT)
    hand_in(tmp_path / "c.ipynb", "import os; os._exit(3)", RIGHT)
    assert cli.main(["exercises", *(str(tmp_path / f"{name}.ipynb") for name in "abc")]) == 0
    told = [line.split() for line in capsys.readouterr().out.replace(f"{tmp_path}/", "").splitlines()[-3:]]
    assert told == [["a.ipynb", "right"], ["b.ipynb", "right"], ["c.ipynb", "no", "kernel"]]


def test_an_endless_loop_is_stopped_and_called_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(marking, "LONGEST_CELL", 3)
    hand_in(tmp_path / "loop.ipynb", CHECK.format("2.4", "[x for x in iter(int, 1)]"), AT_ONCE)
    assert cli.main(["exercises", str(tmp_path / "loop.ipynb")]) == 0
    lines = capsys.readouterr().out.replace(f"{tmp_path}/", "").splitlines()
    assert lines == ["loop.ipynb: 1 too long, 1 right", "  2.4    too long: stopped after 3 seconds", "  2.1    right."]


def test_a_loop_that_catches_the_interrupt_ends_with_its_kernel(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(marking, "LONGEST_CELL", 3)
    monkeypatch.setattr(marking, "LONGEST_STOP", 1)
    loop = "import time\nwhile True:\n    try:\n        time.sleep(0.1)\n    except:\n        pass\n"
    hand_in(tmp_path / "anna.ipynb", AT_ONCE, loop + CHECK.format("2.4", 1), CHECK.format("2.2", "[1, 2, 3, 4]"))
    hand_in(tmp_path / "ben.ipynb", AT_ONCE)
    assert cli.main(["exercises", str(tmp_path / "anna.ipynb"), str(tmp_path / "ben.ipynb")]) == 0
    lines = capsys.readouterr().out.replace(f"{tmp_path}/", "").splitlines()
    assert lines[:5] == [
        "anna.ipynb: 1 right, 1 too long, 1 no kernel",
        "  2.1    right.",
        "  2.4    too long: stopped after 3 seconds",
        "  2.2    its kernel was ended, because a cell before it would not stop",
        "ben.ipynb: 1 right",
    ]


def test_of_what_is_printed_without_end_only_marks_are_kept():
    class Client:
        def output(self, outs, msg, display_id, cell_index):
            outs.append(nbformat.v4.new_output(msg["msg_type"], **msg["content"]))

    marking._keep_what_is_said(client := Client())
    outs = []

    def prints(text, name="stdout"):
        client.output(outs, {"msg_type": "stream", "content": {"name": name, "text": text}}, None, 0)

    prints("Exercise 2.1, not yet: look again.\nExercise 2.2 is right.\nExer")
    prints("x", "stderr")
    client.output(outs, {"msg_type": "execute_result", "content": {}}, None, 0)
    prints("cise 2.1 is right.\n")
    for _ in range(1000):
        prints(500 * "x")
    [out] = outs
    assert out.text.split("\n")[:2] == ["Exercise 2.1 is right.", "Exercise 2.2 is right."]
    assert len(out.text) < 11_000
    prints("\n" + "Exercise 2.2, not yet: no.\n" * 1000)
    assert outs[0].text == "Exercise 2.1 is right.\nExercise 2.2, not yet: no.\n"


@pytest.mark.parametrize(
    "cell",
    [
        "print('Exercise 2.2 is right.')",
        "check_exercise = print",
        "mt.check_exercise= print",
        "def check_exercise(*_):\n    pass",
        "from mine import print as check_exercise",
        "CHECKERS = 3",
        "from minitransformer.exercises.chapter_02 import RIGHT",
        "hint_for('2.1', 3)",
        "from tests.exercises.answers_02 import ANSWERS",
    ],
)
def test_a_cell_by_which_a_notebook_may_have_marked_itself(cell):
    assert marking.SUSPECT.search(cell)


@pytest.mark.parametrize(
    "cell",
    [
        "from minitransformer import check_exercise as asks",
        "from minitransformer.exercises import check_exercise",
        "mt.exercises.check_exercise('2.1', answer)",
        "check_exercise == print",
        "assert dX.any()  # the sign is right.",
    ],
)
def test_a_cell_that_asks_as_anybody_would(cell):
    assert not marking.SUSPECT.search(cell)


def test_no_cell_of_the_book_makes_a_mark_doubtful(root):
    chapters = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((root / "notebooks").glob("*.ipynb"))]
    cells = [
        "".join(cell["source"]) for chapter in chapters for cell in chapter["cells"] if cell["cell_type"] == "code"
    ]
    assert cells
    assert not [cell for cell in cells if marking.SUSPECT.search(cell)]


def test_a_notebook_that_may_have_marked_itself_is_to_be_read(tmp_path, capsys):
    hand_in(tmp_path / "anna.ipynb", AT_ONCE, "CHECKERS = 3", "print('Exercise 2.3, not yet: no.')")
    hand_in(tmp_path / "ben.ipynb", AT_ONCE, "from minitransformer import check_exercise as asks")
    assert cli.main(["exercises", str(tmp_path / "anna.ipynb"), str(tmp_path / "ben.ipynb")]) == 0
    _, first, *lines = capsys.readouterr().out.replace(f"{tmp_path}/", "").splitlines()
    assert first.startswith("  2.1    right? Cell 2 has `")
    assert first.endswith("` in it: read it.")
    assert "  2.3    not yet: no." in lines
    assert lines[-2].split()[:2] == ["anna.ipynb", "right?"]
    assert lines[-1].split()[:2] == ["ben.ipynb", "right"]


def test_a_notebook_that_writes_over_another_takes_nothing_from_it(tmp_path, capsys):
    before = hand_in(tmp_path / "anna.ipynb", AT_ONCE)
    hand_in(tmp_path / "ben.ipynb", "open('anna.ipynb', 'w').write('gone'); import os; os.remove('ben.ipynb')", AT_ONCE)
    after = (tmp_path / "ben.ipynb").read_bytes()
    assert cli.main(["exercises", str(tmp_path / "anna.ipynb"), str(tmp_path / "ben.ipynb")]) == 0
    assert (tmp_path / "anna.ipynb").read_bytes() == before
    assert (tmp_path / "ben.ipynb").read_bytes() == after
    lines = capsys.readouterr().out.replace(f"{tmp_path}/", "").splitlines()
    assert lines[0] == "anna.ipynb: 1 right"
    for name in ("anna", "ben"):
        assert f"{name}.ipynb: was changed while notebooks ran, and is put back as it was handed in" in lines


def test_a_cell_that_waits_takes_nothing_from_one_above_it(tmp_path, capsys):
    hand_in(tmp_path / "anna.ipynb", AT_ONCE, "print('Exercise 2.1 waits for your answer.')")
    assert cli.main(["exercises", str(tmp_path / "anna.ipynb")]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["  2.1    right."]


def test_cells_without_an_id_or_a_source_run_like_any_others(tmp_path, capsys, recwarn):
    cells = [{"cell_type": "code", "metadata": {}}, {"cell_type": "code", "metadata": {}, "source": RIGHT}]
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}
    (tmp_path / "anna.ipynb").write_text(json.dumps(notebook))
    assert cli.main(["exercises", str(tmp_path / "anna.ipynb")]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1].split() == ["2.1", "right."]
    assert not [warning for warning in recwarn if "id" in str(warning.message)]


@pytest.mark.parametrize("content", ["no JSON", "[]", '{"cells": 3}'])
def test_what_is_no_notebook_is_refused_before_any_runs(content, tmp_path, capsys):
    hand_in(tmp_path / "anna.ipynb", "open('it ran', 'w')")
    (tmp_path / "ben.ipynb").write_text(content)
    assert cli.main(["exercises", str(tmp_path / "anna.ipynb"), str(tmp_path / "ben.ipynb")]) == 1
    assert f"{tmp_path / 'ben.ipynb'}: should be a notebook" in capsys.readouterr().err
    assert not (tmp_path / "it ran").exists()


def test_all_that_are_no_notebooks_are_named_at_once(tmp_path, capsys):
    hand_in(tmp_path / "anna.ipynb", "open('it ran', 'w')")
    (tmp_path / "ben.ipynb").write_text("no JSON")
    (tmp_path / "carl.ipynb").write_text("[]")
    paths = [str(tmp_path / f"{name}.ipynb") for name in ("anna", "ben", "carl", "dora")]
    assert cli.main(["exercises", *paths]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.removeprefix("minitransformer: ").partition(": ")[0] for line in lines] == paths[1:]
    assert lines[2].endswith("No such file or directory")
    assert not (tmp_path / "it ran").exists()


def test_a_device_is_not_read(capsys):
    assert cli.main(["exercises", os.devnull]) == 1
    assert f"{os.devnull}: should be a notebook, and a device has no end" in capsys.readouterr().err


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_with_the_kernel_and_marks_nothing(tmp_path, sent):
    room = tmp_path / "temporary"
    room.mkdir()
    note = tmp_path / "pid"
    slow = f"import os, time\nopen('part', 'w').write(str(os.getpid()))\nos.replace('part', {str(note)!r})\ntime.sleep(3600)"
    hand_in(tmp_path / "anna.ipynb", slow, RIGHT)
    hand_in(tmp_path / "ben.ipynb", "import time; time.sleep(3600)", RIGHT)
    run = subprocess.Popen(
        [sys.executable, "-m", "minitransformer", "exercises", *map(str, sorted(tmp_path.glob("*.ipynb")))],
        env=os.environ | {"TMPDIR": str(room)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not note.exists() and run.poll() is None:
        time.sleep(0.1)
    run.send_signal(sent)
    out, err = run.communicate()
    assert (run.returncode, out, err.strip()) == (130, "", "minitransformer: interrupted")
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)
    assert list(room.iterdir()) == []


@pytest.mark.parametrize("slow", ["jupyter_client.manager", "matplotlib"])
def test_it_ends_in_a_line_while_a_kernel_is_prepared(tmp_path, slow):
    """SIGTERM came in the middle of an import, and a traceback of thirty lines said so."""
    hand_in(tmp_path / "anna.ipynb", RIGHT)
    code = f"""
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == {slow!r}:
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Finder())
from minitransformer.cli import main
sys.exit(main(["exercises", {str(tmp_path / "anna.ipynb")!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (130, "minitransformer: interrupted")


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="this system has no limit to the size of a file")
def test_where_there_is_no_room_for_a_kernel_s_ports_a_line_says_so(tmp_path):
    """The file of ten bytes that asks whether there is room at all may be written; one of 300 bytes may not."""
    hand_in(tmp_path / "anna.ipynb", RIGHT)
    code = f"""
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
from minitransformer.cli import main
sys.exit(main(["exercises", {str(tmp_path / "anna.ipynb")!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].endswith("File too large")


def test_help_says_whose_code_runs(capsys):
    with pytest.raises(SystemExit):
        cli.main(["exercises", "--help"])
    assert "Their code runs with your permissions" in " ".join(capsys.readouterr().out.split())
