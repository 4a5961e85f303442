"""A pattern as a list of tiles is the same as its mask; attention over the list is dense attention under the mask."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitransformer as mt
from minitransformer.attention import (
    BigBird,
    BlockPattern,
    Strided,
    Window,
    block_pattern,
    block_sparse_attention,
    causal_mask,
    dot_product_attention,
    one_pattern,
)
from minitransformer.attention.block_sparse import complete_blocks
from minitransformer.backend import available

TOLERANCE = {"float32": 5e-6, "float64": 2e-14}


def random_inputs(seed, batch, n, m, d, dv, dtype="float64"):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((*batch, *s)).astype(dtype) for s in ((n, d), (m, d), (m, dv), (n, dv))]


def window(n, radius, *, m=None, causal=False, **options):
    return Window(radius, **options)(n, n if m is None else m, causal=causal)


def strided(n, stride, *, m=None, causal=True):
    return Strided(stride)(n, n if m is None else m, causal=causal)


def loops(n, sees):
    """The mask, pair by pair."""
    return np.array([[bool(sees(i, j)) for j in range(n)] for i in range(n)]).reshape(n, n)


def matrix_pattern(seen):
    """A boolean matrix (n, m) as a pattern."""
    (n, m), padded = seen.shape, np.pad(seen, ((0, 63), (0, 63)))
    return block_pattern(n, m, lambda i, j: padded[i - (m - n), j])


# ---------------------------------------------------------------------------------------------- patterns


@pytest.mark.parametrize("n", [1, 63, 64, 65, 150, 200])
def test_patterns_pair_by_pair(n):
    def near(i, j):
        return abs(i - j) <= 20

    np.testing.assert_array_equal(window(n, 20).mask, loops(n, near))
    np.testing.assert_array_equal(window(n, 20, causal=True).mask, loops(n, lambda i, j: near(i, j) and j <= i))
    dilated = window(n, 9, dilation=7).mask
    np.testing.assert_array_equal(dilated, loops(n, lambda i, j: abs(i - j) <= 63 and (i - j) % 7 == 0))
    longformer = window(n, 20, global_tokens=3).mask
    np.testing.assert_array_equal(longformer, loops(n, lambda i, j: near(i, j) or i < 3 or j < 3))
    np.testing.assert_array_equal(
        strided(n, 11).mask, loops(n, lambda i, j: j <= i and (i - j < 11 or (i - j) % 11 == 0))
    )


def test_bigbird_sees_neighbours_ends_and_some_others():
    n = 64 * 12 - 5
    pattern = BigBird(window=1, global_tokens=1, random=2)(n, n, causal=False)
    blocks = pattern.mask[::64, ::64]
    tile = np.arange(12)
    assert blocks[np.abs(tile[:, None] - tile) <= 1].all()
    assert blocks[[0, -1]].all()
    assert blocks[:, [0, -1]].all()
    inner = blocks[1:-1, 1:-1]
    assert (inner.sum(1) <= 3 + 2).all()
    assert inner.sum() > 28  # more than neighbours alone
    np.testing.assert_array_equal(pattern.mask, np.kron(blocks, np.ones((64, 64), bool))[:n, :n])


def test_a_window_has_few_masks_and_work_that_grows_with_n():
    small, large = window(64 * 20, 100), window(64 * 40, 100)
    assert len(large.masks) == len(small.masks) <= 5
    assert large.pairs < 2.2 * small.pairs
    assert window(64 * 8, 64 * 8).which.max() == -1  # every pair of every tile: no mask at all


def test_any_boolean_matrix_is_a_pattern():
    mask = np.random.default_rng(0).random((130, 200)) < 0.001
    padded = np.pad(mask, ((0, 62), (0, 56)))
    pattern = block_pattern(130, 200, lambda i, j: padded[i - 70, j])
    np.testing.assert_array_equal(pattern.mask, mask)
    assert pattern.pairs == 32**2 * padded.reshape(6, 32, 8, 32).any((1, 3)).sum()  # quarters of tiles


@pytest.mark.parametrize(("first", "n", "count", "step", "front"), [
    (0, 300, 75, 4, 0), (100, 130, 58, 4, 1), (0, 5, 3, 2, 1), (7, 64, 10, 100, 0), (0, 0, 0, 3, 1), (0, 200, 200, 1, 0),
    (63, 129, 21, 9, 2), (63, 100, 163, 1, 0),
])  # fmt: skip
def test_complete_blocks_pair_by_pair(first, n, count, step, front):
    """Tiles that no query of theirs sees are not in the list, and few masks are at the edge."""
    pattern = complete_blocks(first, n, count, step, front)
    want = np.array([[b < 0 or (b + 1) * step <= i + 1 for b in range(-front, count)] for i in range(first, first + n)])
    np.testing.assert_array_equal(pattern.mask, want.reshape(n, front + count))
    tiles = sum(want[t : t + 64, k : k + 64].any() for t in range(0, n, 64) for k in range(0, front + count, 64))
    assert len(pattern.tiles) == tiles
    assert not pattern.masks.all((1, 2)).any(), "where every pair counts there is no mask"
    assert pattern.n == n
    assert pattern.m == front + count


def test_no_query_and_no_key():
    assert window(0, 3, m=70).mask.shape == (0, 70)
    assert block_pattern(5, 0, lambda i, j: np.True_).mask.shape == (5, 0)


def test_causal_with_more_keys_than_queries():
    pattern = block_pattern(70, 100, lambda i, j: np.True_, causal=True)
    np.testing.assert_array_equal(pattern.mask, causal_mask(70, 100))


@pytest.mark.parametrize(("n", "m"), [(70, 200), (1, 130), (130, 130), (200, 70)])
def test_the_queries_are_the_last_positions(n, m):
    i, j = np.arange(m - n, m)[:, None], np.arange(m)
    near = np.abs(i - j) <= 20
    np.testing.assert_array_equal(window(n, 20, m=m).mask, near)
    np.testing.assert_array_equal(window(n, 20, m=m, causal=True).mask, near & (j <= i))
    np.testing.assert_array_equal(window(n, 20, m=m, global_tokens=75).mask, near | ((i >= 0) & (i < 75)) | (j < 75))
    steps = (j <= i) & ((i - j < 11) | ((i - j) % 11 == 0))
    np.testing.assert_array_equal(strided(n, 11, m=m).mask, steps)
    if n <= m:
        whole = window(m, 20, causal=True).mask
        np.testing.assert_array_equal(window(n, 20, m=m, causal=True).mask, whole[m - n :])


@pytest.mark.parametrize("n", [1, 130, 450, 64 * 12])
def test_bigbird_draws_from_what_is_not_seen_anyway(n):
    seen = BigBird(random=0)(n, n, causal=False).mask[::64, ::64].sum(1)
    for seed in (0, 450):
        drawn = BigBird(random=2, seed=seed)(n, n, causal=False).mask[::64, ::64].sum(1) - seen
        np.testing.assert_array_equal(drawn, np.minimum(2, -(-n // 64) - seen))


good = window(200, 30)
BROKEN = {
    "starts": [
        good.starts[0],
        good.starts[:, :-1],
        good.starts + 1,
        good.starts[:, ::-1],
        good.starts.astype(float),
        np.concatenate([good.starts, good.starts]),
        np.array([[1, *good.starts[0, 1:]]]),  # nobody has the first tile
        np.array([[0, 2, 2, 2, 2], [5, 5, 8, 8, 10]]),  # nor those between two heads
    ],
    "tiles": [good.tiles + 1, good.tiles - 1, good.tiles[::-1], good.tiles[:-1], good.tiles * 0],
    "which": [good.which - 2, np.full_like(good.which, len(good.masks)), good.which[:-1]],
    "masks": [good.masks[:, :63], good.masks.astype(int), good.masks[0]],
}


def test_a_pattern_can_not_be_changed_between_the_passes(tier):
    """A loop would follow its lists anywhere; and the book's own patterns are shared by all who ask for the same."""
    Q, K, V, _ = random_inputs(3, (2,), 200, 200, 4, 3)
    own = BlockPattern(*good[:2], *(array.copy() for array in good[2:]))
    Y, pullback = block_sparse_attention(Q, K, V, own)
    want = pullback(Y)
    own.which[:] = 10**7
    for found, wanted in zip(pullback(Y), want, strict=True):
        np.testing.assert_array_equal(found, wanted)
    for array in Window(2)(200, 200, causal=True)[2:]:
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 0


def test_small_integers_that_wrap_are_refused(tier):
    """From 100 to −56 is a step of 100 in eight bits."""
    edges = [0, 40, 65, 100, 120]
    tiles = np.concatenate([np.arange(b - a) for a, b in itertools.pairwise(edges)])
    starts = np.array([[0, 100, -56, 40, 120]], np.int8)
    wraps = BlockPattern(256, 3840, starts, tiles, np.full(120, -1), np.zeros((1, 64, 64), bool))
    Q, K, V, _ = random_inputs(3, (1,), 256, 3840, 4, 3)
    with pytest.raises(ValueError, match="pattern: starts should rise"):
        block_sparse_attention(Q, K, V, wraps)


@pytest.mark.parametrize(("field", "value"), [(name, value) for name, values in BROKEN.items() for value in values])
def test_a_broken_pattern_is_refused(field, value, tier):
    Q, K, V, _ = random_inputs(3, (2,), 200, 200, 4, 3)
    with pytest.raises(ValueError, match="pattern: "):
        block_sparse_attention(Q, K, V, good._replace(**{field: value}))


def test_a_pattern_of_lists_is_refused(tier):
    Q, K, V, _ = random_inputs(3, (2,), 200, 200, 4, 3)
    with pytest.raises(TypeError, match=r"pattern\.tiles: should be an array, is list"):
        block_sparse_attention(Q, K, V, good._replace(tiles=list(good.tiles)))


def test_patterns_that_can_t_be_joined():
    with pytest.raises(ValueError, match="share n and m"):
        one_pattern([window(70, 3), window(71, 3)])
    two = one_pattern([window(70, 3), window(70, 5)])
    with pytest.raises(ValueError, match="one list each"):
        one_pattern([two, two])
    Q, K, V, _ = random_inputs(3, (2, 3), 70, 70, 4, 3)  # two samples of three heads
    with pytest.raises(ValueError, match="lists for 2 heads"):
        block_sparse_attention(Q, K, V, two)


# --------------------------------------------------------------------------------------------- attention


@given(
    st.integers(1, 70) | st.sampled_from([128, 190]),
    st.integers(1, 70) | st.sampled_from([128, 190]),
    st.sampled_from([1, 5, 16, 33, 64, 80]),
    st.sampled_from([0, 0.01, 0.3, 1]),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from(["numba", "micro"]),
    st.fixed_dictionaries({name: st.booleans() for name in ("heads", "bias", "causal", "mask", "groups", "gaps")}),
)
def test_it_is_dense_attention_under_the_mask(n, m, d, density, dtype, fast, has):
    if fast not in available():
        return
    rng = np.random.default_rng(n)
    seen = rng.random((4, n, m)) < density
    if has["gaps"]:  # whole quarters of tiles, which are not computed
        quarters = rng.random((4, -(-n // 32), -(-m // 32))) < 0.5
        seen &= quarters.repeat(32, 1).repeat(32, 2)[:, :n, :m]
    patterns = [matrix_pattern(one) for one in seen]
    pattern = one_pattern(patterns) if has["heads"] else patterns[0]
    np.testing.assert_array_equal(pattern.mask, seen if has["heads"] else seen[0])
    Q, K, V, dY = random_inputs(m, (2, 4), n, m, d, 7, dtype)
    if has["groups"]:
        K, V = K[:, ::2], V[:, ::2]
    bias = [rng.standard_normal((4, n + m - 1)).astype(dtype)] if has["bias"] else []
    mask = rng.random((2, 1, 1, m)) < 0.8 if has["mask"] else None
    names = ["dQ", "dK", "dV", "dbias"][: 3 + has["bias"]]
    with mt.backend("numpy"):
        exact = [X.astype("float64") for X in (Q, K, V, *bias)]
        both = pattern.mask if mask is None else mask & pattern.mask
        Y, pullback = dot_product_attention(*exact, mask=both, causal=has["causal"])
        want = {"Y": Y, "A": pullback.A} | dict(zip(names, pullback(dY.astype("float64")), strict=True))
    with mt.backend(fast):
        Y, pullback = block_sparse_attention(Q, K, V, pattern, *bias, mask=mask, causal=has["causal"])
        have = {"Y": Y, "A": pullback.A} | dict(zip(names, pullback(dY), strict=True))
    for name, w in want.items():
        assert have[name].shape == w.shape
        assert have[name].dtype == dtype
        assert np.abs(have[name] - w).max() <= TOLERANCE[dtype] * (1 + np.abs(w).max()), name


def test_a_query_that_sees_nothing_gives_zeros(tier):
    pattern = block_pattern(130, 130, lambda i, j: (i % 50 != 7) & (i < 64) & (j > 3))
    Q, K, V, dY = random_inputs(2, (2,), 130, 130, 4, 3)
    Y, pullback = block_sparse_attention(Q, K, V, pattern)
    dQ, dK, dV = pullback(dY)
    blind = ~pattern.mask.any(1)
    assert blind[[7, 57, 64, 129]].all()
    for a in (Y, dQ):
        assert not a[:, blind].any()
        assert a[:, ~blind].all()
    for a in (dK, dV):
        assert not a[:, :4].any()
        assert np.isfinite(a).all()


def test_a_pattern_of_another_length_is_refused(tier):
    Q, K, V, _ = random_inputs(3, (2,), 70, 70, 4, 3)
    with pytest.raises(ValueError, match="it is for 64 queries and 64 keys, not 70 and 70"):
        block_sparse_attention(Q, K, V, window(64, 3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: window(10, -1), "radius"),
        (lambda: window(10, 1, dilation=0), "dilation"),
        (lambda: strided(10, 0), "stride"),
        (lambda: block_pattern(70, 70, lambda i, j: i == j, np.ones((1, 2), bool)), r"blocks: shape \(1, 2\)"),
    ],
)
def test_wrong_patterns_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
