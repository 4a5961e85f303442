"""Tensors of a file: what is read of it does not stay in memory."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from minitransformer.models.weights import Tensors

STATUS = Path("/proc/self/status")


def mapped():
    """Bytes of files that are in this process's memory."""
    sizes = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return 1024 * sum(int(sizes[name].split()[0]) for name in ("RssFile", "RssShmem"))


@pytest.mark.skipif(not STATUS.exists(), reason="only Linux says how much of a file is in memory")
def test_a_file_is_not_in_memory_beside_its_tensors(tmp_path):
    path, n = tmp_path / "model.safetensors", 2**20
    save_file({str(k): np.full(n, k, np.float32) for k in range(5)}, path)
    tensors, before = Tensors(path), mapped()
    for k in range(5):
        assert (tensors(str(k), n) == k).all()
    assert mapped() - before < 4 * n
