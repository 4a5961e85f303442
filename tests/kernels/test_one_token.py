"""A token through all blocks in one call: the same as step by step, and only where everything is as it should be."""

import numpy as np
import pytest

from minitransformer import random_like, tree_map
from minitransformer.attention import EachHead, Local, MultiHeadAttention, Sinks, SoftmaxAttention, Window
from minitransformer.attention.cache.recent import Kept
from minitransformer.attention.linear import RetNet
from minitransformer.attention.linear.smoother import Smoother
from minitransformer.backend import available
from minitransformer.checks import frozen
from minitransformer.models import Block, FeedForward, GatedFeedForward, LanguageModel, Stack
from minitransformer.positions import DynamicNTK, RoPE
from minitransformer.pullback import tree_get, tree_set
from minitransformer.related import GraphMean
from tests.pieces import in_pieces

pytestmark = pytest.mark.skipif("numba" not in available(), reason="needs Numba")

CASES = [
    {},
    {"norm": "rms", "ffn": "gelu_tanh"},
    {"positions": "rope", "groups": 2},
    {"positions": "rope:layout=halves,part=4", "groups": 1, "ffn": "gelu"},
    {"positions": "rope:layout=halves,part=4,pairs_of=head"},
    {"positions": "rope", "groups": 2, "attention": "softmax:norm=rms"},
    {"attention": "softmax:norm=rms", "ffn": "swiglu"},
    {"positions": "rope", "groups": 2, "head_width": 10, "attention": "softmax:norm=rms"},
    *({"positions": "rope", "ffn": gate} for gate in ("glu", "reglu", "geglu", "bilinear")),
    *({"positions": name} for name in ("t5", "alibi", "kerple")),
    {"positions": "rope", "attention": "softmax:sink=learned"},
    {"positions": "kerple", "groups": 2, "attention": "softmax:sink=0.5,cap=2"},
    {"positions": "alibi", "attention": "window:radius=5"},
    {"attention": "span:limit=20,ramp=9"},
    {"positions": "alibi", "groups": 2, "attention": "span:ramp=1"},
    {"positions": "t5", "attention": Window(9, 2), "groups": 2},
    {"attention": Window(3), "positions": "rope", "groups": 2},
    {"attention": Window(9, 2, global_tokens=2)},
    {"attention": EachHead((Window(3), Window(5, 2), Local(8), Window(0)))},
    *(
        {"attention": name}
        for name in ("strided:stride=5", "fixed:block=6,columns=2", "bigbird:block=8", "sinks:last=9")
    ),
]


def some(model, dtype):
    rng = np.random.default_rng(1)
    return tree_map(lambda a: (0.5 * a).astype(dtype), random_like(model.init(rng, np.float64), rng))


def loops():
    from minitransformer.kernels import one_token

    return one_token


def tables():
    from minitransformer.kernels import one_token_tables

    return one_token_tables


def written(model, params, tokens):
    return in_pieces(model, params, tokens, range(tokens.shape[-1] + 1))


@pytest.mark.each_pair
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_it_is_the_blocks_step_by_step(options, dtype, batch, tier, monkeypatch):
    model = LanguageModel(40, 96, width=24, depth=2, heads=4, hidden=10, **options)
    params, tokens = some(model, dtype), np.random.default_rng(0).integers(0, 40, (*batch, 70))
    calls, step = [], loops().one_token
    monkeypatch.setattr(loops(), "one_token", lambda *a: calls.append(step(*a)) or calls[-1])
    fast, state = written(model, params, tokens)
    if (options.get("ffn") in ("gelu", "geglu")) and dtype == np.float64:  # asked for all blocks, and then for each
        assert calls == [None] * 69 * 3
    else:
        assert len(calls) == 69  # the first token makes the state
        assert None not in calls
    monkeypatch.setattr(loops(), "one_token", lambda *a: None)
    slow, other = written(model, params, tokens)
    assert fast.dtype == dtype
    tolerance = 2e-5 if dtype == np.float32 else 1e-13
    assert np.allclose(fast, slow, atol=tolerance * np.abs(slow).max())
    assert np.allclose(state.blocks[1].keys, other.blocks[1].keys, atol=tolerance * np.abs(other.blocks[1].keys).max())


def test_a_block_that_is_attention_alone_goes_step_by_step(tier, monkeypatch):
    model = LanguageModel(40, 96, width=24, depth=2, heads=4, hidden=10, ffn="none")
    params, tokens = some(model, np.float32), np.random.default_rng(0).integers(0, 40, (2, 70))
    monkeypatch.setattr(loops(), "one_token", lambda *_: pytest.fail("there is no loop for it"))
    said, _ = written(model, params, tokens)
    whole, _ = model(params, tokens)
    assert np.allclose(said, whole, atol=2e-5 * np.abs(whole).max())


def test_without_biases(tier):
    block = Block(MultiHeadAttention(12, 2, bias=False), FeedForward(12, 7))
    params, X = some(block, np.float64), np.random.default_rng(0).standard_normal((2, 9, 12))
    whole, _ = block(params, X, causal=True)
    _, state = block.step(params, X[:, :8])
    assert np.allclose(block.step(params, X[:, 8:], state)[0], whole[:, 8:], atol=1e-12)


CORES = [
    {"attention": "linear", "positions": "rope"},
    {"attention": "gated-delta:taps=2", "norm": "rms", "ffn": "swiglu"},
    {"attention": "gated-delta:key_heads=2,channelwise=True"},
    {"attention": "ssd:key_heads=1"},
    {"attention": "gla", "positions": "rope"},
    {"attention": "retnet"},
    {"attention": "delta:reach=2"},
    {"attention": "softmax:norm=rms,gate=head", "positions": "rope", "groups": 2},
    {"attention": "nsa:block=4,window=5", "groups": 2, "positions": "rope:layout=halves,part=4,pairs_of=head"},
    {"positions": "shaw"},
    *({"attention": name} for name in ("lightweight-convolution", "dynamic-convolution:renormalise=True", "gmlp")),
    *(
        {"attention": name}
        for name in (
            "latent",
            "latent:query_rank=5",
            "gat",
            "gat:dynamic=True,radius=5",
            "gcn",
            "gcn:radius=5",
            "gmlp:form=source",
        )
    ),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("options", CORES, ids=str)
def test_around_any_core_it_is_the_block_part_by_part(options, dtype, tier, monkeypatch):
    model = LanguageModel(40, 96, width=24, depth=2, heads=4, hidden=10, **options)
    params, X = some(model, dtype).stack, np.random.default_rng(0).standard_normal((3, 20, 24)).astype(dtype)
    calls, call = [], loops().around_core
    monkeypatch.setattr(loops(), "around_core", lambda *a: calls.append(call(*a)) or calls[-1])
    fast, _ = in_pieces(model.body, params, X, range(21))
    assert len(calls) == 20  # of both blocks at once
    assert None not in calls
    monkeypatch.setattr(loops(), "around_core", lambda *a: None)
    slow, _ = in_pieces(model.body, params, X, range(21))
    whole, _ = model.body(params, X, causal=True)
    assert fast.dtype == dtype
    for other in (slow, whole):
        assert np.allclose(fast, other, atol=(5e-5 if dtype == np.float32 else 1e-12) * np.abs(other).max())


MEMORIES = [
    *("linear", "taylor", "performer:kind=hyperbolic", "cosformer", "dpfp", "delta:reach=2", "retnet", "gla", "ssd"),
    *("gated-delta:channelwise=True,key_heads=2", "gated-delta:taps=1", "ssd:taps=4,key_heads=1"),
]


def with_memories(attention, dtype=np.float64, depth=3):
    stack = LanguageModel(40, 96, width=24, depth=depth, heads=4, hidden=10, attention=attention).body
    X = np.random.default_rng(0).standard_normal((2, 7, 24)).astype(dtype)
    params = some(stack, dtype)
    return stack, params, X, stack.step(params, X[:, :4])[1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("attention", MEMORIES)
def test_memories_of_all_blocks_are_one_call(attention, dtype, tier, monkeypatch):
    stack, params, X, states = with_memories(attention, dtype)
    whole, _ = stack(params, X, causal=True)
    calls, call = [], loops().through_memories
    monkeypatch.setattr(loops(), "through_memories", lambda *a: calls.append(a) or call(*a))
    said, states = in_pieces(stack, params, X, (4, 5, 6, 7), states)
    assert np.allclose(said, whole[:, 4:], atol=(5e-5 if dtype == np.float32 else 1e-12) * np.abs(whole).max())
    assert [state.length for state in states] == [7] * 3
    assert len(calls) == 3


def test_blocks_that_follow_one_another_and_are_the_same_are_one_call(tier, monkeypatch):
    """As in models with softmax attention in every third block: of three kinds of call there is one for each run of blocks."""
    stack, params, X, states = with_memories(("gla", "gla", "softmax"), depth=6)
    whole, _ = stack(params, X, causal=True)
    called = []
    for name in ("through_memories", "through_blocks"):
        call = getattr(loops(), name)
        monkeypatch.setattr(loops(), name, lambda *a, name=name, call=call: called.append(name) or call(*a))
    Y, _ = stack.step(params, X[:, 4:5], states)
    assert np.allclose(Y, whole[:, 4:5], atol=1e-12 * np.abs(whole).max())
    assert called == ["through_memories", "through_blocks"] * 2


@pytest.mark.parametrize("attention", MEMORIES)
def test_a_memory_goes_on_in_two_ways(attention, tier):
    """A state is not changed, also where the next one was put beside it, and one that was put together of two is taken."""
    stack, params, X, states = with_memories(attention)
    first, after = stack.step(params, X[:, 4:5], states)
    stack.step(params, X[:, 5:6], after)
    other, _ = stack.step(params, -X[:, 4:5], states)
    again, _ = stack.step(params, X[:, 4:5], states)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    _, longer = stack.step(params, X[:, 4:5], after)
    _, other = stack.step(params, -X[:, 4:5], after)
    mixed, _ = stack.step(params, X[:, 6:], (longer[0], *other[1:]))
    copied = (state._replace(S=state.S.copy()) for state in (longer[0], *other[1:]))
    np.testing.assert_array_equal(mixed, stack.step(params, X[:, 6:], tuple(copied))[0])


@pytest.mark.parametrize("attention", MEMORIES)
@pytest.mark.parametrize("change", ["shape", "dtype", "heads", "batch"])
def test_no_memory_of_another_form(attention, change, tier):
    stack, params, X, states = with_memories(attention)
    _, states = stack.step(params, X[:, 4:5], states)
    S = states[1].S
    S = {"shape": S[..., :-1], "dtype": S.astype(np.float32), "heads": S[:, 1:], "batch": S[:1]}[change]
    with pytest.raises((ValueError, TypeError)):
        stack.step(params, X[:, 5:6], (states[0], states[1]._replace(S=S), states[2]))


@pytest.mark.parametrize("attention", ["gla", "ssd:taps=2", "gated-delta"])
def test_what_a_core_has_learned_is_read_where_it_is(attention, tier, monkeypatch):
    """An array that is written to between two tokens is read anew; one of another size goes the usual way, and is refused."""
    stack, params, X, states = with_memories(attention)
    before, _ = stack.step(params, X[:, 4:5], states)
    core = params.blocks[1].attention.core
    core.b[...] += 1
    fast, _ = stack.step(params, X[:, 4:5], states)
    monkeypatch.setattr(loops(), "around_core", lambda *_: None)
    slow, _ = stack.step(params, X[:, 4:5], states)
    assert (fast != before).any()
    np.testing.assert_allclose(fast, slow, atol=1e-12 * np.abs(slow).max())
    monkeypatch.undo()
    for name in ("b", "gain", "kernel.theta"):
        if name.startswith("kernel") and getattr(core, "kernel", None) is None:
            continue
        other = tree_set(params.blocks[1], f"attention.core.{name}", tree_get(core, name)[..., 1:].copy())
        assert tables().known(stack.blocks[0], (other,)).memories is None
        with pytest.raises((ValueError, TypeError)):
            stack.blocks[0].step(other, X[:, 4:5], states[1])


@pytest.mark.parametrize("attention", ["softmax", "gla", "moba"])
def test_rows_that_nobody_may_write_to_take_no_other_loop(attention, tier):
    stack, params, X, states = with_memories(attention)
    Y, _ = stack.step(params, X[:, 4:5], states)
    names = "through_blocks", "through_memories", "around"
    compiled = [len(getattr(loops(), name).signatures) for name in names]
    X.setflags(write=False)
    np.testing.assert_array_equal(stack.step(params, X[:, 4:5], states)[0], Y)
    assert [len(getattr(loops(), name).signatures) for name in names] == compiled


@pytest.mark.parametrize(
    "options", [{}, {"attention": "gla", "ffn": "swiglu"}, *({"attention": a} for a in (*MEMORIES, "moba"))]
)
def test_two_threads_write_what_one_writes(options, tier, monkeypatch):
    """The same bits, and of each product both halves: also if the second thread comes late, or not at all."""
    from minitransformer.kernels.threads import limit

    monkeypatch.setattr(loops(), "MANY", 0)
    model = LanguageModel(40, 96, width=36, depth=3, heads=6, hidden=11, **options)
    params, tokens = some(model, np.float32), np.random.default_rng(0).integers(0, 40, (2, 90))
    with limit(1):
        alone, _ = written(model, params, tokens)
    for threads in (2, 2, 2, 5):
        with limit(threads):
            np.testing.assert_array_equal(written(model, params, tokens)[0], alone)


@pytest.mark.parametrize("path", ["W_o", "W_v", "streams.gate.W", "streams.gate.b"])
def test_nothing_past_the_door_of_another_core(path, tier):
    """What a loop would read beyond its end is refused where it goes part by part."""
    block = LanguageModel(40, 96, width=12, depth=1, heads=2, hidden=10, attention="retnet").body.blocks[0]
    params, X = some(block, np.float64), np.random.default_rng(0).standard_normal((1, 2, 12))
    _, state = block.step(params, X[:, :1])
    leaf = tree_get(params, f"attention.{path}")
    other = tree_set(params, f"attention.{path}", leaf[..., :-2].copy())
    assert tables().known(block, (params,)).rows is not None
    assert tables().known(block, (other,)).rows is None
    with pytest.raises((ValueError, TypeError)):
        block.step(other, X[:, 1:], state)


@pytest.mark.parametrize("options", [{"attention": "linear", "order": "post"}, {"norm": "layer_eps_outside"}])
def test_other_blocks_go_part_by_part(options, tier, monkeypatch):
    for name in ("one_token", "around_core"):
        monkeypatch.setattr(loops(), name, lambda *a: pytest.fail("there is no loop for it"))
    model = LanguageModel(40, 96, width=12, depth=1, heads=2, hidden=10, **options)
    written(model, some(model, np.float64), np.arange(5))


def test_angles_that_change_with_the_length_are_refused(tier):
    """Every key would stand as a shorter text has turned it."""
    block = Block(MultiHeadAttention(12, 2, rotate=RoPE(6, scaling=DynamicNTK(2.0, 3))), FeedForward(12, 7))
    with pytest.raises(TypeError, match="RoPE keeps no state: the angles change with the length"):
        block.step(some(block, np.float64), np.ones((1, 12)))


def test_a_memory_that_the_mixer_opens_goes_part_by_part(tier):
    """Of a class of one's own: no loop for memories has a gate that belongs to the mixer."""

    @frozen
    class Opened(RetNet):
        gate = "element"

    block = Block(MultiHeadAttention(12, 2, core=Opened(2, 6)), FeedForward(12, 7))
    params, X = some(block, np.float64), np.random.default_rng(0).standard_normal((2, 5, 12))
    whole, _ = block(params, X, causal=True)
    assert np.allclose(in_pieces(block, params, X, range(6))[0], whole, atol=1e-12)


def test_a_step_of_ones_own_is_made(tier):
    class Half(GraphMean):
        def step(self, params, X, state=None):
            Y, state = super().step(params, X, state)
            return Y / 2, state

    X, said = np.ones((2, 1, 12)), []
    for kind in (GraphMean, Half):
        block = Block(kind(12), FeedForward(12, 7))
        params = some(block, np.float64)
        said.append(block.step(params, X)[0])
        F, _ = block.attention.step(params.attention, block._norm.value(params.attention_norm, X))
        assert np.allclose(said[-1], X + F + block.change(params, X + F)[0])
    assert not np.allclose(*said)


@pytest.mark.parametrize(
    "options", [{"attention": "sinks", "positions": "rope"}, {"attention": "linear"}, {"positions": "shaw"}]
)
def test_one_call_for_all_is_for_softmax(options, tier, monkeypatch):
    monkeypatch.setattr(loops(), "one_token", lambda *a: pytest.fail("not a usual block"))
    model = LanguageModel(40, 96, width=12, depth=1, heads=2, hidden=10, **options)
    written(model, some(model, np.float64), np.arange(5))


def test_blocks_of_different_lengths_go_one_by_one(tier):
    model = LanguageModel(40, 96, width=24, depth=2, heads=4, hidden=10)
    stack, params = model.body, some(model, np.float64).stack
    X = np.random.default_rng(0).standard_normal((9, 24))
    _, short = stack.step(params, X[:3])
    _, long = stack.step(params, X[:6])
    Y, states = stack.step(params, X[8:], (long[0], short[1]))
    first, _ = model.body.blocks[0].step(params.blocks[0], X[8:], long[0])
    second, _ = model.body.blocks[1].step(params.blocks[1], first, short[1])
    assert np.allclose(Y, stack.blocks[0]._norm.value(params.norm, second))
    assert [state.length for state in states] == [7, 4]


def test_of_blocks_that_differ_the_usual_ones_are_fast(tier, monkeypatch):
    usual, other = (
        Block(MultiHeadAttention(12, 2, core=core), FeedForward(12, 7)) for core in (SoftmaxAttention(), Smoother())
    )
    calls, step = [], loops().one_token
    monkeypatch.setattr(loops(), "one_token", lambda *a: calls.append(step(*a)) or calls[-1])
    stack = Stack((usual, other, usual))
    params, X = some(stack, np.float64), np.random.default_rng(0).standard_normal((5, 12))
    whole, _ = stack(params, X, causal=True)
    _, states = stack.step(params, X[:4])
    assert np.allclose(stack.step(params, X[4:], states)[0], whole[4:], atol=1e-12)
    assert len(calls) == 2
    assert None not in calls


@pytest.mark.parametrize("change", ["shape", "dtype", "order", "key", "value", "batch"])
def test_nothing_past_the_door(change, tier):
    """What the loop would read or write beyond its end goes the usual way, and is refused or computed there."""
    block = Block(MultiHeadAttention(12, 2), FeedForward(12, 7))
    params, X = some(block, np.float64), np.random.default_rng(0).standard_normal((1, 2, 12))
    _, state = block.step(params, X[:, :1])
    W = params.attention.W_k
    if change == "order":
        other = params._replace(attention=params.attention._replace(W_k=np.asfortranarray(W)))
        assert np.allclose(block.step(other, X[:, 1:], state)[0], block.step(params, X[:, 1:], state)[0])
        return
    if change == "batch":  # of a state that has been gone on from
        _, state = block.step(params, X[:, 1:], state)
        X = np.repeat(X, 2, axis=0)
    elif change in ("key", "value"):
        name = {"key": "K", "value": "V"}[change]
        state = state._replace(**{name: getattr(state, name)[..., :-1]})
    else:
        W = W[:, :-2] if change == "shape" else W.astype(np.float32)
    other = params._replace(attention=params.attention._replace(W_k=W))
    assert W is params.attention.W_k or tables().known(block, (other,)).rows is None
    if change != "dtype":
        with pytest.raises((ValueError, TypeError)):
            block.step(other, X[:, 1:], state)


def test_parameters_are_looked_at_again_when_they_are_others(tier):
    block = Block(MultiHeadAttention(12, 2), FeedForward(12, 7))
    X = np.random.default_rng(0).standard_normal((1, 2, 12))
    for seed in range(tables().KEPT + 3):
        params = random_like(block.init(np.random.default_rng(0), np.float64), np.random.default_rng(seed))
        _, state = block.step(params, X[:, :1])
        whole, _ = block(params, X, causal=True)
        assert np.allclose(block.step(params, X[:, 1:], state)[0], whole[:, 1:], atol=1e-10)
    assert len(tables()._looked_at) <= tables().KEPT


def test_a_stream_that_was_replaced_where_it_stands_is_seen(tier, monkeypatch):
    """The streams of a core are a dict, which a reader may change between two tokens."""
    model = LanguageModel(40, 96, width=24, depth=1, heads=4, hidden=10, attention="gla")
    params, tokens = some(model, np.float32), np.random.default_rng(0).integers(0, 40, (2, 5))
    written(model, params, tokens)
    streams = params.stack.blocks[0].attention.streams
    name = next(iter(streams))
    streams[name] = streams[name]._replace(W=-streams[name].W)
    fast, _ = written(model, params, tokens)
    monkeypatch.setattr(loops(), "around_core", lambda *_: None)
    slow, _ = written(model, params, tokens)
    np.testing.assert_allclose(fast, slow, atol=2e-5 * np.abs(slow).max())


@pytest.mark.parametrize("where", ["shared", "beside what is shared"])
def test_what_was_replaced_in_blocks_that_share_is_seen(where, tier):
    """What blocks share stands in a dict, and so do streams: what was put together of others is not taken again."""
    options = {"positions": "t5"} if where == "shared" else {"attention": "gla"}
    stack = LanguageModel(40, 96, width=24, depth=2, heads=4, hidden=10, **options).body
    if where != "shared":
        first, *others = stack.init(np.random.default_rng(0)).blocks[0].attention.streams
        stack = Stack(stack.blocks, (f"attention.streams.{first}",))
    params, X = some(stack, np.float64), np.random.default_rng(0).standard_normal((2, 4, 24))
    _, states = stack.step(params, X[:, :3])
    before, _ = stack.step(params, X[:, 3:], states)
    parts = params.shared if where == "shared" else params.blocks[1].attention.streams
    for name in parts if where == "shared" else others:
        parts[name] = tree_map(np.negative, parts[name])
    again, _ = stack.step(params, X[:, 3:], states)
    other, _ = stack.step(tree_map(np.copy, params), X[:, 3:], states)
    np.testing.assert_array_equal(again, other)
    assert (again != before).any()


@pytest.mark.parametrize(("kind", "tied"), [("latent", "ffn"), ("gmlp", "attention"), ("softmax", "")])
def test_blocks_that_share_and_have_no_streams(kind, tied, tier):
    blocks = LanguageModel(40, 96, width=24, depth=2, heads=4, hidden=10, attention=kind).body.blocks
    stack = Stack((blocks[0],) * 2, (tied,))
    params, X = some(stack, np.float64), np.random.default_rng(0).standard_normal((2, 4, 24))
    said, _ = in_pieces(stack, params, X, range(5))
    np.testing.assert_allclose(said, stack(params, X, causal=True)[0], rtol=1e-9, atol=1e-9)


def test_what_was_looked_at_for_one_form_is_not_taken_for_another(tier):
    usual, wider = (Block(MultiHeadAttention(12, 2), FeedForward(12, hidden)) for hidden in (7, 700))
    params, X = some(usual, np.float64), np.random.default_rng(0).standard_normal((3, 12))
    _, state = usual.step(params, X[:1])
    _, state = usual.step(params, X[1:2], state)
    assert loops().one_token(wider, (params,), X[2:], (state,)) is None


@pytest.mark.parametrize("part", ["gain", "gate"])
def test_nor_a_gain_or_a_gate_of_another_size(part, tier):
    model = LanguageModel(40, 96, width=24, depth=1, heads=4, hidden=10, attention="softmax:norm=rms", ffn="swiglu")
    (params,) = some(model, np.float32).stack.blocks
    assert len(tables().known(model.body.blocks[0], (params,)).rows) == 1
    attention, ffn = params.attention, params.ffn
    if part == "gain":
        other = params._replace(attention=attention._replace(gains=attention.gains._replace(k=attention.gains.k[:-1])))
    else:
        other = params._replace(ffn=ffn._replace(U_2=ffn.U_2[:, :-1].copy()))
    assert tables().known(model.body.blocks[0], (other,)).rows is None


@pytest.mark.parametrize(
    ("options", "part"),
    [({"positions": "t5"}, "table"), ({"attention": "softmax:sink=learned"}, "sink"), ({"attention": "span"}, "span")],
)
def test_what_is_beside_the_scores_is_looked_at_for_each_token(options, part, tier):
    block = LanguageModel(40, 96, width=24, depth=1, heads=4, hidden=10, **options).body.blocks[0]
    params, X = some(block, np.float32), np.random.default_rng(0).standard_normal((1, 3, 24)).astype(np.float32)
    learned = tree_get(params, f"attention.core.{part}")
    _, state = block.step(params, X[:, :2])
    assert loops().one_token(block, (params,), X[:, 2:], (state,))
    learned += 0.3  # where it stands
    whole, _ = block(params, X, causal=True)
    _, state = block.step(params, X[:, :2])
    assert np.allclose(loops().one_token(block, (params,), X[:, 2:], (state,))[0], whole[:, 2:], atol=1e-4)
    fewer = tree_set(params, f"attention.core.{part}", learned[:3].copy())
    if part == "table":  # a bias looks at its parameters itself
        with pytest.raises(TypeError, match=r"table: shape \(3, 32\) should be \(4, 32\)"):
            loops().one_token(block, (fewer,), X[:, 2:], (state,))
    else:
        assert loops().one_token(block, (fewer,), X[:, 2:], (state,)) is None


@frozen
class EverySecond(Window):
    """A rule of its own."""

    def sees(self, i, j, m, *, causal):
        return super().sees(i, j, m, causal=causal) & ((i - j) % 2 == 0)


@frozen
class LessKept(Window):
    """A rule that keeps less than a window does."""

    @property
    def kept(self):
        return Kept(0, 3)

    def sees(self, i, j, m, *, causal):
        return super().sees(i, j, m, causal=causal) & (np.abs(i - j) < 3)


@frozen
class Loud(Sinks):
    """Twice what sinks say."""

    def __call__(self, *arguments, **options):
        Y, pullback = super().__call__(*arguments, **options)
        return 2 * Y, pullback

    def step(self, params, Q, K, V, *streams, state=None):
        Y, state = super().step(params, Q, K, V, *streams, state=state)
        return 2 * Y, state


@frozen
class TurnedTwice(RoPE):
    """Rows turned twice."""

    def turn(self, X, *, first=0, length):
        Y, _ = super().turn(X, first=first, length=length)
        return super().turn(Y, first=first, length=length)


@frozen
class Doubled(FeedForward):
    """Twice what a network says."""

    def __call__(self, params, X):
        Y, pullback = super().__call__(params, X)
        return 2 * Y, pullback

    def value(self, params, X):
        return 2 * super().value(params, X)


@frozen
class Negative(FeedForward):
    """The opposite of what a network says; it has no `value` of its own."""

    def __call__(self, params, X):
        Y, pullback = super().__call__(params, X)
        return -Y, pullback


@frozen
class NegativeGated(GatedFeedForward):
    def __call__(self, params, X):
        Y, pullback = super().__call__(params, X)
        return -Y, pullback


@pytest.mark.parametrize(
    ("core", "rotate", "ffn"),
    [
        (SoftmaxAttention(EverySecond(8)), None, FeedForward),
        (SoftmaxAttention(LessKept(8)), None, FeedForward),
        (Loud(first=2, last=8), None, FeedForward),
        (SoftmaxAttention(), TurnedTwice(6), FeedForward),
        (SoftmaxAttention(), None, Doubled),
        (SoftmaxAttention(), None, Negative),
        (SoftmaxAttention(), None, NegativeGated),
    ],
)
def test_what_a_subclass_makes_anew_is_what_a_step_runs(core, rotate, ffn, tier):
    block = Block(MultiHeadAttention(24, 4, core=core, rotate=rotate), ffn(24, 10))
    params, X = some(block, np.float64), np.random.default_rng(0).standard_normal((40, 24))
    np.testing.assert_allclose(
        in_pieces(block, params, X, range(41))[0], block(params, X, causal=True)[0], rtol=0, atol=1e-12
    )
