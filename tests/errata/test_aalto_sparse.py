"""Where the Aalto thesis slips on sparse attention: what is printed fails, what we use holds."""

import numpy as np

from minitransformer.attention import BigBird, Fixed, Graph, Local, RandomKeys, Strided


def test_E47_brackets_are_floors_and_N_is_a_block():
    """Equation (4): "if [j/N] = [i/N]", in a thesis where N is the length of the sequence.

    With brackets as brackets only i = j is left; with N the length, everything is one block. Meant is ⌊j/B⌋ = ⌊i/B⌋.
    """
    n, B = 12, 4
    i, j = np.arange(n)[:, None], np.arange(n)
    as_fractions = j / B == i / B
    as_length = i // n == j // n
    np.testing.assert_array_equal(as_fractions, np.eye(n, dtype=bool))
    assert as_length.all()
    meant = Local(B)(n, n, causal=False).mask
    np.testing.assert_array_equal(meant, np.kron(np.eye(n // B), np.ones((B, B))) > 0)


def test_E48_two_halves_of_two_patterns():
    """Equations (4) and (5): the local part of the pattern "fixed" with the far part of "strided", and neither is causal.

    Made causal, the two don't connect everything in two steps, in any order: what stands at the start of a block has nobody
    near before it, and reaches multiples of N and no other. Each of the paper's own pairs does.
    """
    n, stride = 30, 5
    i, j = np.arange(n)[:, None], np.arange(n)
    printed_near, printed_far = i // stride == j // stride, (i - j) % stride == 0
    assert np.triu(printed_near, 1).any(), "a query sees what comes later"
    assert np.triu(printed_far, 1).any()

    causal = j <= i
    near, far = printed_near & causal, printed_far & causal
    everything = np.tril(np.ones((n, n), bool))
    both = near | far
    reached = both @ both
    assert not reached[everything].all()
    np.testing.assert_array_equal(np.flatnonzero((near @ far)[25]), [0, 5, 10, 15, 20, 25])

    strided = [Strided(stride, part)(n, n, causal=True).mask for part in ("near", "far")]
    np.testing.assert_array_equal(strided[0] @ strided[1], everything)
    fixed = [Fixed(stride, 1, part)(n, n, causal=True).mask for part in ("near", "far")]
    np.testing.assert_array_equal((fixed[0] | fixed[1]) @ fixed[0], everything)
    np.testing.assert_array_equal(strided[1], far)  # (5) is the far part of the one
    np.testing.assert_array_equal(fixed[0], near)  # and (4) the near part of the other


def test_E49_n_times_b():
    """2.3.1: blocks reduce "the complexity from N² to B²". There are N/B blocks of B² pairs: N · B."""
    for n, B in ((64, 8), (128, 8), (256, 8)):
        pairs = Local(B)(n, n, causal=False).mask.sum()
        assert pairs == n * B
        assert pairs != B**2


def test_E59_random_keys_of_each_query():
    """3.1.3: "the random attention works by attending to fixed random tokens". Fixed in time, not the same for all queries.

    Were they the same columns for all, they would be global tokens that see nothing: paths between two others would not get
    shorter. With keys of its own each query shortens them.
    """
    n = 200
    own = RandomKeys(3)(n, n, causal=False).mask
    same = np.broadcast_to(own[0], (n, n))
    window = np.abs(np.arange(n)[:, None] - np.arange(n)) <= 1

    with_own, with_same = (Graph(window | keys).average_path() for keys in (own, same))
    assert with_own < 5
    assert with_same > 4 * with_own

    pattern = BigBird(random=3, block=1)
    np.testing.assert_array_equal(pattern(n, n, causal=False).mask, pattern(n, n, causal=False).mask)  # drawn once
    rows = {tuple(row) for row in pattern.drawn(n)[0]}
    assert len(rows) > 190  # but for each row
