"""Generation: distributions against plain loops, the cache against reading everything again, bad input."""

import math
import sys
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer import backend, random_like
from minitransformer.backend import available
from minitransformer.checks import frozen
from minitransformer.models import LanguageModel, generate, next_token_distribution
from minitransformer.models.generate import draw, read
from minitransformer.models.norms import NORMS, Norm
from minitransformer.models.stack import Stack
from tests.peaks import peak

pytestmark = pytest.mark.usefixtures("definitions")

LM = LanguageModel(vocabulary=7, context=6, width=8, depth=2, heads=2)
PARAMS = random_like(LM.init(np.random.default_rng(0), np.float64), np.random.default_rng(1))
PROMPT = np.array([3, 1, 4])
needs_numba = pytest.mark.skipif("numba" not in available(), reason="needs Numba")


def seeded(seed=0):
    return np.random.default_rng(seed)


# ------------------------------------------------------------------------------------- the distribution


def plain_distribution(logits, temperature, top_k, top_p):
    """Sorted lists and running sums. Tokens as probable as the last one that is kept are kept too."""
    weights = [math.exp((s - max(logits)) / temperature) for s in logits]
    P = [w / sum(weights) for w in weights]
    if top_k is not None:
        least = sorted(P, reverse=True)[min(top_k, len(P)) - 1]
        P = [p if p >= least else 0.0 for p in P]
        P = [p / sum(P) for p in P]
    if top_p is not None:
        kept, total = [], 0.0
        for p in sorted(P, reverse=True):
            kept.append(p)
            total += p
            if total >= top_p:
                break
        P = [p if p >= kept[-1] else 0.0 for p in P]
        P = [p / sum(P) for p in P]
    return P


@given(
    st.lists(st.integers(-40, 40).map(lambda k: k / 10), min_size=1, max_size=8),
    st.sampled_from([0.1, 0.5, 1.0, 3.0]),
    st.none() | st.integers(1, 10),
    st.none() | st.sampled_from([0.05, 0.31, 0.5, 0.77, 0.93]),
)
def test_distribution_against_a_plain_loop(logits, temperature, top_k, top_p):
    P = next_token_distribution(np.array(logits), temperature=temperature, top_k=top_k, top_p=top_p)
    assert np.allclose(P, plain_distribution(logits, temperature, top_k, top_p), rtol=1e-9, atol=1e-15)
    assert math.isclose(P.sum(), 1, rel_tol=1e-12)


LOGITS = np.log(np.array([0.1, 0.4, 0.3, 0.2]))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.1, 0.4, 0.3, 0.2]),
        ({"temperature": 0.0}, [0, 1, 0, 0]),
        ({"temperature": 0.5}, np.array([0.01, 0.16, 0.09, 0.04]) / 0.3),
        ({"top_k": 1}, [0, 1, 0, 0]),
        ({"top_k": 2}, [0, 4 / 7, 3 / 7, 0]),
        ({"top_k": 9}, [0.1, 0.4, 0.3, 0.2]),
        ({"top_p": 0.39}, [0, 1, 0, 0]),
        ({"top_p": 0.41}, [0, 4 / 7, 3 / 7, 0]),
        ({"top_p": 0.75}, [0, 4 / 9, 3 / 9, 2 / 9]),
        ({"top_p": 1.0}, [0.1, 0.4, 0.3, 0.2]),
        ({"top_k": 3, "top_p": 0.5}, [0, 4 / 7, 3 / 7, 0]),
    ],
    ids=str,
)
def test_distribution_by_hand(options, expected):
    assert np.allclose(next_token_distribution(LOGITS, **options), expected, rtol=1e-12)


def test_ties():
    """Temperature 0 decides for the first; top-k and top-p keep all that are as probable as the last one kept."""
    logits = np.array([0.0, 1.0, 1.0, 1.0])
    assert next_token_distribution(logits, temperature=0).tolist() == [0, 1, 0, 0]
    assert np.allclose(next_token_distribution(logits, top_k=2), [0, 1 / 3, 1 / 3, 1 / 3])
    assert np.allclose(next_token_distribution(logits, top_p=0.3), [0, 1 / 3, 1 / 3, 1 / 3])


def test_distribution_of_a_batch_and_of_float32():
    logits = seeded().standard_normal((2, 3, 7)).astype(np.float32)
    for options in ({}, {"temperature": 0}, {"top_k": 2}, {"top_p": 0.6}):
        P = next_token_distribution(logits, **options)
        assert P.dtype == np.float32
        for index in np.ndindex(2, 3):
            assert np.array_equal(P[index], next_token_distribution(logits[index], **options))


@pytest.mark.parametrize("temperature", [1e-46, 1e-8, 1e-3, 1e6])
def test_extreme_temperatures(temperature):
    """Near zero: the most probable token. Very high: all the same. Never NaN, however large the logits."""
    for dtype in (np.float32, np.float64):
        P = next_token_distribution((1000 * LOGITS).astype(dtype), temperature=temperature)
        assert np.allclose(P, [0, 1, 0, 0] if temperature < 1 else 0.25, atol=1e-3)


def test_forbidden_tokens():
    """A logit of −∞ forbids a token."""
    logits = np.array([0.0, -np.inf, 0.0])
    for options in ({}, {"top_k": 3}, {"top_p": 0.9}, {"temperature": 0.5}):
        assert np.allclose(next_token_distribution(logits, **options), [0.5, 0, 0.5])


def test_what_the_context_has_no_room_for_has_to_be_known_too(rng):
    params = LM.init(rng)
    prompt = np.zeros(3 * LM.context, int)
    for wrong in (-1, LM.vocabulary):
        prompt[0] = wrong
        with pytest.raises(ValueError, match=f"prompt: {wrong} is outside the vocabulary"):
            generate(LM, params, prompt, 1, rng=rng)


@pytest.mark.parametrize("outputs", [3, "none"])
def test_a_model_with_outputs_of_another_kind_does_not_write(outputs, rng):
    model = replace(LM, outputs=outputs)
    with pytest.raises(ValueError, match=f'model: outputs {outputs!r} should be "tied" or "own", to say which token'):
        generate(model, model.init(rng), np.zeros(2, int), 1, rng=rng)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_p": 0.0}, r"top_p: 0.0 should be in \(0, 1\]"),
        ({"top_p": 1.1}, r"top_p: 1.1 should be in \(0, 1\]"),
    ],
)
def test_bad_options_are_refused(options, message):
    for run in (
        lambda: next_token_distribution(LOGITS, **options),
        lambda: generate(LM, PARAMS, PROMPT, 2, rng=seeded(), **options),
    ):
        with pytest.raises(ValueError, match=message):
            run()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_of_a_model_that_has_diverged(bad, temperature):
    with pytest.raises(ValueError, match="logits: the largest is not finite; has training diverged"):
        next_token_distribution(np.array([0.0, bad, 1.0]), temperature=temperature)
    with pytest.raises(ValueError, match=r"logits: shape \(2, 0\) should have at least one token"):
        next_token_distribution(np.ones((2, 0)), temperature=temperature)


# --------------------------------------------------------------------------------------------- generation


def plain_generation(steps, prompt, rng=None, **options):
    """Without a cache: read everything again for each token. What is read is what `generate` says it reads.

    The context is read up to its end; then its second half is, and grows again.
    """
    tokens = list(prompt)
    start = max(len(tokens) - LM.context, 0)
    for _ in range(steps):
        if len(tokens) - start > LM.context:
            start = len(tokens) - LM.context // 2
        logits, _ = LM(PARAMS, np.array(tokens[start:]))
        P = next_token_distribution(logits[-1], **options)
        tokens.append(int(P.argmax()) if rng is None else int(rng.choice(len(P), p=P / P.sum())))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("length", [1, 3, 6, 11])
def test_the_cache_changes_nothing(length, tier):
    """Twenty tokens from a context of six, from short prompts, full ones and too long ones."""
    prompt = seeded(5).integers(0, 7, length)
    found = generate(LM, PARAMS, prompt, 20, rng=seeded(9))
    assert found.tolist() == plain_generation(20, prompt, seeded(9))
    assert found.dtype == np.int64


def token_by_token(model, params, prompt, steps, rng, **options):
    """One step of the model for each token, with a state that grows."""
    tokens, (logits, state) = [], model.step(params, prompt)
    for _ in range(steps):
        tokens.append(draw(next_token_distribution(logits[-1].astype(np.float64), **options), rng))
        logits, state = model.step(params, np.array(tokens[-1:]), state)
    return tokens


GOES_ON = [
    {},
    {"positions": "rope", "norm": "rms", "ffn": "swiglu", "embedding": "plain", "outputs": "own", "groups": 2},
    {"positions": "learned", "attention": "softmax:sink=learned,cap=5.0"},
    {"positions": "learnable sinusoids", "attention": "softmax:norm=rms"},
    {"attention": "window:radius=3"},
    {"attention": "strided:stride=3", "positions": "none"},
    {"attention": "bigbird:block=4,random=1", "positions": "rope"},
    {"attention": "sinks:first=2,last=3", "positions": "none"},
    {"positions": "alibi"},
    {"attention": "window:radius=3", "positions": "t5", "groups": 2},
    {"attention": "fixed:block=4,columns=1", "positions": "kerple"},
    {"attention": "span"},
    {"attention": "linear"},
    {"attention": "cosformer"},
    {"attention": "performer:kind=hyperbolic"},
    {"attention": "taylor"},
    {"attention": "delta", "positions": "rope"},
    {"attention": "gated-delta:taps=3", "positions": "none"},
    {"attention": "ssd"},
    {"attention": "forgetting", "positions": "none"},
    {"attention": "differential", "positions": "rope"},
    {"attention": "latent"},
    {"attention": "compressed:stride=4"},
    {"attention": "nsa"},
    {"attention": "lightweight-convolution"},
]


@needs_numba
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("options", GOES_ON, ids=str)
def test_loops_go_on_by_themselves_and_write_the_same(options, temperature, dtype, monkeypatch):
    """Forty tokens: more than the loops draw at once."""
    model = LanguageModel(
        **({"vocabulary": 7, "context": 48, "width": 16, "depth": 2, "heads": 4, "ffn": "relu"} | options)
    )
    params = random_like(model.init(seeded(), dtype), seeded(1))
    expected = token_by_token(model, params, PROMPT, 40, seeded(2), temperature=temperature)
    written, write = [], Stack.write

    def watched(*given):
        written.append(write(*given))
        return written[-1]

    monkeypatch.setattr(Stack, "write", watched)
    with backend("numba"):
        assert generate(model, params, PROMPT, 40, temperature=temperature, rng=seeded(2)).tolist() == expected
    assert len(written) == 3, "the first token is drawn from what is read, then come 16, 16 and 7"
    assert None not in written


@needs_numba
@pytest.mark.parametrize("attention", [("softmax", "gla"), ("softmax", "window:radius=3"), ("gla", "linear")], ids=str)
def test_blocks_of_several_kinds_write_the_same(attention):
    """There is no loop for all of them at once: the tokens go from run to run."""
    model = LanguageModel(vocabulary=7, context=48, width=16, depth=4, heads=4, ffn="relu", attention=attention)
    params = random_like(model.init(seeded(), np.float64), seeded(1))
    expected = token_by_token(model, params, PROMPT, 20, seeded(2), temperature=3.0)
    with backend("numba"):
        assert generate(model, params, PROMPT, 20, temperature=3.0, rng=seeded(2)).tolist() == expected


@needs_numba
@pytest.mark.parametrize("context", [12, 33])
def test_loops_stop_where_the_context_ends(context):
    """There the second half of it is read again, as without them."""
    model = LanguageModel(vocabulary=7, context=context, width=16, depth=2, heads=4, ffn="relu")
    params = random_like(model.init(seeded(), np.float64), seeded(1))
    found = []
    for tier in ("numpy", "numba"):
        with backend(tier):
            found.append(generate(model, params, PROMPT, 80, temperature=2.0, rng=seeded(2)).tolist())
    assert found[0] == found[1]


@needs_numba
@pytest.mark.parametrize("attention", ["softmax", "gated-delta:taps=3", "linear"])
def test_one_thread_or_two_write_the_same(attention):
    """A model with so many weights that the loops take a second thread."""
    model = LanguageModel(vocabulary=7, context=64, width=128, depth=4, heads=4, attention=attention)
    params, written = model.init(seeded()), []
    with backend("numba"):
        from minitransformer.kernels import threads

        for count in (1, 2):
            with threads.limit(count):
                written += [generate(model, params, PROMPT, 60, rng=seeded(seed)).tolist() for seed in range(3)]
    assert written[:3] == written[3:]


@needs_numba
def test_where_the_loops_can_not_write_no_draw_is_lost():
    """They know no GELU of float64, which they find out when the numbers are drawn: the generator is put back."""
    model = LanguageModel(vocabulary=7, context=48, width=16, depth=2, heads=4, ffn="gelu")
    params = random_like(model.init(seeded(), np.float64), seeded(1))
    expected = token_by_token(model, params, PROMPT, 20, seeded(2), temperature=3.0)
    with backend("numba"):
        assert generate(model, params, PROMPT, 20, temperature=3.0, rng=seeded(2)).tolist() == expected


class Backwards(LanguageModel):
    """Its answers are in reverse order."""

    def _answer(self, params, N):
        logits, pullback = super()._answer(params, N)
        return logits[..., ::-1], pullback


class Turned(Stack):
    """The columns of its rows are in reverse order after its blocks."""

    def _through_blocks(self, *given):
        X, states = super()._through_blocks(*given)
        return X[..., ::-1], states


class WithTurned(LanguageModel):
    @cached_property
    def body(self):
        return Turned(super().body.blocks)


@frozen
class Doubled(Norm):
    def value(self, params, X):
        return 2 * super().value(params, X)


@needs_numba
@pytest.mark.parametrize("kind", [LanguageModel, Backwards, WithTurned, "norm"])
def test_what_a_class_does_in_its_own_way_is_what_writes(kind, monkeypatch):
    """Not the loops, which know only the ways of the classes that they are made from. Reversible layers are one of those."""
    if kind == "norm":
        monkeypatch.setitem(NORMS, "layer", Doubled)
    stack = "reversible" if kind is LanguageModel else "plain"
    kind = LanguageModel if kind == "norm" else kind
    model = kind(vocabulary=7, context=48, width=16, depth=2, heads=4, ffn="relu", stack=stack)
    params = random_like(model.init(seeded(), np.float64), seeded(1))
    expected = token_by_token(model, params, PROMPT, 40, seeded(2), temperature=3.0)
    with backend("numba"):
        assert generate(model, params, PROMPT, 40, temperature=3.0, rng=seeded(2)).tolist() == expected


@needs_numba
@pytest.mark.parametrize("attention", ["softmax", "differential"])
def test_a_model_that_diverges_while_it_writes(attention):
    """Token 5 has a row of NaNs, and nothing else does: so it is drawn, and no other token after it."""
    model = LanguageModel(vocabulary=7, context=64, width=8, depth=1, heads=2, attention=attention, outputs="own")
    params = model.init(seeded(), np.float64)
    params.E[5] = np.nan
    for prompt, steps in ((PROMPT, 60), (np.array([5]), 1)):
        with backend("numba"), pytest.raises(ValueError, match="logits: the largest is not finite; has training diver"):
            generate(model, params, prompt, steps, temperature=100.0, rng=seeded())


class Watched(LanguageModel):
    """Remembers how many tokens it has read in each step."""

    read: ClassVar[list[int]] = []

    def step(self, params, tokens, state=None):
        self.read.append(len(tokens))
        return super().step(params, tokens, state)


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (1, [1, 1, 1, 1, 1, 1, 3, 1, 1, 1, 3, 1, 1, 1, 3, 1, 1, 1, 3, 1]),
        (11, [6, 3, 1, 1, 1, 3, 1, 1, 1, 3, 1, 1, 1, 3, 1, 1, 1, 3, 1, 1]),
        (600, [6, 3, 1, 1, 1, 3, 1, 1, 1, 3, 1, 1, 1, 3, 1, 1, 1, 3, 1, 1]),
    ],
)
def test_never_more_is_read_than_the_context(length, expected):
    """Beyond it the second half of it, however long the text has become; the promised cost depends on it."""
    Watched.read.clear()
    generate(
        Watched(vocabulary=7, context=6, width=8, depth=2, heads=2),
        PARAMS,
        seeded(5).integers(0, 7, length),
        20,
        rng=seeded(),
    )
    assert Watched.read == expected


def test_temperature_zero_is_the_most_probable_token():
    """Whatever the seed."""
    expected = plain_generation(20, PROMPT)
    for seed in range(3):
        assert generate(LM, PARAMS, PROMPT, 20, temperature=0.0, rng=seeded(seed)).tolist() == expected
    assert generate(LM, PARAMS, PROMPT, 20, top_k=1, rng=seeded()).tolist() == expected


def test_options_are_those_of_the_distribution():
    for options in ({"temperature": 3.0}, {"temperature": 3.0, "top_k": 3}, {"temperature": 3.0, "top_p": 0.5}):
        found = generate(LM, PARAMS, PROMPT, 20, rng=seeded(2), **options)
        assert found.tolist() == plain_generation(20, PROMPT, seeded(2), **options)


def test_same_seed_same_text():
    runs = [generate(LM, PARAMS, PROMPT, 30, temperature=3.0, rng=seeded(seed)).tolist() for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_tokens_come_as_often_as_they_are_probable():
    """500 first tokens against their probabilities; bounds of five standard errors."""
    P = next_token_distribution(LM(PARAMS, PROMPT)[0][-1], temperature=4.0)
    rng = seeded()
    drawn = [int(generate(LM, PARAMS, PROMPT, 1, temperature=4.0, rng=rng)[0]) for _ in range(500)]
    share = np.bincount(drawn, minlength=7) / 500
    assert (np.abs(share - P) <= 5 * np.sqrt(P * (1 - P) / 500)).all()
    assert P.max() < 0.9, "otherwise this would test nothing"


def test_a_context_of_one_token():
    lm = LanguageModel(vocabulary=7, context=1, width=8, depth=1, heads=2)
    params = random_like(lm.init(seeded(), np.float64), seeded(1))
    found = generate(lm, params, PROMPT, 5, temperature=0.0, rng=seeded())
    last = PROMPT[-1]
    for token in found:
        assert token == lm(params, np.array([last]))[0][-1].argmax()
        last = token


def test_no_steps_no_tokens():
    found = generate(LM, PARAMS, PROMPT, 0, rng=seeded())
    assert found.shape == (0,)
    assert found.dtype == np.int64


def test_nothing_is_changed():
    prompt = PROMPT.copy()
    generate(LM, PARAMS, prompt, 3, rng=seeded())
    assert np.array_equal(prompt, PROMPT)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="prompt: a model of the next token needs at least one token"):
        generate(LM, PARAMS, PROMPT[:0], 3, rng=seeded())
    with pytest.raises(ValueError, match="prompt: 7 is outside the vocabulary 0 … 6"):
        generate(LM, PARAMS, np.array([1, 7]), 3, rng=seeded())
    for prompt in (PROMPT.astype(float), PROMPT.tolist(), PROMPT[None], "text"):
        with pytest.raises(TypeError, match=r"parameter 'prompt'|prompt: .* should be"):
            generate(LM, PARAMS, prompt, 3, rng=seeded())
    with pytest.raises(TypeError, match="parameter 'rng'"):
        generate(LM, PARAMS, PROMPT, 3, rng=0)


# ------------------------------------------------------------------------------------------ a long text


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"positions": "rope"},
        {"attention": "window:radius=2"},
        {"attention": "linear"},
        {"attention": "gated-delta:taps=3"},
        {"attention": "reformer:buckets=4,chunk=6"},
        {"stack": "transformer-xl:memory=4", "positions": "rope"},
        {"stack": "universal:halting=fixed"},
    ],
)
def test_a_text_in_pieces_is_read_as_a_whole(options, tier, monkeypatch):
    monkeypatch.setattr(sys.modules[read.__module__], "PIECE", 5)
    model = LanguageModel(**({"vocabulary": 7, "context": 40, "width": 8, "depth": 2, "heads": 2} | options))
    params = random_like(model.init(seeded(), np.float64), seeded(1))
    tokens = seeded(2).integers(0, 7, 33)
    whole, there = model.step(params, tokens)
    logits, state = read(model, params, tokens)
    assert state.length == there.length == 33
    assert len(logits) == (33 if "reformer" in options.get("attention", "") else 3)
    assert np.allclose(logits, whole[-len(logits) :], atol=1e-10)
    assert np.allclose(model.step(params, tokens[:1], state)[0], model.step(params, tokens[:1], there)[0], atol=1e-10)


def test_a_text_in_pieces_needs_the_room_of_a_piece(monkeypatch):
    """Of a model with a memory: twice the text, the same room."""
    monkeypatch.setattr(sys.modules[read.__module__], "PIECE", 64)
    model = LanguageModel(vocabulary=7, context=2048, width=8, depth=2, heads=2, attention="linear", positions="none")
    params = model.init(seeded())
    peaks = []
    for n in (64, 1024, 2048):
        tokens = seeded(n).integers(0, 7, n)
        peaks.append(peak(lambda tokens=tokens: read(model, params, tokens)) - 8 * n)
    assert peaks[2] < 1.05 * peaks[1]


def test_top_p_ends_where_it_is_reached():
    P = next_token_distribution(np.log([0.5, 0.25, 0.125, 0.125]))
    assert next_token_distribution(np.log(P), top_p=float(P[0])).tolist() == [1, 0, 0, 0]


def test_a_low_temperature_is_not_none():
    near = next_token_distribution(np.array([0.0, -1e-4, -2e-4]), temperature=1e-4)
    assert np.allclose(near, next_token_distribution(np.array([0.0, -1, -2])))


def test_what_has_no_probability_is_not_drawn():
    class Zero:
        def random(self):
            return 0.0

    assert draw(np.array([0.0, 0.5, 0.5]), Zero()) == 1
