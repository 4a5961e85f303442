"""Of all sparse attentions that are functions: what a mask hides says nothing, be it NaN, and who sees nothing says nothing."""

import numpy as np
import pytest

from minitransformer.attention import (
    BigBird,
    bigbird_attention,
    etc_attention,
    longformer_attention,
    padding_mask,
    sink_attention,
)
from minitransformer.positions import RoPE

pytestmark = pytest.mark.usefixtures("tier")

N = 20
R, B = (np.random.default_rng(1).standard_normal(shape) for shape in ((2, 8, 4), (2, 8)))
DRAWN = BigBird(random=1, block=3, heads=2).drawn(7)
ATTENTIONS = {
    "longformer": (6, lambda *six, mask: longformer_attention(*six, radius=2, global_tokens=2, mask=mask)),
    "etc": (3, lambda *three, mask: etc_attention(*three, R, B, radius=2, global_tokens=2, mask=mask)),
    "bigbird": (3, lambda *three, mask: bigbird_attention(*three, DRAWN, block=3, mask=mask)),
    "sinks": (3, lambda *three, mask: sink_attention(*three, first=2, last=4, rotate=RoPE(4), mask=mask)),
}
every = pytest.mark.parametrize(("count", "attention"), ATTENTIONS.values(), ids=ATTENTIONS)


@every
def test_a_nan_that_is_hidden_reaches_nobody(count, attention, rng):
    arrays, mask = rng.standard_normal((count, 2, 2, N, 4)), padding_mask(np.array([N, 12]), N)[:, None]
    Y, _ = attention(*arrays, mask=mask)
    for k in range(count):
        if k % 3:  # keys and values
            arrays[k, 1, :, 12:] = np.nan
    assert np.allclose(attention(*arrays, mask=mask)[0], Y, atol=1e-13)


@every
def test_who_sees_nothing_gives_zeros(count, attention, rng):
    arrays = rng.standard_normal((count, 2, 2, N, 4))
    Y, pullback = attention(*arrays, mask=np.zeros((1, 1, 1, N), bool))
    assert not Y.any()
    assert not any(gradient.any() for gradient in pullback(np.ones_like(Y)))


@every
def test_float32_stays_float32(count, attention, rng):
    arrays = rng.standard_normal((count, 2, 2, N, 4)).astype(np.float32)
    if attention is ATTENTIONS["etc"][1]:
        with pytest.raises(TypeError, match="one dtype"):
            attention(*arrays, mask=None)
        return
    Y, pullback = attention(*arrays, mask=None)
    assert {X.dtype for X in (Y, *pullback(Y))} == {np.dtype(np.float32)}
