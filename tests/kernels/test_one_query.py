"""One new token of a core in one call of a loop: the same as the usual way, and only where everything is as it should be."""

import numpy as np
import pytest

from minitransformer.attention import Forgetting
from minitransformer.attention.cache.keys_values import KeysValues
from minitransformer.attention.differential import Differential
from minitransformer.attention.dot_product import attend_to_buffer, dot_product_attention
from minitransformer.attention.kernel_attention import Features, KernelAttention
from minitransformer.attention.linear.cosformer import CosFormer
from minitransformer.attention.linear.dpfp import DPFP
from minitransformer.attention.linear.performer import Performer
from minitransformer.attention.linear.taylor import Taylor
from minitransformer.attention.selected.moba import MoBA
from minitransformer.backend import available
from minitransformer.functional import loops_in, softmax
from tests.pieces import in_pieces

pytestmark = pytest.mark.skipif("numba" not in available(), reason="needs Numba")
H, D = 4, 6
CORES = {
    "fade_and_attend": [Forgetting()],
    "attend_and_differ": [Differential(H, D)],
    "best_of_last": [MoBA(block=4, chosen=chosen) for chosen in (1, 2, 3, 9)],
    "sum_features": [
        *(KernelAttention(), CosFormer(40), DPFP(), DPFP(nu=3), Taylor(), Taylor(degree=4)),
        *(Performer(H, D, kind=kind, rows=5) for kind in ("positive", "hyperbolic")),
    ],
}
ROOM = {"fade_and_attend": "one_query", "attend_and_differ": "one_query", "best_of_last": "chosen_keys"}
EACH = [(name, core) for name, cores in CORES.items() for core in cores]


def loops(name):
    return loops_in(ROOM.get(name, "step"))


def some(core, dtype, batch, n):
    rng = np.random.default_rng(0)
    widths = D, D, D, *core.streams.values()
    return core.init(rng, dtype), [rng.standard_normal((*batch, H, n, w)).astype(dtype) for w in widths]


def written(core, params, arrays, start=0, state=None):
    return in_pieces(core, params, list(arrays), range(start, arrays[0].shape[-2] + 1), state)


@pytest.mark.each_pair
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "core"), EACH, ids=str)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_it_is_the_usual_way(name, core, dtype, batch, tier, monkeypatch):
    params, arrays = some(core, dtype, batch, 30)
    call, calls = getattr(loops(name), name), []

    def noted(*given):
        calls.append((done := call(*given)) is not None)
        return done

    monkeypatch.setattr(loops(name), name, noted)
    fast, _ = written(core, params, arrays)
    assert len(calls) >= 29
    assert all(calls)
    monkeypatch.setattr(loops(name), name, lambda *a: None)
    slow, _ = written(core, params, arrays)
    whole, _ = core(params, *arrays, causal=True, mask=None, rng=None)
    assert fast.dtype == dtype
    for other in (slow, whole):
        np.testing.assert_allclose(fast, other, atol=(2e-5 if dtype == np.float32 else 1e-12) * np.abs(whole).max())


@pytest.mark.parametrize(("name", "core"), EACH, ids=str)
def test_a_state_goes_on_in_two_ways(name, core, tier):
    params, arrays = some(core, np.float64, (2,), 9)
    _, state = written(core, params, [X[..., :7, :] for X in arrays])
    first, _ = written(core, params, arrays, 7, state)
    other = [np.concatenate([X[..., :7, :], -X[..., 7:, :]], -2) for X in arrays]
    second, _ = written(core, params, other, 7, state)
    again, _ = written(core, params, arrays, 7, state)
    np.testing.assert_array_equal(first, again)
    assert (first != second).any()


@pytest.mark.parametrize(("name", "core"), EACH, ids=str)
def test_NaN_in_NaN_out(name, core, tier):
    params, arrays = some(core, np.float32, (), 6)
    _, state = written(core, params, [X[..., :5, :] for X in arrays])
    arrays[0][1, 5] = np.nan
    Y, _ = written(core, params, arrays, 5, state)
    own = [0, 1] if isinstance(core, Differential) else [1]
    assert np.isnan(Y[own]).all()
    assert np.isfinite(np.delete(Y, own, 0)).all()


@pytest.mark.parametrize("name", ["fade_and_attend", "attend_and_differ"])
@pytest.mark.parametrize("change", ["heads", "width", "room", "dtype"])
def test_nothing_past_the_door(name, change, tier):
    (core,) = CORES[name]
    params, arrays = some(core, np.float64, (), 3)
    _, state = written(core, params, [X[..., :2, :] for X in arrays])
    past = state if isinstance(state, KeysValues) else state.past
    K = past.K
    K = {"heads": K[1:], "width": K[..., 1:], "room": K[..., :1, :], "dtype": K.astype(np.float32)}[change]
    past = past._replace(K=np.ascontiguousarray(K))
    state = past if isinstance(state, KeysValues) else state._replace(past=past)
    with pytest.raises((ValueError, TypeError)):
        written(core, params, arrays, 2, state)


@pytest.mark.parametrize("change", ["K", "V", "means"])
def test_nor_what_is_too_short_for_blocks(change, tier):
    rng = np.random.default_rng(0)
    Q, K, V, means = (rng.standard_normal((H, rows, D)) for rows in (1, 12, 12, 3))
    assert loops("best_of_last").best_of_last(Q, K, V, means, 12, 4, 3) is not None
    short = {"K": (Q, K[:, :-1], V, means), "V": (Q, K, V[:, :-1], means), "means": (Q, K, V, means[:, :1])}[change]
    assert loops("best_of_last").best_of_last(*short, 12, 4, 3) is None


def test_nor_to_fewer_keys_than_are_scored(tier):
    rng = np.random.default_rng(0)
    Q, K, V = (rng.standard_normal((H, rows, D)) for rows in (1, 12, 12))
    S, best = rng.standard_normal((1, 12)), loops("best_of_last").best_keys_of_last
    j = np.argsort(-S[0])[:5]
    Y = softmax((Q @ K.mT / np.sqrt(D))[..., j])[0] @ V[:, j]
    np.testing.assert_allclose(best(Q, K, V, S, 5), Y, atol=1e-12)
    in_groups = best(Q, K[::2].copy(), V[::2].copy(), S, 5)
    np.testing.assert_allclose(in_groups[::2], Y[::2], atol=1e-12)
    assert best(Q, K[:, :11], V, S, 5) is None
    assert best(Q, K, V[:, :11], S, 5) is None
    assert best(Q, K, V, S, 13) is None
    assert best(Q, K[..., 1:], V, S, 5) is None
    assert best(Q, K, V, S.astype(np.float32), 5) is None


@pytest.mark.parametrize("shape", [(), (H,), (3, H), (3, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_bias_for_each_key(shape, dtype, tier):
    rng = np.random.default_rng(0)
    Q, K, V = (rng.standard_normal((3, heads, rows, D)).astype(dtype) for heads, rows in ((H, 1), (2, 12), (2, 12)))
    bias = rng.standard_normal((*shape, 9)).astype(dtype)
    Y = attend_to_buffer(Q, K, V, 9, bias)
    whole, _ = dot_product_attention(Q, K[..., :9, :], V[..., :9, :], bias)
    np.testing.assert_allclose(Y, whole, atol=1e-6 if dtype == np.float32 else 1e-12)


def test_nor_sums_of_other_features(tier):
    rng = np.random.default_rng(0)
    Q, K, V = (rng.standard_normal((H, 1, D)) for _ in range(3))
    S, z, W = rng.standard_normal((H, D, D)), np.ones((H, D)), rng.standard_normal((H, D, D))
    assert loops("").sum_features(Q, K, V, S, z, Features("elu")) is not None
    assert loops("").sum_features(Q, K, V, S, z, Features("exponentials", W=W)) is not None
    for asked in (Features("cosine"), Features("powers", 2), Features("neighbours"), Features("exponentials", 2, W=W)):
        assert loops("").sum_features(Q, K, V, S, z, asked) is None
    for wrong in (W[1:], W[..., 1:], W.astype(np.float32)):
        assert loops("").sum_features(Q, K, V, S, z, Features("exponentials", W=wrong)) is None
