"""Heads: gradients, the equation head by head, the identities that define it, decoding, bad input."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback, random_like, tree_map, tree_size
from minitransformer.attention import (
    DeltaRule,
    KernelAttention,
    MultiHeadAttention,
    SoftmaxAttention,
    attend,
    dot_product_attention,
    merge_heads,
    padding_mask,
    split_heads,
)
from minitransformer.positions import ALiBi, RoPE, T5Bias
from minitransformer.pullback import NoParams, tree_leaves
from tests.pieces import in_pieces

pytestmark = pytest.mark.usefixtures("definitions")

fixed = np.random.default_rng(0)
B, N, M, D, H = 2, 4, 5, 6, 3
LAYER = MultiHeadAttention(D, H)
PARAMS = random_like(LAYER.init(fixed, np.float64), fixed)
X, Z = fixed.standard_normal((B, N, D)), fixed.standard_normal((B, M, D))
PADDING = padding_mask(np.array([M, 3]), M)[..., None, :, :]


# ------------------------------------------------------------------------------------------------- heads


def test_split_and_merge_are_inverse():
    parts = split_heads(X, H)
    assert parts.shape == (B, H, N, D // H)
    assert np.array_equal(parts[1, 2, 3], X[1, 3, 4:6]), "head 2 of width 2 has columns 4 and 5"
    assert np.array_equal(merge_heads(parts), X)
    assert np.array_equal(split_heads(X[0], H), parts[0])


def test_each_is_the_gradient_of_the_other():
    check_pullback(lambda X: (split_heads(X, H), merge_heads), X)
    check_pullback(lambda X: (merge_heads(X), lambda dY: split_heads(dY, H)), split_heads(X, H))


# ---------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"mask": PADDING[..., :N]}], ids=["plain", "causal", "padding"]
)
@pytest.mark.parametrize("heads", [1, 2, 6])
def test_self_attention_gradient(heads, options):
    """b_k adds the same to every score of a row: no effect, no gradient."""
    layer = MultiHeadAttention(D, heads)
    check_pullback(partial(layer, **options), PARAMS, X, zero=("params.b_k",), entries=15)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"mask": PADDING}], ids=["plain", "causal", "padding"])
def test_cross_attention_gradient(options):
    """To the queries' side and to the memory's."""
    check_pullback(partial(LAYER.cross, **options), PARAMS, X, Z, zero=("params.b_k",), entries=15)


def test_gradient_without_biases_and_without_batch(rng):
    layer = MultiHeadAttention(D, H, bias=False)
    params = random_like(layer.init(rng), rng)
    assert params.b_q is None
    check_pullback(layer, params, X[0], entries=15)
    check_pullback(layer.cross, params, X[0], Z[0], entries=15)


def test_gradient_with_a_mask_for_each_head(rng):
    mask = rng.random((1, H, N, N)) < 0.6
    mask[..., 0] = True
    check_pullback(partial(LAYER, mask=mask), PARAMS, X, zero=("params.b_k",), entries=10)


# --------------------------------------------------------------------------------------------- identities


def test_the_equation_head_by_head():
    """Σ_h head_h W_o,h + b_o: concatenation and one W_o are a sum over heads, each with its own rows of W_o."""
    d = D // H
    Y, pullback = LAYER.cross(PARAMS, X, Z)
    total = np.zeros_like(Y) + PARAMS.b_o
    for h in range(H):
        columns = slice(h * d, (h + 1) * d)
        Q = X @ PARAMS.W_q[:, columns] + PARAMS.b_q[columns]
        K = Z @ PARAMS.W_k[:, columns] + PARAMS.b_k[columns]
        V = Z @ PARAMS.W_v[:, columns] + PARAMS.b_v[columns]
        S = Q @ K.mT / np.sqrt(d)
        A = np.exp(S) / np.exp(S).sum(-1, keepdims=True)
        total += A @ V @ PARAMS.W_o[columns]
        assert np.allclose(pullback.A[:, h], A, rtol=1e-12)
    assert np.allclose(Y, total, rtol=1e-11, atol=1e-12)


def test_one_head_and_no_output_projection_is_plain_attention():
    params = PARAMS._replace(W_o=np.eye(D), b_o=np.zeros(D))
    Y, pullback = MultiHeadAttention(D, 1)(params, X)
    Q, K, V = (X @ W + b for W, b in ((params.W_q, params.b_q), (params.W_k, params.b_k), (params.W_v, params.b_v)))
    right, right_pullback = dot_product_attention(Q, K, V)
    assert np.allclose(Y, right, rtol=1e-12)
    assert np.allclose(pullback.A[:, 0], right_pullback.A, rtol=1e-12)


def test_self_attention_is_cross_attention_with_itself():
    (Y, self_pullback), (C, cross_pullback) = LAYER(PARAMS, X), LAYER.cross(PARAMS, X, X)
    assert np.array_equal(Y, C)
    dparams, dX = self_pullback(Y)
    dcross, d1, d2 = cross_pullback(Y)
    assert np.array_equal(dX, d1 + d2)
    assert all(np.array_equal(a, b) for a, b in zip(dparams, dcross, strict=True))


def test_heads_are_decoupled_by_block_diagonal_weights():
    """If head h reads and writes columns h only, changing the others does not reach them."""
    d = D // H
    blocks = np.kron(np.eye(H), np.ones((d, d)))
    params = PARAMS._replace(**{name: getattr(PARAMS, name) * blocks for name in ("W_q", "W_k", "W_v", "W_o")})
    changed = X.copy()
    changed[..., d:] += 1
    Y, Y_changed = LAYER(params, X)[0], LAYER(params, changed)[0]
    assert np.allclose(Y[..., :d], Y_changed[..., :d], rtol=1e-12)
    assert not np.isclose(Y[..., d:], Y_changed[..., d:]).any()


@pytest.mark.parametrize("heads", [1, 2, 3, 6])
def test_number_of_parameters_does_not_depend_on_heads(heads, rng):
    """E72: H divides the width, not the output. 4 D² weights, and 4 D biases."""
    assert tree_size(MultiHeadAttention(D, heads, bias=False).init(rng)) == 4 * D * D
    assert tree_size(MultiHeadAttention(D, heads).init(rng)) == 4 * D * D + 4 * D


def test_gauge_freedom_in_each_head(rng):
    """W_q,h R and W_k,h R⁻ᵀ give the same scores, for an invertible R of each head."""
    d, params = D // H, PARAMS._replace(b_q=np.zeros(D), b_k=np.zeros(D))
    W_q, W_k = params.W_q.copy(), params.W_k.copy()
    for h in range(H):
        R, columns = rng.standard_normal((d, d)), slice(h * d, (h + 1) * d)
        W_q[:, columns] = W_q[:, columns] @ R
        W_k[:, columns] = W_k[:, columns] @ np.linalg.inv(R).T
    assert np.allclose(LAYER(params._replace(W_q=W_q, W_k=W_k), X)[0], LAYER(params, X)[0], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("orthogonal", [True, False])
def test_training_sees_a_gauge_that_is_no_rotation(orthogonal, rng):
    """The same model, W_q R and W_k R⁻ᵀ; after one step down the gradient W_q W_kᵀ is the same for both if R is orthogonal,
    and so is ‖W_q‖² + ‖W_k‖², which weight decay pulls at. For another R neither is.
    """
    layer = MultiHeadAttention(D, 1, bias=False)
    params = random_like(layer.init(rng, np.float64), rng)
    R = rng.standard_normal((D, D)) + 2 * np.eye(D)
    R = np.linalg.qr(R)[0] if orthogonal else R
    other = params._replace(W_q=params.W_q @ R, W_k=params.W_k @ np.linalg.inv(R).T)
    Y, _ = layer(params, X)
    np.testing.assert_allclose(layer(other, X)[0], Y, rtol=0, atol=1e-9)
    sizes, forms = [], []
    for p in (params, other):
        dparams, _ = layer(p, X)[1](Y)
        W_q, W_k = (getattr(p, name) - 0.01 * getattr(dparams, name) for name in ("W_q", "W_k"))
        forms.append(W_q @ W_k.T)
        sizes.append((p.W_q**2).sum() + (p.W_k**2).sum())
    assert np.isclose(*sizes, rtol=1e-9) == orthogonal
    assert np.allclose(*forms, rtol=0, atol=1e-9) == orthogonal


def test_equivariance(rng):
    order = rng.permutation(N)
    assert np.allclose(LAYER(PARAMS, X[:, order])[0], LAYER(PARAMS, X)[0][:, order], atol=1e-12)
    assert np.allclose(LAYER.cross(PARAMS, X, Z[:, rng.permutation(M)])[0], LAYER.cross(PARAMS, X, Z)[0], atol=1e-12)


def test_a_mask_of_one_sample_is_for_all_heads():
    Y, pullback = LAYER.cross(PARAMS, X, Z, mask=PADDING)
    assert not pullback.A[1, :, :, 3:].any()
    assert pullback.A[0].all()
    assert np.allclose(Y[1], LAYER.cross(PARAMS, X[1], Z[1, :3])[0], rtol=1e-11), "as if the padding were not there"


def test_a_query_that_sees_nothing_gets_the_output_bias():
    mask = np.ones((N, M), bool)
    mask[2] = False
    Y, pullback = LAYER.cross(PARAMS, X, Z, mask=mask)
    assert np.array_equal(Y[:, 2], np.broadcast_to(PARAMS.b_o, (B, D)))
    dY = np.zeros_like(Y)
    dY[:, 2] = 1
    dparams, dX, dZ = pullback(dY)
    assert not dX.any()
    assert not dZ.any()
    assert dparams.b_o.tolist() == [B] * D


def test_initial_parameters(rng):
    """Weights have variance 1/D, so that a row of variance 1 keeps it; biases are zero; same seed, same weights."""
    layer = MultiHeadAttention(200, 4)
    params = layer.init(np.random.default_rng(1))
    for W in params[:4]:
        assert abs(W.var() * 200 - 1) < 0.02
        assert abs(W.mean()) < 1e-3
        assert W.dtype == np.float32
    assert not any(b.any() for b in params[4:8])
    assert params.core == NoParams()
    assert params.streams is None
    assert all(np.array_equal(a, b) for a, b in zip(params, layer.init(np.random.default_rng(1)), strict=True))
    assert layer.init(rng, np.float64).W_q.dtype == np.float64


# --------------------------------------------------------------------------------------------- invariants


@pytest.mark.parametrize("n", [0, 1])
def test_short_sequences(n):
    Y, pullback = LAYER(PARAMS, X[:, :n], causal=True)
    dparams, dX = pullback(Y)
    assert Y.shape == dX.shape == (B, n, D)
    assert np.allclose(dparams.W_q, 0), "with one key at most there is nothing to choose"
    if n == 1:
        V = X[:, :1] @ PARAMS.W_v + PARAMS.b_v
        assert np.allclose(Y, V @ PARAMS.W_o + PARAMS.b_o, rtol=1e-12)


def test_cross_attention_to_nothing():
    Y, pullback = LAYER.cross(PARAMS, X, Z[:, :0])
    assert np.array_equal(Y, np.broadcast_to(PARAMS.b_o, Y.shape))
    assert pullback(Y)[2].shape == (B, 0, D)


# ----------------------------------------------------------------------------------------------- decoding


@pytest.mark.parametrize("edges", [(0, 5), (0, 1, 2, 3, 4, 5), (0, 2, 5), (0, 3, 4, 5)], ids=str)
def test_decoding_in_pieces_is_the_whole(tier, edges):
    """With the keys and values of the past at hand; equal to rounding, as products of other shapes are taken."""
    said, state = in_pieces(LAYER, PARAMS, Z, edges)
    assert np.allclose(said, LAYER(PARAMS, Z, causal=True)[0], rtol=1e-11, atol=1e-12)
    assert state.length == M
    assert state.keys.shape == state.values.shape == (B, H, M, D // H)


def test_decoding_leaves_the_past_alone():
    _, state = LAYER.step(PARAMS, X)
    keys, values = state.keys.copy(), state.values.copy()
    _, longer = LAYER.step(PARAMS, Z, state)
    assert (state.length, longer.length) == (N, N + M)
    assert np.array_equal(state.keys, keys)
    assert np.array_equal(state.values, values)


def test_two_continuations_of_one_past_do_not_meet():
    """Both look into the same room for keys; the one that comes second gets a room of its own."""
    _, state = LAYER.step(PARAMS, X)
    others = [Z, 2 * Z]
    both = [LAYER.step(PARAMS, other, state)[1] for other in others]
    both = [LAYER.step(PARAMS, other, longer)[1] for other, longer in zip(others, both, strict=True)]
    for other, longer in zip(others, both, strict=True):
        _, alone = LAYER.step(PARAMS, np.concatenate([X, other, other], 1))
        np.testing.assert_allclose(longer.keys, alone.keys, rtol=0, atol=1e-13)
        np.testing.assert_allclose(longer.values, alone.values, rtol=0, atol=1e-13)


def test_the_room_for_keys_is_not_copied_for_every_token(rng):
    """It doubles when it is full: 200 tokens are moved three times at most."""
    rooms, state = set(), None
    for _ in range(200):
        _, state = LAYER.step(PARAMS, rng.standard_normal((1, 1, D)), state)
        rooms.add(state.K.shape[-2])
    assert state.length == 200
    assert len(rooms) <= 3


# ------------------------------------------------------------------------- other heads of keys, other cores


def grouped(groups, *, bias=True, core=SoftmaxAttention(), rotate=None):  # noqa: B008
    layer = MultiHeadAttention(12, 6, bias=bias, core=core, rotate=rotate, groups=groups)
    return layer, random_like(layer.init(np.random.default_rng(3), np.float64), np.random.default_rng(4))


CORES = {"dense": SoftmaxAttention(), "T5": SoftmaxAttention(encoding=T5Bias(6)), "linear": KernelAttention()}
every_core = pytest.mark.parametrize("core", CORES.values(), ids=CORES)


@pytest.mark.parametrize("groups", [1, 2, 3])
@every_core
def test_heads_that_share_keys_are_heads_with_equal_ones(groups, core, rng):
    """6 heads, G of keys: as if each of the G had been written down 6/G times; its gradient is the sum of theirs."""
    layer, params = grouped(groups, core=core)
    assert params.W_k.shape == params.W_v.shape == (12, 2 * groups)
    full, _ = grouped(6, core=core)
    repeat = partial(np.repeat, repeats=6 // groups, axis=-2)

    def repeated(W):
        return repeat(W.reshape(*W.shape[:-1], groups, 2)).reshape(*W.shape[:-1], 12)

    names = ("W_k", "W_v", "b_k", "b_v")
    apart = params._replace(**{name: repeated(getattr(params, name)) for name in names})
    X = rng.standard_normal((2, 5, 12))
    (Y, pullback), (same, pullback_apart) = layer(params, X, causal=True), full(apart, X, causal=True)
    np.testing.assert_allclose(Y, same, rtol=0, atol=1e-12)
    (dparams, dX), (dapart, dX_apart) = pullback(Y), pullback_apart(Y)
    np.testing.assert_allclose(dX, dX_apart, rtol=1e-9, atol=1e-9)
    for name in names:
        d = getattr(dapart, name)
        summed = d.reshape(*d.shape[:-1], groups, 6 // groups, 2).sum(-2).reshape(*d.shape[:-1], 2 * groups)
        np.testing.assert_allclose(getattr(dparams, name), summed, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rotate", [None, RoPE(2)], ids=["", "rotated"])
@every_core
def test_gradient_with_shared_keys(core, rotate, rng):
    layer, params = grouped(2, core=core, rotate=rotate)
    blind = rotate is None and core is not CORES["linear"]  # b_k is the same for every score of a row
    check_pullback(
        partial(layer, causal=True), params, rng.standard_normal((2, 5, 12)), zero=["params.b_k"] * blind, entries=6
    )


@pytest.mark.parametrize("rotate", [None, RoPE(2)], ids=["", "rotated"])
@every_core
def test_decoding_with_shared_keys(core, rotate, rng):
    layer, params = grouped(2, bias=False, core=core, rotate=rotate)
    X = rng.standard_normal((2, 6, 12))
    said, _ = in_pieces(layer, params, X, (0, 3, 4, 6))
    np.testing.assert_allclose(said, layer(params, X, causal=True)[0], rtol=0, atol=1e-11)


@dataclass(frozen=True)
class QueriesAreKeys(SoftmaxAttention):
    """Dense attention whose keys are its queries."""

    queries_are_keys = True


def test_queries_that_are_keys(rng):
    """As with W_k = W_q, whose gradient is then the sum of both; in decoding too."""
    layer = MultiHeadAttention(D, H, core=QueriesAreKeys())
    params = random_like(layer.init(rng, np.float64), rng)
    assert params.W_k is None
    assert params.b_k is None
    check_pullback(partial(layer, causal=True), params, X, entries=15)
    whole, pullback = layer(params, X, causal=True)
    two, pullback_two = LAYER(params._replace(W_k=params.W_q, b_k=params.b_q), X, causal=True)
    np.testing.assert_allclose(whole, two, rtol=0, atol=1e-13)
    dparams, dtwo = pullback(whole)[0], pullback_two(whole)[0]
    np.testing.assert_allclose(dparams.W_q, dtwo.W_q + dtwo.W_k, rtol=0, atol=1e-12)
    first, state = layer.step(params, X[:, :2])
    last, _ = layer.step(params, X[:, 2:], state)
    np.testing.assert_allclose(np.concatenate([first, last], 1), whole, rtol=0, atol=1e-13)


def test_what_a_core_wants_projected_beside_q_k_and_v(rng):
    """The delta rule's gate: one number for each head and token, with a projection and a gradient of its own."""
    layer = MultiHeadAttention(D, H, core=DeltaRule())
    params = random_like(layer.init(rng, np.float64), rng)
    assert params.streams["beta"].W.shape == (D, H)
    check_pullback(partial(layer, causal=True), params, X, entries=15)
    without = MultiHeadAttention(D, H, bias=False, core=DeltaRule()).init(rng)
    assert without.streams["beta"].b is None


def test_the_core_does_the_attention(rng):
    """Heads of kernel attention, written out."""
    layer = MultiHeadAttention(D, H, core=KernelAttention())
    Y, _ = layer(PARAMS, X, causal=True)
    Q, K, V = (
        split_heads(X @ W + b, H)
        for W, b in ((PARAMS.W_q, PARAMS.b_q), (PARAMS.W_k, PARAMS.b_k), (PARAMS.W_v, PARAMS.b_v))
    )
    heads, _ = KernelAttention()(NoParams(), Q, K, V, causal=True)
    np.testing.assert_allclose(Y, merge_heads(heads) @ PARAMS.W_o + PARAMS.b_o, rtol=1e-12)


@pytest.mark.parametrize("rotate", [None, RoPE(2)], ids=["", "rotated"])
def test_what_stands_before_is_looked_at_and_not_answered(rotate):
    """The last rows of the layer on [memory; X], with a gradient for both."""
    layer = MultiHeadAttention(D, H, rotate=rotate)
    both, both_pullback = layer(PARAMS, np.concatenate([Z, X], 1), causal=True)
    Y, pullback = layer(PARAMS, X, memory=Z, causal=True)
    np.testing.assert_allclose(Y, both[:, M:], rtol=0, atol=1e-12)
    assert pullback.A.shape == (B, H, N, M + N)
    dparams, dX, dmemory = pullback(Y)
    dall, dZX = both_pullback(np.concatenate([np.zeros_like(Z), Y], 1))
    for ours, theirs in zip(tree_leaves(dparams), tree_leaves(dall), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)
    np.testing.assert_allclose(np.concatenate([dmemory, dX], 1), dZX, rtol=0, atol=1e-11)
    zero = () if rotate else ("params.b_k",)
    check_pullback(lambda params, X, Z: layer(params, X, memory=Z, causal=True), PARAMS, X, Z, zero=zero, entries=10)


def test_positions_turn_queries_and_keys_before_the_core_sees_them():
    """The encoding called by itself gives the heads of the layer."""
    Y, _ = MultiHeadAttention(D, H, rotate=RoPE(2))(PARAMS, X, causal=True)
    Q, K, V = (
        split_heads(X @ W + b, H)
        for W, b in ((PARAMS.W_q, PARAMS.b_q), (PARAMS.W_k, PARAMS.b_k), (PARAMS.W_v, PARAMS.b_v))
    )
    heads, _ = attend(RoPE(2), NoParams(), Q, K, V, causal=True)
    np.testing.assert_allclose(Y, merge_heads(heads) @ PARAMS.W_o + PARAMS.b_o, rtol=1e-12)


def test_cross_attention_is_dense_and_without_positions():
    """Whatever happens in self-attention; so T5 and the original transformer have it."""
    for layer in (MultiHeadAttention(D, H, rotate=RoPE(2)), MultiHeadAttention(D, H, core=KernelAttention())):
        assert np.array_equal(layer.cross(PARAMS, X, Z)[0], LAYER.cross(PARAMS, X, Z)[0])


# ----------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(("width", "heads"), [(6, 4), (6, 0), (6, -1), (0, 1), (-6, 3), (3, 6)])
def test_heads_must_divide_the_width(width, heads):
    with pytest.raises(
        ValueError,
        match=f"width: {width} is not divisible into {heads} heads|(width|heads): (0|-.) should be at least 1",
    ):
        MultiHeadAttention(width, heads)


@pytest.mark.parametrize("groups", [0, -1, 2, 6])
def test_groups_must_divide_the_heads(groups):
    with pytest.raises(
        ValueError, match=f"groups: (3 heads can't be divided into {groups} groups|{groups} should be at least 1)"
    ):
        MultiHeadAttention(D, H, groups=groups)
    with pytest.raises(ValueError, match="groups: in QueriesAreKeys queries are the keys, so both have as many heads"):
        MultiHeadAttention(D, H, core=QueriesAreKeys(), groups=1)


def test_what_can_not_be_causal_or_can_not_but_be():
    layer = MultiHeadAttention(D, H, core=DeltaRule())
    layer.refuse(causal=True)
    for run in (layer.refuse, partial(layer, layer.init(np.random.default_rng(0), np.float64), X)):
        with pytest.raises(ValueError, match="attention: DeltaRule is always causal: it reads from left to right"):
            run(causal=False)


def test_the_smallest_layer():
    layer = MultiHeadAttention(1, 1)
    params = layer.init(np.random.default_rng(0), np.float64)
    assert layer(params, X[..., :1])[0].shape == (B, N, 1)


def test_layers_are_frozen():
    with pytest.raises(AttributeError):
        LAYER.heads = 2


def test_wrong_shapes_and_types_are_refused():
    with pytest.raises(TypeError, match=r"(?s)parameter 'X'.*f64\[2,4,5\].*self\.width"):
        LAYER(PARAMS, X[..., :5])
    with pytest.raises(TypeError, match="parameter 'Z'"):
        LAYER.cross(PARAMS, X, Z[:1])
    with pytest.raises(TypeError, match="parameter 'X'"):
        LAYER(PARAMS, X.astype(int))


def test_mixed_dtypes_are_refused():
    with pytest.raises(TypeError, match="should have one dtype"):
        LAYER.cross(PARAMS, X, Z.astype(np.float32))


@pytest.mark.parametrize("shape", [(N, N + 1), (B, 2, N, N), (1, 1, 1, N, N)])
def test_a_mask_that_does_not_fit_is_refused(shape):
    with pytest.raises(
        ValueError, match=r"mask: shape \(.*\) does not broadcast to the shape of the scores, \(2, 3, 4, 4\)"
    ):
        LAYER(PARAMS, X, mask=np.ones(shape, bool))


@pytest.mark.parametrize("shape", [(B, N, N), (H, N, N), (1, N, N)])
def test_a_mask_without_an_axis_for_the_heads_is_refused(shape):
    """(batch, n, n) would be broadcast as (heads, n, n): silently, when there are as many heads as samples."""
    with pytest.raises(
        ValueError, match=r"mask: shape \(.*\) should have the axes \(n, m\), for all, or \(batch, heads, n, m\)"
    ):
        LAYER(PARAMS, X, mask=np.ones(shape, bool))


def test_the_advice_for_such_a_mask_is_right(rng):
    of_samples, of_heads = rng.random((B, N, N)) < 0.7, rng.random((H, N, N)) < 0.7
    Y = LAYER(PARAMS, X, mask=of_samples[:, None])[0]
    for b in range(B):
        np.testing.assert_allclose(Y[b], LAYER(PARAMS, X[b], mask=of_samples[b])[0], rtol=1e-12)
    Y = LAYER(PARAMS, X, mask=of_heads[None])[0]
    for b in range(B):
        np.testing.assert_allclose(Y[b], LAYER(PARAMS, X[b], mask=of_heads)[0], rtol=1e-12)


def test_masks_that_are_clear_pass():
    assert np.array_equal(LAYER(PARAMS, X, mask=np.ones((N, N), bool))[0], LAYER(PARAMS, X)[0])
    assert np.array_equal(LAYER(PARAMS, X, mask=np.ones(N, bool))[0], LAYER(PARAMS, X)[0])
    for_heads = np.ones((H, N, N), bool)
    assert np.allclose(LAYER(PARAMS, X[0], mask=for_heads)[0], LAYER(PARAMS, X)[0][0], rtol=1e-12)


def test_float32_stays_and_is_close():
    params = tree_map(lambda a: a.astype(np.float32), PARAMS)
    Y, _ = LAYER(params, X.astype(np.float32))
    assert Y.dtype == np.float32
    assert np.allclose(Y, LAYER(PARAMS, X)[0], rtol=1e-4, atol=1e-4)


def test_unscaled_scores_start_as_small_as_scaled_ones():
    """T5 leaves out 1/√d, and draws W_q smaller by it."""
    cores = (SoftmaxAttention(encoding=scores) for scores in (ALiBi(3), T5Bias(3)))
    usual, unscaled = (MultiHeadAttention(12, 3, core=core).init(np.random.default_rng(0)) for core in cores)
    np.testing.assert_allclose(unscaled.W_q, usual.W_q / 2, rtol=1e-6)  # d = 4
    assert np.array_equal(unscaled.W_k, usual.W_k)


def test_one_bias_missing(rng):
    """Some models have no bias of the keys: each gradient must still find its place."""
    layer = MultiHeadAttention(6, 2)
    params = mt.random_like(layer.init(rng, np.float64), rng)._replace(b_k=None)
    mt.check_pullback(layer, params, rng.standard_normal((2, 5, 6)))


def test_a_bias_of_another_length_is_refused():
    for layer in (LAYER, MultiHeadAttention(D, H, bias=False)):
        with pytest.raises((TypeError, ValueError), match=r"b_q|^b:"):
            layer(PARAMS._replace(b_q=PARAMS.b_q[:-1]), X)
