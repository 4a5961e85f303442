"""Trials over processes: the same record whatever the number of workers, and nothing lost when one dies."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import types
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest

from minitransformer import files
from minitransformer.backend import available, backend
from minitransformer.experiments import find
from minitransformer.experiments.record import Record, digest, read, write
from minitransformer.experiments.run import ExperimentError, listed, on_this_core, run
from minitransformer.extensions import ReaderFile
from minitransformer.machine import cores
from minitransformer.terminal import columns

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
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as found:
        yield found.scheduler_address
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def go(tmp_path, cluster):
    """Run an experiment of so many trials, and find out how often its work was done."""
    notes = tmp_path / "notes"
    notes.mkdir()

    def call(count=4, work=throw, records="records", scheduler=cluster, alone=False, progress=False, **options):
        module = types.ModuleType("minitransformer.experiments.dice")
        module.Trial, module.run, module.ALONE = Trial, work, alone
        module.trials = lambda: [Trial(seed, str(notes)) for seed in range(count)]
        return run(module, scheduler=scheduler, records=tmp_path / records, progress=progress, **options)

    call.runs = lambda: len(os.listdir(notes))
    return call


def timeless(path):
    """What a record says, but for the seconds that each trial took, and so the digest."""
    content = json.loads(path.read_text())
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in content["trials"]]
    return content | {"digest": None, "trials": rows}


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.full)])
def test_the_record_is_the_same_for_one_worker_two_and_a_cluster(tmp_path, go, workers):
    there, here = go(records="there"), go(records="here", scheduler=None, workers=workers)
    assert timeless(there) == timeless(here)
    record = read(here, Trial)
    assert [trial.seed for trial in record.trials] == [0, 1, 2, 3]
    assert all(result["threads"] == 1 for result in record.results)
    assert os.listdir(tmp_path / "here") == ["dice.json"]


def two_workers(cluster):
    """Wait until a new one is there in the place of one that died; but one will do."""
    with distributed.Client(cluster) as client, suppress(TimeoutError):
        client.wait_for_workers(2, timeout=20)


FILE_OF_A_READER = """
import minitransformer as mt
from minitransformer.attention import Window
from minitransformer.checks import frozen

@frozen
class Near(Window):
    radius: int = 1

mt.register("near", Near)
"""


def looks_near(trial):
    """Where the trial is run, a reader's attention has its name."""
    from minitransformer.models import LanguageModel

    return {"radius": LanguageModel(attention="near").body.blocks[0].attention.core.pattern.radius}


def looks_near_and_dies_once(trial):
    """The process of the third trial is killed, the first time; another begins in its place."""
    dies_once(trial)
    return looks_near(trial)


def test_workers_run_the_files_of_the_reader(tmp_path, go):
    """Also where the file itself can't be read any more; and those that begin later. Without it, its name is missing."""
    with pytest.raises(
        ExperimentError, match=r"4 of 4 trials failed\n.*attention: no 'near'; near it: linear; there are"
    ):
        go(work=looks_near)
    file = ReaderFile(str(tmp_path / "gone.py"), FILE_OF_A_READER)
    assert read(go(work=looks_near_and_dies_once, bring=[file]), Trial).results == [{"radius": 1}] * 4
    assert go.runs() == 1  # the note "died"
    broken = ReaderFile(str(tmp_path / "wrong.py"), "import minitransformer\n1 / 0")
    with pytest.raises(ExperimentError, match=r"a worker can't run it: .*wrong\.py, line 2: ZeroDivisionError"):
        go(work=looks_near, bring=[broken], renew=True)


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


@pytest.mark.parametrize(
    ("alone", "options"),
    [
        pytest.param(False, {}, marks=pytest.mark.full),  # another dies further up
        (True, {}),
        (True, {"scheduler": None}),  # it is the only worker, and nobody waits for what will never go on
    ],
)
def test_a_worker_that_dies_costs_nothing_but_its_trial(go, cluster, alone, options):
    two_workers(cluster)
    signal.alarm(120)  # ends the process of the tests, where the run would wait for ever
    try:
        record = read(go(work=dies_once, alone=alone, **options), Trial)
    finally:
        signal.alarm(0)
    assert [result["seed"] for result in record.results] == [0, 1, 2, 3]
    assert go.runs() == 1  # the note "died"
    two_workers(cluster)


SLOW = """
import sys, time, types
from dataclasses import dataclass, replace
from pathlib import Path
from minitransformer.experiments.run import run

@dataclass(frozen=True)
class Trial:
    seed: int
    folder: str

def nap(trial):
    folder = Path(trial.folder)
    while (folder / "done").exists() and len((folder / "done").read_text().split()) > 8 and not (folder / "go").exists():
        time.sleep(0.05)
    with open(folder / "done", "a") as file:
        file.write(f"{trial.seed}\\n")
    return {"seed": trial.seed}

if __name__ == "__main__":
    module = types.ModuleType("minitransformer.experiments.dice")
    module.Trial, module.run, module.trials = Trial, nap, lambda: [Trial(seed, sys.argv[2]) for seed in range(30)]
    run(module, scheduler=sys.argv[1] or None, records=Path(sys.argv[2]), progress=False)
"""


@pytest.mark.parametrize("blow", [pytest.param(signal.SIGINT, marks=pytest.mark.full), signal.SIGKILL])
def test_what_was_done_before_it_was_stopped_is_not_done_again(tmp_path, cluster, blow):
    script, part = tmp_path / "slow.py", tmp_path / ".dice.part.json"
    script.write_text(SLOW)
    command = [sys.executable, str(script), cluster, str(tmp_path)]
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not (part.exists() and len(read(part, Nap).trials) > 3) and first.poll() is None:
        time.sleep(0.05)
    first.send_signal(blow)
    assert first.wait() != 0
    before = read(part, Nap).results
    assert 3 < len(before) < 30
    assert not (tmp_path / "dice.json").exists()
    (tmp_path / "go").touch()
    subprocess.run(command, check=True)
    record = read(tmp_path / "dice.json", Nap)
    assert [result["seed"] for result in record.results] == list(range(30))
    assert not part.exists()
    runs = (tmp_path / "done").read_text().split()
    assert [runs.count(str(result["seed"])) for result in before] == [1] * len(before)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no groups of processes that get one signal")
def test_of_ctrl_c_only_the_command_tells(tmp_path):
    """A terminal sends it to all processes of a command; the workers end with it, and say nothing. What was done is kept."""
    script, part = tmp_path / "slow.py", tmp_path / ".dice.part.json"
    script.write_text(SLOW)
    command = [sys.executable, str(script), "", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        while not part.exists() and process.poll() is None:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        (tmp_path / "go").touch()
        _, said = process.communicate(timeout=60)
    assert said.count("KeyboardInterrupt") == 1
    assert "Worker" not in said
    assert 0 < len(read(part, Nap).trials) < 30
    assert not (tmp_path / "dice.json").exists()


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


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:9", "127.0.0.1:9", "tls://127.0.0.1:9", "nonsense", "x://y:1", ""]
)
def test_no_scheduler_is_one_clear_line(go, monkeypatch, address):
    """... at once: nobody tries again and again."""
    monkeypatch.setattr(distributed, "Client", None)
    with pytest.raises(ExperimentError, match=rf"^--scheduler {address}: \S.*$"):
        go(scheduler=address)


def listens(top):
    """Host and port of each socket on which a process or one of its children listens."""
    import psutil

    links = []
    for process in (top, *top.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it has ended since
            links += process.net_connections("inet")
    return sorted({(link.laddr.ip, link.laddr.port) for link in links if link.status == "LISTEN"})


def looks_around(trial):
    """Where the process that started this one and all its children listen, and which pages a browser gets there."""
    import http.client

    import psutil

    found = listens(psutil.Process().parent())
    answers = []
    for host, port in found:
        for page in ("/status", "/info/main/workers.html", "/info/logs/any.html", "/health", "/metrics"):
            link = http.client.HTTPConnection(host, port, timeout=5)
            try:
                link.request("GET", page)
                answers.append((port, link.getresponse().status))
            except (OSError, http.client.HTTPException):  # no server of pages
                pass
            finally:
                link.close()
    return {"found": found, "answers": answers}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at the sockets of other processes")
def test_nobody_from_outside_can_reach_a_run_on_this_machine(go):
    """All that listens does so on the loopback address, and no page shows call stacks or logs."""
    import psutil

    before = {port for _, port in listens(psutil.Process())}  # those of the cluster for the tests
    (result,) = read(go(1, work=looks_around, scheduler=None), Trial).results
    ours = {port: host for host, port in result["found"] if port not in before}
    assert len(ours) > 2
    assert set(ours.values()) == {"127.0.0.1"}
    assert {status for port, status in result["answers"] if port in ours} <= {404}


def test_an_encrypted_scheduler_is_reached_with_the_files_that_are_named(go, tmp_path):
    openssl, key, cert = shutil.which("openssl"), tmp_path / "key.pem", tmp_path / "cert.pem"
    if openssl is None:
        pytest.skip("needs openssl")
    make = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*make, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    tls = {"ca_file": str(cert), "cert": str(cert), "key": str(key)}
    names = {"tls_ca_file": str(cert), "require_encryption": True}
    names |= {f"tls_{who}_{what}": tls[what] for who in ("client", "worker", "scheduler") for what in ("cert", "key")}
    with distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        protocol="tls",
        security=distributed.Security(**names),
        dashboard_address="127.0.0.1:0",
    ) as cluster:
        assert cluster.scheduler_address.startswith("tls://")
        assert len(read(go(1, scheduler=cluster.scheduler_address, tls=tls), Trial).results) == 1
        for other in (None, tls | {"key": str(tmp_path / "nothing")}):
            with pytest.raises(ExperimentError, match=r"^--scheduler tls://"):
                go(1, scheduler=cluster.scheduler_address, tls=other, renew=True)


def lacks_a_module(trial):
    try:
        import only_here_and_there
    except ImportError as error:
        raise RuntimeError(f"trial {trial.seed}") from error
    return only_here_and_there


def test_equal_failures_are_told_once(go, monkeypatch):
    """... with the module that the workers lack, be it one that a trial needs or that of the experiment itself."""
    with pytest.raises(ExperimentError) as caught:
        go(work=lacks_a_module)
    first, second = str(caught.value).splitlines()
    assert first == "dice: 4 of 4 trials failed"
    assert re.fullmatch(r"Trial\(seed=\d, .*\) and 3 more: the workers lack the module only_here_and_there", second)
    monkeypatch.setattr(throw, "__module__", "minitransformer.experiments.dice")
    with pytest.raises(ExperimentError, match=r"^the workers lack the module minitransformer\.experiments\.dice$"):
        go()


def test_two_runs_do_not_share_a_record(go, tmp_path):
    """The second one ends with one line, and what the first one has done stays where it is."""
    go(2)
    before = (tmp_path / "records" / "dice.json").read_bytes()
    with files.alone(tmp_path / "records" / "dice.json"):
        for options in ({"count": 3}, {"renew": True}):
            with pytest.raises(ExperimentError, match=r"^dice: another run is writing its record$"):
                go(**options)
        assert (tmp_path / "records" / "dice.json").read_bytes() == before
    assert go.runs() == 2
    go(3)
    assert os.listdir(tmp_path / "records") == ["dice.json"]


@pytest.mark.parametrize("name", ["dice.json", ".dice.part.json"])
def test_what_is_damaged_is_not_taken_for_nothing(go, tmp_path, name):
    """Hours of trials may be in it: the run says so, and begins anew only if it is told to."""
    go(2)
    damaged = tmp_path / "records" / name
    damaged.write_bytes((tmp_path / "records" / "dice.json").read_bytes()[:-9])
    before = damaged.read_bytes()
    with pytest.raises(
        ExperimentError, match=rf"{name} is not a whole record .*`minitransformer experiment dice --renew`"
    ):
        go(3)
    assert damaged.read_bytes() == before
    assert go.runs() == 2
    go(3, renew=True)
    assert go.runs() == 5
    assert os.listdir(tmp_path / "records") == ["dice.json"]


def test_a_record_that_lacks_nothing_is_left_alone(go, monkeypatch):
    """Neither written again, nor is anybody asked for a scheduler; but what is no address of one is refused."""
    path = go(2)
    before = path.stat()
    assert go(2, scheduler="tcp://127.0.0.1:9") == path
    for address in ("nonsense", "127.0.0.1:9", "x://y:1", "tcp://y:z", "tcp://y:99999", ""):
        with pytest.raises(ExperimentError, match=rf"^--scheduler {address}: \S.*; write tcp://HOST:PORT$"):
            go(2, scheduler=address)
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)  # it may be read


def test_a_run_that_can_not_begin_leaves_nothing_behind(go, tmp_path, monkeypatch, capsys):
    """No empty folder, which would look like a record, and no bar that has never moved."""
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ExperimentError, match=r"^trials are spread by Dask: pip install distributed"):
        go(scheduler=None, progress=True)
    assert not (tmp_path / "records").exists()
    assert capsys.readouterr().err == ""


def test_the_list_says_how_far_a_record_is(go, tmp_path):
    module = types.ModuleType("minitransformer.experiments.dice", "How many eyes?\n\nA cube.")
    module.Trial, module.trials = Trial, lambda: [Trial(seed, str(tmp_path / "notes")) for seed in range(4)]
    records = tmp_path / "records"

    def said():
        return listed(module, records).split()

    assert said() == ["dice", "0", "of", "4", "How", "many", "eyes?"]
    with pytest.raises(ExperimentError):
        go(work=fails_at_three)
    assert said()[:6] == ["dice", "3", "of", "4", "0", "min"]
    path = go()
    assert said()[:5] == ["dice", "4", "trials", "0", "min"]
    assert " 1 trial  " in listed(find("attention_rank"))
    assert max(map(len, listed(find("first_model")).splitlines())) <= columns()
    record = read(path, Trial)
    assert all(0 <= seconds < 60 for seconds in record.seconds)
    write(path, "dice", replace(record, seconds=[100.0, 20.0, 60.0, 60.0]))
    assert said()[3:5] == ["4", "min"]
    write(path, "dice", replace(record, seconds=[None, 20.0, 60.0, 60.0]))
    assert said()[3] == "How"
    path.write_text("{")
    assert said()[1] == "damaged"


def test_what_a_file_can_not_hold_is_refused(go):
    with pytest.raises(ValueError, match="dice: a result can't be kept"):
        go(1, work=lambda trial: {"x": float("nan")})


ABACUS = {"machine": "an abacus", "cores": 1, "tier": "numpy", "python": "3", "numpy": "2", "numba": "absent"}


@pytest.fixture
def kept(tmp_path):
    path = tmp_path / "dice.json"
    write(path, "dice", Record([Trial(0), Trial(1)], [{"x": [0.25, "π"]}, {"x": None}], [ABACUS, ABACUS], [None, 2.5]))
    return path


def test_what_is_written_is_read(kept):
    record = read(kept, Trial)
    assert list(record) == [(Trial(0), {"x": [0.25, "π"]}), (Trial(1), {"x": None})]
    assert record.seconds == [None, 2.5]
    assert record.where(seed=1) == [{"x": None}]
    assert record.where(seed=2) == []
    assert record.made_on == "an abacus, 1 core, tier numpy, numpy 2, numba absent"
    with pytest.raises(ValueError, match="too many"):
        record.only()


def test_machines_that_differ_in_their_processor_alone_are_named_together():
    marked = ABACUS | {"machine": "Wood(R) Bead(TM) CPU @ 1 Hz, Table flat", "cores": 2}
    other = marked | {"machine": "Slide Rule, Table flat"}
    record = Record([Trial(k) for k in range(4)], [{}] * 4, [marked, other, ABACUS, marked], [None] * 4)
    together = "Wood Bead @ 1 Hz and Slide Rule, 2 cores, tier numpy, numpy 2, numba absent"
    assert record.made_on == f"{together}; an abacus, 1 core, tier numpy, numpy 2, numba absent"


def test_a_spoiled_byte_is_found(kept):
    """... or it says nothing, as white space."""
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
        ValueError, match=r"dice.json is not a whole record .*`minitransformer experiment dice --renew` makes it anew"
    ):
        read(kept, Trial)


def places(value, path=()):
    """The path to each value of a JSON tree."""
    yield path
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(part, (*path, key))


@pytest.mark.parametrize("odd", [None, [1], {}, {"a": []}, "text", -7, 3.5, True, 10**30])
def test_whatever_stands_in_a_record_it_is_read_or_refused(kept, odd):
    """At any place of it, and signed: by hand one may write anything. What is read can be printed."""
    text = kept.read_text()
    for path in places(json.loads(text)):
        content = changed = json.loads(text)
        for key in path[:-1]:
            changed = changed[key]
        if path:
            changed[path[-1]] = odd
        else:
            content = odd
        if isinstance(content, dict) and path != ("digest",):
            content["digest"] = digest([content.get("machines"), content.get("trials")])
        kept.write_text(json.dumps(content))
        try:
            record = read(kept, Trial)
        except ValueError as error:
            assert "\n" not in str(error)  # noqa: PT017
        else:
            assert isinstance(record.made_on, str)
            assert all(isinstance(result, dict) for result in record.results)
            assert all(seconds is None or isinstance(seconds, float) for seconds in record.seconds)


def test_a_record_of_another_experiment_is_not_taken_for_this_one(kept):
    """Two experiments may have trials of the same fields."""
    whole = kept.read_text()
    kept.write_text(whole.replace('"experiment": "dice"', '"experiment": "cards"'))
    with pytest.raises(ValueError, match=r"dice.json is not a whole record \(it says that it is one of 'cards'\)"):
        read(kept, Trial)
    kept.write_text(whole)
    read(kept, Trial)


def test_brackets_without_end_are_no_record(kept):
    for text in ("[" * 100_000, '{"trials": ' + "[" * 100_000 + "]" * 100_000 + "}"):
        kept.write_text(text)
        with pytest.raises(ValueError, match="is not a whole record"):
            read(kept, Trial)


def test_a_record_that_is_cut_short_is_not_read(kept):
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"trials": []}))
    with pytest.raises(ValueError, match="its digest is not that of its results"):
        read(kept, Trial)


def test_a_missing_record_says_what_makes_it(tmp_path):
    with pytest.raises(ValueError, match="`minitransformer experiment dice` makes it"):
        read(tmp_path / "dice.json", Trial)
