"""Where the time of a call goes: its threads are looked at again and again, and what each is in is counted.

A compiled loop runs without Python's lock, so another thread can look meanwhile. It sees the lines of Python that have called the
loop; the outermost file of KINDS among them says what is computed. All other time is that of Python, and of NumPy's small calls.
A thread that waits for others, or helps another one with a loop, is not counted; nor is one that was there before the call.
"""

import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

KINDS = {  # what a file computes, with all that it calls
    "kernels/matmul": "products",
    "kernels/attention": "attention",
    "kernels/norms_and_loss": "norms and loss",
    "kernels/pointwise": "activations",
}
OPTIMISER = ("AdamW.update", "clip")  # functions whose loops stand in these files too
WAITING = "threading.py", "thread.py"  # files a thread waits in: of Python's threads, and of its pools of threads
HELPING = "Helper.serve"  # the function that a helper is in
PAUSE = 5e-4  # seconds between two looks


def kind_of(frame: FrameType | None) -> str | None:
    """What a thread computes: "optimiser" within OPTIMISER, else what the outermost file of KINDS does, or else "Python"."""
    found = "Python"
    if frame is not None and Path(frame.f_code.co_filename).name in WAITING:
        return None
    while frame is not None:
        if frame.f_code.co_qualname == HELPING:
            return None
        if frame.f_code.co_qualname in OPTIMISER:
            return "optimiser"
        stem = "/".join(Path(frame.f_code.co_filename).with_suffix("").parts[-2:])
        found = KINDS.get(stem, found)
        frame = frame.f_back
    return found


def shares(job: Callable[[], Any], calls: int) -> dict[str, float]:
    """The share of each kind in the time of `calls` calls, the largest first."""
    found: Counter[str] = Counter()
    over, others = threading.Event(), sys._current_frames().keys() - {threading.get_ident()}

    def look() -> None:
        while not over.wait(PAUSE):
            frames = sys._current_frames()
            threads = frames.keys() - others - {threading.get_ident()}
            found.update(filter(None, (kind_of(frames[thread]) for thread in threads)))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(calls):
            job()
    finally:
        over.set()
        looking.join()
        sys.setswitchinterval(before)
    return {kind: count / found.total() for kind, count in found.most_common()}
