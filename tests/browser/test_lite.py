"""A chapter opens in JupyterLite and runs: the kernel begins, cells print what the book shows, and nobody else is asked.

This needs Chromium, `.venv-lite` (`make lite` makes it) and the files of Pyodide, so it waits to be asked:
SITE_PYODIDE=… pytest tests/browser/test_lite.py. site/run/README.md says how that folder is filled.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

import nbformat
import pytest

from minitransformer.cli.site import server
from tests.browser.devtools import new_page, program, wait

PYODIDE, CHAPTER = os.environ.get("SITE_PYODIDE"), "14_graphs.ipynb"
PATIENCE = 180  # seconds for a kernel to begin, on a machine that does other things as well
if not PYODIDE:
    pytest.skip("SITE_PYODIDE names no folder with Pyodide's files", allow_module_level=True)
if program() is None:
    pytest.skip("there is no browser; on Debian and Ubuntu: apt install chromium", allow_module_level=True)
CELLS = "[...document.querySelectorAll('.jp-Notebook .jp-CodeCell')]"


@pytest.fixture(scope="module")
def site(root, tmp_path_factory):
    if not (root / ".venv-lite").exists():
        pytest.skip("there is no JupyterLite; make lite installs it")
    out = tmp_path_factory.mktemp("lite") / "lite"
    subprocess.run([sys.executable, root / "site" / "run" / "lite.py", out], check=True)
    return out


@contextmanager
def sending(folder):
    """The address of a server of the folder."""
    with server(folder, port=0) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_address[1]}"
        http.shutdown()


def click(page, script):
    """Click into the middle of an element."""
    page.ask(f"{script}.scrollIntoView()")
    x, y = page.ask(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({script}.getBoundingClientRect())")
    for kind in ("mousePressed", "mouseReleased"):
        page.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


def run(page):
    """Run the cell that is chosen, and go on to the next: Shift and Enter."""
    common = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "modifiers": 8}
    page.send("Input.dispatchKeyEvent", type="keyDown", text="\r", **common)
    page.send("Input.dispatchKeyEvent", type="keyUp", **common)


def test_a_chapter_runs_from_its_first_cell_and_asks_nobody(site, root, tmp_path):
    cells = nbformat.read(root / "notebooks" / CHAPTER, 4).cells
    first, second, *_ = (place for place, cell in enumerate(cells) if cell.cell_type == "code")
    chapter = site / "files" / "notebooks" / CHAPTER
    chapter.write_text(
        re.sub(r'"execution_count": \d+', '"execution_count": null', chapter.read_text())
    )  # now none has run
    with sending(site) as address, new_page(tmp_path / "profile") as page:
        for domain in ("Page", "Runtime", "Network"):
            page.send(f"{domain}.enable")
        page.resize(1300)
        page.go(f"{address}/lab/index.html?path=notebooks/{CHAPTER}")
        wait(lambda: page.ask(f"{CELLS}.length"), "the notebook", PATIENCE)
        kept = wait(
            lambda: page.ask(f"{CELLS}[1]?.querySelector('.jp-OutputArea')?.innerText"), "an output that is kept"
        )
        click(page, f"{CELLS}[0].querySelector('.cm-content')")
        for _ in range(first, second + 1):  # these two, and what is written between them
            run(page)
            time.sleep(0.5)
        wait(lambda: page.ask(f"{CELLS}[1].querySelector('.jp-InputPrompt').textContent") == "[2]:", "a cell", PATIENCE)
        said = page.ask(f"{CELLS}[1].querySelector('.jp-OutputArea').innerText")
        sent = [
            event["params"]["request"]["url"] for event in page.events if event["method"] == "Network.requestWillBeSent"
        ]
    assert kept.split() == said.split() == cells[second].outputs[0].text.split()
    assert {urlsplit(url).netloc for url in sent if url.startswith("http")} == {urlsplit(address).netloc}


def test_the_lock_names_all_that_is_needed_and_nothing_that_a_browser_lacks(site):
    static = site / "static" / "pyodide"
    packages = json.loads((static / "pyodide-lock.json").read_text())["packages"]
    for about in packages.values():
        assert (static / about["file_name"]).is_file()
        assert set(about["depends"]) <= set(packages)
    assert {"ipython", "traitlets", "minitransformer", "numpy"} <= set(packages)
    assert "pexpect" not in packages
