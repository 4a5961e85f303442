"""Ring attention: schedules and their work, workers in turns and in processes, the same as attention on one machine."""

import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

import minitransformer as mt
from minitransformer.attention import dot_product_attention, ring_attention
from minitransformer.attention.ring import contiguous, efficiency, in_processes, in_turns, striped, work, zigzag

N, D, DV = 24, 4, 3
SCHEDULES = {"contiguous": contiguous, "striped": striped, "zigzag": zigzag}
every = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)


def arrays(n=N, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((2, n, width)) for width in (D, D, DV)]


def dense(Q, K, V, causal):
    with mt.backend("numpy"):
        return dot_product_attention(Q, K, V, causal=causal)


@every
@pytest.mark.parametrize(("n", "workers"), [(24, 4), (23, 4), (7, 3), (5, 1), (3, 5)])
def test_every_position_has_one_owner(schedule, n, workers):
    owners = schedule(n, workers)
    assert len(owners) == workers
    assert sorted(np.concatenate(owners)) == list(range(n))


@every
@pytest.mark.parametrize(("n", "workers"), [(24, 4), (23, 3), (9, 1), (3, 5)])
@pytest.mark.parametrize("causal", [False, True])
def test_the_ring_is_one_machine(schedule, n, workers, causal):
    """Values and gradients, whoever owns what; also with more workers than positions."""
    Q, K, V = arrays(n)
    Y, pullback = ring_attention(Q, K, V, schedule(n, workers), causal=causal)
    want, known = dense(Q, K, V, causal)
    np.testing.assert_allclose(Y, want, rtol=0, atol=1e-14)
    dY = np.random.default_rng(1).standard_normal(Y.shape)
    for a, b in zip(pullback(dY), known(dY), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-13)


@pytest.mark.parametrize("W", [2, 3, 4, 8])
@pytest.mark.parametrize("c", [2, 6])
def test_the_work_of_each_worker_in_each_step(W, c):
    """Exactly: contiguous c² W + … in the slowest, striped (n + 1)/(n + W), zigzag 1."""
    n = 2 * c * W
    pairs = {name: work(schedule(n, W)) for name, schedule in SCHEDULES.items()}
    for p in pairs.values():
        assert p.shape == (W, W)
        assert p.sum() == n * (n + 1) // 2
        assert (p.sum(1) > 0).all()
    h = n // W
    slowest = h * (h + 1) // 2 + (W - 1) * h * h
    assert pairs["contiguous"].max(1).sum() == slowest
    assert efficiency(pairs["striped"]) == pytest.approx(float(Fraction(n + 1, n + W)), rel=1e-15)
    assert efficiency(pairs["zigzag"]) == 1
    assert (pairs["zigzag"] == pairs["zigzag"][:, :1]).all(), "all have the same to do, in each step"
    assert list(pairs["contiguous"][1]) == [0] + [h * h] * (W - 1), "the first worker waits from the second step on"


def test_the_limit_of_long_stretches():
    """W/(2W − 1): with four workers, 4/7."""
    found = [efficiency(work(contiguous(n, 4))) for n in (16, 64, 256)]
    assert found[0] > found[1] > found[2] > 4 / 7
    assert found[2] == pytest.approx(4 / 7, abs=2e-3)


def test_a_step_takes_as_long_as_its_slowest_worker():
    """Each has 5 pairs in all, but one waits for the other in both steps: 10 pairs in the time of 2 · (4 + 4)."""
    assert efficiency(np.array([[4, 1], [1, 4]])) == 10 / 16


@pytest.mark.parametrize("schedule", SCHEDULES.values())
def test_of_no_pairs_there_is_no_share(schedule):
    """It was NaN, without a word."""
    with pytest.raises(ValueError, match=r"^pairs: no pair counts, so there is no work to share$"):
        efficiency(work(schedule(0, 4)))


def test_two_processes_say_what_one_does_bit_for_bit():
    """The workers do the same in the same order, wherever they are; in another order the last bits differ."""
    Q, K, V = arrays()
    dY = np.random.default_rng(1).standard_normal((2, N, DV))
    here, back = ring_attention(Q, K, V, zigzag(N, 2), causal=True)
    there, away = ring_attention(Q, K, V, zigzag(N, 2), causal=True, processes=True)
    np.testing.assert_array_equal(here, there)
    for a, b in zip(back(dY), away(dY), strict=True):
        np.testing.assert_array_equal(a, b)
    other, _ = ring_attention(Q, K, V, zigzag(N, 3), causal=True)
    assert not np.array_equal(other, here)
    np.testing.assert_allclose(other, here, rtol=0, atol=1e-15)


def visited(rank, workers):
    """A worker that hands on a name, and returns those that it has seen."""
    seen = [rank]
    for _ in range(workers - 1):
        seen.append((yield seen[-1]))
    return seen


@pytest.mark.parametrize(("run", "workers"), [(in_turns, 5), (in_turns, 1), (in_processes, 3)])
def test_in_step_t_worker_r_holds_what_belongs_to_r_minus_t(run, workers):
    found = run(visited, [(r, workers) for r in range(workers)])
    assert found == [[(r - t) % workers for t in range(workers)] for r in range(workers)]


def dies(number):
    """A worker that is gone after the first step."""
    yield number
    os._exit(3)


def test_a_process_that_dies_is_noticed():
    with pytest.raises(ChildProcessError, match=r"worker \d of 2 has ended without a result"):
        in_processes(dies, [(0,), (1,)])


def test_a_script_without_a_guard_is_told_of_it(tmp_path):
    """Its processes run the script again, up to the call; Python says so in each, and the parent what to write."""
    script = tmp_path / "script.py"
    script.write_text("from minitransformer.attention.ring import in_processes\nin_processes(max, [(0,), (1,)])\n")
    said = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300).stderr
    assert "its bootstrapping phase" in said
    assert "AttributeError" not in said
    assert 'Without `if __name__ == "__main__":` a script can\'t start processes\n' in said


def test_without_workers_there_are_no_results():
    assert in_turns(visited, []) == in_processes(visited, []) == []


def test_what_does_not_fit_is_refused():
    Q, K, V = arrays()
    for function in (work, lambda owners: ring_attention(Q, K, V, owners)):
        with pytest.raises(ValueError, match="owners: should be the positions of at least one worker"):
            function([])
        with pytest.raises(ValueError, match=r"owners\[1\]: should be a one-dimensional array of integers, got list"):
            function([np.arange(N), [3]])
    for owners in (contiguous(N - 1, 2), [np.arange(N), np.arange(2)]):
        with pytest.raises(ValueError, match="should have the positions 0 … 23, each once"):
            ring_attention(Q, K, V, owners)
    with pytest.raises(TypeError):
        ring_attention(Q, K[:, 1:], V[:, 1:], contiguous(N, 2))


def test_without_a_mask_all_pairs_count():
    """Also where the parts differ in length."""
    assert work(contiguous(5, 2), causal=False).tolist() == [[9, 4], [6, 6]]
