"""The errata of the CS224N notes, measured: one function for each that has consequences, named after its number."""

import math

import numpy as np

from minitransformer.attention import attend, dot_product_attention, scores
from minitransformer.errata.reading import Reading, queries_keys_values, relative_error
from minitransformer.functional import layer_norm, layer_norm_outside, softmax
from minitransformer.positions.shaw import Shaw, ShawParams


def e67() -> Reading:
    """Five tokens of width three as columns, and the product that is written for rows: it exists, and compares channels."""
    rng = np.random.default_rng(67)
    Q, K = rng.standard_normal((2, 3, 5))
    square, columns = Q @ K.T, Q.T @ K
    V = rng.standard_normal((3, 5))
    printed = softmax(square / math.sqrt(3))[0] @ V  # d × n, as it should be
    meant, _ = dot_product_attention(*(np.ascontiguousarray(A.T) for A in (Q, K, V)))
    return Reading({"printed": len(square), "meant": len(columns)}, relative_error(printed, meant.T))


def e68() -> Reading:
    """Both layer norms, and their gradients, of a row with σ = ε; and their distance where σ = 1."""
    rng = np.random.default_rng(68)
    D, eps = 8, 1e-5
    x = rng.standard_normal((1, D))
    x = eps * (x - x.mean()) / x.std()
    dY, one, zero = rng.standard_normal((1, D)), np.ones(D), np.zeros(D)
    (outside, o), (inside, i) = (norm(x, one, zero, eps=eps) for norm in (layer_norm_outside, layer_norm))
    ratio = np.linalg.norm(o(dY)[0]) / np.linalg.norm(i(dY)[0])
    ordinary = relative_error(*(norm(x / eps, one, zero, eps=eps)[0] for norm in (layer_norm_outside, layer_norm)))
    numbers = {"printed": float(outside.std()), "other": float(inside.std()), "gradients": float(ratio)}
    return Reading({**numbers, "ordinary": ordinary})


def e69() -> Reading:
    """The variance of scores of 64 products, divided by 64 and by 8."""
    rng = np.random.default_rng(69)
    d = 64
    Q, K, V = rng.standard_normal((500, 1, d)), *rng.standard_normal((2, 500, 32, d))
    said, meant = scores(Q, K, scale=1 / d)[0], scores(Q, K)[0]
    numbers = {"d": d, "printed": float(said.var()), "meant": float(meant.var())}
    return Reading(numbers, relative_error(softmax(said)[0] @ V, softmax(meant)[0] @ V))


def e70() -> Reading:
    """The weight on the word before, for a head that is to find it: with vectors for the outputs, and for the keys."""
    rng = np.random.default_rng(70)
    n, d, k = 8, 4, 2
    Q, K, V = queries_keys_values(rng, n, d)
    Q[:, 0] = 1  # one feature that all queries have, as a bias would give them
    before = np.zeros((2 * k + 1, d))
    before[k - 1, 0] = 40.0  # offset −1
    encoding = Shaw(d, k)
    (_, printed), (_, meant) = (
        attend(encoding, params, Q, K, V) for params in (ShawParams(0 * before, before), ShawParams(before, 0 * before))
    )
    weights = [np.diagonal(pullback.A, -1) for pullback in (printed, meant)]
    changed = float(np.abs(printed.A - dot_product_attention(Q, K, V)[1].A).max())
    return Reading({"changed": changed, "printed": float(weights[0].mean()), "meant": float(weights[1].min())})
