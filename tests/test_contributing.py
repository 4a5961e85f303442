"""CONTRIBUTING.md, carried out: every listing goes to its file in a copy of the repository, and what can be run is run."""

import json
import os
import re
import shutil
import subprocess
import sys

import nbformat
import pytest

from minitransformer.attention import ATTENTIONS
from minitransformer.positions import IN_ATTENTION
from tests.test_readme import FILE, blocks

VARIANT = (
    "minitransformer/attention/temperature.py",
    "minitransformer/attention/registry.py",
    "tests/attention/test_temperature.py",
    "minitransformer/book/equations.toml",
    "notebooks/02_self_attention.ipynb",
)
OTHERS = (
    "sigmoid.py",
    "pyramid.py",
    "slopes.py",
    "looped.py",
    "minitransformer/experiments/best_of_64.py",
    "minitransformer/figures/best_of_64.py",
    "tests/figures/test_best_of_64.py",
    "notebooks/90_best_of_64.ipynb",
)
SMALL = ["--steps", "3", "--batch", "2", "--width", "16", "--depth", "1", "--context", "16"]


@pytest.fixture(scope="module")
def parts(root):
    """The listings by the file that their first line names."""
    found = blocks(root, "CONTRIBUTING.md", "python", "toml")
    return {FILE.match(block)[1]: block.partition("\n")[2] for block in found if FILE.match(block)}


@pytest.fixture(scope="module")
def copy(root, parts, tmp_path_factory):
    """A copy of the repository in which the page was followed."""
    copy = tmp_path_factory.mktemp("walk") / "repository"
    for part in ("minitransformer", "notebooks", "tests", "benchmarks"):
        shutil.copytree(root / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("pyproject.toml", "README.md", "CONTRIBUTING.md"):
        shutil.copy(root / part, copy / part)
    (copy / "figures").mkdir()
    (copy / "numba.py").write_text("raise ImportError('not here')\n", encoding="utf-8")
    for name, text in parts.items():
        follow(copy / name, text)
    return copy


def follow(path, text):
    """A listing into its file: a new one, or what is there already and gets longer."""
    if path.suffix == ".py" and path.exists():  # the registry: an import beside the others, a line in the table
        source = path.read_text(encoding="utf-8")
        for line in text.splitlines():
            before = "from minitransformer.registry" if line.startswith("from") else '    "softmax"'
            assert source.count(before) == 1
            source = source.replace(before, f"{line}\n{before}")
        path.write_text(source, encoding="utf-8")
    elif path.suffix == ".py":
        path.write_text(text, encoding="utf-8")
    elif path.suffix == ".toml":
        path.write_text(path.read_text(encoding="utf-8") + "\n" + text, encoding="utf-8")
    elif path.exists():
        notebook = nbformat.read(path, 4)
        cell = nbformat.v4.new_code_cell(
            text.strip(), id="contributing", metadata={"tags": ["eq-contributing-temperature"]}
        )
        notebook.cells.insert(len(notebook.cells) - 1, cell)
        nbformat.write(notebook, path)
    else:
        cells = re.findall(r"^# %%( \[markdown\])?\n(.*?)(?=^# %%|\Z)", text, re.DOTALL | re.MULTILINE)
        made = [
            nbformat.v4.new_markdown_cell(re.sub(r"^# ?", "", source.strip(), flags=re.MULTILINE))
            if words
            else nbformat.v4.new_code_cell(source.strip())
            for words, source in cells
        ]
        nbformat.write(nbformat.v4.new_notebook(cells=made), path)


def in_copy(copy, *command):
    """A command there, and as if Numba were not installed: nobody waits for its compiler."""
    environment = os.environ | {"PYTHONPATH": str(copy)}
    environment.pop("MINITRANSFORMER_BACKEND", None)
    return subprocess.run([sys.executable, *command], cwd=copy, capture_output=True, text=True, env=environment)


def commands(copy, *lines):
    """What `minitransformer` prints for each line, one after the other in one process."""
    mark = "-" * 99
    script = f"from minitransformer.cli import main\nfor argv in {lines!r}:\n    main(argv)\n    print({mark!r})"
    done = in_copy(copy, "-c", script)
    said = done.stdout.split(f"{mark}\n")
    assert len(said) == len(lines) + 1, done.stdout + done.stderr
    return said[:-1]


def test_a_variant_is_one_file_one_line_one_test_one_row_one_cell(parts):
    assert set(parts) == {*VARIANT, *OTHERS}
    assert [name for name in parts if name in VARIANT] == list(VARIANT)


# --------------------------------------------------------------------------------------------- a file of one's own


def test_a_file_of_ones_own_works_in_every_command(copy, tmp_path):
    out, other, deep, pairs = (str(tmp_path / f"{name}.safetensors") for name in ("run", "other", "deep", "pairs"))
    brought = ["--import", "sigmoid.py"]
    listed, trained, written, drawn, pattern, pyramid, encoding, slopes, stack, looped, read_again = commands(
        copy,
        ["attentions", *brought],
        ["train", *brought, "--attention", "sigmoid", *SMALL, "--out", out],
        ["generate", *brought, out, "The ", "--length", "9"],
        ["look", *brought, out, "The "],
        ["attentions", "--import", "pyramid.py", "pyramid"],
        ["train", "--import", "pyramid.py", "--attention", "pyramid:block=8", *SMALL, "--out", pairs],
        ["positions", "--import", "slopes.py", "slopes"],
        ["train", "--import", "slopes.py", "--positions", "slopes", "--attention", "window", *SMALL, "--out", other],
        ["stacks", "--import", "looped.py", "looped"],
        ["train", "--import", "looped.py", "--stack", "looped:rounds=3", *SMALL, "--out", deep],
        ["generate", "--import", "looped.py", deep, "The ", "--length", "9"],
    )
    assert re.search(r"^sigmoid +O\(n²\); causal: yes; remembers keys and values", listed, re.MULTILINE)
    assert f"saved in {out}" in trained
    assert written.startswith("The ")
    assert drawn == str(tmp_path / "run_heads.svg\n")
    assert re.match(r"pyramid +O\(n block log n\); causal: yes", pattern)
    assert "options: block=16" in pattern
    assert f"saved in {pairs}" in pyramid
    assert encoding.startswith("slopes ")
    assert f"saved in {other}" in slopes
    assert "options: rounds=2" in stack
    assert f"saved in {deep}" in looped
    assert read_again.startswith("The ")
    done = in_copy(copy, "-m", "minitransformer", "generate", out, "The ")
    assert done.returncode == 1
    assert re.fullmatch(
        r"minitransformer: .*: model: attention: no 'sigmoid' is registered; .*`--import FILE\.py`.*\n", done.stderr
    )


def test_a_core_with_nothing_to_learn(copy, parts, tmp_path):
    """The sigmoid core without its b_h keeps every rule if its pullback returns NoParams() first, and not with None."""
    before, frozen, core = parts["sigmoid.py"].partition("@frozen")
    core = re.sub(r"    heads: int\n.*?(?=    def __call__)", "", core, flags=re.DOTALL).replace(
        " + b[:, None, None]", ""
    )
    before = re.sub(r"\n        db = .*", "", before).replace("import Pullback", "import NoParams, Pullback")
    for first, kept in (("NoParams()", True), ("None", False)):
        plain = before.replace("return db,", f"return {first},") + frozen + core + 'mt.check_attention("sigmoid")\n'
        (tmp_path / "plain.py").write_text(plain, encoding="utf-8")
        done = in_copy(copy, str(tmp_path / "plain.py"))
        assert (
            (done.returncode == 0) == bool(re.search(r"^(\d+) of \1 rules kept", done.stdout, re.MULTILINE)) == kept
        ), plain


@pytest.mark.parametrize(("divisor", "kept"), [("Z", False), ("np.where(Z == 0, 1, Z)", True)])
def test_a_core_that_divides_by_a_sum_of_weights(divisor, kept, copy, root, parts, tmp_path):
    """The sigmoid core, divided by the sum of each row (its gradient is another then, and not looked at here)."""
    assert (
        f"divides by `{divisor}`" in (root / "CONTRIBUTING.md").read_text(encoding="utf-8").replace("\n", " ")
        or not kept
    )
    lines = f"Z = A.sum(-1, keepdims=True)\n        A = A / {divisor}\n        return A @ V"
    divided = parts["sigmoid.py"].replace("return A @ V", lines) + 'mt.check_attention("sigmoid")\n'
    (tmp_path / "divided.py").write_text(divided, encoding="utf-8")
    said = in_copy(copy, str(tmp_path / "divided.py")).stdout
    assert ("kept    " if kept else "BROKEN  ") + "Where a query sees no key" in said


def test_a_core_with_a_softmax_over_no_key_at_all(copy, root, parts, tmp_path):
    """The sigmoid core with a softmax in its place, as the page says it, and with the gradient of softmax."""
    call = "A, _ = softmax(S, mask=seen)"
    assert f"`{call}`" in (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    core = parts["sigmoid.py"].replace("A = np.where(seen, sigmoid(S)[0], 0)", call)
    core = core.replace("import sigmoid\n", "import softmax\n").replace(" + b[:, None, None]", " * b[:, None, None]")
    core += 'mt.check_attention("sigmoid")\n'
    (tmp_path / "softmax.py").write_text(core, encoding="utf-8")
    said = in_copy(copy, str(tmp_path / "softmax.py")).stdout
    for rule in ("Where a query sees no key", "Written token by token"):
        assert f"kept    {rule}" in said, said


def test_an_encoding_is_checked_by_name(copy, parts, tmp_path):
    (tmp_path / "slopes.py").write_text(parts["slopes.py"] + 'mt.check_attention("slopes")\n', encoding="utf-8")
    done = in_copy(copy, str(tmp_path / "slopes.py"))
    assert re.search(r"^(\d+) of \1 rules kept", done.stdout, re.MULTILINE), done.stdout + done.stderr


# ------------------------------------------------------------------------------------------------------ a variant


def test_the_variant_passes_its_test_and_keeps_what_every_attention_has_to_keep(copy):
    tests = ["tests/attention/test_temperature.py", "tests/attention/test_contract.py", "-k", "temperature"]
    done = in_copy(copy, "-m", "pytest", "-q", "-rp", *tests)
    assert "PASSED tests/attention/test_temperature.py::test_temperature\n" in done.stdout, done.stdout + done.stderr
    assert re.search(r"^\d\d+ passed, \d+ deselected", done.stdout, re.MULTILINE), done.stdout + done.stderr
    done = in_copy(copy, "-m", "pytest", "-q", "--equation", "contributing-temperature")
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_variant_is_one_more_promise(root, copy):
    """Without the line that writes defaults.txt, tests/test_defaults.py would say what is missing in it: one line."""
    assert in_copy(copy, "-m", "tests.test_defaults").returncode == 0
    before, after = ((folder / "tests" / "defaults.txt").read_text("utf-8").splitlines() for folder in (root, copy))
    assert sorted(set(after) ^ set(before)) == ["attention='temperature': Temperature(heads=2)"]


def test_the_variant_ends_in_a_training_and_leaves_no_gap_in_the_map(copy, tmp_path):
    out = str(tmp_path / "run.safetensors")
    trained, written, listed, _, gaps, rows = commands(
        copy,
        ["train", "--attention", "temperature", *SMALL, "--out", out],
        ["generate", out, "The ", "--length", "9"],
        ["attentions"],
        ["equations", "--readme"],
        ["equations", "--check"],
        ["equations"],
    )
    assert f"saved in {out}" in trained
    assert written.startswith("The ")
    assert re.search(r"^temperature +O\(n²\)", listed, re.MULTILINE)
    assert [line for line in gaps.splitlines() if "no figure" not in line] in (
        [],
        [f"{rows.count(chr(10)) - 1} rows, no gap."],
    )
    assert "contributing-temperature" in rows


def test_a_slip_in_the_variant_would_be_caught(copy):
    file = copy / "minitransformer" / "attention" / "temperature.py"
    text = file.read_text(encoding="utf-8")
    slip = text.replace("self.beta[:, None, None] * dQ_scaled", "dQ_scaled")
    assert slip != text
    file.write_text(slip, encoding="utf-8")
    done = in_copy(copy, "-m", "pytest", "-q", "tests/attention/test_contract.py", "-k", "temperature and gradient")
    file.write_text(text, encoding="utf-8")
    assert "GradientError" in done.stdout


def test_the_cell_of_the_variant_runs(copy, parts):
    text = parts["notebooks/02_self_attention.ipynb"]
    done = in_copy(copy, "-m", "timeit", "-n1", "-r1", "import numpy as np\n" + text)
    assert done.returncode == 0, done.stderr
    assert "β = 10.0: the largest weight of a row is 0." in done.stdout


def test_the_chapters_that_list_every_attention_are_run_again(root):
    """Among them chapter 20, with gaps where nothing was measured yet; and the page names the one with every encoding."""
    page = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    texts = {path.name[:2]: path.read_text(encoding="utf-8") for path in (root / "notebooks").glob("*.ipynb")}

    def with_all(names):
        return [n for n, text in sorted(texts.items()) if all(re.search(rf'"\W*{name}\b', text) for name in names)]

    assert f"minitransformer book 02 {' '.join(with_all(ATTENTIONS))}\n" in page
    assert all(f"every encoding is in {n}" in page for n in with_all(IN_ATTENTION) if n != "98")


@pytest.mark.full
def test_chapter_20_has_a_row_for_the_variant(copy):
    commands(copy, ["book", "20"])
    chapter = (copy / "notebooks" / "20_which_one_when.ipynb").read_text(encoding="utf-8")
    assert re.search(r'"temperature +—', chapter)


# ------------------------------------------------------------------------- an experiment, its figure, their chapter


@pytest.mark.full
def test_the_experiment_has_a_record_the_figure_a_test_and_the_chapter_both(copy):
    ran, drawn, booked, _ = commands(
        copy, ["experiment", "best_of_64"], ["figures", "best_of_64"], ["book", "90"], ["equations", "--readme"]
    )
    assert "records/best_of_64.json" in ran
    assert "fig_best_of_64.svg" in drawn
    chapter = json.loads((copy / "notebooks" / "90_best_of_64.ipynb").read_text(encoding="utf-8"))
    assert re.search(r"deviation 4\.0: 0\.\d\d", json.dumps(chapter)), booked
    assert "image/png" in json.dumps(chapter["cells"])
    row = "| 90 | [The best of 64](notebooks/90_best_of_64.ipynb) | How much does softmax give to the best of 64 scores? |"
    assert row in (copy / "README.md").read_text(encoding="utf-8")
    tests = ["tests/figures/test_best_of_64.py", "tests/experiments/test_experiments.py", "tests/test_prose.py"]
    done = in_copy(copy, "-m", "pytest", "-q", *tests, "-k", "best_of_64 or text or weight")
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE), done.stdout + done.stderr


def test_a_new_chapter_is_run_with_those_before_and_after_it(root):
    page = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^minitransformer book (\d\d 90 \d\d)$", page, re.MULTILINE)
    numbers = sorted(["90", *(path.name[:2] for path in (root / "notebooks").glob("*.ipynb"))])
    at = numbers.index("90")
    assert line.split() == numbers[at - 1 : at + 2]


# ------------------------------------------------------------------------------------------------------------ lint


def new_files(parts):
    return [name for name in parts if name.endswith(".py")]


def test_what_is_new_passes_lint(copy, parts):
    for command in (["ruff", "check"], ["ruff", "format", "--check"]):
        done = in_copy(copy, "-m", *command, *new_files(parts))
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
def test_what_is_new_passes_lint_as_a_whole(copy, parts):
    """Types, spelling and the direction of imports take longer."""
    scripts = os.path.dirname(sys.executable)
    assert in_copy(copy, "-m", "mypy").stdout.startswith("Success"), in_copy(copy, "-m", "mypy").stdout
    for script in (["codespell", *new_files(parts)], ["lint-imports", "--no-logo"]):
        done = subprocess.run([os.path.join(scripts, script[0]), *script[1:]], cwd=copy, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
