"""What every kind of attention in the registry has to keep, by being registered.

A new one gets all of this; what it has to bring is its definition in loops, its limiting case and its errata. A core that
asks the seams for all they can carry (everything.py) has to pass as well.
"""

import importlib.util
import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback, random_like, tree_map
from minitransformer.attention import (
    ATTENTIONS,
    Core,
    EachHead,
    Mixer,
    MultiHeadAttention,
    SoftmaxAttention,
    Strided,
    Window,
    attention_of,
    padding_mask,
)
from minitransformer.attention.core import Part
from minitransformer.attention.registry import table
from minitransformer.backend import available
from minitransformer.data.text import Text
from minitransformer.models import BERT, EncoderDecoder, LanguageModel, SequenceModel
from minitransformer.positions import AT_EMBEDDING, IN_ATTENTION, place
from minitransformer.pullback import (
    added_losses,
    first_nonfinite,
    tree_bytes,
    tree_items,
    tree_leaves,
    tree_set,
    with_added,
)
from minitransformer.training.checkpoint import Checkpoint, load, save
from minitransformer.training.choices import Training
from minitransformer.training.loop import TrainingDiverged, start, train
from minitransformer.training.objective import NextByte
from minitransformer.training.schedule import Cosine

pytestmark = pytest.mark.each_value  # each part is in each property; the other options take turns

spec = importlib.util.spec_from_file_location("everything", Path(__file__).with_name("everything.py"))
everything = importlib.util.module_from_spec(spec)
spec.loader.exec_module(everything)

D, H, N = 12, 2, 70  # more than a tile, and no multiple of one
OPTIONS = {
    "compressed": "stride=3",
    "linformer": "k=5,sharing=layerwise",
    "nystrom": "landmarks=4,taps=5",
    "local": "block=11",
    "window": "radius=9,step=2,globals_=3",
    "sinks": "first=3,last=9",
    "strided": "stride=7,part=heads",
    "fixed": "block=9,columns=2",
    "longformer": "radius=9,dilation=2,globals_=3",
    "etc": "radius=9,globals_=3,clip=4",
    "bigbird": "window=0,random=1,block=9",
    "span": "limit=8,ramp=9",
    "reformer": "buckets=4,chunk=6",
    "routing": "clusters=3,window=20",
    "sinkhorn": "block=3,iterations=4",
    "moba": "block=4,chosen=3",
    "nsa": "block=4,chosen=5,window=6",
    "indexer": "chosen=5,narrow=3",
    "performer": "rows=8,redraw=3",
    "gla": "rank=5,root=3",
    "lightweight-convolution": "taps=6,renormalise=True,drop=0.2",
    "dynamic-convolution": "taps=5,drop=0.2",
}
NAMES = [f"{name}:{OPTIONS[name]}" if name in OPTIONS else name for name in ATTENTIONS]


def made(name, width=D, heads=H):
    """The core or mixer under this name, in a model of this size."""
    sizes = {"width": width, "heads": heads, "d": width // heads, "longest": 160}
    if name == "everything":
        return everything.Everything(sizes["d"], heads)
    if name == "each head":
        return SoftmaxAttention(EachHead((Window(5), Strided(7)) * (heads // 2)))
    return attention_of(name, sizes)


OTHERS = (
    "gmlp:form=source,hidden=9",
    "softmax:page=5",
    "gated-delta:taps=3",
    "ssd:taps=4",
    "dynamic-convolution:renormalise=True",
    "each head",
    "everything",
)
PARTS = {name: made(name) for name in (*NAMES, *OTHERS)}


def can(part, causal):
    return part.causal != ("never" if causal else "always")


def mixer(name, **options):
    """The part under this name as a layer; without biases, for that of the keys has no effect in a softmax."""
    part = PARTS[name]
    return part if isinstance(part, Mixer) else MultiHeadAttention(D, H, bias=False, core=part, **options)


def some(layer, dtype=np.float64):
    """Parameters at which nothing hides."""
    rng = np.random.default_rng(1)
    return tree_map(lambda a: (0.6 * a).astype(dtype), random_like(layer.init(rng, np.float64), rng))


def rows(*shape, dtype=np.float64, seed=2):
    return np.random.default_rng(seed).standard_normal((*shape, D)).astype(dtype)


def padding(n):
    """Of two samples, the second has five tokens fewer."""
    return padding_mask(np.array([n, n - 5]), n)[:, None]


def language_model(name, **options):
    sizes = {"vocabulary": 40, "context": 96, "width": D, "depth": 2, "heads": H, "hidden": 10}
    return LanguageModel(**sizes, attention=PARTS[name], **options)


every = pytest.mark.parametrize("name", PARTS)
causal_or_not = pytest.mark.parametrize(
    ("name", "causal"),
    [(name, causal) for name, part in PARTS.items() for causal in (False, True) if can(part, causal)],
)
causal_ones = pytest.mark.parametrize("name", [name for name, part in PARTS.items() if can(part, True)])
tiers = pytest.mark.parametrize("tier", available())


# ---------------------------------------------------------------------------------------- values and gradients


@causal_or_not
@pytest.mark.parametrize(("n", "padded"), [(7, False), (7, True), (N, True)])
def test_the_gradient_of_every_parameter_and_input(name, causal, n, padded):
    layer, X = mixer(name), rows(2, n)
    function = partial(layer, causal=causal, mask=padding(n) if padded else None)
    untrained, apart = ([f"params.{path}" for path in paths] for paths in (layer.untrained, layer.apart))
    with mt.backend("numpy"):
        check_pullback(function, some(layer), X, untrained=untrained, zero=apart, entries=3)


@causal_or_not
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_all_tiers_agree(name, causal, dtype):
    layer, X, dY = mixer(name), rows(2, N, dtype=dtype), rows(2, N, dtype=dtype, seed=3)
    params, found = some(layer, dtype), []
    for tier in available():
        with mt.backend(tier):
            Y, pullback = layer(params, X, causal=causal, mask=padding(N))
            found.append(dict(tree_items({"Y": Y, "gradients": pullback(dY)})))
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        for path, array in found[0].items():
            assert other[path].dtype == dtype, path
            size = np.abs(array).max()
            assert np.allclose(other[path], array, atol=(1e-4 if dtype == np.float32 else 1e-11) * size), path


@tiers
@causal_ones
def test_what_comes_later_changes_no_bit(name, tier):
    """Except where a part says that its pattern looks ahead: then it has to, or it should not say so."""
    layer, X = mixer(name), rows(2, N, dtype=np.float32)
    later = X.copy()
    later[:, 40:] += 1
    with mt.backend(tier):
        Y, _ = layer(some(layer, np.float32), X, causal=True)
        Z, _ = layer(some(layer, np.float32), later, causal=True)
    assert (Y[:, :40] == Z[:, :40]).all() != PARTS[name].looks_ahead
    assert (Y[:, 40:] != Z[:, 40:]).any()


@tiers
@causal_or_not
def test_padding_changes_no_bit_of_what_is_there(name, causal, tier):
    layer, X = mixer(name), rows(2, N, dtype=np.float32)
    other = X.copy()
    other[1, N - 5 :] = 9
    with mt.backend(tier):
        Y, pullback = layer(some(layer, np.float32), X, causal=causal, mask=padding(N))
        Z, _ = layer(some(layer, np.float32), other, causal=causal, mask=padding(N))
        dY = rows(2, N, dtype=np.float32, seed=3)
        dY[1, N - 5 :] = 0
        _, dX = pullback(dY)
    assert (Y[0] == Z[0]).all()
    assert (Y[1, : N - 5] == Z[1, : N - 5]).all()
    assert not dX[1, N - 5 :].any()


@tiers
@pytest.mark.parametrize(
    ("name", "causal"),
    [(name, c) for name, part in PARTS.items() if isinstance(part, Core) for c in (False, True) if can(part, c)],
)
def test_what_stands_in_a_hidden_key_or_value_reaches_nothing(name, causal, tier):
    """Be it NaN or infinite: neither Y nor a gradient is another one."""
    core, mask, found = PARTS[name], padding(20), []
    dY = np.random.default_rng(5).standard_normal((2, H, 20, D // H))
    with mt.backend(tier), np.errstate(invalid="ignore"):  # ∞ − ∞, in a score that is hidden
        for what in (9.0, np.nan, np.inf):
            arrays = heads_for(core, 20)
            for X in arrays[2:3] if core.queries_are_keys else arrays[1:3]:
                X[1, :, 15:] = what
            Y, pullback = core(some(core), *arrays, causal=causal, mask=mask, rng=None)
            found.append(dict(tree_items({"Y": Y, "gradients": pullback(dY)})))
    for other in found[1:]:
        for path, array in found[0].items():
            np.testing.assert_allclose(other[path], array, atol=1e-11, err_msg=path)


@every
def test_samples_know_nothing_of_each_other(name):
    layer, X = mixer(name), rows(3, 2, 9)
    params, causal = some(layer), not can(PARTS[name], False)
    Y, pullback = layer(params, X, causal=causal)
    dY = rows(3, 2, 9, seed=3)
    _, dX = pullback(dY)
    for sample in np.ndindex(3, 2):
        alone, back = layer(params, X[sample], causal=causal)
        assert np.allclose(Y[sample], alone, atol=1e-12)
        assert np.allclose(dX[sample], back(dY[sample])[1], atol=1e-12)


@every
@pytest.mark.parametrize("n", [1, 2, 63, 64, 65])
def test_any_length(name, n):
    layer, causal = mixer(name), not can(PARTS[name], False)
    Y, pullback = layer(some(layer), rows(2, n), causal=causal)
    dparams, dX = pullback(rows(2, n, seed=3))
    assert Y.shape == dX.shape == (2, n, D)
    assert all(np.isfinite(array).all() for _, array in tree_items((Y, dparams, dX)))


@causal_or_not
@pytest.mark.parametrize("groups", [1, 2])
def test_groups_of_heads_share_their_keys(name, causal, groups):
    """As if each head of queries had a copy of the keys and values of its group."""
    part = made(name, width=24, heads=4)
    if isinstance(part, Mixer) or part.queries_are_keys:
        pytest.skip("no keys to share")
    few = MultiHeadAttention(24, 4, bias=False, core=part, groups=groups)
    params, X = some(few), np.random.default_rng(2).standard_normal((2, 9, 24))
    W_k, W_v = (np.repeat(W.reshape(24, groups, 6), 4 // groups, 1).reshape(24, 24) for W in (params.W_k, params.W_v))
    Y, _ = few(params, X, causal=causal)
    many = replace(few, groups=None)
    assert np.allclose(Y, many(params._replace(W_k=W_k, W_v=W_v), X, causal=causal)[0], atol=1e-12)
    untrained, apart = ([f"params.{path}" for path in paths] for paths in (few.untrained, few.apart))
    with mt.backend("numpy"):
        check_pullback(partial(few, causal=causal), params, X, untrained=untrained, zero=apart, entries=3)


# -------------------------------------------------------------------------------------------- one by one


@tiers
@causal_ones
@pytest.mark.parametrize("positions", ["sinusoidal", "rope"])
@pytest.mark.parametrize("pieces", [(0, 80, 1, 0, 1, 1), (1, 1, 5, 70, 1), (3, 64, 2, 2)])
def test_one_by_one_is_the_same_as_all_at_once(name, positions, pieces, tier):
    positions = "none" if isinstance(PARTS[name], Mixer) else positions  # which turn nothing in it
    model = language_model(name, positions=positions, groups=None)
    params = model.init(np.random.default_rng(0), np.float64)
    tokens = np.random.default_rng(1).integers(0, 40, (2, sum(pieces)))
    with mt.backend(tier):
        whole, _ = model(params, tokens)
        state = None
        for n in pieces:
            first = 0 if state is None else state.length
            logits, state = model.step(params, tokens[:, first : first + n], state)
            assert state.length == first + n
            if PARTS[name].looks_ahead:  # then what follows must not be there
                whole, _ = model(params, tokens[:, : state.length])
            assert np.allclose(logits, whole[:, first : state.length], atol=1e-10)
    assert state.length == sum(pieces)


@tiers
@pytest.mark.parametrize("name", [name for name, part in PARTS.items() if str(part.remembers).startswith("S")])
def test_a_memory_reads_a_prompt_without_a_matrix_of_pairs(name, tier):
    """Twice the prompt needs twice the room, and leaves no more behind."""
    layer, peaks, left = mixer(name), [], set()
    params = some(layer)
    with mt.backend(tier):
        layer.step(params, rows(1, 80))  # may compile
        for n in (80, 160):
            X = rows(1, n)
            tracemalloc.start()
            _, state = layer.step(params, X)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
            left.add(tree_bytes(tuple(state)))
    assert peaks[1] < 2.2 * peaks[0]
    assert len(left) == 1


@causal_ones
def test_a_state_can_be_continued_twice(name):
    """Two ways to go on from one state don't get into each other's way, and the state is as it was."""
    model = language_model(name)
    params = model.init(np.random.default_rng(0), np.float64)
    first, a, b = np.random.default_rng(1).integers(0, 40, (3, 1, 6))
    _, state = model.step(params, first)
    said = [model.step(params, tokens, state) for tokens in (a, b, a)]
    onwards = [model.step(params, tokens, after)[0] for tokens, (_, after) in zip((b, a, b), said, strict=True)]
    assert np.array_equal(said[0][0], said[2][0])
    assert np.array_equal(onwards[0], onwards[2])
    assert not np.array_equal(onwards[0], onwards[1])
    assert state.length == 6


# ----------------------------------------------------------------------------------------------- in models


def pairs():
    return [(name, positions) for name in PARTS for positions in (*AT_EMBEDDING, *IN_ATTENTION)]


@pytest.mark.parametrize(("name", "positions"), pairs())
def test_with_every_encoding_of_positions_or_a_reason_why_not(name, positions):
    """Every pair makes a model that learns and writes, or is refused in one line."""
    part = PARTS[name]
    inside = place(positions, width=D, heads=H, longest=96).in_attention
    turns = inside is None or inside.acts_on == ("queries and keys",)
    if not (turns or getattr(part, "has_scores", False)) or (inside is not None and isinstance(part, Mixer)):
        with pytest.raises(ValueError, match=r"^positions: [^\n]*$"):
            language_model(name, positions=positions)
        return
    model = language_model(name, positions=positions) if can(part, True) else None
    model = model or SequenceModel(40, 96, D, 2, H, 10, part, positions)
    params = model.init(np.random.default_rng(0))
    tokens = np.random.default_rng(1).integers(0, 40, (2, 9))
    logits, pullback = model(params, tokens)
    grads = pullback(np.ones_like(logits))
    mt.tree_map(lambda *_: None, grads, params)  # of the same form
    assert all(np.isfinite(array).all() for _, array in tree_items(grads))
    if model.causal:
        assert np.allclose(model.step(params, tokens)[0], logits, atol=1e-4)


@every
def test_in_every_model(name):
    """A model that it can't live in says so when it is made."""
    part, sizes = PARTS[name], {"width": D, "depth": 1, "heads": H, "hidden": 10, "attention": PARTS[name]}
    tokens = np.random.default_rng(1).integers(0, 40, (2, 9))
    for kind, causal in ((SequenceModel, False), (BERT, False), (LanguageModel, True)):
        if not can(part, causal):
            with pytest.raises(ValueError, match=r"can't be causal|always causal"):
                kind(40, 96, **sizes)
            continue
        model = kind(40, 96, **sizes)
        params = model.init(np.random.default_rng(0))
        whole, _ = model(params, tokens, lengths=np.array([9, 4]))
        alone, _ = model(params, tokens[1:, :4])
        assert np.allclose(whole[1, :4], alone[0], atol=1e-5)
    if can(part, True) and can(part, False):
        model = EncoderDecoder(40, **sizes)
        logits, pullback = model(model.init(np.random.default_rng(0)), tokens, tokens[:, :5], lengths=np.array([9, 4]))
        pullback(np.ones_like(logits))


@tiers
@causal_ones
def test_ten_steps_of_training_and_a_checkpoint(name, tier, tmp_path):
    """The loss falls, what no gradient moves is moved by hand or stays, and all of it can be read back."""
    letters = np.resize(np.frombuffer(b"abcdefgh ijkl. ", np.uint8), 4000) % 40
    positions = "sinusoidal" if isinstance(PARTS[name], Mixer) else "rope"
    model, objective = (
        language_model(name, positions=positions),
        NextByte(Text(letters, letters[:600], "letters", ""), 24),
    )
    training = Training(10, 4, Cosine(2e-2, 10, 1), parts=2, look_every=10)
    with mt.backend(tier):
        before = start(model, training)
        after = train(model, objective, training, progress=False)
    assert after.losses[-1] < after.losses[0]
    assert (after.losses, after.held_out) != ((), ())
    for path, array in tree_items(after.params):
        assert np.isfinite(array).all(), path
    if name in NAMES:  # the registry is what a file may name
        save(tmp_path / "run.safetensors", Checkpoint(model, training, after, objective.data))
        found = load(tmp_path / "run.safetensors")
        assert found.model == model
        for (path, a), (_, b) in zip(tree_items(found.state), tree_items(after), strict=True):
            assert np.array_equal(a, b), path
    moved = {
        path
        for (path, a), (_, b) in zip(tree_items(before.params), tree_items(after.params), strict=True)
        if (a != b).any()
    }
    assert {f"stack.{path}" for path in model.stack.untrained} <= moved or not model.moves


@every
@pytest.mark.parametrize("stack", ["plain", "reversible", "fixed", "basic", "accumulated"])
def test_in_every_stack(name, stack):
    """Beside a part that adds to the loss, where blocks may differ: its pullback can be walked, and its training is told apart
    from one that has diverged, by the name of an array."""
    part, universal = PARTS[name], stack if stack in ("fixed", "basic", "accumulated") else "no"
    causal = can(part, True)
    attention = part if universal != "no" else (part, made("span:limit=8") if causal else part)
    sizes = {"attention": attention, "reversible": stack == "reversible", "universal": universal, "ponder": 0.01}
    kind = LanguageModel if causal else SequenceModel
    if (stack != "plain" and part.front) or (universal != "no" and part.moves):
        with pytest.raises(ValueError, match=r"^blocks: .* (take no tokens in front|can't have)"):
            kind(40, 24, D, 2, H, 10, **sizes)
        return
    model = kind(40, 24, D, 2, H, 10, **sizes)
    training = Training(2, 2, Cosine(1e-2, 2, 1), parts=1)
    before = start(model, training)
    tokens = np.random.default_rng(1).integers(0, 40, (2, 9))
    logits, pullback = model(before.params, tokens)
    assert tree_bytes(pullback) > 0
    assert first_nonfinite(pullback) is None
    paid, dY = with_added(pullback, 0.0), np.ones_like(logits)
    assert (type(paid), added_losses(paid)) == (type(pullback), added_losses(pullback))
    for (path, a), (_, b) in zip(tree_items(pullback(dY)), tree_items(paid(dY)), strict=True):
        assert np.array_equal(a, b), path
    with pytest.raises(ValueError, match=r"dY: shape .* should be that of Y"):
        paid(dY[..., :-1])
    if not causal:
        return
    letters = np.resize(np.frombuffer(b"abcdefgh ijkl. ", np.uint8), 400) % 40
    objective = NextByte(Text(letters, letters[:60], "letters", ""), 24)
    after = train(model, objective, training, state=before, progress=False)
    assert all(np.isfinite(array).all() for _, array in tree_items(after.params))
    path, leaf = next(tree_items(before.params.stack))
    broken = before._replace(params=tree_set(before.params, f"stack.{path}", np.full_like(leaf, np.nan)))
    with pytest.raises(TrainingDiverged, match=rf"first seen in params\.stack\.{path}$"):
        train(model, objective, training, state=broken, progress=False)


@every
def test_what_does_not_fit_is_refused(name):
    layer, causal = mixer(name), not can(PARTS[name], False)
    params = some(layer)
    with pytest.raises(TypeError):
        layer(params, rows(2, 5)[..., :-1], causal=causal)
    with pytest.raises(TypeError):
        layer(params, np.ones((2, 5, D), int), causal=causal)
    if tree_leaves(params):  # of another dtype; a layer with nothing to learn takes either
        with pytest.raises(TypeError):
            layer(params, rows(2, 5, dtype=np.float32), causal=causal)
    with pytest.raises(ValueError, match="mask"):
        layer(params, rows(2, 5), causal=causal, mask=np.ones((2, 1, 1, 4), bool))
    if not can(PARTS[name], not causal):
        with pytest.raises(ValueError, match="causal"):
            layer(params, rows(2, 5), causal=not causal)


def heads_for(core, n):
    """Q, K, V and what else it wants of n tokens."""
    rng, shape = np.random.default_rng(4), (2, H, n)
    Q, K, V = rng.standard_normal((3, *shape, D // H))
    return [Q, Q if core.queries_are_keys else K, V, *(rng.standard_normal((*shape, w)) for w in core.streams.values())]


@pytest.mark.parametrize("name", [name for name, part in PARTS.items() if isinstance(part, Core)])
@tiers
def test_heads_that_do_not_fit_each_other_are_refused(name, tier):
    """Before a loop that looks at no index sees them; by whoever calls a core directly, without a mixer."""
    core, causal = PARTS[name], not can(PARTS[name], False)
    params, arrays = some(core), heads_for(core, 9)
    with mt.backend(tier):
        refuses_other_heads(core, params, arrays, causal)


def refuses_other_heads(core, params, arrays, causal):
    core(params, *arrays, causal=causal, mask=None, rng=None)
    for k, X in enumerate(arrays):
        wrong = [X[:1], X[:, :1], X[0, 0], X.astype(np.float32), X.astype(int), X.tolist()]
        wrong += [X[:, :, :5], np.repeat(X, 2, 1), np.repeat(X, 2, 2)] * (
            k != 0
        )  # fewer queries will do, and groups of heads
        wrong += [X[..., :0], np.repeat(X, 2, 3)] * (k != 2)  # values may have a width of their own
        for other in wrong:
            some_wrong = [other if i == k else A for i, A in enumerate(arrays)]
            with pytest.raises((TypeError, ValueError)):
                core(params, *some_wrong, causal=causal, mask=None, rng=None)
            if core.decodes:
                with pytest.raises((TypeError, ValueError)):
                    core.step(params, *some_wrong, state=None)
    if core.decodes:
        with pytest.raises((TypeError, ValueError)):
            core.step(params, arrays[0][:, :, :5], *arrays[1:], state=None)
    for mask in (np.ones((9, 9), int), np.ones((9, 8), bool), np.ones((3, 2, H, 9, 9), bool)):
        with pytest.raises((TypeError, ValueError), match="mask"):
            core(params, *arrays, causal=causal, mask=mask, rng=None)
    for fewer in (arrays[:-1], [*arrays, arrays[-1]]):
        with pytest.raises((TypeError, ValueError)):
            core(params, *fewer, causal=causal, mask=None, rng=None)


# -------------------------------------------------------------------------------------------- the registry


def test_what_moves_after_a_step_says_so():
    """Otherwise nobody calls it."""
    own = {name: type(part).after_step is not Part.after_step for name, part in PARTS.items()}
    assert own == {name: part.moves for name, part in PARTS.items()}


def test_names_and_options():
    assert LanguageModel(attention="window:radius=5").stack.blocks[0].attention.core.pattern.radius == 5
    mixed = LanguageModel(depth=5, attention=("softmax", "linear")).stack
    assert [type(block.attention.core).__name__ for block in mixed.blocks] == [
        "SoftmaxAttention",
        "KernelAttention",
    ] * 2 + ["SoftmaxAttention"]
    for wrong, message in {
        "windw": "no 'windw'; there are softmax, compressed, linformer",
        "window:radio=5": "'window' has no option 'radio=5'; it has radius, step, globals_, as window:radius=…",
        "window:5": "no option '5'",
        "linear:d=5": "no option 'd=5'",
        "window:radius=-1": "radius: -1 should be at least 0",
        7: "7 is not a name",
        (): "empty",
    }.items():
        with pytest.raises(ValueError, match=message):
            LanguageModel(attention=wrong)


def test_the_table_has_a_row_for_each_name():
    lines = table().splitlines()
    assert [line.split()[0] for line in lines] == ["attention", *ATTENTIONS]
    at = {word: lines[0].index(word) for word in ("causal", "remembers", "positions", "needs")}
    said = {line.split()[0]: {word: line[k:].split("  ")[0].strip() for word, k in at.items()} for line in lines}
    causal = {"softmax": "yes", "sinks": "always", "linformer": "never", "reformer": "values only"}
    remembers = {"softmax": "keys and values", "linformer": "does not write", "reformer": "nothing: reads all again"}
    remembers |= {"window": "the last 33 keys and values", "sinks": "the first 4 and the last 64 keys and values"}
    assert {name: said[name]["causal"] for name in causal} == causal
    assert {name: said[name]["remembers"] for name in remembers} == remembers
    assert (said["window"]["positions"], said["linear"]["positions"]) == ("any", "at the embeddings, rope")
    assert (said["softmax"]["needs"], said["delta"]["needs"]) == ("", "β from X")
