"""A loop on several threads: every task is done once, errors arrive, and nobody is left waiting."""

import ast
import contextvars
import gc
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from minitransformer.backend import available
from minitransformer.functional import rms_norm

pytestmark = pytest.mark.skipif("numba" not in available(), reason="needs Numba")
threads = pytest.importorskip("minitransformer.kernels.threads") if "numba" in available() else None


def count(done, queue):
    """Each task, in Python: a loop need not be compiled."""
    for task in threads.one_by_one(queue, len(done)):
        done[task] += 1


@pytest.mark.parametrize("number", [1, 2, 3, 7])
@pytest.mark.parametrize("tasks", [0, 1, 2, 50])
def test_every_task_is_done_once(number, tasks):
    with threads.limit(number):
        for _ in range(20):
            done = np.zeros(tasks)
            threads.in_parallel(tasks, count, done)
            assert (done == 1).all()


@pytest.mark.parametrize("me", [0, 1])
def test_a_thread_takes_both_halves_if_the_other_one_is_late(me):
    flags = np.zeros(4 * threads.LINE, np.int64)
    for late in (False, True):
        who = 1 - me if late else me
        taken = [list(threads.one_or_both(flags, who, step)) for step in range(3)]
        assert taken == [[] if late else [me, 1 - me]] * 3


def test_a_call_leaves_nothing_behind():
    """No loop keeps what it was given, be it the queue: of 112 bytes a call, millions of calls of a training make a heap."""
    X = np.ones((2, 8))

    def left():
        gc.collect()
        tracemalloc.start()
        for _ in range(1000):
            rms_norm(X, X[0])
        gc.collect()
        found = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return found

    left()
    assert min(left() for _ in range(3)) < 30_000  # other threads of the process, as a test runner's, may get messages


def test_several_callers_at_once():
    def call(_):
        done = np.zeros(50)
        threads.in_parallel(50, count, done)
        return (done == 1).all()

    with threads.limit(3), ThreadPoolExecutor(5) as pool:
        assert all(pool.map(call, range(500)))


@pytest.mark.parametrize(("beside", "parts"), [(0, 3 * 4), (1, 2 * 4), (2, 1), (5, 1)])
def test_threads_of_python_that_stand_beside_it_have_their_cores(beside, parts):
    def cut(seen, queue):
        seen[queue[1]] = 1

    context = contextvars.copy_context()
    context.run(threads.beside.set, beside)
    with threads.limit(3):
        threads.in_parallel(50, cut, np.zeros(50))  # the first time, one thread does all
        seen = np.zeros(50)
        context.run(threads.in_parallel, 50, cut, seen)
    assert np.flatnonzero(seen) == [parts]


def test_callers_who_need_the_first_helpers_at_once_get_the_same(monkeypatch):
    """Two helpers at one place would share a flag, and a loop would be over while one of them is at work."""
    made = threads.Helper.__init__

    def slowly(self, place):
        time.sleep(0.01)
        made(self, place)

    monkeypatch.setattr(threads, "_helpers", {})
    monkeypatch.setattr(threads.Helper, "__init__", slowly)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(threads.helpers, [3, 3, 2, 3]))
    assert [helper.place for helper in found[0]] == [0, 1, 2]
    assert all(helper is first for those in found for helper, first in zip(those, found[0], strict=False))


@pytest.mark.parametrize("where", range(3))
def test_an_error_on_any_thread_is_raised_when_all_have_stopped(where):
    def fail(done, queue):
        for task in threads.one_by_one(queue, len(done)):
            if queue[1] > 1 and task == where:
                raise ValueError(f"task {task}")
            time.sleep(0.01)
            done[task] = 1

    with threads.limit(3):
        threads.in_parallel(3, fail, np.zeros(3))  # the first time, one thread does all
        for _ in range(5):
            done = np.zeros(3)
            with pytest.raises(ValueError, match=f"task {where}"):
                threads.in_parallel(3, fail, done)
            after = done.copy()
            time.sleep(0.03)
            np.testing.assert_array_equal(done, after)


def test_ctrl_c_on_the_way_to_a_helper_waits_for_it(monkeypatch):
    def slow(done, queue):
        for task in threads.one_by_one(queue, len(done)):
            time.sleep(0.01)
            done[task] = 1

    finish, came = threads.Job.finish, []

    def interrupted(job):
        came.append(job)
        if len(came) == 1:
            raise KeyboardInterrupt
        finish(job)

    with threads.limit(3):
        threads.in_parallel(3, slow, np.zeros(3))  # the first time, one thread does all
        monkeypatch.setattr(threads.Job, "finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            threads.in_parallel(3, slow, np.zeros(3))
    assert len(came) == 2
    assert came[0].idle.all()
    assert not came[0].arguments


def test_a_helper_keeps_no_array_alive():
    import weakref

    array = np.zeros(50)
    gone = weakref.ref(array)
    with threads.limit(3):
        for _ in range(3):
            threads.in_parallel(50, count, array)
    del array
    assert gone() is None


def test_who_finds_no_place_for_a_queue_works_alone(monkeypatch):
    done = np.zeros(50)
    with threads.limit(3):
        threads.in_parallel(50, count, done)  # the first time, one thread does all
        monkeypatch.setattr(threads, "_free", [])
        threads.in_parallel(50, count, done)
    assert (done == 2).all()


def test_a_place_is_free_again_when_its_job_is_over():
    def fail(done, queue):
        for task in threads.one_by_one(queue, len(done)):
            if queue[1] > 1:
                raise ValueError(f"task {task}")

    with threads.limit(3):
        threads.in_parallel(50, fail, np.zeros(50))
        for _ in range(2 * threads.PLACES):
            with pytest.raises(ValueError, match="task"):
                threads.in_parallel(50, fail, np.zeros(50))
            threads.in_parallel(50, count, np.zeros(50))
    assert sorted(threads._free) == list(range(threads.PLACES))


def test_a_limit_ends_with_its_block():
    before = threads.number
    with threads.limit(5):
        assert threads.number == 5
    assert threads.number == before


def not_kept(function):
    """Names that a function borrows and that are not among what it was given."""
    given = {argument.arg for argument in function.args.args}
    calls = [call for call in ast.walk(function) if isinstance(call, ast.Call)]
    borrows = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "borrowed"]
    named = {name.id for call in borrows for name in ast.walk(call) if isinstance(name, ast.Name)}
    return named - given - {"borrowed"}


def test_a_loop_borrows_only_what_its_caller_keeps():
    """An array that a loop has made itself would be freed as soon as its name stands for the borrowed one, and written into."""
    made = ast.parse("def loop(X, queue):\n    room = empty(3)\n    X, room = borrowed((X, room))").body[0]
    assert not_kept(made) == {"room"}
    borrowing = 0
    for path in Path(threads.__file__).parent.glob("*.py"):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                borrowing += any(getattr(name, "id", "") == "borrowed" for name in ast.walk(function))
                assert not_kept(function) == set(), f"{path.name}: {function.name}"
    assert borrowing > 20
