"""Absolute positions: Borealis II (3) and (4), learned tables and the probes of them, with their sums visible.

The blog has I tokens (n here) and writes π_i for row i of Π.
"""

import math

import numpy as np
import pytest

from minitransformer.measurements.position_probes import logistic_regression, order_error, position_error
from minitransformer.positions import LearnedPositions, SinusoidalPositions, sinusoids
from minitransformer.positions.absolute import LearnableSinusoidParams, LearnableSinusoids, shift_matrix


def test_borealis_eq_3_sinusoids():
    """Borealis II (3), "Pre-defined absolute position embeddings":

        Π_{i,2f}   = sin[ω_f i]
        Π_{i,2f+1} = cos[ω_f i],     ω_f = 10000^(−2f/D)

    i is the position and f the pair of channels.
    """
    n, D = 7, 10
    Pi = [[0.0] * D for _ in range(n)]
    for i in range(n):
        for f in range(D // 2):
            omega = 10000 ** (-2 * f / D)
            Pi[i][2 * f] = math.sin(omega * i)
            Pi[i][2 * f + 1] = math.cos(omega * i)
    np.testing.assert_allclose(sinusoids(n, D), Pi, rtol=0, atol=1e-14)

    # it is added to the embeddings, row by row
    X = np.random.default_rng(3).standard_normal((n, D))
    positions = SinusoidalPositions(D)
    Y, _ = positions(positions.init(np.random.default_rng(3)), X)
    np.testing.assert_allclose(Y, X + Pi, rtol=0, atol=1e-14)

    # dot products of two rows, from sin a sin b + cos a cos b = cos(a − b): Σ_f cos(ω_f (i − j))
    for i in range(n):
        for j in range(n):
            product = sum(Pi[i][c] * Pi[j][c] for c in range(D))
            waves = sum(math.cos(10000 ** (-2 * f / D) * (i - j)) for f in range(D // 2))
            assert math.isclose(product, waves, abs_tol=1e-13)


def test_borealis_eq_4_shift():
    """Borealis II (4), "Relative vs. absolute positions":

        [  cos ω_f j   sin ω_f j ] [ sin ω_f i ]   [ sin ω_f (i + j) ]
        [ −sin ω_f j   cos ω_f j ] [ cos ω_f i ] = [ cos ω_f (i + j) ]

    for each pair of channels, with one matrix for all positions i.
    """
    n, D = 9, 8
    Pi = sinusoids(n, D)
    for j in (0, 1, 4, -2):
        moved = np.zeros((n, D))
        for i in range(n):
            for f in range(D // 2):
                omega = 10000 ** (-2 * f / D)
                sine, cosine = Pi[i, 2 * f], Pi[i, 2 * f + 1]
                moved[i, 2 * f] = math.cos(omega * j) * sine + math.sin(omega * j) * cosine
                moved[i, 2 * f + 1] = -math.sin(omega * j) * sine + math.cos(omega * j) * cosine
        np.testing.assert_allclose(moved, sinusoids(n, D, first=j), rtol=0, atol=1e-14)  # rows j … j + n − 1

        M = shift_matrix(D, j)
        np.testing.assert_allclose(np.array([M @ Pi[i] for i in range(n)]), moved, rtol=0, atol=1e-14)
        np.testing.assert_allclose(M @ M.T, np.eye(D), rtol=0, atol=1e-14)  # it only turns
        np.testing.assert_allclose(M @ shift_matrix(D, 3), shift_matrix(D, j + 3), rtol=0, atol=1e-14)

    # "dot products … would take a maximum value at a relative offset of j rather than 0"
    for j in (1, 4):
        for i in range(n - j):
            products = [sum((shift_matrix(D, j) @ Pi[i])[c] * Pi[k, c] for c in range(D)) for k in range(n)]
            assert max(range(n), key=lambda k: products[k]) == i + j


def test_borealis_learned_positions():
    """Borealis II, "Learned absolute position embeddings": "learn the position embedding matrix Π during training".

        y_i = x_i + π_i,     dπ_i = Σ_samples dy_i

    and "once learned, the model cannot be extended to longer sequence lengths".
    """
    rng = np.random.default_rng(5)
    samples, n, longest, D = 2, 3, 5, 4
    X, dY, Pi = (
        rng.standard_normal((samples, n, D)),
        rng.standard_normal((samples, n, D)),
        rng.standard_normal((longest, D)),
    )
    positions = LearnedPositions(D, longest)
    params = positions.init(rng, np.float64)._replace(table=Pi)

    Y = np.zeros((samples, n, D))
    dPi = np.zeros((longest, D))
    for s in range(samples):
        for i in range(n):
            for c in range(D):
                Y[s, i, c] = X[s, i, c] + Pi[i, c]
                dPi[i, c] += dY[s, i, c]  # rows n … longest − 1 were not used

    ours, pullback = positions(params, X)
    np.testing.assert_array_equal(ours, Y)
    np.testing.assert_allclose(pullback(dY)[0].table, dPi, rtol=0, atol=1e-15)
    with pytest.raises(ValueError, match="position 5 is beyond the learned table, which ends at 4"):
        positions(params, rng.standard_normal((samples, 6, D)))


def test_borealis_learnable_sinusoids():
    """Borealis II, figure 4: sinusoids in which the angular frequency is learned.

        dL/dω_f = Σ_i i (cos(ω_f i) g_{i,2f} − sin(ω_f i) g_{i,2f+1}),     g = dL/dΠ

    We learn ln ω_f, so dL/d ln ω_f = ω_f dL/dω_f. The caption has one learned number, the base b in ω_f = b^(−2f/D):
    its gradient is a sum over these, dL/d ln b = −Σ_f (2f/D) dL/d ln ω_f.
    """
    rng = np.random.default_rng(6)
    n, D = 6, 8
    g, base = rng.standard_normal((n, D)), 50.0
    omega = [base ** (-2 * f / D) for f in range(D // 2)]

    dlog = np.zeros(D // 2)
    for f in range(D // 2):
        for i in range(n):
            slope = math.cos(omega[f] * i) * g[i, 2 * f] - math.sin(omega[f] * i) * g[i, 2 * f + 1]
            dlog[f] += omega[f] * i * slope

    layer = LearnableSinusoids(D)
    Y, pullback = layer(LearnableSinusoidParams(np.log(omega)), np.zeros((n, D)))
    np.testing.assert_allclose(Y, sinusoids(n, D, base=base), rtol=0, atol=1e-14)
    np.testing.assert_allclose(pullback(g)[0].log_omega, dlog, rtol=0, atol=1e-12)

    # the base, by a small step: L = ⟨g, Π(b)⟩
    h = 1e-6
    up, down = ((g * sinusoids(n, D, base=base * math.exp(t))).sum() for t in (h, -h))
    dbase = -sum(2 * f / D * dlog[f] for f in range(D // 2))
    assert math.isclose((up - down) / (2 * h), dbase, rel_tol=1e-6)


def test_borealis_position_probe():
    """Borealis II, below figure 3: "predict the absolute positions by applying linear regression to the learned embedding".

    î = ⟨w, π_i⟩ + b, fitted to four fifths of the rows and judged on the fifth that it has not seen. In one channel:
    w and b in closed form.
    """
    n = 10
    table = np.sqrt(np.arange(n))[:, None]  # knows the position, but not linearly
    order = [int(i) for i in np.random.default_rng(8).permutation(n)]
    total = 0
    for fold in range(5):
        test = order[2 * fold : 2 * fold + 2]
        train = [i for i in order if i not in test]
        mean_x, mean_i = sum(table[i, 0] for i in train) / 8, sum(train) / 8
        w = sum((table[i, 0] - mean_x) * (i - mean_i) for i in train) / sum((table[i, 0] - mean_x) ** 2 for i in train)
        for i in test:
            total += abs(round(mean_i + w * (table[i, 0] - mean_x)) - i)
    assert math.isclose(position_error(table, np.random.default_rng(8)), total / n)
    assert total > 0


def test_borealis_order_probe():
    """Borealis II, below figure 3: pairs of embeddings and their relative position, which is: which of the two is later
    (E7).

    P(b > a) = σ(⟨w, [π_a; π_b]⟩ + c), with ½‖w‖² − Σ ln P(right answer) at its minimum: no small step makes it smaller.
    """
    rng = np.random.default_rng(9)
    table = sinusoids(20, 4)
    a, b = rng.integers(0, 20, (2, 60))
    pairs = [[*table[x], *table[y]] for x, y in zip(a, b, strict=True)]

    def loss(w, c):
        total = 0.5 * sum(v * v for v in w)
        for k in range(60):
            z = sum(w[e] * pairs[k][e] for e in range(8)) + c
            total += math.log(1 + math.exp(-z if b[k] > a[k] else z))
        return total

    w, c = logistic_regression(np.array(pairs), b > a)
    lowest = loss(w, c)
    for step in np.vstack([np.eye(9), -np.eye(9)]) * 1e-2:
        assert loss(w + step[:8], c + step[8]) > lowest
    assert 0 < order_error(table, rng) < 0.3
