"""How the compiled loops share the cores with everything else in the process.

Numba can run a `prange` on one of three sets of threads:

    tbb         needs a package of its own; survives a fork and several Python threads at once
    omp         ends the process if it forks after a parallel loop (a multiprocessing pool on Linux, some notebooks)
    workqueue   ends the process if two Python threads start a parallel loop at the same time; its threads sleep between
                two loops, and on a virtual machine it takes longer to wake one than a small matrix product takes

We choose tbb where it is installed, else workqueue, and let one parallel loop run at a time: a loop uses every core, so
a second one beside it would gain nothing. The lock is also taken before a fork, so that a child never starts with half
a loop. Starting a loop costs 10 to 40 µs.

NUMBA_THREADING_LAYER, or a layer already chosen in `numba.config`, is respected.
"""

import ctypes
import importlib
import os
import sys
import threading
from pathlib import Path

import numba


def _has_tbb() -> bool:
    """Whether Numba finds TBB. Its pip package lies where no loader looks, so it is loaded by hand first."""
    for library in (Path(sys.prefix, "lib", "libtbb.so.12"), Path(sys.prefix, "Library", "bin", "tbb12.dll")):
        if library.exists():
            try:
                ctypes.CDLL(str(library))
            except OSError:
                return False
    try:
        importlib.import_module("numba.np.ufunc.tbbpool")
    except ImportError:
        return False
    return True


if numba.config.THREADING_LAYER == "default":
    numba.config.THREADING_LAYER = "tbb" if _has_tbb() else "workqueue"

one_parallel_loop = threading.Lock()  # with one_parallel_loop: call a function that holds a prange

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=one_parallel_loop.acquire,
        after_in_parent=one_parallel_loop.release,
        after_in_child=one_parallel_loop.release,
    )
