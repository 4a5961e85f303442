"""The folder in which compiled loops are kept, and another one for when nothing can be written there."""

import importlib.util
import os
import tempfile
from pathlib import Path

from minitransformer.files import temporary

ROOM = 2**20  # bytes that a place should have left


def kept_in() -> Path | None:
    """Where Numba caches what it compiles: NUMBA_CACHE_DIR, or beside the source, or else at home; None if no place has room."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    beside = Path(__file__).parent / "kernels" / "__pycache__"
    places = [Path(chosen)] if chosen else [beside, Path(os.path.expanduser("~")) / ".cache" / "numba"]
    place = next((place for place in places if takes(place, 0)), None)
    return place if place and takes(place, ROOM) else None


def takes(place: Path, size: int) -> bool:
    """Whether a file of `size` bytes can be written there."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(size))
            file.flush()
    except OSError:
        return False
    return True


def keep_somewhere() -> Path | None:
    """Give Numba a temporary folder, if it has no other place for compiled loops, and return it; else, or without Numba, None.

    To be called before Numba is imported. The folder is the same in every run, and this user's alone: where others own it or
    could write to it, each run gets a new one, since compiled code of others must not run.
    raises   OSError if there is no place at all
    """
    if importlib.util.find_spec("numba") is None or kept_in():
        return None
    user = os.getuid() if hasattr(os, "getuid") else "loops"
    folder = temporary() / f"minitransformer-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if hasattr(os, "getuid"):
        about = folder.lstat()
        if about.st_uid != user or about.st_mode & 0o077:
            folder = Path(tempfile.mkdtemp(prefix="minitransformer-"))
    os.environ["NUMBA_CACHE_DIR"] = str(folder)
    return folder
