"""A training does not ask the system for the same memory again and again."""

import subprocess
import sys

import pytest

CODE = """
import resource, numpy as np
from minitransformer.training.memory import keep_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        arrays = [np.ones(2**18, np.float32) for _ in range(12)]
        del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(keep_freed_memory(), keep_freed_memory())
faults()
print(faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="speaks to the allocator of Linux")
def test_no_page_is_asked_for_twice():
    script = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=True)
    *kept, faults = script.stdout.split()
    if kept != ["True", "True"]:
        pytest.skip("another allocator than glibc's")
    assert int(faults) < 100  # there are 61,440 pages in these arrays
