"""What the captions of chapter 10 claim of its records: orderings that hold on any machine, and seeds that agree."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from minitransformer.attention import Window
from minitransformer.experiments.linear_time import HEADS, MATRICES, ROOM
from minitransformer.experiments.long_text import MIXED, WINDOW
from minitransformer.figures import linear_time, long_text


@pytest.fixture(scope="module")
def times():
    return linear_time.data()


def test_the_matrix_grows_with_the_square_and_the_others_with_the_length(times):
    for kind, seconds in times.seconds.items():
        growth = seconds[-1] / seconds[-2], times.MB[kind][-1] / times.MB[kind][-2]
        assert times.n[kind][-1] == 2 * times.n[kind][-2]
        if kind == "every matrix":
            assert growth[1] > 3.3, kind
        else:
            assert growth[1] < 2.2, kind
        if kind in ("performer", "linear", "values"):
            assert seconds[-1] < 1.8 * 8 * seconds[-4], f"{kind}: three doublings"


def test_where_the_matrices_no_longer_fit(times):
    needed = MATRICES * HEADS * 4 * times.too_long**2
    assert needed > ROOM
    assert times.MB["every matrix"][-1] * 2**20 < ROOM
    assert times.MB["every matrix"][-1] * 2**20 > 0.8 * needed / 4, "as many matrices as are counted"


def at(times):
    """Seconds by kind and length."""
    return {kind: dict(zip(times.n[kind], times.seconds[kind], strict=True)) for kind in times.n}


def test_attention_without_a_matrix_is_faster_in_the_end_and_nothing_is_faster_than_none(times):
    seconds, longest = at(times), times.n["in tiles"][-1]
    assert longest == 32768
    assert seconds["in tiles"][longest] > 2 * seconds["performer"][longest]
    assert seconds["performer"][512] > seconds["in tiles"][512]
    assert seconds["performer"][16384] < seconds["in tiles"][16384]
    above = {kind: np.mean([seconds[kind][n] / seconds["values"][n] for n in times.n[kind]]) for kind in times.n}
    assert above["linear"] < 1.3, "it lies close to the lowest line"
    assert above["linear"] < above["performer"] - 0.4
    for kind in ("in tiles", "performer", "linear"):
        assert above[kind] > 0.95
    assert times.n["every matrix"][-1] == 4096
    picture = linear_time.draw(times).axes[0]
    assert len(picture.lines) == len(times.n)


def test_every_kind_learns_and_the_record_says_how_much(times):
    found = long_text.data()
    for attention, looks in found.looks.items():
        assert looks.shape[0] == 3
        assert (looks[:, -1] < looks[:, 0]).all(), attention
    window, dense, *others = (
        found.bits[attention]
        for attention in ("window:radius=32", "softmax", "linear", "performer:redraw=100", "performer:redraw=None")
    )
    assert window.max() < dense.min()
    assert dense.max() < np.min(others)
    assert np.ptp([bits.mean() for bits in others]) < 0.06
    assert (found.bits["performer:redraw=100"] > found.bits["performer:redraw=None"]).all(), "with each seed"
    late = list(found.steps).index(120)
    for attention in ("linear", "performer:redraw=100", "performer:redraw=None"):
        assert 0.05 < (found.looks[attention][:, late] - found.looks[attention][:, -1]).mean() < 0.25
    ax = long_text.draw(found).axes[0]
    assert len(ax.lines) == 2 * (len(found.looks) - 1)  # one of the two Performers
    seen = Window(32)(100, 100, causal=True).mask.sum(-1).max()  # 32 tokens back, and the token itself
    assert f"window of {seen}" in [name.get_text() for name in ax.texts]
    colours = {name.get_text(): name.get_color() for name in ax.texts}
    for line in linear_time.draw(times).axes[0].lines:  # the figure before it
        name = {"dense, every matrix formed": "dense", "linear transformer": "linear"}.get(
            line.get_label(), line.get_label()
        )
        assert to_rgb(colours.get(name, line.get_color())) == to_rgb(line.get_color()), name


def test_a_window_in_front_mends_most_of_it():
    found = long_text.data()
    alone = min(found.bits[attention].min() for attention in ("linear", "performer:redraw=None"))
    for mixed in MIXED:
        assert found.bits[WINDOW].max() < found.bits[mixed].min()
        assert found.bits[mixed].max() < found.bits["softmax"].min()
        assert found.bits[mixed].max() < alone - 0.6
