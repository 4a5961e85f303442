"""The long short-term memory: a cell with gates of its own for what is kept and what is taken in."""

import numpy as np
import pytest

from minitransformer import check_pullback, random_like, tree_items
from minitransformer.related import GRU, LSTM

rng = np.random.default_rng(0)
D, d, n = 3, 4, 5
lstm = LSTM(D, d)
params = random_like(lstm.init(rng, np.float64), rng)
X = rng.standard_normal((2, n, D))
h_0, s_0 = rng.standard_normal((2, 2, d))
OPEN = 40.0  # σ(40) is 1 in float64


def always(gate, b):
    """The same map, blind: b in every coordinate."""
    return gate._replace(W=0 * gate.W, U=0 * gate.U, b=np.full(d, float(b)))


@pytest.mark.parametrize("start", [(h_0, s_0), (h_0,), (None, s_0), ()])
def test_gradient(start):
    check_pullback(lstm, params, X, *start)


@pytest.mark.parametrize(("start", "wanted"), [((h_0, s_0), 4), ((h_0,), 3), ((None, s_0), 3), ((), 2)])
def test_only_what_was_given_has_a_gradient(start, wanted):
    H, pullback = lstm(params, X, *start)
    gradients = pullback(np.ones_like(H))
    assert len(gradients) == wanted
    assert [type(part).__name__ for part in gradients[0]] == ["RNNParams"] * 4
    every = lstm(
        params, X, h_0 if start and start[0] is not None else np.zeros_like(h_0), s_0 if len(start) > 1 else 0 * s_0
    )
    _, _, dh_0, ds_0 = every[1](np.ones_like(H))
    expected = [g for g, s in zip((dh_0, ds_0), (*start, None, None), strict=False) if s is not None]
    assert all(np.array_equal(g, e) for g, e in zip(gradients[2:], expected, strict=True))


def test_is_the_loop():
    H, pullback = lstm(params, X, h_0, s_0)
    for b in range(2):
        h, s = h_0[b], s_0[b]
        for i in range(n):
            a = {name: X[b, i] @ p.W + h @ p.U + p.b for name, p in params._asdict().items()}
            u, t, o = (1 / (1 + np.exp(-a[name])) for name in "uto")
            s = u * s + t * np.tanh(a["c"])
            h = o * np.tanh(s)
            np.testing.assert_allclose(pullback.cells[b, i + 1], s, rtol=0, atol=1e-13)
            np.testing.assert_allclose(H[b, i], h, rtol=0, atol=1e-13)


def test_a_cell_is_a_sum_of_candidates_whose_weights_need_not_sum_to_one():
    _, pullback = lstm(params, X, h_0, s_0)
    c, u, t, _ = pullback.opened
    sums = []
    for i in range(1, n + 1):
        weights = [u[:, j:i].prod(1) * (t[:, j - 1] if j else 1) for j in range(i + 1)]  # of s_0, c_1 … c_i
        terms = [s_0, *(c[:, j] for j in range(i))]
        sums.append(sum(weights))
        found = sum(w * term for w, term in zip(weights, terms, strict=True))
        np.testing.assert_allclose(pullback.cells[:, i], found, rtol=0, atol=1e-13)
    assert np.abs(np.array(sums) - 1).min() > 1e-4


def test_open_gates_count():
    """u = t = 1, and a candidate of tanh(40) = 1: the cell counts the tokens, which an average can't."""
    p = params._replace(**{name: always(getattr(params, name), OPEN) for name in "cuto"})
    H, pullback = lstm(p, X)
    assert np.array_equal(pullback.cells[0, :, 0], np.arange(n + 1))
    np.testing.assert_allclose(H[0, :, 0], np.tanh(np.arange(1, n + 1)), rtol=1e-15)


def test_a_gate_that_takes_in_what_the_other_lets_go_makes_the_state_of_a_gru():
    """t = 1 − u = σ(−a), o open and a candidate that does not read the state: cells are the states of a GRU without U."""
    blind = params._replace(
        c=params.c._replace(U=0 * params.c.U),
        u=params.u._replace(U=0 * params.u.U),
        t=params.u._replace(W=-params.u.W, U=0 * params.u.U, b=-params.u.b),
    )
    _, pullback = lstm(blind, X, h_0, s_0)
    gru = GRU(D, d)
    same = gru.init(rng, np.float64)._replace(
        W_c=blind.c.W, U_c=blind.c.U, b_c=blind.c.b, W_u=blind.u.W, U_u=blind.u.U, b_u=blind.u.b
    )
    H, _ = gru(same, X, s_0)
    np.testing.assert_allclose(pullback.cells[:, 1:], H, rtol=0, atol=1e-14)


def test_the_cell_carries_the_gradient_unharmed():
    """u = 1 and t = 0 in every step: ds_0 is what one tanh and one gate make of dY, whatever the length."""
    p = params._replace(u=always(params.u, OPEN), t=always(params.t, -800), o=always(params.o, OPEN))
    _, pullback = lstm(p, X, h_0, s_0)
    dY = np.zeros((2, n, d))
    dY[:, -1] = 1
    np.testing.assert_allclose(pullback(dY)[3], 1 - np.tanh(s_0) ** 2, rtol=1e-14)


def test_states_carry_everything():
    H, _ = lstm(params, X, h_0, s_0)
    first, before = lstm(params, X[:, :2], h_0, s_0)
    second, _ = lstm(params, X[:, 2:], first[:, -1], before.cells[:, -1])
    np.testing.assert_allclose(np.concatenate([first, second], axis=1), H, rtol=0, atol=1e-13)


def test_no_state_given_means_zeros():
    assert np.array_equal(lstm(params, X)[0], lstm(params, X, np.zeros((2, d)), np.zeros((2, d)))[0])


def test_any_batch_axes():
    Z = rng.standard_normal((2, 3, n, D))
    np.testing.assert_allclose(lstm(params, Z)[0][1, 2], lstm(params, Z[1, 2])[0], rtol=0, atol=1e-13)


@pytest.mark.parametrize("length", [0, 1])
def test_short_sequences(length):
    H, pullback = lstm(params, X[:, :length], h_0, s_0)
    dparams, dX, dh_0, ds_0 = pullback(np.ones_like(H))
    assert H.shape == (2, length, d)
    assert dX.shape == (2, length, D)
    assert dX.dtype == np.float64
    assert np.any(dh_0) == np.any(ds_0) == np.any(dparams.o.U) == (length > 0)


def test_single_precision_and_huge_sums():
    half = lstm.init(np.random.default_rng(0))
    H, pullback = lstm(half._replace(u=half.u._replace(b=np.full(d, 1e4, np.float32))), X.astype(np.float32))
    assert {g.dtype for _, g in tree_items(pullback(np.ones_like(H)))} == {np.dtype(np.float32)}
    assert all(np.isfinite(g).all() for _, g in tree_items(pullback(np.ones_like(H))))


def test_bad_input():
    with pytest.raises(TypeError, match="'X'"):
        lstm(params, rng.standard_normal((2, n, D + 1)))
    with pytest.raises(TypeError, match="'h_0'"):
        lstm(params, X, rng.standard_normal((3, d)))
    with pytest.raises(TypeError, match="'s_0'"):
        lstm(params, X, h_0, rng.standard_normal((2, d + 1)))
    with pytest.raises(TypeError, match="X, s_0: should have one dtype, got float64, float32"):
        lstm(params, X, None, s_0.astype(np.float32))
