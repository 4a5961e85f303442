"""Files that are there whole or not at all, and locks that end with their process.

Every file of the book (figure, record, checkpoint, report) is written by `write`: beside its final place, under a name that
nobody else has, flushed to the disk, then renamed over the old one. Whatever happens, kill, full disk or power cut, the name
stands for the old content or the new one.
"""

import contextlib
import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

NEW = os.O_CREAT | os.O_EXCL  # a file of our own: never one that is there, never what a link points to
# follow no link, change no end of line, and don't wait for the other end of a pipe, where a system has such flags
PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)


class InUse(ValueError):
    """Another process holds the lock of a file."""


def write(path: str | Path, content: bytes | str) -> None:
    """Put all of it in the place of what may be there, or leave everything as it was. Text is written as UTF-8.

    raises   OSError, which names the path, if that fails
    """
    path = Path(path)
    part = path.parent / f".minitransformer-{secrets.token_hex(8)}.part"
    try:
        descriptor = os.open(part, os.O_WRONLY | NEW | PLAIN, 0o666)
        try:
            with open(descriptor, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())  # on the disk before the name points to it
            os.replace(part, path)
        except BaseException:  # Ctrl-C too
            with contextlib.suppress(OSError):
                part.unlink()
            raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def alone(path: str | Path) -> Iterator[None]:
    """In this block no other process can enter one with the same path. The lock ends with its process.

    raises   InUse if another is there already; OSError if there can be no lock: a folder that is missing or not writable
    """
    lock = Path(path).with_name(f".{Path(path).name}.minitransformer-lock")
    with _opened(lock) as file:
        if not _locked(file, lock):
            raise InUse(f"{path}: another process is writing it")
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                lock.unlink()


def _opened(lock: Path) -> Any:
    """A file of our own, or the empty one that a killed process has left; what has content, or is a link, is not ours."""
    while True:
        with contextlib.suppress(FileExistsError):
            return open(os.open(lock, os.O_RDWR | NEW | PLAIN, 0o666), "rb+")
        with contextlib.suppress(FileNotFoundError):  # whose it was has ended between these two lines
            found = lock.lstat()
            if not stat.S_ISREG(found.st_mode) or found.st_size:
                raise FileExistsError(errno.EEXIST, "the file with the name of its lock is no lock", str(lock))
            return open(os.open(lock, os.O_RDWR | PLAIN), "rb+")


def _locked(file: Any, lock: Path) -> bool:
    """Whether this process holds the lock now; True as well on a system, or a file system, that has no locks."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), lock.stat())  # unless it was taken away while we opened it
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError:  # a file system that knows no locks
        return True


def temporary() -> Path:
    """The folder for temporary files.

    raises   OSError if there is none, with the reason (full, not writable), which Python keeps to itself
    """
    with contextlib.suppress(FileNotFoundError):
        return Path(tempfile.gettempdir())
    places = [os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")] + [os.sep + "tmp", os.curdir]
    for place in filter(None, places):
        probe = Path(place) / f".minitransformer-{secrets.token_hex(8)}.part"
        with contextlib.suppress(FileNotFoundError):
            write(probe, b"room?")
            probe.unlink()
    return Path(tempfile.gettempdir())
