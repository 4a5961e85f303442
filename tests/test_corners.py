"""The grid of `tests/corners.py`: what each corner sets and installs. The runs themselves take hours."""

import re
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from tests import corners


@pytest.fixture(scope="module")
def pyproject(root):
    return (root / "pyproject.toml").read_text(encoding="utf-8")


def test_each_corner_differs_from_every_other():
    assert len({(str(c.variables), c.environment) for c in corners.CORNERS.values()}) == len(corners.CORNERS)
    assert corners.CORNERS["plain"][1:] == ({}, "lock", True)
    assert {c.environment for c in corners.CORNERS.values()} == {"lock", "no-numba", "lowest", "newest"}


def test_a_corner_has_its_own_variables_and_none_that_it_is_about_from_outside(monkeypatch):
    for name in ("OPENBLAS_CORETYPE", "NUMBA_CPU_NAME", "OMP_NUM_THREADS", "MINITRANSFORMER_BACKEND", "VIRTUAL_ENV"):
        monkeypatch.setenv(name, "inherited")
    monkeypatch.setenv("LANG", "C.UTF-8")
    for corner in corners.CORNERS.values():
        here = corners.surroundings(corner)
        assert here["LANG"] == "C.UTF-8"
        assert "inherited" not in here.values()
        assert corner.variables.items() <= here.items()
    assert corners.surroundings(corners.CORNERS["one-thread"])["NUMBA_NUM_THREADS"] == "1"


def test_lower_bounds_are_one_version_each(pyproject):
    """All of them, and each is the version that its range begins with."""
    table = tomllib.loads(pyproject)
    asked = [need for group in table["dependency-groups"].values() for need in group] + table["project"]["dependencies"]
    pinned = {need.name: need for need in map(Requirement, corners.lower_bounds(pyproject))}
    assert pinned.keys() == {Requirement(need).name for need in asked}
    for need in map(Requirement, asked):
        (lowest,) = pinned[need.name].specifier
        assert lowest.operator == "=="
        assert lowest.version in need.specifier
        assert str(need.specifier) == f">={lowest.version}"
        assert need.marker == pinned[need.name].marker


def test_only_what_the_processor_has_can_be_disabled():
    """The names of NumPy 2.4, and those of NumPy 2.0; AVX2 stays."""
    new = ["X86_V3", "X86_V4", "AVX512_ICL", "AVX512_SPR"]
    assert corners.with_avx512(new, dict.fromkeys(new, True)) == ["X86_V4", "AVX512_ICL", "AVX512_SPR"]
    old = ["SSE42", "AVX2", "AVX512F", "AVX512_KNL", "AVX512_SKX"]
    has = dict.fromkeys(old, True) | {"AVX512_KNL": False}
    assert corners.with_avx512(old, has) == ["AVX512F", "AVX512_SKX"]
    assert corners.with_avx512(["SSE42", "AVX2"], {"AVX2": True}) == []


def test_the_python_that_runs_this_is_among_those_found_if_it_is_on_the_path():
    found = corners.pythons()
    assert list(found) == sorted(found, reverse=True)
    for minor, python in found.items():
        said = subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout
        assert said.startswith(f"Python 3.{minor}.")


def test_each_commit_has_another_corner_until_all_had_their_turn(monkeypatch):
    counts = iter(range(700, 718))
    monkeypatch.setattr(
        subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, stdout=f"{next(counts)}\n")
    )
    found = [corners.in_turns() for _ in range(18)]
    assert set(found) == corners.CORNERS.keys() - {"plain"}
    assert found[:9] == found[9:]


def test_ci_asks_for_targets_that_the_makefile_has(root):
    script, makefile = ((root / name).read_text(encoding="utf-8") for name in (".ci/run", "Makefile"))
    asked = re.findall(r"--only=([a-z-]+)", script)
    assert asked == ["book", "check", "test-all"]  # the tests of `make test` are among those of `make test-all`
    for target in asked:
        assert re.search(rf"^{target}: ", makefile, re.MULTILINE)


def test_the_list_names_every_corner_and_an_unknown_one_is_refused():
    command = [sys.executable, corners.__file__]
    listed = subprocess.run([*command, "--list"], capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in listed.splitlines()] == list(corners.CORNERS)
    refused = subprocess.run([*command, "attic"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "no corner attic; there are plain, " in refused.stderr
