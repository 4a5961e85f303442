"""Every attention with every encoding of positions in its scores: a definition, gradients, tokens one by one, or a reason."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback, contract, random_like
from minitransformer.attention import ATTENTIONS, Core, attention_of
from minitransformer.attention.delta_rule import unit
from minitransformer.attention.masks import causal_mask
from minitransformer.attention.selected.adaptive_span import log_ramp
from minitransformer.attention.selected.chosen import block_means
from minitransformer.attention.selected.routing import normed
from minitransformer.cli import catalogue
from minitransformer.functional import sigmoid, softmax
from minitransformer.gather_scatter import by_offset
from minitransformer.models.assemble import mixer_of
from minitransformer.positions import FIRE, IN_ATTENTION, KerpleLog, place
from minitransformer.positions.encoding import pair_scores
from minitransformer.pullback import NoParams, tree_map
from tests.pieces import in_pieces

pytestmark = pytest.mark.each_value
D, H, N = 12, 2, 13
OPTIONS = {
    "local": "block=4",
    "window": "radius=3,dilation=2,global_tokens=1",
    "sinks": "first=2,last=3",
    "strided": "stride=3,part=heads",
    "fixed": "block=4,columns=2",
    "longformer": "radius=2,global_tokens=2",
    "bigbird": "window=0,random=1,block=3",
    "span": "limit=6,ramp=5",
    "reformer": "buckets=4,chunk=3",
    "routing": "clusters=3,window=5",
    "moba": "block=3,chosen=2",
    "nsa": "block=3,chosen=4,window=3",
    "indexer": "chosen=4,narrow=3",
}
SIZES = {"width": D, "heads": H, "d": D // H, "longest": 40}
CORES = {name: attention_of(f"{name}:{OPTIONS[name]}" if name in OPTIONS else name, SIZES) for name in ATTENTIONS}
SCORES = [name for name in IN_ATTENTION if name != "rope"]
HIDDEN = {"fire": "fire:hidden=6"}  # few kinks, and none of them near a difference quotient
cells = pytest.mark.parametrize("positions", SCORES)
those = [name for name, core in CORES.items() if isinstance(core, Core) and core.places]


def cell(name, positions):
    """The core with the encoding, and random parameters at which everything that is learned matters."""
    encoding = place(HIDDEN.get(positions, positions), width=D, heads=H, longest=40).in_attention
    core, rng = replace(CORES[name], encoding=encoding), np.random.default_rng(1)
    own = tree_map(lambda x: 0.6 * x, random_like(encoding.init(rng, np.float64), rng))
    if isinstance(encoding, KerpleLog):
        own = tree_map(lambda x: 0.1 + np.abs(x) % 1.8, own)  # inside the bounds
    if isinstance(encoding, FIRE):  # some positions before |L| and some beyond
        own = own._replace(L_mult=np.array([-3.4 / 512]), b_1=-own.W_1[0] * np.linspace(0.05, 0.9, encoding.hidden))
    params = core.init(rng, np.float64)
    if not hasattr(params, "encoding"):
        return core, own, own
    params = tree_map(lambda x: 0.6 * x, random_like(params, rng))
    if name == "span":
        params = params._replace(span=np.array([0.3, 0.7]))
    return core, params._replace(encoding=own), own


def dense(core, own, Q, K, V, sees, causal, more=0.0):
    """The definition: scores of all pairs, softmax over those that are seen, and the average of the values."""
    S, _ = pair_scores(core.encoding, own, Q, K, causal=causal)
    A, _ = softmax(S + more, mask=np.broadcast_to(sees, S.shape))
    return core.encoding.aggregate(own, A, V)[0]


def seen_without(core, params, Q, K, V, streams, causal):
    """The pairs that the core scores when it has no encoding: what it chooses does not depend on one."""
    plain = replace(core, encoding=None)
    params = params._replace(encoding=NoParams()) if hasattr(params, "encoding") else NoParams()
    _, pullback = plain(params, Q, K, V, *streams, causal=causal, mask=None, rng=None)
    return pullback.A > 0


def define_sinks(core, params, own, Q, K, V, streams, causal):
    rows = []
    for i in range(N):
        cache = [j for j in range(i + 1) if j < core.first or j > i - core.last]
        here = [X[..., cache, :] for X in (K, V)]
        rows.append(dense(core, own, Q[..., i : i + 1, :], *here, True, True))
    return np.concatenate(rows, -2)


def define_longformer(core, params, own, Q, K, V, streams, causal):
    g, (i, j) = core.global_tokens, np.indices((N, N))
    words = dense(core, own, Q, K, V, (np.abs(i - j) <= core.radius) | (j < g), False)
    return np.where(np.arange(N)[:, None] < g, dense(core, own, *streams, True, False), words)


def define_span(core, params, own, Q, K, V, streams, causal):
    b, _, _ = log_ramp(core.largest * params.span, core.ramp, core.largest, N, N)
    sees = seen_without(core, params, Q, K, V, streams, True)
    return dense(core, own, Q, K, V, sees, True, by_offset(b, N, N))


def define_forgetting(core, params, own, Q, K, V, streams, causal):
    c = np.log(sigmoid(streams[0][..., 0])[0]).cumsum(-1)
    return dense(core, own, Q, K, V, causal_mask(N), True, c[..., :, None] - c[..., None, :])


def define_reformer(core, params, own, Q, K, V, streams, causal):
    return dense(core, own, Q, unit(Q)[0], V, seen_without(core, params, Q, K, V, streams, causal), causal)


def define_routing(core, params, own, Q, K, V, streams, causal):
    """Cluster by cluster: Y is the mean of what those that took a query, and show it a key, found for it."""
    (Q, _), (K, _) = normed(Q), normed(K)
    found, number = np.zeros_like(V), np.zeros((*V.shape[:-1], 1))
    for c in range(core.clusters):
        mu = params.centroids[:, c, :, None]
        takes = [np.argsort(np.argsort(-(X @ mu)[..., 0], -1), -1) < core.taken for X in (Q, K)]
        sees = takes[0][..., :, None] & takes[1][..., None, :] & (causal_mask(N) | (not causal))
        S, _ = pair_scores(core.encoding, own, Q, K, causal=causal)
        A, _ = softmax(S, mask=sees)
        found = found + core.encoding.aggregate(own, A, V)[0]
        number += sees.any(-1)[..., None]
    return found / np.maximum(number, 1)


def define_nsa(core, params, own, Q, K, V, streams, causal):
    gates, i, j = sigmoid(streams[0])[0], np.arange(N)[:, None], np.arange(N)
    K_c, V_c = (block_means(X, np.ones(N, bool), core.block)[0] for X in (K, V))
    scale = core.encoding.scale or (D // H) ** -0.5
    A, _ = softmax(scale * Q @ K_c.mT, mask=(np.arange(K_c.shape[-2]) + 1) * core.block - 1 <= i)
    _, pullback = core(params, Q, K, V, *streams, causal=True, mask=None, rng=None)
    chosen = np.repeat(pullback.attention.blocks, core.block, -1)[..., :N] & (j <= i)
    window = (j <= i) & (i - j < core.window)
    Y = A @ V_c, dense(core, own, Q, K, V, chosen, True), dense(core, own, Q, K, V, window, True)
    return sum(gates[..., b : b + 1] * Y[b] for b in range(3))


def define_others(core, params, own, Q, K, V, streams, causal):
    return dense(core, own, Q, K, V, seen_without(core, params, Q, K, V, streams, causal), causal)


@cells
@pytest.mark.parametrize("name", those)
def test_it_is_the_dense_definition(name, positions, tier):
    core, params, own = cell(name, positions)
    Q, K, V, *streams = contract.heads_for(core, N)
    for causal in contract.directions(core):
        definition = globals().get(f"define_{name}", define_others)(core, params, own, Q, K, V, streams, causal)
        Y, _ = core(params, Q, K, V, *streams, causal=causal, mask=None, rng=None)
        np.testing.assert_allclose(Y, definition, rtol=0, atol=1e-10)
    plain = replace(core, encoding=None)
    without = params._replace(encoding=NoParams()) if hasattr(params, "encoding") else NoParams()
    assert np.abs(plain(without, Q, K, V, *streams, causal=causal, mask=None, rng=None)[0] - Y).max() > 1e-3


@cells
@pytest.mark.parametrize("name", those)
def test_gradients(name, positions):
    core, params, _ = cell(name, positions)
    layer = contract.mixer(core)
    whole = contract.some(layer)._replace(core=params)
    there = "params.core.encoding." if hasattr(params, "encoding") else "params.core."
    zero = [f"{there}b_2"] * isinstance(core.encoding, FIRE) + [f"params.{path}" for path in layer.apart]
    untrained = [f"params.{path}" for path in layer.untrained]
    for causal in contract.directions(core):
        with mt.backend("numpy"):
            X = contract.rows(core, 2, N)
            function = partial(layer, causal=causal, mask=contract.padding(N))
            check_pullback(function, whole, X, zero=zero, untrained=untrained, entries=3)


@cells
@pytest.mark.parametrize("name", [name for name in those if CORES[name].causal != "never" and CORES[name].decodes])
def test_one_by_one(name, positions, tier):
    core, params, _ = cell(name, positions)
    layer = contract.mixer(core)
    params, X = contract.some(layer)._replace(core=params), contract.rows(core, 2, N)
    Y, _ = layer(params, X, causal=True)
    for edges in (range(N + 1), (0, 7, 8, N), (0, 2, N)):
        np.testing.assert_allclose(in_pieces(layer, params, X, edges)[0], Y, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", those)
def test_an_encoding_is_an_object(name):
    """A name, or a class, would be found out where something is asked of it that it hasn't."""
    of_scores = name in ("routing", "forgetting")  # which ask for more than an encoding
    kinds = ("OffsetBias", "ScoreEncoding") if of_scores else ("Encoding",)
    wanted = " | ".join([*kinds, "None"])
    for other in ("alibi", KerpleLog):
        with pytest.raises(TypeError, match=f"^encoding: .* should be {re.escape(wanted)}$"):
            replace(CORES[name], encoding=other)


def test_the_table_says_of_every_pair_what_a_model_does():
    for (attention, positions), why in catalogue.pairs().items():
        encoding = place(positions, width=D, heads=H, longest=40).in_attention
        assert bool(why) == (
            (encoding is not None and attention not in those and positions != "rope")
            or (encoding is not None and not isinstance(CORES[attention], Core))
        ), why
        if why:
            assert why.startswith((f"positions: {positions} acts on ", f"positions: {positions}: {attention} "))
            assert f"{attention} {CORES[attention].unplaced}" in why
            with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
                mixer_of(attention, encoding, width=D, heads=H, groups=None, longest=40)
    printed = catalogue.grid().splitlines()
    row = next(line for line in printed if line.startswith("linear "))
    assert row.split()[1:] == ["●"] * 4 + ["·"] * len(SCORES) + ["●"]
    assert "● go together, · do not:" in printed
    assert "sums over the keys" in " ".join(printed)
