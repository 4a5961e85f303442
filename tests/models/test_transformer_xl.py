"""Transformer-XL: segments that look back, against the whole text at once; what no gradient reaches; how far back it sees."""

from dataclasses import replace

import numpy as np
import pytest

from minitransformer import check_pullback, random_like, tree_items, tree_map
from minitransformer.attention import MultiHeadAttention, SoftmaxAttention
from minitransformer.data.text import Text
from minitransformer.models import Block, LanguageModel, SequenceModel, Stack, generate
from minitransformer.models.transformer_xl import MemoryStack, reach, remember
from minitransformer.positions import AT_EMBEDDING, IN_ATTENTION, NTK, DynamicNTK, RoPE, TransformerXLPositions, YaRN
from minitransformer.positions.relative_sinusoids import relative_shift
from minitransformer.training.checkpoint import Checkpoint, CheckpointError, load, save
from minitransformer.training.choices import Training
from minitransformer.training.loop import advance, start, train
from minitransformer.training.objective import NextByte, Segments
from minitransformer.training.schedule import Cosine
from tests.pieces import in_pieces

pytestmark = pytest.mark.usefixtures("definitions")

D, H = 12, 2
SIZES = {"vocabulary": 40, "context": 5, "width": D, "heads": H, "hidden": 10}
LETTERS = np.resize(np.frombuffer(b"abcdefgh ijkl. ", np.uint8), 1000) % 40
TEXT = Text(LETTERS, LETTERS[:130], "letters", "")
ROTATIONS = [
    RoPE(6, scaling=YaRN(4.0, 6)),
    RoPE(6, scaling=NTK(2.0)),
    RoPE(6, part=2, scaling=YaRN(4.0, 6)),
    RoPE(6, layout="halves", part=4, pairs_of="head"),
]
FROM_THE_FIRST = ("tupe", "grid")  # these count from the first token
RELATIVE = [name for name in IN_ATTENTION if name not in FROM_THE_FIRST]


def model_of(memory=8, depth=2, positions="transformer-xl", **options):
    return LanguageModel(
        **{**SIZES, "depth": depth}, positions=positions, stack=f"transformer-xl:memory={memory}", **options
    )


def some(layer, size=0.6, dtype=np.float64):
    rng = np.random.default_rng(1)
    return tree_map(lambda a: (size * a).astype(dtype), random_like(layer.init(rng, np.float64), rng))


def tokens(*shape, seed=2):
    return np.random.default_rng(seed).integers(0, 40, shape)


def in_segments(model, params, text, cuts):
    """The logits of all segments, one after the other; each finds the memory of the one before."""
    said, memory = [], None
    for segment in np.split(text, cuts, -1):
        logits, pullback = model(params, segment, memory=memory)
        memory = pullback.stack.memory
        said.append(logits)
    return np.concatenate(said, -2)


# ---------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("positions", ["none", *RELATIVE])
def test_a_memory_of_everything_is_the_whole_text_at_once(positions, depth, order):
    """With every relative position, and with several layers: what a row was given does not depend on what
    comes later, so it is the same row in the memory. And however the text is cut."""
    model = model_of(16, depth, positions, order=order)
    params, text = some(model), tokens(2, 12)
    whole, _ = replace(model, stack="plain")(params, text)
    for cuts in ((5, 10), (3, 4, 11), (1, 2, 3, 4, 5), ()):
        np.testing.assert_allclose(in_segments(model, params, text, cuts), whole, rtol=0, atol=1e-11)


@pytest.mark.parametrize(("memory", "cuts"), [(3, (5, 10)), (5, (5, 10, 15)), (7, (2, 9, 14)), (1, (5,))])
def test_against_loops(memory, cuts, tier):
    """Layer by layer: rows before it, joined; each query sees the memory and what is not later."""
    positions = TransformerXLPositions(D, H)
    stack = MemoryStack(
        (Block(MultiHeadAttention(D, H, core=SoftmaxAttention(encoding=positions))),) * 2, memory=memory
    )
    params, X = some(stack, 0.4), np.random.default_rng(3).standard_normal((17, D))
    d, kept, wanted = D // H, [np.zeros((0, D))] * 2, []
    u, v = (params.shared[f"attention.core.{name}"] for name in "uv")
    omega = [10000 ** (-2 * f / D) for f in range(D // 2)]

    def norm(x, p):
        return (x - x.mean()) / np.sqrt(((x - x.mean()) ** 2).mean() + 1e-5) * p.gamma + p.beta

    for segment in np.split(X, cuts):
        rows = segment
        for layer, own in enumerate(params.blocks):
            joined = np.concatenate([kept[layer], rows])
            N = np.stack([norm(x, own.attention_norm) for x in joined])
            p, n, m = own.attention, len(rows), len(joined)
            change = np.zeros((n, D))
            for i in range(n):
                heads = []
                for h in range(H):
                    of = slice(h * d, h * d + d)
                    q = N[m - n + i] @ p.W_q[:, of] + p.b_q[of]
                    weights, values = [], []
                    for j in range(m - n + i + 1):
                        t = m - n + i - j
                        r = (
                            np.array([np.sin(w * t) for w in omega] + [np.cos(w * t) for w in omega])
                            @ p.core.W_kr[:, of]
                        )
                        k = N[j] @ p.W_k[:, of] + p.b_k[of]
                        weights.append(np.exp(((q + u[h]) @ k + (q + v[h]) @ r) / np.sqrt(d)))
                        values.append(N[j] @ p.W_v[:, of] + p.b_v[of])
                    heads.append(np.average(values, axis=0, weights=weights))
                change[i] = np.concatenate(heads) @ p.W_o + p.b_o
            kept[layer] = joined[max(m - memory, 0) :]
            rows = rows + change
        wanted.append(np.stack([norm(x, params.norm) for x in rows]))

    before = None
    for segment, want in zip(np.split(X, cuts), wanted, strict=True):
        Y, pullback = stack(params, segment, before, causal=True)
        before = pullback.memory
        np.testing.assert_allclose(Y, want, rtol=0, atol=1e-11)
    assert [rows.shape for rows in before] == [rows.shape for rows in kept]
    for found, known in zip(before, kept, strict=True):
        np.testing.assert_allclose(found, known, rtol=0, atol=1e-11)


def test_the_first_memory_is_the_embedding():
    """Layer inputs, the embedding's output among them; the last M rows."""
    model = model_of(3)
    params, text = some(model), tokens(2, 5)
    X, _ = model._embed(params, text)
    _, pullback = model(params, text)
    np.testing.assert_array_equal(pullback.stack.memory[0], X[:, -3:])
    assert [rows.shape for rows in pullback.stack.memory] == [(2, 3, D)] * 2
    _, pullback = model(params, text[:, :1], memory=pullback.stack.memory)
    np.testing.assert_array_equal(pullback.stack.memory[0][:, :2], X[:, -2:])
    assert [block.attention.A.shape for block in pullback.blocks] == [(2, H, 1, 4)] * 2


# ------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("positions", ["transformer-xl", "transformer-xl:tied=False", "rope", "none"])
def test_the_gradient_with_a_memory(order, positions):
    """Of all parameters: those of keys and values, and of the norm before them, also by way of the memory."""
    model = model_of(4, positions=positions, order=order)
    params = some(model)
    _, first = model(params, tokens(2, 5))
    memory = first.stack.memory
    assert memory[0].shape == (2, 4, D)
    keys = [] if positions == "rope" else [f"params.stack.blocks.{k}.attention.b_k" for k in range(2)]

    def second(params):
        return model(params, tokens(2, 3, seed=5), memory=tuple(rows.astype(params.E.dtype) for rows in memory))

    check_pullback(second, params, zero=keys, entries=3)


def test_no_gradient_goes_into_the_memory():
    """Exactly none: the tokens of the first segment get zero, though what the second says depends on them."""
    model = replace(model_of(5), outputs="none")  # the table is read, and nothing else
    params = some(model)
    early, late = np.arange(5)[None], 20 + np.arange(4)[None]

    def second(params):
        _, first = model(params, early)
        return model(params, late, memory=first.stack.memory)

    Y, pullback = second(params)
    dE = pullback(np.ones_like(Y)).E
    assert not dE[:5].any()
    assert dE[20:24].all()
    E = params.E.copy()
    E[0, 0] += 1
    assert np.abs(second(params._replace(E=E))[0] - Y).max() > 1e-3


def test_the_gradient_of_a_text_is_the_sum_over_its_segments_and_not_that_of_the_whole():
    """What is cut off is what goes through the memory: small, and not zero."""
    model = model_of(16)
    params, text = some(model), tokens(1, 10)
    dY = np.random.default_rng(4).standard_normal((1, 10, 40))
    _, whole = replace(model, stack="plain")(params, text)
    _, first = model(params, text[:, :5])
    _, second = model(params, text[:, 5:], memory=first.stack.memory)
    found = tree_map(np.add, first(dY[:, :5]), second(dY[:, 5:]))
    differ = [np.abs(a - b).max() for (_, a), (_, b) in zip(tree_items(found), tree_items(whole(dY)), strict=True)]
    assert max(differ) > 1e-2


def test_u_and_v_are_tied_or_not():
    tied, untied = some(model_of()), some(model_of(positions="transformer-xl:tied=False"))
    assert list(tied.stack.shared) == ["attention.core.u", "attention.core.v"]
    assert untied.stack.shared is None
    assert untied.stack.blocks[1].attention.core.u.shape == (H, D // H)
    same = untied.stack.blocks[0].attention.core
    blocks = tuple(
        block._replace(attention=block.attention._replace(core=block.attention.core._replace(u=same.u, v=same.v)))
        for block in untied.stack.blocks
    )
    shared = {"attention.core.u": same.u, "attention.core.v": same.v}
    split = tuple(
        block._replace(attention=block.attention._replace(core=block.attention.core._replace(u=None, v=None)))
        for block in blocks
    )
    a, _ = model_of(positions="transformer-xl:tied=False")(
        untied._replace(stack=untied.stack._replace(blocks=blocks)), tokens(2, 5)
    )
    b, _ = model_of()(untied._replace(stack=untied.stack._replace(blocks=split, shared=shared)), tokens(2, 5))
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("n", "m"), [(3, 5), (4, 4), (1, 6)])
def test_the_published_shift_is_the_same_index_map_below_the_diagonal_and_garbage_above(n, m):
    """A column of zeros in front, the same numbers in rows of another length, the first row dropped."""
    rng = np.random.default_rng(0)
    T = rng.standard_normal((n, m))  # a column for each distance, the largest, m − 1, first
    padded = np.concatenate([np.zeros((n, 1)), T], 1)
    published = padded.reshape(m + 1, n)[1:].reshape(n, m)
    ours = relative_shift(np.concatenate([T, np.zeros((n, n))], 1))  # with columns for distances below zero
    for i, j in np.ndindex(n, m):
        distance = i + m - n - j
        if distance >= 0:
            assert published[i, j] == ours[i, j] == T[i, m - 1 - distance]
        else:
            assert ours[i, j] == 0
            wanted = 0 if distance == -1 else T[i + 1, -distance - 2]  # the padding, then the beginning of the next row
            assert published[i, j] == wanted


# ------------------------------------------------------------------------------------------ how far it sees


@pytest.mark.parametrize(
    ("layers", "segment", "memory"), [(1, 4, 4), (3, 4, 4), (2, 4, 8), (3, 4, 3), (2, 5, 7), (3, 3, 1)]
)
def test_the_context_that_is_reached(layers, segment, memory):
    """By perturbation, token by token; layers times memory if that is a multiple of the segment."""
    model = LanguageModel(40, segment, D, layers, H, 10, positions="none", stack=f"transformer-xl:memory={memory}")
    params, before = some(model), 7 * segment
    text = tokens(1, before + 1)
    cuts = range(segment, before + 1, segment)

    def last(text):
        return in_segments(model, params, text, list(cuts))[0, -1]

    moved = []
    for k in range(before + 1):
        other = text.copy()
        other[0, k] = (other[0, k] + 1) % 40
        moved.append((last(other) != last(text)).any())
    assert moved == [k >= before - reach(layers, segment, memory) for k in range(before + 1)]
    if memory % segment == 0:
        assert reach(layers, segment, memory) == layers * memory


# ---------------------------------------------------------------------------------------- writing, reading on


@pytest.mark.parametrize("positions", ["transformer-xl", "rope", "alibi"])
@pytest.mark.parametrize("pieces", [(1,) * 17, (3, 9, 1, 1, 3), (17,)])
def test_one_by_one_is_the_same_as_segment_by_segment(positions, pieces, tier):
    """Also where a step crosses the end of a segment, and where keys were turned."""
    for memory in (3, 8):
        model = model_of(memory, positions=positions)
        params, text = some(model), tokens(2, 17)
        said, state = in_pieces(model, params, text, np.cumsum((0, *pieces)))
        np.testing.assert_allclose(said, in_segments(model, params, text, [5, 10, 15]), rtol=0, atol=1e-10)
        assert state.length == 17
        assert state.blocks.blocks[0].length <= memory + 5


@pytest.mark.parametrize(
    "rotate",
    [RoPE(D // H, scaling=YaRN(4.0, 6)), RoPE(D // H, scaling=NTK(2.0)), RoPE(D // H, part=2, scaling=YaRN(4.0, 6))],
)
def test_scaled_rotations_are_turned_back_as_well(rotate):
    model = model_of(3, positions=rotate)
    params, text = some(model), tokens(2, 12)
    said, _ = in_pieces(model, params, text, range(13))
    np.testing.assert_allclose(said, in_segments(model, params, text, [5, 10]), rtol=0, atol=1e-10)


def test_a_state_can_be_continued_twice():
    model = model_of()
    params = some(model)
    first, a, b = tokens(3, 1, 7)
    _, state = model.step(params, first)
    said = [model.step(params, piece, state)[0] for piece in (a, b, a)]
    assert np.array_equal(said[0], said[2])
    assert not np.array_equal(said[0], said[1])
    nothing, same = model.step(params, first[:, :0], state)
    assert nothing.shape == (1, 0, said[0].shape[-1])
    assert np.array_equal(model.step(params, a, same)[0], said[0])


def test_more_memory_where_it_is_judged():
    """Nothing is learned for it: the same parameters serve any M; with all of the text it is the whole again."""
    model, text = model_of(5), tokens(2, 20)
    params = some(model)
    whole, _ = replace(model, stack="plain")(params, text)
    far = [
        np.abs(in_segments(replace(model, stack=f"transformer-xl:memory={m}"), params, text, [5, 10, 15]) - whole).max()
        for m in (5, 10, 15)
    ]
    assert far[0] > far[2]
    assert far[0] > 1e-3
    assert far[2] < 1e-11


def test_it_reads_on_while_it_writes():
    """Beyond the context, without reading anything again."""
    model = model_of(5)
    params, prompt = some(model), tokens(12)
    found = generate(model, params, prompt, 20, temperature=0.0, rng=np.random.default_rng(0))
    text = list(prompt)
    for token in found:
        said = in_segments(model, params, np.array(text), range(5, len(text), 5))
        assert token == said[-1].argmax()
        text.append(token)


# --------------------------------------------------------------------------------------------- training


def run_of(steps, batch=4, **options):
    return Training(steps, batch, Cosine(2e-2, steps, 1), look_every=10, **{"parts": 2, **options})


def test_streams_through_a_text():
    """Sample b of step s is segment s of stream b; at the end all begin again, without a memory."""
    objective = Segments(Text(np.arange(100) % 40, np.arange(60) % 40, "count", ""), 5)
    memory = (np.ones((3, 2, D)),)
    for step in range(1, 14):
        inputs, targets, *carried = objective.segment(3, step, memory)
        starts = np.arange(3) * 33 + (step - 1) % 6 * 5
        np.testing.assert_array_equal(inputs, (starts[:, None] + np.arange(5)) % 40)
        np.testing.assert_array_equal(targets, (starts[:, None] + np.arange(5) + 1) % 40)
        assert len(carried) == ((step - 1) % 6 != 0)


def test_the_memory_is_carried_from_step_to_step(tier):
    """Two steps by hand: the second finds what the first was given, with the parameters of then."""
    model, objective, training = model_of(8), Segments(TEXT, 5), run_of(10)
    before = start(model, training)
    after = advance(model, objective, training, before)
    inputs, _ = objective.segment(4, 1, ())
    _, pullback = model(before.params, inputs)
    for found, known in zip(after.carried, pullback.stack.memory, strict=True):
        np.testing.assert_allclose(found, known, atol=1e-5)
    twice = advance(model, objective, training, after)
    inputs, _, *memory = objective.segment(4, 2, after.carried)
    _, pullback = model(after.params, inputs, memory=tuple(memory))
    for found, known in zip(twice.carried, pullback.stack.memory, strict=True):
        assert found.shape == (4, 8, D)
        np.testing.assert_allclose(found, known, atol=1e-5)
    forgetful = advance(model, objective, training, after._replace(carried=tuple(0 * c for c in after.carried)))
    assert forgetful.losses[-1] != twice.losses[-1]


def test_a_model_without_a_memory_reads_the_same_segments():
    """What one with a memory is compared with: the same batches, nothing carried."""
    model, objective, training = replace(model_of(), stack="plain"), Segments(TEXT, 5), run_of(8)
    state = train(model, objective, training, progress=False)
    assert state.carried == ()
    alone = NextByte(TEXT, 5)
    bits = objective.bits(model, state.params)
    logits, _ = model(state.params, TEXT.held_out[5:10].astype(int))
    P = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum(-1, keepdims=True)
    np.testing.assert_allclose(bits[5:10], -np.log2(P[np.arange(5), TEXT.held_out[6:11]]), rtol=1e-4)
    assert alone.data == objective.data


def test_a_run_that_was_stopped_goes_on_bit_for_bit(tier, tmp_path):
    model, objective, training = model_of(8, dropout=0.1), Segments(TEXT, 5), run_of(12)
    whole = train(model, objective, training, progress=False)
    half = start(model, training)
    for _ in range(7):
        half = advance(model, objective, training, half)
    save(tmp_path / "run", Checkpoint(model, training, half, objective.data))
    found = load(tmp_path / "run")
    assert found.model == model
    after = train(found.model, objective, found.training, state=found.state, progress=False)
    assert whole.losses[-1] < whole.losses[0]
    for (path, a), (_, b) in zip(tree_items(after), tree_items(whole), strict=True):
        assert np.array_equal(a, b), path


def test_a_memory_of_float64_comes_back(tmp_path):
    model, objective, training = model_of(8), Segments(TEXT, 5), run_of(12)
    state = advance(model, objective, training, start(model, training, np.float64))
    save(tmp_path / "run", Checkpoint(model, training, state, objective.data))
    for found, carried in zip(load(tmp_path / "run").state.carried, state.carried, strict=True):
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, carried)


def test_a_checkpoint_with_another_memory_is_refused(tmp_path):
    model, objective, training = model_of(8), Segments(TEXT, 5), run_of(12)
    state = advance(model, objective, training, start(model, training))
    for carried in (
        state.carried[:1],
        tuple(c[:2] for c in state.carried),
        tuple(np.repeat(c, 2, 1) for c in state.carried),
        tuple(np.repeat(c, 2, 2) for c in state.carried),
    ):
        with pytest.raises(CheckpointError, match=r"carried\.0: \(\d, \d+, \d+\) is not what 2 blocks remember"):
            save(tmp_path / "run", Checkpoint(model, training, state._replace(carried=carried), objective.data))


def test_what_is_held_out_is_read_once():
    """With all of it in memory, as one long context; with less, each byte is still judged once."""
    model = model_of(150)
    params, held_out = some(model, 0.3), TEXT.held_out
    bits = Segments(TEXT, 5).bits(model, params)
    logits, _ = replace(model, stack="plain")(params, held_out[:-1].astype(int))
    P = np.exp(logits - logits.max(-1, keepdims=True))
    P /= P.sum(-1, keepdims=True)
    np.testing.assert_allclose(bits, -np.log2(P[np.arange(129), held_out[1:]]), rtol=1e-9)
    less = Segments(TEXT, 5).bits(replace(model, stack="transformer-xl:memory=4"), params)
    assert less.shape == bits.shape
    assert not np.allclose(less, bits)
    assert Segments(TEXT, 5).look(model, params) == pytest.approx(bits.mean(), rel=0.2)


# ---------------------------------------------------------------------------------------------- refusals


def test_what_can_not_be():
    absolute = ("sinusoidal", "learned", "learnable sinusoids", *FROM_THE_FIRST)
    for positions in absolute:
        for memory in (0, 4):  # without one, a text would still go on from segment to segment
            with pytest.raises(
                ValueError, match=f"^positions: {positions} does not go with a memory: it wants relative positions"
            ):
                model_of(memory, positions=positions)
    for positions in {*AT_EMBEDDING, *IN_ATTENTION} - {*absolute}:
        model_of(positions=positions)
    with pytest.raises(ValueError, match="causal: False does not go with a memory"):
        SequenceModel(positions="rope", stack="transformer-xl:memory=4")
    SequenceModel(positions="rope", stack="transformer-xl:memory=0")
    for attention in ("window", "delta", "linear"):
        with pytest.raises(ValueError, match=f"memory: {attention} can't look back"):
            model_of(positions="none", attention=attention)
    with pytest.raises(ValueError, match="page: 16 can't be had with a memory"):
        model_of(positions="none", attention="softmax:page=16")
    with pytest.raises(ValueError, match="positions: the angles of this RoPE change with the length"):
        model_of(positions=RoPE(D // H, scaling=DynamicNTK(1.0, 16)))


def test_a_memory_that_does_not_fit_is_refused():
    model = model_of()
    params = some(model)
    _, pullback = model(params, tokens(2, 5))
    memory = pullback.stack.memory
    for wrong in (memory[:1], tuple(rows[:1] for rows in memory), tuple(rows[..., :5] for rows in memory)):
        with pytest.raises(ValueError, match="for each of 2 blocks"):
            model(params, tokens(2, 5), memory=wrong)
    with pytest.raises(TypeError, match="X, memory: should have one dtype, got float64, float32"):
        model(params, tokens(2, 5), memory=tuple(rows.astype(np.float32) for rows in memory))
    with pytest.raises(ValueError, match="memory: padding would be remembered"):
        model(params, tokens(2, 5), memory=memory, lengths=np.array([5, 3]))
    with pytest.raises(ValueError, match="memory: this model has none"):
        replace(model, stack="plain")(params, tokens(2, 5), memory=memory)
    with pytest.raises(ValueError, match="too short for 400 streams of 5 bytes"):
        Segments(TEXT, 5).segment(400, 1, ())


def test_a_state_whose_parts_do_not_belong_together_is_refused():
    """Of two blocks that remember different lengths, at a place beyond the segment, or of more than a memory holds."""
    stack = model_of(4, positions="none").body
    params, X = some(stack), np.random.default_rng(0).standard_normal((2, 7, D))
    early, late = (stack.step(params, X[:, :n])[1] for n in (2, 5))
    for state, message in (
        (late._replace(place=6), r"states\.place: 6 should be from 0 to 5, a segment"),
        (
            late._replace(blocks=(early.blocks[0], late.blocks[1])),
            r"memories of length -3 and 0 should have one length",
        ),
        (
            early._replace(blocks=(early.blocks[0], late.blocks[1])),
            r"memories of length 0 and 3 should have one length",
        ),
        (late._replace(place=0), r"memories of length 5 should have one length from 0 to 4"),
    ):
        with pytest.raises(ValueError, match=message):
            stack.step(params, X[:, 5:], state)


def test_a_memory_is_a_copy():
    """Of its last rows, so that it does not hold on to all that a layer was given."""
    H = np.random.default_rng(0).standard_normal((2, 9, D))
    for before in (None, H[:, :2]):
        rows = remember(before, H, 4)
        np.testing.assert_array_equal(rows, H[:, 5:])
        assert rows.base is None
        assert not np.shares_memory(rows, H)


def test_padding_in_the_only_segment_and_a_mask_beside_a_memory():
    model = model_of()
    params, text = some(model), tokens(2, 5)
    logits, _ = model(params, text, lengths=np.array([5, 3]))
    np.testing.assert_allclose(logits[1, :3], model(params, text[1:, :3])[0][0], atol=1e-12)
    stack, X = model.body, np.random.default_rng(0).standard_normal((2, 4, D))
    _, first = stack(params.stack, X, causal=True)
    seen = np.array([True, False, True, True])
    Y, _ = stack(params.stack, X, first.memory, causal=True, mask=seen[None])
    other = X.copy()
    other[:, 1] = 7
    Z, _ = stack(params.stack, other, first.memory, causal=True, mask=seen[None])
    np.testing.assert_array_equal(Y[:, [0, 2, 3]], Z[:, [0, 2, 3]])
    whole, _ = stack(params.stack, X, first.memory, causal=True)
    for nothing_hidden in (np.ones((1, 4), bool), np.ones((4, 1), bool)):  # an axis of length 1 stands for all
        everything, _ = stack(params.stack, X, first.memory, causal=True, mask=nothing_hidden)
        np.testing.assert_array_equal(everything, whole)


def test_an_empty_memory_is_none():
    model = model_of()
    params, text = some(model), tokens(2, 5)
    nothing = tuple(np.zeros((2, 0, D)) for _ in range(2))
    np.testing.assert_array_equal(model(params, text, memory=nothing)[0], model(params, text)[0])


def test_without_a_memory_it_is_the_usual_stack():
    """M = 0 forgets, bit for bit."""
    stack = model_of().body
    params, X = some(stack), np.random.default_rng(0).standard_normal((2, 6, D))
    forgets = MemoryStack(stack.blocks, memory=0, segment=3)
    usual = Stack(stack.blocks)
    whole = np.concatenate([usual(params, part, causal=True)[0] for part in np.split(X, 2, 1)], 1)
    Y, _ = forgets.step(params, X)
    np.testing.assert_allclose(Y, whole, atol=1e-12)
    _, pullback = forgets(params, X, causal=True)
    assert [rows.shape for rows in pullback.memory] == [(2, 0, D)] * 2


def test_groups_share_keys_in_memory_too():
    model = LanguageModel(40, 5, 16, 2, 4, 10, positions="rope", stack="transformer-xl:memory=6", groups=2)
    params, text, state = some(model), tokens(2, 12), None
    whole = in_segments(model, params, text, [5, 10])
    logits, _ = model.step(params, text, state)
    np.testing.assert_allclose(logits, whole, rtol=0, atol=1e-10)
