"""Where compiled loops are kept, and another place where they can't be."""

import importlib.util
import os
import tempfile
from pathlib import Path

from minitransformer.files import temporary

ROOM = 2**20  # bytes that a place should have left


def kept_in() -> Path | None:
    """Where Numba keeps what it compiles, or None if it can't: NUMBA_CACHE_DIR, or beside the source, or else at home."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    beside = Path(__file__).parent / "kernels" / "__pycache__"
    places = [Path(chosen)] if chosen else [beside, Path(os.path.expanduser("~")) / ".cache" / "numba"]
    place = next((place for place in places if takes(place, 0)), None)
    return place if place and takes(place, ROOM) else None


def takes(place: Path, size: int) -> bool:
    """Whether a file of so many bytes can be written there."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(size))
            file.flush()
    except OSError:
        return False
    return True


def keep_somewhere() -> Path | None:
    """A temporary folder for the loops where Numba can't keep them; a Numba that is not imported yet will use it.

    It is the same one in every run, and belongs to this user alone: compiled code that others can write is not run.
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
