"""What every kind of attention in the registry has to keep, by being registered.

The rules are those of `mt.check_attention` (minitransformer/contract/), and here what goes on from there: every model, every
stack, every encoding of positions. A new one gets all of this; what it has to bring is its definition in loops, its limiting
case and its errata. A core that asks the seams for all they can carry (everything.py) has to pass as well.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import contract
from minitransformer.attention import ATTENTIONS, Core, EachHead, Mixer, SoftmaxAttention, Strided, Window, attention_of
from minitransformer.attention.core import Part
from minitransformer.contract import can
from minitransformer.data.text import Text
from minitransformer.models import BERT, EncoderDecoder, LanguageModel, SequenceModel
from minitransformer.positions import AT_EMBEDDING, IN_ATTENTION, place
from minitransformer.pullback import added_losses, first_nonfinite, tree_bytes, tree_items, tree_set, with_added
from minitransformer.training.choices import Training
from minitransformer.training.loop import TrainingDiverged, start, train
from minitransformer.training.objective import NextByte
from minitransformer.training.schedule import Cosine
from tests.peaks import peak

pytestmark = pytest.mark.each_value  # each part is in each property; the other options take turns

spec = importlib.util.spec_from_file_location("everything", Path(__file__).with_name("everything.py"))
everything = importlib.util.module_from_spec(spec)
spec.loader.exec_module(everything)

D, H = contract.WIDTH, contract.HEADS
OPTIONS = {
    "softmax": "sink=learned,cap=9,norm=rms,gate=element",
    "differential": "lambda_init=0.3",
    "latent": "rank=5,query_rank=4,rotary=4",
    "pooled": "block=3,window=4,head_width=6",
    "compressed": "stride=3",
    "linformer": "k=5,sharing=layerwise",
    "nystrom": "landmarks=4,taps=5",
    "local": "block=11",
    "window": "radius=9,dilation=2,global_tokens=3",
    "sinks": "first=3,last=9",
    "strided": "stride=7,part=heads",
    "fixed": "block=9,columns=2",
    "longformer": "radius=9,dilation=2,global_tokens=3",
    "etc": "radius=17,global_tokens=1,clip=4",
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
    "gat": "radius=20,dynamic=True",
    "gcn": "radius=9",
    "synthesizer": "mixture=gated",
    "hopfield": "steps=3,beta=0.2",
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
    "latent",
    *("pooled:block=2,window=1", "pooled:block=3,window=4,chosen=3,head_width=6,small=5,narrow=4"),
    *("gmlp:form=source,hidden=9", "dynamic-convolution:renormalise=True"),
    "gat",
    *("softmax", "softmax:page=5", "softmax:sink=0,gate=head", "softmax:page=5,sink=learned,cap=2"),
    *("delta:nu=2,reach=2", "gated-delta:reach=2,key_heads=1"),
    *("gated-delta:taps=3", "gated-delta:channelwise=True,taps=3"),
    *("ssd:taps=4,key_heads=1", "each head", "everything"),
    *("synthesizer:kind=random", "synthesizer:kind=factorised-random,learned=False,mixture=sum"),
    "synthesizer:kind=factorised-dense",
)
PARTS = {name: made(name) for name in (*NAMES, *OTHERS)}


def mixer(name):
    """The part under this name as a layer."""
    return contract.mixer(PARTS[name])


def language_model(name, **options):
    sizes = {"vocabulary": 40, "context": 96, "width": D, "depth": 2, "heads": H, "hidden": 10}
    return LanguageModel(**sizes, attention=PARTS[name], **options)


every = pytest.mark.parametrize("name", PARTS)
causal_or_not = pytest.mark.parametrize(
    ("name", "causal"), [(name, causal) for name, part in PARTS.items() for causal in contract.directions(part)]
)
causal_or_not_cores = pytest.mark.parametrize(
    ("name", "causal"),
    [(name, causal) for name, part in PARTS.items() if isinstance(part, Core) for causal in contract.directions(part)],
)
causal_ones = pytest.mark.parametrize("name", [name for name, part in PARTS.items() if can(part, True)])


# ---------------------------------------------------------------------------------------------------- the pairs


@pytest.mark.parametrize("name", [name for name, part in PARTS.items() if contract.pattern_of(part)])
def test_tiles_have_the_pairs_of_the_rule(name):
    contract.pairs_are_there(contract.pattern_of(PARTS[name]))


# ---------------------------------------------------------------------------------------- values and gradients


@causal_or_not
@pytest.mark.parametrize(
    ("n", "padded"),
    [(contract.N, True), *(pytest.param(7, padded, marks=pytest.mark.full) for padded in (False, True))],
)
def test_the_gradient_of_every_parameter_and_input(name, causal, n, padded):
    """Of so many tokens that what a pattern hides is hidden; fewer, and no mask, are as some that are masked (see padding)."""
    contract.gradients(PARTS[name], causal=causal, n=n, padded=padded)


@causal_or_not
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_all_tiers_agree(name, causal, dtype):
    contract.tiers_agree(PARTS[name], causal=causal, dtype=dtype)


@causal_ones
def test_what_comes_later_changes_no_bit(name, tier):
    """Except where a part says that its pattern looks ahead: then it has to, or it should not say so."""
    contract.later_changes_nothing(PARTS[name], tier=tier)


@causal_or_not
def test_padding_changes_no_bit_of_what_is_there(name, causal, tier):
    contract.padding_changes_nothing(PARTS[name], causal=causal, tier=tier)


@causal_or_not
def test_what_stands_in_a_hidden_token_reaches_nothing(name, causal, tier):
    """Be it NaN or infinite: neither Y of others nor, of a hidden key and its value, a gradient is another one."""
    contract.hidden_reaches_nothing(PARTS[name], causal=causal, tier=tier)


@causal_or_not_cores
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_shapes_and_dtypes(name, causal, dtype):
    contract.form_is_kept(PARTS[name], causal=causal, dtype=dtype)


@causal_or_not_cores
def test_values_have_a_width_of_their_own(name, causal, tier):
    contract.values_have_a_width(PARTS[name], causal=causal, tier=tier)


@causal_or_not
def test_a_query_that_sees_no_key_makes_no_nan(name, causal, tier):
    contract.nothing_to_see(PARTS[name], causal=causal, tier=tier)


@every
def test_samples_know_nothing_of_each_other(name):
    contract.samples_apart(PARTS[name])


@every
@pytest.mark.usefixtures("tier")
def test_of_no_samples_the_shapes_are_those_of_some(name):
    """Read at once, and written on from a state."""
    layer, causal = contract.mixer(PARTS[name]), can(PARTS[name], True)
    params, X = contract.some(layer), contract.rows(PARTS[name], 0, 9)
    Y, pullback = layer(params, X, causal=causal)
    dparams, dX = pullback(Y)
    assert Y.shape == dX.shape == X.shape
    assert not any(array.any() for _, array in tree_items(dparams))
    if causal and layer.decodes:
        first, state = layer.step(params, X[:, :8])
        last, state = layer.step(params, X[:, 8:], state)
        assert (first.shape, last.shape, state.length) == (X[:, :8].shape, X[:, 8:].shape, 9)


@every
@pytest.mark.parametrize("n", [1, 2, 63, 64, 65])
def test_any_length(name, n):
    contract.any_length(PARTS[name], n=n)


@pytest.mark.parametrize(
    ("name", "causal"),
    [
        (name, causal)
        for name, part in PARTS.items()
        if isinstance(part, Core) and not part.queries_are_keys and part.key_heads is None
        for causal in contract.directions(part)
    ],
)
@pytest.mark.parametrize("groups", [1, 2])
def test_groups_of_heads_share_their_keys(name, causal, groups):
    """As if each head of queries had a copy of the keys and values of its group."""
    contract.groups_share_keys(made(name, width=24, heads=4), causal=causal, groups=groups, width=24, heads=4)


# -------------------------------------------------------------------------------------------- one by one


@pytest.mark.parametrize("n", [1, 3, 7])
@pytest.mark.parametrize(
    "name",
    [name for name, part in PARTS.items() if isinstance(part, Core) and can(part, True) and not part.looks_ahead],
)
def test_fewer_queries_than_keys_are_the_last_ones(name, n, tier):
    """The last n rows of attention over all, and the gradients that these rows send back; cores with streams refuse them."""
    core, m = PARTS[name], 40
    params, (Q, *others) = contract.some(core), contract.heads_for(core, m)
    dY = np.random.default_rng(5).standard_normal(others[1].shape) * (np.arange(m) >= m - n)[:, None]
    with mt.backend(tier):
        if core.streams:
            with pytest.raises(ValueError, match="should be"):
                core(params, Q[..., m - n :, :], *others, causal=True)
            return
        whole, pullback = core(params, Q, *others, causal=True)
        Y, of_last = core(params, Q[..., m - n :, :], *others, causal=True)
        (dparams, dQ, *dothers), gradients = pullback(dY), of_last(dY[..., m - n :, :])
    np.testing.assert_allclose(Y, whole[..., m - n :, :], rtol=0, atol=1e-9)
    expected = dict(tree_items((dparams, dQ[..., m - n :, :], *dothers)))
    for path, array in tree_items(tuple(gradients)):
        np.testing.assert_allclose(array, expected[path], rtol=0, atol=1e-9, err_msg=path)


@causal_ones
@pytest.mark.parametrize("positions", ["sinusoidal", "rope"])
@pytest.mark.parametrize("pieces", contract.PIECES)
def test_one_by_one_is_the_same_as_all_at_once(name, positions, pieces, tier):
    contract.one_by_one(PARTS[name], positions=positions, pieces=pieces, tier=tier)


@pytest.mark.parametrize("name", [name for name, part in PARTS.items() if str(part.remembers).startswith("S")])
def test_a_memory_reads_a_prompt_without_a_matrix_of_pairs(name, tier):
    """Twice the prompt needs twice the room, and leaves no more behind."""
    layer, peaks, left = mixer(name), [], set()
    params = contract.some(layer)
    layer.step(params, contract.rows(PARTS[name], 1, 80))  # may compile
    for n in (80, 160):
        X = contract.rows(PARTS[name], 1, n)
        peaks.append(peak(lambda X=X: layer.step(params, X)))
        left.add(tree_bytes(tuple(layer.step(params, X)[1])))
    assert peaks[1] < 2.2 * peaks[0]
    assert len(left) == 1


@causal_ones
def test_a_state_can_be_continued_twice(name, tier):
    """Two ways to go on from one state don't get into each other's way, and the state is as it was."""
    contract.state_continued_twice(PARTS[name], tier=tier)


# ----------------------------------------------------------------------------------------------- in models


def pairs():
    return [(name, positions) for name in PARTS for positions in (*AT_EMBEDDING, *IN_ATTENTION)]


@pytest.mark.parametrize(("name", "positions"), pairs())
def test_with_every_encoding_of_positions_or_a_reason_why_not(name, positions):
    """Every pair makes a model that learns and writes, or is refused in one line."""
    part = PARTS[name]
    inside = place(positions, width=D, heads=H, longest=96).in_attention
    turns = inside is None or inside.acts_on == ("queries and keys",)
    if not (turns or (isinstance(part, Core) and part.places)) or (inside is not None and isinstance(part, Mixer)):
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


@pytest.mark.parametrize("positions", IN_ATTENTION)
@pytest.mark.parametrize("causal", [False, True])
def test_what_an_encoding_does_keeps_the_mask(positions, causal, tier):
    """Inside softmax attention: neither Y nor a gradient, that of its parameters included, knows what is hidden."""
    part = SoftmaxAttention(encoding=place(positions, width=D, heads=H, longest=96).in_attention)
    contract.padding_changes_nothing(part, causal=causal, tier=tier)
    contract.hidden_reaches_nothing(part, causal=causal, tier=tier)


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
        params, said = model.init(np.random.default_rng(0)), tokens[:, :5]
        whole, pullback = model(params, tokens, said, lengths=np.array([9, 4]))
        alone, _ = model(params, tokens[1:, :4], said[1:])
        assert np.allclose(whole[1], alone[0], atol=1e-5)
        later, _ = model(params, tokens, np.where(np.arange(5) < 3, said, 39 - said), lengths=np.array([9, 4]))
        assert np.array_equal(later[:, :3], whole[:, :3]) or part.looks_ahead
        assert all(np.isfinite(array).all() for _, array in tree_items(pullback(np.ones_like(whole))))


@causal_ones
def test_ten_steps_of_training_and_a_checkpoint(name, tier):
    """The loss falls, what no gradient moves is moved by hand or stays, and all of it can be read back."""
    contract.learns(PARTS[name], tier=tier)
    if name in NAMES:  # the registry is what a file may name
        contract.saved_and_loaded(PARTS[name])


@every
@pytest.mark.parametrize(
    "stack", ["plain", "reversible", *(f"universal:halting={h}" for h in ("fixed", "basic", "accumulated"))]
)
def test_in_every_stack(name, stack):
    """Beside a part that adds to the loss, where blocks may differ: its pullback can be walked, and its training is told apart
    from one that has diverged, by the name of an array."""
    part, universal = PARTS[name], stack.startswith("universal")
    causal = can(part, True)
    attention = part if universal else (part, made("span:limit=8") if causal else part)
    kind = LanguageModel if causal else SequenceModel
    if (stack != "plain" and part.prefix) or (universal and part.moves):
        with pytest.raises(ValueError, match=r"^blocks: .* (take no tokens in front|can't have)"):
            kind(40, 24, D, 2, H, 10, attention=attention, stack=stack)
        return
    model = kind(40, 24, D, 2, H, 10, attention=attention, stack=stack)
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
    contract.refuses(PARTS[name])


@pytest.mark.parametrize("name", [name for name, part in PARTS.items() if isinstance(part, Core)])
def test_heads_that_do_not_fit_each_other_are_refused(name, tier):
    """Before a loop that looks at no index sees them; by whoever calls a core directly, without a mixer."""
    contract.refuses_other_heads(PARTS[name], tier=tier)


# -------------------------------------------------------------------------------------------- the registry


def test_what_moves_after_a_step_says_so():
    """Otherwise nobody calls it."""
    own = {name: type(part).after_step is not Part.after_step for name, part in PARTS.items()}
    assert own == {name: part.moves for name, part in PARTS.items()}


def test_names_and_options():
    assert LanguageModel(attention="window:radius=5").body.blocks[0].attention.core.pattern.radius == 5
    mixed = LanguageModel(depth=5, attention=("softmax", "linear")).body
    assert [type(block.attention.core).__name__ for block in mixed.blocks] == [
        "SoftmaxAttention",
        "KernelAttention",
    ] * 2 + ["SoftmaxAttention"]
    for wrong, message in {
        "windw": "no 'windw'; near it: window; there are softmax, differential, latent, pooled, compressed",
        "window:step=5": "'window' has no option 'step=5'; write dilation instead",
        "longformer:globals_=5": "'longformer' has no option 'globals_=5'; write global_tokens instead",
        "window:radio=5": "'radio=5'; near it: radius; it has radius, dilation, global_tokens, as window:radius=…",
        "window:5": "no option '5'",
        "linear:d=5": "no option 'd=5'",
        "window:radius=-1": "radius: -1 should be at least 0",
        7: "7 is not a name",
        (): "empty",
    }.items():
        with pytest.raises(ValueError, match=message):
            LanguageModel(attention=wrong)
