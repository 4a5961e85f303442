"""Latent attention: loops, both forms and their gradients, decoding, what it is a case of, and DeepSeek's own."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from minitransformer import check_pullback
from minitransformer.attention import (
    KeysValues,
    Latent,
    LatentParams,
    dot_product_attention,
    latent_attention,
    padding_mask,
    split_heads,
)
from minitransformer.functional import rms_norm
from minitransformer.models import LanguageModel
from minitransformer.positions import RoPE
from minitransformer.pullback import random_like, tree_items, tree_map
from tests.pieces import in_pieces
from tests.waves import waves

STORED = Path(__file__).parent / "data" / "latent.json"
B, H, N, M, D, R, DR, DV = 2, 3, 4, 6, 5, 7, 2, 4
forms = pytest.mark.parametrize("absorbed", [False, True], ids=["expanded", "absorbed"])


def inputs(seed=0, batch=(B,), n=N, m=M):
    """Q, Q_R, C, K_R, W_uk, W_uv; all axes have different lengths."""
    rng = np.random.default_rng(seed)
    shapes = (*batch, H, n, D), (*batch, H, n, DR), (*batch, m, R), (*batch, m, DR), (R, H * D), (R, H * DV)
    return [rng.standard_normal(shape) for shape in shapes]


@forms
def test_against_loops(absorbed):
    """S_h = (Q_h (C W_uk,h)ᵀ + Q_R,h K_Rᵀ)/√(d + d_r), Y_h = softmax(S_h) C W_uv,h: causal, entry by entry."""
    Q, Q_R, C, K_R, W_uk, W_uv = arrays = inputs()
    Y, _ = latent_attention(*arrays, causal=True, absorbed=absorbed)
    for b, h, i in np.ndindex(B, H, N):
        weights, values = [], []
        for j in range(M - N + i + 1):
            key = [sum(C[b, j, c] * W_uk[c, h * D + a] for c in range(R)) for a in range(D)]
            values.append([sum(C[b, j, c] * W_uv[c, h * DV + a] for c in range(R)) for a in range(DV)])
            score = sum(Q[b, h, i, a] * key[a] for a in range(D)) + sum(Q_R[b, h, i] * K_R[b, j])
            weights.append(math.exp(score / math.sqrt(D + DR)))
        average = [sum(w * v[a] for w, v in zip(weights, values, strict=True)) / sum(weights) for a in range(DV)]
        assert np.allclose(Y[b, h, i], average, rtol=1e-12)


MASKS = {"all": None, "padding": padding_mask(np.array([6, 3]), M)[:, None], "pairs": np.tri(N, M, 1, bool)}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_both_forms_have_the_same_values_and_gradients(mask, causal, tier):
    arrays, options = inputs(1), {"causal": causal, "mask": MASKS[mask]}
    (Y, expanded), (Z, absorbed) = (latent_attention(*arrays, **options, absorbed=form) for form in (False, True))
    assert np.allclose(Y, Z, rtol=1e-11)
    assert np.allclose(expanded.A, absorbed.A, rtol=1e-11)
    for a, b in zip(expanded(np.cos(Y)), absorbed(np.cos(Y)), strict=True):
        assert np.allclose(a, b, rtol=1e-10, atol=1e-13)


@forms
@pytest.mark.parametrize("batch", [(), (2,), (2, 2)])
def test_gradient(batch, absorbed, tier):
    check_pullback(
        lambda *arrays: latent_attention(*arrays, causal=True, absorbed=absorbed), *inputs(2, batch), entries=20
    )


@forms
def test_gradient_beyond_a_tile(absorbed, tier):
    check_pullback(
        lambda *arrays: latent_attention(*arrays, causal=True, absorbed=absorbed), *inputs(3, n=70, m=70), entries=6
    )


def test_the_latent_gets_a_gradient_as_key_and_one_as_value_from_every_head():
    """dC = Σ_h (s dS_hᵀ Q̃_h + A_hᵀ dU_h) and dK_R = s Σ_h dS_hᵀ Q_R,h, head after head."""
    Q, Q_R, C, K_R, W_uk, W_uv = arrays = inputs(4, ())
    Y, pullback = latent_attention(*arrays)
    dY, s = np.cos(Y), 1 / math.sqrt(D + DR)
    dC, dK_R = np.zeros_like(C), np.zeros_like(K_R)
    for h in range(H):
        W_k, W_v, A = W_uk[:, h * D : (h + 1) * D], W_uv[:, h * DV : (h + 1) * DV], pullback.A[h]
        dU = dY[h] @ W_v.T
        dA = dU @ C.T
        dS = A * (dA - (A * dA).sum(-1, keepdims=True))
        dC += s * dS.T @ (Q[h] @ W_k.T) + A.T @ dU
        dK_R += s * dS.T @ Q_R[h]
    assert np.allclose(pullback(dY)[2], dC, rtol=1e-11)
    assert np.allclose(pullback(dY)[3], dK_R, rtol=1e-11)


# ------------------------------------------------------------------------------------------- as a layer, decoding

LAYERS = {
    "queries of X": Latent(24, 3, rank=7, rotary=4),
    "queries of a latent": Latent(24, 3, 7, query_rank=5, rotary=4),
}
layers = pytest.mark.parametrize("name", LAYERS)


def some(layer, seed=5):
    return random_like(layer.init(np.random.default_rng(0), np.float64), np.random.default_rng(seed))


@layers
def test_decoding_is_the_absorbed_form_of_the_whole(name, tier):
    layer, X = LAYERS[name], np.random.default_rng(6).standard_normal((2, 9, 24))
    said, state = in_pieces(layer, some(layer), X, (0, 3, 4, 5, 8, 9))
    assert np.allclose(said, layer(some(layer), X, causal=True)[0], rtol=1e-10, atol=1e-12)
    assert state.length == 9


def test_a_token_leaves_the_latent_and_the_turned_key_behind():
    """r + d_r numbers, whatever the number of heads; with keys and values they would be 2 H d."""
    for heads in (1, 2, 4):
        layer = Latent(32, heads, rank=6, rotary=4)
        X = np.random.default_rng(7).standard_normal((50, 32)).astype(np.float32)
        _, state = layer.step(layer.init(np.random.default_rng(0)), X)
        assert isinstance(state, KeysValues)
        assert (state.keys.nbytes + state.values.nbytes) / 50 == 4 * (6 + 4)
    params = layer.init(np.random.default_rng(0))
    C, _ = rms_norm(X @ params.W_dc, params.gamma_c)
    K_R, _ = RoPE(4).turn(X @ params.W_kr, length=50)
    assert np.allclose(state.keys, np.concatenate([C, K_R], -1), atol=1e-5)


# ------------------------------------------------------------------------------------------------ limiting cases


def test_a_latent_as_wide_as_the_rows_is_multi_head_attention_of_another_scale():
    """C = X and K_R = 0: the scores are divided by √(d + d_r) all the same."""
    rng = np.random.default_rng(8)
    X, W_q, W_k, W_v = rng.standard_normal((4, 15, 15))
    Q, K, V = (split_heads(X @ W, 3) for W in (W_q, W_k, W_v))
    arrays = Q, rng.standard_normal((3, 15, 4)), X, np.zeros((15, 4)), W_k, W_v
    for absorbed in (False, True):
        Y, _ = latent_attention(*arrays, causal=True, absorbed=absorbed)
        Z, _ = dot_product_attention(Q, K, V, causal=True, scale=(5 + 4) ** -0.5)
        assert np.allclose(Y, Z, rtol=1e-10, atol=1e-12)
        assert not np.allclose(Y, dot_product_attention(Q, K, V, causal=True)[0], atol=1e-3)


def test_absorbed_it_is_multi_query_attention():
    """One key [C | K_R] and one value C for all heads, in a wider space."""
    Q, Q_R, C, K_R, W_uk, W_uv = arrays = inputs(9)
    queries = np.concatenate([Q @ split_heads(W_uk, H).mT, Q_R], -1)
    key = np.concatenate([C, K_R], -1)[:, None]
    U, _ = dot_product_attention(queries, key, C[:, None], scale=(D + DR) ** -0.5)
    assert np.allclose(latent_attention(*arrays)[0], U @ split_heads(W_uv, H), rtol=1e-11)


def test_groups_of_heads_are_a_latent_of_their_keys_and_values():
    """C = [K_1 | V_1 | K_2 | V_2], r = G (d + dv), and W_uk, W_uv pick columns."""
    rng = np.random.default_rng(10)
    Q = rng.standard_normal((4, 6, 3))
    K, V = rng.standard_normal((2, 2, 6, 3))
    C = np.concatenate([K[0], V[0], K[1], V[1]], -1)
    picks = np.eye(12).reshape(12, 4, 3)
    W_uk, W_uv = (picks[:, pick].reshape(12, 12) for pick in ([0, 0, 2, 2], [1, 1, 3, 3]))
    Y, _ = latent_attention(Q, np.zeros((4, 6, 2)), C, np.zeros((6, 2)), W_uk, W_uv)
    assert np.allclose(Y, dot_product_attention(Q, K, V, scale=5**-0.5)[0], rtol=1e-12)


def test_keys_and_values_of_all_heads_side_by_side_have_the_rank_of_the_latent():
    """However long the text is: the width is bounded, not the length. A is not bounded by it."""
    for n in (5, 20, 60):
        _, _, C, _, W_uk, W_uv = arrays = inputs(11, (), n=n, m=n)
        assert np.linalg.matrix_rank(np.concatenate([C @ W_uk, C @ W_uv], -1)) == min(R, n)
        A = latent_attention(*arrays)[1].A
        assert min(np.linalg.matrix_rank(A)) > min(R, n - 1)


def test_the_norm_of_the_latent_is_invisible_where_the_rows_are_normalised_already():
    """With W_dc = I, gain 1 and ε = 0. Of other rows it changes something."""
    X = np.random.default_rng(12).standard_normal((6, 8))
    ones = np.ones(8)
    normalised, _ = rms_norm(X, ones, eps=0)
    assert np.allclose(rms_norm(normalised @ np.eye(8), ones, eps=0)[0], normalised, rtol=1e-13)
    assert not np.allclose(rms_norm(X @ np.eye(8), ones, eps=0)[0], X, atol=0.05)


def test_a_turn_between_query_and_key_leaves_nothing_fixed_to_absorb():
    """W_uq R_{j−i} W_ukᵀ is another matrix for each offset; two pairs of the same offset share one."""
    W_uq, W_uk = np.random.default_rng(13).standard_normal((2, 9, 4))
    turns = [RoPE(4).turn(np.eye(4)[:, None], first=p, length=p + 1)[0][:, 0] for p in range(6)]
    between = {(i, j): W_uq @ turns[i] @ turns[j].T @ W_uk.T for i, j in ((0, 0), (2, 0), (5, 3))}
    assert np.allclose(between[2, 0], between[5, 3], rtol=1e-12)
    assert not np.allclose(between[0, 0], between[2, 0], atol=0.5)


def test_a_gate_for_each_channel_stands_between_the_products_and_one_for_each_head_does_not():
    """Y_h W_o,h = U_h (W_uv,h W_o,h): a number for each head passes through the product, one for each channel does not."""
    rng = np.random.default_rng(14)
    U, W_v, W_o = rng.standard_normal((3, 5, 5))
    one, each = rng.random((5, 1)), rng.random((5, 5))
    assert np.allclose((one * (U @ W_v)) @ W_o, one * (U @ (W_v @ W_o)), rtol=1e-11)
    assert np.linalg.matrix_rank((each * (U @ W_v)) @ W_o - U @ (W_v @ W_o)) > 1


# ------------------------------------------------------------------------------------------------ DeepSeek's own


@pytest.mark.parametrize("query_rank", [None, 6])
@pytest.mark.parametrize("causal", [False, True])
def test_the_same_numbers_as_in_transformers(query_rank, causal, tier):
    stored = json.loads(STORED.read_text())[f"query_rank={query_rank},causal={causal}"]
    layer = Latent(24, 3, rank=10, query_rank=query_rank, rotary=4)
    form = layer.init(np.random.default_rng(0), np.float64)
    numbers = {name: k for k, name in enumerate(LatentParams._fields)}
    params = LatentParams(**{name: waves(a.shape, numbers[name]) for name, a in tree_items(form)})
    X, dY = waves((2, 7, 24), 20), waves((2, 7, 24), 21)
    Y, pullback = layer(params, X, causal=causal)
    dparams, dX = pullback(dY)
    assert np.allclose(Y[:, [0, 3, 6], :4], stored["Y"], rtol=1e-10)
    gradients = {**dict(tree_items(dparams)), "X": dX}
    assert gradients.keys() == stored["gradients"].keys()
    for name, G in gradients.items():
        found = np.vdot(G, waves(G.shape, 30)), np.vdot(G, G)
        assert np.allclose(found, stored["gradients"][name], rtol=1e-9, atol=1e-9), name


# ------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rotary": 3}, "rotary: 3 should be even"),
        ({"heads": 5}, "width: 24 is not divisible"),
    ],
)
def test_what_can_not_be_chosen_is_refused(options, says):
    with pytest.raises(ValueError, match=says):
        Latent(**{"width": 24, "heads": 3, **options})


def test_what_does_not_fit_is_refused():
    Q, Q_R, C, K_R, W_uk, W_uv = inputs()
    with pytest.raises(
        ValueError, match="W_uk, W_uv: 14 and 12 columns, for 3 heads of width 5, should be 15 and a multiple of 3"
    ):
        latent_attention(Q, Q_R, C, K_R, W_uk[:, :-1], W_uv)
    with pytest.raises(ValueError, match=r"W_uk, W_uv: 15 and 11 columns, .* should be 15 and a multiple of 3"):
        latent_attention(Q, Q_R, C, K_R, W_uk, W_uv[:, :-1])
    with pytest.raises(ValueError, match="mask: shape"):
        latent_attention(Q, Q_R, C, K_R, W_uk, W_uv, mask=np.ones((N, M + 1), bool))
    layer, X = LAYERS["queries of X"], np.zeros((2, 5, 24))
    with pytest.raises(ValueError, match="should have the axes"):
        layer(some(layer), X, mask=np.ones((2, 5, 5), bool))
    with pytest.raises(ValueError, match="latent has no queries and keys"):
        LanguageModel(width=24, heads=3, attention="latent", positions="rope")


def test_the_base_is_that_of_the_angles():
    layer = Latent(24, 3, rotary=4, base=50.0)
    np.testing.assert_array_equal(layer.rotate.angles(9)[0], np.arange(9)[:, None] * 50.0 ** np.array([0, -1 / 2]))


def test_float32_stays():
    layer = LAYERS["queries of a latent"]
    params = tree_map(lambda a: a.astype(np.float32), some(layer))
    Y, pullback = layer(params, np.ones((3, 24), np.float32))
    assert {a.dtype for _, a in tree_items((Y, pullback(Y)))} == {np.dtype(np.float32)}
