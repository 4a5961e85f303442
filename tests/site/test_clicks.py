"""A reader clicks through three chapters in a Chromium: one from top to bottom, one with an error, one stopped and begun again.

This needs Chromium, the files of Pyodide and some minutes, so it waits to be asked:
SITE_PYODIDE=… pytest tests/site/test_clicks.py. site/run/README.md says how the folder is filled.
"""

import functools
import http.server
import json
import os
import subprocess
import sys
import threading

import nbformat
import pytest

from tests.browser.devtools import new_page, program, wait
from tests.site.pages import bare_page

PYODIDE = os.environ.get("SITE_PYODIDE")
PATIENCE = 240  # seconds for a chapter, on a machine that does other things as well
if not PYODIDE:
    pytest.skip("SITE_PYODIDE names no folder with Pyodide's files", allow_module_level=True)
if program() is None:
    pytest.skip("there is no browser; on Debian and Ubuntu: apt install chromium", allow_module_level=True)

STATUS = "document.querySelector('.run-status')?.textContent ?? ''"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, with the types that a browser wants."""

    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | {
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, format, *args):
        pass


@pytest.fixture(scope="module")
def site(root, tmp_path_factory):
    """The address of three bare chapters with Python beside them."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, root / "site" / "run" / "prepare.py", folder / "run"]
    subprocess.run(command, check=True, env=os.environ | {"SITE_OFFLINE": "1", "SITE_PYODIDE": PYODIDE})
    for name in ("02_self_attention", "12_recurrence", "16_memory_retrieval"):
        (folder / f"{name}.html").write_text(bare_page(root / "notebooks" / f"{name}.ipynb"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.fixture
def page(tmp_path, site):
    with new_page(tmp_path / "browser") as page:
        yield page


def opened(page, address):
    page.go(address)
    wait(lambda: "fetches" in page.ask(STATUS), "the bar")


def click(page, selector):
    page.ask(f"document.querySelector({json.dumps(selector)}).click()")


def shown(page, id):
    """What the output of a cell says, and how many pictures it has."""
    return page.ask(
        f"(o => [o?.innerText ?? '', o?.querySelectorAll('img').length ?? 0])"
        f"(document.getElementById({json.dumps('cell-' + id)}).querySelector('.cell_output'))"
    )


def state(page, id):
    return page.ask(f"document.getElementById({json.dumps('cell-' + id)}).dataset.run ?? ''")


def write(page, id, code):
    """Replace the code of a cell, as typing does."""
    page.ask(
        f"(pre => {{pre.textContent = {json.dumps(code)}; pre.dispatchEvent(new Event('input'))}})"
        f"(document.getElementById({json.dumps('cell-' + id)}).querySelector('pre'))"
    )


def play(page, id):
    page.ask(f"document.getElementById({json.dumps('cell-' + id)}).querySelector('.run-play').click()")


def code_cells(root, name):
    return [c for c in nbformat.read(root / "notebooks" / f"{name}.ipynb", as_version=4).cells if c.cell_type == "code"]


def test_a_chapter_from_top_to_bottom(page, site, root):
    cells = code_cells(root, "02_self_attention")
    opened(page, site + "02_self_attention.html")
    play(page, cells[-1].id)
    wait(lambda: state(page, cells[-1].id) in ("ran", "failed"), "the last cell", PATIENCE)
    for c in cells:
        assert state(page, c.id) == "ran"
        text, pictures = shown(page, c.id)
        printed = "".join(output.get("text", "") for output in c.outputs).strip()
        assert text.strip()[: len(printed)] == printed
        assert pictures == sum("image/png" in output.get("data", {}) for output in c.outputs)
    figure = "document.querySelector('[data-live=temperature]')"
    assert float(page.ask(f"{figure}.dataset.largest")) > 0.9
    assert page.ask(f"getComputedStyle({figure}.closest('.cell_output').querySelector('img')).display") == "none"
    hosts = "[...new Set(performance.getEntriesByType('resource').map(e => new URL(e.name).host))]"
    assert page.ask(hosts) == [site.split("/")[2]]


def test_an_error_a_cell_that_does_not_run_and_what_is_kept(page, site, root):
    cells = code_cells(root, "12_recurrence")
    first, second, third = (c.id for c in cells[:3])
    opened(page, site + "12_recurrence.html")
    reasons = page.ask("[...document.querySelectorAll('.run-native')].map(reason => reason.textContent)")
    assert any("starts two processes" in reason for reason in reasons)
    write(page, second, "def f():\n    return 1 / 0\nf()")
    play(page, third)
    wait(lambda: state(page, second) == "failed", "the error", PATIENCE)
    lines = shown(page, second)[0].strip().splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == '  File "<cell 2>", line 3, in <module>'
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert state(page, first) == "ran"
    assert state(page, third) == ""
    opened(page, site + "12_recurrence.html?again")
    page.go(site + "12_recurrence.html")
    wait(lambda: "fetches" in page.ask(STATUS), "the bar")
    text = f"document.getElementById({json.dumps('cell-' + second)}).querySelector('pre').textContent ?? ''"
    assert "1 / 0" in page.ask(text)
    click(page, f"#cell-{second} .run-reset")
    assert page.ask(text) == cells[1].source
    play(page, second)
    wait(lambda: state(page, second) in ("ran", "failed"), "the cell as it was", PATIENCE)
    assert state(page, second) == "ran"


def test_stopped_and_begun_again(page, site, root):
    cells = code_cells(root, "16_memory_retrieval")
    first, second = (c.id for c in cells[:2])
    opened(page, site + "16_memory_retrieval.html")
    write(page, second, "print('begun')\nwhile True:\n    pass")
    play(page, second)
    wait(lambda: "begun" in shown(page, second)[0], "what is printed while the cell runs", PATIENCE)
    assert state(page, second) == "runs"
    page.ask("[...document.querySelectorAll('.run-bar button')].find(b => b.textContent === 'Stop').click()")
    wait(lambda: "Stopped" in page.ask(STATUS), "the stop")
    assert state(page, first) == state(page, second) == ""
    write(page, second, "rng.integers(1, 7)")
    play(page, second)
    wait(lambda: state(page, second) in ("ran", "failed"), "the second beginning", PATIENCE)
    assert state(page, first) == state(page, second) == "ran"
    assert shown(page, second)[0].strip().startswith("np.int64(")
