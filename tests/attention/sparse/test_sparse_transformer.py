"""The sparse transformer's two pairs of sets, pair by pair; what two steps reach; three ways to put them together."""

import math

import numpy as np
import pytest

import minitransformer as mt
from minitransformer.attention import Fixed, Strided, block_sparse_attention
from minitransformer.attention.sparse import sparse_transformer
from minitransformer.attention.sparse.columns import ColumnsPullback
from minitransformer.backend import available
from minitransformer.models import LanguageModel
from tests.kernels.promises import peaks_of


def sets(pattern, n):
    """The pairs of a causal pattern, near or far."""
    return pattern(n, n, causal=True).mask


def test_strided_pair_by_pair():
    """near: the last l keys, the query's own among them;  far: offsets that l divides."""
    n, stride = 40, 6
    near, far = (sets(Strided(stride, part), n) for part in ("near", "far"))
    for i in range(n):
        for j in range(n):
            assert near[i, j] == (i - stride < j <= i)
            assert far[i, j] == (j <= i and (i - j) % stride == 0)
    np.testing.assert_array_equal(sets(Strided(stride), n), near | far)


def test_fixed_pair_by_pair():
    """near: the block so far;  far: the last c positions of every block."""
    n, block, columns = 40, 6, 2
    near, far = (sets(Fixed(block, columns, part), n) for part in ("near", "far"))
    for i in range(n):
        for j in range(n):
            assert near[i, j] == (j <= i and math.floor(j / block) == math.floor(i / block))
            assert far[i, j] == (j <= i and j % block >= block - columns)
    np.testing.assert_array_equal(sets(Fixed(block, columns), n), near | far)


@pytest.mark.parametrize("n", [30, 36, 41])
def test_two_steps_reach_everything_before(n):
    """Strided: near, then far. Fixed: to the last of j's block, then near; within a block, near and stay."""
    everything = np.tril(np.ones((n, n), bool))
    near, far = sets(Strided(6, "near"), n), sets(Strided(6, "far"), n)
    np.testing.assert_array_equal(near @ far, everything)
    np.testing.assert_array_equal(far @ near, everything)
    near, far = sets(Fixed(6, 1, "near"), n), sets(Fixed(6, 1, "far"), n)
    np.testing.assert_array_equal((near | far) @ near, everything)
    for pattern in (Strided(6), Fixed(6)):
        distances = pattern.graph(n, causal=True).distances()
        assert distances[everything].max() == 2
        assert np.isinf(distances[~everything]).all()


def test_a_row_has_about_two_roots_of_n_pairs():
    n, root = 1024, 32
    for pattern in (Strided(root), Fixed(root)):
        rows = sets(pattern, n).sum(1)
        assert root - 1 <= rows[-1] <= 2 * root
        assert rows.max() <= 2 * root
    assert sets(Strided(root), n).sum() < 0.12 * n * (n + 1) / 2


def test_rows_of_an_image():
    """In an image of a width, strided sees the pixels just before and those right above: its columns."""
    rows, width = 5, 4
    grid = sets(Strided(width, "far"), rows * width).reshape(rows, width, rows, width)
    for column in range(width):
        np.testing.assert_array_equal(grid[:, column, :, column], np.tril(np.ones((rows, rows), bool)))
        others = np.arange(width) != column
        assert not grid[:, column][:, :, others].any()


def test_heads_that_take_turns():
    tiles = Strided(5, "heads", 3)(30, 30, causal=True)
    near, far = (sets(Strided(5, part), 30) for part in ("near", "far"))
    np.testing.assert_array_equal(tiles.mask, [near, far, near])
    model = LanguageModel(40, 24, 12, 1, 4, 10, attention="fixed:block=5,part=heads")
    assert [rule.part for rule in model.body.blocks[0].attention.core.pattern.of_heads] == ["near", "far"] * 2


def test_layers_that_take_turns():
    """A gradient reaches everything before after two layers, and what one set allows after one."""
    n, sizes = 20, {"vocabulary": 40, "context": 24, "width": 8, "heads": 2, "hidden": 8}
    tokens = np.random.default_rng(0).integers(0, 40, n)
    model = LanguageModel(**sizes, depth=2, attention=("strided:stride=4,part=near", "strided:stride=4,part=far"))
    params = model.init(np.random.default_rng(1), np.float64)
    X, _ = model._embed(params, tokens)
    for depth, sees in ((1, sets(Strided(4, "near"), n)), (2, np.tril(np.ones((n, n), bool)))):
        for i in (7, 19):
            Y, blocks = X, []
            for block, own in zip(model.body.blocks[:depth], params.stack.blocks, strict=False):
                Y, pullback = block(own, Y, causal=True)
                blocks.append(pullback)
            dX = np.zeros_like(Y)
            dX[i] = np.random.default_rng(2).standard_normal(8)
            for pullback in reversed(blocks):
                _, dX = pullback(dX)
            np.testing.assert_array_equal(np.abs(dX).max(1) > 0, sees[i])


def test_what_can_not_be():
    with pytest.raises(ValueError, match="stride: 0"):
        Strided(0)
    with pytest.raises(ValueError, match="columns: 7 should be"):
        Fixed(6, 7)
    assert Fixed(6, 6)(20, 20, causal=False).mask.all()  # a block that is its own summary
    with pytest.raises(ValueError, match="part: no 'middle'"):
        Fixed(6, 1, "middle")
    with pytest.raises(ValueError, match="two heads at least, got 1"):
        Strided(6, "heads")


# ------------------------------------------------------------------------------------------------- in columns


@pytest.fixture(params=[tier for tier in available() if tier != "numpy"])
def in_columns(request, monkeypatch):
    """Columns for short texts, too."""
    monkeypatch.setattr(sparse_transformer, "PAYS", 0)
    with mt.backend(request.param):
        yield


def heads(n, groups=4, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((2, h, n, w)) for h, w in ((4, 5), (groups, 5), (groups, 3), (4, 3))]


@pytest.mark.parametrize("part", ["both", "far"])
@pytest.mark.parametrize(("n", "stride"), [(40, 6), (36, 6), (41, 7), (300, 130), (8, 7), (14, 7), (150, 1), (400, 4)])
@pytest.mark.parametrize("groups", [4, 2])
def test_columns_are_the_pattern(in_columns, n, stride, part, groups):
    """A last row that is full or not, one row or many tiles of them; heads that share keys: values, gradients and A."""
    pattern = Strided(stride, part)
    *arrays, dY = heads(n, groups)
    Y, pullback = pattern.attend(*arrays, causal=True, mask=None)
    assert isinstance(pullback, ColumnsPullback)
    with mt.backend("numpy"):
        want, definition = pattern.attend(*arrays, causal=True, mask=None)
        gradients = definition(dY)
    np.testing.assert_allclose(Y, want, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(pullback.A, definition.A, rtol=1e-10, atol=1e-13)
    for found, known in zip(pullback(dY), gradients, strict=True):
        np.testing.assert_allclose(found, known, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("part", ["both", "far"])
def test_a_nan_goes_no_further_than_the_pattern_lets_it(in_columns, part):
    """In a value, or in a gradient: the tiles take over."""
    Q, K, V, dY = heads(40)
    seen = sets(Strided(6, part), 40)
    _, pullback = Strided(6, part).attend(Q, K, V, causal=True, mask=None)
    dY[:, :, 20] = np.nan
    for found, known in zip(pullback(dY), pullback.dense()(dY), strict=True):
        np.testing.assert_array_equal(found, known)
    V[:, :, 20] = np.nan
    Y, _ = Strided(6, part).attend(Q, K, V, causal=True, mask=None)
    np.testing.assert_array_equal(np.isnan(Y).any(-1), np.broadcast_to(seen[:, 20], (2, 4, 40)))


def test_masks_and_what_looks_ahead_go_by_tiles(in_columns):
    Q, K, V, _ = heads(40)
    for options in ({"causal": False, "mask": None}, {"causal": True, "mask": np.arange(40) != 3}):
        _, pullback = Strided(6).attend(Q, K, V, **options)
        assert not isinstance(pullback, ColumnsPullback)
    _, pullback = Strided(6).attend(Q[:, :, 9:], K, V, causal=True, mask=None)
    assert not isinstance(pullback, ColumnsPullback)
    tiles = block_sparse_attention(Q, K, V, Strided(6)(40, 40, causal=True), causal=True, cap=0.5)[0]
    np.testing.assert_array_equal(Strided(6).attend(Q, K, V, causal=True, mask=None, cap=0.5)[0], tiles)


@pytest.mark.skipif("numba" not in available(), reason="columns are for the loops")
def test_memory_of_columns_grows_with_n():
    def inputs(n):
        return (
            *np.random.default_rng(0).standard_normal((3, 1, 2, n, 8)).astype("float32"),
            np.ones((1, 2, n, 8), "float32"),
        )

    with mt.backend(available()[-1]):
        less, more = peaks_of(lambda Q, K, V: Strided(45).attend(Q, K, V, causal=True, mask=None), inputs, (2048, 4096))
    assert more < 2.3 * less
