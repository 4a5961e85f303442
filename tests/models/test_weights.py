"""Tensors of a file: what is read of it does not stay in memory."""

import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from minitransformer.models import from_safetensors, load_bert
from minitransformer.models.weights import Tensors
from tests.models import test_bert, test_published

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


def a_llama(folder, config, tensors):
    test_published.write(folder, "llama", config=config, **tensors)
    return from_safetensors


def a_bert(folder, config, tensors):
    test_bert.write_bert(folder, config=test_bert.CONFIG | config, tensors=test_bert.tiny_tensors() | tensors)
    return load_bert


SIZES = "num_hidden_layers", "hidden_size", "vocab_size", "intermediate_size"


@pytest.mark.parametrize(("write", "key"), [(a_llama, "head_dim"), *product((a_llama, a_bert), SIZES)])
def test_a_size_for_which_there_is_no_tensor_is_refused_before_anything_is_made(write, key, tmp_path):
    """A model of 2³⁰ blocks would be made for hours; an angle for each of 2³⁰ columns takes gigabytes."""
    scaling = {"rope_type": "llama3", "factor": 8, "original_max_position_embeddings": 8, "rope_theta": 1e4}
    scaling |= {"high_freq_factor": 4, "low_freq_factor": 1}
    read = write(tmp_path / "model", {key: 2**30} | ({"rope_parameters": scaling} if write is a_llama else {}), {})
    with pytest.raises(
        ValueError, match=r"config\.json: \w+: 1073741824 (is larger than|should be a number up to 4096)"
    ):
        read(tmp_path / "model")


@pytest.mark.parametrize("write", [a_llama, a_bert])
@pytest.mark.parametrize("said", ["\x1b[31mred\x1b[0m", "two\nlines", "x" * 5000])
def test_whatever_files_of_others_say_their_errors_are_one_line_that_no_terminal_obeys(write, said, tmp_path):
    for config, tensors in (
        ({"hidden_act": said}, {}),
        ({"model_type": [said] * 50}, {}),
        ({"hidden_size": [said] * 50}, {}),
        ({}, {said: np.ones(2, np.float32)}),
    )[: 3 if write is a_bert else 4]:  # what belongs to no part of a BERT is passed over
        read = write(tmp_path / "model", config, tensors)
        with pytest.raises(ValueError, match=re.escape(str(tmp_path / "model"))) as caught:
            read(tmp_path / "model")
        error = str(caught.value)
        assert error.isprintable()
        assert len(error) < 600
