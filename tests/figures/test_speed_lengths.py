"""The claims of the caption of fig_speed_lengths about the record."""

import numpy as np
import pytest

from minitransformer.figures import speed_lengths


@pytest.fixture(scope="module")
def record():
    return speed_lengths.data()


def test_nothing_beats_a_copy(record):
    copy = np.median(record.seconds["copy"], 1)
    for name in speed_lengths.LABELS.keys() - {"copy"}:
        took = np.median(record.seconds[name], 1)
        assert np.all(took > copy[: len(took)])


def test_in_tiles_memory_is_linear_and_only_kernel_attention_remembers_more(record):
    dense = record.bytes["dense"]
    assert np.all(np.diff(dense / record.n) == 0)
    for name in ("window", "bigbird"):
        assert np.all(np.abs(record.bytes[name] / dense - 1) < 0.05)  # their lines lie on each other
    assert np.all(record.bytes["kernel"] > 1.2 * dense)


def test_every_circle_is_in_the_picture(record):
    for name in ("window", "bigbird"):
        assert record.n[0] < np.median(record.crossovers(name)) < record.n[-1]
    assert np.median(record.crossovers("kernel")) < record.n[-1]  # on the left edge it is not drawn: it may lie before
