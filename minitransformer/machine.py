"""Facts about this machine: cores, processor, instructions, versions; and its memory allocator."""

import ctypes
import functools
import os
import platform
import socket
import subprocess
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController, threadpool_info

from minitransformer.backend import backend

# the numbers of M_TRIM_THRESHOLD, … in glibc's malloc.h, and the environment variables by which a user sets the same
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, MMAP_MAX = -1, -2, -3, -4
_SET_BY_USER = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}
_everything_is_kept: list[bool] = []

LOOPBACK = "127.0.0.1"  # who reaches a kernel or a scheduler can run code: nobody from outside does

# where Linux says in which control groups this process is, and how much memory each of them may use
GROUPS, CONTROL = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def may_open_many_files(many: int = 4096) -> None:
    """Let this process have so many files open, if the system allows it. A kernel takes 25 of them; macOS begins with 256."""
    with suppress(ImportError, ValueError, OSError):  # Windows; a system that does not allow it
        import resource

        now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        allowed = many if most == resource.RLIM_INFINITY else min(many, most)
        if now != resource.RLIM_INFINITY and now < allowed:
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))


def refuse_no_loopback() -> None:
    """Raise OSError where a process can't reach another one of this machine: a kernel or a worker would be waited for in vain."""
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        raise OSError(f"processes of this machine can't reach each other at {LOOPBACK}: {error}") from None


@functools.cache
def _libraries() -> ThreadpoolController:
    """The libraries that have threads of their own; finding them takes longer than many a step."""
    return ThreadpoolController()


_blocks: list[Any] = []  # an entry for each block that runs now; the first one can end the limit, the others are None
_one_at_a_time = threading.Lock()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let BLAS use one thread in this block, in the whole process. (Its other threads spin for a while after each product.)

    Blocks on several threads of Python may overlap: the limit ends with the last of them.
    """
    with _one_at_a_time:
        _blocks.append(None if _blocks else _libraries().limit(limits=1, user_api="blas"))
    try:
        yield
    finally:
        with _one_at_a_time:
            if (limit := _blocks.pop()) is not None:
                limit.restore_original_limits()


def memory() -> int | None:
    """Bytes of memory that this process may use: those of the machine, or fewer in a container or after `ulimit -v`.

    None if the system doesn't say.
    """
    known = []
    with suppress(AttributeError, ValueError, OSError):  # Windows
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in _limits():
        with suppress(ValueError, OSError):  # "max", or no such file
            known.append(int(path.read_text()))
    with suppress(ImportError, ValueError, OSError):
        import resource

        if (most := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
            known.append(most)
    return min(known, default=None)


def _limits() -> Iterator[Path]:
    """The files, if they are there, with the limits of the control group of this process and of every group around it.

    A line is `0::/outer/own` for groups of version 2, and `4:memory:/outer/own` for those of version 1.
    """
    for line in GROUPS.read_text().splitlines() if GROUPS.is_file() else ():
        _, kinds, group = line.split(":", 2)
        root, file = (CONTROL / "memory", "memory.limit_in_bytes") if kinds else (CONTROL, "memory.max")
        if not kinds or "memory" in kinds.split(","):
            inside = root / group.lstrip("/")
            yield from (folder / file for folder in (inside, *inside.parents) if folder.is_relative_to(root))


@contextmanager
def peak_memory() -> Iterator[Callable[[], int]]:
    """A block with a function that returns the peak memory of arrays, in bytes, since the block began."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def processor() -> str:
    """The name that the processor gives itself."""
    return _first_core().get("model name") or platform.processor() or "unknown processor"


def make() -> str:
    """The numbers by which one make of processor is told from another where the name is the same, as in virtual machines."""
    core = _first_core()
    said = (f"{key} {core[key]}" for key in ("cpu family", "model", "CPU implementer", "CPU part") if key in core)
    return ", ".join(said) or "unknown"


def _first_core() -> dict[str, str]:
    """What Linux says of the first core in /proc/cpuinfo; empty on other systems."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(errors="replace").partition("\n\n")[0] if cpuinfo.is_file() else ""
    lines = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}


def vectors() -> str:
    """The widest set of vector instructions that NumPy found, such as X86_V3 (AVX2) or X86_V4 (AVX-512)."""
    simd: Any = np.show_config(mode="dicts").get("SIMD Extensions", {})
    return (simd.get("found") or simd.get("baseline") or ["none"])[-1]


def circumstances() -> dict[str, str | int]:
    """The circumstances of a result, for its record: enough to repeat it, or to see why a repetition differs."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    blas = {f"{pool['internal_api']} {pool['version']} {pool.get('architecture', '')}".strip() for pool in pools}
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in ("minitransformer", "numpy", "numba")},
        "commit": commit(),
        "blas": ", ".join(sorted(blas)) or "unknown",
        "machine": f"{processor()}, {platform.system()} {platform.machine()}",
        "make": make(),
        "cores": cores(),
        "tier": str(backend()),
    }


@functools.cache
def commit() -> str:
    """The commit of the clone that this package is imported from, and whether its code was changed since; or `unknown`."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():  # installed; a repository around it is another one
        return "unknown"
    try:
        head = _git(root, "rev-parse", "HEAD")
        return head + " with changes" * bool(_git(root, "status", "--porcelain", "--", "minitransformer/*.py"))
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


@functools.cache
def keep_freed_memory(most: int | None = None) -> bool:
    """Let the allocator keep what one call has freed for the next; False if it is not glibc's, or has been told what to keep.

    A step of a training makes the same arrays as the one before, hundreds of them, and so does a second call of attention. The
    allocator of Linux (glibc) hands large ones back to the system at once, and gets them back page by page, each page filled with
    zeros and entered into a table, which costs 0.1 µs or, in a virtual machine, up to 10: a fifth of attention both ways.

    most     None: keep everything, however large, until the process ends, as a training does, which after its first steps has no
             page faults then. Bytes: keep so many, and a quarter of them as one array; what MALLOC_TRIM_THRESHOLD_,
             MALLOC_MMAP_THRESHOLD_ or GLIBC_TUNABLES say takes precedence
    """
    # no mapping for a single array; nothing is handed back; the heap grows by 64 MiB
    settings = [(MMAP_MAX, 0), (TRIM_THRESHOLD, -1), (TOP_PAD, 64 * 2**20)]
    if most is not None:
        if _everything_is_kept or not _SET_BY_USER.isdisjoint(os.environ):
            return False
        settings = [(MMAP_THRESHOLD, most // 4), (TRIM_THRESHOLD, most)]
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # macOS, musl; Windows
        return False
    done = [mallopt(name, size) for name, size in settings]
    if most is None:
        _everything_is_kept.append(True)
    return all(done)
