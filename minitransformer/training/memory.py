"""Memory that one step of a training has freed is kept for the next.

A step makes the same arrays as the one before, hundreds of them. The allocator of Linux (glibc) hands large ones back to the
system at once, and gets them back page by page, each page filled with zeros and entered into a table: for arrays of a few
megabytes that takes longer than the arithmetic on them. Here it is told to keep what was freed, up to a gigabyte; a
training then has no page faults after its first steps, and the process keeps its memory until it ends.
"""

import ctypes
import functools

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # the numbers of M_TRIM_THRESHOLD, … in glibc's malloc.h


@functools.cache
def keep_freed_memory() -> bool:
    """Tell the allocator, once; False where it is another one, and nothing has changed."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # macOS, musl; Windows
        return False
    settings = (MMAP_THRESHOLD, 32 * 2**20), (TRIM_THRESHOLD, 2**30), (TOP_PAD, 64 * 2**20)
    done = [mallopt(name, size) for name, size in settings]
    return all(done)
