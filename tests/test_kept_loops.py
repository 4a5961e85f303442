"""Compiled loops are kept where they can be."""

import functools
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from minitransformer import kept_loops as loops
from minitransformer.backend import available
from tests.fresh_python import fresh_python

HAS_NUMBA = pytest.mark.skipif("numba" not in available(), reason="needs Numba")
HAS_USERS = pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs users")


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """A place that is a file, and a temporary folder of our own."""
    (tmp_path / "file").touch()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


def test_a_place_that_can_be_written_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "new" / "folder"))
    assert loops.keep_somewhere() is None
    assert loops.kept_in() == tmp_path / "new" / "folder"
    assert list((tmp_path / "new" / "folder").iterdir()) == []


def test_without_a_home_they_are_kept_beside_their_source(monkeypatch):
    for name in ("HOME", "NUMBA_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert loops.kept_in().parent.name == "kernels"


def test_a_full_disk_is_no_place(tmp_path, monkeypatch):
    def full(dir):
        class File(tempfile.SpooledTemporaryFile):
            def write(self, data):
                if data:
                    raise OSError(28, "No space left on device")

        return File()

    assert loops.takes(tmp_path, loops.ROOM)
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    assert loops.takes(tmp_path, 0)
    assert not loops.takes(tmp_path, loops.ROOM)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert loops.kept_in() is None


@HAS_NUMBA
def test_another_place_is_found_and_found_again(nowhere):
    folder = loops.keep_somewhere()
    assert folder.parent == nowhere
    assert os.environ["NUMBA_CACHE_DIR"] == str(folder)
    os.environ["NUMBA_CACHE_DIR"] = str(nowhere.parent / "file")
    assert loops.keep_somewhere() == folder


@HAS_NUMBA
@HAS_USERS
@pytest.mark.parametrize("spoil", [lambda folder: folder.chmod(0o777), lambda f: (f.rmdir(), f.symlink_to(f.parent))])
def test_code_that_others_can_write_is_not_run(nowhere, spoil):
    first = loops.keep_somewhere()
    assert first.stat().st_mode & 0o077 == 0
    spoil(first)
    os.environ["NUMBA_CACHE_DIR"] = str(nowhere.parent / "file")
    second = loops.keep_somewhere()
    assert second != first
    assert second.stat().st_mode & 0o077 == 0


@HAS_NUMBA
def test_python_without_a_command_computes_too(nowhere):
    code = (
        "import numpy as np; from minitransformer.kernels.threads import watch; assert watch(np.ones(2, np.int64), 3)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"TMPDIR": str(nowhere)}, capture_output=True, text=True
    )
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"minitransformer: compiled loops can't be kept where they should be, and are in {nowhere}")
    assert any(nowhere.rglob("*.nbi"))


@HAS_NUMBA
def test_it_is_said_once_and_the_loops_run(nowhere):
    done = subprocess.run(
        [sys.executable, "-m", "minitransformer", "generate", "nothing", "a"],
        env=os.environ | {"TMPDIR": str(nowhere)},
        capture_output=True,
        text=True,
    )
    first, second = done.stderr.splitlines()
    assert first.startswith(f"minitransformer: compiled loops can't be kept where they should be, and are in {nowhere}")
    assert "nothing: there is no such file" in second
    script = """
from minitransformer.kept_loops import keep_somewhere
print(keep_somewhere())
import numpy as np
from minitransformer.kernels.threads import watch
assert watch(np.ones(2, np.int64), 3)
"""
    folder = fresh_python(script, TMPDIR=str(nowhere)).strip()
    assert any(name.endswith(".nbc") for _, _, names in os.walk(folder) for name in names)


@HAS_NUMBA
def test_several_at_once_neither_lose_nor_mix_up_their_loops(tmp_path):
    """Each reads the index, adds its loop and writes it; without a lock, most of these would be lost."""

    def keep(dtype):
        kept_file(tmp_path, "source").save(dtype, f"a loop for {dtype}")

    dtypes = [f"kind {number}" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(keep, dtypes))
    file = kept_file(tmp_path, "source")
    assert [file.load(dtype) for dtype in dtypes] == [f"a loop for {dtype}" for dtype in dtypes]


@HAS_NUMBA
@pytest.mark.parametrize("killed_at", ["_save_data", "_save_index"])
def test_a_killed_process_leaves_no_way_to_the_loop_of_an_older_source(tmp_path, monkeypatch, killed_at):
    def killed(*_):
        raise KeyboardInterrupt

    kept_file(tmp_path, "old source").save("float32", "the old loop")
    new = kept_file(tmp_path, "new source")
    monkeypatch.setattr(new, killed_at, killed)
    with pytest.raises(KeyboardInterrupt):
        new.save("float32", "the new loop")
    assert kept_file(tmp_path, "new source").load("float32") is None
    assert kept_file(tmp_path, "old source").load("float32") == "the old loop"
    kept_file(tmp_path, "new source").save("float32", "the new loop")
    assert kept_file(tmp_path, "new source").load("float32") == "the new loop"


def kept_file(folder, source):
    """What Numba keeps the loops of one function in, written as the book writes it."""
    from numba.core.caching import IndexDataCacheFile

    from minitransformer.kernels.compiling import compiled

    folder.mkdir(exist_ok=True)
    file = IndexDataCacheFile(str(folder), "kernel.loop-1.py311", source)
    ours = compiled(dot)._cache._cache_file.save
    file.save = functools.partial(ours.func, file)
    return file


def dot(x, y):
    return (x * y).sum()
