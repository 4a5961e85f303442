"""What is lost if a cache keeps r numbers of each token, and the keys and values of all heads are made of these? (Chapter 18)

full        Y = Σ_h softmax(Q_h K_hᵀ/√d) V_h W_o,h,  [K | V] = X W,  W = [W_k | W_v]
kept        C = X B (n, r), and [K | V] = C U

B (D, r) says which numbers are kept, U (r, 2 D) makes keys and values of them. `errors` compares three choices of B and U.
"""

import math
from typing import NamedTuple

import numpy as np

from minitransformer.attention import dot_product_attention
from minitransformer.typing import Array

TOKENS, WIDTH, HEADS = 128, 64, 8


class Errors(NamedTuple):
    """‖Y − Y_full‖/‖Y_full‖ for three ways to keep r numbers of a token.

    heads     one key and value for all heads of a group, whose matrices are the means of the group's (grouped keys)
    weights   B has the r left singular vectors of W with the largest singular values: B Bᵀ W is the best W of rank r
    inputs    B has the r right singular vectors of X with the largest singular values: X B Bᵀ is the best X of rank r

    In the last two U = Bᵀ W.
    """

    heads: float
    weights: float
    inputs: float


def inputs(rng: np.random.Generator, falls: float) -> Array:
    """Tokens (n, D) of mean square 1, whose k-th direction has the size k^(−falls); which directions these are is drawn."""
    turn = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0]
    X = rng.standard_normal((TOKENS, WIDTH)) * np.arange(1.0, WIDTH + 1) ** -falls @ turn
    return X * math.sqrt(X.size) / np.linalg.norm(X)


def errors(r: int, rng: np.random.Generator, *, falls: float = 1) -> Errors:
    """The errors of causal attention with random matrices, for r numbers of a token, a multiple of 2 D/H.

    raises   ValueError for an r that no number of groups has
    """
    d, X = WIDTH // HEADS, inputs(rng, falls)
    groups, rest = divmod(r, 2 * d)
    if rest or not groups or HEADS % groups:
        raise ValueError(f"r: {r} should be {2 * d} times a divisor of {HEADS}")
    W_q, W_k, W_v, W_o = (rng.standard_normal((WIDTH, WIDTH)) / math.sqrt(WIDTH) for _ in range(4))

    def heads(Z: Array) -> Array:
        return Z.reshape(TOKENS, HEADS, d).swapaxes(0, 1)

    def attend(K: Array, V: Array) -> Array:
        Y, _ = dot_product_attention(heads(X @ W_q), heads(K), heads(V), causal=True)
        return Y.swapaxes(0, 1).reshape(TOKENS, WIDTH) @ W_o

    def shared(W: Array) -> Array:
        means = W.reshape(WIDTH, groups, -1, d).mean(2, keepdims=True)
        return np.broadcast_to(means, (WIDTH, groups, HEADS // groups, d)).reshape(WIDTH, WIDTH)

    W = np.concatenate([W_k, W_v], 1)
    by_weights, by_inputs = np.linalg.svd(W)[0][:, :r], np.linalg.svd(X)[2][:r].T
    kept = [[X @ shared(W_k), X @ shared(W_v)]]
    kept += [np.split(X @ B @ (B.T @ W), 2, 1) for B in (by_weights, by_inputs)]
    full = attend(X @ W_k, X @ W_v)
    return Errors(*(float(np.linalg.norm(attend(*both) - full) / np.linalg.norm(full)) for both in kept))
