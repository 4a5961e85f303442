"""Reversible layers: the inverse, the gradients of the plain two-stream computation, memory, and what is drawn again."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback, tree_items
from minitransformer.attention import MultiHeadAttention
from minitransformer.attention.selected import AdaptiveSpan, Reformer
from minitransformer.contract import some
from minitransformer.data.text import Text
from minitransformer.models import Block, FeedForward, LanguageModel, SequenceModel
from minitransformer.models.reversible import ReversibleStack, back, forth
from minitransformer.pullback import added_losses, tree_bytes, with_added
from minitransformer.training.checkpoint import Checkpoint, load, save
from minitransformer.training.choices import Training
from minitransformer.training.loop import start, train
from minitransformer.training.objective import NextByte
from minitransformer.training.schedule import Cosine
from tests.pieces import in_pieces

pytestmark = pytest.mark.usefixtures("definitions")

B, N, D, H = 2, 9, 12, 2
LETTERS = np.resize(np.frombuffer(b"abcdefgh ijkl. ", np.uint8), 4000) % 40


def stack_of(depth, core=None, dropout=0.0, **options):
    attention = (
        MultiHeadAttention(D, H, bias=False) if core is None else MultiHeadAttention(D, H, bias=False, core=core)
    )
    return ReversibleStack((Block(attention, FeedForward(D, 10), dropout=dropout),) * depth, **options)


def rows(*shape, seed=2):
    return np.random.default_rng(seed).standard_normal((*shape, D))


def two_streams(stack, params, X, rngs, causal=False):
    """The plain computation, which remembers everything: Y, and a pullback written out block by block."""
    X_1 = X_2 = X
    kept = []
    for k, (block, own) in enumerate(zip(stack.blocks, params.blocks, strict=True)):
        F, f = block.mix(own, X_2, causal=causal, rng=rngs(2 * k))
        X_1 = X_1 + F
        G, g = block.change(own, X_1, rng=rngs(2 * k + 1))
        X_2 = X_2 + G
        kept.append((f, g))
    Y, norm = stack._last_norm(params, (X_1 + X_2) / 2)

    def pullback(dY):
        dnorm, d = norm(dY)
        d_1, d_2, grads = d / 2, d / 2, []
        for f, g in reversed(kept):
            *of_G, dX = g(d_2)
            d_1 = d_1 + dX
            *of_F, dX = f(d_1)
            d_2 = d_2 + dX
            grads.insert(0, (*of_F, *of_G))
        return grads, dnorm, d_1 + d_2

    return Y, pullback, kept


def test_the_inputs_are_found_again(tier):
    """To 1e-12 in float64, through eight blocks."""
    stack, X = stack_of(8), rows(B, N)
    params = some(stack)
    halves = stack.halves(params, True, None, 5)
    Y_1, Y_2 = X, rows(B, N, seed=3)
    inputs = [(Y_1, Y_2)]
    for F, G in halves:
        Y_1, Y_2, _, _ = forth(F, G, Y_1, Y_2)
        inputs.append((Y_1, Y_2))
    for (F, G), before in zip(reversed(halves), reversed(inputs[:-1]), strict=True):
        Y_1, Y_2, *_ = back(F, G, Y_1, Y_2, 0 * X, 0 * X)
        for found, known in zip((Y_1, Y_2), before, strict=True):
            assert np.abs(found - known).max() <= 1e-12 * np.abs(inputs[-1]).max()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_values_and_gradients_are_those_of_the_plain_two_streams(dropout):
    """With dropout it draws again what it drew; the plain computation is given the same draws, and keeps them."""
    stack, X = stack_of(5, dropout=dropout), rows(B, N)
    params = some(stack)
    Y, pullback = stack(params, X, causal=True, rng=np.random.default_rng(7) if dropout else None)
    assert (pullback.seed is not None) == bool(dropout)
    want, plain, _ = two_streams(
        stack, params, X, lambda k: np.random.default_rng([pullback.seed, k]) if dropout else None, causal=True
    )
    np.testing.assert_array_equal(Y, want)
    dY = rows(B, N, seed=3)
    (dblocks, dnorm, *_), dX = pullback(dY)
    for found, known in zip(tree_items((dblocks, dnorm, dX)), tree_items(plain(dY)), strict=True):
        np.testing.assert_allclose(found[1], known[1], rtol=1e-9, atol=1e-11, err_msg=found[0])


@pytest.mark.parametrize("core", [None, Reformer(2, 4, 3)], ids=["dense", "reformer"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradient(core, dropout):
    stack, X = stack_of(2, core, dropout), rows(B, N)
    function = partial(stack, causal=True)
    if dropout:
        check_pullback(lambda params, X: function(params, X, rng=np.random.default_rng(4)), some(stack), X, entries=3)
    else:
        check_pullback(function, some(stack), X, entries=3)


def test_a_generator_reaches_attention():
    """Reformer draws its hash from it; the same one gives the same."""
    stack, X = stack_of(2, Reformer(rounds=1, buckets=4, chunk=4)), rows(B, N)
    params = stack.init(np.random.default_rng(0), np.float64)
    found = [stack(params, X, rng=np.random.default_rng(seed))[0] for seed in (1, 1, 2)]
    np.testing.assert_array_equal(found[0], found[1])
    assert (found[0] != found[2]).any()


def test_tied_blocks():
    stack = stack_of(3, tied=("ffn.W_1",))
    check_pullback(stack, some(stack), rows(B, N), entries=2)


def test_memory_does_not_grow_with_the_depth():
    """Bytes of the pullback beside the parameters, which are the model's: the same for 2 blocks and for 12."""

    def remembered(depth, stack):
        model = LanguageModel(40, 64, D, depth, H, 10, stack=stack)
        params = model.init(np.random.default_rng(0))
        _, pullback = model(params, np.ones((4, 64), int), rng=np.random.default_rng(0))
        return tree_bytes((params, pullback)) - tree_bytes(params)

    assert remembered(2, "reversible") == remembered(12, "reversible")
    assert remembered(12, "plain") > 5 * remembered(2, "plain")
    assert remembered(12, "reversible") < remembered(12, "plain") / 20


def test_an_added_loss_goes_back_as_well():
    """Spans pay their penalty in reversible layers too, and are clamped after the step."""
    span = AdaptiveSpan(H, N, ramp=40, penalty=0.7)
    stack, X = stack_of(3, span), rows(B, N)
    params = some(stack)
    Y, pullback = stack(params, X, causal=True)
    _, _, kept = two_streams(stack, params, X, lambda k: None, causal=True)
    assert added_losses(pullback) == [pytest.approx(sum(sum(added_losses(f)) for f, _ in kept))]
    (without, *_), _ = pullback(0 * Y)
    (paid, *_), _ = with_added(pullback, 1.0)(0 * Y)
    for a, b in zip(without, paid, strict=True):
        np.testing.assert_allclose(b.attention.core.span - a.attention.core.span, N * 0.7 / H, rtol=1e-12)
    assert stack.moves
    assert stack.observe(pullback) == (None,) * 3


@pytest.mark.parametrize("attention", ["softmax", "span", "reformer", ("softmax", "reformer")])
def test_a_model_is_told_so_and_trains(attention, tier, tmp_path):
    model = LanguageModel(40, 24, D, 2, H, 10, attention=attention, dropout=0.1, stack="reversible")
    objective = NextByte(Text(LETTERS, LETTERS[:600], "letters", ""), 24)
    training = Training(10, 4, Cosine(2e-2, 10, 1), parts=2, look_every=10)
    before, after = start(model, training), train(model, objective, training, progress=False)
    assert after.losses[-1] < after.losses[0]
    mt.tree_map(lambda *_: None, before.params, after.params)
    save(tmp_path / "run.safetensors", Checkpoint(model, training, after, objective.data))
    assert load(tmp_path / "run.safetensors").model == model


@pytest.mark.parametrize("attention", ["softmax", "linear", ("softmax", "window:radius=3")])
def test_one_by_one_is_the_same_as_all_at_once(attention, tier):
    model = LanguageModel(40, 24, D, 3, H, 10, attention=attention, stack="reversible")
    params = model.init(np.random.default_rng(0), np.float64)
    tokens = np.random.default_rng(1).integers(0, 40, (2, 13))
    said, _ = in_pieces(model, params, tokens, (0, 7, 8, 9, 13))
    np.testing.assert_allclose(said, model(params, tokens)[0], atol=1e-11)


def test_it_is_not_a_usual_stack():
    """The same parameters, another function; padding is hidden as ever."""
    model = SequenceModel(40, 24, D, 3, H, 10, stack="reversible")
    params, tokens = model.init(np.random.default_rng(0)), np.random.default_rng(1).integers(0, 40, (2, N))
    logits, _ = model(params, tokens, lengths=np.array([N, 4]))
    assert not np.allclose(logits, replace(model, stack="plain")(params, tokens, lengths=np.array([N, 4]))[0])
    alone, _ = model(params, tokens[1:, :4])
    np.testing.assert_allclose(logits[1, :4], alone[0], atol=1e-5)


class Louder(Block):
    def __call__(self, params, X, **options):
        Y, pullback = super().__call__(params, X, **options)
        return 2 * Y, pullback


class LouderHalf(Block):
    def change(self, params, X, **options):
        Y, pullback = super().change(params, X, **options)
        return 2 * Y, pullback


def test_a_block_with_a_half_of_its_own_does_not_write_without_it():
    """A step calls attention and the network themselves."""
    usual = Block.of(D, H, 10)
    own = [ReversibleStack((kind(usual.attention, usual.ffn),)).decodes for kind in (Block, LouderHalf)]
    assert own == [True, False]


def test_what_is_refused():
    with pytest.raises(ValueError, match="order: reversible layers are pre-norm"):
        LanguageModel(order="post", stack="reversible")
    attention = MultiHeadAttention(D, H)
    for block in (Block(attention), Block.of(D, H, 10, cross=True)):
        with pytest.raises(ValueError, match="blocks: reversible ones have two halves"):
            ReversibleStack((block,))
    usual = Block.of(D, H, 10)
    with pytest.raises(
        ValueError, match="blocks: Louder has a `__call__` of its own; reversible ones are called by halves"
    ):
        ReversibleStack((Louder(usual.attention, usual.ffn),))
    stack = stack_of(2)
    with pytest.raises(TypeError, match=r"params\.blocks: should be tuple of 2, is tuple of 1"):
        stack.step(stack_of(1).init(np.random.default_rng(0)), rows(B, N))
    with pytest.raises(ValueError, match="blocks: reversible ones take no tokens in front, and these want 8"):
        SequenceModel(attention="etc", stack="reversible")
