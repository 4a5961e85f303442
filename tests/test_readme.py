"""Every listing in README.md and CONTRIBUTING.md works.

python    the blocks of a document run in order, in one namespace, in an empty folder; but a block whose first line
          names a file is a part of the walk-through, which is carried out in a copy of the repository
toml      is a part of the walk-through
sh        line by line; what takes seconds and changes nothing is run, of the rest everything it names must exist:
              make x                      x is a target (`make -n`)
              minitransformer x           is run if it only looks; else its options must be options
              pytest ...                  is run if it asks for one equation; else its files must exist
              git, cd, conda, pip, venv   the files they name must exist
          A line of any other kind fails: it would be a listing that nobody has tried.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

import minitransformer
from minitransformer import cli, models
from minitransformer.commands.recipes import language_model
from minitransformer.training.checkpoint import Checkpoint, load, save
from minitransformer.training.loop import start

DOCUMENTS = ("README.md", "CONTRIBUTING.md")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# ((?:minitransformer|tests|notebooks)/\S+\.(?:py|toml|ipynb))")
ONLY_LOOKING = ("attentions", "doctor", "equations", "figures", "positions")
MADE_ON_THE_WAY = ("tests/attention/test_temperature.py",)  # by the walk-through


def blocks(root, document, *languages):
    return [text for kind, text in BLOCK.findall((root / document).read_text(encoding="utf-8")) if kind in languages]


def shell_lines(root):
    for document in DOCUMENTS:
        for block in blocks(root, document, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                if words := shlex.split(line, comments=True):
                    yield f"{document}: {line}", words


@pytest.mark.parametrize("document", DOCUMENTS)
def test_fences_are_of_known_kinds(document, root):
    fences = re.findall(r"^```(.*)$", (root / document).read_text(encoding="utf-8"), re.MULTILINE)
    assert set(fences[::2]) <= {"python", "sh", "toml", "bibtex", "text"}
    assert set(fences[1::2]) <= {""}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_python_listings_run(document, root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, training = language_model(width=8, depth=2, heads=2, steps=3)  # what `minitransformer train` leaves
    save("run.safetensors", Checkpoint(model, training, start(model, training), {"task": "text"}))
    namespace = {}
    for block in blocks(root, document, "python"):
        if not FILE.match(block):
            exec(compile(block, document, "exec"), namespace)


def test_what_readme_says_of_a_trained_model(root, tmp_path, monkeypatch, capsys):
    """The listing prints the matrices of the heads; `look` draws them; the names in the file are those that it says."""
    test_python_listings_run("README.md", root, tmp_path, monkeypatch)
    text = (root / "README.md").read_text(encoding="utf-8")
    (block,) = (block for block in blocks(root, "README.md", "python") if "run.safetensors" in block)
    namespace = {"mt": minitransformer}
    exec(compile(block, "README.md", "exec"), namespace)
    A = namespace["pullback"].stack.blocks[0].attention.A
    assert A.shape == (1, 2, 14, 14)
    assert np.allclose(A.sum(-1), 1, atol=1e-6)
    assert str(A[0].round(2)) in capsys.readouterr().out

    (name,) = re.findall(r'load_file\("run.safetensors"\)\["(.*?)"\]', text)
    W_q = load("run.safetensors").state.params.stack.blocks[0].attention.W_q
    assert np.array_equal(load_file("run.safetensors")[name], W_q)
    assert callable(models.load_bert)
    (line,) = re.findall(r"`minitransformer (look run.*?)`", text)
    assert cli.main(shlex.split(line)) == 0
    assert capsys.readouterr().out == "run_heads.svg\n"
    assert (tmp_path / "run_heads.svg").read_text().count('id="axes_') == 4


def test_shell_listings_run(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINITRANSFORMER_FIGURES", str(tmp_path))
    for where, words in shell_lines(root):
        while "=" in words[0]:  # VARIABLE=value command
            variable = words.pop(0).partition("=")[0]
            sources = (root / "minitransformer").rglob("*.py")
            assert any(variable in source.read_text(encoding="utf-8") for source in sources), where
        words[0] = os.path.basename(words[0])
        if words[0].startswith("python") and words[1] == "-m":
            words = words[2:]
        try_line(where, words, root)


def try_line(where, words, root):
    name, *rest = words
    if name == "make":
        if shutil.which("make"):
            subprocess.run(["make", "-n", *rest], cwd=root, check=True, capture_output=True)
    elif name == "minitransformer":
        args = cli.parser().parse_args(rest)
        if rest[0] in ONLY_LOOKING and not {"--check", "--readme"} & set(rest):
            assert cli.main(rest) == 0, where
        assert callable(args.run), where
    elif name == "pytest":
        if "--equation" in rest:
            done = subprocess.run(
                [sys.executable, "-m", *words], cwd=root, input="continue\n", capture_output=True, text=True
            )
            assert "1 passed" in done.stdout, f"{where}: {done.stdout}{done.stderr}"
        for file in (word.partition("::")[0] for word in rest if ".py" in word):
            assert (root / file).is_file() or file in MADE_ON_THE_WAY, where
    elif name in ("git", "cd", "source", "conda", "pip", "venv", "jupyter"):
        for file in (word for word in rest if word.endswith((".lock", ".yml", ".toml", ".ipynb"))):
            assert (root / file).is_file(), where
    else:
        pytest.fail(f"{where}: nobody has tried this")


# ------------------------------------------------------------------------------------ the walk-through


@pytest.fixture(scope="module")
def parts(root):
    """The files of the walk-through, by the path in their first line."""
    found = blocks(root, "CONTRIBUTING.md", "python", "toml")
    return {FILE.match(block)[1]: block.partition("\n")[2] for block in found if FILE.match(block)}


@pytest.fixture(scope="module")
def copy(root, parts, tmp_path_factory):
    """A copy of the repository in which the walk-through was carried out."""
    copy = tmp_path_factory.mktemp("walk") / "repository"
    for part in ("minitransformer", "notebooks", "tests"):
        shutil.copytree(root / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("pyproject.toml", "README.md"):
        shutil.copy(root / part, copy / part)
    (copy / "numba.py").write_text("raise ImportError('not here')\n", encoding="utf-8")
    for name, text in parts.items():
        path = copy / name
        if path.suffix == ".py" and path.exists():  # the registry: an import beside the others, a line in the table
            source = path.read_text(encoding="utf-8")
            for line in text.splitlines():
                before = "from minitransformer.named" if line.startswith("from") else '    "softmax"'
                assert source.count(before) == 1
                source = source.replace(before, f"{line}\n{before}")
            path.write_text(source, encoding="utf-8")
        elif path.suffix == ".py":
            path.write_text(text, encoding="utf-8")
        elif path.suffix == ".toml":
            path.write_text(path.read_text(encoding="utf-8") + "\n" + text, encoding="utf-8")
        else:
            notebook = json.loads(path.read_text(encoding="utf-8"))
            notebook["cells"].append({"source": text, "metadata": {"tags": ["eq-contributing-temperature"]}})
            path.write_text(json.dumps(notebook), encoding="utf-8")
    return copy


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


def test_the_walk_through_is_one_file_one_line_one_test_one_row_one_cell(parts):
    assert [name.partition("/")[0] + "/" + name.rpartition(".")[2] for name in parts] == [
        "minitransformer/py",
        "minitransformer/py",
        "tests/py",
        "minitransformer/toml",
        "notebooks/ipynb",
    ]


def test_the_walk_through_passes_its_test_and_keeps_what_every_attention_has_to_keep(copy):
    tests = ["tests/attention/test_temperature.py", "tests/attention/test_contract.py", "-k", "temperature"]
    done = in_copy(copy, "-m", "pytest", "-q", "-rp", *tests)
    assert "PASSED tests/attention/test_temperature.py::test_temperature\n" in done.stdout, done.stdout + done.stderr
    assert re.search(r"^\d\d+ passed, \d+ deselected", done.stdout, re.MULTILINE), done.stdout + done.stderr
    done = in_copy(copy, "-m", "pytest", "-q", "--equation", "contributing-temperature")
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_walk_through_ends_in_a_training_and_leaves_no_gap_in_the_map(copy, tmp_path):
    out = str(tmp_path / "run.safetensors")
    small = ["--steps", "3", "--batch", "2", "--width", "16", "--depth", "1", "--context", "16"]
    trained, written, listed, gaps, rows = commands(
        copy,
        ["train", "--attention", "temperature", *small, "--out", out],
        ["generate", out, "The ", "--length", "9"],
        ["attentions"],
        ["equations", "--check"],
        ["equations"],
    )
    assert f"saved in {out}" in trained
    assert written.startswith("The ")
    assert re.search(r"^temperature +O\(n²\)", listed, re.MULTILINE)
    assert "contributing-temperature" not in gaps
    assert "contributing-temperature" in rows


def test_a_slip_in_the_walk_through_would_be_caught(copy):
    file = copy / "minitransformer" / "attention" / "temperature.py"
    text = file.read_text(encoding="utf-8")
    slip = text.replace("self.beta[:, None, None] * dQ_scaled", "dQ_scaled")
    assert slip != text
    file.write_text(slip, encoding="utf-8")
    done = in_copy(copy, "-m", "pytest", "-q", "tests/attention/test_contract.py", "-k", "temperature and gradient")
    file.write_text(text, encoding="utf-8")
    assert "GradientError" in done.stdout


def test_the_cell_of_the_walk_through_runs(copy, parts):
    text = next(text for name, text in parts.items() if name.endswith(".ipynb"))
    done = in_copy(copy, "-m", "timeit", "-n1", "-r1", "import numpy as np\n" + text)
    assert done.returncode == 0, done.stderr
    assert "β = 10.0: the largest weight of a row is 0." in done.stdout
