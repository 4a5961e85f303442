"""The pictures of the last chapter: what their captions and the text around them say, with margins."""

import numpy as np
import pytest

from minitransformer.experiments.table import BOTH, table
from minitransformer.experiments.which_cost import LENGTHS
from minitransformer.figures import which_front, which_pays, which_rope


@pytest.fixture(scope="module")
def front():
    return which_front.data()


@pytest.fixture(scope="module")
def pays():
    return which_pays.data()


def test_nothing_is_faster_and_better_than_a_kind_on_the_front(front):
    for one in front.at.values():
        for name in one.front:
            k = one.names.index(name)
            assert not ((one.times < one.times[k]) & (one.quality > one.quality[k])).any()
        assert list(one.times[[one.names.index(name) for name in one.front]]) == sorted(
            one.times[[one.names.index(name) for name in one.front]]
        )


def test_dense_attention_is_where_its_time_is_one(front):
    for one in front.at.values():
        assert one.times[one.names.index("softmax")] == pytest.approx(1)


def test_every_kind_of_the_front_is_named_in_its_panel(front):
    fig = which_front.draw(front)
    for ax, n in zip(fig.axes, which_front.SHOWN, strict=True):
        assert [text.get_text().replace("\n", "") for text in ax.texts] == list(front.at[n].front)


def test_the_delta_rule_is_on_the_front_at_every_length_and_dense_attention_at_none(front):
    for one in front.at.values():
        assert "delta" in one.front
        assert "softmax" not in one.front


def test_what_was_learned_is_with_the_better_positions(front):
    chosen = table().with_better_positions()
    for one in front.at.values():
        assert one.quality.tolist() == [chosen.quality(chosen.rows[name]) for name in one.names]


def test_a_kind_pays_forwards_about_where_it_pays_both_ways_or_earlier_or_never(pays):
    assert set(pays.until) <= set(LENGTHS)
    known = pays.pays[~np.isnan(pays.pays)]
    assert (known >= LENGTHS[0]).all()
    assert (known <= LENGTHS[-1]).all()


def test_windows_and_sums_pay_from_short_texts_on_and_what_forms_all_pairs_never_does(pays):
    at = dict(zip(pays.names, pays.pays[:, 1], strict=True))
    assert all(at[name] <= 2048 for name in ("window", "local", "linear", "retnet"))
    assert all(np.isnan(at[name]) for name in ("gat", "gcn", "gmlp", "hopfield"))


def test_a_ring_stands_where_a_kind_pays_in_training_on_the_other_make(pays):
    found, names = table("zen-5"), list(pays.names)
    assert pays.other[names.index("routing")] == found.pays_from(found.rows["routing"], BOTH)
    assert np.isnan(pays.other[names.index("latent")])
    (drawn,) = (line for line in which_pays.draw(pays).axes[0].lines if line.get_markerfacecolor() == "none")
    late = [not begin < 1.1 * LENGTHS[0] for begin in pays.pays.max(1)]
    assert np.array_equal(drawn.get_xdata(), pays.other[late], equal_nan=True)


def test_each_kind_has_a_row_or_is_named_above_as_one_that_pays_from_the_shortest_text_on(pays):
    fig = which_pays.draw(pays)
    named = fig.get_suptitle().replace("\n", " ").split(", ")
    all_of_them, *labels = [text.get_text() for text in fig.axes[0].get_yticklabels()]
    assert sorted([*named, *labels]) == sorted(pays.names)
    assert all_of_them == f"these {len(named)}"
    assert len(fig.axes[0].get_legend().get_texts()) == 4, "bars, strokes, crosses, and rings"
    at = dict(zip(pays.names, pays.pays, strict=True))
    assert all((at[name] < 1.1 * LENGTHS[0]).all() for name in named)
    assert not any((at[name] < 1.1 * LENGTHS[0]).all() for name in labels)


def test_a_dot_for_each_kind_that_was_run_with_both_positions_and_better_is_up_and_right():
    found, shown = table(), which_rope.data()
    turned, fig = found.with_rope(), which_rope.draw(shown)
    for ax, (task, names) in zip(fig.axes, shown.names.items(), strict=True):
        dots = ax.lines[1].get_xydata()
        assert len(dots) == len(names) == (29 if task == "text" else 34)
        assert np.array_equal(dots[:, 0], [found.rows[name].mean(task) for name in names])
        assert np.array_equal(dots[:, 1], [turned.rows[name].mean(task) for name in names])
        (low, high), (bottom, top) = sorted(ax.get_xlim()), sorted(ax.get_ylim())
        assert low < dots[:, 0].min() <= dots[:, 0].max() < high
        assert bottom < dots[:, 1].min() <= dots[:, 1].max() < top
        assert ax.xaxis_inverted() == ax.yaxis_inverted() == (task == "text")
        assert shown.noise[task] == found.noise(task)
        (band,) = (each.get_paths()[0].vertices for each in ax.collections)
        assert np.abs(np.diff(band)).max() == pytest.approx(shown.noise[task])
        for text in ax.texts:
            row = {"dense": "softmax"}.get(text.get_text(), text.get_text())
            assert text.xy == tuple(of.rows[row].mean(task) for of in (found, turned))


def test_in_the_text_nearly_all_dots_lie_above_the_band_and_in_recall_nearly_all_within():
    shown = which_rope.data()
    gain = {task: np.diff(means)[:, 0] / shown.noise[task] for task, means in shown.means.items()}
    assert (gain["text"] < -1).sum() == 28
    assert (abs(gain["recall"]) < 1).sum() == 30
    assert ((gain["listops"] > 1).sum(), (gain["listops"] < -1).sum()) == (13, 0)
    assert ((gain["digits"] > 1).sum(), (gain["digits"] < -1).sum()) == (1, 7)
