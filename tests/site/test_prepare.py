"""What site/run/prepare.py puts beside the pages, and what cell.py makes of a cell; neither needs Pyodide."""

import importlib.util
import json
import sys
import zipfile

import pytest

from tests.fresh_python import fresh_python


def loaded(script):
    spec = importlib.util.spec_from_file_location(script.stem, script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def prepare(root):
    return loaded(root / "site" / "run" / "prepare.py")


@pytest.fixture(scope="module")
def public(prepare, tmp_path_factory):
    """The folder of a site whose readers fetch Pyodide from its public address."""
    out = tmp_path_factory.mktemp("run")
    prepare.prepare(out, None)
    return out


def test_every_file_of_pyodide_is_pinned_by_the_hash_in_its_lock(prepare, public):
    pins, book = prepare.pinned(), json.loads((public / "book.json").read_text())
    lock = json.loads((public / "pyodide-lock.json").read_text())
    wheels = {about["file_name"]: about["sha256"] for about in lock["packages"].values()}
    assert {name: pin["sha256"] for name, pin in pins["files"].items() if name.endswith(".whl")} == wheels
    assert set(book["sha256"]) == set(book["bytes"]) == {*pins["files"], "book.zip"}
    assert all(len(hash) == 64 for hash in book["sha256"].values())
    for about in lock["packages"].values():
        assert set(about["depends"]) <= set(lock["packages"])
    assert book["pyodide"] == f"https://cdn.jsdelivr.net/pyodide/v{pins['version']}/full/"
    assert not list(public.glob("*.whl"))


def test_a_file_with_another_hash_is_refused(prepare, tmp_path):
    (tmp_path / "pyodide.mjs").write_text("alert('not what was pinned')")
    with pytest.raises(prepare.PrepareError, match=r"pyodide.mjs: its SHA-256 is .* is pinned"):
        prepare.prepare(tmp_path / "out", tmp_path)
    with pytest.raises(prepare.PrepareError, match="not there"):
        prepare.prepare(tmp_path / "out", tmp_path / "nowhere")


def test_the_zip_is_the_same_whenever_it_is_made(prepare, public, tmp_path):
    prepare.zip_book(tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == (public / "book.zip").read_bytes()


def test_the_zip_is_all_that_the_book_imports_beside_numpy(public, tmp_path):
    """In a Python that has the zip and NumPy, and of this environment nothing else."""
    zipfile.ZipFile(public / "book.zip").extractall(tmp_path)
    said = fresh_python(f"""
import importlib.abc, sys, numpy

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in ("beartype", "jaxtyping", "numba", "scipy", "threadpoolctl", "tqdm", "pydoc_data"):
            found = importlib.machinery.PathFinder.find_spec(name, [{str(tmp_path)!r}])
            if found is None:
                raise ModuleNotFoundError(name)
            return found

sys.meta_path.insert(0, Absent())
sys.path.insert(0, {str(tmp_path)!r})
import minitransformer as mt
from minitransformer.attention import dot_product_attention
from minitransformer.book.book import repository
from minitransformer.data.text import python_docs
import minitransformer.training.loop

X = numpy.random.default_rng(0).standard_normal((3, 4))
print(mt.__file__, mt.backend(), len(python_docs().train) > 300_000)
mt.check_pullback(dot_product_attention, X, X, X)
""")
    assert said.split() == [str(tmp_path / "minitransformer" / "__init__.py"), "numpy", "True"]


def test_cells_that_do_not_run_say_why(prepare, root):
    why = prepare.native()
    for path in (root / "notebooks").glob("*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            tags = set(cell["metadata"].get("tags", ()))
            assert (cell["id"] in why) == bool(tags & {"live", "native"}), (path.name, cell["id"])
            assert bool(tags & {"needs-bert", "needs-processes", "needs-safetensors"}) == ("native" in tags)
    assert all(reason.endswith("It runs in a clone of the book.") for reason in why.values())
    assert len(set(why.values())) == 4


CELLS = {
    "prints and shows": "import sys\nprint('a')\nprint('b', file=sys.stderr)\n1 + 1",
    "shows nothing": "x = 2\nx;",
    "has names from above": "x",
    "shows its source": "import inspect\ndef f():\n    return 7\nprint(inspect.getsource(f))",
    "fails": "def g():\n    return 1 / 0\ng()",
    "is no Python": "def (",
    "goes on after an error": "x + 1",
    "shows by itself": """class S:
    def _ipython_display_(self):
        from IPython.display import display
        display(3)
        display({'text/html': '<b>4</b>'}, raw=True)
S()""",
    "has a picture": """class P:
    def _repr_mimebundle_(self):
        return {'image/png': b'PNG'}, {'image/png': {'width': 3}}
P()""",
}


@pytest.fixture(scope="module")
def answers(root, tmp_path_factory):
    """What each of these cells shows, one after another."""
    home = tmp_path_factory.mktemp("home")
    said = fresh_python(f"""
import json, sys
sys.path.insert(0, {str(root / "site" / "run")!r})
import cell
cell.BOOK = {str(home)!r}
cell.begin()
told = []
for name, code in {CELLS!r}.items():
    print(cell.run_cell(code, name, told.append))
print(json.dumps(told))
""")
    *found, told = map(json.loads, said.splitlines())
    return dict(zip(CELLS, found, strict=True)) | {"told": told}


def test_a_cell_gives_what_a_notebook_keeps(answers):
    assert answers["prints and shows"]["outputs"] == [
        {"output_type": "stream", "name": "stdout", "text": "a\n"},
        {"output_type": "stream", "name": "stderr", "text": "b\n"},
        {"output_type": "execute_result", "data": {"text/plain": "2"}, "metadata": {}},
    ]
    assert answers["shows nothing"]["outputs"] == []
    assert answers["has names from above"]["outputs"][0]["data"] == {"text/plain": "2"}
    assert answers["goes on after an error"]["outputs"][0]["data"] == {"text/plain": "3"}
    assert answers["has a picture"]["outputs"][0]["data"]["image/png"] == "UE5H"
    assert answers["has a picture"]["outputs"][0]["metadata"] == {"image/png": {"width": 3}}
    three, four = answers["shows by itself"]["outputs"]
    assert (three["output_type"], three["data"]) == ("display_data", {"text/plain": "3"})
    assert (four["output_type"], four["data"]) == ("display_data", {"text/html": "<b>4</b>"})
    assert answers["told"][:2] == ["a", "\n"]


def test_a_traceback_is_pythons_own(answers):
    assert answers["shows its source"]["outputs"][0]["text"] == "def f():\n    return 7\n\n"
    lines = answers["fails"]["error"].splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1:3] == ['  File "<fails>", line 3, in <module>', "    g()"]
    assert '  File "<fails>", line 2, in g' in lines
    assert "    return 1 / 0" in lines
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert answers["is no Python"]["error"].splitlines()[-1].startswith("SyntaxError: ")
    assert "cell.py" not in answers["fails"]["error"] + answers["is no Python"]["error"]


@pytest.mark.parametrize(("script", "work"), [("site/print.py", "write"), ("site/run/lite.py", "lite")])
def test_after_ctrl_c_make_pdf_and_make_lite_say_so_in_a_line(script, work, root, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    pytest.importorskip("websocket", reason="by which print.py speaks to the browser")
    monkeypatch.syspath_prepend((root / script).parent)
    module = loaded(root / script)
    monkeypatch.setattr(module, work, interrupted)
    monkeypatch.setattr(module, "program", lambda: "a browser", raising=False)
    monkeypatch.setattr(sys, "argv", [script, "out"])
    with pytest.raises(SystemExit) as end:
        module.main()
    assert end.value.code == 130
    assert capsys.readouterr().err == "\nminitransformer: interrupted\n"
