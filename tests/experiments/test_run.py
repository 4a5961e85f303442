"""Trials over processes: the same record whatever the number of workers, and nothing lost when one dies."""

import json
import os
import signal
import subprocess
import sys
import time
import types
from dataclasses import dataclass

import pytest

from minitransformer.backend import available, backend
from minitransformer.experiments.record import Record, read, write
from minitransformer.experiments.run import ExperimentError, on_this_core, run
from minitransformer.machine import cores

distributed = pytest.importorskip("distributed")
import cloudpickle  # noqa: E402  (comes with it)


@dataclass(frozen=True)
class Trial:
    seed: int
    notes: str = ""
    sizes: tuple[int, ...] = (1, 2)


@dataclass(frozen=True)
class Nap:
    seed: int
    folder: str


def throw(trial):
    """A few random numbers, a note that it was run, and how many threads a matrix product may use."""
    import numpy as np
    from threadpoolctl import threadpool_info

    open(f"{trial.notes}/{trial.seed}-{len(os.listdir(trial.notes))}", "w").close()
    threads = max(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
    return {"numbers": np.random.default_rng(trial.seed).random(3).round(6).tolist(), "threads": threads}


def fails_at_three(trial):
    if trial.seed == 3:
        raise ArithmeticError("three is too many")
    return throw(trial)


def dies_once(trial):
    """The process of the third trial is killed, the first time."""
    first = f"{trial.notes}/died"
    if trial.seed == 2 and not os.path.exists(first):
        open(first, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"seed": trial.seed}


@pytest.fixture(scope="module")
def cluster():
    """Two workers that serve all tests; they get the functions of this file by value, since they can't import it."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as found:
        yield found.scheduler_address
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def go(tmp_path, cluster):
    """Run an experiment of so many trials, and find out how often its work was done."""
    notes = tmp_path / "notes"
    notes.mkdir()

    def call(count=4, work=throw, records="records", scheduler=cluster, alone=False, **options):
        module = types.ModuleType("minitransformer.experiments.dice")
        module.Trial, module.run, module.ALONE = Trial, work, alone
        module.trials = lambda: [Trial(seed, str(notes)) for seed in range(count)]
        return run(module, scheduler=scheduler, records=tmp_path / records, progress=False, **options)

    call.runs = lambda: len(os.listdir(notes))
    return call


def test_the_record_is_the_same_for_one_worker_two_and_a_cluster(tmp_path, go):
    there, one, two = go(records="there"), go(records="1", scheduler=None, workers=1), go(records="2", scheduler=None)
    assert there.read_bytes() == one.read_bytes() == two.read_bytes()
    record = read(one, Trial)
    assert [trial.seed for trial in record.trials] == [0, 1, 2, 3]
    assert all(result["threads"] == 1 for result in record.results)
    assert os.listdir(tmp_path / "1") == ["dice.json"]


def test_a_second_run_only_adds_what_is_missing(go):
    before = go(2).read_text()
    assert go.runs() == 2
    assert go(2).read_text() == before
    assert go.runs() == 2
    go(3)
    assert go.runs() == 3
    go(3, renew=True)
    assert go.runs() == 6


def test_a_failed_trial_is_named_and_the_others_are_kept(tmp_path, go):
    with pytest.raises(ExperimentError, match=r"1 of 4 trials failed\nTrial\(seed=3, .*ArithmeticError: three is too"):
        go(work=fails_at_three)
    assert os.listdir(tmp_path / "records") == [".dice.part.json"]
    assert go.runs() == 3
    go()
    assert go.runs() == 4
    assert os.listdir(tmp_path / "records") == ["dice.json"]


def test_a_worker_that_dies_costs_nothing_but_its_trial(go):
    record = read(go(work=dies_once), Trial)
    assert [result["seed"] for result in record.results] == [0, 1, 2, 3]
    assert go.runs() == 1  # the note "died"


SLOW = """
import sys, time, types
from dataclasses import dataclass
from pathlib import Path
from minitransformer.experiments.run import run

@dataclass(frozen=True)
class Trial:
    seed: int
    folder: str

def nap(trial):
    time.sleep(0.2)
    with open(trial.folder + "/done", "a") as file:
        file.write(f"{trial.seed}\\n")
    return {"seed": trial.seed}

if __name__ == "__main__":
    module = types.ModuleType("minitransformer.experiments.dice")
    module.Trial, module.run, module.trials = Trial, nap, lambda: [Trial(seed, sys.argv[2]) for seed in range(30)]
    run(module, scheduler=sys.argv[1], records=Path(sys.argv[2]), progress=False)
"""


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL])
def test_what_was_done_before_it_was_stopped_is_not_done_again(tmp_path, cluster, blow):
    script, part = tmp_path / "slow.py", tmp_path / ".dice.part.json"
    script.write_text(SLOW)
    command = [sys.executable, str(script), cluster, str(tmp_path)]
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not (part.exists() and len(read(part, Nap).trials) > 3) and first.poll() is None:
        time.sleep(0.05)
    first.send_signal(blow)
    assert first.wait(30) != 0
    before = read(part, Nap).results
    assert 3 < len(before) < 30
    assert not (tmp_path / "dice.json").exists()
    subprocess.run(command, check=True)
    record = read(tmp_path / "dice.json", Nap)
    assert [result["seed"] for result in record.results] == list(range(30))
    assert not part.exists()
    runs = (tmp_path / "done").read_text().split()
    assert [runs.count(str(result["seed"])) for result in before] == [1] * len(before)


def test_timed_trials_keep_their_threads(go):
    if "OPENBLAS_NUM_THREADS" not in os.environ:
        assert {result["threads"] for result in read(go(2, alone=True), Trial).results} == {cores()}


@pytest.mark.skipif("numba" not in available(), reason="needs the loops")
def test_a_trial_has_one_thread_of_the_loops_as_well():
    from minitransformer.kernels import threads

    before = threads.number
    with backend("numba"):
        assert on_this_core(lambda trial: threads.number, None)[0] == 1
        assert on_this_core(lambda trial: threads.number, None, alone=True)[0] == before
    assert threads.number == before


def test_no_scheduler_is_one_clear_line(go):
    with pytest.raises(ExperimentError, match=r"--scheduler tcp://127.0.0.1:9: "):
        go(scheduler="tcp://127.0.0.1:9")


def test_what_a_file_can_not_hold_is_refused(go):
    with pytest.raises(ValueError, match="dice: a result can't be kept"):
        go(1, work=lambda trial: {"x": float("nan")})


ABACUS = {"machine": "an abacus", "cores": 1, "tier": "numpy", "python": "3", "numpy": "2", "numba": "absent"}


@pytest.fixture
def kept(tmp_path):
    path = tmp_path / "dice.json"
    write(path, "dice", Record([Trial(0), Trial(1)], [{"x": [0.25, "π"]}, {"x": None}], [ABACUS, ABACUS]))
    return path


def test_what_is_written_is_read(kept):
    record = read(kept, Trial)
    assert list(record) == [(Trial(0), {"x": [0.25, "π"]}), (Trial(1), {"x": None})]
    assert record.made_on == "an abacus, 1 core(s), tier numpy; python 3, numpy 2, numba absent"
    with pytest.raises(ValueError, match="too many"):
        record.only()


def test_a_spoiled_byte_is_found(kept):
    """... or it says nothing: the name of the experiment, or white space."""
    whole = kept.read_bytes()
    for place in range(0, len(whole), 7):
        kept.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            same = read(kept, Trial)
        except ValueError:
            continue
        assert list(same) == [(Trial(0), {"x": [0.25, "π"]}), (Trial(1), {"x": None})]


@pytest.mark.parametrize("content", ["", "[1, 2]", "null", '{"trials": 3, "machines": [], "digest": ""}'])
def test_what_is_no_record_is_not_read(kept, content):
    kept.write_text(content)
    with pytest.raises(
        ValueError, match=r"dice.json is not a whole record .*`minitransformer experiment dice` makes it"
    ):
        read(kept, Trial)


def test_a_record_that_is_cut_short_is_not_read(kept):
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"trials": []}))
    with pytest.raises(ValueError, match="its digest is that of other results"):
        read(kept, Trial)


def test_a_missing_record_says_what_makes_it(tmp_path):
    with pytest.raises(ValueError, match="`minitransformer experiment dice` makes it"):
        read(tmp_path / "dice.json", Trial)
