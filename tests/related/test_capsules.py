"""Capsules: agreement, gradients through all rounds, what is refused, and a published layer with the same weights."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from minitransformer import check_pullback, random_like
from minitransformer.functional import softmax
from minitransformer.related import (
    CapsuleClassifier,
    Capsules,
    CapsulesParams,
    margin_loss,
    pieces,
    route,
    squash,
    votes,
)

PUBLISHED = json.loads((Path(__file__).parent / "data" / "capsules.json").read_text(encoding="utf-8"))["rounds"]
inputs, outputs, width, d = 5, 3, 4, 2


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


# ------------------------------------------------------------------------------------------------ gradients


@pytest.mark.parametrize("rounds", [1, 2, 3, 5])
def test_the_gradient_goes_through_all_rounds(rounds):
    check_pullback(partial(route, iterations=rounds), drawn(2, 3, inputs, outputs, d), drawn(inputs, outputs, seed=1))
    check_pullback(partial(route, iterations=rounds), drawn(2, inputs, outputs, d))


def test_other_gradients():
    check_pullback(squash, drawn(2, 3, d))
    check_pullback(votes, drawn(2, inputs, width), drawn(inputs, outputs, width, d))
    layer = Capsules(inputs, outputs, width, d)
    check_pullback(layer, CapsulesParams(drawn(inputs, outputs, width, d)), drawn(2, 2, inputs, width))
    model, rng = CapsuleClassifier(classes=3, size=7, side=3, stride=2, types=2, width=3, d=d), np.random.default_rng(0)
    check_pullback(model, random_like(model.init(rng, np.float64), rng), drawn(2, 7, 7))
    check_pullback(lambda V: margin_loss(V, np.array([2, 0])), 0.4 * drawn(2, outputs, d))


def test_the_gradient_of_the_logits_is_not_that_of_the_last_round_alone():
    """Who stops the gradient at the weights of the last round, as if they were given, gets another dvotes."""
    U, dY = drawn(inputs, outputs, d), drawn(outputs, d, seed=1)
    _, pullback = route(U, iterations=3)
    stopped = pullback.C[-1][..., None] * pullback.squashes[-1](dY)
    assert np.abs(pullback(dY) - stopped).max() > 0.1 * np.abs(stopped).max()


# --------------------------------------------------------------------------------------------------- limits


def test_squash_is_what_is_written():
    """v = |s|²/(1 + |s|²) · s/|s|, as the paper has it."""
    s = np.array([3.0, 4.0])
    np.testing.assert_allclose(squash(s)[0], 25 / 26 * s / 5, rtol=1e-15)


def test_one_round_is_uniform():
    U = drawn(2, inputs, outputs, d)
    V, pullback = route(U, iterations=1)
    assert np.array_equal(pullback.C[0], np.full((2, inputs, outputs), 1 / outputs))
    np.testing.assert_allclose(V, squash(U.sum(1) / outputs)[0], rtol=1e-13)


def test_outputs_compete_for_each_input_and_inputs_do_not_compete():
    _, pullback = route(drawn(inputs, outputs, d))
    for C in pullback.C:
        np.testing.assert_allclose(C.sum(1), 1, rtol=1e-14)
    assert np.ptp(pullback.C[-1].sum(0)) > 0.1  # columns, which in attention would be the rows that sum to one


def test_agreement_sharpens():
    """Where most inputs say the same of output 0 and all else is noise, its share of them rises with each round."""
    rng = np.random.default_rng(3)
    U = 0.3 * rng.standard_normal((8, outputs, 4))
    U[:6, 0] += np.array([1.0, -1.0, 1.0, 0.0])
    _, pullback = route(U, iterations=6)
    shares = [C[:6, 0].mean() for C in pullback.C]
    assert shares == sorted(shares)
    assert shares[-1] > 0.8 > 2 * shares[0]


def test_votes_of_nothing_give_nothing_and_no_nan():
    U = np.zeros((2, inputs, outputs, d))
    V, pullback = route(U)
    assert not V.any()
    assert not pullback(np.ones_like(V)).any()
    assert not squash(np.zeros((3, d)))[1](np.ones((3, d))).any()
    loss, back = margin_loss(np.zeros((2, outputs, d)), np.array([0, 1]))
    assert loss == pytest.approx(0.81)
    assert not back(1.0).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_squash_of_the_very_long_and_the_very_short(dtype):
    """|s|² would be infinite or zero; v is a unit vector or next to nothing, and no gradient is NaN."""
    size = np.array([[1e30], [1e-30], [0]] if dtype is np.float32 else [[1e200], [1e-200], [0]], dtype)
    S = size * np.array([3, 4], dtype)
    V, pullback = squash(S)
    np.testing.assert_allclose(V, [[0.6, 0.8], [0, 0], [0, 0]], atol=1e-6)
    assert V.dtype == pullback(S).dtype == dtype
    assert np.isfinite(pullback(np.ones_like(S))).all()


def test_the_vote_of_an_input_of_length_1_has_a_length_near_1_at_first():
    rng, layer = np.random.default_rng(0), Capsules(inputs=40, outputs=30, width=6, d=16)
    U = rng.standard_normal((40, 6))
    said, _ = votes(U / np.linalg.norm(U, axis=-1, keepdims=True), layer.init(rng, np.float64).W)
    assert (said**2).sum(-1).mean() == pytest.approx(1, abs=0.05)


def test_the_same_in_any_order_of_inputs_and_of_outputs():
    U, order = drawn(inputs, outputs, d), np.array([3, 0, 4, 1, 2])
    np.testing.assert_allclose(route(U[order])[0], route(U)[0], rtol=1e-12)
    np.testing.assert_allclose(route(U[:, [2, 0, 1]])[0], route(U)[0][[2, 0, 1]], rtol=1e-12)


def test_samples_know_nothing_of_each_other():
    layer, U = Capsules(inputs, outputs, width, d), drawn(2, 3, inputs, width)
    params = layer.init(np.random.default_rng(0), np.float64)
    V, _ = layer(params, U)
    for sample in np.ndindex(2, 3):
        np.testing.assert_allclose(V[sample], layer(params, U[sample])[0], rtol=1e-12)


def test_pieces():
    image = np.arange(36.0).reshape(6, 6)
    rows, _ = pieces(image, side=4, stride=2)
    assert rows.shape == (4, 16)
    for p, (y, x) in enumerate([(0, 0), (0, 2), (2, 0), (2, 2)]):
        assert np.array_equal(rows[p], image[y : y + 4, x : x + 4].ravel())


def test_the_rounds_of_a_classifier_are_those_of_its_layer():
    model = CapsuleClassifier(iterations=5)
    assert (model.layer.iterations, CapsuleClassifier().layer.iterations) == (5, 3)
    assert model.layer.inputs == 3 * 3 * 4
    params, images = model.init(np.random.default_rng(0)), drawn(2, 8, 8).astype(np.float32)
    assert len(model(params, images)[1].classes.routing.C) == 5
    largest = np.abs(model.init(np.random.default_rng(0)).W).max()
    assert 0.9 < largest / (np.sqrt(3) / 4) <= 1, "of pieces four wide"


def test_pieces_of_what_is_no_square():
    image = np.arange(15.0).reshape(3, 5)
    rows, pullback = pieces(image, side=2, stride=2)
    assert rows.tolist() == [[0, 1, 5, 6], [2, 3, 7, 8]]
    assert pullback(rows).tolist() == [[0, 1, 2, 3, 0], [5, 6, 7, 8, 0], [0] * 5]


def test_margins():
    """0.9 for the digit that is there and 0.1 for the others are free; what is missing is squared."""
    V = np.zeros((1, 3, 2))
    V[0, :, 0] = 0.7, 0.1, 0.4
    loss, _ = margin_loss(V, np.array([0]))
    assert loss == pytest.approx(0.2**2 + 0.5 * 0.3**2)
    loss, back = margin_loss(V.astype(np.float32), np.array([0]))
    assert loss.dtype == back(np.float32(1)).dtype == np.float32
    loss, back = margin_loss(V[:0], np.array([], int))
    assert (loss, back(1.0).shape) == (0, (0, 3, 2))


# -------------------------------------------------------------------------------------------------- refusals


def test_nan_votes_are_refused_by_name():
    U = drawn(inputs, outputs, d)
    U[1, 2, 0] = np.nan
    with pytest.raises(ValueError, match=r"^votes: 1 of 30 are NaN"):
        route(U)
    layer = Capsules(inputs, outputs, width, d)
    x = drawn(inputs, width)
    x[0, 0] = np.nan
    with pytest.raises(ValueError, match=r"^U: gives votes that are NaN"):
        layer(layer.init(np.random.default_rng(0), np.float64), x)


def test_what_does_not_fit_is_refused():
    U = drawn(inputs, outputs, d)
    for label in (-1, outputs):
        with pytest.raises(ValueError, match=rf"labels: {label} … {label} is not within 0 … 2"):
            margin_loss(U, np.full(inputs, label))
    with pytest.raises(ValueError, match=r"logits: shape \(3, 5\) does not broadcast .* the weights, \(5, 3\)"):
        route(U, drawn(outputs, inputs))
    with pytest.raises(ValueError, match=r"^logits: shape \(\) should have an axis at least, and broadcast"):
        route(U, np.array(0.3))
    with pytest.raises(TypeError, match="one dtype"):
        route(U, drawn(inputs, outputs).astype(np.float32))
    with pytest.raises(TypeError):
        route(np.ones((inputs, outputs, d), int))
    with pytest.raises(TypeError):
        votes(drawn(inputs, width), drawn(inputs + 1, outputs, width, d))
    with pytest.raises(ValueError, match=r"labels: 3 … 3 is not within 0 … 2"):
        margin_loss(U[None, 0], np.array([3]))
    with pytest.raises(ValueError, match="side: 9 should be at most 8"):
        CapsuleClassifier(side=9)
    for shape in ((8, 8), (8, 12), (12, 8)):
        with pytest.raises(ValueError, match="side: 9 should be at most 8"):
            pieces(np.zeros(shape), side=9, stride=1)
    model = CapsuleClassifier(size=7, side=3)
    params, images = model.init(np.random.default_rng(0)), drawn(2, 7, 7)
    images[0, 0, 0] = np.nan
    with pytest.raises(ValueError, match=r"^images: \d+ numbers of their capsules are NaN; pixels"):
        model(params, images.astype(np.float32))


# ------------------------------------------------------------------------------------------- a second opinion


@pytest.mark.parametrize("rounds", [1, 3])
def test_as_a_published_layer(rounds):
    """Values and gradients of inputs, matrices and first logits (data/capsules.json says what was run)."""
    rng = np.random.default_rng(rounds)
    U, W, b, dV = (rng.standard_normal(s) for s in ((2, 4, 2), (4, 3, 2, 3), (4, 3), (2, 3, 3)))
    said, cast = votes(U, W)
    V, routing = route(said, b, iterations=rounds)
    dvotes, db = routing(dV)
    dU, dW = cast(dvotes)
    for name, found in {"V": V, "dU": dU, "dW": dW, "db": db}.items():
        np.testing.assert_allclose(found, PUBLISHED[str(rounds)][name], rtol=0, atol=1e-10, err_msg=name)


def test_softmax_over_inputs_would_be_attention():
    """A much copied layer (gram-ai/capsule-networks, capsule_network.py at 0aae011) takes the softmax along the axis of inputs.

    Then inputs compete for each output, as keys do for a query, and what comes out is not what outputs would agree on.
    """
    U = drawn(inputs, outputs, 4)
    logits = np.zeros((inputs, outputs))
    for _ in range(3):
        C = softmax(np.ascontiguousarray(logits.T))[0].T
        V, _ = squash((C[..., None] * U).sum(0))
        logits = logits + (U * V).sum(-1)
    np.testing.assert_allclose(C.sum(0), 1, rtol=1e-14)  # each output has one unit of attention to give
    assert np.abs(V - route(U)[0]).max() > 0.1
