"""Heads that share keys: one number of them made from another, and what that does to the function and to the cache."""

from dataclasses import replace

import numpy as np
import pytest

from minitransformer import random_like
from minitransformer.attention import ATTENTIONS, Core, MultiHeadAttention, attention_of, mean_pool_heads, repeat_heads
from minitransformer.attention.selected import Reformer
from minitransformer.models import LanguageModel
from minitransformer.positions import RoPE
from minitransformer.pullback import tree_bytes, tree_items, tree_map

D, H = 16, 4


def model_of(groups, **options):
    return LanguageModel(40, 24, D, 2, H, 10, groups=groups, **options)


def some(model):
    return random_like(model.init(np.random.default_rng(0), np.float64), np.random.default_rng(1))


def test_the_mean_head_by_head():
    layer = MultiHeadAttention(D, H)
    params = random_like(layer.init(np.random.default_rng(0), np.float64), np.random.default_rng(1))
    (pooled,) = mean_pool_heads({"layers": [params]}, H, 2)["layers"]  # wherever in a tree it stands
    for name in ("W_k", "W_v", "b_k", "b_v"):
        whole, few = getattr(params, name), getattr(pooled, name)
        for g in range(2):
            heads = [whole[..., h * 4 : h * 4 + 4] for h in (2 * g, 2 * g + 1)]
            np.testing.assert_allclose(few[..., g * 4 : g * 4 + 4], (heads[0] + heads[1]) / 2, atol=1e-15)
    for name in ("W_q", "W_o", "b_q", "b_o"):
        assert getattr(pooled, name) is getattr(params, name)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("positions", ["rope", "t5"])
def test_a_model_with_groups_is_one_whose_heads_are_repeated(groups, positions):
    """The same logits, and the gradient of a shared head is the sum over those that share it."""
    few, many = model_of(groups, positions=positions), model_of(None, positions=positions)
    params, tokens = some(few), np.random.default_rng(2).integers(0, 40, (2, 9))
    Y, pullback = few(params, tokens)
    Z, wide = many(repeat_heads(params, H), tokens)
    np.testing.assert_allclose(Y, Z, rtol=0, atol=1e-12)
    dY = np.random.default_rng(3).standard_normal(Y.shape)
    summed = tree_map(lambda a: H // groups * a, mean_pool_heads(wide(dY), H, groups))
    for (path, a), (_, b), (_, c) in zip(
        tree_items(pullback(dY)), tree_items(summed), tree_items(wide(dY)), strict=True
    ):
        shared = path.endswith(("W_k", "W_v", "b_k", "b_v"))
        np.testing.assert_allclose(a, b if shared else c, rtol=1e-9, atol=1e-11, err_msg=path)


SIZES = {"width": D, "heads": H, "d": D // H, "longest": 9}
CORES = {name: attention_of(name, SIZES) for name in ATTENTIONS}


@pytest.mark.parametrize("name", [name for name, core in CORES.items() if isinstance(core, Core) and core.groups])
def test_a_core_by_itself_takes_keys_that_are_shared(name):
    """Called alone, it looks at the heads of Q and K itself: two of four are as good as copies of them, three are not."""
    rng, core = np.random.default_rng(4), CORES[name]
    params = random_like(core.init(rng, np.float64), rng)
    Q, rest = rng.standard_normal((2, H, 9, D // H)), {"causal": core.causal == "always"}
    K, V = rng.standard_normal((2, 2, 2, 9, D // H))
    streams = [rng.random((2, H, 9, width)) for width in core.streams.values()]
    Y, _ = core(params, Q, K, V, *streams, **rest)
    Z, _ = core(params, Q, np.repeat(K, 2, -3), np.repeat(V, 2, -3), *streams, **rest)
    np.testing.assert_allclose(Y, Z, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match=r"K: shape \(2, 3, 9, 4\) should be \(2, 4, 9, 4\)"):
        core(params, Q, *rng.standard_normal((2, 2, 3, 9, D // H)), *streams, **rest)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_there_and_back(groups):
    """The mean of copies is what was copied; from heads that were the same nothing is lost."""
    params = some(model_of(groups))
    back = mean_pool_heads(repeat_heads(params, H), H, groups)
    for (path, a), (_, b) in zip(tree_items(params), tree_items(back), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-15, err_msg=path)
    assert model_of(groups)(back, np.arange(5))[0].shape == (5, 40)


def test_from_four_to_two_to_one_is_from_four_to_one():
    params = some(model_of(None))
    once, twice = mean_pool_heads(params, H, 1), mean_pool_heads(mean_pool_heads(params, H, 2), H, 1)
    for (path, a), (_, b) in zip(tree_items(once), tree_items(twice), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-15, err_msg=path)


def test_the_cache_shrinks_by_heads_over_groups():
    """Bytes of the states, measured: 4, 2 and 1 heads of keys and values."""
    sizes = []
    for groups in (4, 2, 1):
        model = model_of(groups, positions="rope")
        _, state = model.step(model.init(np.random.default_rng(0)), np.arange(20))
        sizes.append(tree_bytes(state.blocks))
    assert sizes[0] == 2 * sizes[1] == 4 * sizes[2]


def test_what_can_not_be_shared():
    params = some(model_of(None))
    with pytest.raises(ValueError, match="groups: 4 heads of keys can't be divided into 3 groups"):
        mean_pool_heads(params, H, 3)
    with pytest.raises(ValueError, match="heads: W_q has 16 columns, which can't be divided into 5 heads"):
        mean_pool_heads(params, 5, 1)
    with pytest.raises(ValueError, match="heads: W_k has 8 columns, which 1 head of width 16 can't share"):
        repeat_heads(some(model_of(2)), 1)
    layer = MultiHeadAttention(D, H, core=Reformer(H, D // H))
    with pytest.raises(ValueError, match="an attention without W_q or W_k"):
        mean_pool_heads(layer.init(np.random.default_rng(0)), H, 1)
    shared = MultiHeadAttention(D, H, core=attention_of("ssd:key_heads=1", SIZES))
    with pytest.raises(
        ValueError, match="where heads of values share queries and keys, they can't share keys and values"
    ):
        repeat_heads(shared.init(np.random.default_rng(0)), H)
    assert replace(layer, core=MultiHeadAttention(D, H).core, rotate=RoPE(4)).decodes
