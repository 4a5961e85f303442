"""The parts of a batch side by side, one on each core.

NumPy and compiled loops release the lock of Python's interpreter (the GIL) while they work on an array, so threads do here what
they can't do for plain Python. It is the best use of a second core: matrix products and loops can spread over the cores by
themselves, but the copies, the sums and the Python between them can't. A part's arrays are also smaller, so more of them fit
into the caches.
"""

import contextvars
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from minitransformer.functional import loops_in
from minitransformer.machine import cores, one_blas_thread

Part = TypeVar("Part")
Result = TypeVar("Result")


def each(function: Callable[[Part], Result], parts: Sequence[Part], threads: int | None = None) -> Iterator[Result]:
    """function(part) for each part, in their order; the same results whatever the number of threads (all cores by default).

    `np.errstate` of the caller holds in the threads too. Compiled loops get the cores that are left: on two, one each.
    """
    threads = min(cores() if threads is None else threads, len(parts))
    # a matrix product that spreads over the cores would stand in the way of the other thread's; and two cores add in another
    # order than one, so the limit holds for a single thread as well
    with one_blas_thread():
        if threads <= 1:
            yield from map(function, parts)
            return
        with ThreadPoolExecutor(threads) as pool:
            contexts = [contextvars.copy_context() for _ in parts]
            if loops := loops_in("threads"):
                for context in contexts:
                    context.run(loops.beside.set, threads - 1)
            jobs = [pool.submit(context.run, function, part) for context, part in zip(contexts, parts, strict=True)]
            yield from (job.result() for job in jobs)
