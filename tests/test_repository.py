"""What is committed is finished, tidy, and says nothing about the machine it was made on."""

import json
import re
import subprocess

import pytest

TOP = {
    *("README.md", "TEACHING.md", "CONTRIBUTING.md", "CITATION.cff", "LICENSE", "LICENSE-TEXT"),
    *(".gitignore", ".ci", ".vscode"),
    *("Makefile", "environment.yml", "pyproject.toml", "requirements.lock"),
    *("minitransformer", "notebooks", "tests", "figures", "benchmarks", "site"),
    *(".binder", ".devcontainer", ".github"),
}
TEXT = {".md", ".py", ".toml", ".yml", ".cff", ".lock", ".json", ".svg", ".ipynb", ""}
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b|NotImplemented" + "Error")
MACHINE = re.compile(r"(?<![\w.~/-])/(?:home|root|tmp|work|Users|opt|mnt)/|\b[A-Z]:\\Users|pypi\.org|python" + "hosted")


@pytest.fixture(scope="module")
def committed(root):
    """The committed files."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False)
    files = [root / name for name in listed.stdout.split("\0") if name]
    if not files:
        pytest.skip("not a clone")
    return [file for file in files if file.exists()]


@pytest.fixture(scope="module")
def texts(committed):
    """Path and text of every committed text file; of a notebook its sources and what they printed."""
    return [(file, _text(file)) for file in committed if file.suffix in TEXT]


@pytest.fixture(scope="module")
def chapters(root):
    return {
        path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted((root / "notebooks").glob("*.ipynb"))
    }


def _text(file):
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".svg":
        return re.sub(r"base64,[^\"]*", "", text)
    if file.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    printed = [output.get("text", "") for output in outputs]
    shown = [output.get("data", {}).get(kind, "") for output in outputs for kind in ("text/plain", "text/html")]
    return "\n".join("".join(part) for part in [*(cell["source"] for cell in cells), *printed, *shown])


def test_the_top_level_is_small(committed, root):
    assert {file.relative_to(root).parts[0] for file in committed} <= TOP


def test_what_the_commands_of_the_readme_write_at_the_top_is_ignored(committed, root):
    written = [
        "run.safetensors",
        "run_heads.svg",
        "bigbird.safetensors",
        "mine/02_self_attention.ipynb",
        "_site/x.html",
    ]
    ignored = subprocess.run(["git", "check-ignore", *written], cwd=root, capture_output=True, text=True, check=False)
    assert ignored.stdout.split() == written
    kept = [str(file.relative_to(root)) for file in committed]
    asked = subprocess.run(
        ["git", "check-ignore", "--no-index", "--stdin"],
        cwd=root,
        input="\n".join(kept),
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.stdout.split() == []


def test_no_file_is_huge(committed):
    assert [file for file in committed if file.stat().st_size > 1_500_000] == []


@pytest.mark.parametrize("pattern", [UNFINISHED, MACHINE])
def test_nothing_is_unfinished_and_no_machine_is_named(pattern, texts):
    found = [
        f"{file.name}: {text[max(m.start() - 30, 0) : m.end() + 30]!r}"
        for file, text in texts
        for m in [pattern.search(text)]
        if m
    ]
    assert found == []


def test_the_patterns_find_what_they_should():
    assert UNFINISHED.search("# TO" + "DO: later")
    for path in ("/ho" + "me/me/x", "open('/tm" + "p/x')", "https://pypi" + ".org/simple"):
        assert MACHINE.search(path)
    assert not MACHINE.search("figures/home/x and https://example.com/work/x and ~/tmp/")


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def is_live(cell):
    return "live" in cell["metadata"].get("tags", [])


def test_notebooks_were_run_from_top_to_bottom_and_live_cells_kept_nothing(chapters):
    for name, notebook in chapters.items():
        for place, cell in enumerate(code_cells(notebook), start=1):
            assert cell["execution_count"] == (None if is_live(cell) else place), name
            assert not (is_live(cell) and cell["outputs"]), name
            assert {output.get("execution_count", place) for output in cell["outputs"]} <= {place}, name


def test_live_cells_assert_what_they_claim(chapters):
    silent = [
        (name, "".join(cell["source"]).splitlines()[0])
        for name, notebook in chapters.items()
        for cell in code_cells(notebook)
        if is_live(cell) and "assert " not in "".join(cell["source"])
    ]
    assert silent == []


def test_code_and_what_it_prints_fit_beside_the_contents_of_the_site(chapters):
    """88 columns: what is wider scrolls sideways, on the site and in JupyterLab."""
    wide = [
        (name, cell["id"], line)
        for name, notebook in chapters.items()
        for cell in code_cells(notebook)
        for text in ("".join(cell["source"]), *map(_printed, cell["outputs"]))
        for line in text.splitlines()
        if len(line) > 88
    ]
    assert wide == []


def _printed(output):
    """Text as a reader sees it: that beside a picture, or beside what Markdown or HTML shows, is seen by nobody."""
    data = output.get("data", {})
    shown = output.get("text", "") if output["output_type"] == "stream" else data.get("text/plain", "")
    return "" if data.keys() - {"text/plain"} else "".join(shown)


def test_chapters_compute_in_the_tier_that_forms_every_matrix(chapters):
    for name, notebook in chapters.items():
        if name[:2] not in ("17", "98", "99"):  # on speed; pages without code
            first = "".join("".join(cell["source"]) for cell in code_cells(notebook)[:2])
            assert 'mt.backend("numpy")' in first, name


def test_notebooks_hold_no_error_and_no_warning(chapters):
    for name, notebook in chapters.items():
        for cell in notebook["cells"]:
            for output in cell.get("outputs", []):
                assert output["output_type"] != "error", name
                assert output.get("name") != "stderr", (name, output["text"])


def test_cells_are_short(chapters):
    long = [
        (name, "".join(cell["source"]).splitlines()[0])
        for name, notebook in chapters.items()
        for cell in notebook["cells"]
        if cell["cell_type"] == "code" and len("".join(cell["source"]).splitlines()) >= 15
    ]
    assert long == []


def test_tags_are_known(chapters):
    tags = {
        tag for notebook in chapters.values() for cell in notebook["cells"] for tag in cell["metadata"].get("tags", [])
    }
    known = {"exercise", "live", "native", "navigation", "needs-bert", "needs-processes", "needs-safetensors"}
    assert {tag for tag in tags if not tag.startswith("eq-")} <= known
