"""Stacks of blocks."""

import functools
from functools import partial

import numpy as np
import pytest

from minitransformer import check_pullback, random_like, tree_items, tree_map, tree_size
from minitransformer.attention import (
    Core,
    DeltaRule,
    KernelAttention,
    MultiHeadAttention,
    SoftmaxAttention,
    causal_mask,
    padding_mask,
)
from minitransformer.attention.linear import Performer
from minitransformer.attention.selected import Routing
from minitransformer.models import Block, FeedForward, LanguageModel, Norm, Stack
from minitransformer.positions import DynamicNTK, RoPE, T5Bias
from minitransformer.pullback import NoParams, tree_add, tree_get, tree_leaves, tree_set
from tests.pieces import in_pieces

pytestmark = pytest.mark.usefixtures("definitions")

fixed = np.random.default_rng(0)
B, N, M, D = 2, 4, 5, 6
X, Z = fixed.standard_normal((B, N, D)), fixed.standard_normal((B, M, D))
PADDING = padding_mask(np.array([N, 2]), N)[..., None, :, :]
Z_PADDING = padding_mask(np.array([3, M]), M)[..., None, :, :]


def blocks(depth, order="pre", *, cross=False, dropout=0.0):
    return Stack((Block.of(D, 2, 7, order, dropout=dropout, cross=cross),) * depth)


def some(stack):
    """Parameters at which nothing hides: random gains and biases; not too large, or softmax has made up its mind."""
    rng = np.random.default_rng(2)
    return tree_map(lambda a: 0.7 * a, random_like(stack.init(rng, np.float64), rng))


def without_effect(params):
    return [path for path, _ in tree_items(params, "params") if path.endswith("b_k")]


@pytest.mark.parametrize("options", [{"causal": True}, {"mask": PADDING}], ids=["causal", "padding"])
@pytest.mark.parametrize("order", ["pre", "post"])
def test_gradient(order, options):
    stack = blocks(2, order)
    params = some(stack)
    check_pullback(partial(stack, **options), params, X, zero=without_effect(params), entries=2)


@pytest.mark.parametrize("order", ["pre", "post"])
def test_gradient_of_a_decoder(order):
    """The encoder's output collects a gradient from every block."""
    stack = blocks(2, order, cross=True)
    params = some(stack)
    check_pullback(
        partial(stack, causal=True, Z_mask=Z_PADDING), *(params, X, Z), zero=without_effect(params), entries=2
    )


def test_gradient_with_dropout():
    stack = blocks(2, cross=True, dropout=0.3)
    params = some(stack)
    check_pullback(
        lambda params, X, Z: stack(params, X, Z, causal=True, rng=np.random.default_rng(4)),
        *(params, X, Z),
        zero=without_effect(params),
        entries=1,
    )


@pytest.mark.parametrize("order", ["pre", "post"])
def test_blocks_one_after_another(order):
    """And in a pre-norm stack one more norm."""
    block = Block.of(D, 2, 7, order)
    stack = Stack((block,) * 3)
    params = some(stack)
    Y = X
    for p in params.blocks:
        Y, _ = block(p, Y, causal=True)
    if order == "pre":
        Y, _ = Norm(D)(params.norm, Y)
    else:
        assert params.norm is None
    assert np.array_equal(stack(params, X, causal=True)[0], Y)


def test_every_block_of_the_decoder_looks_at_the_encoders_output(rng):
    stack = blocks(3, cross=True)
    Y, pullback = stack(some(stack), X, Z, causal=True)
    assert [block.cross.A.shape for block in pullback.blocks] == [(B, 2, N, M)] * 3
    dY = rng.standard_normal(Y.shape)
    dX = pullback.norm(dY)[1]
    total = np.zeros_like(Z)
    for block in reversed(pullback.blocks):
        _, dX, dZ = block(dX)
        assert dZ.any()
        total += dZ
    assert np.allclose(pullback(dY)[2], total, rtol=1e-13)


def test_blocks_have_parameters_of_their_own(rng):
    params = blocks(3).init(rng)
    assert not np.array_equal(params.blocks[0].attention.W_q, params.blocks[1].attention.W_q)
    assert params.blocks[0].attention.W_q.dtype == np.float32
    assert params.blocks[0].cross is None
    assert blocks(2, cross=True).init(rng).blocks[1].cross.W_q.shape == (D, D)


def test_the_pullback_can_be_opened():
    stack = blocks(3)
    _, pullback = stack(some(stack), X)
    assert pullback.blocks[2].attention.A.shape == (B, 2, N, N)


# ---------------------------------------------------------------------------- blocks that differ, or share


DIFFERENT = (
    Block.of(D, 2, 7),
    Block(MultiHeadAttention(D, 3, bias=False, core=KernelAttention()), FeedForward(D, 9)),
    Block(MultiHeadAttention(D, 2, groups=1)),
)


def test_blocks_may_differ():
    """Heads, cores, with a feed-forward network or without: only the width and the order are those of all."""
    stack = Stack(DIFFERENT)
    params = some(stack)
    assert (stack.width, stack.depth, stack.decodes) == (D, 3, True)
    Y = X
    for block, p in zip(DIFFERENT, params.blocks, strict=True):
        Y, _ = block(p, Y, causal=True)
    whole, _ = stack(params, X, causal=True)
    np.testing.assert_array_equal(whole, Norm(D)(params.norm, Y)[0])
    zero = [path for path in without_effect(params) if "blocks.1" not in path]  # kernel attention feels a bias of keys
    check_pullback(partial(stack, causal=True), params, X, zero=zero, entries=2)
    np.testing.assert_allclose(in_pieces(stack, params, X, (0, 2, 3, 4))[0], whole, rtol=1e-10, atol=1e-11)


def test_one_block_that_can_not_decode_is_enough():
    turned = MultiHeadAttention(D, 1, rotate=RoPE(D, scaling=DynamicNTK(2.0, 3)))
    assert not Stack((Block.of(D, 2, 7), Block(turned))).decodes


def test_one_block_that_can_not_look_both_ways_is_enough():
    stack = Stack((Block.of(D, 2, 7), Block(MultiHeadAttention(D, 2, core=DeltaRule()))))
    stack.refuse(causal=True)
    with pytest.raises(ValueError, match="attention: DeltaRule is always causal"):
        stack.refuse(causal=False)


@pytest.mark.parametrize("paths", [("ffn",), ("attention.W_q", "attention_norm"), ("",)], ids=str)
def test_tied_parameters(paths):
    """One part of the tree for all blocks, and a gradient that is the sum over the blocks."""
    stack, apart = Stack((Block.of(D, 2, 7),) * 3, tied=paths), blocks(3)
    params = some(stack)
    assert set(params.shared) == set(paths)
    for path in paths:
        assert [tree_get(block, path) for block in params.blocks] == [None] * 3
    untied = params._replace(
        blocks=tuple(functools.reduce(lambda b, p: tree_set(b, p, params.shared[p]), paths, b) for b in params.blocks),
        shared=None,
    )
    (Y, pullback), (same, pullback_apart) = stack(params, X, causal=True), apart(untied, X, causal=True)
    np.testing.assert_array_equal(Y, same)
    (dparams, dX), (dapart, dX_apart) = pullback(Y), pullback_apart(Y)
    np.testing.assert_array_equal(dX, dX_apart)
    for path in paths:
        total = functools.reduce(tree_add, (tree_get(block, path) for block in dapart.blocks))
        for ours, theirs in zip(tree_leaves(dparams.shared[path]), tree_leaves(total), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    check_pullback(partial(stack, causal=True), params, X, zero=without_effect(params), entries=3)
    first, state = stack.step(params, X[:, :3])
    last, _ = stack.step(params, X[:, 3:], state)
    np.testing.assert_allclose(np.concatenate([first, last], 1), Y, rtol=1e-10, atol=1e-11)


def test_what_is_shared_is_counted_once():
    one, three = Stack((Block.of(D, 2, 7),), tied=("",)), Stack((Block.of(D, 2, 7),) * 3, tied=("",))
    rng = np.random.default_rng(0)
    assert tree_size(three.init(rng)) == tree_size(one.init(rng)) == tree_size(blocks(1).init(rng))


def test_what_only_some_blocks_share():
    """T5's table is that of the blocks that have it."""
    t5 = Block(MultiHeadAttention(D, 2, core=SoftmaxAttention(encoding=T5Bias(2))))
    stack = Stack((t5, Block.of(D, 2, 7), t5))
    params = some(stack)
    assert stack.ties == (("attention.core.table", (0, 2)),)
    assert params.shared["attention.core.table"].shape == (2, 32)
    assert params.blocks[1].attention.core == NoParams()
    dparams, _ = stack(params, X, causal=True)[1](X)
    assert tree_size(dparams) == tree_size(params)
    check_pullback(partial(stack, causal=True), params, X, zero=without_effect(params), entries=2)


# ------------------------------------------------------------------------------------------------ bad input


def test_a_stack_needs_a_block():
    with pytest.raises(ValueError, match="blocks: a stack needs at least one"):
        Stack(())


def test_blocks_of_several_forms_that_can_not_be_stacked():
    for other in (Block.of(8, 2, 7), Block.of(D, 2, 7, "post")):
        with pytest.raises(ValueError, match="blocks: all should have the same width and order"):
            Stack((Block.of(D, 2, 7), other))


@pytest.mark.parametrize("core", [Routing(2, 3, 16), Performer(2, 3)], ids=lambda core: type(core).__name__)
def test_what_each_block_moves_by_itself_can_not_be_tied(core):
    block = Block(MultiHeadAttention(D, 2, core=core), FeedForward(D, 7))
    for tied in (("",), ("attention",), ("ffn", "attention.core"), (f"attention.{block.attention.untrained[0]}",)):
        with pytest.raises(ValueError, match=r"^tied: .* has parameters that after_step moves$"):
            Stack((block,) * 2, tied=tied)
    stack = Stack((block,) * 2, tied=("attention.W_q", "ffn"))
    params = some(stack)
    _, pullback = stack(params, X, causal=True)
    moved = stack.after_step(params, stack.observe(pullback), np.random.default_rng(0))
    assert [path for path, _ in tree_items(moved)] == [path for path, _ in tree_items(params)]


def test_parameters_of_another_depth_are_refused(rng):
    stack, deeper = blocks(2), blocks(3).init(rng, np.float64)
    with pytest.raises(TypeError, match=r"params\.blocks: should be tuple of 2, is tuple of 3"):
        stack.step(deeper, X)
    with pytest.raises(TypeError, match=r"params\.blocks: should be tuple of 2, is tuple of 3"):
        stack(deeper, X)
    with pytest.raises(TypeError, match=r"params\.blocks: should be tuple of 2, is tuple of 3"):
        blocks(2, cross=True)(blocks(3, cross=True).init(rng, np.float64), X, Z)


def test_parameters_that_share_something_else_are_refused(rng):
    tied = Stack((Block.of(D, 2, 7),) * 2, tied=("ffn",))
    with pytest.raises(TypeError, match=r"params\.blocks\.0\.ffn: should be None, is FeedForwardParams"):
        tied(blocks(2).init(rng, np.float64), X)
    with pytest.raises(TypeError, match=r"params\.blocks\.0\.ffn: should be FeedForwardParams, is None"):
        blocks(2)(tied.init(rng, np.float64), X)


def test_a_path_that_is_not_there(rng):
    with pytest.raises(ValueError, match=r"^fnn: the blocks should share it, and have no such parameter; `tied`"):
        Stack((Block.of(D, 2, 7),) * 2, tied=("fnn",)).init(rng)


@pytest.mark.parametrize("states", [1, 3])
def test_a_past_of_another_depth_is_refused(rng, states):
    stack = blocks(2)
    params = stack.init(rng, np.float64)
    _, past = stack.step(params, X)
    with pytest.raises(TypeError, match=f"^states: should be tuple of 2, is tuple of {states}"):
        stack.step(params, X, (past * 2)[:states])


class Louder(Block):
    """A block with a `__call__` of its own, and the `step` of its base."""

    def __call__(self, params, X, Z=None, **options):
        Y, pullback = super().__call__(params, X, Z, **options)
        return 2 * Y, pullback


class LouderToo(Louder):
    def step(self, params, X, state=None):
        Y, state = super().step(params, X, state)
        return 2 * Y, state


class LouderStack(Stack):
    """A stack with a `__call__` of its own, and the `step` of its base."""

    def __call__(self, params, X, Z=None, **options):
        Y, pullback = super().__call__(params, X, Z, **options)
        return 2 * Y, pullback


class LouderStackToo(LouderStack):
    def step(self, params, X, states=None):
        Y, states = super().step(params, X, states)
        return 2 * Y, states


class Centred(Norm):
    def __call__(self, params, X):
        Y, pullback = super().__call__(params, X)
        return Y - 1, pullback


def test_who_writes_does_what_was_trained():
    usual = Block.of(D, 2, 7)
    kinds = Block, Louder, LouderToo
    own = [Stack((kind(usual.attention, usual.ffn),)).decodes for kind in kinds]
    assert own == [True, False, True]
    assert [kind((usual,)).decodes for kind in (Stack, LouderStack, LouderStackToo)] == [True, False, True]
    norm = Centred(D)
    params = norm.init(np.random.default_rng(0), np.float64)
    np.testing.assert_array_equal(norm.value(params, X), norm(params, X)[0])


def louder(base):
    """A mixer or a core with a `__call__` of its own, and what its base has for a step."""

    class Own(base):
        def __call__(self, *arrays, **options):
            Y, pullback = super().__call__(*arrays, **options)
            return 2 * Y, pullback

    return Own


class Sum(Core):
    """Its step is that of every core, which calls it."""

    def __call__(self, params, Q, K, V, *, causal, mask, rng):
        A = causal_mask(Q.shape[-2], K.shape[-2]).astype(V.dtype)
        return A @ V, lambda dY: dY


def test_the_step_of_a_base_is_refused_where_a_subclass_has_a_call_of_its_own(rng):
    """Called directly, the layer gave what its base gives; a `step` of its own may still call that of the base."""

    class Too(louder(MultiHeadAttention)):
        def step(self, params, X, state=None):
            Y, state = super().step(params, X, state)
            return 2 * Y, state

    class Heir(louder(MultiHeadAttention)):
        pass

    params = MultiHeadAttention(D, 2).init(rng, np.float64)
    said = r"^(Own|Heir): its `__call__` is its own, and the `step` that it inherits goes on as its base does"
    for layer in (louder(MultiHeadAttention)(D, 2), Heir(D, 2)):
        with pytest.raises(TypeError, match=said):
            layer.step(params, X)
    np.testing.assert_allclose(Too(D, 2).step(params, X)[0], Too(D, 2)(params, X, causal=True)[0], rtol=0, atol=1e-12)
    Q, K, V = rng.standard_normal((3, 2, 2, 5, 6))
    with pytest.raises(TypeError, match=said):
        louder(SoftmaxAttention)().step(NoParams(), Q, K, V)
    A = causal_mask(5, 5).astype(V.dtype)
    np.testing.assert_array_equal(Sum().step(NoParams(), Q, K, V, state=None)[0], A @ V)  # that of every core


@pytest.mark.parametrize(
    ("attention", "decodes"),
    [
        (louder(MultiHeadAttention)(D, 2), False),
        (MultiHeadAttention(D, 2, core=louder(SoftmaxAttention)()), False),
        (MultiHeadAttention(D, 2, core=louder(DeltaRule)()), False),
        (MultiHeadAttention(D, 2, core=Sum()), True),
    ],
)
def test_who_writes_attends_as_was_trained(attention, decodes, tier):
    """A reader's own `__call__` was used in training, and passed over, without a word, when the model wrote."""
    of_core = type(attention) is MultiHeadAttention
    model = LanguageModel(11, N, D, 2, 2, 7, attention=attention.core if of_core else attention)
    assert model.body.decodes == decodes
    rng = np.random.default_rng(3)
    params, tokens = random_like(model.init(rng, np.float64), rng), np.array([[3, 1, 4, 1]])
    whole, state = model(params, tokens)[0], None
    for i in range(N):
        row, state = model.step(params, tokens[:, i : i + 1], state)
        np.testing.assert_allclose(row, whole[:, i : i + 1], rtol=1e-9, atol=1e-9)
