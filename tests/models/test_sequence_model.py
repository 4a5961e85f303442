"""The model of a sequence, as a language model, a tagger and a classifier: gradients in every form, the equations,
causality, decoding, bad input.
"""

import math

import numpy as np
import pytest

from minitransformer import check_pullback, random_like, tree_items, tree_map, tree_size
from minitransformer.functional import cross_entropy
from minitransformer.models import BERT, LanguageModel, Norm, SequenceModel
from minitransformer.positions import DynamicNTK, LearnedPositions, NoPositions, RoPE, SinusoidalPositions, sinusoids
from minitransformer.positions.absolute import LearnableSinusoids
from minitransformer.pullback import first_nonfinite
from tests.models.test_stack import without_effect
from tests.pieces import in_pieces

pytestmark = pytest.mark.usefixtures("definitions")

VOCABULARY, CONTEXT, D = 7, 5, 6
TOKENS = np.array([[1, 6, 1, 0], [5, 2, 2, 1]])  # 3 and 4 are not there, 1 and 2 more than once


def model(**options):
    return LanguageModel(
        **({"vocabulary": VOCABULARY, "context": CONTEXT, "width": D, "depth": 2, "heads": 2} | options)
    )


def tagger(**options):
    """Of what it reads it says one of the same tokens, and sees both sides."""
    sizes = {"vocabulary": VOCABULARY, "width": D, "depth": 2, "heads": 2, "hidden": 5}
    return SequenceModel(**(sizes | options))


def classifier(**options):
    """A small BERT with three numbers for each token."""
    sizes = {"vocabulary": VOCABULARY, "context": 6, "width": 4, "depth": 1, "heads": 2, "hidden": 5}
    return BERT(**(sizes | {"embedding": "normed", "outputs": 3} | options))


def some(model):
    """Parameters at which nothing hides: random gains and biases; not too large, or softmax has made up its mind."""
    rng = np.random.default_rng(2)
    return tree_map(lambda a: 0.5 * a, random_like(model.init(rng, np.float64), rng))


# ---------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize(
    "options",
    [
        {"positions": "learned", "order": "pre", "norm": "layer"},
        {"positions": "sinusoidal", "order": "post", "norm": "rms", "ffn": "gelu"},
        {"positions": "learned", "order": "post", "norm": "layer_eps_outside", "ffn": "relu", "hidden": 5},
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_gradient(options):
    """The table E is used twice, to read and to write: its gradient has two parts."""
    lm = model(**options)
    params = some(lm)
    check_pullback(lambda params: lm(params, TOKENS), params, zero=without_effect(params), entries=2)


OTHERS = {
    "tagger": tagger(positions=LearnedPositions(D, 4)),
    "tagger with frequencies": tagger(positions=LearnableSinusoids(D)),
    "tagger with a head": tagger(outputs=3),
    "rows": tagger(outputs="none", depth=1),
    "classifier": classifier(),
    "BERT that says a token": classifier(outputs="tied"),
    "causal BERT": classifier(causal=True, outputs="none"),
    "no feed-forward network's usual width": model(depth=1, hidden=3),
    "shared keys": model(depth=1, groups=1),
    "kinds in turn": model(attention=("softmax", "linear"), positions="rope", heads=3),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_gradient_of_other_models(other):
    """Sequences of several lengths, where padding can be hidden."""
    params, zero = some(other), []
    for k, block in enumerate(other.body.blocks):  # a bias of the keys has no effect where scores go through softmax
        if block.attention.core.places and block.attention.rotate is None:
            zero.append(f"params.stack.blocks.{k}.attention.b_k")
    check_pullback(lambda params: other(params, TOKENS, lengths=np.array([4, 3])), params, zero=zero, entries=3)


def test_gradient_of_every_entry_of_the_shared_table():
    """Also of the tokens that were not read: they are predicted all the same."""
    lm = model(depth=1)
    params = some(lm)
    check_pullback(lambda E: tied(lm, params, E), params.E, entries=params.E.size)


def tied(lm, params, E):
    logits, pullback = lm(tree_map(lambda a: a.astype(E.dtype), params._replace(E=E)), TOKENS)
    return logits, lambda dlogits: pullback(dlogits).E


def test_gradient_with_dropout():
    lm = model(depth=1, dropout=0.3)
    params = some(lm)
    check_pullback(
        lambda params: lm(params, TOKENS, rng=np.random.default_rng(4)), params, zero=without_effect(params), entries=2
    )


def test_gradient_of_the_loss():
    """All the way from a mean over positions to every parameter, some positions left out."""
    lm, targets = model(depth=1), np.array([[6, 1, 0, 3], [2, 2, 1, 4]])
    params, mask = some(lm), np.array([[True] * 4, [True, True, False, False]])

    def loss(params):
        logits, model_pullback = lm(params, TOKENS)
        value, loss_pullback = cross_entropy(logits, targets, mask=mask)
        return value, lambda dloss: model_pullback(loss_pullback(dloss))

    check_pullback(loss, params, zero=without_effect(params), entries=2)


# ------------------------------------------------------------------------------------------------ equation


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@pytest.mark.parametrize("order", ["pre", "post"])
def test_the_equation(order, positions):
    """X = √D E[tokens] + Π, the blocks, one more norm if pre-norm, and the logits by the same table."""
    lm = model(order=order, positions=positions)
    params = some(lm)
    Pi = sinusoids(4, D) if positions == "sinusoidal" else params.positions.table[:4]
    X = math.sqrt(D) * params.E[TOKENS] + Pi
    X, pullback = lm.body(params.stack, X, causal=True)
    logits, model_pullback = lm(params, TOKENS)
    assert np.allclose(logits, X @ params.E.T, rtol=1e-13)
    assert np.array_equal(model_pullback.blocks[1].attention.A, pullback.blocks[1].attention.A)
    if order == "pre":
        blocks = lm.body.blocks[0](params.stack.blocks[0], math.sqrt(D) * params.E[TOKENS] + Pi, causal=True)[0]
        blocks = lm.body.blocks[0](params.stack.blocks[1], blocks, causal=True)[0]
        assert np.allclose(Norm(D)(params.stack.norm, blocks)[0] @ params.E.T, logits, rtol=1e-12)


def test_it_is_the_language_model_without_the_mask():
    """The last token of a language model with one block sees everything: there both say the same."""
    both, causal = tagger(depth=1), model(depth=1, hidden=5, ffn="relu")
    params = some(both)
    ours, theirs = both(params, TOKENS)[0], causal(params, TOKENS)[0]
    np.testing.assert_allclose(ours[:, -1], theirs[:, -1], rtol=0, atol=1e-12)
    assert np.abs(ours[:, 0] - theirs[:, 0]).max() > 1e-3


def test_without_positions_outputs_move_with_their_tokens():
    order = [2, 0, 3, 1]
    for positions, invisible in ((NoPositions(D), True), (SinusoidalPositions(D), False)):
        model = tagger(positions=positions)
        params = some(model)
        moved, stood = model(params, TOKENS[:, order])[0], model(params, TOKENS)[0][:, order]
        assert np.allclose(moved, stood, rtol=0, atol=1e-12) == invisible


@pytest.mark.parametrize("make", [tagger, classifier, model])
def test_a_head_is_a_linear_layer_on_the_rows(make):
    """The same model with outputs="none" gives the rows, and those alone."""
    answers, rows = make(outputs=3), make(outputs="none")
    params = some(answers)
    N, _ = rows(params._replace(head=None), TOKENS)
    assert N.shape == (*TOKENS.shape, answers.width)
    np.testing.assert_allclose(answers(params, TOKENS)[0], N @ params.head.W + params.head.b, rtol=1e-12)
    assert rows.init(np.random.default_rng(0)).head is None


def test_a_normed_embedding_is_the_norm_of_three_tables():
    """LN(E[tokens] + Π + T[types]), and not √D times anything."""
    bert = classifier(outputs="none", embedding="normed:types=2")
    params, types = some(bert), np.array([[0, 0, 1, 1], [0, 1, 1, 1]])
    X = params.E[TOKENS] + params.positions.table[:4] + params.types[types]
    N, _ = bert.body(params.stack, Norm(4, eps=1e-12)(params.norm, X)[0])
    np.testing.assert_allclose(bert(params, TOKENS, types=types)[0], N, rtol=1e-12)


def test_number_of_parameters():
    """Per block 12 D² weights and 13 D for biases and norms (hidden = 4 D); one last norm; two tables."""
    lm = LanguageModel(vocabulary=50, context=9, width=8, depth=3, heads=2, positions="learned")
    assert tree_size(lm.init(np.random.default_rng(0))) == 3 * (12 * 8**2 + 13 * 8) + 2 * 8 + 50 * 8 + 9 * 8


def test_the_first_loss_is_about_that_of_a_uniform_guess():
    """Tied embeddings with entries of variance 1/D: logits of variance 1, so the loss starts near ln V + 1/2."""
    lm = LanguageModel(vocabulary=256, context=64, width=64, depth=2, heads=4)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 256, (4, 65))
    loss, _ = cross_entropy(lm(lm.init(rng), tokens[:, :-1])[0], tokens[:, 1:])
    assert abs(loss - math.log(256) - 0.5) < 0.2


def test_same_seed_same_parameters():
    a, b = (model().init(np.random.default_rng(5)) for _ in range(2))
    assert all(np.array_equal(x, y) for (_, x), (_, y) in zip(tree_items(a), tree_items(b), strict=True))
    assert all(leaf.dtype == np.float32 for _, leaf in tree_items(a))


# --------------------------------------------------------------------------------------------- invariants


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("t", range(4))
def test_logits_before_t_do_not_see_token_t(order, t):
    """Bit by bit: the shapes stay the same, so BLAS does the same operations, and hidden weights are exactly zero."""
    lm = model(order=order)
    params, changed = some(lm), TOKENS.copy()
    changed[:, t] = (changed[:, t] + 3) % VOCABULARY
    before, after = lm(params, TOKENS)[0], lm(params, changed)[0]
    assert np.array_equal(before[:, :t], after[:, :t])
    assert not np.isclose(before[:, t:], after[:, t:]).all(-1).any()


def test_tokens_appended_do_not_change_what_was_there():
    """Other lengths are other shapes, for which BLAS may sum in another order: equal to rounding."""
    lm = model()
    params = some(lm)
    assert np.allclose(lm(params, TOKENS[:, :3])[0], lm(params, TOKENS)[0][:, :3], rtol=1e-11, atol=1e-12)


def test_samples_do_not_see_each_other():
    lm = model()
    params, changed = some(lm), TOKENS.copy()
    changed[1] = 3
    assert np.array_equal(lm(params, TOKENS)[0][0], lm(params, changed)[0][0])
    assert np.allclose(lm(params, TOKENS[0])[0], lm(params, TOKENS)[0][0], rtol=1e-11), "and a batch is not needed"


def test_dropout_is_only_for_training():
    lm = model(dropout=0.5)
    params = some(lm)
    assert np.array_equal(lm(params, TOKENS)[0], model()(params, TOKENS)[0])
    one, pullback = lm(params, TOKENS, rng=np.random.default_rng(1))
    assert hasattr(pullback.embedded.dropout, "slope"), "what is embedded is dropped, too"
    assert np.array_equal(one, lm(params, TOKENS, rng=np.random.default_rng(1))[0])
    assert not np.allclose(one, lm(params, TOKENS)[0])


@pytest.mark.parametrize("n", [0, 1])
def test_short_sequences(n):
    lm = model()
    logits, pullback = lm(some(lm), TOKENS[:, :n])
    assert logits.shape == (2, n, VOCABULARY)
    grads = pullback(np.ones_like(logits))
    assert all(np.isfinite(leaf).all() for _, leaf in tree_items(grads))
    assert tree_size(grads) == tree_size(some(lm))


def test_the_pullback_tells_where_trouble_began():
    """A weight of the second block overflows: its pullback is named, not the thousand arrays behind it."""
    lm = model()
    params = lm.init(np.random.default_rng(0))
    second = params.stack.blocks[1]
    huge = second._replace(ffn=second.ffn._replace(W_1=second.ffn.W_1 * np.float32(3e38)))
    params = params._replace(stack=params.stack._replace(blocks=(params.stack.blocks[0], huge)))
    with np.errstate(over="ignore", invalid="ignore"):
        _, pullback = lm(params, TOKENS)
    assert first_nonfinite(pullback).startswith("stack.blocks.1.ffn.layer.")


# ----------------------------------------------------------------------------------------------- decoding


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@pytest.mark.parametrize("order", ["pre", "post"])
def test_decoding_with_a_cache_is_the_whole(order, positions, tier):
    """Token by token, in pieces, and with a batch: the same logits as all at once, to rounding."""
    lm = model(order=order, positions=positions)
    params = some(lm)
    whole, _ = lm(params, TOKENS)
    for edges in ([0, 1, 2, 3, 4], [0, 3, 4], [0, 1, 4], [0, 4]):
        said, state = in_pieces(lm, params, TOKENS, edges)
        assert np.allclose(said, whole, rtol=1e-10, atol=1e-11)
        assert state.length == 4
        assert [block.keys.shape for block in state.blocks] == [(2, 2, 4, 3)] * 2


def test_decoding_in_float32():
    lm = model()
    params = lm.init(np.random.default_rng(0))
    logits, state = lm.step(params, TOKENS[0])
    assert logits.dtype == state.blocks[0].K.dtype == np.float32
    assert np.allclose(logits, lm(params, TOKENS[0])[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("outputs", ["tied", "own", 3, "none"])
def test_decoding_with_another_head(outputs):
    causal = tagger(causal=True, outputs=outputs)
    params = some(causal)
    whole, (first, state) = causal(params, TOKENS)[0], causal.step(params, TOKENS[:, :3])
    last, _ = causal.step(params, TOKENS[:, 3:], state)
    np.testing.assert_allclose(np.concatenate([first, last], 1), whole, rtol=1e-10, atol=1e-11)


def test_decoding_in_a_normed_embedding():
    causal = classifier(causal=True)
    params = some(causal)
    whole, (first, state) = causal(params, TOKENS)[0], causal.step(params, TOKENS[:, :3])
    last, _ = causal.step(params, TOKENS[:, 3:], state)
    np.testing.assert_allclose(np.concatenate([first, last], 1), whole, rtol=1e-10, atol=1e-11)


def test_what_keeps_no_state_reads_all_again():
    """Then a step is the whole exactly; the state is the tokens, and two continuations of it stay apart."""
    lm = model(positions=RoPE(3 * 2, scaling=DynamicNTK(2.0, 2)), heads=1)
    params = some(lm)
    assert not lm.body.decodes
    state = None
    for k in range(4):
        logits, state = lm.step(params, TOKENS[:, k : k + 1], state)
        np.testing.assert_array_equal(logits, lm(params, TOKENS[:, : k + 1])[0][:, k:])
        assert state.length == k + 1
    one, _ = lm.step(params, TOKENS[:, :1], state)
    other, _ = lm.step(params, TOKENS[:, 1:2], state)
    np.testing.assert_array_equal(one, lm.step(params, TOKENS[:, :1], state)[0])
    assert not np.allclose(one, other)


def test_a_model_that_sees_both_sides_has_no_past():
    with pytest.raises(ValueError, match="causal: a model that sees both sides has no past to go on from"):
        tagger().step(some(tagger()), TOKENS)


# ----------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 4}, "width: 6 is not divisible into 4 heads"),
        ({"positions": "rotary"}, "positions: no 'rotary'; there are none, sinusoidal, learned"),
        ({"positions": "sinusoidal", "width": 3, "heads": 1}, "width: sines and cosines come in pairs, and 3 is not"),
        ({"norm": "batch"}, "norm: no 'batch'; there are layer, layer_eps_outside, rms"),
        ({"norm": "rms:epsilon=1"}, "norm: 'rms' has no option 'epsilon=1'; it has eps, as rms:eps=…"),
        ({"dropout": 1}, r"dropout: 1 should be in \[0, 1\)"),
        ({"outputs": 0}, 'outputs: 0 should be at least 1, or "tied", "own" or "none"'),
        ({"outputs": "tide"}, "outputs: no 'tide'; there are tied, own, none, or a number"),
        ({"embedding": "normed:types=0"}, "types: 0 should be at least 1"),
        ({"embedding": "scaled:types=2"}, "embedding: 'scaled' has no option 'types=2'; it has none"),
        ({"embedding": "loud"}, "embedding: no 'loud'; there are scaled, plain, normed"),
        ({"groups": 3}, "groups: 2 heads can't be divided into 3 groups"),
        ({"attention": "nearby"}, "attention: no 'nearby'; there are softmax, differential, latent"),
        ({"attention": ()}, "attention: an empty sequence"),
        ({"attention": 3}, "attention: 3 is not a name, nor a core, a mixer or a pattern"),
        ({"attention": "delta", "causal": False}, "attention: DeltaRule is always causal"),
        (
            {"attention": "linear", "positions": "t5"},
            "positions: t5 acts on the scores, and linear sums over the keys before it sees a query",
        ),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        model(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 5, "heads": 1}, "width: sines and cosines come in pairs, and 5 is not"),
        ({"attention": "delta"}, "attention: DeltaRule is always causal"),
    ],
)
def test_bad_options_of_a_tagger_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        tagger(**options)


@pytest.mark.parametrize("embedding", ["scaled", "plain"])
def test_types_without_a_table_of_them_are_refused(embedding):
    lm = model(embedding=embedding)
    says = f'types: embedding={embedding!r} has no table of types; embedding="normed:types=2" has one'
    with pytest.raises(ValueError, match=f"^{says}$"):
        lm(some(lm), TOKENS, types=np.zeros_like(TOKENS))


@pytest.mark.parametrize("bad", [-1, VOCABULARY])
def test_a_token_outside_the_vocabulary_is_refused(bad):
    lm = model()
    for run in (lm, lm.step):
        with pytest.raises(ValueError, match=f"tokens: {bad} is outside the vocabulary 0 … 6"):
            run(some(lm), np.array([[1, bad]]))


def test_more_tokens_than_learned_positions_are_refused():
    lm = model(positions="learned")
    with pytest.raises(ValueError, match="X: position 5 is beyond the learned table, which ends at 4"):
        lm(some(lm), np.zeros((1, 6), int))
    _, state = lm.step(some(lm), TOKENS)
    with pytest.raises(ValueError, match="X: position 5 is beyond the learned table"):
        lm.step(some(lm), TOKENS[:, :2], state)


def test_sinusoidal_positions_have_no_end():
    lm = model(positions="sinusoidal")
    assert lm(some(lm), np.zeros((1, 3 * CONTEXT), int))[0].shape == (1, 3 * CONTEXT, VOCABULARY)


def test_wrong_types_are_refused():
    lm = model()
    params = some(lm)
    for tokens, says in (
        (TOKENS.astype(np.uint8), r"tokens: uint8 should be int64; tokens.astype\(int\) makes it so"),
        (TOKENS.astype(float), r"tokens: float64 should be int64; tokens.astype\(int\) makes it so"),
        (TOKENS > 2, r"tokens: bool should be int64; tokens.astype\(int\) makes it so"),
        (TOKENS.tolist(), "tokens: a list should be an array; np.array makes one of it"),
        ("the cat", "tokens: 'the cat' should be an array of integers"),
        (np.array(["the", "cat"]), "^tokens: an array of <U3 should be an array of integers$"),
        (np.int64(3), r"tokens: \S*3\S* should be an array of integers"),
    ):
        for method in (lm, lm.step):
            with pytest.raises(TypeError, match=f"^{says}$"):
                method(params, tokens)
    with pytest.raises(TypeError, match="parameter 'rng'"):
        lm(params, TOKENS, rng=0)
    with pytest.raises(TypeError, match="should all be float32, or all float64"):
        lm(params._replace(stack=lm.init(np.random.default_rng(0)).stack), TOKENS)


def test_parameters_of_another_model_are_refused():
    lm = model()
    with pytest.raises(TypeError, match=r"params\.stack\.blocks: should be tuple of 2, is tuple of 1"):
        lm(some(model(depth=1)), TOKENS)
    with pytest.raises(TypeError, match=r"params\.E: shape \(9, \d+\) should be"):
        lm(some(model(vocabulary=9)), TOKENS)
    scaled, normed = (tagger(outputs="none", hidden=8, embedding=e) for e in ("scaled", "normed"))
    for one, other in (
        (scaled, normed),
        (normed, scaled),
        (tagger(outputs=3), tagger()),
        (tagger(), tagger(outputs=3)),
    ):
        with pytest.raises(TypeError, match=r"params\.(types|head): should be"):
            one(some(other), TOKENS)


def test_more_kinds_than_blocks():
    with pytest.raises(ValueError, match="each of the 2 kinds"):
        LanguageModel(depth=1, attention=("softmax", "linear"))
