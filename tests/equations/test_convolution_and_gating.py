"""Attention that convolves, and gates: Borealis II (22) to (25), in loops.

The source calls the weights Φ_q, Φ_k, Φ_v, Φ_c (our W_q, W_k, W_v, W_o), Φ_u1 and Φ_u2 (our U_1, U_2) and, in (25), Ψ and
Φ_v (our M and V).
"""

import math

import numpy as np

from minitransformer.attention import MultiHeadAttention, MultiHeadParams, SoftmaxAttention
from minitransformer.functional import glu
from minitransformer.positions import OffsetScalars
from minitransformer.positions.t5 import OffsetScalarParams
from minitransformer.related import GMLP, GMLPParams, convolution_from_heads

n, D = 5, 4


def test_borealis_eq_22_scores_with_a_number_for_each_offset():
    """Borealis II (22), "Attention and convolution":

        Sa[X] = Softmax[ (X Φ_q)(X Φ_k)ᵀ + Π ] X Φ_v

    "Π has a different learned value π_{i−j} for each offset |i−j|": read, for each signed offset (E22). There is no 1/√d.
    """
    rng = np.random.default_rng(22)
    X, (Phi_q, Phi_k, Phi_v) = rng.standard_normal((n, D)), rng.standard_normal((3, D, D))
    pi = {o: rng.standard_normal() for o in range(-(n - 1), n)}  # of i − j

    Sa = np.zeros((n, D))
    for i in range(n):
        score = []
        for j in range(n):
            q = [sum(X[i, c] * Phi_q[c, a] for c in range(D)) for a in range(D)]
            k = [sum(X[j, c] * Phi_k[c, a] for c in range(D)) for a in range(D)]
            score.append(sum(q[a] * k[a] for a in range(D)) + pi[i - j])
        total = sum(math.exp(s) for s in score)
        for j in range(n):
            for b in range(D):
                Sa[i, b] += math.exp(score[j]) / total * sum(X[j, c] * Phi_v[c, b] for c in range(D))

    attention = MultiHeadAttention(D, 1, bias=False, core=SoftmaxAttention(encoding=OffsetScalars(1, n)))
    table = np.array([[pi[-o] for o in range(-(n - 1), n)]])  # ours are of j − i
    params = MultiHeadParams(Phi_q, Phi_k, Phi_v, np.eye(D), core=OffsetScalarParams(table))
    np.testing.assert_allclose(attention(params, X)[0], Sa, rtol=0, atol=1e-13)


def test_borealis_eq_23_heads_that_convolve():
    """Borealis II (23): [Sa_1[X] … Sa_H[X]] Φ_c, where each Sa_h is Softmax[Π_h] X, and Π_h has one large number.

    Where that is the number of the offset i − j = o_h, row i of Sa_h is x_{i − o_h}. With the blocks w_h I below one another for
    Φ_c, row i of the product is Σ_h w_h x_{i − o_h}: a convolution. (All rows whose neighbours are inside; see E23.)
    """
    rng = np.random.default_rng(23)
    X, w, beta = rng.standard_normal((n, D)), rng.standard_normal(3), 60.0
    offsets = (-1, 0, 1)  # o_h

    Sa = np.zeros((3, n, D))
    for h in range(3):
        for i in range(n):
            Pi = [beta if i - j == offsets[h] else 0.0 for j in range(n)]
            total = sum(math.exp(p) for p in Pi)
            for j in range(n):
                for c in range(D):
                    Sa[h, i, c] += math.exp(Pi[j]) / total * X[j, c]
    MhSa = np.zeros((n, D))
    for i in range(n):
        for h in range(3):
            for c in range(D):
                MhSa[i, c] += Sa[h, i, c] * w[h]

    for i in range(1, n - 1):  # it is a convolution
        for c in range(D):
            assert math.isclose(MhSa[i, c], sum(w[h] * X[i - offsets[h], c] for h in range(3)), rel_tol=1e-12)
    attention, params = convolution_from_heads(w, (n,), channels=D, height=beta)
    wide = np.concatenate([X, np.zeros((n, 2 * D))], -1)
    Y, pullback = attention(params, wide)
    np.testing.assert_allclose(Y[:, :D], MhSa, rtol=0, atol=1e-13)
    assert np.array_equal(pullback.A[1].round(12), np.eye(n))  # "zeros everywhere except within a single diagonal"


def test_borealis_eq_24_gated_linear_unit():
    """Borealis II (24):   GLU[X] = Sig[X Φ_u1] ⊙ X Φ_u2,   here with the biases of the paper, too."""
    rng = np.random.default_rng(24)
    E = 3
    X, (Phi_u1, Phi_u2), (b_1, b_2) = (
        rng.standard_normal((n, D)),
        rng.standard_normal((2, D, E)),
        rng.standard_normal((2, E)),
    )

    for with_biases in (False, True):
        GLU = np.zeros((n, E))
        for i in range(n):
            for e in range(E):
                u_1 = sum(X[i, c] * Phi_u1[c, e] for c in range(D)) + with_biases * b_1[e]
                u_2 = sum(X[i, c] * Phi_u2[c, e] for c in range(D)) + with_biases * b_2[e]
                GLU[i, e] = 1 / (1 + math.exp(-u_1)) * u_2
        biases = (b_1, b_2) if with_biases else ()
        np.testing.assert_allclose(glu(X, Phi_u1, Phi_u2, *biases)[0], GLU, rtol=0, atol=1e-14)

    half, _ = glu(X, 0 * Phi_u1, Phi_u2)  # Sig[0] = 1/2
    np.testing.assert_allclose(half, X @ Phi_u2 / 2, rtol=0, atol=1e-15)


def test_borealis_eq_25_gated_mlp():
    """Borealis II (25):   GMLP[X] = ( Sig[X Φ_u1] ⊙ Ψ X Φ_u2 ) Φ_v

    The rows are mixed by Ψ (n × n). The paper's block is another one (E25): see `form` of GMLP, and tests/errata.
    """
    rng = np.random.default_rng(25)
    E = 3
    X, Psi = rng.standard_normal((n, D)), rng.standard_normal((n, n))
    (Phi_u1, Phi_u2), Phi_v = rng.standard_normal((2, D, E)), rng.standard_normal((E, D))

    gated = np.zeros((n, E))
    for i in range(n):
        for e in range(E):
            u_1 = sum(X[i, c] * Phi_u1[c, e] for c in range(D))
            mixed = sum(Psi[i, j] * sum(X[j, c] * Phi_u2[c, e] for c in range(D)) for j in range(n))
            gated[i, e] = 1 / (1 + math.exp(-u_1)) * mixed
    GMLP_X = np.zeros((n, D))
    for i in range(n):
        for c in range(D):
            GMLP_X[i, c] = sum(gated[i, e] * Phi_v[e, c] for e in range(E))

    layer, params = GMLP(D, n, "source", hidden=E), GMLPParams(Phi_u1, Phi_u2, Psi, Phi_v)
    np.testing.assert_allclose(layer(params, X)[0], GMLP_X, rtol=0, atol=1e-13)


def test_borealis_gmlp_as_in_its_paper():
    """Liu et al. 2021b, in loops:   Z = GELU(X U + b_u),  Z = [Z₁ Z₂],  Y = (Z₁ ⊙ (M LN(Z₂) + b)) V + b_v."""
    rng = np.random.default_rng(26)
    E = 3
    X, M, b = rng.standard_normal((n, D)), rng.standard_normal((n, n)), rng.standard_normal(n)
    U, b_u, V, b_v = (rng.standard_normal(shape) for shape in ((D, 2 * E), 2 * E, (E, D), D))
    gamma, beta = rng.standard_normal((2, E))

    def gelu(x):
        return x * 0.5 * math.erfc(-x / math.sqrt(2))

    Z = [[gelu(sum(X[i, c] * U[c, e] for c in range(D)) + b_u[e]) for e in range(2 * E)] for i in range(n)]
    normed = np.zeros((n, E))
    for i in range(n):
        row = Z[i][E:]
        mean = sum(row) / E
        variance = sum((z - mean) ** 2 for z in row) / E
        for e in range(E):
            normed[i, e] = gamma[e] * (row[e] - mean) / math.sqrt(variance + 1e-5) + beta[e]
    Y = np.zeros((n, D))
    for i in range(n):
        for e in range(E):
            gate = sum(M[i, j] * normed[j, e] for j in range(n)) + b[i]
            for c in range(D):
                Y[i, c] += Z[i][e] * gate * V[e, c]
    Y += b_v

    params = GMLPParams(U[:, :E], U[:, E:], M, V, b_u[:E], b_u[E:], gamma, beta, b, b_v)
    np.testing.assert_allclose(GMLP(D, n, hidden=E)(params, X)[0], Y, rtol=0, atol=1e-12)
