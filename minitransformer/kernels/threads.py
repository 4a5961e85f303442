"""How a compiled loop gets all cores: the same loop on each thread, which takes a task from a queue, and then another.

    @compiled
    def loop(…, queue):
        for task in claimed(queue, tasks):               or claimed(queue, queue[1]), for parts of an array
            …

    in_parallel(tasks, loop, …)                          loop(…, queue) on every thread

A compiled loop releases the lock of the interpreter (the GIL), so Python's own threads will do. A queue is three numbers: the
next task, into how many parts an array is cut, and whether the caller has left the loop. To claim a task is one instruction, and
no core can come in between. (Threads that fetch their tasks from Python meet at the GIL, and wait 50 µs to be woken.) There is a
helper for each further core, made at the first use; between two jobs it sleeps. To wake it takes 50 µs, in which a core makes
three products of 128 × 128; so a helper looks for the next job for a while (`LOOKS`) before it sleeps, and a thread that waits
for a helper does the same. From time to time it offers its core to others that may wait for one.

No task writes where another one does, and no sum depends on who takes which task: the same bits on any number of threads.
There are as many threads as NUMBA_NUM_THREADS says, or else as this process has cores; one if NUMBA_DISABLE_JIT makes plain
Python of the loops, so that a debugger can follow. Any Python thread may start a loop at any time: what no helper has begun, it
does itself. A forked child makes helpers of its own.
"""

import operator
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import unpack_tuple
from numba.extending import intrinsic

from minitransformer.kernels.compiling import as_it_is, compiled, in_loops, inlined
from minitransformer.machine import cores, keep_freed_memory
from minitransformer.typing import Array

ENOUGH = 2**20  # multiply-adds: for fewer, no helper is called
PARTS = 4  # parts of an array for each thread: a thread that is done early takes another
LOOKS = 600_000  # how often a thread looks at a flag before it sleeps: about half a millisecond
POLITE = 2**12  # how often before it offers its core to a thread that may wait for one
NONE_LEFT = 2**62  # as the next task of a queue: none is left, whatever the loop
PLACES, LINE = 64, 16  # queues, and numbers for each, so that no two share a line of the cache
KEPT = 2**28  # bytes that one call may free and the next one finds again


def _cores() -> int:
    if numba.config.DISABLE_JIT:
        return 1
    if "NUMBA_NUM_THREADS" in os.environ:
        return int(numba.config.NUMBA_NUM_THREADS)
    return cores()


number = _cores()  # of threads that share a loop
beside = ContextVar("beside", default=0)  # threads of Python beside this one, each with loops of its own
keep_freed_memory(KEPT)


@contextmanager
def limit(threads: int) -> Iterator[None]:
    """Let this many threads share a loop while this block runs, in the whole process."""
    global number
    before, number = number, threads
    try:
        yield
    finally:
        number = before


@inlined
def go_on():
    """For a system without `sched_yield`."""


let_others_run = types.ExternalFunction("sched_yield", types.int32()) if os.name == "posix" else go_on


@intrinsic
def look(typingctx, flags, i):
    """flags[i] as it is in memory now. (A compiler would read it once and keep it, since the loop itself does not change it.)"""

    def code(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.load_atomic(builder.gep(array.data, [arguments[1]]), "acquire", 8)

    return types.int64(flags, types.int64), code


@intrinsic
def claim(typingctx, queue):
    """Raise queue[0] by one and return what it was: the number of a task that no other thread gets."""

    def code(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.atomic_rmw("add", array.data, context.get_constant(types.int64, 1), "acq_rel")

    return types.int64(queue), code


@intrinsic
def take(typingctx, flags, i, before):
    """Whether flags[i] was `before`; it is one more now, and no other thread is told so."""

    def code(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        _, i, before = arguments
        after = builder.add(before, context.get_constant(types.int64, 1))
        return builder.extract_value(
            builder.cmpxchg(builder.gep(array.data, [i]), before, after, "acq_rel", "acquire"), 1
        )

    return types.boolean(flags, types.int64, types.int64), code


@intrinsic
def borrowed(typingctx, arguments):
    """The same tuple (or array) without reference counts. The caller of a loop keeps its arrays alive until the loop returns;
    what the loop has made itself nobody keeps, so it can't be borrowed: it would be freed at once.

    Otherwise each part of an array that a loop takes, X[h, t], is counted up and down: two instructions that lock a line of the
    cache, 20 cycles each if no other core wants that line, and all of them do.
    """

    def without_count(context, builder, kind, value):
        if isinstance(kind, types.Array):
            array = context.make_array(kind)(context, builder, value)
            array.meminfo = ir.Constant(array.meminfo.type, None)
            return array._getvalue()
        if isinstance(kind, types.BaseTuple):
            each = zip(kind, unpack_tuple(builder, value), strict=True)
            return context.make_tuple(builder, kind, [without_count(context, builder, *one) for one in each])
        return value

    def code(context, builder, signature, values):
        return without_count(context, builder, signature.args[0], values[0])

    return arguments(arguments), code


def _in_python(queue: Array) -> int:
    queue[0] += 1
    return int(queue[0] - 1)


def _take_in_python(flags: Array, i: int, before: int) -> bool:
    taken = bool(flags[i] == before)
    flags[i] += taken
    return taken


if numba.config.DISABLE_JIT:  # one thread then, and no instruction of our own
    claim, look, take, borrowed = _in_python, operator.getitem, _take_in_python, as_it_is


@in_loops
def one_by_one(queue, number):
    """The tasks 0 … number − 1 that this thread claims, one by one: `claimed` for a loop in Python."""
    task = claim(queue)
    while task < number:
        yield task
        task = claim(queue)


@inlined
def claimed(queue, number):
    """The tasks 0 … number − 1 that this thread claims, one by one.

    Numba never frees an array that a generator was given, so it is given one without a reference count.
    """
    return one_by_one(borrowed(queue), number)


@in_loops
def one_or_both(flags, me, step):
    """`halves` for a loop in Python."""
    for half in (me, 1 - me):
        if look(flags, half * LINE) == step and take(flags, half * LINE, step):
            yield half
            claim(flags[(2 + half) * LINE :])
    looks = 0
    while look(flags, 2 * LINE) <= step or look(flags, 3 * LINE) <= step:
        looks += 1
        if looks % POLITE == 0:
            let_others_run()


@inlined
def halves(flags, me, step):
    """Those halves of a step, 0 and 1, that thread `me`, 0 or 1, takes: its own, and the other one if that is not begun.

    When this ends, both are done. The steps of some work are 0, 1, 2, …; flags (4 LINE,), all 0 before, say in how many steps
    either half is begun, and in how many it is done.
    """
    return one_or_both(borrowed(flags), me, step)


@compiled
def watch(flags, looks):
    """Wait until all flags are up, and return True; after this many looks give up, and return False."""
    for i in range(len(flags)):
        while look(flags, i) == 0:
            looks -= 1
            if looks < 0:
                return False
            if looks % POLITE == 0:
                let_others_run()
    return True


@compiled
def leave(its_queue, idle, looks):
    """`watch` all helpers; but first tell them that the caller has left its loop, now that it does not hold the GIL.

    A thread that asks for the GIL while another holds it sleeps, and is woken 40 µs later. Of two threads that end together,
    as after `halves`, a helper would ask just then; so it waits for this.
    """
    claim(its_queue[2:])
    return watch(idle, looks)


@compiled
def wait_for(bell, queues, idle, place, looks):
    """Raise the flag of this idle helper, now that it does not hold the GIL; then wait for its bell, but not forever.

    The thread that has rung holds the GIL until its own loop begins; so wait, too, until a task of its queue is claimed.
    """
    idle[place] = 1
    if watch(bell, looks):
        watch(queues[bell[0] - 1, :1], looks // 10)


queues = np.zeros((PLACES, LINE), np.int64)  # never freed: a helper may look at one whose job is over
_free = list(range(PLACES))  # places of queues that no job has; a job that finds none works on one thread


class Job:
    """A loop with its arguments and its queue, on which any helper that is free can work."""

    def __init__(
        self, place: int, parts: int, helpers: int, loop: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        self.bell, self.place, self.queue = place + 1, [place], queues[place, :3]
        self.queue[:] = 0, parts, 0
        self.loop, self.arguments = loop, (*arguments, self.queue)
        self.idle = np.ones(helpers, np.int64)  # a flag for each helper
        self.error: BaseException | None = None

    def work(self) -> None:
        """Take tasks while there are any."""
        if arguments := self.arguments:
            self.loop(*arguments)

    def drop(self) -> None:
        """Let no thread begin another task."""
        if self.place:
            self.queue[0] = NONE_LEFT

    def finish(self) -> None:
        """Wait until no helper is at work, and none can begin."""
        self.drop()
        self.arguments = ()  # a helper that comes from now on finds nothing; one that came before is not idle
        nap = 1e-5
        while not leave(self.queue, self.idle, LOOKS):
            time.sleep(nap)
            nap = min(2 * nap, 1e-3)
        while self.place:
            _free.append(self.place.pop())


class Helper:
    """A thread that waits for jobs. While it is awake it watches `bell`; while it sleeps, it waits in `jobs`."""

    def __init__(self, place: int) -> None:
        self.place, self.jobs, self.bell = place, SimpleQueue[Job](), np.zeros(1, np.int64)

    def begin(self) -> None:
        threading.Thread(target=self.serve, name=f"loops-{self.place + 1}", daemon=True).start()

    def call(self, job: Job) -> None:
        self.jobs.put(job)
        self.bell[0] = job.bell

    def serve(self) -> None:
        while True:
            job = self.jobs.get()
            job.idle[self.place] = 0
            try:
                job.work()
            except BaseException as error:  # the thread that has called is to raise it
                job.error = error
                job.drop()
            self.bell[0] = 0
            idle = job.idle
            del job  # its arrays may be freed from now on
            wait_for(self.bell, queues, idle, self.place, LOOKS if self.jobs.empty() else 0)


_helpers: dict[int, Helper] = {}  # by their place
_compiled: set[tuple[Any, ...]] = set()  # (loop, dtype of what it writes): the first time, one thread compiles
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_helpers.clear)  # threads are not forked


def helpers(count: int) -> list[Helper]:
    """The first `count` helpers, made if needed. Two threads that ask at once get the same: a dictionary takes one a place."""
    for place in range(len(_helpers), count):
        helper = Helper(place)
        if _helpers.setdefault(place, helper) is helper:
            helper.begin()
    return [_helpers[place] for place in range(count)]


def in_parallel(tasks: int, loop: Callable[..., None], *arguments: Any) -> None:
    """Run loop(*arguments, queue) on as many threads as are free, or as there are tasks, if these are fewer.

    raises   what the loop raises on any thread, when all of them have stopped
    """
    threads = min(number - beside.get(), tasks)
    if threads <= 1:
        loop(*arguments, np.array([0, 1]))
        return
    written = arguments[-1][-1] if isinstance(arguments[-1], tuple) else arguments[-1]
    if (kind := (loop, written.dtype.char)) not in _compiled:
        loop(*arguments, np.array([0, 1]))
        _compiled.add(kind)
        return
    called = helpers(threads - 1)
    try:
        place = _free.pop()
    except IndexError:
        loop(*arguments, np.array([0, 1]))
        return
    job = Job(place, min(tasks, threads * PARTS), threads - 1, loop, arguments)
    try:
        for helper in called:
            helper.call(job)
        job.work()
    finally:
        interrupted = None
        while True:  # Ctrl-C waits: nothing half done may go on behind our back
            try:
                job.finish()
                break
            except KeyboardInterrupt as error:
                interrupted = error
        if interrupted:
            raise interrupted
    if job.error:
        raise job.error
