"""Stacks of blocks."""

from functools import partial

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback, random_like, tree_items, tree_map
from minitransformer.attention import padding_mask
from minitransformer.backend import available
from minitransformer.models import Block, Norm, Stack

fixed = np.random.default_rng(0)
B, N, M, D = 2, 4, 5, 6
X, MEMORY = fixed.standard_normal((B, N, D)), fixed.standard_normal((B, M, D))
PADDING = padding_mask(np.array([N, 2]), N)[..., None, :, :]
MEMORY_PADDING = padding_mask(np.array([3, M]), M)[..., None, :, :]


@pytest.fixture
def rng():
    """A generator of its own for each test: the order of tests does not matter."""
    return np.random.default_rng(1)


def some(stack, *, cross=False):
    """Parameters at which nothing hides: random gains and biases; not too large, or softmax has made up its mind."""
    rng = np.random.default_rng(2)
    return tree_map(lambda a: 0.7 * a, random_like(stack.init(rng, np.float64, cross=cross), rng))


def without_effect(params):
    return [path for path, _ in tree_items(params, "params") if path.endswith("b_k")]


@pytest.fixture(autouse=True)
def _tier():
    with mt.backend("numpy"):
        yield


@pytest.mark.parametrize("options", [{"causal": True}, {"mask": PADDING}], ids=["causal", "padding"])
@pytest.mark.parametrize("order", ["pre", "post"])
def test_gradient(order, options):
    stack = Stack(Block(D, 2, 7, order), 2)
    params = some(stack)
    check_pullback(partial(stack, **options), params, X, zero=without_effect(params), entries=2)


@pytest.mark.parametrize("order", ["pre", "post"])
def test_gradient_of_a_decoder(order):
    """The memory collects a gradient from every block."""
    stack = Stack(Block(D, 2, 7, order), 2)
    params = some(stack, cross=True)
    check_pullback(
        partial(stack.decoder, memory_mask=MEMORY_PADDING),
        *(params, X, MEMORY),
        zero=without_effect(params),
        entries=2,
    )


def test_gradient_with_dropout():
    stack = Stack(Block(D, 2, 7, dropout=0.3), 2)
    params = some(stack, cross=True)
    check_pullback(
        lambda params, X, memory: stack.decoder(params, X, memory, rng=np.random.default_rng(4)),
        *(params, X, MEMORY),
        zero=without_effect(params),
        entries=1,
    )


@pytest.mark.parametrize("order", ["pre", "post"])
def test_blocks_one_after_another(order):
    """And in a pre-norm stack one more norm."""
    block = Block(D, 2, 7, order)
    stack = Stack(block, 3)
    params = some(stack)
    Y = X
    for p in params.blocks:
        Y, _ = block(p, Y, causal=True)
    if order == "pre":
        Y, _ = Norm(D)(params.norm, Y)
    else:
        assert params.norm is None
    assert np.array_equal(stack(params, X, causal=True)[0], Y)


def test_every_block_of_the_decoder_looks_at_the_memory(rng):
    stack = Stack(Block(D, 2, 7), 3)
    Y, pullback = stack.decoder(some(stack, cross=True), X, MEMORY)
    assert [block.cross.A.shape for block in pullback.blocks] == [(B, 2, N, M)] * 3
    dY = rng.standard_normal(Y.shape)
    dX = pullback.norm(dY)[1]
    total = np.zeros_like(MEMORY)
    for block in reversed(pullback.blocks):
        _, dX, dmemory = block(dX)
        assert dmemory.any()
        total += dmemory
    assert np.allclose(pullback(dY)[2], total, rtol=1e-13)


def test_blocks_have_parameters_of_their_own(rng):
    params = Stack(Block(D, 2, 7), 3).init(rng)
    assert not np.array_equal(params.blocks[0].attention.W_q, params.blocks[1].attention.W_q)
    assert params.blocks[0].attention.W_q.dtype == np.float32
    assert params.blocks[0].cross is None
    assert Stack(Block(D, 2, 7), 2).init(rng, cross=True).blocks[1].cross.W_q.shape == (D, D)


def test_the_pullback_can_be_opened():
    stack = Stack(Block(D, 2, 7), 3)
    _, pullback = stack(some(stack), X)
    assert pullback.blocks[2].attention.A.shape == (B, 2, N, N)


@pytest.mark.parametrize("t", range(N))
def test_causal_outputs_before_t_do_not_change_at_all(t):
    stack = Stack(Block(D, 2, 7), 3)
    params, changed = some(stack), X.copy()
    changed[:, t, 0] += 1
    before, after = stack(params, X, causal=True)[0], stack(params, changed, causal=True)[0]
    assert np.array_equal(before[:, :t], after[:, :t])
    assert not np.isclose(before[:, t:], after[:, t:]).all(-1).any()


@pytest.mark.parametrize("tier", available())
@pytest.mark.parametrize("order", ["pre", "post"])
def test_decoding_is_the_whole(order, tier):
    stack = Stack(Block(D, 2, 7, order), 2)
    params, past, outputs = some(stack), None, []
    with mt.backend(tier):
        whole, _ = stack(params, X, causal=True)
        for start, stop in ((0, 1), (1, 3), (3, 4)):
            Y, past = stack.decode(params, X[:, start:stop], past)
            outputs.append(Y)
    assert np.allclose(np.concatenate(outputs, 1), whole, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("depth", [0, -1])
def test_a_stack_needs_a_block(depth):
    with pytest.raises(ValueError, match=f"depth: a stack needs at least one block, got {depth}"):
        Stack(Block(D, 2, 7), depth)


def test_parameters_of_another_depth_are_refused(rng):
    stack, deeper = Stack(Block(D, 2, 7), 2), Stack(Block(D, 2, 7), 3)
    for run in (stack, stack.decode, stack.decoder):
        params = deeper.init(rng, np.float64, cross=run == stack.decoder)
        args = (MEMORY,) if run == stack.decoder else (None,) if run == stack.decode else ()
        with pytest.raises(ValueError, match="params: 3 blocks for a stack of 2"):
            run(params, X, *args)
