"""A scale of one's own, where it is handed on to the attention inside: it is as if the queries were longer."""

from functools import partial
from math import sqrt

import numpy as np
import pytest

from minitransformer.attention import (
    bigbird_attention,
    chosen_rows_attention,
    etc_attention,
    latent_attention,
    longformer_attention,
    pooled_attention,
    sink_attention,
)
from minitransformer.positions import RoPE, Shaw
from minitransformer.pullback import NoParams

B, H, N, D, DV, SCALE = 2, 2, 11, 4, 3, 0.7
HEADS = [(B, H, N, D), (B, H, N, D), (B, H, N, DV)]
ROWS = [(B, H, N, D), (B, N, D), (B, N // 2, D)]
LATENT = [(B, H, N, D), (B, H, N, 2), (B, N, 5), (B, N, 2), (5, H * D), (5, H * DV)]
DRAWN = np.array([[[3], [4], [1], [2]], [[4], [4], [1], [1]]])
CHOSEN = np.maximum(np.arange(N) // 2 - 1, -1) + np.zeros((B, 1), int)
near, sinks = partial(longformer_attention, radius=2), partial(sink_attention, first=2, last=3)


def blocks(Q, K, V, **options):
    return bigbird_attention(Q, K, V, DRAWN, block=2, **options)


def rows(Q, C, E, sink, **options):
    return chosen_rows_attention(Q, C, E, sink, CHOSEN[..., None], window=3, **options)


# a function, the shapes of its arrays, those with which all scores grow, and the d of the 1/√d that is its own scale
CASES = {
    "longformer": (near, HEADS * 2, (0, 3), D),
    "longformer, only a window": (partial(near, global_tokens=0), HEADS * 2, (0, 3), D),
    "longformer, turned": (partial(near, encoding=RoPE(D), params=NoParams()), HEADS * 2, (0, 3), D),
    "etc": (partial(etc_attention, radius=2), [*HEADS, (H, 6, D), (H, 6)], (0, 4), D),
    "bigbird": (blocks, HEADS, (0,), D),
    "sinks": (sinks, HEADS, (0,), D),
    "sinks, turned": (partial(sinks, rotate=RoPE(D)), HEADS, (0,), D),
    "sinks, turned in caches": (partial(sinks, encoding=RoPE(D), params=NoParams()), HEADS, (0,), D),
    "latent": (latent_attention, LATENT, (0, 1), D + 2),
    "latent, absorbed": (partial(latent_attention, absorbed=True), LATENT, (0, 1), D + 2),
    "pooled": (partial(pooled_attention, block=2, window=3), ROWS, (0,), D),
    "chosen rows": (rows, [*ROWS, (H,)], (0,), D),
}


@pytest.mark.parametrize("name", CASES)
def test_a_scale_is_as_good_as_longer_queries(name, rng, tier):
    function, shapes, longer, d = CASES[name]
    arrays, factor = [rng.standard_normal(shape) for shape in shapes], SCALE * sqrt(d)
    Y, pullback = function(*arrays, scale=SCALE)
    same, by_arrays = function(*(factor * X if at in longer else X for at, X in enumerate(arrays)))
    np.testing.assert_allclose(Y, same, rtol=1e-10, atol=1e-13)
    dY = rng.standard_normal(Y.shape)
    gradients, wanted = ([dX for dX in back(dY) if isinstance(dX, np.ndarray)] for back in (pullback, by_arrays))
    for at, (dX, want) in enumerate(zip(gradients, wanted, strict=True)):
        np.testing.assert_allclose(dX, factor * want if at in longer else want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["longformer", "sinks"])
def test_beside_an_encoding_that_has_a_scale_of_its_own_none_can_be_given(name, rng):
    function, shapes, _, _ = CASES[name]
    arrays, encoding = [rng.standard_normal(shape) for shape in shapes], Shaw(D, 4, values=False)
    with pytest.raises(ValueError, match="scale: Shaw has a scale of its own, so none can be given"):
        function(*arrays, encoding=encoding, params=encoding.init(rng), scale=SCALE)
