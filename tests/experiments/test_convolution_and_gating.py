"""What chapter 15 says of its three records holds in every row: orders and margins, no digits."""

import numpy as np
import pytest

from minitransformer import experiments
from minitransformer.experiments.gates import GATES, PLAIN
from minitransformer.experiments.heads_on_digits import OFFSETS, TABLES, drawn, model_of, weights
from minitransformer.experiments.token_mixing import explained, toeplitz
from minitransformer.pullback import tree_get


def by_kind(name, key):
    found = {}
    for trial, result in experiments.load(name):
        found.setdefault(trial.kind, []).append(result.get(key))
    return found


def test_gates_at_equal_parameters():
    bits, parameters = by_kind("gates", "bits"), by_kind("gates", "parameters")
    assert set(bits) == {*PLAIN, *GATES}
    sizes = [size for of in parameters.values() for size in of]
    assert max(sizes) < 1.001 * min(sizes)
    better = [kind for kind in GATES if kind != "glu"]
    assert max(max(bits[kind]) for kind in better) + 0.01 < min(bits["gelu"])
    assert max(bits["gelu"]) < min(bits["relu"])
    for seed in range(3):
        assert bits["glu"][seed] > bits["relu"][seed]


def test_one_matrix_for_every_text():
    bits, near = by_kind("token_mixing", "bits"), by_kind("token_mixing", "explained")
    for seed in range(3):
        assert abs(bits["paper"][seed] - bits["softmax"][seed]) < 0.1
        assert bits["source"][seed] > bits["paper"][seed] + 0.15
        assert bits["itself"][seed] > bits["source"][seed] + 1
    for form in ("paper", "source"):
        assert np.min(near[form], 0)[:2].min() > 0.95


def test_what_explained_means():
    rng = np.random.default_rng(0)
    M = sum(rng.standard_normal() * np.eye(40, k=-o) for o in range(40))
    assert explained(M) == pytest.approx(1)
    np.testing.assert_allclose(toeplitz(M), M, atol=1e-14)
    noise = [explained(np.tril(np.random.default_rng(k).standard_normal((40, 40)))) for k in range(5)]
    assert max(noise) < 0.15


def test_what_a_head_looks_at_is_counted_from_its_pixel():
    """The nine shifts of the convolution, seen from row 4 and column 4, both counted from 0."""
    A = weights(tree_get(drawn("shifts", np.random.default_rng(0)), TABLES[0]))
    np.testing.assert_allclose(A.sum((1, 2)), 1)
    for head, (y, x) in zip(A, OFFSETS, strict=True):
        assert np.unravel_index(head.argmax(), head.shape) == (4 + y, 4 + x)


def test_heads_on_digits():
    right, pixels = by_kind("heads_on_digits", "right"), by_kind("heads_on_digits", "pixels")
    for seed in range(3):
        for kind in ("places", "both"):
            assert right[kind][seed] > right["shifts"][seed] + 0.03
        assert right["shifts"][seed] > right["content"][seed] + 0.2
    assert np.mean(right["both"]) < np.mean(right["places"])
    assert np.max(pixels["shifts"]) < 1.05
    for kind in ("places", "both"):
        assert np.min(pixels[kind]) > 2  # no head has become a shift
    assert np.min(pixels["places"]) > 5


def test_where_content_is_out_it_stays_out():
    """With queries and keys of zero their weights get no gradient, and so the table is all that the heads of "places" learn."""
    model, params = model_of("places"), drawn("places", np.random.default_rng(0))
    logits, pullback = model(params, np.arange(64)[None] % 17)
    grads = pullback(np.random.default_rng(1).standard_normal(logits.shape).astype(np.float32))
    for name in ("W_q", "W_k", "b_q", "b_k"):
        assert not tree_get(grads, f"stack.blocks.0.attention.{name}").any()
    assert tree_get(grads, "stack.blocks.0.attention.core.table").any()
