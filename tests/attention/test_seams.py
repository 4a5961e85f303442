"""What the seams carry beside queries, keys and values: shared and untrained parameters, streams, draws, added losses,
tokens from outside, halves of a block, blocks that differ. Tried on a core that asks for all of it (everything.py)."""

import importlib.util
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from minitransformer import check_pullback
from minitransformer.attention import DeltaRule, KernelAttention, MultiHeadAttention, SoftmaxAttention, Window
from minitransformer.contract import some
from minitransformer.data.text import Text
from minitransformer.functional import cross_entropy
from minitransformer.models import Block, FeedForward, LanguageModel, Stack
from minitransformer.positions import RoPE
from minitransformer.pullback import added_losses, tree_get, tree_leaves, tree_set, with_added
from minitransformer.training.choices import Training
from minitransformer.training.loop import start, train
from minitransformer.training.objective import NextByte
from minitransformer.training.schedule import Cosine

pytestmark = pytest.mark.usefixtures("definitions")

spec = importlib.util.spec_from_file_location("everything", Path(__file__).with_name("everything.py"))
everything = importlib.util.module_from_spec(spec)
spec.loader.exec_module(everything)

D, H = 12, 2
MODEL = LanguageModel(40, 24, D, 3, H, 10, attention=everything.Everything(D // H, H))
LETTERS = np.resize(np.frombuffer(b"abcdefgh ijkl. ", np.uint8), 4000) % 40


# ------------------------------------------------------------------------------------------- parameters


def test_what_layers_share_is_stored_once_and_gets_the_sum(rng):
    params, tokens = some(MODEL), rng.integers(0, 40, (2, 6))
    assert list(params.stack.shared) == ["attention.core.e"]
    assert all(block.attention.core.e is None for block in params.stack.blocks)
    untrained = [f"params.{path}" for path in MODEL.untrained]
    assert untrained == [f"params.stack.blocks.{k}.attention.core.c" for k in range(3)]
    check_pullback(lambda params: MODEL(params, tokens), params, untrained=untrained, entries=2)


def test_a_stack_can_share_everything(rng):
    """A Universal Transformer: one block, over and over."""
    block, X = Block.of(8, 2, 10), rng.standard_normal((2, 5, 8))
    once, thrice = Stack((block,)), Stack((block,) * 3, tied=("",))
    params = some(thrice)
    assert params.blocks == (None, None, None)
    Z = X
    for _ in range(3):
        Z, _ = block(params.shared[""], Z)
    assert np.allclose(thrice(params, X)[0], once._last_norm(params, Z)[0])
    check_pullback(thrice, params, X, zero=["params.shared..attention.b_k"], entries=3)


def test_a_path_can_be_tied(rng):
    stack = Stack((Block.of(8, 2, 10),) * 2, tied=("ffn.W_1",))
    params = some(stack)
    assert params.shared["ffn.W_1"].shape == (8, 10)
    keys = [f"params.blocks.{k}.attention.b_k" for k in range(2)]
    check_pullback(stack, params, rng.standard_normal((2, 5, 8)), zero=keys, entries=3)


def test_blocks_take_turns_and_share_what_both_have(rng):
    model = LanguageModel(40, 24, D, 4, H, 10, attention=("softmax", Window(3)), positions="t5")
    params, tokens = some(model), rng.integers(0, 40, (2, 9))
    assert list(params.stack.shared) == ["attention.core.table"]
    _, pullback = model(params, tokens)
    far = np.tril(np.ones((9, 9), bool), -4)
    assert [(block.attention.A[..., far] > 0).all() for block in pullback.blocks] == [True, False, True, False]
    assert not pullback.blocks[1].attention.A[..., far].any()
    keys = [f"params.stack.blocks.{k}.attention.b_k" for k in range(4)]
    check_pullback(lambda params: model(params, tokens), params, zero=keys, entries=2)


def test_no_gradient_moves_what_is_untrained_but_the_model_does():
    """c follows the mean of the values: after each step, nine tenths of it and a tenth of that."""
    objective = NextByte(Text(LETTERS, LETTERS[:600], "letters", ""), 24)
    training = Training(1, 4, Cosine(2e-2, 1), parts=2, look_every=1)
    before = start(MODEL, training)
    after = train(MODEL, objective, training, progress=False)
    inputs, _ = objective.batch(4, np.random.default_rng([training.seed, 1]))
    noise = [np.random.default_rng([training.seed, 1, k]) for k in range(2)]
    seen = [
        MODEL.observe(MODEL(before.params, half, rng=r)[1]) for half, r in zip(np.split(inputs, 2), noise, strict=True)
    ]
    for k in range(3):
        old, new = (state.params.stack.blocks[k].attention.core.c for state in (before, after))
        mean = (seen[0]["stack"][k] + seen[1]["stack"][k]) / 2
        assert np.allclose(new, 0.9 * old + 0.1 * mean, atol=1e-6)
        assert not after.optimiser.m.stack.blocks[k].attention.core.c.any()


# ---------------------------------------------------------------------------------- added losses and draws


def test_an_added_loss_has_its_gradient(rng):
    """loss = cross-entropy + Σ β² of all layers, against difference quotients of the sum."""
    params, tokens, targets = some(MODEL), *rng.integers(0, 40, (2, 2, 6))

    def loss(params):
        logits, model = MODEL(params, tokens)
        task, entropy = cross_entropy(logits, targets)
        return task + sum(added_losses(model)), lambda dloss: with_added(model, dloss)(entropy(dloss))

    untrained = [f"params.{path}" for path in MODEL.untrained]
    check_pullback(loss, params, untrained=untrained, entries=2)
    _, pullback = MODEL(params, tokens)
    assert len(added_losses(pullback)) == 3
    assert MODEL.adds_loss
    assert not LanguageModel().adds_loss
    again = with_added(pullback, 1.0)
    assert pullback.blocks[0].attention.layer.core.dadded == 0
    assert again.blocks[2].attention.layer.core.dadded == 1
    assert again.blocks[0].attention.layer.core.Q is pullback.blocks[0].attention.layer.core.Q


def test_training_pays_for_the_added_loss():
    """With nothing to learn from, the weights of the penalty shrink."""
    objective = NextByte(Text(LETTERS, LETTERS[:600], "letters", ""), 24)
    training = Training(20, 4, Cosine(2e-2, 20, 1), parts=1, look_every=20)
    before, after = start(MODEL, training), train(MODEL, objective, training, progress=False)
    for k in range(3):
        beta = [state.params.stack.blocks[k].attention.core.beta for state in (before, after)]
        assert (np.abs(beta[1]) < np.abs(beta[0])).all()


def test_a_generator_reaches_the_core_and_a_fixed_seed_does_where_there_is_none(rng):
    params, tokens = some(MODEL), rng.integers(0, 40, (2, 6))
    drawn = [MODEL(params, tokens, rng=np.random.default_rng(seed))[0] for seed in (3, 3, 4)]
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.allclose(drawn[0], drawn[2])
    assert np.array_equal(MODEL(params, tokens)[0], MODEL(params, tokens)[0])


# ------------------------------------------------------------------------------------- tokens from outside


@pytest.mark.parametrize(
    "core", [SoftmaxAttention(), SoftmaxAttention(Window(4)), KernelAttention(), everything.Everything(6, 2)]
)
@pytest.mark.parametrize("rotate", [None, RoPE(6)])
def test_a_memory_is_looked_at_and_not_answered(core, rotate, rng):
    """As the last rows of attention over all of it, with a gradient for both; queries are the last of the positions."""
    layer = MultiHeadAttention(D, H, bias=False, core=core, rotate=rotate)
    params, memory, X = some(layer), rng.standard_normal((2, 5, D)), rng.standard_normal((2, 4, D))
    if core.queries_are_keys:
        with pytest.raises(ValueError, match="memory: in Everything queries are the keys"):
            layer(params, X, memory=memory)
        return
    whole, _ = layer(params, np.concatenate([memory, X], 1), causal=True)
    Y, _ = layer(params, X, memory=memory, causal=True)
    assert np.allclose(Y, whole[:, 5:], atol=1e-12)
    check_pullback(lambda params, X, memory: layer(params, X, memory=memory, causal=True), params, X, memory, entries=4)


def test_what_has_no_use_for_a_memory_says_so(rng):
    layer = MultiHeadAttention(D, H, core=DeltaRule())
    X = rng.standard_normal((2, 4, D))
    with pytest.raises(ValueError, match="8 keys for 4 queries"):
        layer(some(layer), X, memory=X, causal=True)


# ------------------------------------------------------------------------------------------- parts of a block


@pytest.mark.parametrize("core", [SoftmaxAttention(), DeltaRule()])
def test_the_halves_of_a_block_can_be_called_apart(core, rng):
    """X + mix(X), then + change: what reversible layers need."""
    block = Block(MultiHeadAttention(D, H, core=core), FeedForward(D, 10), dropout=0.3)
    params, X = some(block), rng.standard_normal((2, 5, D))
    whole, _ = block(params, X, causal=True, rng=np.random.default_rng(3))
    draws = np.random.default_rng(3)
    Z = X + block.mix(params, X, causal=True, rng=draws)[0]
    assert np.array_equal(whole, Z + block.change(params, Z, rng=draws)[0])
    for half in (partial(block.mix, causal=True), block.change):
        Y, pullback = half(params, X)
        dnorm, dlayer, dX = pullback(Y)
        own = (params.ffn_norm, params.ffn) if half == block.change else (params.attention_norm, params.attention)
        assert [a.shape for a in tree_leaves((dnorm, dlayer))] == [a.shape for a in tree_leaves(own)]
        assert dX.shape == X.shape


def test_a_block_of_attention_alone(rng):
    block = Block(MultiHeadAttention(D, H, bias=False))
    params, X = some(block), rng.standard_normal((2, 5, D))
    assert params.ffn is None
    check_pullback(block, params, X, entries=3)
    with pytest.raises(ValueError, match="attention alone"):
        block.change(params, X)


# ------------------------------------------------------------------------------------------------- trees


def test_parts_of_a_tree_by_path():
    tree = {"a": (1, [2, {"b": 3}]), "c": Block.of(4, 2, 5).init(np.random.default_rng(0))}
    assert tree_get(tree, "a.1.1.b") == 3
    assert tree_get(tree, "") is tree
    assert tree_get(tree, "c.ffn.W_1").shape == (4, 5)
    assert tree_set(tree, "a.1.1.b", 7)["a"] == (1, [2, {"b": 7}])
    assert tree_set(tree, "c.ffn.W_1", None)["c"].ffn.W_1 is None
    assert tree_set(tree, "", 5) == 5
    assert tree["a"] == (1, [2, {"b": 3}])


def test_cross_attention_is_dense_and_says_so(rng):
    layer, X = MultiHeadAttention(D, H, core=DeltaRule()), rng.standard_normal((2, 4, D))
    with pytest.raises(ValueError, match="cross: DeltaRule has parameters or norms"):
        layer.cross(some(layer), X, X)


def test_an_empty_memory_has_an_empty_gradient(rng):
    """What the first segment of a text has before it."""
    layer, X = MultiHeadAttention(D, H, bias=False), rng.standard_normal((2, 4, D))
    params = some(layer)
    Y, pullback = layer(params, X, memory=X[:, :0], causal=True)
    assert np.array_equal(Y, layer(params, X, causal=True)[0])
    _, dX, dmemory = pullback(Y)
    assert dmemory.shape == (2, 0, D)
    assert dX.shape == X.shape
