"""Features of exp up to a degree: the definition in loops, the error of the truncation, attention against the degree."""

import itertools
import math
from functools import partial

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback
from minitransformer.attention import dot_product_attention, kernel_attention
from minitransformer.attention.linear import Taylor, chunked, taylor_features
from minitransformer.backend import available
from minitransformer.pullback import NoParams
from tests.peaks import peak

pytestmark = pytest.mark.usefixtures("definitions")

B, H, N, M, D, DV = 2, 3, 4, 6, 3, 5


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_against_loops(degree, rng):
    """z(x) holds all products of p entries of x, divided by √p!, for p = 0 … degree."""
    X = rng.standard_normal((B, N, D))
    F, _ = taylor_features(X, degree=degree)
    for b, i in np.ndindex(B, N):
        z = [
            math.prod(X[b, i, a] for a in entries) / math.sqrt(math.factorial(p))
            for p in range(degree + 1)
            for entries in itertools.product(range(D), repeat=p)
        ]
        assert np.allclose(F[b, i], z, rtol=1e-13)
    assert F.shape[-1] == sum(D**p for p in range(degree + 1))


@pytest.mark.parametrize("degree", [1, 2, 3, 6])
def test_their_product_is_the_taylor_polynomial_and_its_error_is_bounded(degree, rng):
    x, y = rng.standard_normal((2, 50, 3))
    t = np.vecdot(x, y)
    product = np.vecdot(taylor_features(x, degree=degree)[0], taylor_features(y, degree=degree)[0])
    assert np.allclose(product, sum(t**p / math.factorial(p) for p in range(degree + 1)), rtol=1e-12)
    error = np.abs(product - np.exp(t))
    bound = np.abs(t) ** (degree + 1) / math.factorial(degree + 1) * np.exp(np.abs(t))
    assert (error <= bound * (1 + 1e-9) + 1e-14 * np.exp(np.abs(t))).all()
    assert (error > 1e-3 * bound).mean() > 0.5, "a bound that is about right"


def test_even_degrees_are_above_zero_and_odd_ones_are_not():
    t = np.linspace(-30, 10, 4001)
    for degree in range(1, 9):
        smallest = sum(t**p / math.factorial(p) for p in range(degree + 1)).min()
        assert (smallest > 0) == (degree % 2 == 0)
    assert math.isclose((1 + t + t**2 / 2).min(), 0.5)


# ---------------------------------------------------------------------------------------------- in attention


def heads(rng):
    return [rng.standard_normal(shape) for shape in ((B, H, N, D), (B, H, M, D), (B, H, M, DV))]


@pytest.mark.parametrize("causal", [False, True])
def test_with_the_degree_it_becomes_softmax_attention(causal, rng):
    """Faster than any power: the error falls by more and more."""
    Q, K, V = (0.8 * X for X in heads(rng))
    want, _ = dot_product_attention(Q, K, V, causal=causal)
    errors = [np.abs(Taylor(degree)(NoParams(), Q, K, V, causal=causal)[0] - want).max() for degree in (2, 4, 6, 8, 10)]
    falls = [later / earlier for earlier, later in itertools.pairwise(errors)]
    assert max(falls) < 0.7
    assert sorted(falls, reverse=True) == falls


def test_the_core_is_kernel_attention_of_its_features(rng):
    Q, K, V = heads(rng)
    Y, _ = Taylor()(NoParams(), Q, K, V, causal=True)
    FQ, FK = (taylor_features(X / D**0.25)[0] for X in (Q, K))
    assert np.allclose(Y, kernel_attention(FQ, FK, V, causal=True)[0], rtol=1e-13)
    for h in range(H):  # weights 1 + t + t²/2
        t = Q[0, h] @ K[0, h].T / math.sqrt(D)
        W = np.tri(N, M, M - N) * (1 + t + t**2 / 2)
        assert np.allclose(Y[0, h], W @ V[0, h] / W.sum(1, keepdims=True), rtol=1e-12)


# ------------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_gradient_of_the_features(degree, rng):
    check_pullback(partial(taylor_features, degree=degree), rng.standard_normal((B, N, D)))


@pytest.mark.parametrize("degree", [2, 4])
def test_gradient_of_the_core(degree, rng):
    check_pullback(partial(Taylor(degree), causal=True), NoParams(), *heads(rng), entries=20)


# ------------------------------------------------------------------------------------- what it says of itself


def test_its_cost_and_its_memory_are_those_of_its_degree():
    assert Taylor().cost == "O(n d²)"
    assert Taylor().remembers == "S and z, (1 + d + d²)(dv + 1) for each head"
    assert Taylor(4).remembers == "S and z, (1 + d + d² + d³ + d⁴)(dv + 1) for each head"
    assert Taylor(10).cost == "O(n d¹⁰)"


# --------------------------------------------------------------------------------------------------- errors


def test_degrees_that_can_not_be(rng):
    with pytest.raises(ValueError, match="degree: 3 should be even: with an odd degree, weights could be negative"):
        Taylor(3)
    with pytest.raises(ValueError, match="degree: 0 should be at least 1"):
        taylor_features(rng.standard_normal((N, D)), degree=0)


@pytest.mark.parametrize(("d", "degree"), [(2, 64), (4, 13), (5000, 2)])
def test_more_features_than_any_memory_holds_are_refused_at_once(d, degree):
    with pytest.raises(ValueError, match=rf"degree: {degree} makes {d}\^{degree} features"):
        taylor_features(np.ones((1, d)), degree=degree)


# ---------------------------------------------------------------------------------------------- piece by piece


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("n", [31, 40])
def test_piece_by_piece_is_the_same(causal, masked, n, rng, monkeypatch):
    """Pieces of 15 positions and a shorter last one; more keys than queries; a key that is hidden may be anything."""
    core, m = Taylor(), 40
    Q, K, V, dY = (rng.standard_normal((B, H, rows, c)) for rows, c in ((n, D), (m, D), (m, DV), (n, DV)))
    mask = rng.random((B, 1, 1, m)) < 0.7 if masked else None
    if mask is not None:
        mask[-1] = False  # nothing is there for its queries to see
        K, V = (np.where(mask.mT, X, np.nan) for X in (K, V))
    Y, pullback = core(NoParams(), Q, K, V, causal=causal, mask=mask)
    monkeypatch.setattr(chunked, "WHOLE", 0)
    for tier in available():
        with mt.backend(tier):
            Y_p, in_pieces = core(NoParams(), Q, K, V, causal=causal, mask=mask)
            assert len(in_pieces.sums) == 3
            assert np.allclose(Y_p, Y, rtol=1e-10, atol=1e-12)
            for got, wanted in zip(in_pieces(dY)[1:], pullback(dY)[1:], strict=True):
                assert np.allclose(got, wanted, rtol=1e-9, atol=1e-11)
            assert np.allclose(in_pieces.A, pullback.A, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_piece_by_piece_has_a_gradient_of_its_own(causal, rng, monkeypatch):
    monkeypatch.setattr(chunked, "WHOLE", 0)
    Q, K, V = (rng.standard_normal((B, H, 8, c)) for c in (D, D, DV))
    check_pullback(partial(Taylor(), causal=causal), NoParams(), Q, K, V)


def test_the_features_of_a_long_text_are_never_there_at_once(rng, monkeypatch):
    """Those of 700 keys of width 24 are 1.7 MB; whole, there are those of queries and keys, and as much again on the way back."""
    Q, K, V = rng.standard_normal((3, 1, 700, 24), np.float32)

    def both_ways():
        Y, pullback = Taylor()(NoParams(), Q, K, V)
        pullback(Y)

    whole = peak(both_ways)
    monkeypatch.setattr(chunked, "WHOLE", 0)
    assert peak(both_ways) < whole / 3
