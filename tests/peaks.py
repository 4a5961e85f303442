"""How much memory a call needs."""

import tracemalloc


def peak(call, tries=2):
    """Bytes that a call needs at its worst moment, with what it returns.

    The least of several tries: other threads of this process count too, such as those that carry a test runner's messages.
    """
    peaks = []
    for _ in range(tries):
        tracemalloc.start()
        try:
            kept = call()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        del kept
    return min(peaks)
