"""How the compiled loops share the cores with everything else in the process.

Numba can run a `prange` on one of three sets of threads. Two of them come with it, and each has a way to die:

    omp         ends the process if it forks after a parallel loop (a multiprocessing pool on Linux, some notebooks)
    workqueue   ends the process if two Python threads start a parallel loop at the same time
    tbb         does neither, but needs a package of its own

The first danger lies with whoever calls us, the second can be removed here: we choose workqueue and let one parallel
loop run at a time. A loop uses every core, so a second one beside it would gain nothing. The lock is also taken before
a fork, so that a child never starts with half a loop. Starting a loop costs about 40 µs.

If a program of yours runs its own parallel Numba loops in several threads, set NUMBA_THREADING_LAYER (to tbb, or to omp
if nothing forks); that, and a layer already chosen in `numba.config`, is respected.
"""

import os
import threading

import numba

if numba.config.THREADING_LAYER == "default":
    numba.config.THREADING_LAYER = "workqueue"

one_parallel_loop = threading.Lock()  # with one_parallel_loop: call a function that holds a prange

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=one_parallel_loop.acquire,
        after_in_parent=one_parallel_loop.release,
        after_in_child=one_parallel_loop.release,
    )
