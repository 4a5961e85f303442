"""Heads whose widths do not add up to that of the rows: the equation, every core, every encoding, every model."""

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback
from minitransformer.attention import (
    ATTENTIONS,
    Core,
    MultiHeadAttention,
    RetNet,
    Sinks,
    SoftmaxAttention,
    attention_of,
)
from minitransformer.contract import some
from minitransformer.contract.parts import can
from minitransformer.models import BERT, EncoderDecoder, LanguageModel, SequenceModel, gpt_oss, llama, qwen3_next
from minitransformer.positions import IN_ATTENTION, ALiBi, RoPE, Shaw
from minitransformer.pullback import tree_items, tree_size
from minitransformer.training.checkpoint import Checkpoint, load, save
from minitransformer.training.choices import Training
from minitransformer.training.loop import start
from minitransformer.training.schedule import Cosine
from tests.pieces import in_pieces

D, H, WIDE = 12, 4, 6
SIZES = {"width": D, "heads": H, "d": WIDE, "longest": 40}
OPTIONS = {
    "routing": "routing:clusters=2,window=20",
    "sinkhorn": "sinkhorn:block=3,iterations=4",
}  # of which nothing is dropped
OTHERS = (
    "softmax:norm=rms,gate=element",
    "gated-delta:key_heads=2,taps=3",
    "ssd:taps=2,key_heads=1",
    "softmax:page=4,sink=learned",
)
PARTS = {name: attention_of(OPTIONS.get(name, name), SIZES) for name in (*ATTENTIONS, *OTHERS)}
CORES = [name for name, part in PARTS.items() if isinstance(part, Core)]
TOKENS = np.random.default_rng(0).integers(0, 20, (2, 9))


def rows(width=D):
    return np.random.default_rng(2).standard_normal((2, 9, width))


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("wide", [1, WIDE + 1])
def test_values_of_another_width_pass_through_or_are_refused(name, wide, tier):
    """No core stretches them to d channels, or says no in the words of NumPy; and a step does as a call does."""
    core, params = PARTS[name], some(PARTS[name])
    rng, of_keys = np.random.default_rng(4), H if core.key_heads is None else core.key_heads
    Q, K, V, *streams = (
        rng.standard_normal((2, heads, 7, width))
        for heads, width in ((of_keys, WIDE), (of_keys, WIDE), (H, wide), *((H, w) for w in core.streams.values()))
    )
    K, causal = Q if core.queries_are_keys else K, can(core, True)

    def step():
        return in_pieces(core, params, [Q, K, V, *streams], [0, 4, *range(5, 8)])[0]

    def call():
        return core(params, Q, K, V, *streams, causal=causal, mask=None, rng=None)

    if core.one_width:
        for refused in (call, step)[: 1 + core.decodes]:
            with pytest.raises(ValueError, match=r"^V: shape .* should be as wide as that of K"):
                refused()
        return
    Y, pullback = call()
    gradients = pullback(np.ones_like(Y))[1:4]
    assert Y.shape == (*Q.shape[:-3], V.shape[-3], Q.shape[-2], wide)
    assert all(dX is None or dX.shape == X.shape for X, dX in zip((Q, K, V), gradients, strict=True))
    if core.decodes:
        np.testing.assert_allclose(step(), Y, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("d", [2, 6])
def test_head_by_head(d):
    """head_h = softmax(X W_q,h (X W_k,g)ᵀ/√d) X W_v,g with (D, d) each, and Y = [head_1 … head_H] W_o, (H·d, D)."""
    layer = MultiHeadAttention(D, H, groups=2, head_width=d)
    params, X = some(layer), rows()
    Y, _ = layer(params, X)
    assert [params.W_q.shape, params.W_k.shape, params.W_o.shape] == [(D, H * d), (D, 2 * d), (H * d, D)]
    for b in range(2):
        found = params.b_o.copy()
        for h in range(H):
            own, shared = slice(h * d, h * d + d), slice(h // 2 * d, h // 2 * d + d)
            Q = X[b] @ params.W_q[:, own] + params.b_q[own]
            K, V = (X[b] @ W[:, shared] + c[shared] for W, c in ((params.W_k, params.b_k), (params.W_v, params.b_v)))
            A = np.exp(Q @ K.T / np.sqrt(d))
            found = found + A / A.sum(-1, keepdims=True) @ V @ params.W_o[own]
        assert np.allclose(Y[b], found, atol=1e-12)


def test_as_wide_as_the_rows_is_what_there_was():
    for part in (MultiHeadAttention, lambda *a, **b: LanguageModel(20, 16, D, 2, H, 10, **b)):
        before, after = part(D, H), part(D, H, head_width=D // H)
        own = before.init(np.random.default_rng(0)), after.init(np.random.default_rng(0))
        for (path, a), (_, b) in zip(*map(tree_items, own), strict=True):
            assert np.array_equal(a, b), path


@pytest.mark.each_value
@pytest.mark.parametrize("name", CORES)
def test_it_is_a_wider_layer_of_which_some_columns_are_zero(name, tier):
    """X → [X | 0] and Y → the first D columns of Y, in a layer of width H d, whatever the core is."""
    core, wide = PARTS[name], H * WIDE
    layer, causal = MultiHeadAttention(D, H, core=core, head_width=WIDE), core.causal != "never"
    params, X = some(layer), rows()
    more = wide - D

    def below(W):
        return None if W is None else np.concatenate([W, np.ones((more, W.shape[1]))])

    streams = params.streams and {n: own._replace(W=below(own.W)) for n, own in params.streams.items()}
    wider = params._replace(
        **{n: below(getattr(params, n)) for n in ("W_q", "W_k", "W_v")}, streams=streams,
        W_o=np.pad(params.W_o, ((0, 0), (0, more))), b_o=np.pad(params.b_o, (0, more)),
    )  # fmt: skip
    Y, _ = layer(params, X, causal=causal)
    Z, _ = MultiHeadAttention(wide, H, core=core)(wider, np.pad(X, ((0, 0), (0, 0), (0, more))), causal=causal)
    assert np.allclose(Y, Z[..., :D], atol=1e-10)


@pytest.mark.parametrize("name", CORES)
def test_the_gradient_of_every_parameter_and_input(name):
    layer, X = MultiHeadAttention(D, H, bias=False, core=PARTS[name], head_width=WIDE), rows()
    untrained, apart = ([f"params.{path}" for path in paths] for paths in (layer.untrained, layer.apart))
    with mt.backend("numpy"):
        check_pullback(
            lambda params, X: layer(params, X, causal=layer.causal != "never"),
            *(some(layer), X), untrained=untrained, zero=apart, entries=2,
        )  # fmt: skip


@pytest.mark.each_value
@pytest.mark.parametrize(
    "options",
    [
        *({"attention": OPTIONS.get(name, name)} for name in CORES),
        *({"positions": name} for name in IN_ATTENTION),
        {"positions": "rope", "groups": 2, "attention": "softmax:norm=rms", "ffn": "swiglu"},
        {"stack": "reversible"},
        {"stack": "universal"},
    ],
    ids=str,
)
def test_a_model_writes_as_it_reads(options, tier):
    if attention_of(options.get("attention", "softmax"), SIZES).causal == "never":
        return
    model = LanguageModel(20, 40, D, 2, H, 10, **options, head_width=WIDE)
    for dtype, tolerance in ((np.float64, 1e-9), (np.float32, 2e-4)):
        params = some(model, dtype)
        logits, _ = model(params, TOKENS)
        said, _ = in_pieces(model, params, TOKENS, (0, 6, 7, 8, 9))
        assert logits.dtype == said.dtype == dtype
        assert np.allclose(said, logits, rtol=tolerance, atol=tolerance * np.abs(logits).max())


def test_in_every_model():
    for model in (
        SequenceModel(20, 40, D, 1, H, 10, head_width=WIDE),
        BERT(20, 40, D, 1, H, 10, head_width=WIDE),
        EncoderDecoder(20, 40, D, 1, H, 10, groups=2, head_width=WIDE),
    ):
        params = some(model)
        given = (TOKENS, TOKENS) if isinstance(model, EncoderDecoder) else (TOKENS,)
        blind = [path for path, _ in tree_items({"params": params}) if path.endswith("b_k")]
        with mt.backend("numpy"):
            check_pullback(
                lambda params, model=model, given=given: model(params, *given), params, zero=blind, entries=2
            )
    decoder = EncoderDecoder(20, 40, D, 1, H, 10, head_width=WIDE).decoder.blocks[0]
    assert decoder.cross.d == decoder.attention.d == WIDE


def test_how_many_parameters():
    """3 (D + 1) H d for queries, keys and values, (H d + 1) D for what leads back."""
    layer = MultiHeadAttention(D, H, head_width=WIDE)
    assert tree_size(some(layer)) == 3 * (D + 1) * H * WIDE + (H * WIDE + 1) * D


def test_a_checkpoint_keeps_it(tmp_path):
    model, training = (
        LanguageModel(20, 40, D, 1, H, 10, positions="rope", head_width=WIDE),
        Training(2, 4, Cosine(0.01, 2, 1)),
    )
    state = start(model, training)
    save(tmp_path / "run.safetensors", Checkpoint(model, training, state, {}))
    found = load(tmp_path / "run.safetensors")
    assert found.model == model
    for (path, a), (_, b) in zip(tree_items(found.state), tree_items(state), strict=True):
        assert np.array_equal(a, b), path


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: MultiHeadAttention(D, 5), "width: 12 is not divisible into 5 heads"),
        (lambda: MultiHeadAttention(D, H, rotate=RoPE(4), head_width=WIDE), "rotate: RoPE turns heads of width 4, not 6"),
        (lambda: MultiHeadAttention(D, H, core=RetNet(H, 5)), "core: RetNet is for heads of width 5, not 3"),
        (lambda: MultiHeadAttention(D, H, core=Sinks(rotate=RoPE(4)), head_width=WIDE), "core: RoPE is for heads of width 4"),
        (lambda: MultiHeadAttention(D, H, core=SoftmaxAttention(encoding=Shaw(4))), "core: Shaw is for heads of width 4, not 3"),
        (lambda: LanguageModel(width=D, heads=H, attention="latent", positions="none", head_width=WIDE), "head_width: latent"),
        (lambda: LanguageModel(width=D, heads=H, attention="latent", groups=2, head_width=WIDE), "groups: latent"),
        (lambda: LanguageModel(width=D, heads=H, positions=RoPE(4), head_width=WIDE), "rotate: RoPE turns heads of width 4"),
        (lambda: MultiHeadAttention(D, H, head_width=0), "head_width: 0"),
        (lambda: LanguageModel(width=D, heads=H, positions="rope", head_width=3), "head_width: 3 of 3 channels can't"),
        (lambda: LanguageModel(width=D, heads=H, positions="rope"), "^d: 3 of 3 channels can't"),
        (lambda: LanguageModel(width=D, heads=H, positions="rope:base=-1", head_width=WIDE), "^base: -1 should be above 0"),
    ],
)  # fmt: skip
def test_what_can_not_be(make, says):
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize("rotate", [7, "rope", RoPE, ALiBi(H)])
def test_what_turns_nothing(rotate):
    for layer in ({"rotate": rotate}, {"core": Sinks(rotate=rotate)}):
        with pytest.raises(TypeError, match=r"^rotate: .* should turn heads, as RoPE\(d=3\) does"):
            MultiHeadAttention(D, H, **layer)


def test_heads_need_not_divide_the_width_of_published_models():
    for make in (llama, gpt_oss, qwen3_next):
        logits, _ = (model := make(20, 40, 10, 4, H, 2, 8, head_width=WIDE))(some(model), TOKENS)
        assert logits.shape == (2, 9, 20)


def test_a_head_may_be_wider_than_the_rows():
    layer = MultiHeadAttention(D, 1, core=SoftmaxAttention(), head_width=2 * D)
    assert layer(some(layer), rows())[0].shape == (2, 9, D)
