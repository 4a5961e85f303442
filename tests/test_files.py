"""A file of the book is there whole or not at all, and nothing of the reader's beside it is touched."""

import ast
import errno
import os
import secrets
import tempfile

import pytest

from minitransformer import files
from minitransformer.book import book
from minitransformer.experiments.record import Record
from minitransformer.experiments.record import write as write_record
from minitransformer.figures import style

resource = pytest.importorskip("resource")  # limits stand for the full disk


@pytest.fixture
def path(tmp_path):
    return tmp_path / "here"


def names(folder):
    return sorted(found.name for found in folder.iterdir())


# ------------------------------------------------------------------------------------------- whole, or not at all


def test_what_is_written_is_there(path):
    for content in (b"\0one\r\n", "zwei −\n", b""):
        files.write(path, content)
        assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
        assert names(path.parent) == [path.name]


@pytest.mark.skipif(os.name != "posix", reason="needs permissions")
def test_a_file_may_be_read_by_those_who_may_read_others(path):
    (path.parent / "other").touch()
    files.write(path, b"")
    assert path.stat().st_mode == (path.parent / "other").stat().st_mode


WRITERS = {
    "files": lambda path, text: files.write(path, text),
    "notebook": lambda path, text: book._replace(path, text.encode()),
    "record": lambda path, text: write_record(path, text, Record([], [], [], [])),
    "figure": lambda path, text: _figure(path, text),
}


def _figure(path, text):
    figure, ax = style.figure()
    ax.set_title(text[:9])
    style.save(figure, path.name.removeprefix("fig_").removesuffix(".svg"))


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("where", ["full", "fsync", "replace", "Ctrl-C"])
def test_who_can_not_write_leaves_the_old_file_and_says_which(tmp_path, monkeypatch, writer, where):
    """A disk that is full in the middle of the file, at its end, or when it gets its name; and Ctrl-C."""
    monkeypatch.setenv("MINITRANSFORMER_FIGURES", str(tmp_path))
    path = tmp_path / "fig_a.svg"
    WRITERS[writer](path, "old" * 20)
    before = path.read_bytes()

    def fails(*_):
        raise KeyboardInterrupt if where == "Ctrl-C" else OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if where == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
    else:
        monkeypatch.setattr(files.os, {"Ctrl-C": "fsync"}.get(where, where), fails)
    try:
        with pytest.raises(KeyboardInterrupt if where == "Ctrl-C" else OSError) as caught:
            WRITERS[writer](path, "new" * 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    if where != "Ctrl-C":
        assert caught.value.filename == str(path)
    assert path.read_bytes() == before
    assert names(tmp_path) == [path.name]


def test_what_has_the_name_of_the_partial_file_is_not_touched(path, monkeypatch):
    """Not even through a link; and what a killed process has left is nobody's."""
    (path.parent / "precious").write_text("mine")
    monkeypatch.setattr(secrets, "token_hex", lambda count: "taken")
    for make in (lambda part: part.write_text("a reader's"), lambda part: part.symlink_to(path.parent / "precious")):
        part = path.parent / ".minitransformer-taken.part"
        part.unlink(missing_ok=True)
        make(part)
        with pytest.raises(FileExistsError):
            files.write(path, b"new")
        assert part.read_text() in ("a reader's", "mine")
        assert (path.parent / "precious").read_text() == "mine"
        assert not path.exists()


def test_no_room_for_temporary_files_says_why(tmp_path, monkeypatch):
    """Python says "No usable temporary directory", whatever the reason."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert files.temporary().is_dir()
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)) as caught:
            files.temporary()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.filename.startswith(str(tmp_path))
    assert names(tmp_path) == []


WRITE = {"write_text", "write_bytes", "savefig", "NamedTemporaryFile", "mkstemp"}
IN_MEMORY = {"content", "picture"}  # what a figure is drawn into, before it is written


def test_nobody_writes_a_file_in_another_way(root):
    """`open` for writing, `write_text`, `savefig` to a path: a kill would leave half of it."""
    found = []
    for source in [*(root / "minitransformer").rglob("*.py"), *(root / "benchmarks").rglob("*.py")]:
        if source.name == "files.py":
            continue
        for call in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call):
                continue
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            words = [ast.unparse(arg) for arg in call.args]
            modes = [w for w in [*words, *(ast.unparse(k.value) for k in call.keywords)] if w[:2] in ("'w", "'a", "'x")]
            on_disk = name in WRITE or (name == "open" and modes and "os.devnull" not in words)
            if on_disk and not IN_MEMORY & set(words) and "/proc/" not in ast.unparse(call.func):
                found.append(f"{source.name}:{call.lineno}: {ast.unparse(call)[:80]}")
    assert found == []


# -------------------------------------------------------------------------------------------------------- locks


def test_one_at_a_time_and_nothing_stays(path):
    with files.alone(path):
        for _ in range(2):  # who is turned away does not take the lock along
            with pytest.raises(files.InUse), files.alone(path):
                pass
        with files.alone(path.with_name("other")):
            pass
    with files.alone(path):
        pass
    assert names(path.parent) == []


def test_no_file_of_the_reader_is_a_lock(path):
    """Whatever it is called, and wherever a link in the place of the lock leads to."""
    with files.alone(path):
        (lock,) = path.parent.iterdir()
    mine = path.parent / "mine"
    mine.write_text("precious")
    for other in (f"{path.name}.lock", f".{path.name}.lock", f"{path.name}.part", f"{path.name}.new"):
        (path.parent / other).write_text("precious")
    before = names(path.parent)
    with files.alone(path):
        files.write(path, b"")
    path.unlink()
    assert names(path.parent) == before
    assert {found.read_text() for found in path.parent.iterdir()} == {"precious"}

    for make in (
        lambda: lock.symlink_to(mine),
        lambda: lock.symlink_to(path.parent / "nothing"),
        lambda: lock.write_text("precious"),
        lambda: lock.mkdir(),
        *([lambda: os.mkfifo(lock)] if hasattr(os, "mkfifo") else []),
    ):
        make()
        with pytest.raises(FileExistsError, match="the file with the name of its lock is no lock"), files.alone(path):
            pass
        assert mine.read_text() == "precious"
        assert lock.is_symlink() or lock.is_dir() or lock.is_fifo() or lock.read_text() == "precious"
        assert not (path.parent / "nothing").exists()
        lock.rmdir() if lock.is_dir() and not lock.is_symlink() else lock.unlink()


def test_a_lock_that_was_taken_away_while_it_was_opened(path):
    """Else two could hold a lock each: one on the file that is there, one on the file that was."""
    lock = path.with_name("lock")
    with lock.open("w") as file:
        lock.unlink()
        assert not files._locked(file, lock)
        lock.touch()
        assert not files._locked(file, lock)


def test_where_there_are_no_locks(path, monkeypatch):
    """Neither a system without them (Windows) nor a file system without them stands in the way."""

    def unknown(*_):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(fcntl, "flock", unknown)
    with files.alone(path), files.alone(path):
        pass
    monkeypatch.setattr(files, "fcntl", None)
    with files.alone(path):
        pass
