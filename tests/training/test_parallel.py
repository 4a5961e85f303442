import threading
import time

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from minitransformer.functional import loops_in
from minitransformer.machine import _libraries, one_blas_thread
from minitransformer.training.parallel import each


def blas_threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


@pytest.mark.parametrize("threads", [None, 1, 2, 5])
def test_results_come_in_the_order_of_the_parts(threads):
    def slow_first(part):
        time.sleep(0.02 / (part + 1))
        return part**2

    assert list(each(slow_first, range(5), threads)) == [0, 1, 4, 9, 16]
    assert list(each(slow_first, [], threads)) == []


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_there_are_no_more_threads_than_were_asked_for(threads):
    def which(_):
        time.sleep(0.01)
        return threading.get_ident()

    assert len(set(each(which, range(6), threads))) <= threads


def test_parts_run_side_by_side():
    meeting = threading.Barrier(2, timeout=600)
    assert sorted(each(lambda _: meeting.wait(), range(2), threads=2)) == [0, 1]  # would time out one after the other


@pytest.mark.parametrize("threads", [1, 2])
def test_blas_keeps_to_one_thread_inside_and_gets_its_own_back(threads):
    _libraries.cache_clear()  # another test may have loaded SciPy's since they were looked for
    before = blas_threads()
    assert all(set(inside) <= {1} for inside in each(lambda _: blas_threads(), range(3), threads))
    assert blas_threads() == before


def test_blas_gets_its_own_back_when_the_last_of_overlapping_blocks_ends():
    _libraries.cache_clear()  # as above
    before, first, second = blas_threads(), one_blas_thread(), one_blas_thread()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert set(blas_threads()) <= {1}
    second.__exit__(None, None, None)
    assert blas_threads() == before


def test_loops_know_how_many_threads_stand_beside_theirs():
    loops = loops_in("threads") or pytest.skip("no loops in this tier")
    assert [list(each(lambda _: loops.beside.get(), range(4), threads)) for threads in (1, 3)] == [[0] * 4, [2] * 4]
    assert loops.beside.get() == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_in_a_part_comes_out(threads):
    def fails(part):
        if part == 1:
            raise ValueError("part 1")
        return part

    before = blas_threads()
    with pytest.raises(ValueError, match="part 1"):
        list(each(fails, range(3), threads))
    assert blas_threads() == before


def test_the_number_of_threads_changes_no_bit():
    rng = np.random.default_rng(0)
    A, parts = rng.standard_normal((300, 300)).astype(np.float32), rng.standard_normal((4, 300, 300)).astype(np.float32)
    one, two = (list(each(lambda B: A @ B, parts, threads)) for threads in (1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("threads", [1, 2])
def test_what_numpy_warns_of_is_the_callers_choice(threads):
    with np.errstate(over="ignore"):
        assert [float(x) for x in each(lambda _: np.float32(1e38) * np.float32(10), range(2), threads)] == [np.inf] * 2
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        list(each(lambda _: np.float32(1e38) * np.float32(10), range(2), threads))
