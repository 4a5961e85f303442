"""Sizes of caches: the formula against a cache that is there, and the numbers of the table."""

import numpy as np
import pytest

from minitransformer.attention import Window, cache_bytes
from minitransformer.measurements.cache_sizes import GIB, MODELS, Layers, cache_size, keys_and_values, saving, table
from minitransformer.models import LanguageModel


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_the_formula_is_what_a_model_keeps(groups):
    """Keys and values of 20 tokens, counted in the states; float32 has twice the bytes."""
    model = LanguageModel(40, 24, 16, 3, 4, 10, groups=groups)
    _, state = model.step(model.init(np.random.default_rng(0)), np.arange(20))
    kept = sum(X.nbytes for block in state.blocks for X in (block.keys, block.values))
    assert kept == 2 * cache_size((Layers(3, keys_and_values(groups, 4)),), 20)


def test_the_table_in_bytes():
    """Two mebibytes are 2²¹: all of it can be done by hand."""
    n, sizes = 131072, {name: cache_size(layers, 131072) / GIB for name, layers in MODELS.items()}
    found = [round(size, 2) for size in sizes.values()]
    assert found == [488.0, 8.58, 9.0, 4.5, 7.12, 60.0, 10.39, 3.07]
    assert cache_size(MODELS["61 layers, 128 heads of 128"], n) == 61 * 2 * 2 * 128 * 128 * n
    windows = MODELS["the same, every other a window of 128 (gpt-oss-120b)"]
    assert cache_size(windows, n) == cache_bytes([Window(127)] * 18 + [None] * 18, n, groups=8, d=64)


def test_what_a_window_saves():
    """As many times as there are layers to a full one, in the end; at 4k, with a window of 1024, 2.67."""
    assert saving(6, 1024, 4096) == pytest.approx(8 / 3)
    assert saving(6, 1024, 10**9) == pytest.approx(6, rel=1e-4)
    assert saving(2, 128, 131072) == pytest.approx(2, rel=1e-3)


def test_the_table():
    lines = table().splitlines()
    assert len(lines) == 1 + len(MODELS)
    assert lines[0].split() == ["cache", "in", "GiB", "4k", "128k"]
    assert lines[1].split()[-2:] == ["15.25", "488.00"]
