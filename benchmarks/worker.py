"""One implementation, in a process of its own: requests come in and answers go out, a line of JSON each.

    python -m benchmarks.worker ours          or   python -m benchmarks.worker peers sdpa

While others are measured it waits for the next line, and uses no processor.
"""

import ctypes
import gc
import importlib
import json
import os
import re
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.where import shares

WAKING = 0.02  # seconds until a sample begins: its threads wake up, and those that were measured before it fall asleep
WARM = 128  # length of the call that loads the code before memory is measured


class Session:
    """What a worker can be asked for."""

    def __init__(self, module: str, peer: str = "") -> None:
        self.module = importlib.import_module(f"benchmarks.{module}")
        self.suffix = f"_{peer}" if peer else ""
        self.job: Callable[[], Any] | None = None

    def _make(self, work: str, case: dict[str, Any]) -> Callable[[], Any]:
        return getattr(self.module, work + self.suffix)(**case)

    def machine(self) -> dict[str, Any]:
        """Versions, and what else is to be known about this side."""
        return self.module.machine()

    def bring(self, path: str, text: str) -> dict[str, Any]:
        """Run a reader's file, which registers an attention."""
        from minitransformer.extensions import ReaderFile

        ReaderFile(path, text).bring()
        return {}

    def first(self, work: str, case: dict[str, Any]) -> dict[str, Any]:
        """Seconds of the first call."""
        self.job = self._make(work, case)
        return self._clock(1)

    def setup(self, work: str, case: dict[str, Any]) -> dict[str, Any]:
        """Make inputs and call twice: some numbers of the result, and the seconds of the second call."""
        self.job = self._make(work, case)
        sample = [_sample(np.asarray(result)) for result in self.job() or ()]
        return {"sample": sample, **self._clock(1)}

    def run(self, inner: int) -> dict[str, Any]:
        """Seconds of one call, the mean over `inner` of them, after calls that are not counted and fill WAKING."""
        start = time.perf_counter()
        while time.perf_counter() - start < WAKING:
            self.job()
        return self._clock(inner)

    def _clock(self, inner: int) -> dict[str, Any]:
        start = time.perf_counter()
        for _ in range(inner):
            self.job()
        return {"value": (time.perf_counter() - start) / inner}

    def where(self, calls: int) -> dict[str, Any]:
        """Where the time of `calls` calls goes."""
        return {"shares": shares(self.job or (lambda: None), calls)}

    def memory(self, work: str, case: dict[str, Any]) -> dict[str, Any]:
        """Highest use of memory during the first call, above what the inputs take; code was loaded by a small call."""
        self._make(work, {**case, "n": WARM})()
        self.job = self._make(work, case)
        gc.collect()
        with suppress(OSError, AttributeError, TypeError):  # what is kept counts for the call that uses it
            ctypes.CDLL(None).malloc_trim(0)
        before = _resident()
        result = self.job()
        return {"value": _highest() - before, "results": len(result)}

    def drop(self) -> dict[str, Any]:
        """Forget the inputs."""
        self.job = None
        gc.collect()
        return {}


def _in_words(error: Exception) -> str:
    """Kind and first line, without the folders of this machine."""
    first = f"{type(error).__name__}: {error}".splitlines()[0]
    return re.sub(r" \([^()]*/[^()]*\)", "", first)[:200]


def _sample(result: np.ndarray) -> list[float]:
    """A few numbers from all over an array."""
    flat = result.reshape(-1)
    return flat[:: max(1, flat.size // 61)].tolist()


def _resident() -> int:
    """Bytes in use now; the highest use is counted anew from here. Without /proc it is the highest use so far."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmRSS")
    except OSError:
        return _highest()


def _highest() -> int:
    try:
        return _status("VmHWM")
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def main() -> None:
    """Answer until the pipe is closed. What libraries print goes to the error stream."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    session: Session | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            session = session or Session(*sys.argv[1:])
            answer = getattr(session, request.pop("do"))(**request)
        except Exception as error:  # whatever it is, the row says so
            answer = {"error": _in_words(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
