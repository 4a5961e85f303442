"""What is written down of a machine; and a training that does not ask it for the same memory again and again."""

import platform
import runpy
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import machine
from minitransformer.backend import available
from minitransformer.book import running
from minitransformer.experiments import run
from minitransformer.machine import circumstances, cores, processor
from tests.fresh_python import fresh_python

CODE = """
import resource, numpy as np
from minitransformer.machine import keep_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        arrays = [np.ones(2**18, np.float32) for _ in range(12)] + [np.ones(2**24, np.float32)]
        del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(keep_freed_memory(), keep_freed_memory())
faults()
print(faults())
"""

ATTENTION = """
import resource, numpy as np
from minitransformer.attention import dot_product_attention
Q = np.ones((4, 2048, 64), np.float32)
def both_ways():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    Y, pullback = dot_product_attention(Q, Q, Q)
    pullback(Q)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
both_ways(), both_ways()
print(min(both_ways() for _ in range(5)))
"""


def test_the_record_names_versions_and_machine():
    said = circumstances()
    assert said["numpy"] == np.__version__
    assert said["minitransformer"] == mt.__version__
    assert said["tier"] == str(mt.backend())
    assert said["blas"]
    assert said["cores"] == cores() >= 1
    assert processor() in said["machine"]
    assert said["make"] == machine.make()


def test_a_make_is_told_by_the_numbers_of_the_first_core(monkeypatch, tmp_path):
    """... of processors that share a name, as Zen 4 and Zen 5 do in virtual machines; elsewhere than on Linux it is unknown."""
    core = "processor\t: {}\nvendor_id\t: AuthenticAMD\ncpu family\t: {}\nmodel\t\t: {}\nmodel name\t: AMD EPYC\n\n"
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(machine, "Path", lambda _: cpuinfo)
    assert machine.make() == "unknown"
    cpuinfo.write_text(core.format(0, 25, 17) + core.format(1, 26, 2))
    assert machine.make() == "cpu family 25, model 17"
    assert machine.processor() == "AMD EPYC"
    cpuinfo.write_text("processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0c\n")
    assert machine.make() == "CPU implementer 0x41, CPU part 0xd0c"


def test_the_record_names_the_commit(root, tmp_path, monkeypatch):
    """... of the clone; and of code that was changed since, says so."""
    assert circumstances()["commit"] == machine.commit()
    assert machine.commit() == "unknown" or (root / ".git").exists()
    package, git = (
        tmp_path / "minitransformer",
        ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"),
    )
    package.mkdir()
    (package / "machine.py").write_text("")
    monkeypatch.setattr(machine, "__file__", str(package / "machine.py"))
    said = machine.commit.__wrapped__
    assert said() == "unknown"
    if shutil.which("git") is None:
        pytest.skip("needs git")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "one")):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    (package / "record.json").write_text("a record is no code")
    assert said() == head
    (package / "machine.py").write_text("changed")
    assert said() == f"{head} with changes"
    monkeypatch.setenv("PATH", "")
    assert said() == "unknown"


def test_the_record_follows_the_tier():
    with mt.backend("numpy"):
        assert circumstances()["tier"] == "numpy"


FILES = """
import resource
from minitransformer.machine import may_open_many_files
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (60, most))
may_open_many_files(100)
may_open_many_files(80)
print(resource.getrlimit(resource.RLIMIT_NOFILE) == (100, most))
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 90))
may_open_many_files(100)
print(resource.getrlimit(resource.RLIMIT_NOFILE) == (90, 90))
"""


def test_as_many_files_may_be_open_as_the_system_allows():
    pytest.importorskip("resource", reason="Windows has no such limit")
    assert fresh_python(FILES) == "True\nTrue\n"


def test_without_a_loopback_nobody_is_waited_for(monkeypatch):
    """As in a container without a network: it can be listened at, and not reached."""

    def unreachable(*_, **__):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(machine.socket, "create_connection", unreachable)
    for module in ("nbclient", "ipykernel", "distributed"):
        pytest.importorskip(module)
    for starts in (running.jupyter, run._client(None, None, workers=1, trials=1).__enter__):
        with pytest.raises(OSError, match=r"processes .* reach each other at 127\.0\.0\.1: .*unreachable"):
            starts()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="speaks to the allocator of Linux")
def test_no_page_is_asked_for_twice():
    *kept, faults = fresh_python(CODE).split()
    if kept != ["True", "True"]:
        pytest.skip("another allocator than glibc's")
    assert int(faults) < 100  # there are 389,120 pages in these arrays


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="speaks to the allocator of Linux")
@pytest.mark.skipif(len(available()) == 1, reason="NumPy alone keeps A, which is larger than what is kept")
def test_a_second_call_of_attention_finds_the_memory_of_the_first():
    """... unless the environment says what the allocator should keep. There are 2,048 pages in the gradients alone."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("another allocator than glibc's")
    said = (
        "MALLOC_",
        "GLIBC_TUNABLES",
    )  # Dask says something of it in this process, if a test of experiments was here before
    assert int(fresh_python(ATTENTION, without=said)) < 100
    assert int(fresh_python(ATTENTION, MALLOC_TRIM_THRESHOLD_="0")) > 1000


def test_a_training_keeps_everything_whatever_was_said_before(monkeypatch):
    said = []
    monkeypatch.setattr("ctypes.CDLL", lambda name: SimpleNamespace(mallopt=lambda *setting: said.append(setting) or 1))
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    keep = runpy.run_path(machine.__file__)["keep_freed_memory"]
    assert keep(2**20)
    assert keep()
    assert not keep(2**21)
    assert said == [(-3, 2**18), (-1, 2**20), (-4, 0), (-1, -1), (-2, 2**26)]


@pytest.mark.parametrize("refused", [set(), {0}, {1}, {2}, {0, 1, 2}])
def test_memory_is_kept_only_where_every_setting_is_taken(refused, monkeypatch):
    """mallopt gives 0 for what it does not know. (The tests have put another function in its place, so it is read anew.)"""
    answers = iter(int(number not in refused) for number in range(3))
    monkeypatch.setattr("ctypes.CDLL", lambda name: SimpleNamespace(mallopt=lambda *setting: next(answers)))
    assert runpy.run_path(machine.__file__)["keep_freed_memory"]() == (not refused)


@pytest.mark.parametrize(
    ("line", "own", "file", "none"),
    [
        ("0::/jobs/mine", "jobs/mine", "memory.max", "max"),
        ("4:cpu,memory:/jobs/mine", "memory/jobs/mine", "memory.limit_in_bytes", str(2**63 - 4096)),
    ],
)
def test_memory_is_what_a_process_may_use(line, own, file, none, tmp_path, monkeypatch):
    """... in a container or in any group around it: doctor told of all the memory of the machine, and found that all is there."""
    groups, control = tmp_path / "groups", tmp_path / "control"
    monkeypatch.setattr(machine, "GROUPS", groups)
    monkeypatch.setattr(machine, "CONTROL", control)
    whole = machine.memory()  # without groups
    groups.write_text(f"7:cpu:/jobs/mine\n{line}\n")
    assert machine.memory() == whole  # in a container the path may be one of the host's
    within = [control / own, *(control / own).parents][: own.count("/") + 1]
    within[0].mkdir(parents=True)
    for folder in within:
        (folder / file).write_text(f"{none}\n")
    assert machine.memory() == whole
    for folder in within:
        (folder / file).write_text(f"{2**28}\n")
        assert machine.memory() == (2**28 if whole is None else min(2**28, whole))
        (folder / file).write_text(f"{none}\n")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="macOS takes no such limit")
def test_memory_is_what_ulimit_leaves():
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, resource.getrlimit(resource.RLIMIT_AS)[1])); "
        "from minitransformer.machine import memory; print(memory())"
    )
    assert int(fresh_python(code)) <= 3 * 2**30
