"""Where the Aalto thesis slips on sparse attention: what is printed fails, what we use holds."""

import numpy as np

from minitransformer.attention import BigBird, Fixed, Graph, Local, RandomKeys, Strided


def test_E47_brackets_are_floors_and_N_is_a_block():
    """Aalto, (4).

    printed  "if [j/N] = [i/N]", in a thesis where N is the length of the sequence.
    wrong    With brackets as brackets only the 12 pairs with i = j are left; with N the length all 144 are one block.
    holds    ⌊j/B⌋ = ⌊i/B⌋: 48 pairs in blocks of four.
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
    """Aalto, (4) and (5).

    printed  Half of the heads have (4), the near part of "fixed", half (5), the far part of "strided", and neither is
             causal.
    wrong    Made causal, the two leave pairs unconnected after two steps, in any order: what stands at the start of a
             block has nobody near before it, and reaches multiples of N and no other.
    holds    Each of the paper's own pairs of parts connects everything, with 0 left.
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
    """Aalto, 2.3.1.

    printed  Blocks reduce "the complexity from N² to B²".
    wrong    64 tokens in blocks of eight have 512 pairs, and not 64.
    holds    There are N/B blocks of B² pairs: N · B.
    """
    for n, B in ((64, 8), (128, 8), (256, 8)):
        pairs = Local(B)(n, n, causal=False).mask.sum()
        assert pairs == n * B
        assert pairs != B**2


def test_E59_random_keys_of_each_query():
    """Aalto, 3.1.3.

    printed  "the random attention works by attending to fixed random tokens"
    wrong    Were they the same columns for all, they would be global tokens that see nothing: the mean path between
             two tokens would be more than 4 times as long.
    holds    Fixed in time, and drawn for each query anew.
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
