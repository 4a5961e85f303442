"""ETC: labels and pairs in loops, dense attention as its limiting case, and the rows that a model puts in front."""

import math

import numpy as np
import pytest

from minitransformer import check_pullback, random_like
from minitransformer.attention import (
    ETC,
    MultiHeadAttention,
    dot_product_attention,
    etc_attention,
    labelled_attention,
)
from minitransformer.attention.sparse.etc import from_neighbours, labels_of, with_neighbours
from minitransformer.models import BERT, Block, EncoderDecoder, LanguageModel, SequenceModel, Stack

pytestmark = pytest.mark.usefixtures("definitions")

B, H, D = 2, 3, 4


def test_how_labels_start(rng):
    R, b = ETC(20, 5, clip=10).init(rng, np.float64)
    assert R.shape == (5, 24, 20)
    assert R.std() == pytest.approx(0.02, rel=0.1)
    assert not b.any()


def arrays(n, clip=2, seed=0):
    """Q, K, V, and of the labels R and b."""
    rng = np.random.default_rng(seed)
    Q, K, V = rng.standard_normal((3, B, H, n, D))
    return Q, K, V, rng.standard_normal((H, 2 * clip + 4, D)), rng.standard_normal((H, 2 * clip + 4))


def test_labels_one_by_one():
    """Words 0 … 2 clip; then word to global, global to word, global to global."""
    labels = labels_of(np.arange(6)[:, None], np.arange(6), global_tokens=2, clip=1)
    want = [
        [5, 5, 4, 4, 4, 4],
        [5, 5, 4, 4, 4, 4],
        [3, 3, 1, 2, 2, 2],
        [3, 3, 0, 1, 2, 2],
        [3, 3, 0, 0, 1, 2],
        [3, 3, 0, 0, 0, 1],
    ]
    np.testing.assert_array_equal(labels, want)


@pytest.mark.parametrize(
    ("n", "radius", "global_tokens", "clip"), [(25, 3, 2, 2), (40, 17, 1, 5), (9, 0, 3, 0), (3, 2, 5, 1)]
)
def test_in_loops(n, radius, global_tokens, clip):
    Q, K, V, R, b = five = arrays(n, clip)
    Y, _ = etc_attention(*five, global_tokens=global_tokens, radius=radius)
    for s, h, i in np.ndindex(B, H, n):
        weights = {}
        for j in range(n):
            if i < global_tokens and j < global_tokens:
                label = 2 * clip + 3
            elif i < global_tokens:
                label = 2 * clip + 2
            elif j < global_tokens:
                label = 2 * clip + 1
            elif abs(i - j) <= radius:
                label = min(max(j - i, -clip), clip) + clip
            else:
                continue
            q = Q[s, h, i]
            weights[j] = math.exp((q @ (K[s, h, j] + R[h, label]) + b[h, label]) / math.sqrt(D))
        want = sum(w * V[s, h, j] for j, w in weights.items()) / sum(weights.values())
        assert np.allclose(Y[s, h, i], want, atol=1e-13)


def test_gradient_of_labels(rng):
    Q, K, V, R, b = arrays(6)
    label = rng.integers(0, 8, (6, 7))
    K, V = rng.standard_normal((2, B, H, 7, D))
    mask = rng.random((B, 1, 6, 7)) < 0.7
    check_pullback(lambda *five: labelled_attention(*five, label, mask=mask, scale=0.3), Q, K, V, R, b, entries=12)


def test_the_scale_is_that_of_all_three_parts_of_a_score(rng):
    """s (⟨q, k + r⟩ + b): three times 1/√d is what queries and numbers of three times the size give."""
    Q, K, V, R, b = arrays(6)
    label = rng.integers(0, 8, (6, 6))
    Y, _ = labelled_attention(Q, K, V, R, b, label, scale=3 / math.sqrt(D))
    np.testing.assert_allclose(Y, labelled_attention(3 * Q, K, V, R, 3 * b, label)[0], rtol=0, atol=1e-13)


def test_a_large_radius_without_labels_is_dense():
    """On the concatenation [g; x]."""
    Q, K, V, R, b = arrays(50)
    Y, _ = etc_attention(Q, K, V, 0 * R, 0 * b, global_tokens=4, radius=50)
    assert np.allclose(Y, dot_product_attention(Q, K, V)[0], atol=1e-13)


def test_the_way_back_from_the_neighbours(rng):
    """⟨f(X), Z⟩ = ⟨X, fᵀ(Z)⟩."""
    X, Z = rng.standard_normal((2, 4, 5, 3)), rng.standard_normal((2, 4, 15, 3))
    assert np.isclose((with_neighbours(X) * Z).sum(), (X * from_neighbours(Z)).sum())


def test_memory_grows_with_n():
    sizes = []
    for n in (500, 1000, 2000):
        _, pullback = etc_attention(*arrays(n), global_tokens=2, radius=20)
        sizes.append(pullback.of_words.A.nbytes + pullback.of_globals.A.nbytes)
    assert sizes[2] < 2.1 * sizes[1] < 2.1 * 2.1 * sizes[0]


# ----------------------------------------------------------------------------------------------- rows in front


def model(**options):
    return SequenceModel(40, 24, 12, 2, 2, 10, "etc:radius=2,global_tokens=3,clip=2", **options)


def test_a_model_puts_them_in_front_and_drops_them(rng):
    etc = model(outputs="none")
    params = random_like(etc.init(rng, np.float64), rng)
    assert params.stack.prefix.shape == (3, 12)
    tokens = rng.integers(0, 40, (2, 9))
    Y, _ = etc(params, tokens)
    assert Y.shape == (2, 9, 12)
    X, _ = etc._embed(params, tokens)
    X = np.concatenate([np.stack([params.stack.prefix] * 2), X], 1)
    for block, own in zip(etc.body.blocks, params.stack.blocks, strict=True):
        X, _ = block(own, X)
    X, _ = etc.body._last_norm(params.stack, X)
    assert np.allclose(Y, X[:, 3:], atol=1e-13)


def test_the_gradient_of_a_model(rng):
    etc = model(outputs=2)
    params, tokens = random_like(etc.init(rng, np.float64), rng), rng.integers(0, 40, (2, 9))
    keys = [f"params.stack.blocks.{k}.attention.b_k" for k in range(2)]
    lengths = np.array([9, 5])

    def answers(params):
        logits, pullback = etc(params, tokens, lengths=lengths)
        there = np.arange(9) < lengths[:, None]
        return logits * there[..., None], lambda d: pullback(d * there[..., None])

    check_pullback(answers, params, zero=keys, entries=3)


@pytest.mark.parametrize("shape", [(1, 1, 9), (1, 9, 9), (9, 9), (9,), (1, 9, 1), (9, 1), (1, 1)])
def test_masks_move_along(shape, rng):
    """What stands in front is seen by all, and sees what anybody sees."""
    layer = MultiHeadAttention(12, 2)
    bare = Stack((Block(layer),) * 2)

    class Fronted(MultiHeadAttention):
        prefix = 3

    fronted = Stack((Block(Fronted(12, 2)),) * 2)
    params = random_like(fronted.init(rng, np.float64), rng)
    X = rng.standard_normal((2, 9, 12))
    mask = rng.random((2, *shape) if len(shape) > 2 else shape) < 0.7
    pairs = np.ones((*mask.shape[:-2], 12, 12), bool)
    pairs[..., 3:, 3:] = mask
    if mask.ndim < 2 or mask.shape[-2] == 1:
        pairs[..., :3, 3:] = mask
    Y, _ = fronted(params, X, mask=mask)
    whole = np.concatenate([np.stack([params.prefix] * 2), X], 1)
    assert np.allclose(Y, bare(params._replace(prefix=None), whole, mask=pairs)[0][:, 3:], atol=1e-13)


def test_in_an_encoder_and_in_a_bert(rng):
    tokens = rng.integers(0, 40, (2, 9))
    bert = BERT(40, 24, 12, 1, 2, 10, attention="etc:radius=2")
    assert bert(bert.init(rng), tokens)[0].shape == (2, 9, 12)
    stack = Stack((Block(MultiHeadAttention(12, 2, core=ETC(6, 2, 2, 3, 2))), Block(MultiHeadAttention(12, 2))))
    assert stack.prefix == Stack(stack.blocks[::-1]).prefix == 3, "a dense block sees them as any other row"
    params, X = stack.init(rng, np.float64), rng.standard_normal((2, 9, 12))
    np.testing.assert_array_equal(stack(params, X, mask=np.ones((1, 1), bool))[0], stack(params, X)[0])
    with pytest.raises(ValueError, match="2 and 3 tokens in front"):
        Stack(tuple(Block(MultiHeadAttention(12, 2, core=ETC(6, 2, global_tokens=g))) for g in (3, 2)))


def test_what_can_not_be(rng):
    with pytest.raises(ValueError, match="ETC can't be causal"):
        LanguageModel(attention="etc")
    with pytest.raises(ValueError, match="ETC can't be causal"):
        EncoderDecoder(40, attention="etc")
    with pytest.raises(ValueError, match="global_tokens: 0 should be at least 1"):
        ETC(4, 2, global_tokens=0)
    Q, K, V, R, b = arrays(5)
    with pytest.raises(ValueError, match="7 labels should be even"):
        etc_attention(Q, K, V, R[:, 1:], b[:, 1:])
    with pytest.raises(ValueError, match="2 labels should be even, and at least 4"):
        etc_attention(Q, K, V, R[:, :2], b[:, :2])
    with pytest.raises(TypeError, match="should have one dtype"):
        etc_attention(Q, K, V, R.astype(np.float32), b)
    with pytest.raises(ValueError, match="a mask can hide keys"):
        etc_attention(*arrays(5), mask=np.ones((5, 5), bool))
    with pytest.raises(ValueError, match="label: 0 … 8 is not within 0 … 7"):
        labelled_attention(*arrays(5), np.eye(5, dtype=int) * 8)
    layer, X = MultiHeadAttention(12, 2, core=ETC(6, 2)), rng.standard_normal((2, 5, 12))
    with pytest.raises(ValueError, match="K: 7 keys for 5 queries"):
        layer(layer.init(rng, np.float64), X, memory=X[:, :2])
