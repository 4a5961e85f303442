"""Memories that go on from a state: a text in segments is the whole text, in values and in gradients, in every tier.

A state is also what r tokens have written that stood before: token c writes row c of it under the key e_c, and fades nothing. And
r tokens that write nothing and ask with e_c read the rows of the last one. So every kind has a definition without a state.
"""

import itertools
from functools import partial

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback, tree_map
from minitransformer.attention import (
    ATTENTIONS,
    attention_of,
    delta_rule,
    gated_delta_rule,
    gated_linear_attention,
    kernel_attention,
)
from minitransformer.attention.core import Core
from minitransformer.attention.delta_rule import opened, unit
from minitransformer.attention.kernel_attention import FeatureAttention
from minitransformer.attention.linear.memory import Memory
from minitransformer.backend import available
from minitransformer.pullback import tree_add, tree_items

B, R, DV = 2, 3, 5
SIZES = {"width": 12, "heads": 2, "d": 6, "longest": 96}
KINDS = {
    "sums": partial(kernel_attention, causal=True, eps=0.1),
    "sums without a denominator": partial(kernel_attention, causal=True, normalise=False),
    "delta": delta_rule,
    "gated": gated_linear_attention,
    "gated by channel": gated_linear_attention,
    "gated delta": gated_delta_rule,
    "gated delta by channel": gated_delta_rule,
}
kinds = pytest.mark.parametrize("kind", KINDS)


def inputs(kind, n, r=R, dv=DV, seed=0, batch=(B,)):
    """What is given position by position, β up to 2 among it; and a state before the first position."""
    rng = np.random.default_rng(seed)
    Q, K, V = (rng.standard_normal((*batch, n, width)) for width in (r, r, dv))
    S, z = rng.standard_normal((*batch, r, dv)), 1 + rng.random((*batch, r))
    if kind.startswith("sums"):
        return (abs(Q), abs(K), V), (S, z)
    arrays = (Q, K / np.linalg.norm(K, axis=-1, keepdims=True), V)
    if "delta" in kind:
        arrays += (2 * rng.random((*batch, n)),)
    if "gated" in kind:
        arrays += (-rng.random((*batch, n, r) if "channel" in kind else (*batch, n)),)
    return arrays, S


def in_segments(function, arrays, state, edges, dY, dlast):
    """Y of all segments one after another, the last state, and the gradients: each segment sends back to the one before."""
    said, pullbacks = [], []
    for a, b in itertools.pairwise(edges):
        (Y, state), pullback = function(*(X[:, a:b] for X in arrays), state)
        said.append(Y)
        pullbacks.append(pullback)
    found = []
    for (a, b), pullback in reversed(list(zip(itertools.pairwise(edges), pullbacks, strict=True))):
        *gradients, dlast = pullback((dY[:, a:b], dlast))
        found.insert(0, gradients)
    return np.concatenate(said, 1), state, *(np.concatenate(d, 1) for d in zip(*found, strict=True)), dlast


def close(found, wanted, rtol):
    """Whether trees of arrays agree, relative to the largest number of each."""
    wanted = dict(tree_items(wanted))
    for path, array in tree_items(found):
        assert np.abs(array - wanted[path]).max(initial=0) <= rtol * np.abs(wanted[path]).max(initial=1e-3), path


def noise_like(tree, seed=9):
    rng = np.random.default_rng(seed)
    return tree_map(lambda a: rng.standard_normal(a.shape).astype(a.dtype), tree)


@kinds
@pytest.mark.parametrize("edges", [(0, 7), (0, 1, 4, 7), (0, 0, 3, 7), (0, 32, 70), (0, 31, 64, 65, 100)])
def test_a_text_in_segments_is_the_whole_text(kind, edges, tier):
    """Cut anywhere: at a border of blocks, of 32, or not; into segments of one position, and of none."""
    arrays, state = inputs(kind, edges[-1])
    (Y, last), pullback = KINDS[kind](*arrays, state)
    dY, dlast = noise_like(Y, 8), noise_like(last)
    wanted = Y, last, *pullback((dY, dlast))
    found = in_segments(KINDS[kind], arrays, state, edges, dY, dlast)
    close(found, wanted, 1e-11)


@pytest.mark.each_value
@kinds
@pytest.mark.parametrize(("r", "dv"), [(3, 5), (70, 6), (5, 70), (64, 64)])
@pytest.mark.parametrize("n", [1, 2, 33, 64])
@pytest.mark.parametrize("tier", available()[1:])
def test_all_tiers_agree(kind, n, r, dv, tier):
    """More rows than go through together, more columns than a panel, and neither."""
    arrays, state = inputs(kind, n, r, dv)
    found = []
    for each in ("numpy", tier):
        with mt.backend(each):
            value, pullback = KINDS[kind](*arrays, state)
            found.append((value, pullback(noise_like(value))))
    close(found[1], found[0], 1e-10)


@kinds
def test_the_gradient(kind, tier):
    """Also of several heads, and for a length that is no multiple of a block."""
    arrays, state = inputs(kind, 35, batch=(2, 2))
    check_pullback(KINDS[kind], *arrays, state, entries=6)


@kinds
def test_an_empty_memory_is_a_state_of_zeros(kind):
    arrays, state = inputs(kind, 6)
    Y, pullback = KINDS[kind](*arrays)
    (same, last), back = KINDS[kind](*arrays, tree_map(np.zeros_like, state))
    np.testing.assert_allclose(same, Y, rtol=1e-12)
    dY = noise_like(Y)
    close(back((dY, tree_map(np.zeros_like, last)))[:-1], pullback(dY), 1e-12)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "sums"])  # whose z is no sum of these keys
def test_a_state_is_what_tokens_in_front_have_written(kind):
    """The definition without a state: r tokens in front, and r behind that read what is left."""
    arrays, state = inputs(kind, 6)
    S = state[0] if kind.startswith("sums") else state
    one, zero = np.broadcast_to(np.eye(R), (B, R, R)), np.zeros((B, R, R))
    around = [(zero, one), (one, zero), (S, np.zeros((B, R, DV)))]
    if "delta" in kind:
        around.append((np.ones((B, R)), np.zeros((B, R))))
    if "gated" in kind:
        around.append((np.zeros((B, R, *arrays[-1].shape[2:])),) * 2)
    longer = [np.concatenate([a, X, b], 1) for X, (a, b) in zip(arrays, around, strict=True)]
    whole, pullback = KINDS[kind](*longer)
    (Y, last), back = KINDS[kind](*arrays, state)
    last = last[0] if isinstance(last, tuple) else last
    np.testing.assert_allclose(whole[:, R:-R], Y, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(whole[:, -R:], last, rtol=1e-11, atol=1e-12)
    dwhole = noise_like(whole)
    dwhole[:, :R] = 0
    wanted = pullback(dwhole)
    dS = dwhole[:, -R:]
    gradients = back((dwhole[:, R:-R], (dS, np.zeros((B, R))) if isinstance(state, tuple) else dS))
    dS_0 = gradients[-1][0] if isinstance(state, tuple) else gradients[-1]
    np.testing.assert_allclose(dS_0, wanted[2][:, :R], rtol=1e-10, atol=1e-12)
    for found, d in zip(gradients[:-1], wanted, strict=True):
        np.testing.assert_allclose(found, d[:, R:-R], rtol=1e-10, atol=1e-11)


# ------------------------------------------------------------------------------------- over the registry


def memory_of(name):
    """The plain function of a registered memory, and what it takes of 40 tokens: features, norms and gates are made."""
    core = attention_of(name, SIZES)
    rng = np.random.default_rng(3)
    Q, K, V = rng.standard_normal((3, 2, 2, 40, 6))
    streams = [rng.standard_normal((2, 2, 40, width)) for width in core.streams.values()]
    params = core.init(rng, np.float64)
    if isinstance(core, FeatureAttention):
        FQ, FK = (core.phi(params, X, first=0, query=query)[0] for X, query in ((Q, True), (K, False)))
        return KINDS["sums"], (FQ, FK, V)
    if isinstance(core, Memory):
        entries, _ = core.prepare(params, Q, K, V, *streams[:-1])
        arrays = [X for X in entries if X is not None]
        return (gated_linear_attention if entries.beta is None else gated_delta_rule), arrays
    return delta_rule, (*(core.rows(X)[0] for X in (Q, K)), V, opened(streams[0][..., 0], core.reach)[0])


MEMORIES = [
    name
    for name in (*ATTENTIONS, "delta:nu=2", "delta:reach=2", "gated-delta:channelwise=True,reach=2")
    if isinstance(core := attention_of(name, SIZES), Core) and str(core.remembers).startswith("S")
]


def test_which_are_memories():
    assert {
        "linear",
        "performer",
        "cosformer",
        "dpfp",
        "taylor",
        "delta",
        "retnet",
        "gla",
        "ssd",
        "gated-delta",
    } <= set(MEMORIES)


@pytest.mark.parametrize("name", MEMORIES)
def test_every_registered_memory_in_segments_is_itself(name, tier):
    """With what its core makes of queries, keys and streams; from an empty memory on."""
    function, arrays = memory_of(name)
    arrays = [X.reshape(4, *X.shape[2:]) for X in arrays]  # heads in front, as samples
    S = np.zeros((4, arrays[1].shape[-1], arrays[2].shape[-1]))
    state = (S, S[..., 0]) if function is KINDS["sums"] else S
    Y, pullback = function(*arrays)
    dY = noise_like(Y)
    (_, last), _ = function(*arrays, state)
    found = in_segments(function, arrays, state, (0, 13, 32, 40), dY, tree_map(np.zeros_like, last))
    close((found[0], *found[2:-1]), (Y, *pullback(dY)), 1e-10)


# ------------------------------------------------------------------------------------------------ the rest


@kinds
@pytest.mark.parametrize(("n", "r", "dv"), [(40, R, DV), (40, 1, 1), (3, 1, DV), (3, R, 1), (0, R, DV)])
def test_float32_stays_and_nothing_is_changed(kind, tier, n, r, dv):
    """Also of one row or column, where an array and its transpose are the same numbers in memory."""
    arrays, state = inputs(kind, n, r, dv)
    arrays, state = tree_map(lambda a: a.astype(np.float32), (list(arrays), state))
    before = tree_map(np.copy, (arrays, state))
    value, pullback = KINDS[kind](*arrays, state)
    dvalue = noise_like(value)
    same = tree_map(np.copy, dvalue)
    gradients, again = pullback(dvalue), pullback(dvalue)
    assert all(a.dtype == np.float32 for _, a in tree_items((value, gradients)))
    for tree, other in (((arrays, state), before), (dvalue, same), (gradients, again)):
        for (_, a), (_, b) in zip(tree_items(tree), tree_items(other), strict=True):
            assert np.array_equal(a, b)


def test_what_a_segment_keeps_is_linear_in_its_length():
    arrays, state = inputs("gated delta by channel", 512)
    _, short = gated_delta_rule(*(X[:, :256] for X in arrays), state)
    _, long = gated_delta_rule(*arrays, state)
    assert mt.tree_bytes(long) < 2.1 * mt.tree_bytes(short)


def test_a_memory_that_is_mirrored_does_not_grow(tier):
    """β = 2 and keys of norm one: I − 2 k kᵀ keeps the norm of what was there, through ten thousand positions of float32."""
    rng = np.random.default_rng(4)
    K = unit(rng.standard_normal((10_000, 8)), eps=0.0)[0].astype(np.float32)
    (_, last), _ = delta_rule(K, K, np.zeros_like(K), np.full(len(K), 2, np.float32), np.eye(8, dtype=np.float32))
    np.testing.assert_allclose(last @ last.T, np.eye(8), atol=2e-2)


@kinds
def test_what_does_not_fit_is_refused(kind):
    arrays, state = inputs(kind, 4)
    for wrong in (tree_map(lambda a: a[:, :2], state), tree_map(lambda a: a[:1], state)):
        with pytest.raises(TypeError, match="parameter 'initial'"):
            KINDS[kind](*arrays, wrong)
    with pytest.raises(TypeError, match="should have one dtype"):
        KINDS[kind](*arrays, tree_map(lambda a: a.astype(np.float32), state))
    value, pullback = KINDS[kind](*arrays, state)
    with pytest.raises(ValueError, match=r"dY: an array .* should be a tuple of 2"):
        pullback(value[0])


def test_sums_go_on_only_where_a_query_has_a_key():
    (Q, K, V), sums = inputs("sums", 4)
    with pytest.raises(ValueError, match=r"initial: to go on from sums .* got causal=False, n=4, m=4"):
        kernel_attention(Q, K, V, sums)
    with pytest.raises(ValueError, match="got causal=True, n=3, m=4"):
        kernel_attention(Q[:, :3], K, V, sums, causal=True)


def test_a_loss_of_all_segments_has_the_gradient_of_the_whole():
    """As in a training: the parameters of a projection are in all segments, and their gradients add up."""
    rng = np.random.default_rng(6)
    X, W, S = rng.standard_normal((60, 4)), rng.standard_normal((4, 4)), np.zeros((4, 4))
    beta = np.full(60, 0.7)

    def gradient(edges):
        state, done, dW, dS = S, [], np.zeros_like(W), np.zeros_like(S)
        for a, b in itertools.pairwise(edges):
            K, unit_back = unit(X[a:b] @ W)
            (Y, state), back = delta_rule(K, K, X[a:b], beta[a:b], state)
            done.append((a, b, Y, unit_back, back))
        for a, b, Y, unit_back, back in reversed(done):
            dQ, dK, _, _, dS = back((Y, dS))  # of ½‖Y‖²
            dW = tree_add(dW, X[a:b].T @ unit_back(dQ + dK))
        return dW

    np.testing.assert_allclose(gradient((0, 20, 41, 60)), gradient((0, 60)), rtol=1e-10)
