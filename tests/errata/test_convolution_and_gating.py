"""Where the source slips on convolution and gating: what is printed fails, what we use holds."""

import numpy as np

from minitransformer.functional import glu, linear, softmax
from minitransformer.related import GMLP, GMLPParams, convolve_with_heads

X = np.random.default_rng(0).standard_normal((9, 2))


def shifted_by(scores):
    """Softmax of these scores, times X."""
    A, _ = softmax(scores)
    return A @ X


def test_E22_an_offset_without_its_sign_is_two_neighbours():
    """Borealis II, below (22).

    printed  "a different learned value π_{i−j} for each offset |i−j|"
    wrong    The one large value is then at i − 1 and at i + 1, and each gets 1/2 of the weight: a blur, and not a
             shift.
    holds    A value for each signed offset.
    """
    i, j = np.arange(9)[:, None], np.arange(9)
    printed = shifted_by(np.where(np.abs(i - j) == 1, 60.0, 0.0))
    signed = shifted_by(np.where(i - j == 1, 60.0, 0.0))
    assert np.allclose(signed[1:], X[:-1])
    assert np.allclose(printed[1:-1], (X[:-2] + X[2:]) / 2)
    assert np.abs(printed[1:-1] - X[:-2]).max() > 0.5


def test_E23_rows_near_the_border_become_the_mean():
    """Borealis II, below (22).

    printed  The effect is "shifting the rows of the value matrix by j".
    wrong    j is the number of a key. And a row whose neighbour does not exist has equal scores: it becomes the mean
             of all rows, where a shift has nothing.
    holds    Rows move by the offset that was chosen; a frame of zeros around X makes the borders right.
    """
    i, j = np.arange(9)[:, None], np.arange(9)
    for o in (1, 2, 3):
        Y = shifted_by(np.where(i - j == o, 60.0, 0.0))
        assert np.allclose(Y[o:], X[:-o])
        assert np.allclose(Y[:o], X.mean(0))
    assert np.abs(X.mean(0)).min() > 0.1  # which is not zero
    framed = np.pad(X, ((1, 1), (0, 0)))  # a row of zeros at either end
    Y = convolve_with_heads(framed, np.array([0.0, 0.0, 1.0]), (11,))[1:-1]
    assert np.allclose(Y[0], 0, atol=1e-14)
    assert np.allclose(Y[1:], X[:-1])


def test_E24_one_weight_for_a_head_is_one_kernel_for_all_channels():
    """Borealis II, below (23).

    printed  Φ_c can be chosen "so that all of the outputs from the h-th self attention mechanism have the same
             weight", and this is "a convolution".
    wrong    It has the same kernel in every channel: one number for a head, and no channel reaches another. The best
             of them misses more than 30 % of a convolution as in a network.
    holds    A D × D matrix for each offset; Φ_c can hold that, too, with D² numbers for each head.
    """
    rng = np.random.default_rng(1)
    w, blocks = rng.standard_normal(3), rng.standard_normal((3, 2, 2))
    same = convolve_with_heads(X, w, (9,))
    for c in range(2):
        assert np.allclose(same[1:-1, c], np.convolve(X[:, c], w, "valid"))
    full = convolve_with_heads(X, blocks, (9,))
    wanted = [sum(np.convolve(X[:, c], blocks[:, c, e], "valid") for c in range(2)) for e in range(2)]
    assert np.allclose(full[1:-1], np.stack(wanted, -1))
    # no kernel that all channels share makes the second from X
    shifts = np.stack([X[2:], X[1:-1], X[:-2]], -1).reshape(-1, 3)
    best, *_ = np.linalg.lstsq(shifts, full[1:-1].reshape(-1), rcond=None)
    assert np.linalg.norm(shifts @ best - full[1:-1].reshape(-1)) > 0.3 * np.linalg.norm(full[1:-1])


def test_E25_the_papers_gate_is_linear_and_stands_on_the_other_half():
    """Borealis II (25).

    printed  Sig[X Φ_u1] ⊙ Ψ X Φ_u2: a sigmoid gate, no split of one GELU, no norm and no biases.
    wrong    At Ψ = 0 it gives 0, whatever its input; the paper's block, which is drawn near there, gives a network of
             each row. The gate of the paper goes below 0, and further than 10 from 1, where the mixing is strong.
    holds    In Liu et al. 2021b the mixed half is the gate, and nothing bounds it.
    """
    rng = np.random.default_rng(2)
    paper, source = GMLP(2, 9), GMLP(2, 9, "source")
    drawn = paper.init(rng, np.float64)
    rows, pullback = paper(drawn._replace(M=0 * drawn.M), X)
    assert np.allclose(pullback.gate.G, 1)  # b = 1 opens it
    assert np.abs(rows).min(-1).max() > 0.01
    printed = GMLPParams(drawn.U_1, drawn.U_2, 0 * drawn.M, drawn.V)
    assert not source(printed, X)[0].any()
    strong = paper(drawn._replace(M=1e6 * drawn.M), X)[1].gate
    assert np.abs(strong.G - 1).max() > 10  # no sigmoid keeps it below one
    assert (strong.G < 0).any()
    assert 0 < source(printed, X)[1].gate.Z_1.min() < source(printed, X)[1].gate.Z_1.max() < 1
    unit, _ = glu(X, drawn.U_1, drawn.U_2)  # the printed block at Ψ = 1 is (24)
    assert np.allclose(source(printed._replace(M=np.eye(9)), X)[0], linear(unit, drawn.V)[0])
