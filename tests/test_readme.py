"""Every listing in README.md, TEACHING.md and CONTRIBUTING.md works.

python    the blocks of a document run in order, in one namespace, in an empty folder; but a block whose first line
          names a file is written there, or belongs into the repository: test_contributing.py carries that out in a copy
toml      likewise
sh        line by line; what takes seconds and changes nothing is run, of the rest everything it names must exist:
              make x                      x is a target (`make -n`)
              minitransformer x           is run if it only looks; else its options must be options
              pytest ...                  is run if it asks for one equation; else its files must exist
              python -m benchmarks.run    its options must be options
          git, cd, conda, pip, venv   the files they name must exist
          A line of any other kind fails: it would be a listing that nobody has tried.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

import benchmarks.run
import minitransformer
from minitransformer import models
from minitransformer.attention import ATTENTIONS
from minitransformer.book import appendix
from minitransformer.cli import command as cli
from minitransformer.models.registry import STACKS
from minitransformer.positions import AT_EMBEDDING, IN_ATTENTION
from minitransformer.training.checkpoint import Checkpoint, load, save
from minitransformer.training.loop import start
from minitransformer.training.recipes import language_model

DOCUMENTS = ("README.md", "TEACHING.md", "CONTRIBUTING.md")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# ([\w/]+\.(?:py|toml|ipynb))\b")
ONLY_LOOKING = ("attentions", "doctor", "equations", "figures", "positions", "stacks")
ON_THE_WAY = ("best_of_64", "temperature")  # what is made in test_contributing.py


@pytest.fixture(autouse=True)
def registries():
    """What a listing registers is forgotten after its test, and so are the modules of a reader."""
    known, modules = (ATTENTIONS, AT_EMBEDDING, IN_ATTENTION, STACKS), set(sys.modules)
    before = [dict(registry) for registry in known]
    yield
    for registry, old in zip(known, before, strict=True):
        registry.clear()
        registry.update(old)
    for name in {"sigmoid", "pyramid", "slopes", "looped"} - modules:
        sys.modules.pop(name, None)


def write_readers_files(root, folder):
    """The listings of CONTRIBUTING that are files of a reader's, outside the repository."""
    for block in blocks(root, "CONTRIBUTING.md", "python"):
        if (found := FILE.match(block)) and "/" not in found[1]:
            (folder / found[1]).write_text(block.partition("\n")[2], encoding="utf-8")


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
def test_links_lead_somewhere_and_named_tests_exist(document, root):
    text = (root / document).read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text)
    assert links or document == "CONTRIBUTING.md"
    for path, place in links:
        target = root / (path or document)
        assert target.exists(), path
        if place and target.suffix == ".md":
            page = target.read_text(encoding="utf-8")
            names = [
                re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")
                for title in re.findall(r"^#+ (.*)$", page, re.M)
            ]
            assert place in names or f'<a id="{place}">' in page, place
    if document == "TEACHING.md":  # CONTRIBUTING names tests that its reader writes
        rows = re.findall(r"^\| \d.*", text, re.MULTILINE)
        assert len(rows) == len(appendix.table())
        for row in rows:
            folder = ""
            named = re.findall(r"`(?:pytest )?([\w/]+(?:\.py|/))", row.split("|")[3])
            assert named, row
            for path in named:
                folder = path.rpartition("/")[0] if "/" in path else folder
                assert (root / folder / path.rpartition("/")[2]).exists(), path


@pytest.mark.parametrize("document", DOCUMENTS)
def test_python_listings_run(document, root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_readers_files(root, tmp_path)
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
    write_readers_files(root, tmp_path)
    for where, words in shell_lines(root):
        while "=" in words[0]:  # VARIABLE=value command
            variable = words.pop(0).partition("=")[0]
            sources = (root / "minitransformer").rglob("*.py")
            assert any(variable in source.read_text(encoding="utf-8") for source in sources), where
        words[0] = os.path.basename(words[0])
        if words[0].startswith("python") and words[1] == "-m":
            words = words[2:]
        try_line(where, words, root)


def test_twelve_weeks_hold_all_that_they_build_on(root):
    text = " ".join((root / "TEACHING.md").read_text(encoding="utf-8").split())
    (said,) = re.findall(
        r"Twelve weeks hold, for example, (.*?), if (.*?)\. .*?In the place of (\d\d) there can be (.*?),? which", text
    )
    weeks, home, place, others = (re.findall(r"\d\d", part) for part in said)
    (first, before_first, second, before_second) = home
    order = [*weeks]
    for chapter, before in ((first, before_first), (second, before_second)):
        order.insert(order.index(before), chapter)
    assert len(weeks) == 12
    chapters = appendix.table()
    assert {*order, *others} == chapters.keys()
    for k, number in enumerate(order):
        assert {*chapters[number]["builds_on"]} <= {*order[:k]}
    for number in others:
        assert {*chapters[number]["builds_on"]} <= {*order} - {*place}


def test_each_training_of_a_listing_has_a_file_of_its_own(root):
    """`train` writes over nothing: a second one into the same file would be refused."""
    trainings = [words[1:] for _, words in shell_lines(root) if words[:2] == ["minitransformer", "train"]]
    files = [cli.parser().parse_args(words).out for words in trainings]
    assert len(set(files)) == len(files) > 5


def try_line(where, words, root):
    name, *rest = words
    if name == "make":
        if shutil.which("make"):
            subprocess.run(["make", "-n", *rest], cwd=root, check=True, capture_output=True)
    elif name == "minitransformer":
        args = cli.parser().parse_args(rest)
        if rest[0] in ONLY_LOOKING and not {"--check", "--readme", *ON_THE_WAY} & set(rest):
            assert cli.main(rest) == 0, where
        assert callable(args.run), where
    elif name == "pytest":
        if "--equation" in rest:
            done = subprocess.run(
                [sys.executable, "-m", *words], cwd=root, input="continue\n", capture_output=True, text=True
            )
            assert "1 passed" in done.stdout, f"{where}: {done.stdout}{done.stderr}"
        for file in (word.partition("::")[0] for word in rest if ".py" in word):
            assert (root / file).is_file() or any(word in file for word in ON_THE_WAY), where
    elif name == "benchmarks.run":
        benchmarks.run.parser().parse_args(rest)
    elif name.startswith("tests."):
        assert (root / f"{name.replace('.', '/')}.py").is_file(), where
    elif name in ("git", "cd", "source", "conda", "pip", "venv", "jupyter", "ruff"):
        for file in (word for word in rest if word.endswith((".lock", ".yml", ".toml", ".ipynb"))):
            assert (root / file).is_file(), where
    else:
        pytest.fail(f"{where}: nobody has tried this")
