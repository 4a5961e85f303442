"""Learned sparsity of nothing: no token, no query, no sample; and without batch axes."""

import numpy as np
import pytest

from minitransformer.attention.selected import (
    Indexer,
    adaptive_span_attention,
    lsh_attention,
    moba_attention,
    nsa_attention,
    routing_attention,
    sinkhorn_attention,
)
from minitransformer.pullback import random_like

D, DV = 4, 3


def numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape)


def indexed(Q, K, V):
    core = Indexer(Q.shape[-3], D)
    rng = np.random.default_rng(1)
    return core(random_like(core.init(rng, np.float64), rng), Q, K, V)


WITH_HEADS = {
    "span": lambda Q, K, V: adaptive_span_attention(Q, K, V, np.ones(Q.shape[-3])),
    "nsa": lambda Q, K, V: nsa_attention(Q, K, V, numbers(*Q.shape[:-1], 3), block=2),
    "indexer": indexed,
}
ANY_BATCH = {
    "routing": lambda Q, K, V: routing_attention(Q, K, V, centroids=numbers(3, D), window=2),
    "moba": lambda Q, K, V: moba_attention(Q, K, V, block=2, causal=True),
}
AMONG_THEMSELVES = {
    "lsh": lambda Q, K, V: lsh_attention(Q, V, rotations=numbers(2, D, 2), chunk=2),
    "sinkhorn": lambda Q, K, V: sinkhorn_attention(
        Q, K, V, numbers(*Q.shape[:-2], *2 * (-(-Q.shape[-2] // 2),)), block=2
    ),
}
ALL = {**WITH_HEADS, **ANY_BATCH, **AMONG_THEMSELVES}


SHAPES = [(batch, n, m) for batch in ((), (2,), (1, 2, 2), (0, 2)) for n, m in ((0, 0), (0, 3), (1, 1), (3, 3), (2, 5))]
CASES = [
    (name, *shape)
    for name in ALL
    for shape in SHAPES
    if (name not in AMONG_THEMSELVES or shape[1] == shape[2]) and (name not in WITH_HEADS or shape[0])
]


@pytest.mark.parametrize(("name", "batch", "n", "m"), CASES)
def test_any_number_of_anything(name, batch, n, m, tier):
    Y, pullback = ALL[name](numbers(*batch, n, D), numbers(*batch, m, D), numbers(*batch, m, DV))
    gradients = pullback(np.ones_like(Y))
    assert Y.shape == (*batch, n, DV)
    first = 1 if name == "indexer" else 0
    assert gradients[first].shape == (*batch, n, D)
    assert all(np.isfinite(gradient).all() for gradient in gradients[first:])
