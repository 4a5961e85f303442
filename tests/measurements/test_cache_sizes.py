"""Sizes of caches: the formula against a cache that is there, and the numbers of the table."""

import numpy as np
import pytest

from minitransformer.attention import Window, cache_bytes
from minitransformer.attention.sparse.cached_tokens import cached_tokens
from minitransformer.measurements.cache_sizes import (
    GIB,
    MODELS,
    READ,
    Layers,
    cache_size,
    keys_and_values,
    layers_of,
    table,
)
from minitransformer.models import LanguageModel, deepseek_v2_lite, gpt2, gpt_oss, llama, qwen3_next


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_the_formula_is_what_a_model_keeps(groups):
    """Keys and values of 20 tokens, counted in the states; float32 has twice the bytes."""
    model = LanguageModel(40, 24, 16, 3, 4, 10, groups=groups)
    _, state = model.step(model.init(np.random.default_rng(0)), np.arange(20))
    kept = sum(X.nbytes for block in state.blocks for X in (block.keys, block.values))
    assert kept == 2 * cache_size((Layers(3, keys_and_values(groups, 4)),), 20)


def test_a_window_with_global_tokens_keeps_both():
    """Two that all see and the last four, of texts that are shorter, as long and longer."""
    pattern = Window(3, global_tokens=2)
    assert [cached_tokens(pattern, n) for n in (5, 6, 7, 1000)] == [5, 6, 6, 6]
    assert cached_tokens(None, 1000) == 1000


def test_the_table_in_bytes():
    """Two mebibytes are 2²¹: all of it can be done by hand."""
    n, sizes = 131072, {name: cache_size(layers, 131072) / GIB for name, layers in MODELS.items()}
    found = [round(size, 2) for size in sizes.values()]
    assert found == [488.0, 8.58, 0.85, 9.0, 4.5, 7.12, 62.0, 10.41, 3.07]
    assert cache_size(MODELS["61 layers, 128 heads of 128"], n) == 61 * 2 * 2 * 128 * 128 * n
    blocks = MODELS["43 layers, 41 with blocks of 4 or 128 tokens (DeepSeek-V4-Flash)"]
    assert cache_size(blocks, n) == 2 * (43 * 128 * 512 + 21 * n // 4 * (512 + 128) + 20 * n // 128 * 512)
    windows = MODELS["the same, every other a window of 128 (gpt-oss-120b)"]
    assert cache_size(windows, n) == cache_bytes([Window(127)] * 18 + [None] * 18, n, groups=8, d=64)


def test_the_models_of_the_book_in_published_sizes_keep_as_much():
    """Nothing is drawn. The table leaves out three rows of queries, keys and values that Qwen3-Next's convolutions want again."""
    oss = gpt_oss(201088, 131072, 2880, 36, 64, 8, window=128, head_width=64)
    windows = MODELS["the same, every other a window of 128 (gpt-oss-120b)"]
    qwen = qwen3_next(151936, 262144, 2048, 48, 16, 2, key_heads=16, head_width=256, delta_heads=32, delta_width=128)
    (states, full) = MODELS["36 of a 32 × 128 × 128 state, 12 of 2 heads of 256 (Qwen3-Next's)"]
    rows = 4 * 3 * (16 + 16 + 32) * 128
    for n in (100, 131072):
        assert cache_size(layers_of(oss), n) == cache_size(windows, n)
        assert cache_size(layers_of(qwen), n) == cache_size((states, full), n) + 36 * rows


def test_the_table():
    lines = table().splitlines()
    assert len(lines) == 1 + len(MODELS)
    assert lines[0].split() == ["cache", "in", "GiB", "4k", "128k"]
    assert lines[1].split()[-2:] == ["15.25", "488.00"]


@pytest.mark.parametrize("made", [gpt2, llama, gpt_oss, deepseek_v2_lite, qwen3_next])
@pytest.mark.parametrize("n", [20, 100])
def test_what_a_published_model_keeps_is_what_its_own_numbers_say(made, n):
    """Counted in the states after n tokens, of which a window of 32 keeps the last; in float32, numbers have twice the bytes."""
    model = made()
    _, state = model.step(model.init(np.random.default_rng(0)), np.arange(n))
    for block, layer in zip(state.blocks, layers_of(model), strict=True):
        if hasattr(block, "S"):
            assert block.S.nbytes + block.rows.nbytes == layer.fixed > 0
            continue
        rows = n if layer.cap is None else min(n, layer.cap)
        assert 4 * rows * (block.K.shape[-1] + block.V.shape[-1]) * (1 if block.K.ndim == 2 else len(block.K)) == (
            2 * cache_size((layer,), n)
        )
        assert rows == (32 if layer.cap and n > 32 else n)


def test_the_first_tokens_are_kept_beside_the_last():
    for attention, cap in (("sinks:first=2,last=3", 5), ("window:radius=3,global_tokens=2", 6), ("window:radius=3", 4)):
        (layer,) = layers_of(LanguageModel(40, 24, 16, 1, 4, 10, attention=attention, positions="none"))
        assert layer == Layers(1, keys_and_values(4, 4), cap)


@pytest.mark.parametrize(("attention", "name"), [("pooled", "Pooled"), ("gmlp", "GMLP"), ("linear", "KernelAttention")])
def test_what_the_arithmetic_does_not_know_is_refused(attention, name):
    """It said that a part has no `pattern`, or no `heads`."""
    with pytest.raises(ValueError, match=rf"^attention: what {name} keeps is not counted here$"):
        layers_of(LanguageModel(40, 24, 16, 1, 4, 10, attention=attention, positions="none"))


def test_numbers_that_a_token_leaves_in_a_layer():
    """In published sizes: 1536, 2048 and 576; of DeepSeek's heads, keys and values would be 4096 numbers, seven times as many."""
    assert [layers_of(model)[0].numbers for model in READ.values()] == [1536, 2048, 576]
    a_token = {name: cache_size(layers_of(model), 1) for name, model in READ.items()}
    assert a_token == {"GPT-2": 36_864, "Llama 3 8B": 131_072, "DeepSeek-V2-Lite": 31_104}
    assert keys_and_values(16, 128) / 576 == pytest.approx(7.1, abs=0.02)


def test_deepseek_v3_in_bytes_a_token():
    """61 layers of 512 + 64 numbers of two bytes: 70,272; with keys and values of 128 heads 57 times as many."""
    latent, whole = (
        cache_size(MODELS[name], 1)
        for name in ("the same, one latent of 576 (DeepSeek-V3)", "61 layers, 128 heads of 128")
    )
    assert latent == 70_272
    assert whole / latent == pytest.approx(56.9, abs=0.05)
