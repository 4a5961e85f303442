"""Attention and graphs, as Borealis II draws them in figure 13: the same sums over neighbours, written out.

The blog's symbols: x_i is the input at node i, A the adjacency matrix, Â = A + I, D̂ the diagonal matrix of its row sums.
"""

import math

import numpy as np

from minitransformer.attention import dot_product_attention
from minitransformer.related import GAT, GraphConvolution, edge_attention, edges_of_mask
from minitransformer.related.graph_attention import GATParams
from minitransformer.related.graph_convolution import GraphConvolutionParams

LINKS = [(0, 1), (0, 2), (1, 2), (2, 3)]  # node 4 has none


def graph(n=5):
    """A + I of the links, which have no direction."""
    A_hat = np.eye(n)
    for i, j in LINKS:
        A_hat[i, j] = A_hat[j, i] = 1
    return A_hat


def test_borealis_graph_convolution():
    """Borealis II fig. 13b:  D̂^{−1/2} Â D̂^{−1/2} X Φ. Kipf and Welling's later code divides by the row sum instead: D̂⁻¹ Â X Φ."""
    rng = np.random.default_rng(13)
    n, D, E = 5, 3, 4
    A_hat, X, Phi = graph(n), rng.standard_normal((n, D)), rng.standard_normal((D, E))
    degree = [sum(A_hat[i, j] for j in range(n)) for i in range(n)]
    XPhi = [[sum(X[j, a] * Phi[a, c] for a in range(D)) for c in range(E)] for j in range(n)]
    for scaling in ("symmetric", "rows"):
        Y = np.zeros((n, E))
        for i in range(n):
            for j in range(n):
                if A_hat[i, j]:
                    weight = 1 / math.sqrt(degree[i] * degree[j]) if scaling == "symmetric" else 1 / degree[i]
                    for c in range(E):
                        Y[i, c] += weight * XPhi[j][c]
        layer = GraphConvolution(D, E, scaling)
        found, _ = layer(GraphConvolutionParams(Phi, np.zeros(E)), X, edges_of_mask(A_hat > 0))
        np.testing.assert_allclose(found, Y, rtol=0, atol=1e-13)


def test_borealis_graph_attention():
    """Borealis II fig. 13c:  y_i = Σ_j softmax_j(Mask[e_ij]) Φᵀ x_j,  e_ij = LeakyReLU(φ₁·Φᵀ x_i + φ₂·Φᵀ x_j), slope 0.2.

    The mask comes after the LeakyReLU: −∞ where there is no edge.
    """
    rng = np.random.default_rng(14)
    n, D, d = 5, 3, 4
    A_hat, X, Phi = graph(n), rng.standard_normal((n, D)), rng.standard_normal((D, d))
    phi_1, phi_2 = rng.standard_normal((2, d))
    v = [[sum(X[j, a] * Phi[a, c] for a in range(D)) for c in range(d)] for j in range(n)]
    f = [sum(phi_1[c] * v[i][c] for c in range(d)) for i in range(n)]
    g = [sum(phi_2[c] * v[j][c] for c in range(d)) for j in range(n)]
    Y = np.zeros((n, d))
    for i in range(n):
        e = [f[i] + g[j] if f[i] + g[j] > 0 else 0.2 * (f[i] + g[j]) for j in range(n)]
        total = sum(math.exp(e[j]) for j in range(n) if A_hat[i, j])
        for j in range(n):
            if A_hat[i, j]:
                for c in range(d):
                    Y[i, c] += math.exp(e[j]) / total * v[j][c]

    params = GATParams(Phi, phi_1[None], phi_2[None], np.zeros(d))
    found, _ = GAT(D, d)(params, X, edges_of_mask(A_hat > 0))
    np.testing.assert_allclose(found, Y, rtol=0, atol=1e-13)
    np.testing.assert_allclose(found[4], v[4], rtol=0, atol=1e-13)  # whoever sees only itself returns Φᵀ x_i


def test_borealis_complete_graph():
    """Borealis II, "Attention and graphs": attention is a message from every node to every node, and a mask takes edges away.

    Destination i asks with q_i; each source j answers with v_j, as loudly as its k_j fits.
    """
    rng = np.random.default_rng(15)
    n, d = 5, 3
    Q, K, V = rng.standard_normal((3, 1, n, d))
    for seen in (np.ones((n, n), bool), np.tri(n) > 0, graph(n) > 0):
        Y = np.zeros((n, d))
        for i in range(n):
            messages = [j for j in range(n) if seen[i, j]]
            loud = {j: math.exp(sum(Q[0, i, c] * K[0, j, c] for c in range(d)) / math.sqrt(d)) for j in messages}
            for j in messages:
                for c in range(d):
                    Y[i, c] += loud[j] / sum(loud.values()) * V[0, j, c]
        found, _ = edge_attention(Q, K, V, edges_of_mask(seen))
        np.testing.assert_allclose(found[0], Y, rtol=0, atol=1e-13)
        np.testing.assert_allclose(found, dot_product_attention(Q, K, V, mask=seen)[0], rtol=0, atol=1e-13)
