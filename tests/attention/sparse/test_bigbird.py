"""BigBird: its blocks one by one, the blocked form against the pattern, and what others compute."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitransformer as mt
from minitransformer import check_pullback, random_like
from minitransformer.attention import (
    BigBird,
    MultiHeadAttention,
    SoftmaxAttention,
    bigbird_attention,
    block_sparse_attention,
    dot_product_attention,
    padding_mask,
)
from minitransformer.backend import available
from minitransformer.models import LanguageModel, SequenceModel


def arrays(n, heads=2, d=4, batch=(2,), seed=0):
    return np.random.default_rng(seed).standard_normal((3, *batch, heads, n, d))


def blocks_of(mask, b):
    """Which blocks of a mask see each other; every block is all or nothing."""
    N = -(-len(mask) // b)
    seen = np.array([[mask[t * b : t * b + b, k * b : k * b + b] for k in range(N)] for t in range(N)], object)
    assert all(x.all() or not x.any() for row in seen for x in row)
    return np.array([[bool(x.any()) for x in row] for row in seen])


# -------------------------------------------------------------------------------------------------- the pattern


@pytest.mark.parametrize("b", [3, 16, 64, 100])
@pytest.mark.parametrize("more", [0, 1])
def test_block_by_block(b, more):
    """Rows 0 and −1 see all; row 1 sees [0, 1, 2, last, drawn], row −2 [0, −3, −2, −1, drawn], those between five and drawn."""
    n = 9 * b - more * (b // 2)
    pattern = BigBird(random=2, block=b, heads=2)
    for own in pattern(n, n, causal=False).mask:
        seen = blocks_of(own, b)
        assert seen[[0, 8]].all()
        assert seen[1, [0, 1, 2, 8]].all()
        assert seen[7, [0, 6, 7, 8]].all()
        assert seen[[1, 7]].sum(1).tolist() == [4 + 2, 4 + 2]
        for t in range(2, 7):
            assert seen[t, [0, t - 1, t, t + 1, 8]].all()
            assert seen[t].sum() == 5 + 2


@pytest.mark.parametrize("b", [3, 16, 64, 100])
@pytest.mark.parametrize("more", [0, 1])
def test_causal_block_by_block(b, more):
    """Its own block as far as the query, the two before it, the first one, and two of those between, if there are so many."""
    n = 9 * b - more * (b // 2)
    one, other = BigBird(window=2, random=2, block=b, heads=2)(n, n, causal=True).mask
    assert not np.array_equal(one, other)
    for own in (one, other):
        of_block = {}
        for i in range(n):
            t, seen = i // b, set(np.flatnonzero(own[i]) // b)
            fixed = {0, *range(max(t - 2, 0), t + 1)}
            between = set(range(t)) - fixed
            assert fixed <= seen
            assert seen - fixed <= between
            assert len(seen - fixed) == min(2, len(between))
            assert of_block.setdefault(t, seen) == seen, "all queries of a block look at the same ones"
            np.testing.assert_array_equal(
                np.flatnonzero(own[i]), np.flatnonzero(np.isin(np.arange(i + 1) // b, [*seen]))
            )


@pytest.mark.parametrize("b", [3, 64])
def test_several_global_blocks(b):
    """Two at each end see all and are seen by all; if causal, the first two are seen. Without neighbours, and one is drawn."""
    pattern, N = BigBird(window=0, global_tokens=2, random=1, block=b), 9
    seen = blocks_of(pattern(N * b, N * b, causal=False).mask, b)
    ends = np.isin(np.arange(N), [0, 1, 7, 8])
    assert seen[ends].all()
    assert seen[:, ends].all()
    causal = pattern(N * b, N * b, causal=True).mask
    for t in range(N):
        assert seen[t].sum() == (N if ends[t] else 4 + 1 + 1)
        assert seen[t, t]
        last = set(np.flatnonzero(causal[t * b + b - 1]) // b)
        assert {*range(min(t + 1, 2)), t} <= last
        assert len(last) == min(t + 1, 2 + 1 + 1)


def test_heads_draw_differently_and_once():
    pattern = BigBird(random=2, block=4, heads=3)
    masks = pattern(80, 80, causal=False).mask
    assert masks.shape == (3, 80, 80)
    assert not np.array_equal(masks[0], masks[1])
    assert not np.array_equal(masks[1], masks[2])
    np.testing.assert_array_equal(masks, BigBird(random=2, block=4, heads=3)(80, 80, causal=False).mask)
    np.testing.assert_array_equal(masks[0], BigBird(random=2, block=4)(80, 80, causal=False).mask)
    other = BigBird(random=2, block=4, seed=1)(80, 80, causal=False).mask
    assert not np.array_equal(masks[0], other)
    model = LanguageModel(40, 96, 12, 1, 4, 10, attention="bigbird:block=4")
    assert len(model.body.blocks[0].attention.core.pattern.of_heads) == 4


def test_what_is_drawn_is_what_the_pattern_has():
    """And nobody draws what it sees anyway, so the union is no smaller than its parts."""
    pattern, N = BigBird(random=3, block=2, heads=2), 12
    drawn = pattern.drawn(N)
    assert drawn.shape == (2, N - 2, 3)
    fixed = blocks_of(BigBird(random=0, block=2)(24, 24, causal=False).mask, 2)
    for head in range(2):
        own = blocks_of(pattern(24, 24, causal=False).mask[head], 2)
        for row in range(1, N - 1):
            assert set(np.flatnonzero(own[row] & ~fixed[row])) == set(drawn[head, row - 1])
            assert not fixed[row, drawn[head, row - 1]].any()
    with pytest.raises(ValueError, match="7 blocks leave 2 to draw 3 from"):
        pattern.drawn(7)


def test_a_window_over_all_blocks_is_dense(tier):
    Q, K, V = arrays(70)
    Y, _ = SoftmaxAttention(BigBird(window=9, random=0, block=8))(mt.pullback.NoParams(), Q, K, V)
    assert np.allclose(Y, dot_product_attention(Q, K, V)[0], atol=1e-13)


# ------------------------------------------------------------------------------------------------ the blocked form


@given(
    st.integers(1, 9),
    st.integers(0, 3),
    st.integers(5, 9),
    st.integers(0, 8),
    st.booleans(),
    st.sampled_from(["numpy", "micro"]),
)
def test_rolled_and_gathered_keys_are_the_pattern(b, r, N, short, padded, tier):
    """Values and gradients, also where the last block is not full."""
    if tier not in available():
        return
    N = max(N, 5 + r)
    n = N * b - min(short, b - 1)
    pattern = BigBird(random=r, block=b, heads=3, seed=N)
    Q, K, V = arrays(n, heads=3)
    mask = padding_mask(np.array([n, n - n // 5]), n)[:, None] if padded else None
    dY = np.random.default_rng(1).standard_normal(Q.shape)
    with mt.backend(tier):
        Y, pullback = bigbird_attention(Q, K, V, pattern.drawn(N), block=b, mask=mask)
        Z, other = block_sparse_attention(Q, K, V, pattern(n, n, causal=False), mask=mask)
        assert np.allclose(Y, Z, atol=1e-13)
        for mine, theirs in zip(pullback(dY), other(dY), strict=True):
            assert np.allclose(mine, theirs, atol=1e-12)


@pytest.mark.parametrize(("n", "b"), [(12, 2), (17, 3)])
def test_gradient(n, b):
    pattern = BigBird(random=1, block=b, heads=2)
    mask = padding_mask(np.array([n, n - 4]), n)[:, None]
    with mt.backend("numpy"):
        check_pullback(partial(bigbird_attention, drawn=pattern.drawn(6), block=b, mask=mask), *arrays(n), entries=12)


def test_a_block_that_would_count_twice_is_refused():
    """Concatenated keys are no set: the row would give it twice the weight that its mask does."""
    Q, K, V = arrays(16)
    drawn = BigBird(random=1, block=2, heads=2).drawn(8)
    for row, block in ((2, 4), (0, 2), (3, 0), (3, 7), (5, 5), (5, 8), (1, -3)):
        bad = drawn.copy()
        bad[1, row, 0] = block
        with pytest.raises(ValueError, match="count twice"):
            bigbird_attention(Q, K, V, bad, block=2)
    with pytest.raises(ValueError, match="count twice"):
        bigbird_attention(Q, K, V, np.repeat(drawn, 2, -1), block=2)
    for rows in (5, 7):
        with pytest.raises(ValueError, match=f"for {rows} rows, but 6 stand between"):
            bigbird_attention(Q, K, V, np.resize(drawn, (2, rows, 1)), block=2)
    with pytest.raises(ValueError, match="at least 5 blocks"):
        bigbird_attention(Q, K, V, drawn, block=4)


@pytest.mark.parametrize("case", range(3))
def test_it_computes_what_transformers_does(case, tier):
    """Values, and gradients of input and projections, of the blocked form and of the pattern; see data/README.md."""
    with np.load(Path(__file__).with_name("data") / "bigbird.npz") as file:
        theirs = {name.partition(".")[2]: file[name] for name in file if name.startswith(f"{case}.")}
    n, block, random, padded = map(int, theirs["n"])
    pattern = BigBird(random=random, block=block, heads=2, seed=case)
    np.testing.assert_array_equal(pattern.drawn(n // block), theirs["drawn"])
    layer = MultiHeadAttention(8, 2, core=SoftmaxAttention(pattern))
    params = layer.init(np.random.default_rng(0), np.float64)._replace(
        W_o=np.eye(8), **{f"W_{x[0]}": theirs[f"{x}.weight"].T for x in ("query", "key", "value")},
        **{f"b_{x[0]}": theirs[f"{x}.bias"] for x in ("query", "key", "value")},
    )  # fmt: skip
    there = padding_mask(np.array([n, n - padded]), n)
    Y, pullback = layer(params, theirs["X"], mask=there[:, None])
    assert np.allclose(Y * there.mT, theirs["Y"], atol=1e-13)
    dparams, dX = pullback(theirs["dY"])
    assert np.allclose(dX, theirs["dX"], atol=1e-12)
    for x in ("query", "key", "value"):
        assert np.allclose(getattr(dparams, f"W_{x[0]}"), theirs[f"d_{x}.weight"].T, atol=1e-12)
        assert np.allclose(getattr(dparams, f"b_{x[0]}"), theirs[f"d_{x}.bias"], atol=1e-12)


# ---------------------------------------------------------------------------------------------- rows in front


def test_extra_rows_see_and_are_seen_by_all():
    e, b, n = 3, 4, 43
    pattern = BigBird(global_tokens=0, random=1, block=b, extra=e)
    mask = pattern(n, n, causal=False).mask
    assert mask[:e].all()
    assert mask[:, :e].all()
    np.testing.assert_array_equal(
        mask[e:, e:], BigBird(global_tokens=0, random=1, block=b)(n - e, n - e, causal=False).mask
    )


def test_in_a_model_with_rows_in_front(rng):
    model = SequenceModel(40, 96, 12, 2, 2, 10, "bigbird:global_tokens=0,random=1,block=3,extra=2", outputs="none")
    params = random_like(model.init(rng, np.float64), rng)
    assert params.stack.prefix.shape == (2, 12)
    tokens = rng.integers(0, 40, (1, 40))
    Y, _ = model(params, tokens)
    far = tokens.copy()
    far[0, 39] = (far[0, 39] + 1) % 40
    assert (Y[0, 0] != model(params, far)[0][0, 0]).all(), "the rows in front are one block away from everything"
    with pytest.raises(ValueError, match="attention: BigBird can't be causal"):
        LanguageModel(attention="bigbird:extra=2")


@pytest.mark.parametrize("wrong", [{"window": -1}, {"random": -1}, {"block": 0}, {"extra": -2}, {"heads": 0}])
def test_what_can_not_be(wrong):
    with pytest.raises(ValueError, match=rf"^{next(iter(wrong))}: .* should be at least [01]"):
        BigBird(**wrong)
