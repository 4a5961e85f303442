"""How far apart two words are: recurrence, word windows and attention (Lecture notes, part A; CS224N notes).

The notes speak of distances without formulas. Here they are counted, in loops, and found again in the gradients.
"""

import math

import numpy as np

from minitransformer.pullback import chain, random_like
from minitransformer.related import RNN, Attend, WordWindow

d = 3


def steps_between(first, last, sees):
    """The least number of steps along which row `last` can know of token `first`; sees(i) lists what one step reads."""
    known, steps = {last}, 0
    while first not in known:
        known |= {j for i in known for j in sees(i)}
        steps += 1
    return steps


def changes(layer, params, X, i, j):
    """Does row i of the output depend on row j of the input? Asked of the pullback, and answered exactly."""
    Y, pullback = layer(params, X)
    dY = np.zeros_like(Y)
    dY[i] = np.random.default_rng(0).standard_normal(Y.shape[-1])
    return bool(pullback(dY)[1][j].any())


def test_lecture_linear_interaction():
    """Lecture notes A.1: "RNNs take O(sequence length) steps for distant word pairs to interact".

        h_t = tanh(W x_t + U h_{t−1} + b)
        ∂h_n/∂x_1 = diag(1 − h_n²) U · … · diag(1 − h_2²) U · diag(1 − h_1²) W

    One factor diag(1 − h_t²) U for each of the n − 1 steps between. (1 − h_t²) ≤ 1, so if U shrinks every vector by at
    least a factor ρ < 1, the gradient is at most ρⁿ⁻¹ ‖W‖: the long-term dependency that is lost.
    """
    rng = np.random.default_rng(1)
    rnn, n, rho = RNN(d, d), 12, 0.7
    p = random_like(rnn.init(rng, np.float64), rng)
    p = p._replace(U=rho * np.linalg.qr(p.U)[0])  # a rotation, shrunk
    X = rng.standard_normal((n, d))
    H, pullback = rnn(p, X)

    jacobian = np.diag(1 - H[0] ** 2) @ p.W.T
    for t in range(1, n):
        jacobian = np.diag(1 - H[t] ** 2) @ p.U.T @ jacobian

    for k in range(d):
        dH = np.zeros_like(H)
        dH[-1, k] = 1
        np.testing.assert_allclose(pullback(dH)[1][0], jacobian[k], rtol=1e-12)
    assert np.linalg.norm(jacobian, 2) <= rho ** (n - 1) * np.linalg.norm(p.W, 2)
    assert [steps_between(1, m, lambda t: [t - 1]) for m in (2, 12, 100)] == [1, 11, 99]


def test_lecture_word_window():
    """Lecture notes A.2, word windows (1-D convolution, size = 5):

        y_i = tanh(Σ_k W_k x_{i+k−r} + b),   r = (w − 1)/2

    One layer sees r = 2 words to each side. To bring word 1 to word n it takes ⌈(n − 1)/r⌉ layers: the notes' "length
    divided by window size", up to the factor w/r. With one layer fewer the gradient is not small, it is zero.
    """
    rng = np.random.default_rng(2)
    window, n, r = WordWindow(d, d, 5), 9, 2
    p = random_like(window.init(rng, np.float64), rng)
    X = 0.1 * rng.standard_normal((n, d))

    Y, _ = window(p, X)
    for i in range(n):
        for b in range(d):
            a = p.b[b]
            for k in range(5):
                if 0 <= i + k - r < n:
                    for c in range(d):
                        a += p.W[k, c, b] * X[i + k - r, c]
            assert abs(Y[i, b] - math.tanh(a)) < 1e-14

    for m in range(2, n + 1):
        needed = math.ceil((m - 1) / r)
        assert needed == steps_between(1, m, lambda i: range(i - r, i + r + 1))
        stacks = {L: chain(*[window] * L) for L in (needed - 1, needed) if L}
        reached = {L: changes(stack, (p,) * L, X[:m], m - 1, 0) for L, stack in stacks.items()}
        assert reached == {L: needed == L for L in stacks}


def test_cs224n_interaction_distance():
    """CS224N notes: "maximum interaction distance is O(1): each word is connected to each other word".

    One step from any word to any other, whatever the length. Not in equal parts: the weights of a row sum to one, so an
    indifferent row has 1/n for each word, and that is how its gradient falls. It falls with n, not with the distance.
    """
    rng = np.random.default_rng(3)
    attend, n = Attend(d, causal=False), 40
    p = random_like(attend.init(rng, np.float64), rng)
    X = rng.standard_normal((n, d))

    assert [steps_between(1, m, lambda i: range(1, n + 1)) for m in (2, 12, 40)] == [1, 1, 1]
    for i, j in ((0, n - 1), (n - 1, 0), (7, 31)):
        assert changes(attend, p, X, i, j)

    indifferent = p._replace(W_q=np.zeros((d, d)))  # y_i = (1/n) Σ_j x_j W_v
    for m in (10, 40):
        Y, pullback = attend(indifferent, X[:m])
        dY = np.zeros_like(Y)
        dY[-1, 0] = 1
        for j in range(m):
            np.testing.assert_allclose(pullback(dY)[1][j], p.W_v[:, 0] / m, rtol=0, atol=1e-14)
