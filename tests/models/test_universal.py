"""The Universal Transformer: the weights of halting in loops, its three subtle points, and one block instead of many."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitransformer as mt
from minitransformer import check_pullback, random_like, tree_items, tree_map, tree_size
from minitransformer.attention import MultiHeadAttention, SoftmaxAttention, padding_mask
from minitransformer.backend import available
from minitransformer.data.text import Text
from minitransformer.models import Block, FeedForward, LanguageModel, SequenceModel, Stack
from minitransformer.models.universal import HaltingParams, UniversalStack, combine, halting
from minitransformer.positions import sinusoids
from minitransformer.pullback import added_losses, with_added
from minitransformer.training.checkpoint import Checkpoint, load, save
from minitransformer.training.choices import Training
from minitransformer.training.loop import start, train
from minitransformer.training.objective import NextByte
from minitransformer.training.schedule import Cosine
from tests.pieces import in_pieces

pytestmark = pytest.mark.usefixtures("definitions")

B, N, D, H = 2, 5, 12, 2
RULES = ("fixed", "basic", "accumulated")
LETTERS = np.resize(np.frombuffer(b"abcdefgh ijkl. ", np.uint8), 4000) % 40


def stack_of(depth=4, rule="basic", order="post", core=None, cls=UniversalStack, dropout=0.0, **options):
    attention = MultiHeadAttention(D, H, bias=False, core=core or SoftmaxAttention())
    return cls((Block(attention, FeedForward(D, 10), order=order, dropout=dropout),) * depth, halting=rule, **options)


def some(layer, size=0.6, dtype=np.float64):
    """Random parameters, with p small enough that tokens halt at several steps."""
    rng = np.random.default_rng(1)
    params = tree_map(lambda a: (size * a).astype(dtype), random_like(layer.init(rng, np.float64), rng))
    if getattr(params, "halting", None) is not None:
        params = params._replace(halting=HaltingParams(params.halting.w, np.full(1, -0.6, dtype)))
    return params


def rows(*shape, seed=2):
    return np.random.default_rng(seed).standard_normal((*shape, D))


# --------------------------------------------------------------------------------------------- halting


def in_loops(p, eps):
    """One token, as the paper tells it: weights, remainder, number of steps."""
    total, weights = 0.0, [0.0] * len(p)
    for t, p_t in enumerate(p):
        if total + p_t > 1 - eps or t == len(p) - 1:
            weights[t] = 1 - total
            return weights, 1 - total, t + 1
        weights[t] = p_t
        total += p_t


def test_weights_in_loops():
    p = np.random.default_rng(0).random((6, 3, 4)) * 0.5
    (w, R), pullback = halting(p, eps=0.05)
    for b, i in np.ndindex(3, 4):
        weights, left, steps = in_loops(p[:, b, i], 0.05)
        np.testing.assert_allclose(w[:, b, i], weights, atol=1e-15)
        assert R[b, i] == pytest.approx(left, abs=1e-15)
        assert pullback.N[b, i] == steps
    assert len(np.unique(pullback.N)) > 2


def as_the_program(p, states, eps, rule):
    """What tensor2tensor computes, restated: masks of those that run and those that halt now, all steps as numbers."""
    total, remainder, updates, said = 0.0, 0.0, 0.0, np.zeros_like(states[0])
    for p_t, state in zip(p, states, strict=True):
        running = float(total < 1)
        halts = float(total + p_t * running > 1 - eps) * running
        running = float(total + p_t * running <= 1 - eps) * running
        total += p_t * running
        remainder += halts * (1 - total)
        total += halts * remainder
        updates += running + halts
        weight = p_t * running + halts * remainder
        said = weight * state + ((1 - weight) * said if rule == "basic" else said)
    return said, updates, remainder


@pytest.mark.parametrize("rule", ["basic", "accumulated"])
def test_where_all_have_halted_it_is_what_the_program_computes(rule):
    rng = np.random.default_rng(3)
    p, states = rng.random((8, N)), rng.standard_normal((8, N, D))
    (w, R), halted = halting(p)
    assert (halted.N < 8).all()
    assert len(np.unique(halted.N)) > 2
    said, _ = combine(w, states, rule=rule)
    for i in range(N):
        want, updates, remainder = as_the_program(p[:, i], states[:, i], 0.01, rule)
        np.testing.assert_allclose(said[i], want, atol=1e-14)
        assert (halted.N[i], R[i]) == (updates, pytest.approx(remainder, abs=1e-14))


def test_who_never_halts_has_to_in_the_end_and_in_the_program_does_not():
    """Three steps of p = 0.2: weights 0.2, 0.2, 0.6 here; there 0.2, 0.2, 0.2, whose sum is no average."""
    p = np.full((3, 1), 0.2)
    (w, R), halted = halting(p)
    np.testing.assert_allclose(w[:, 0], [0.2, 0.2, 0.6])
    assert (halted.N[0], R[0]) == (3, pytest.approx(0.6))
    said, updates, remainder = as_the_program(p[:, 0], np.ones((3, D)), 0.01, "accumulated")
    np.testing.assert_allclose(said, 0.6)
    assert (updates, remainder) == (3, 0)


@given(st.integers(1, 9), st.floats(0.001, 0.5), st.integers(0, 99))
def test_weights_sum_to_one(steps, eps, seed):
    """Whatever p is."""
    p = np.random.default_rng(seed).random((steps, 7))
    (w, R), halted = halting(p, eps=eps)
    np.testing.assert_allclose(w.sum(0), 1, rtol=0, atol=1e-14)
    assert (w >= 0).all()
    assert (R > 0).all()
    assert ((w > 0).sum(0) == halted.N).all()


def test_one_who_is_sure_halts_at_once():
    """p = 1 − ε/2 > 1 − ε; and p = 1 − 2ε takes one step more."""
    (w, R), halted = halting(np.full((4, 1), 1 - 0.01 / 2))
    assert halted.N[0] == 1
    np.testing.assert_array_equal(w[:, 0], [1, 0, 0, 0])
    assert R[0] == 1
    (w, _), halted = halting(np.full((4, 1), 1 - 2 * 0.01))
    assert halted.N[0] == 2
    assert halting(np.full((4, 1), 0.5), eps=0.5)[1].N[0] == 2, "1 − ε itself is not enough"


def test_gradients_of_the_parts():
    """N is the same at both ends of each difference quotient: the derivative of a piece."""
    p = np.random.default_rng(0).random((5, 2, 3)) * 0.6
    assert check_pullback(halting, p).error < 1e-8
    w, states = np.random.default_rng(1).random((5, 2, 3)), np.random.default_rng(2).standard_normal((5, 2, 3, 4))
    for rule in ("basic", "accumulated"):
        check_pullback(partial(combine, rule=rule), w, states, entries=15)


def test_the_gradient_of_a_remainder():
    """dR/dp is −1 for every step before the last, and 0 from there on."""
    p = np.array([[0.3], [0.3], [0.3], [0.3], [0.3]])
    _, pullback = halting(p)
    assert pullback.N[0] == 4
    np.testing.assert_array_equal(pullback((np.zeros((5, 1)), np.ones(1)))[:, 0], [-1, -1, -1, 0, 0])


# ------------------------------------------------------------------------------------------- subtle points


def test_the_two_rules_of_combination_are_two():
    """Weights 1/2, 1/4, 1/4: a sum of these; or 1/2 · 3/4 · 3/4, 1/4 · 3/4, 1/4, which do not sum to one."""
    w, states = np.array([0.5, 0.25, 0.25]), np.eye(3)
    np.testing.assert_array_equal(combine(w, states)[0], [0.5, 0.25, 0.25])
    np.testing.assert_array_equal(combine(w, states, rule="basic")[0], [9 / 32, 6 / 32, 8 / 32])


@pytest.mark.parametrize("rule", ["basic", "accumulated"])
def test_what_a_halted_token_says_rests_but_its_state_does_not(rule):
    """Token 0 halts at once. In the second step the others look at what has become of it, not at what it has said."""
    stack, X = stack_of(2, rule), rows(N)
    params = some(stack)
    Z_1 = X + stack.signal(N, 1)
    w = np.linalg.lstsq(Z_1, np.array([9.0, -1, -2, -1, -2]), rcond=None)[0]
    params = params._replace(halting=HaltingParams(w, np.zeros(1)))
    Y, pullback = stack(params, X)
    assert list(pullback.N) == [1, 2, 2, 2, 2]

    block = partial(stack.blocks[0], params.block)
    H_1, _ = block(Z_1)
    H_2, _ = block(H_1 + stack.signal(N, 2))
    p = 1 / (1 + np.exp(-(Z_1 @ w)))[:, None]
    np.testing.assert_allclose(Y[0], H_1[0], atol=1e-12)
    first = (
        p * (p if rule == "basic" else 1) * H_1
    )  # times 1 − w² = p, if the second step takes a part of what was said
    np.testing.assert_allclose(Y[1:], (first + (1 - p) * H_2)[1:], atol=1e-12)

    stopped = H_1 + stack.signal(N, 2)
    stopped[0] = X[0]
    assert np.abs(block(stopped)[0][1:] - H_2[1:]).max() > 1e-3


def test_what_halts_reads_the_state_with_its_signal():
    """p^t = σ(⟨z^t, w⟩ + b), z^t = h^{t−1} + P^t: a w that only sees P gives another p at every step."""
    stack = stack_of(3, "accumulated")
    params = some(stack)
    _, pullback = stack(params, rows(N))
    for step in pullback.steps:
        p = 1 / (1 + np.exp(-(step.Z @ params.halting.w + params.halting.b)))
        np.testing.assert_allclose(step.p.slope, p * (1 - p), rtol=1e-12)
    zeros = np.zeros((N, D))
    moved = stack._with_signal(zeros, 1)
    np.testing.assert_allclose(moved, sinusoids(N, D) + sinusoids(1, D, first=1), atol=1e-15)
    assert np.abs(moved - stack._with_signal(zeros, 2)).max() > 0.1


# ------------------------------------------------------------------------------------------- the stack


class Silent(UniversalStack):
    """Without P^t."""

    def signal(self, n, t, *, first=0):
        return np.zeros((1, self.width))


@pytest.mark.parametrize("order", ["pre", "post"])
def test_a_fixed_number_of_steps_is_an_encoder_with_tied_layers(order):
    """Bit for bit, values and gradients."""
    universal = stack_of(4, "fixed", order, cls=Silent)
    tied, X = Stack(universal.blocks, tied=("",)), rows(B, N)
    params = some(universal)
    same = tied.init(np.random.default_rng(0), np.float64)._replace(shared={"": params.block}, norm=params.norm)
    Y, pullback = universal(params, X, causal=True)
    Z, back = tied(same, X, causal=True)
    np.testing.assert_array_equal(Y, Z)
    assert added_losses(pullback) == [0], "nobody ponders"
    for (path, a), (_, b) in zip(
        tree_items(pullback(rows(B, N, seed=3))),
        tree_items(
            (back(rows(B, N, seed=3))[0].shared[""], back(rows(B, N, seed=3))[0].norm, back(rows(B, N, seed=3))[1])
        ),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13, err_msg=path)


def test_step_by_step_with_its_signal():
    """(18) and (19), the block called by hand."""
    stack, X = stack_of(3, "fixed"), rows(B, N)
    params, omega = some(stack), [10000 ** (-2 * f / D) for f in range(D // 2)]
    Z = X
    for t in (1, 2, 3):
        P = np.zeros((N, D))
        for i in range(N):
            for f, w in enumerate(omega):
                P[i, 2 * f] = math.sin(w * i) + math.sin(w * t)
                P[i, 2 * f + 1] = math.cos(w * i) + math.cos(w * t)
        Z, _ = stack.blocks[0](params.block, Z + P)
    np.testing.assert_allclose(stack(params, X)[0], Z, atol=1e-12)


@pytest.mark.parametrize("rule", ["basic", "accumulated"])
@pytest.mark.parametrize("order", ["pre", "post"])
def test_tokens_halt_when_they_want(rule, order):
    """All of it by hand: states, p, weights, and the rule."""
    stack, X = stack_of(4, rule, order), rows(B, N)
    params = some(stack)
    Y, pullback = stack(params, X)
    assert len(np.unique(pullback.N)) > 1
    states, p, state = [], [], X
    for t in range(1, 5):
        Z = state + stack.signal(N, t)
        p.append(1 / (1 + np.exp(-(Z @ params.halting.w + params.halting.b[0]))))
        state, _ = stack.blocks[0](params.block, Z)
        states.append(state)
    said = np.zeros_like(X)
    for b, i in np.ndindex(B, N):
        weights, _, steps = in_loops([p_t[b, i] for p_t in p], 0.01)
        assert pullback.N[b, i] == steps
        for w, h in zip(weights, states, strict=True):
            said[b, i] = w * h[b, i] + (said[b, i] * (1 - w) if rule == "basic" else said[b, i])
    want, _ = stack._last_norm(params, said)
    np.testing.assert_allclose(Y, want, atol=1e-12)


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("causal", [False, True])
def test_gradient(rule, order, causal):
    stack, X = stack_of(3, rule, order), rows(B, N)
    mask = padding_mask(np.array([N, 3]), N)[:, None]
    params = some(stack)
    if rule != "fixed":
        assert len(np.unique(stack(params, X)[1].N)) > 1
    check_pullback(partial(stack, causal=causal, mask=mask), params, X, entries=3)
    noisy = replace(stack, blocks=(replace(stack.blocks[0], dropout=0.3),) * 3)
    check_pullback(lambda params, X: noisy(params, X, rng=np.random.default_rng(4)), params, X, entries=2)


@pytest.mark.parametrize("rule", ["basic", "accumulated"])
@pytest.mark.parametrize("padded", [False, True])
def test_the_price_of_pondering_has_its_gradient(rule, padded):
    """λ · mean(N + R), of the tokens that are there: N counts in the value, and has no gradient."""
    stack, X = stack_of(4, rule, ponder=0.7), rows(B, N)
    params = some(stack)
    mask = padding_mask(np.array([N, 3]), N)[:, None] if padded else None
    there = np.arange(N) < np.array([[N], [3 if padded else N]])
    _, pullback = stack(params, X, mask=mask)
    _, R = _weights(pullback, params)
    assert added_losses(pullback) == [pytest.approx(0.7 * (pullback.N + R)[there].mean())]

    def priced(params, X):
        Y, pullback = stack(params, X, mask=mask)
        return X.dtype.type(sum(added_losses(pullback))), lambda d: with_added(pullback, float(d))(0 * Y)

    assert check_pullback(priced, params, X, entries=3).error < 1e-6


def test_of_one_token_the_price_is_its_own():
    """Of two that are alike, each has half of it."""
    stack, ponders = stack_of(4, "basic", ponder=0.7), False
    params = some(stack)
    for X in rows(B, N).reshape(-1, 1, 1, rows(B, N).shape[-1]):
        found = []
        for batch in (X, np.concatenate([X, X])):
            Y, pullback = stack(params, batch)
            found.append(with_added(pullback, 1.0)(0 * Y)[1].sum(0))
        np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-7)
        ponders |= np.abs(found[0]).max() > 1e-3
    assert ponders


@pytest.mark.parametrize("rule", ["basic", "accumulated"])
def test_where_nobody_is_there_pondering_costs_nothing(rule):
    """A batch that is all padding: its mean price is that of no token."""
    stack, X = stack_of(4, rule, ponder=0.7), rows(B, N)
    Y, pullback = stack(some(stack), X, mask=np.zeros((B, 1, 1, N), bool))
    assert added_losses(pullback) == [0.0]
    dparams, dX = with_added(pullback, 1.0)(0 * Y)
    assert not any(array.any() for _, array in tree_items({"dX": dX, "dparams": dparams}))


def _weights(pullback, params):
    p = np.stack([1 / (1 + np.exp(-(s.Z @ params.halting.w + params.halting.b))) for s in pullback.steps])
    return halting(p)[0]


def test_stopping_early_changes_no_bit():
    """When all have halted, nothing counts any more: as many steps as one likes."""
    few, many, X = stack_of(20), stack_of(40), rows(B, N)
    params = some(few)
    Y, pullback = few(params, X)
    Z, longer = many(params, X)
    assert len(pullback.steps) == len(longer.steps) == pullback.N.max() < 20
    np.testing.assert_array_equal(Y, Z)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_samples_and_padding_and_what_comes_later(rule, tier, dtype):
    stack, X = stack_of(4, rule), rows(B, 70).astype(dtype)
    params = some(stack, dtype=dtype)
    other, hidden = X.copy(), X.copy()
    other[:, 40:] += 1
    hidden[1, 65:] = 9
    mask = padding_mask(np.array([70, 65]), 70)[:, None]
    Y, _ = stack(params, X, causal=True)
    later, _ = stack(params, other, causal=True)
    masked, pullback = stack(params, X, mask=mask)
    padded, again = stack(params, hidden, mask=mask)
    alone, _ = stack(params, X[1:], causal=True)
    assert Y.dtype == dtype
    assert (Y[:, :40] == later[:, :40]).all()
    assert (Y[:, 40:] != later[:, 40:]).any()
    assert (masked[0] == padded[0]).all()
    assert (masked[1, :65] == padded[1, :65]).all()
    assert pullback.added == again.added
    np.testing.assert_allclose(alone[0], Y[1], atol=1e-4 if dtype == np.float32 else 1e-11)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("tier", available()[1:])
def test_tiers_agree(rule, tier):
    stack, X = stack_of(4, rule), rows(B, N)
    params = some(stack)
    with mt.backend("numpy"):
        Y, pullback = stack(params, X)
        want = pullback(X)
    with mt.backend(tier):
        Z, back = stack(params, X)
        found = back(X)
    np.testing.assert_allclose(Z, Y, atol=1e-11)
    for (path, a), (_, b) in zip(tree_items(found), tree_items(want), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10, err_msg=path)


# --------------------------------------------------------------------------------------------- in a model


def model_of(rule="basic", depth=4, ponder=0.01, **options):
    stack = f"universal:halting={rule},ponder={ponder}"
    return LanguageModel(40, 24, D, depth, H, 10, stack=stack, **options)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("core", "positions"),
    [
        ("softmax", "sinusoidal"),
        ("softmax", "t5"),
        ("linear", "rope"),
        ("delta", "learned"),
        ("window:radius=3", "none"),
    ],
)
def test_one_by_one_is_the_same_as_all_at_once(rule, positions, core):
    """A later token may think for longer than all before it, and looks at what they have become by then."""
    model = model_of(rule, positions=positions, attention=core)
    params = model.init(np.random.default_rng(0), np.float64)
    tokens = np.random.default_rng(1).integers(0, 40, (2, 13))
    whole, pullback = model(params, tokens)
    said, state = in_pieces(model, params, tokens, (0, 7, 8, 9, 13))
    np.testing.assert_allclose(said, whole, atol=1e-11)
    assert state.length == state.blocks.length == 13
    if rule != "fixed":
        assert pullback.stack.N.shape == (2, 13)


@pytest.mark.parametrize("rule", ["basic", "accumulated"])
def test_who_halts_early_does_so_token_by_token_too(rule):
    stack, X = stack_of(4, rule, eps=0.4), rows(B, N)
    params = some(stack)
    whole, pullback = stack(params, X, causal=True)
    assert (pullback.N != stack_of(4, rule)(params, X, causal=True)[1].N).any()
    np.testing.assert_allclose(in_pieces(stack, params, X, range(N + 1))[0], whole, atol=1e-11)


def test_each_step_drops_what_its_generator_says():
    stack, X = stack_of(3, "fixed", dropout=0.3), rows(B, N)
    params = some(stack)
    usual, one, same, other = (
        stack(params, X, rng=seed and np.random.default_rng(seed))[0] for seed in (None, 1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, usual)
    assert not np.allclose(one, other)


def test_the_first_token_is_fast_and_a_later_one_is_not():
    """What is read alone halts at once, and all of its states are there when another token takes all steps."""
    model = model_of("accumulated", positions="none")
    params = model.init(np.random.default_rng(0), np.float64)
    hurry = lambda tokens: model(params, tokens)[1].stack.N  # noqa: E731
    counts = [hurry(np.array([[t]]))[0, 0] for t in range(40)]
    fast, slow = int(np.argmin(counts)), int(np.argmax(counts))
    assert counts[fast] < counts[slow]
    whole, _ = model(params, np.array([[fast, slow]]))
    _, state = model.step(params, np.array([[fast]]))
    logits, _ = model.step(params, np.array([[slow]]), state)
    np.testing.assert_allclose(logits[:, 0], whole[:, 1], atol=1e-12)


def test_sinusoids_are_added_in_every_step_and_not_before():
    model, other = model_of("fixed"), model_of("fixed", positions="rope")
    assert model.body.places
    assert not other.body.places
    params = model.init(np.random.default_rng(0), np.float64)
    tokens = np.arange(6)[None]
    X, _ = model._embed(params, tokens)
    np.testing.assert_array_equal(X, math.sqrt(D) * params.E[tokens])
    _, pullback = model(params, tokens)
    np.testing.assert_allclose(pullback.stack.steps[0].Z - X, model.body.signal(6, 1)[None], atol=1e-14)


def test_it_has_the_parameters_of_one_block():
    one = LanguageModel(40, 24, D, 1, H, 10)
    rng = np.random.default_rng(0)
    assert tree_size(model_of("fixed", 7).init(rng)) == tree_size(one.init(rng))
    assert tree_size(model_of("basic", 7).init(rng)) == tree_size(one.init(rng)) + D + 1
    params = model_of().init(rng)
    assert params.stack.halting.b == 1


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("order", ["pre", "post"])
def test_a_model_trains_and_comes_back(rule, tier, order, tmp_path):
    model = model_of(rule, dropout=0.1, order=order)
    objective = NextByte(Text(LETTERS, LETTERS[:600], "letters", ""), 24)
    training = Training(10, 4, Cosine(2e-2, 10, 1), parts=2, look_every=10)
    before, after = start(model, training), train(model, objective, training, progress=False)
    assert after.losses[-1] < after.losses[0]
    if rule != "fixed":
        assert (before.params.stack.halting.w != after.params.stack.halting.w).any()
    save(tmp_path / "run", Checkpoint(model, training, after, objective.data))
    found = load(tmp_path / "run")
    assert found.model == model
    for (path, a), (_, b) in zip(tree_items(found.state), tree_items(after), strict=True):
        assert np.array_equal(a, b), path


def test_the_more_it_costs_the_less_it_thinks():
    """Average steps of trained models, as λ grows."""
    objective = NextByte(Text(LETTERS, LETTERS[:600], "letters", ""), 24)
    training, steps = Training(25, 4, Cosine(3e-2, 25, 1), parts=1, look_every=25), []
    for ponder in (0.0, 0.3, 3.0):
        model = model_of("accumulated", ponder=ponder)
        state = start(model, training)
        slow = HaltingParams(state.params.stack.halting.w, np.full(1, -0.5, np.float32))
        state = state._replace(params=state.params._replace(stack=state.params.stack._replace(halting=slow)))
        state = train(model, objective, training, state=state, progress=False)
        _, pullback = model(state.params, objective.batch(8, np.random.default_rng(0))[0])
        steps.append(float((pullback.stack.N).mean()))
    assert steps[0] > steps[1] > steps[2]


def test_what_its_attention_adds_is_added():
    """Of each step, beside the price of pondering."""
    model = model_of("basic", 3, attention="indexer:chosen=2,narrow=3")
    params, tokens = model.init(np.random.default_rng(0), np.float64), np.random.default_rng(1).integers(0, 40, (2, 9))
    logits, pullback = model(params, tokens)
    assert model.adds_loss
    assert len(added_losses(pullback)) == 1 + len(pullback.stack.steps)
    without, paid = pullback(0 * logits).stack, with_added(pullback, 1.0)(0 * logits).stack
    assert not any(array.any() for _, array in tree_items(without))
    assert paid.halting.w.any()
    assert any(array.any() for _, array in tree_items(paid.block.attention.core))


def test_what_no_gradient_moves_is_named():
    model = model_of("basic", 3, attention="synthesizer:kind=random,learned=False")
    assert model.untrained == ("stack.block.attention.core.logits.R",)
    tokens = np.random.default_rng(1).integers(0, 40, (2, 9))
    params = model.init(np.random.default_rng(0), np.float64)
    logits, pullback = model(params, tokens)
    assert pullback(logits).stack.block.attention.core.logits.R is None


def test_other_models_with_it():
    model = SequenceModel(40, 24, D, 3, H, 10, stack="universal:halting=basic", outputs=3)
    params, tokens = model.init(np.random.default_rng(0)), np.random.default_rng(1).integers(0, 40, (2, 9))
    logits, pullback = model(params, tokens, lengths=np.array([9, 4]))
    alone, _ = model(params, tokens[1:, :4])
    np.testing.assert_allclose(logits[1, :4], alone[0], atol=1e-5)
    mt.tree_map(lambda *_: None, pullback(np.ones_like(logits)), params)


def test_what_can_not_be():
    with pytest.raises(ValueError, match="blocks: a Universal Transformer has one block, and these differ"):
        model_of(attention=("softmax", "window"))
    with pytest.raises(ValueError, match="can't have tokens in front"):
        SequenceModel(stack="universal", attention="etc")
    with pytest.raises(ValueError, match="can't have parameters that after_step moves"):
        model_of(attention="span")
    with pytest.raises(ValueError, match="can't have cross-attention"):
        UniversalStack((Block.of(D, H, 10, cross=True),) * 2)
    with pytest.raises(ValueError, match="width: sines and cosines come in pairs, and 13 is not an even number"):
        LanguageModel(40, 24, 13, 1, 1, 10, stack="universal", positions="none")
    with pytest.raises(ValueError, match=r"p: shape \(0, 3\) should have at least one step"):
        halting(np.zeros((0, 3)))
