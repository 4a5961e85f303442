"""gMLP: another implementation with the same weights, limiting cases, what it keeps and what it refuses."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from minitransformer import check_pullback, random_like
from minitransformer.attention import ATTENTIONS
from minitransformer.functional import gated, glu, linear
from minitransformer.models import Block, LanguageModel, SequenceModel, generate
from minitransformer.related import GMLP, GMLPParams, spatial_gate

fixed = np.random.default_rng(0)
Z_1, Z_2 = fixed.standard_normal((2, 2, 3, 5, 4))
M, B = fixed.standard_normal((5, 5)), fixed.standard_normal(5)
X = fixed.standard_normal((2, 3, 5, 6))
FORMS = ("paper", "source")
forms = pytest.mark.parametrize("form", FORMS)


def some(layer, seed=1):
    rng = np.random.default_rng(seed)
    return random_like(layer.init(rng, np.float64), rng)


# ------------------------------------------------------------------------------------------ the same weights


@pytest.fixture(scope="module")
def stored():
    with np.load(Path(__file__).with_name("data") / "gates.npz") as file:
        return dict(file)


@pytest.mark.parametrize("causal", [False, True])
def test_the_block_of_g_mlp_pytorch(stored, causal, tier):
    """Values and all gradients. Its first map holds both halves, its second half is ours: the one that is mixed."""
    case = {name.split("|")[1]: a for name, a in stored.items() if name.startswith("causal" if causal else "both")}

    def ours(d=""):
        (U_1, U_2), (b_1, b_2) = (np.split(case[d + f"proj_in.0.{part}"], 2) for part in ("weight", "bias"))
        norm = case[d + "sgu.norm.weight"], case[d + "sgu.norm.bias"]
        last = case[d + "proj_out.weight"].T, case[d + "proj_out.bias"]
        return GMLPParams(
            *(U_1.T, U_2.T, case[d + "sgu.weight"][0], last[0], b_1, b_2, *norm, case[d + "sgu.bias"][0], last[1])
        )

    Y, pullback = GMLP(4, 5, hidden=3)(ours(), case["X"], causal=causal)
    dparams, dX = pullback(case["dY"])
    assert np.allclose(Y, case["Y"], rtol=1e-12, atol=1e-13)
    assert np.allclose(dX, case["dX"], rtol=1e-12, atol=1e-13)
    for name, ours_, theirs in zip(GMLPParams._fields, dparams, ours("d "), strict=True):
        assert np.allclose(ours_, theirs, rtol=1e-12, atol=1e-13), name


def test_glu_of_pytorch(stored, tier):
    """F.glu([a, b]) = a ⊙ σ(b): the gate is its second half."""
    b, a = np.split(stored["glu|X"], 2, -1)
    Y, pullback = gated(a, b)
    da, db = pullback(stored["glu|dY"])
    assert np.allclose(Y, stored["glu|Y"], rtol=1e-13)
    assert np.allclose(np.concatenate([db, da], -1), stored["glu|dX"], rtol=1e-13, atol=1e-15)


# -------------------------------------------------------------------------------------- gradients and cases


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_gradient_of_the_gate(causal, masked):
    mask = (np.arange(5) < np.array([5, 3, 4])[:, None]) if masked else None
    mask = None if mask is None else np.broadcast_to(mask, (2, 3, 5))
    check_pullback(partial(spatial_gate, causal=causal, mask=mask), Z_1, Z_2, M, B)


@forms
def test_at_first_nothing_is_mixed(form):
    """What a layer does to a token as it is drawn depends on that token alone: in the paper's form, to 10⁻³ of what it is."""
    layer = GMLP(6, 5, form)
    params = layer.init(np.random.default_rng(0), np.float64)
    Y, _ = layer(params, X)
    alone = np.concatenate([layer(params, X[..., i : i + 1, :])[0] for i in range(5)], -2)
    assert np.abs(Y - alone).max() <= (1e-3 if form == "paper" else 1e-13) * np.abs(Y).max()


@forms
def test_weights_are_drawn_with_the_variances_of_the_docstring(form):
    """1/D for the maps to the halves, 1/E for the last."""
    U_1, U_2, _, V, *_ = GMLP(40, 5, form, hidden=90).init(np.random.default_rng(0), np.float64)
    assert np.allclose([U_1.var() * 40, U_2.var() * 40, V.var() * 90], 1, rtol=0.05)
    assert GMLP(6, 5, form).init(np.random.default_rng(0)).V.shape == (12, 6), "each half is 2 D wide"


def test_the_sources_form_starts_as_the_gated_linear_unit():
    layer = GMLP(6, 5, "source")
    params = layer.init(np.random.default_rng(0), np.float64)
    unit, _ = glu(X, params.U_1, params.U_2)
    assert np.allclose(layer(params, X)[0], linear(unit, params.V)[0], rtol=1e-13)


def test_one_number_for_each_offset_is_a_convolution():
    """M_ij = w_{i−j}: every channel of Z₂ is convolved with w, at the edges with zeros, as NumPy does it."""
    w, n = np.random.default_rng(1).standard_normal(3), 5
    toeplitz = sum(w[k] * np.eye(n, k=1 - k) for k in range(3))
    S, _ = spatial_gate(np.ones_like(Z_2), Z_2, toeplitz, np.zeros(n))
    for s in np.ndindex(2, 3):
        for c in range(4):
            assert np.allclose(S[s][:, c], np.convolve(Z_2[s][:, c], w, "same"), rtol=1e-12)


@forms
def test_an_order_of_the_tokens_is_known_without_an_encoding(form):
    layer = GMLP(6, 5, form)
    params, order = some(layer), np.array([2, 0, 1, 4, 3])
    Y, _ = layer(params, X)
    assert not np.allclose(layer(params, X[..., order, :])[0], Y[..., order, :], atol=0.1)


def test_what_stands_above_the_diagonal_of_a_causal_matrix_counts_for_nothing():
    layer = GMLP(6, 5)
    params = some(layer)
    lower = params._replace(M=np.tril(params.M))
    assert np.array_equal(layer(params, X, causal=True)[0], layer(lower, X, causal=True)[0])
    dparams, _ = layer(params, X, causal=True)[1](X)
    assert not np.triu(dparams.M, 1).any()
    assert ((dparams.M != 0) == np.tri(5)).all()


# ------------------------------------------------------------------------------------------------ in models


@forms
def test_a_model_of_it_alone_learns_and_writes(form):
    """A block without a second half, as in the paper: no attention, no positions, no feed-forward network."""
    model = LanguageModel(
        40, 12, width=8, depth=2, heads=2, attention=f"gmlp:form={form}", positions="none", ffn="none"
    )
    assert model.body.blocks[0] == Block(GMLP(8, 12, form))
    params = model.init(np.random.default_rng(0))
    said = generate(model, params, np.array([1, 2, 3]), 9, rng=np.random.default_rng(0))
    assert len(said) == 9


def test_a_text_longer_than_the_matrix_is_refused_by_name():
    layer = GMLP(6, 4)
    with pytest.raises(ValueError, match="X: 5 tokens, and the matrix M of this GMLP mixes at most longest = 4"):
        layer(some(layer), X)
    with pytest.raises(ValueError, match="X: 5 tokens"):
        layer.step(some(layer), X)
    model = SequenceModel(40, 6, width=8, depth=1, heads=2, attention="gmlp")
    with pytest.raises(ValueError, match="longest = 6"):
        model(model.init(np.random.default_rng(0)), np.zeros(7, int))


def test_what_is_refused():
    with pytest.raises(ValueError, match="positions: rope: gmlp has no queries and keys"):
        LanguageModel(attention="gmlp", positions="rope")
    with pytest.raises(TypeError, match="M"):
        spatial_gate(Z_1, Z_2, M[:4], B)
    with pytest.raises(ValueError, match="mask"):
        GMLP(6, 5)(some(GMLP(6, 5)), X, mask=np.ones((5, 5), bool))
    assert ATTENTIONS["gmlp"] is GMLP
