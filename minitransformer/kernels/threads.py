"""How the compiled loops share the cores with everything else in the process.

Numba can run a `prange` on one of three sets of threads:

    tbb         needs a package of its own; survives a fork and several Python threads at once
    omp         ends the process if it forks after a parallel loop (a multiprocessing pool on Linux, some notebooks)
    workqueue   ends the process if two Python threads start a parallel loop at the same time; its threads sleep between
                two loops, and on a virtual machine it takes longer to wake one than a small matrix product takes

We choose tbb where it is installed, else workqueue, and let one parallel loop run at a time: a loop uses every core, so
a second one beside it would gain nothing. No fork happens during a loop. One case is refused: while a second Python
thread that has run loops is alive, the threads below can't be put to rest, and a forked child could wait for them
forever. Starting a loop costs 10 to 40 µs.

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


_lock = threading.Lock()
# Python threads that have run loops, by number: a new thread may get the number of an old one
users: dict[int, threading.Thread] = {}
_fork = {"beside users": False, "others": False}  # was this process forked so; did others use loops at the last fork


def one_parallel_loop() -> threading.Lock:
    """`with one_parallel_loop():` call a function that holds a prange.

    What is returned is a bare lock: Ctrl-C can't come between taking it and the body that releases it.
    raises   RuntimeError in a process that was forked while another thread used loops
    """
    if _fork["beside users"]:
        raise RuntimeError(
            "this process was forked while another thread used the compiled loops, and can't run them: start "
            "processes with multiprocessing.get_context('spawn'), or use minitransformer.backend('numpy') in them"
        )
    users[threading.get_ident()] = threading.current_thread()
    return _lock


def _after_in_child() -> None:
    _fork["beside users"] |= _fork["others"]
    _lock.release()


def _before_fork() -> None:
    _lock.acquire()
    _fork["others"] = any(user.is_alive() for user in users.values() if user is not threading.current_thread())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_lock.release, after_in_child=_after_in_child)
