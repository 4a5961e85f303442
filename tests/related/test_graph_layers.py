"""The layers: with PyTorch Geometric's numbers, their gradients, their limiting cases, and the mixers of a text."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from minitransformer import check_pullback, random_like
from minitransformer.attention import Window
from minitransformer.models import LanguageModel
from minitransformer.pullback import tree_bytes
from minitransformer.related import GAT, GATv2, GraphAttention, GraphConvolution, GraphMean, edges_of, edges_of_mask
from minitransformer.related.graph_attention import GATParams, GATv2Params
from minitransformer.related.graph_convolution import GraphConvolutionParams

pytestmark = pytest.mark.each_value
# Made with torch 2.13.0 and torch_geometric 2.8.1 on a CPU in float64: GCNConv, GATConv and GATv2Conv with these weights, their
# values and the gradients of ⟨dY, Y⟩. In GATv2Conv lin_r is W_1 and lin_l is W_2, both without a bias.
ORACLE = json.loads(Path(__file__).with_name("data").joinpath("graph_layers.json").read_text())
GIVEN = {name: np.array(value) for name, value in ORACLE.items() if isinstance(value, list)}


@pytest.mark.parametrize("name", ["gcn", "gat", "gat_average", "gatv2", "gatv2_average"])
def test_the_same_numbers_as_pytorch_geometric(name, tier):
    wanted = {key: np.array(value) for key, value in ORACLE[name].items()}
    edges = edges_of(GIVEN["pairs"], 5, loops=True)
    average = name.endswith("average")
    b, dY = (GIVEN[key + "_average"] if average else GIVEN[key] for key in ("b", "dY"))
    if name == "gcn":
        layer, params = GraphConvolution(3, 4), GraphConvolutionParams(wanted["W"], wanted["b"])
        dY = GIVEN["dY_average"]
    elif name.startswith("gatv2"):
        layer = GATv2(3, 4 if average else 8, 2, average)
        params = GATv2Params(GIVEN["W"], GIVEN["W_2"], GIVEN["a_1"], b)
    else:
        layer = GAT(3, 4 if average else 8, 2, average)
        params = GATParams(GIVEN["W"], GIVEN["a_1"], GIVEN["a_2"], b)
    Y, back = layer(params, GIVEN["X"], edges)
    dparams, dX = back(dY)
    np.testing.assert_allclose(Y, wanted["Y"], atol=1e-9)
    np.testing.assert_allclose(dX, wanted["dX"], atol=1e-9)
    for field in params._fields:
        np.testing.assert_allclose(getattr(dparams, field), wanted["d" + field], atol=1e-9, err_msg=field)


LAYERS = [
    GraphConvolution(4, 6),
    GraphConvolution(4, 6, "rows"),
    *(kind(4, 6, heads, average) for kind in (GAT, GATv2) for heads, average in ((1, False), (3, False), (2, True))),
]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("batch", [(), (2, 2)])
def test_every_gradient(layer, batch):
    rng = np.random.default_rng(3)
    edges = edges_of(rng.integers(0, 9, (25, 2)), 9)
    params = random_like(layer.init(rng, np.float64), rng)
    check_pullback(partial(layer, edges=edges), params, rng.standard_normal((*batch, 9, 4)))


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_dtype_is_kept_and_init_keeps_the_size(layer, dtype):
    rng = np.random.default_rng(3)
    n = 400
    params, X = layer.init(rng, dtype), rng.standard_normal((n, 4)).astype(dtype)
    Y, back = layer(params, X, edges_of(np.zeros((0, 2), int), n, loops=True))
    dparams, dX = back(Y)
    assert {leaf.dtype for leaf in (Y, dX, *dparams)} == {np.dtype(dtype)}
    assert 0.4 < Y.std() < 2


def test_a_width_that_heads_do_not_divide_is_refused():
    for kind in (GAT, GATv2, partial(GraphAttention, 8)):
        with pytest.raises(ValueError, match="width: 8 is not divisible into 3 heads"):
            kind(3) if isinstance(kind, partial) else kind(8, 8, 3)
    assert GAT(8, 8, 3, average=True).init(np.random.default_rng(0)).W.shape == (8, 24)


def ranking(A):
    return np.argsort(A, -1)


def test_in_gat_all_nodes_rank_the_others_alike_and_in_gatv2_they_do_not():
    """LeakyReLU rises, and so does what a node adds to all scores: the order is that of a₂·v_j."""
    rng = np.random.default_rng(4)
    n, X = 20, rng.standard_normal((20, 6))
    complete = edges_of_mask(np.ones((n, n), bool))
    orders = {}
    for kind in (GAT, GATv2):
        layer = kind(6, 8)
        params = random_like(layer.init(rng, np.float64), rng)
        A = layer(params, X, complete)[1].A.reshape(n, n)
        orders[kind] = len(np.unique(ranking(A), axis=0))
        if kind is GAT:
            g = (X @ params.W) @ params.a_2[0]
            assert (ranking(A) == np.argsort(g)).all()
    assert orders[GAT] == 1
    assert orders[GATv2] > 10


def test_gat_is_gatv2_with_one_unit_where_values_are_their_own():
    """Scores LeakyReLU(f_i + g_j) are those of one hidden unit."""
    rng = np.random.default_rng(5)
    X, layer = rng.standard_normal((7, 6)), GAT(6, 4)
    params = random_like(layer.init(rng, np.float64), rng)
    f, g, V, a = layer.parts(params, (X @ params.W)[None])
    S = np.where(f + g.mT > 0, f + g.mT, 0.2 * (f + g.mT))[0]
    A = np.exp(S) / np.exp(S).sum(-1, keepdims=True)
    Y, back = layer(params, X, edges_of_mask(np.ones((7, 7), bool)))
    np.testing.assert_allclose(back.A.reshape(7, 7), A, atol=1e-13)
    np.testing.assert_allclose(Y, A @ V[0] + params.b, atol=1e-13)
    assert a.tolist() == [[1.0]]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("radius", [None, 3])
@pytest.mark.parametrize("dynamic", [False, True])
def test_among_tokens_it_is_the_layer_on_the_graph_of_a_pattern(dynamic, radius, causal):
    rng = np.random.default_rng(6)
    n, X = 17, rng.standard_normal((2, 17, 8))
    seen = (Window(n if radius is None else radius).graph(n, causal=causal)).A
    mixer, layer = GraphAttention(8, 2, radius, dynamic), (GATv2 if dynamic else GAT)(8, 8, 2)
    params = random_like(mixer.init(rng, np.float64), rng)
    np.testing.assert_allclose(mixer(params, X, causal=causal)[0], layer(params, X, edges_of_mask(seen))[0], atol=1e-12)
    mean, flat = GraphMean(8, radius), GraphConvolution(8, 8, "rows")
    params = random_like(mean.init(rng, np.float64), rng)
    np.testing.assert_allclose(mean(params, X, causal=causal)[0], flat(params, X, edges_of_mask(seen))[0], atol=1e-12)


def test_a_language_model_of_each():
    """By name and option, on its own and in turns."""
    for name in ("gat", "gat:radius=5,dynamic=True", "gcn:radius=5", ("gat", "softmax")):
        model = LanguageModel(20, 32, 8, 2, 2, attention=name)
        params = model.init(np.random.default_rng(0))
        logits, back = model(params, np.arange(12)[None])
        assert np.isfinite(logits).all()
        assert np.isfinite(back(logits).stack.blocks[0].attention[0]).all()


@pytest.mark.parametrize(("dynamic", "numbers"), [(False, 2 + 6), (True, 6)])
def test_what_is_kept_of_a_token_is_kept_once(dynamic, numbers):
    """Of each of two heads a number for the scores, and three of V; in GATv2 the keys are the values."""
    layer = GraphAttention(6, 2, dynamic=dynamic)
    X = np.random.default_rng(0).standard_normal((1, 5, 6))
    _, state = layer.step(layer.init(np.random.default_rng(1), np.float64), X)
    assert tree_bytes((state.K, state.V)) == numbers * state.K.shape[-2] * X.itemsize
