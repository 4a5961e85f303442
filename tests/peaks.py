"""How much memory a call needs."""

from minitransformer.machine import peak_memory


def peak(call, tries=2):
    """Bytes that a call needs at its worst moment, with what it returns.

    The least of several tries: other threads of this process count too, such as those that carry a test runner's messages.
    """
    peaks = []
    for _ in range(tries):
        with peak_memory() as most:
            kept = call()
            peaks.append(most())
        del kept
    return min(peaks)
