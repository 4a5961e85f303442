"""Blocks: gradients in every form, both orders by hand, invariants, decoding, bad input."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from minitransformer import check_pullback, random_like, tree_map
from minitransformer.attention import Mixer, MultiHeadAttention, padding_mask
from minitransformer.models import Block, FeedForward, Norm
from minitransformer.pullback import NoParams, Pullback

pytestmark = pytest.mark.usefixtures("definitions")

fixed = np.random.default_rng(0)
B, N, M, D = 2, 4, 5, 6
X, Z = fixed.standard_normal((B, N, D)), fixed.standard_normal((B, M, D))
KINDS = ["layer", "layer_eps_outside", "rms"]
ACTIVATIONS = ["relu", "gelu", "gelu_tanh"]
PADDING = padding_mask(np.array([N, 2]), N)[..., None, :, :]
Z_PADDING = padding_mask(np.array([3, M]), M)[..., None, :, :]
NO_EFFECT = ("params.attention.b_k", "params.cross.b_k")


def some(block):
    """Parameters at which nothing hides: random gains and biases; not too large, or softmax has made up its mind."""
    rng = np.random.default_rng(2)
    return tree_map(lambda a: 0.7 * a, random_like(block.init(rng, np.float64), rng))


# ---------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("norm", KINDS)
@pytest.mark.parametrize("order", ["pre", "post"])
def test_gradient(order, norm, activation):
    """ε = 0.1, so that it would be missed anywhere."""
    block = Block.of(D, 2, 7, order, f"{norm}:eps=0.1", activation)
    check_pullback(block, some(block), X, zero=NO_EFFECT, entries=4)


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize(
    "options",
    [{"causal": True}, {"mask": PADDING}, {"causal": True, "mask": PADDING}],
    ids=["causal", "padding", "causal and padding"],
)
def test_gradient_with_masks(order, options):
    block = Block.of(D, 3, 7, order)
    check_pullback(partial(block, **options), some(block), X, zero=NO_EFFECT, entries=4)


@pytest.mark.parametrize("order", ["pre", "post"])
def test_gradient_with_dropout(order):
    """The same generator each time, so that the same entries are dropped."""
    block = Block.of(D, 2, 7, order, dropout=0.3)
    check_pullback(
        lambda params, X: block(params, X, rng=np.random.default_rng(4)), some(block), X, zero=NO_EFFECT, entries=4
    )


@pytest.mark.parametrize("norm", KINDS)
@pytest.mark.parametrize("order", ["pre", "post"])
def test_gradient_of_a_decoder_block(order, norm):
    """To the parameters of all three steps, to the input and to the encoder's output."""
    block = Block.of(D, 2, 7, order, f"{norm}:eps=0.1", cross=True)
    check_pullback(partial(block, causal=True, Z_mask=Z_PADDING), *(some(block), X, Z), zero=NO_EFFECT, entries=4)


@pytest.mark.parametrize("order", ["pre", "post"])
def test_gradient_of_a_decoder_block_with_dropout(order):
    block = Block.of(D, 2, 7, order, dropout=0.3, cross=True)
    check_pullback(
        lambda params, X, Z: block(params, X, Z, causal=True, rng=np.random.default_rng(4)),
        *(some(block), X, Z),
        zero=NO_EFFECT,
        entries=4,
    )


def test_gradient_without_batch():
    block = Block.of(D, 2, 7)
    check_pullback(block, some(block), X[0], zero=NO_EFFECT, entries=3)


# --------------------------------------------------------------------------------------------- both orders


@pytest.mark.parametrize("order", ["pre", "post"])
def test_the_equation(order):
    """X + F(LN(X)) and LN(X + F(X)), written out with the layers themselves."""
    block, decoder = (Block.of(D, 2, 7, order, "layer:eps=0.1", cross=cross) for cross in (False, True))
    params = some(decoder)
    attention, ffn, norm = MultiHeadAttention(D, 2), FeedForward(D, 7), Norm(D, eps=0.1)

    def step(norm_params, F, X):
        if order == "pre":
            return X + F(norm(norm_params, X)[0])
        return norm(norm_params, X + F(X))[0]

    Y = step(params.attention_norm, lambda X: attention(params.attention, X, mask=PADDING)[0], X)
    Y = step(params.ffn_norm, lambda X: ffn(params.ffn, X)[0], Y)
    encoder_params = params._replace(cross_norm=None, cross=None)
    assert np.allclose(block(encoder_params, X, mask=PADDING)[0], Y, rtol=1e-12)

    Y = step(params.attention_norm, lambda X: attention(params.attention, X, causal=True)[0], X)
    Y = step(params.cross_norm, lambda X: attention.cross(params.cross, X, Z, mask=Z_PADDING)[0], Y)
    Y = step(params.ffn_norm, lambda X: ffn(params.ffn, X)[0], Y)
    assert np.allclose(decoder(params, X, Z, causal=True, Z_mask=Z_PADDING)[0], Y, rtol=1e-12)


def test_a_pre_norm_block_that_adds_nothing_is_the_identity(rng):
    """W_o = W₂ = 0: the residual path is clean, forwards and backwards. Post-norm still normalises."""
    pre, post = Block.of(D, 2, 7, "pre"), Block.of(D, 2, 7, "post")
    params = some(pre)
    params = params._replace(
        attention=params.attention._replace(W_o=np.zeros((D, D)), b_o=np.zeros(D)),
        ffn=params.ffn._replace(W_2=np.zeros((7, D)), b_2=np.zeros(D)),
    )
    Y, pullback = pre(params, X)
    assert np.array_equal(Y, X)
    dY = rng.standard_normal(X.shape)
    assert np.array_equal(pullback(dY)[1], dY)
    assert not np.allclose(post(params, X)[0], X, atol=0.1)


def test_the_pullback_can_be_opened():
    block = Block.of(D, 2, 7)
    _, pullback = block(some(block), X, causal=True)
    A = pullback.attention.A
    assert A.shape == (B, 2, N, N)
    assert np.allclose(A.sum(-1), 1)
    assert not np.triu(A, 1).any()
    assert pullback.cross is None
    block = Block.of(D, 2, 7, cross=True)
    _, pullback = block(some(block), X, Z)
    assert pullback.attention.A.shape == (B, 2, N, N)
    assert pullback.cross.A.shape == (B, 2, N, M)


# --------------------------------------------------------------------------------------------- invariants


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("t", range(N))
def test_causal_outputs_before_t_do_not_change_at_all(order, t):
    """Bit by bit: same shapes, same operations; so also in a decoder block."""
    changed = X.copy()
    changed[:, t, 0] += 1
    for other in (None, Z):
        block = Block.of(D, 2, 7, order, cross=other is not None)
        before, after = (block(some(block), X, other, causal=True)[0] for X in (X, changed))
        assert np.array_equal(before[:, :t], after[:, :t])
        assert not np.isclose(before[:, t:], after[:, t:]).all(-1).any()


def test_dropout_needs_a_generator():
    """Without one a block does not drop anything, whatever its rate; with one it follows the seed."""
    block = Block.of(D, 2, 7, dropout=0.5)
    params = some(block)
    assert np.array_equal(block(params, X)[0], Block.of(D, 2, 7)(params, X)[0])
    one = block(params, X, rng=np.random.default_rng(1))[0]
    assert np.array_equal(one, block(params, X, rng=np.random.default_rng(1))[0])
    assert not np.allclose(one, block(params, X, rng=np.random.default_rng(2))[0])


# --------------------------------------------------------------------------------------- parts of a block


@dataclass(frozen=True)
class Fade(Mixer):
    """y_i = a ⊙ Σ_j≤i x_j / 2^(i−j), of all j if not causal: a mixer that is no attention, for want of a simpler one."""

    width: int

    def init(self, rng, dtype=np.float32):
        return rng.standard_normal(self.width).astype(dtype)

    def __call__(self, params, X, *, causal=False, mask=None, rng=None):
        i = np.arange(X.shape[-2])
        W = (0.5 ** np.abs(i[:, None] - i)).astype(X.dtype)
        W = np.tril(W) if causal else W
        N = W @ X
        return N * params, FadePullback(N, W, params)


class FadePullback(Pullback):
    N: np.ndarray
    W: np.ndarray
    a: np.ndarray

    def __call__(self, dY):
        return (dY * self.N).reshape(-1, dY.shape[-1]).sum(0), self.W.T @ (dY * self.a)


@pytest.mark.parametrize("order", ["pre", "post"])
def test_another_mixer(order):
    """The block around it is the same: with its feed-forward network, with cross-attention, or with neither."""
    fade, ffn, cross = Fade(D), FeedForward(D, 7), MultiHeadAttention(D, 2)
    for block in (Block(fade, ffn, order=order), Block(fade, order=order), Block(fade, ffn, cross, order)):
        other = () if block.cross is None else (Z,)
        check_pullback(partial(block, causal=True), some(block), X, *other, zero=NO_EFFECT, entries=4)


@pytest.mark.parametrize("order", ["pre", "post"])
def test_a_block_of_attention_alone(order):
    """One step, and parameters for one step."""
    block = Block(MultiHeadAttention(D, 2), order=order, norm="layer:eps=0.1")
    params = some(block)
    assert params.ffn is params.ffn_norm is None
    attention, norm = MultiHeadAttention(D, 2), partial(Norm(D, eps=0.1), params.attention_norm)
    N = norm(X)[0] if order == "pre" else X
    Y = X + attention(params.attention, N)[0]
    np.testing.assert_allclose(block(params, X)[0], Y if order == "pre" else norm(Y)[0], rtol=1e-12)
    check_pullback(block, params, X, zero=NO_EFFECT, entries=4)
    whole, (first, state) = block(params, X, causal=True)[0], block.step(params, X[:, :3])
    last, _ = block.step(params, X[:, 3:], state)
    np.testing.assert_allclose(np.concatenate([first, last], 1), whole, rtol=1e-11, atol=1e-12)


def test_the_two_halves_apart():
    """A pre-norm block is X + mix(X), then X + change(X); reversible layers call the halves by themselves."""
    block = Block.of(D, 2, 7, dropout=0.3)
    params = some(block)
    drop = np.random.default_rng(4)
    mixed = X + block.mix(params, X, causal=True, mask=PADDING, rng=drop)[0]
    Y = mixed + block.change(params, mixed, rng=drop)[0]
    whole, _ = block(params, X, causal=True, mask=PADDING, rng=np.random.default_rng(4))
    np.testing.assert_array_equal(whole, Y)


@pytest.mark.parametrize("half", ["mix", "change"])
def test_gradient_of_each_half(half):
    block = Block.of(D, 2, 7)
    params = some(block)
    norm, layer = ("attention_norm", "attention") if half == "mix" else ("ffn_norm", "ffn")
    own = {name: getattr(params, name) for name in (norm, layer)}
    others = params._replace(**{norm: None, layer: None})
    run = partial(getattr(block, half), **({"causal": True, "mask": PADDING} if half == "mix" else {}))
    check_pullback(
        lambda norm_params, layer_params, X: run(
            tree_map(lambda leaf: leaf.astype(X.dtype), others)._replace(**{norm: norm_params, layer: layer_params}), X
        ),
        *(*own.values(), X),
        zero=("layer_params.b_k",) if half == "mix" else (),
        entries=8,
    )


def test_parts_of_one_width():
    with pytest.raises(ValueError, match="FeedForward: width 8 should be attention's, 6"):
        Block(MultiHeadAttention(D, 2), FeedForward(8, 7))
    with pytest.raises(ValueError, match="MultiHeadAttention: width 4 should be attention's, 6"):
        Block(MultiHeadAttention(D, 2), cross=MultiHeadAttention(4, 2))


# ----------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 4}, "width: 6 is not divisible into 4 heads"),
        ({"norm": "batch"}, "norm: no 'batch'; there are layer, layer_eps_outside, rms"),
        ({"norm": "rms:eps=-1.0"}, "eps: -1.0 should be at least 0"),
        ({"dropout": 1.0}, r"dropout: 1.0 should be in \[0, 1\)"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Block.of(**({"width": D, "heads": 2, "hidden": 7} | options))


def test_bad_input_is_refused(rng):
    block = Block.of(D, 2, 7)
    params = block.init(rng, np.float64)
    with pytest.raises(TypeError, match="parameter 'X'"):
        block(params, X[..., :5])
    with pytest.raises(TypeError, match="parameter 'rng'"):
        block(params, X, rng=0)
    decoder = Block.of(D, 2, 7, cross=True)
    with pytest.raises(TypeError, match="parameter 'Z'"):
        decoder(decoder.init(rng, np.float64), X, Z[:1])
    with pytest.raises(ValueError, match=r"mask: shape \(4, 5\) does not broadcast"):
        block(params, X, mask=np.ones((N, N + 1), bool))
    with pytest.raises(ValueError, match="should have the axes"):
        block(params, X, mask=np.ones((B, N, N), bool))


def test_other_rows_go_with_cross_attention(rng):
    encoder, decoder = (Block.of(D, 2, 7, cross=cross) for cross in (False, True))
    with pytest.raises(ValueError, match="Z: there is a Z, but no cross-attention"):
        encoder(encoder.init(rng, np.float64), X, Z)
    with pytest.raises(ValueError, match="Z: there is cross-attention, but no Z"):
        decoder(decoder.init(rng, np.float64), X)


def test_parameters_of_another_form_are_refused(rng):
    """By their path, before anything is computed: cross-attention or a feed-forward network that is missing, or too much."""
    encoder, decoder, alone = Block.of(D, 2, 7), Block.of(D, 2, 7, cross=True), Block(MultiHeadAttention(D, 2))
    for block, params, message in (
        (encoder, decoder.init(rng, np.float64), "params.cross_norm: should be None, is NormParams"),
        (decoder, encoder.init(rng, np.float64), "params.cross_norm: should be NormParams, is None"),
        (encoder, alone.init(rng, np.float64), "params.ffn_norm: should be NormParams, is None"),
        (alone, encoder.init(rng, np.float64), "params.ffn_norm: should be None, is NormParams"),
    ):
        other = (Z,) if block is decoder else ()
        with pytest.raises(TypeError, match=message):
            block(params, X, *other)


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("gives", [None, lambda dY: dY, lambda dY: (dY,), lambda dY: (NoParams(), dY, dY)])
def test_a_mixer_whose_pullback_gives_too_little_or_too_much_is_named(order, gives):
    class OwnPullback(Pullback):
        X: np.ndarray

        def __call__(self, dY):
            return gives and gives(dY)

    @dataclass(frozen=True)
    class Own(Mixer):
        width: int = D

        def init(self, rng, dtype=np.float32):
            return NoParams()

        def __call__(self, params, X, *, causal=False, mask=None, rng=None):
            return X, OwnPullback(X)

    block = Block(Own(), order=order)
    Y, pullback = block(block.init(np.random.default_rng(0), np.float64), X)
    with pytest.raises(ValueError, match=r"^OwnPullback: should give 2 gradients, of params and X, and gives"):
        pullback(Y)
