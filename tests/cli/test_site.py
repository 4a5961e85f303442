"""`minitransformer site` says what is missing, overwrites nothing but a site, and sends pages as a browser wants them."""

import os
import signal
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from minitransformer.cli import site


def test_without_its_packages_it_says_how_to_get_them(tmp_path):
    with pytest.raises(ImportError, match="make site"):
        site.build(tmp_path, tmp_path / "out")


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    python = tmp_path / ".venv-site" / site.PYTHONS[0]
    python.parent.mkdir(parents=True)
    python.touch()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").touch()
    with pytest.raises(ValueError, match="not overwritten"):
        site.build(tmp_path, tmp_path / "thesis")
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.tex"]


def test_a_step_that_fails_is_named_and_leaves_nothing(tmp_path, capfd):
    python = tmp_path / ".venv-site" / site.PYTHONS[0]
    python.parent.mkdir(parents=True)
    python.touch()
    with pytest.raises(ValueError, match=r"pages\.py"):  # there is none
        site.build(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_new_site_takes_the_place_of_an_old_one(tmp_path, monkeypatch):
    """Pages of their own have ▶ on their cells, and all pages in one have not."""
    for file in (tmp_path / ".venv-site" / site.PYTHONS[0], tmp_path / "site" / "run" / "prepare.py"):
        file.parent.mkdir(parents=True)
        file.touch()
    steps = []

    def run(command):
        steps.append(command)
        if "sphinx" in command:
            made = Path(command[-1])
            made.mkdir()
            (made / f"{len(steps)}.html").touch()

    monkeypatch.setattr(site, "_run", run)
    out = tmp_path / "new" / "out"
    for single, names in (
        (False, ["pages.py", "html", "prepare.py"]),
        (True, ["pages.py", "singlehtml"]),
        (False, ["pages.py", "html", "prepare.py"]),
    ):
        steps.clear()
        site.build(tmp_path, out, single=single)
        assert {path.name for path in out.iterdir()} == {"2.html", site.MARK}
        assert [step[step.index("-b") + 1] if "sphinx" in step else Path(step[1]).name for step in steps] == names
        assert ("--single" in steps[0]) == single
        (out / "old.html").touch()


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="Windows")
def test_ctrl_c_ends_a_step_that_never_hears_of_it(tmp_path):
    """It would answer with a traceback, of wherever it was."""
    began = tmp_path / "began"
    script = (
        "import os, pathlib, signal, sys, time; blocked = signal.pthread_sigmask(signal.SIG_BLOCK, []); "
        f"pathlib.Path({str(began)!r}).write_text(f'{{os.getpid()}} {{signal.SIGINT in blocked}}'); time.sleep(600)"
    )

    def interrupt():
        while not (began.is_file() and began.read_text()):
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        site._run([sys.executable, "-c", script])
    process, blocked = began.read_text().split()
    assert blocked == "True"
    with pytest.raises(ProcessLookupError):
        os.kill(int(process), 0)


@pytest.mark.parametrize(("name", "kind"), [("a.mjs", "text/javascript"), ("a.wasm", "application/wasm")])
def test_scripts_and_their_binaries_are_called_what_browsers_want(tmp_path, name, kind):
    (tmp_path / name).write_bytes(b"")
    with site.server(tmp_path, 0) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        with urllib.request.urlopen(f"http://127.0.0.1:{serving.server_port}/{name}", timeout=600) as answer:
            assert answer.headers["Content-Type"] == kind
        serving.shutdown()


def test_where_its_port_is_taken_it_takes_another(tmp_path):
    with site.server(tmp_path, 0) as first, site.server(tmp_path, first.server_port) as second:
        assert second.server_port not in (0, first.server_port)
