import math
import re
from typing import NamedTuple

import numpy as np
import pytest

from minitransformer import tree_items, tree_map
from minitransformer.pullback import NoParams
from minitransformer.training.optimiser import AdamW, AdamWState, accumulate, clip, global_norm, with_leaves


class Params(NamedTuple):
    W: np.ndarray
    layers: tuple
    b: np.ndarray | None = None


def tree(rng, dtype=np.float64):
    def draw(*shape):
        return rng.standard_normal(shape).astype(dtype)

    return Params(draw(3, 4), ({"gamma": draw(4)}, None), draw(2, 3, 5))


def adamw_by_hand(theta, gradients, rates, beta1, beta2, eps, decay):
    """One number at a time, as the equations stand."""
    m = v = 0.0
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        m_hat = m / (1 - beta1**t)
        v_hat = v / (1 - beta2**t)
        theta = theta - rate * (m_hat / (math.sqrt(v_hat) + eps) + decay * theta)
    return theta


def test_adamw_is_the_equation_number_by_number(tier):
    rng = np.random.default_rng(0)
    optimiser = AdamW(betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3)
    start = params = tree(rng)
    state = optimiser.init(params)
    gradients, rates = [tree(rng) for _ in range(7)], [0.1, 0.2, 0.1, 0.05, 0.3, 0.1, 0.2]
    for g, rate in zip(gradients, rates, strict=True):
        params, state = optimiser.update(params, g, state, rate)
    assert state.step == 7
    for (path, theta), (_, found), *gs in zip(*(tree_items(t) for t in (start, params, *gradients)), strict=True):
        decay = 0.3 if theta.ndim >= 2 else 0.0
        for index in np.ndindex(theta.shape):
            expected = adamw_by_hand(theta[index], [g[index] for _, g in gs], rates, 0.8, 0.95, 1e-3, decay)
            assert math.isclose(found[index], expected, rel_tol=1e-12), (path, index)


def test_the_first_step_is_as_long_as_the_rate_in_every_coordinate():
    params = {"b": np.zeros(4)}
    optimiser = AdamW()
    g = {"b": np.array([1e-3, -5.0, 100.0, -1e-2])}
    new, _ = optimiser.update(params, g, optimiser.init(params), 0.01)
    assert np.allclose(new["b"], -0.01 * np.sign(g["b"]), rtol=1e-4)


def test_an_update_changes_no_argument_and_keeps_float32():
    rng = np.random.default_rng(0)
    optimiser = AdamW()
    params, grads = tree(rng, np.float32), tree(rng, np.float32)
    _, state = optimiser.update(params, grads, optimiser.init(params), 0.1)
    everything = (params, grads, state)
    before = tree_map(np.copy, everything)
    new, new_state = optimiser.update(params, grads, state, 0.1)
    for (path, a), (_, b) in zip(tree_items(before), tree_items(everything), strict=True):
        assert np.array_equal(a, b), path
    for path, leaf in tree_items((new, new_state.m, new_state.v)):
        assert leaf.dtype == np.float32, path
    assert type(new) is Params
    assert new.layers[1] is None


def test_adamw_finds_the_bottom_of_a_bowl():
    params, optimiser = np.array([3.0, -2.0]), AdamW(weight_decay=0)
    state = optimiser.init(params)
    for step in range(500):
        params, state = optimiser.update(params, np.array([1, 100]) * params, state, 0.1 * 0.99**step)
    assert np.abs(params).max() < 1e-3


@pytest.mark.parametrize("wrong", [{"betas": (0.9, 1.0)}, {"betas": (-0.1, 0.9)}, {"eps": 0.0}, {"weight_decay": -1.0}])
def test_a_senseless_optimiser_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AdamW(**wrong)


def test_the_norm_is_over_every_entry_of_every_array():
    assert global_norm({"a": np.array([3.0]), "b": (np.array([[0.0, 4.0]]), None)}) == 5
    grads = tree(np.random.default_rng(0))
    assert math.isclose(global_norm(grads), math.sqrt(sum((leaf**2).sum() for _, leaf in tree_items(grads))))


def test_clipped_to_nothing_it_is_nothing():
    clipped, norm = clip({"W": np.array([3.0, 4.0])}, 0.0)
    assert (norm, clipped["W"].tolist()) == (5.0, [0.0, 0.0])


def test_clipping_keeps_the_direction():
    grads = tree(np.random.default_rng(0), np.float32)
    clipped, norm = clip(grads, 0.5)
    assert math.isclose(norm, global_norm(grads))
    assert math.isclose(global_norm(clipped), 0.5, rel_tol=1e-6)
    for (path, a), (_, b) in zip(tree_items(clipped), tree_items(grads), strict=True):
        assert np.allclose(a, b * (0.5 / norm), rtol=1e-6), path
        assert a.dtype == np.float32


def test_a_short_gradient_is_left_alone():
    grads = tree(np.random.default_rng(0))
    clipped, _ = clip(grads, 100.0)
    assert all(a is b for (_, a), (_, b) in zip(tree_items(clipped), tree_items(grads), strict=True))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_is_handed_on(bad):
    grads, norm = clip({"W": np.array([1.0, bad])}, 1.0)
    assert not math.isfinite(norm)
    assert np.array_equal(grads["W"], [1.0, bad], equal_nan=True)


def test_accumulation_is_the_mean_over_the_parts():
    def gradient(part):
        return float(part), {"W": np.array([part, 2 * part])}

    loss, grads = accumulate(gradient, [1.0, 2.0, 6.0])
    assert loss == 3
    assert np.array_equal(grads["W"], [3, 6])
    with pytest.raises(ValueError, match="at least one"):
        accumulate(gradient, [])
    for first, second, says in (
        (np.ones(1), np.ones(3), "grads.W: the gradients of two parts differ in form, (1,) and (3,)"),
        (None, np.ones(3), "grads.W: the gradients of two parts differ in form, missing and (3,)"),
    ):
        with pytest.raises(ValueError, match="^" + re.escape(says)):
            accumulate(lambda W: (0.0, {"W": W}), [first, second])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: clip({"W": np.ones(2)}, "1"), "largest: '1' should be a number, at least 0"),
        (lambda: accumulate("mean", [1.0]), "gradient: 'mean' should be a function of a part"),
        (lambda: accumulate(lambda part: (0.0, None), "ab"), "parts: 'ab' should be a list of parts of a batch"),
        (lambda: accumulate(lambda part: (0.0, None), np.ones(2)), "parts: array([1., 1.]) should be a list of parts"),
    ],
)
def test_an_argument_of_another_kind_is_named(call, says):
    with pytest.raises(TypeError, match="^" + re.escape(says)):
        call()


def test_accumulation_changes_no_gradient():
    kept = [np.ones(2), np.ones(2)]
    accumulate(lambda k: (0.0, kept[k]), [0, 1])
    assert all(np.array_equal(g, [1, 1]) for g in kept)


def test_a_tree_with_other_leaves():
    old = tree(np.random.default_rng(0))
    new = with_leaves(old, range(3))
    assert list(tree_items(new)) == [("W", 0), ("layers.0.gamma", 1), ("b", 2)]
    assert type(new) is Params


@pytest.mark.parametrize("where", ["grads", "state.m", "state.v"])
def test_what_does_not_fit_its_parameter_is_refused_by_path(where):
    rng = np.random.default_rng(5)
    optimiser, params = AdamW(), tree(rng)
    given = {"grads": params, "state.m": params, "state.v": params}
    for shape in ((3,), (4, 1), (5,), ()):
        wrong = params._replace(layers=({"gamma": np.ones(shape)}, None))
        grads, m, v = {**given, where: wrong}.values()
        with pytest.raises(ValueError, match=rf"^{where}\.layers\.0\.gamma: shape .* should be \(4,\)"):
            optimiser.update(params, grads, optimiser.init(params)._replace(m=m, v=v), 0.1)


def odd_trees(params):
    """Trees of another form than this one, by what is wrong with them, and what is said of it."""
    gamma = params.layers[0]["gamma"]
    yield params._replace(layers=({}, None)), r"layers\.0\.gamma: is missing"
    yield params._replace(layers=({"gamma": gamma, "beta": gamma}, None)), r"layers\.0\.beta: is no part of it"
    yield (
        params._replace(layers=({"gamma": {"gamma": gamma}}, None)),
        r"layers\.0\.gamma: should be an array \(4,\), is dict",
    )
    yield params._replace(layers=params.layers[:1]), r"layers: should be tuple of 2, is tuple of 1"
    yield params._replace(layers=({"gamma": gamma * 1j}, None)), r"layers\.0\.gamma: complex.* should be float"
    yield params._replace(layers=({"gamma": gamma.astype(object)}, None)), r"layers\.0\.gamma: object should be float"
    yield params._replace(layers=({"gamma": gamma > 0}, None)), r"layers\.0\.gamma: bool should be float"
    yield tuple(params), r": should be Params, is tuple of 3"


@pytest.mark.parametrize("where", ["grads", "state.m", "state.v"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_trees_belong_together_by_path(where, dtype, tier):
    """Of another form they are refused, whatever part it is; the order of names does not matter, nor does the dtype: parameters
    and means keep theirs.
    """
    rng = np.random.default_rng(6)
    optimiser, params = AdamW(), {"b": tree(rng, dtype), "a": rng.standard_normal((2, 3)).astype(dtype)}
    given = {"grads": params, "state.m": params, "state.v": tree_map(np.square, params)}

    def update(**others):
        grads, m, v = {**given, **others}.values()
        return optimiser.update(params, grads, AdamWState(3, m, v), 0.1)

    want = update()
    for odd, said in odd_trees(params["b"]):
        with pytest.raises((TypeError, ValueError), match=rf"^{re.escape(where)}\.b\.?{said}"):
            update(**{where: {**given[where], "b": odd}})
    turned = update(**{where: dict(reversed(given[where].items()))})
    for kind in (np.float16, np.float32, np.float64, np.longdouble, dtype):
        cast = update(**{where: tree_map(lambda leaf, kind=kind: leaf.astype(kind), given[where])})
        for (path, a), (_, b), (_, c) in zip(*map(tree_items, (want, cast, turned)), strict=True):
            assert np.asarray(b).dtype == np.asarray(a).dtype, path
            np.testing.assert_allclose(b, a, rtol=2e-2, atol=2e-2, err_msg=path)
            assert np.array_equal(c, a), path


def test_what_an_update_needs_is_named():
    params = {"W": np.ones((2, 3))}
    with pytest.raises(TypeError, match="state: None should be AdamWState"):
        AdamW().update(params, params, None, 0.1)
    with pytest.raises(TypeError, match="rate: 'fast' should be float"):
        AdamW().update(params, params, AdamW().init(params), "fast")


def test_without_any_gradient_nothing_moves(tier):
    params = {"W": np.ones((2, 3))}
    moved, _ = AdamW().update(params, {"W": None}, AdamW().init(params), 0.1)
    assert (moved["W"] == 1).all()
    moved, state = AdamW().update(NoParams(), NoParams(), AdamW().init(NoParams()), 0.1)
    assert moved == state.m == state.v == NoParams()


@pytest.mark.parametrize("bad", [np.float16, np.longdouble, int, complex, object])
def test_only_float32_and_float64_are_trained(bad):
    params = tree(np.random.default_rng(0))
    odd = params._replace(layers=({"gamma": np.ones(4, bad)}, None))
    for function in (lambda: AdamW().update(odd, params, AdamW().init(params), 0.1), lambda: clip(odd, 1.0)):
        with pytest.raises(
            TypeError, match=r"^(params|grads)\.layers\.0\.gamma: .* should be an array of float32 or float64"
        ):
            function()


@pytest.mark.parametrize("largest", [-1.0, math.nan])
def test_a_senseless_norm_is_refused(largest):
    with pytest.raises(ValueError, match=r"largest: .* should be a number, at least 0"):
        clip({"W": np.ones(2)}, largest)
