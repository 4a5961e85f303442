"""Every exact cell of every chapter in the runtime of the site, under Node: it shows what the book shows.

This needs Node, the files of Pyodide and about six minutes, so it waits to be asked:
SITE_PYODIDE=… pytest tests/site/test_chapters.py. site/run/README.md says how the folder is filled.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from minitransformer.book.output_comparison import outputs_differ

PYODIDE = os.environ.get("SITE_PYODIDE")
LONGEST = 300  # seconds for a chapter
if not PYODIDE:
    pytest.skip("SITE_PYODIDE names no folder with Pyodide's files", allow_module_level=True)
if not shutil.which("node"):
    pytest.skip("there is no Node", allow_module_level=True)

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def folder(root, tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    command = [sys.executable, root / "site" / "run" / "prepare.py", out]
    subprocess.run(command, check=True, env=os.environ | {"SITE_OFFLINE": "1", "SITE_PYODIDE": PYODIDE})
    return out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_chapter_shows_in_a_browser_what_it_shows_in_the_book(path, folder, tmp_path):
    native = json.loads((folder / "book.json").read_text())["native"]
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    cells = [cell for cell in cells if cell.id not in native]
    asked, told = tmp_path / "cells.json", tmp_path / "answers.jsonl"
    asked.write_text(json.dumps([{"id": cell.id, "code": cell.source} for cell in cells]))
    told.touch()  # nothing is written where every cell is native
    node = ["node", Path(__file__).with_name("chapter.mjs"), folder, asked, told]
    subprocess.run(node, check=True, timeout=LONGEST)
    answers = [json.loads(line) for line in told.read_text().splitlines()]
    wrong = []
    for cell, answer in zip(cells, answers, strict=True):
        outputs = [nbformat.from_dict(output) for output in answer["outputs"]]
        if problem := answer["error"] or outputs_differ(cell.outputs, outputs):
            wrong.append(f"{cell.id}: {problem}")
    assert not wrong, "\n".join(wrong)
