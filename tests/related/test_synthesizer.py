"""Synthesizers: limiting cases, what order and length do to them, and the forms of published code."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback, random_like, tree_map, tree_size
from minitransformer.attention import MultiHeadAttention, attend, attention_of, dot_product_attention
from minitransformer.positions import T5Bias
from minitransformer.pullback import tree_bytes
from minitransformer.related import Synthesizer, SynthesizerParams
from minitransformer.related.synthesizer_logits import Products, RandomParams
from tests.pieces import in_pieces

H, d, longest = 2, 6, 20
KINDS = ("dense", "factorised-dense", "random", "factorised-random")
MIXTURES = ("none", "sum", "gated")


def core(kind, mixture="none", **options):
    return Synthesizer(heads=H, d=d, longest=longest, kind=kind, mixture=mixture, rank=3, **options)


def some(layer, seed=0):
    rng = np.random.default_rng(seed)
    return tree_map(lambda leaf: 0.6 * leaf, random_like(layer.init(rng, np.float64), rng))


def heads(n, seed=0, count=3):
    return np.random.default_rng(seed).standard_normal((count, 2, H, n, d))


# ------------------------------------------------------------------------------------------- all the ways


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [3, 7])  # logits are formed for a few tokens
def test_gradients(kind, mixture, n):
    there = np.arange(n) < np.array([n, n - 2])[:, None, None, None]
    X = np.random.default_rng(1).standard_normal((2, n, H * d))
    for learned in (True, False) if "random" in kind else (True,):
        layer = MultiHeadAttention(H * d, H, bias=False, core=core(kind, mixture, learned=learned))
        untrained = [f"params.{path}" for path in layer.untrained]
        for options in ({}, {"causal": True}, {"mask": there}):
            with mt.backend("numpy"):
                check_pullback(partial(layer, **options), some(layer), X, untrained=untrained, entries=2)


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("kind", KINDS)
def test_step_is_whole(kind, mixture, tier):
    layer = MultiHeadAttention(H * d, H, core=core(kind, mixture))
    params, X = some(layer), np.random.default_rng(1).standard_normal((2, 17, H * d))
    said, state = in_pieces(layer, params, X, (0, 1, 9, 9, 10, 13, 17))
    np.testing.assert_allclose(said, layer(params, X, causal=True)[0], rtol=0, atol=1e-12)
    assert state.K.shape[-1] == (0 if mixture == "none" else d)  # keys are kept where they are asked


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [3, 7])  # logits are formed for a few tokens
def test_fewer_queries_than_keys_are_the_last_ones(kind, mixture, n):
    """With a memory before the segment; the gradient of a table goes to the rows of the places that asked."""
    m, part = 9, core(kind, mixture)
    (_, K, V), Q = heads(m, 1), heads(n, 2)[0]
    Y, _ = part(some(part), Q, K, V, causal=True)
    before = np.concatenate([heads(m - n, 3)[0], Q], -2)
    np.testing.assert_allclose(Y, part(some(part), before, K, V, causal=True)[0][..., -n:, :], rtol=0, atol=1e-12)
    nowhere = ("Q", "K") if "random" in kind and mixture == "none" else ("K",) if mixture == "none" else ()
    with mt.backend("numpy"):
        check_pullback(partial(part, causal=True), some(part), Q, K, V, zero=nowhere, entries=12)


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_hidden_reaches_nothing(kind, mixture, tier):
    part, found = core(kind, mixture), []
    dY = heads(7, 5, 1)[0]
    with np.errstate(invalid="ignore"):
        for what in (9.0, np.nan, np.inf):
            for mask in (np.arange(7)[None] < 5, np.arange(7) < np.array([7, 5])[:, None, None, None]):
                Q, K, V = heads(7)
                K[1, :, 5:] = V[1, :, 5:] = what
                if mask.ndim == 2:
                    K[:, :, 5:] = V[:, :, 5:] = what
                Y, pullback = part(some(part), Q, K, V, mask=mask)
                found.append(dict(mt.tree_items({"Y": Y, "gradients": pullback(dY)})))
    for k, other in enumerate(found):
        for path, array in found[k % 2].items():
            np.testing.assert_allclose(other[path], array, atol=1e-11, err_msg=path)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("kind", KINDS)
def test_of_no_samples_the_shapes_are_those_of_some(kind, mixture):
    part, arrays = core(kind, mixture), heads(5)[:, :0]
    Y, pullback = part(some(part), *arrays)
    dparams, *gradients = pullback(Y)
    assert Y.shape == (0, H, 5, d)
    assert [X.shape for X in gradients] == [X.shape for X in arrays]
    assert not any(a.any() for _, a in mt.tree_items(dparams))


# ---------------------------------------------------------------------------------------- limiting cases


@pytest.mark.parametrize("kind", KINDS)
def test_a_mixture_with_nothing_is_dot_product_attention(kind, tier):
    """With logits of zero the sum is attention; a gate that is shut lets dot products alone through."""
    Q, K, V = heads(9)
    dense, _ = dot_product_attention(Q, K, V)
    part = core(kind, "sum")
    nothing = tree_map(np.zeros_like, some(part))
    np.testing.assert_allclose(part(nothing, Q, K, V)[0], dense, rtol=0, atol=1e-12)
    part = core(kind, "gated")
    shut = some(part)._replace(alpha=np.array([-800.0]))
    np.testing.assert_allclose(part(shut, Q, K, V)[0], dense, rtol=0, atol=1e-12)
    open_ = shut._replace(alpha=np.array([800.0]))
    alone = core(kind)(SynthesizerParams(open_.logits), Q, K, V)[0]
    np.testing.assert_allclose(part(open_, Q, K, V)[0], alone, rtol=0, atol=1e-12)


def test_a_head_of_a_model_is_that_equation():
    """Two heads, each with its own networks: what a model computes is a synthesizer for each head, side by side, times W_o."""
    rng, n = np.random.default_rng(1), 5
    layer = MultiHeadAttention(2 * d, 2, core=core("dense"))
    params = layer.init(rng, np.float64)
    X = rng.standard_normal((n, 2 * d))
    ours, _ = layer(params, X)
    heads = []
    for h in range(2):
        columns = slice(h * d, (h + 1) * d)
        W_2, b_2 = params.core.logits.W[h, :, :n], params.core.logits.b[h, :n]
        hidden = np.maximum(X @ params.W_q[:, columns] + params.b_q[columns], 0)
        S = np.exp(hidden @ W_2 + b_2)
        heads.append(S / S.sum(1, keepdims=True) @ (X @ params.W_v[:, columns]))
    np.testing.assert_allclose(ours, np.concatenate(heads, 1) @ params.W_o, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_as_they_are_drawn_have_a_variance_near_one_or_below(kind):
    """Where tokens say something, with queries of variance one. Biases are zero, and the gate is half open."""
    rng, part = np.random.default_rng(0), Synthesizer(8, 16, 64, kind, "gated", rank=4)
    params = part.init(rng, np.float64)
    S, _ = part._logits(params, rng.standard_normal((8, 64, 16)), 64, 64)
    S = S.queries @ S.keys.mT if isinstance(S, Products) else S
    assert 0.15 < S.var() < 1.15
    assert (S.var() > 0.85) == ("random" in kind)
    assert all((b == 0).all() for path, b in mt.tree_items(params) if path.split(".")[-1].startswith("b"))
    assert params.alpha == 0


def test_logits_of_zero_are_a_mean():
    Q, K, V = heads(9)
    for kind in KINDS:
        part = core(kind)
        Y, _ = part(tree_map(np.zeros_like, some(part)), Q, K, V)
        np.testing.assert_allclose(Y, np.broadcast_to(V.mean(-2, keepdims=True), V.shape), rtol=0, atol=1e-13)


def test_constant_diagonals_are_a_relative_bias():
    """R_ij = b_{j − i}: what T5's bias gives where contents say nothing; and in a sum with dot products, T5 with a scale."""
    n, rng = 9, np.random.default_rng(3)
    bias = replace(T5Bias(H, buckets=8, distance=16))
    params = bias.init(rng, np.float64)._replace(table=rng.standard_normal((H, 8)))
    b, _ = bias.bias(params, n, n, causal=False)
    R = np.zeros((H, longest, longest))
    R[:, :n, :n] = b[:, np.arange(n) - np.arange(n)[:, None] + n - 1]
    Q, K, V = heads(n)
    alone, _ = core("random")(SynthesizerParams(RandomParams(R)), Q, K, V)
    np.testing.assert_allclose(alone, attend(bias, params, np.zeros_like(Q), K, V)[0], rtol=0, atol=1e-12)
    both, _ = core("random", "sum")(SynthesizerParams(RandomParams(R)), Q, K, V)
    np.testing.assert_allclose(both, attend(bias, params, Q / np.sqrt(d), K, V)[0], rtol=0, atol=1e-12)


def test_a_dense_one_is_attention_to_a_table_of_places():
    part, (Q, K, V) = core("dense"), heads(9)
    params = some(part)
    hidden = np.concatenate([np.maximum(Q, 0), np.ones((*Q.shape[:-1], 1))], -1)
    table = np.concatenate([params.logits.W[..., :9].mT, params.logits.b[..., :9, None]], -1)
    Y, _ = dot_product_attention(hidden, np.broadcast_to(table, (2, *table.shape)), V, scale=1.0)
    np.testing.assert_allclose(part(params, Q, K, V)[0], Y, rtol=0, atol=1e-12)


def test_factors_make_every_column_once():
    """Place p b + q has the product β_p γ_q. Tile both factors, as one public version does, and columns coincide."""
    part = core("factorised-dense")
    a, b = part.factors
    assert a * b >= longest > (a - 1) * b
    params, Q = some(part), heads(longest)[0]
    S, pullback = part._logits(params, Q, longest, longest)
    for j in range(longest):
        np.testing.assert_allclose(S[..., j], pullback.beta[..., j // b] * pullback.gamma[..., j % b])
    tiled = np.tile(pullback.beta[..., :4], 4) * np.tile(pullback.gamma[..., :4], 4)
    assert len(np.unique(tiled[0, 0, 0].round(12))) == 4  # of 16
    assert len(np.unique(S[0, 0, 0].round(12))) > 4


# ------------------------------------------------------------------------------------------ order and length


def permuted(kind, mixture="none"):
    """How far Y of tokens in another order is from Y in that order."""
    layer = MultiHeadAttention(H * d, H, core=core(kind, mixture))
    params, X = some(layer), np.random.default_rng(1).standard_normal((9, H * d))
    order = np.random.default_rng(2).permutation(9)
    return np.abs(layer(params, X[order])[0] - layer(params, X)[0][order]).max()


def test_order_matters_though_no_position_was_added():
    """Column j is for place j. Only with logits of zero, or a gate that is shut, does the order not matter."""
    for kind in KINDS:
        assert permuted(kind) > 0.1
        assert permuted(kind, "sum") > 0.1
    layer = MultiHeadAttention(H * d, H)
    X, order = np.random.default_rng(1).standard_normal((9, H * d)), np.random.default_rng(2).permutation(9)
    np.testing.assert_allclose(layer(some(layer), X[order])[0], layer(some(layer), X)[0][order], atol=1e-12)


def test_weights_depend_on_what_is_said():
    """Change another token: rows of a dense one stay, and a random one does not change for any text."""
    for kind in KINDS:
        part, (Q, K, V) = core(kind), heads(9)
        params = some(part)
        other = Q.copy()
        other[..., 4, :] += 1
        with mt.backend("numpy"):
            before, after = (part(params, X, K, V)[1].A for X in (Q, other))
        changed = (np.abs(before - after) > 1e-9).any((0, 1, 3)) if before.ndim == 4 else np.zeros(9, bool)
        assert changed.tolist() == [i == 4 and "dense" in kind for i in range(9)]


def test_samples_share_random_weights():
    """They are made once: what is kept for the way back hardly grows with the batch."""
    part = Synthesizer(heads=H, d=2, longest=64, kind="random")
    params, sizes = some(part), []
    for batch in (1, 8):
        V = np.random.default_rng(0).standard_normal((batch, H, 64, 2))
        sizes.append(tree_bytes(part(params, V, V, V)[1]))
    assert sizes[1] < 1.5 * sizes[0]


def test_a_longer_text_is_refused_by_name():
    for kind in KINDS:
        layer = MultiHeadAttention(H * d, H, core=core(kind))
        params, X = some(layer), np.zeros((1, longest + 1, H * d))
        with pytest.raises(ValueError, match="K: 21 places, but this synthesizer has weights for 20 at most"):
            layer(params, X)
        _, state = layer.step(params, X[:, :longest])
        with pytest.raises(ValueError, match="K: 21 places"):
            layer.step(params, X[:, :1], state)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="learned: False is for random logits, and 'dense' ones come from a network"):
        core("dense", learned=False)
    part, (Q, K, V) = core("random"), heads(9)
    with pytest.raises(ValueError, match="Q: 9 queries"):
        part(some(part), Q, K[..., :7, :], V[..., :7, :])


# ------------------------------------------------------------------------------------------------- the rest


def test_nothing_is_learned_that_nobody_asks():
    """A random one has neither W_q nor W_k, a dense one no W_k, a mixture both."""
    for kind in KINDS:
        for mixture in MIXTURES:
            layer = MultiHeadAttention(H * d, H, core=core(kind, mixture))
            params = layer.init(np.random.default_rng(0))
            assert (params.W_q is None) == (params.b_q is None) == ("random" in kind and mixture == "none")
            assert (params.W_k is None) == (mixture == "none")
    drawn = attention_of("synthesizer:kind=random,learned=False", {"heads": H, "d": d, "longest": longest})
    assert drawn.untrained == ("logits.R",)
    a, b = core("factorised-dense").factors
    sizes = [tree_size(core(kind).init(np.random.default_rng(0))) / H for kind in KINDS]
    assert sizes == [(d + 1) * longest, (d + 1) * (a + b), longest**2, 2 * 3 * longest]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_is_kept(dtype):
    for kind in KINDS:
        for mixture in MIXTURES:
            part = core(kind, mixture)
            params = part.init(np.random.default_rng(0), dtype)
            Q, K, V = heads(9).astype(dtype)
            Y, pullback = part(params, Q, K, V)
            assert {array.dtype for _, array in mt.tree_items((Y, pullback(Y)))} == {np.dtype(dtype)}


def test_a_reshape_in_place_of_a_transpose_mixes_tokens_and_heads():
    """Long Range Arena's dense mode makes logits (batch, n, H, longest) and reshapes them to (batch, H, n, longest).

    That is no transpose. Row i of head h then belongs to token (h n + i) // H: of two heads, the first sees the first half
    of the tokens only, row 1 of head 0 is token 0 again, and row 0 of head 1 is of a token in the middle, which a causal row
    must not know. (`synthesizer_attention.py` at a2e5057, whose authors ask there whether this is needed.)
    """
    n = 6
    token = np.broadcast_to(np.arange(n)[:, None, None], (n, H, longest))
    reshaped = token.reshape(H, n, longest)
    for h, i in np.ndindex(H, n):
        assert (reshaped[h, i] == (h * n + i) // H).all()
    assert reshaped[1, 0, 0] == 3 > 0
    assert np.array_equal(token.swapaxes(0, 1)[1, :, 0], np.arange(n))
