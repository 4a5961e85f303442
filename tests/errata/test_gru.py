"""Where "From GRU to attention" slips: what is printed fails, what we use holds.

The derivation is a fine one, and every step survives. Most of what follows is indices, which is where derivations that
are written on a blackboard and typed later tend to suffer.
"""

import math

import numpy as np

from minitransformer.attention import MultiHeadAttention
from minitransformer.functional import softmax
from minitransformer.models import Block
from minitransformer.positions import LearnedPositions, sinusoids
from minitransformer.pullback import chain, random_like, tree_map
from minitransformer.related import GRU, LSTM, After, Attend, gru_coefficients

D, d, n = 3, 4, 5


def run_gru(seed):
    """States h_0 = 0, h_1 … h_n, gates and candidates of a random GRU; u[t] is u_t."""
    rng = np.random.default_rng(seed)
    gru = GRU(D, d)
    H, pullback = gru(random_like(gru.init(rng, np.float64), rng), rng.standard_normal((n, D)))
    empty = np.full((1, d), np.nan)
    return np.vstack([np.zeros((1, d)), H]), np.vstack([empty, pullback.u]), np.vstack([empty, pullback.c])


def test_E61_the_products_of_the_unrolled_sum():
    """From GRU to attention, the unrolled sum, printed twice.

    printed  h_t = Σ_{i=1…t} (∏_{j=1…t−i+1} u_j) (∏_{k=1…i−1} (1 − u_k)) h̃_i. The two substitutions above it are
             right.
    wrong    The weights are off from a sum of one by more than 0.1, and the sum from the state by more than 0.3,
             whichever of the two gate conventions one reads it with.
    holds    A candidate entered with 1 − u_i, once, and has passed the gates u_{i+1} … u_t since; and there is the
             state before the first token.
    """
    h, u, c = run_gru(1)
    t = n

    def printed(u):
        return [np.prod(u[1 : t - i + 2], axis=0) * np.prod(1 - u[1:i], axis=0) for i in range(1, t + 1)]

    for convention in (u, 1 - u):
        weights = printed(convention)
        wrong = sum(w * c[i] for i, w in enumerate(weights, start=1))
        assert np.abs(wrong - h[t]).max() > 0.3
        assert np.abs(sum(weights) - 1).min() > 0.1

    weights = [np.prod(u[i + 1 : t + 1], axis=0) * (1 - u[i]) for i in range(1, t + 1)]
    of_h_0 = np.prod(u[1:], axis=0)
    np.testing.assert_allclose(sum(w * c[i] for i, w in enumerate(weights, start=1)), h[t], rtol=0, atol=1e-14)
    np.testing.assert_allclose(sum(weights) + of_h_0, 1, rtol=0, atol=1e-14)
    np.testing.assert_allclose(gru_coefficients(u[1:])[0][t], [of_h_0, *weights], rtol=1e-13)


def test_E62_one_convention_and_the_current_token():
    """From GRU to attention, the gates.

    printed  h_t = u_t ⊙ h_{t−1} + (1 − u_t) ⊙ h̃_t first, and later, for the same network,
             u_t = σ(W_x x_{t−1} + U_h h_{t−1} + b_u),   h_t = f(h_{t−1}, x_{t−1}) = u_t ⊙ h̃_t + (1 − u_t) ⊙ h_{t−1}
    wrong    Mixed, the states differ by more than 0.5. With x_{t−1}, the state after token t has not read token t:
             replace it, and the state changes by 0.
    holds    Either convention, with x_t. One is the other with W_x, U_h and b_u negated, as σ(−a) = 1 − σ(a).
    """
    rng = np.random.default_rng(2)
    gru = GRU(D, d)
    p = random_like(gru.init(rng, np.float64), rng)
    X = rng.standard_normal((n, D))
    H, _ = gru(p, X)

    def later(p, X, shift):
        h, states = np.zeros(d), []
        tokens = np.vstack([np.zeros(D), X])  # tokens[t] is x_t
        for t in range(1, n + 1):
            x = tokens[t - shift]
            u = 1 / (1 + np.exp(-(x @ p.W_u + h @ p.U_u + p.b_u)))
            h = u * np.tanh(x @ p.W_c + h @ p.U_c + p.b_c) + (1 - u) * h
            states.append(h)
        return np.array(states)

    assert np.abs(later(p, X, shift=0) - H).max() > 0.5  # the same gates mean the opposite
    negated = p._replace(W_u=-p.W_u, U_u=-p.U_u, b_u=-p.b_u)
    np.testing.assert_allclose(later(negated, X, shift=0), H, rtol=0, atol=1e-13)

    other = X.copy()
    other[-1] += 1
    # as printed, the last state does not know the last token
    assert np.array_equal(later(negated, other, shift=1)[-1], later(negated, X, shift=1)[-1])
    assert np.abs(gru(p, other)[0][-1] - H[-1]).min() > 1e-3


def test_E63_the_sum_is_over_candidates():
    """Printed: "a weighted combination of all previous hidden vectors", and "of all GRU's previous states".

    The formula below it has h̃_i, and that is right: the same weights on the hidden vectors h_i give something else.
    """
    h, u, c = run_gru(3)
    C, _ = gru_coefficients(u[1:])
    of_candidates = np.array([sum(C[t, i] * c[i] for i in range(1, t + 1)) for t in range(1, n + 1)])
    of_hidden = np.array([sum(C[t, i] * h[i] for i in range(1, t + 1)) for t in range(1, n + 1)])

    assert np.abs(of_hidden - h[1:]).max() > 0.1
    np.testing.assert_allclose(of_candidates, h[1:], rtol=0, atol=1e-14)


def test_E64_keys_carry_their_position_and_queries_theirs():
    """From GRU to attention, a sense of position.

    printed  α_i ∝ exp ATT(K(f(x_i)), Q(f(x_t) + p(i))); in the closing summary K(f(x_i) + p(i)) with the same query.
    wrong    The score knows where the key stands, and not where the query stands: two equal words at different places
             have rows of weights that differ by 0.
    holds    The query's own position, Q(f(x_t) + p(t)); then they differ by more than 0.1.
    """
    rng = np.random.default_rng(4)
    attend, positions = Attend(d, causal=False), LearnedPositions(d, n)
    W = random_like(attend.init(rng, np.float64), rng)
    f, p = rng.standard_normal((2, n, d))
    f[3] = f[0]  # the same word twice

    def rows(score):
        S = np.array([[score(i, t) for i in range(n)] for t in range(n)])
        return softmax(S / math.sqrt(d))[0]

    in_the_step = rows(lambda i, t: (f[i] @ W.W_k) @ ((f[t] + p[i]) @ W.W_q))
    in_the_summary = rows(lambda i, t: ((f[i] + p[i]) @ W.W_k) @ ((f[t] + p[i]) @ W.W_q))
    ours = rows(lambda i, t: ((f[i] + p[i]) @ W.W_k) @ ((f[t] + p[t]) @ W.W_q))

    for printed in (in_the_step, in_the_summary):
        assert np.array_equal(printed[3], printed[0])
        assert np.abs(printed - ours).max() > 0.1
    assert np.abs(ours[3] - ours[0]).max() > 0.1
    table = positions.init(rng, np.float64)._replace(table=p)
    _, pullback = chain(positions, attend)((table, W), f)
    np.testing.assert_allclose(pullback[1].A[0], ours, rtol=0, atol=1e-14)


def test_E65_defined_at_every_length_is_not_yet_generalising():
    """Printed: the transformer uses sinusoids because they "can generalize to lengths not seen during training".

    The paper hoped so ("we hypothesized"). What is a property of sinusoids is that they are defined at every position,
    where a learned table ends. But a model trained on 512 positions meets vectors beyond them that it has never seen:
    the slow channels leave the range of values that training showed. Whether it copes is a matter of measurement, and
    Part I of the book measures.
    """
    trained, D = 512, 64
    table = sinusoids(2 * trained, D)
    seen, unseen = table[:trained], table[trained:]

    outside = (unseen.max(0) > seen.max(0) + 0.05) | (unseen.min(0) < seen.min(0) - 0.05)
    wavelength = np.repeat(2 * math.pi * 10000.0 ** (np.arange(0, D, 2) / D), 2)
    assert not outside[wavelength <= trained].any()  # a whole wave was seen: nothing new
    assert outside.sum() == 24  # of 64 channels, all of them slow

    nearest = np.array([np.linalg.norm(seen - p, axis=1).min() for p in unseen])  # distance to anything that was seen
    neighbours = np.linalg.norm(np.diff(seen, axis=0), axis=1)
    assert nearest[-1] > 4 * neighbours.max()


def test_E66_a_nonlinearity_per_head_is_not_the_transformer():
    """From GRU to attention, non-linear attention.

    printed  h_t = [g(h_t¹); …; g(h_tᴺ)] is "the Non-Linear, Non-Causal, Positional Attention used by Transformer".
    wrong    With g on every head, what one head found never meets what another found: the gradient between them is 0.
    holds    The transformer mixes the heads with W_o, adds the result to what was there, normalises, and applies a
             network to the whole row, with another residual.
    """
    rng = np.random.default_rng(6)
    d, heads = 6, 2
    g, H = After(d, 7, heads), rng.standard_normal((n, d))
    _, pullback = g(random_like(g.init(rng, np.float64), rng), H)
    first, second = slice(0, d // 2), slice(d // 2, d)

    dY = np.zeros((n, d))
    dY[:, first] = rng.standard_normal((n, d // 2))
    assert pullback(dY)[1][:, first].any()
    assert not pullback(dY)[1][:, second].any()  # the first half of the output knows nothing of the second head

    mha = MultiHeadAttention(d, heads, bias=False)
    p = random_like(mha.init(rng, np.float64), rng)
    X = rng.standard_normal((n, d))
    Y, _ = mha(p, X)
    only_first = p._replace(W_v=np.where(np.arange(d) < d // 2, p.W_v, 0))  # silence the second head
    assert np.abs(mha(only_first, X)[0] - Y)[:, first].min() > 1e-3  # W_o had carried it everywhere

    block = Block.of(d, heads, 7)
    silent = tree_map(np.zeros_like, block.init(rng, np.float64))
    assert np.array_equal(block(silent, X)[0], X)  # the residuals: with every weight zero, a block passes X on


def test_E80_an_LSTM_adds_to_its_cell():
    """From GRU to attention, before the first equation.

    printed  "A key idea behind LSTM and GRU is the additive update of the hidden vector", h_t = u_t ⊙ h_{t−1} + (1 − u_t) ⊙ h̃_t.
    wrong    In an LSTM the hidden vector is made anew from the cell at every token, and a closed gate makes it 0.
    holds    The cell is added to, and what it keeps and what it takes in need not sum to one.
    """
    rng = np.random.default_rng(8)
    lstm = LSTM(D, d)
    p = random_like(lstm.init(rng, np.float64), rng)
    X = rng.standard_normal((n, D))
    H, pullback = lstm(p, X)
    c, u, t, _ = pullback.opened
    before, cells = np.vstack([np.zeros((1, d)), H[:-1]]), pullback.cells
    assert np.abs(H - (u * before + (1 - u) * c)).max() > 0.1
    assert np.abs(cells[1:] - (u * cells[:-1] + (1 - u) * c)).max() > 0.1
    np.testing.assert_allclose(cells[1:] - u * cells[:-1], t * c, rtol=0, atol=1e-15)

    closed = p._replace(o=p.o._replace(b=np.full(d, -800.0)))
    H, pullback = lstm(closed, X)
    assert not H.any()
    assert np.abs(pullback.cells[1:]).min() > 1e-4  # the cell has kept what it was given
