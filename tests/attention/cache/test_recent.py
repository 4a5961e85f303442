"""The last keys and values, in room that is made anew when it is full."""

import numpy as np
import pytest

from minitransformer.attention.cache.recent import Kept, Recent


@pytest.mark.parametrize("kept", [Kept(0, 1), Kept(2, 200), Kept(30, 500)])
def test_one_row_is_copied_for_each_token_and_the_memory_stays_constant(kept, rng):
    """... as the module says, however long the text is; and what is kept is what stood there."""
    tokens = 3000
    K, V = rng.standard_normal((tokens, 3)), rng.standard_normal((tokens, 2))
    state, copied = Recent.of(K[:1], V[:1], kept), 0
    for t in range(1, tokens):
        before, state = state, state.extended(K[t : t + 1], V[t : t + 1])
        copied += len(before.keys) if state.K is not before.K else 0
        assert len(state.K) <= 2 * sum(kept) + 64
    assert copied <= 1.1 * tokens  # the first ones are copied every time, too
    there = [*range(kept.first), *range(tokens - kept.last + 1, tokens)]
    np.testing.assert_array_equal(state.keys, K[there])
    np.testing.assert_array_equal(state.values, V[there])
