"""Of all sparse attentions that are functions: who sees nothing says nothing."""

import numpy as np
import pytest

from minitransformer.attention import (
    BigBird,
    bigbird_attention,
    etc_attention,
    longformer_attention,
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
def test_who_sees_nothing_gives_zeros(count, attention, rng):
    arrays = rng.standard_normal((count, 2, 2, N, 4))
    Y, pullback = attention(*arrays, mask=np.zeros((1, 1, 1, N), bool))
    assert not Y.any()
    assert not any(gradient.any() for gradient in pullback(np.ones_like(Y)))
