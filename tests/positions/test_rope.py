"""Rotary positions: what turning keeps, what attention sees of it, and the two layouts."""

import math
from functools import partial

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback
from minitransformer.attention import MultiHeadAttention, attend, dot_product_attention
from minitransformer.models import LanguageModel
from minitransformer.positions.absolute import shift_matrix
from minitransformer.positions.encoding import NoParams
from minitransformer.positions.rope import RoPE, change_layout, rotate
from minitransformer.positions.rope_scaling import NTK, DynamicNTK, PositionInterpolation, YaRN, rope_frequencies

NONE = NoParams()
LAYOUTS = ("interleaved", "halves")
ENCODINGS = (
    RoPE(6),
    RoPE(6, layout="halves"),
    RoPE(6, base=50.0, part=4),
    RoPE(6, layout="halves", part=2),
    RoPE(6, base=50.0, part=4, pairs_of="head"),
    RoPE(6, layout="halves", part=2, pairs_of="head"),
    RoPE(6, layout="halves", part=4, scaling=YaRN(4.0, 100), pairs_of="head"),
    RoPE(6, scaling=PositionInterpolation(2.0)),
    RoPE(6, scaling=NTK(3.0), part=4, layout="halves"),
    RoPE(6, scaling=DynamicNTK(2.0, 3)),
    RoPE(6, scaling=YaRN(4.0, 100)),
)


def inputs(rng, n=5, m=7, groups=3):
    """Two samples, three heads; the queries are the last n of m positions."""
    return [rng.standard_normal(s) for s in ((2, 3, n, 6), (2, groups, m, 6), (2, groups, m, 4))]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pairs", [1, 2, 3])
def test_rotate_channel_by_channel(layout, pairs, rng):
    """Pair f of row i: (x cos φ − y sin φ, x sin φ + y cos φ). The other channels stay."""
    X, angles = rng.standard_normal((2, 4, 7)), rng.standard_normal((4, pairs))
    Y, _ = rotate(X, angles=angles, layout=layout)
    expected = X.copy()
    for b, i, f in np.ndindex(2, 4, pairs):
        first, second = (2 * f, 2 * f + 1) if layout == "interleaved" else (f, f + pairs)
        x, y, c, s = X[b, i, first], X[b, i, second], math.cos(angles[i, f]), math.sin(angles[i, f])
        expected[b, i, first], expected[b, i, second] = x * c - y * s, x * s + y * c
    np.testing.assert_allclose(Y, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_turning_keeps_lengths_and_turning_back_undoes_it(layout, rng):
    X, angles = rng.standard_normal((2, 4, 6)), rng.standard_normal((4, 3))
    Y, pullback = rotate(X, angles=angles, layout=layout)
    np.testing.assert_allclose((Y**2).sum(-1), (X**2).sum(-1), rtol=0, atol=1e-13)
    np.testing.assert_allclose(rotate(Y, angles=-angles, layout=layout)[0], X, rtol=0, atol=1e-14)
    np.testing.assert_allclose(pullback(Y), X, rtol=0, atol=1e-14)  # the gradient of a rotation is the rotation back


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_product_depends_on_the_difference_of_positions(layout, rng):
    """⟨R_i q, R_j k⟩ = ⟨q, R_{j−i} k⟩."""
    q, k = rng.standard_normal((2, 6))

    def R(i, x):
        return rotate(x[None], angles=i * rope_frequencies(6)[None], layout=layout)[0][0]

    for i, j in ((3, 8), (8, 3), (0, 5), (100, 1000)):
        assert math.isclose(R(i, q) @ R(j, k), q @ R(j - i, k), abs_tol=1e-12)
        assert math.isclose(R(i, q) @ R(j, k), R(i + 7, q) @ R(j + 7, k), abs_tol=1e-12)


def test_it_is_the_matrix_that_moves_a_sinusoid(rng):
    """M_o of Borealis II (4) turns a pair (sin, cos); R_i x = M_{−i} x for the content x."""
    X = rng.standard_normal((9, 6))
    Y, _ = rotate(X, angles=RoPE(6).angles(9)[0])
    for i in range(9):
        np.testing.assert_allclose(Y[i], shift_matrix(6, -i) @ X[i], rtol=0, atol=1e-14)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rotate_gradient(layout, rng):
    X, angles = rng.standard_normal((2, 4, 7)), rng.standard_normal((4, 3))
    check_pullback(partial(rotate, angles=angles, layout=layout, magnitude=1.3), X)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("causal", [True, False])
def test_attention_row_by_row(layout, causal, rng):
    """Turned queries and keys in ordinary attention; values as they are."""
    Q, K, V = inputs(rng)
    e = RoPE(6, layout=layout)
    angles, _ = e.angles(7)
    Y, pullback = attend(e, NONE, Q, K, V, causal=causal)
    q, k = rotate(Q, angles=angles[2:], layout=layout)[0], rotate(K, angles=angles, layout=layout)[0]
    expected, dense = dot_product_attention(q, k, V, causal=causal)
    np.testing.assert_allclose(Y, expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(pullback.A, dense.A, rtol=0, atol=1e-14)
    np.testing.assert_allclose(pullback.A @ V, Y, rtol=0, atol=1e-13)


@pytest.mark.parametrize("e", [e for e in ENCODINGS if not isinstance(e.scaling, DynamicNTK)])  # it sees the length
def test_the_attention_matrix_does_not_change_when_all_is_moved(e, rng):
    """With four hidden tokens in front, everyone stands four positions later and sees the same."""
    Q, K, V = inputs(rng)
    here, _ = attend(e, NONE, Q, K, V)
    later = [np.concatenate([rng.standard_normal((2, 3, 4, M.shape[-1])), M], -2) for M in (K, V)]
    mask = np.arange(11) >= 4
    moved, _ = attend(e, NONE, Q, *later, mask=mask)
    np.testing.assert_allclose(moved, here, rtol=0, atol=1e-13)


@pytest.mark.parametrize("e", [e for e in ENCODINGS if e.fixed])
@pytest.mark.parametrize("by", [0, 1, 2, 5])
def test_rows_that_were_turned_can_be_turned_back_to_earlier_positions(e, by, rng):
    K = rng.standard_normal((2, 3, 4, 6))
    there, _ = e.turn(K, first=by, length=by + 4)
    here, _ = e.turn(K, first=0, length=4)
    np.testing.assert_allclose(e.earlier(there, by), here, atol=1e-12)


def test_angles_that_change_with_the_length_leave_nothing_to_keep(rng):
    """With another token, all keys before it would have to be turned again."""
    layer = MultiHeadAttention(12, 2, rotate=RoPE(6, scaling=DynamicNTK(2.0, 3)))
    assert not layer.decodes
    with pytest.raises(TypeError, match="RoPE keeps no state: the angles change with the length"):
        layer.step(layer.init(rng, np.float64), rng.standard_normal((2, 1, 12)))


@pytest.mark.parametrize("e", ENCODINGS)
def test_rows_turned_apart_are_those_turned_together(e, rng):
    """Bit for bit, wherever they start, and as `rotate` turns them by the angles of the whole text."""
    X = rng.standard_normal((2, 3, 100, 6))
    angles, magnitude = e.angles(100)
    whole, _ = rotate(X, angles=angles, layout=e.layout, magnitude=magnitude)
    np.testing.assert_array_equal(e.turn(X, length=100)[0], whole)
    for first in (0, 1, 63, 99):
        np.testing.assert_array_equal(e.turn(X[..., first:, :], first=first, length=100)[0], whole[..., first:, :])


@pytest.mark.parametrize("pairs_of", ["part", "head"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("part", [0, 2, 4, 6, 8, None])
def test_a_part_is_turned_channel_by_channel(pairs_of, layout, part, rng, tier):
    """Which two channels of 8 are pair f, and by which angle: in a head as wide as the part, or in the whole head."""
    d, X = 8, rng.standard_normal((2, 5, 8))
    turned = d if part is None else part
    expected = X.copy()
    for b, i, f in np.ndindex(2, 5, turned // 2):
        width = turned if pairs_of == "part" else d
        first, second = (2 * f, 2 * f + 1) if layout == "interleaved" else (f, width // 2 + f)
        phi = (3 + i) * 50.0 ** (-2 * f / width)
        x, y = X[b, i, first], X[b, i, second]
        expected[b, i, first] = x * math.cos(phi) - y * math.sin(phi)
        expected[b, i, second] = x * math.sin(phi) + y * math.cos(phi)
    Y, pullback = RoPE(d, 50.0, layout, part, pairs_of=pairs_of).turn(X, first=3, length=9)
    np.testing.assert_allclose(Y, expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(pullback(Y), X, rtol=0, atol=1e-14)  # back


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_two_kinds_of_parts(layout, rng):
    """Alike if all channels are turned, or one pair of neighbours, which turns by 1 at any width; else two models."""
    Q, K, V = inputs(rng)

    def both(part):
        return [attend(RoPE(6, 50.0, layout, part, pairs_of=of), NONE, Q, K, V)[0] for of in ("part", "head")]

    whole, _ = attend(RoPE(6, 50.0, layout), NONE, Q, K, V)
    for Y in both(6):
        np.testing.assert_array_equal(Y, whole)
    of_part, of_head = both(4)
    assert np.abs(of_part - of_head).max() > 0.1
    assert np.abs(of_head - whole).max() > 0.1
    of_part, of_head = both(2)
    assert np.allclose(of_part, of_head, rtol=0, atol=1e-14) == (layout == "interleaved")
    slow = slice(4, None) if layout == "interleaved" else slice(2, None, 3)
    Q[..., slow] = 0  # the pair that stands still says nothing, and the others turn as in the whole head
    whole, _ = attend(RoPE(6, 50.0, layout), NONE, Q, K, V)
    np.testing.assert_allclose(both(4)[1], whole, rtol=0, atol=1e-14)


@pytest.mark.parametrize("pairs_of", ["part", "head"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_channels_that_are_not_turned_are_dense_attention(pairs_of, layout, rng):
    Q, K, V = inputs(rng)
    Q[..., [0, 3] if (layout, pairs_of) == ("halves", "head") else [0, 1]] = 0  # nothing in the turned channels
    Y, _ = attend(RoPE(6, layout=layout, part=2, pairs_of=pairs_of), NONE, Q, K, V, causal=True)
    np.testing.assert_allclose(Y, dot_product_attention(Q, K, V, causal=True)[0], rtol=0, atol=1e-14)


@pytest.mark.parametrize("pairs_of", ["part", "head"])
def test_no_part_is_no_positions(pairs_of, rng, tier):
    """Bit for bit, values and gradients, in a model that reads and in one that writes."""
    Q, K, V = inputs(rng)
    Y, pullback = attend(RoPE(6, part=0, pairs_of=pairs_of), NONE, Q, K, V, causal=True)
    expected, dense = dot_product_attention(Q, K, V, causal=True)
    for found, wanted in zip((Y, *pullback(Y)[1:]), (expected, *dense(Y)), strict=True):
        np.testing.assert_array_equal(found, wanted)
    one, other = (
        LanguageModel(40, 20, 12, 2, 2, 10, positions=name) for name in (f"rope:part=0,pairs_of={pairs_of}", "none")
    )
    params, tokens = one.init(rng), rng.integers(0, 40, 9)
    np.testing.assert_array_equal(one(params, tokens)[0], other(params, tokens)[0])
    np.testing.assert_allclose(one.step(params, tokens)[0], other(params, tokens)[0], rtol=0, atol=1e-4)


def test_a_scaling_changes_the_pairs_that_turn():
    """It is given the width of which the pairs are, and its frequencies for the slow pairs are not used."""
    seen = []

    def thirds(d, base, length):
        seen.append(d)
        return rope_frequencies(d, base) / 3, 1.5

    for pairs_of, width in (("part", 4), ("head", 8)):
        angles, magnitude = RoPE(8, part=4, scaling=thirds, pairs_of=pairs_of).angles(4)
        assert set(seen) == {width}
        seen.clear()
        expected = [[i * 10000 ** (-2 * f / width) / 3 for f in range(2)] for i in range(4)]
        np.testing.assert_allclose(angles[:, :2], expected, rtol=1e-14)
        assert not angles[:, 2:].any()
        assert magnitude == 1.5


@pytest.mark.parametrize("e", [e for e in ENCODINGS if e.fixed and e.angles(1)[1] == 1])
def test_where_turned_keys_are_the_values_the_output_is_turned_back(e, rng):
    """R_{−i} Σ_j A_ij R_j c_j = Σ_j A_ij R_{j−i} c_j: what comes out depends on offsets alone, as the scores do."""
    Q, C, _ = inputs(rng, n=7)
    (q, back), (c, _) = (e.turn(X, first=0, length=7) for X in (Q, C))
    turned, pullback = dot_product_attention(q, c, c, causal=True)
    Y = back(turned)  # the gradient of a turn is the turn back
    expected = np.zeros_like(Y)
    for i, j in np.ndindex(7, 7):
        if j <= i:
            angles = e.angles(7)[0]
            there, _ = rotate(C[:, :, j : j + 1], angles=angles[j : j + 1] - angles[i : i + 1], layout=e.layout)
            expected[:, :, i] += pullback.A[:, :, i, j, None] * there[:, :, 0]
    np.testing.assert_allclose(Y, expected, rtol=0, atol=1e-13)


def test_position_zero_is_not_turned(rng):
    Q, K, V = inputs(rng, n=1, m=1)
    np.testing.assert_array_equal(attend(RoPE(6), NONE, Q, K, V)[0], V)
    np.testing.assert_array_equal(rotate(Q, angles=RoPE(6).angles(1)[0])[0], Q)


@pytest.mark.parametrize(("part", "pairs_of"), [(None, "part"), (4, "part"), (2, "part"), (4, "head"), (2, "head")])
def test_both_layouts_are_the_same_model(part, pairs_of, rng):
    """… once the columns of W_q and W_k are permuted. And without that, they are not."""
    rotations = [RoPE(6, layout=layout, part=part, pairs_of=pairs_of) for layout in LAYOUTS]
    one, other = (MultiHeadAttention(12, 2, rotate=rotation) for rotation in rotations)
    if pairs_of == "head":
        part = None  # a pair that stands still is a pair, too
    params = mt.random_like(one.init(rng, np.float64), rng)
    X = rng.standard_normal((2, 7, 12))
    changed = params._replace(
        **{
            name: change_layout(getattr(params, name), 6, to="halves", part=part)
            for name in ("W_q", "W_k", "b_q", "b_k")
        }
    )
    Y, pullback = one(params, X, causal=True)
    same, same_pullback = other(changed, X, causal=True)
    np.testing.assert_allclose(same, Y, rtol=0, atol=1e-13)
    assert part == 2 or np.abs(other(params, X, causal=True)[0] - Y).max() > 0.1  # of one pair both have one form

    dY = rng.standard_normal(Y.shape)
    (dparams, dX), (dchanged, dX_same) = pullback(dY), same_pullback(dY)
    np.testing.assert_allclose(dX_same, dX, rtol=0, atol=1e-12)
    for name in ("W_q", "W_k"):  # and they are trained alike
        back = change_layout(getattr(dchanged, name), 6, to="interleaved", part=part)
        np.testing.assert_allclose(back, getattr(dparams, name), rtol=0, atol=1e-12)


def test_change_layout_there_and_back(rng):
    W = rng.standard_normal((5, 16))
    halves = change_layout(W, 8, to="halves", part=6)
    np.testing.assert_array_equal(halves[:, :8], W[:, [0, 2, 4, 1, 3, 5, 6, 7]])
    np.testing.assert_array_equal(halves[:, 8:], W[:, 8 + np.array([0, 2, 4, 1, 3, 5, 6, 7])])
    np.testing.assert_array_equal(change_layout(halves, 8, to="interleaved", part=6), W)


def test_yarn_makes_scores_larger_by_the_square_of_its_magnitude(rng):
    Q, K, V = inputs(rng)
    scaling = YaRN(4.0, 7)
    angles, magnitude = RoPE(6, scaling=scaling).angles(7)
    q, k = rotate(Q, angles=angles[2:])[0], rotate(K, angles=angles)[0]
    expected, _ = dot_product_attention(q, k, V, scale=magnitude**2 / math.sqrt(6))
    np.testing.assert_allclose(attend(RoPE(6, scaling=scaling), NONE, Q, K, V)[0], expected, rtol=0, atol=1e-13)
    assert magnitude == 0.1 * math.log(4) + 1


@pytest.mark.parametrize(("part", "pairs_of", "all_scores"), [(4, "part", False), (4, "head", True), (6, "part", True)])
def test_a_magnitude_is_a_factor_of_all_scores_if_every_channel_is_in_a_pair(part, pairs_of, all_scores, rng):
    """A pair that stands still is multiplied as the others are; channels in no pair stay as they are."""
    Q, K, V = inputs(rng)
    rope = RoPE(6, part=part, pairs_of=pairs_of, scaling=YaRN(4.0, 7))
    angles, magnitude = rope.angles(7)
    q, k = rotate(Q, angles=angles[2:])[0], rotate(K, angles=angles)[0]
    expected, _ = dot_product_attention(q, k, V, scale=magnitude**2 / math.sqrt(6))
    assert np.allclose(attend(rope, NONE, Q, K, V)[0], expected, rtol=0, atol=1e-13) == all_scores


def test_what_it_says_about_itself(rng):
    assert RoPE(6).init(rng) == NONE
    assert RoPE.acts_on == ("queries and keys",)
    assert RoPE.shared == ()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RoPE(5), "d: 5 of 5 channels can't be turned in pairs"),
        (lambda: RoPE(6, part=3), "part: 3 of 6 channels can't be turned in pairs"),
        (lambda: RoPE(6, part=8), "part: 8 of 6 channels can't be turned in pairs"),
        (lambda: RoPE(7, part=4, pairs_of="head"), "d: 7 channels are no whole pairs, as part=4 with pairs_of='head'"),
        (lambda: RoPE(7, part=0), "d: 7 channels are no whole pairs, as part=0 with pairs_of='part' needs them"),
        (lambda: RoPE(1), "d: 1 of 1 channels can't be turned in pairs; a head should be 2 wide at least"),
        (lambda: RoPE(6, base=1.0), "base: 1.0 should be more than 1"),
        (lambda: RoPE(6, part=2, scaling=NTK(2.0)), "d: 2 should be at least 4"),
        (lambda: change_layout(np.ones((3, 6)), 6, to="thirds"), "to: no 'thirds'"),
        (lambda: rotate(np.ones((2, 3)), angles=np.ones((2, 2))), "angles: 2 pairs do not fit into 3 channels"),
        (
            lambda: attend(RoPE(6), NONE, np.ones((1, 3, 6)), np.ones((1, 2, 6)), np.ones((1, 2, 6))),
            "Q: 3 queries for 2 keys",
        ),
    ],
)
def test_what_it_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        (NTK, "scaling: .*NTK.* should give .3 frequencies, a magnitude. .* but says: "),
        (lambda d, base, length: base.factor, "but says: 'float' object has no attribute 'factor'"),
        (lambda d, base, length: 3, "for .d, base, length., as NTK.2.0. does, not 3$"),
        (lambda d, base, length: (np.ones(2), 1.0), "not .array"),
        (lambda d, base, length: (np.ones(3), "1"), "not .array"),
        (lambda d, base, length: (np.ones(3, "S1"), 1.0), "not .array"),
    ],
)
def test_what_is_no_scaling_is_refused_in_words(scaling, message):
    with pytest.raises(TypeError, match=f"^scaling: .*{message.removeprefix('scaling: ')}"):
        RoPE(6, scaling=scaling)


def test_heads_of_another_width_are_refused(tier):
    """Before a loop writes as many channels as the angles are for."""
    X = np.ones((2, 70, 8), np.float32)
    for d in (4, 64):
        with pytest.raises(ValueError, match=f"X: float32 .* should be numbers of the shape .*{d}"):
            RoPE(d).turn(X, length=70)
        with pytest.raises(ValueError, match="X: float32"):
            RoPE(d).earlier(X, 3)
        with pytest.raises(ValueError, match=f"rotate: RoPE turns heads of width {d}, not 2"):
            MultiHeadAttention(8, 4, rotate=RoPE(d))
    with pytest.raises(ValueError, match="X: int64"):
        RoPE(8).turn(X.astype(int), length=70)
    _, pullback = RoPE(8).turn(X, length=70)
    with pytest.raises(ValueError, match="does not fit angles of 70 rows and 4 pairs"):
        type(pullback)(*pullback)(X[..., :6])  # without the check
    for W, d, part in ((np.ones((3, 8)), 3, None), (np.ones((3, 8)), 4, 3), (np.ones((3, 8)), 4, 12)):
        with pytest.raises(ValueError, match="channels are turned in pairs"):
            change_layout(W, d, to="halves", part=part)


def test_wrong_shapes_and_types_are_refused(rng):
    Q, K, V = inputs(rng)
    with pytest.raises(ValueError, match=r"X: float64 \(2, 3, 5, 5\) should be numbers of the shape"):
        attend(RoPE(6), NONE, Q[..., :5], K[..., :5], V)
    with pytest.raises(TypeError, match=r"(?s)parameter 'angles'"):
        rotate(Q[0, 0], angles=np.ones((4, 3)))
    with pytest.raises(AttributeError):
        RoPE(6).d = 8


def test_rows_are_within_the_text():
    with pytest.raises(ValueError, match="3 rows from position 8 are not within a text of 10"):
        RoPE(4).turn(np.zeros((3, 4)), first=8, length=10)


def test_nobody_writes_into_the_table_of_all():
    for part in RoPE(4).table(10, np.dtype(np.float32)):
        with pytest.raises(ValueError, match="read-only"):
            part[0] = 0
