"""A number for each offset: the curves that are drawn are those of the encodings, and do what the caption says."""

import re

import numpy as np
import pytest

from minitransformer.figures import offset_bias
from minitransformer.figures.offset_bias import FAR, QUERIES, THRESHOLD
from minitransformer.positions import FIRE, ALiBi, KerpleLog, KerplePower, NoParams
from minitransformer.positions.fire import START, FIREParams
from minitransformer.positions.kerple import KerpleParams


@pytest.fixture(scope="module")
def d():
    return offset_bias.data()


def curve(d, name):
    (found,) = (curve for key, curve in d.curves.items() if re.search(rf"{name}\b", key))
    return found


def test_buckets_get_broader_and_behind_is_not_ahead(d):
    for side in (d.buckets[d.both < 0][::-1], d.buckets[d.both > 0]):
        widths = np.bincount(side)[np.unique(side)][:-1]  # the last one goes on beyond the figure
        assert (widths[:7] == 1).all()
        assert (np.diff(widths[7:]) >= 0).all()
        assert widths[-1] > 8
    assert not set(d.buckets[d.both < 0]) & set(d.buckets[d.both > 0])


def test_the_curves_are_those_of_the_encodings(d):
    n = FAR + 1
    one = np.ones(1)
    alibi, _ = ALiBi(2).bias(NoParams(), n, n, causal=True)
    np.testing.assert_allclose(curve(d, "ALiBi"), alibi[0, :n])
    log, _ = KerpleLog(1).bias(KerpleParams(p=one, a=one), n, n, causal=True)
    np.testing.assert_allclose(curve(d, "ln"), log[0, :n])
    power, _ = KerplePower(1).bias(KerpleParams(p=one / 4, a=one), n, n, causal=True)
    np.testing.assert_allclose(curve(d, "1/4"), power[0, :n])
    net = FIREParams(one, THRESHOLD / START * one, np.ones((1, 1)), np.zeros(1), np.full((1, 1), -4.0), np.zeros(1))
    zeros = np.zeros((1, max(QUERIES) + 1, 2))
    S, _ = FIRE(1, 1).scores(net, zeros, zeros)
    for i in QUERIES:
        drawn = curve(d, f"query at {i}")
        row = S[0, i, max(i - FAR, 0) : i + 1]
        np.testing.assert_allclose(drawn[len(drawn) - len(row) :], row)
        assert np.isnan(drawn[: len(drawn) - len(row)]).all()


def test_they_fall_and_for_fire_the_same_distance_costs_a_later_query_less(d):
    for found in d.curves.values():
        assert (np.diff(found[~np.isnan(found)]) > 0).all()
    early, late = (curve(d, f"query at {i}") for i in QUERIES)
    there = ~np.isnan(early) & (d.behind < 0)
    assert (late[there] > early[there]).all()
    assert early[~np.isnan(early)][0] == pytest.approx(-4, abs=1e-5)  # the farthest that the first of them sees


def test_alibi_is_a_line_and_the_others_are_steep_first(d):
    assert np.ptp(np.diff(curve(d, "ALiBi"))) < 1e-12
    for name in ("ln", "1/4"):
        assert (np.diff(curve(d, name), 2) > 0).all()


@pytest.fixture(scope="module")
def panels(d):
    fig = offset_bias.draw(d)
    fig.draw_without_rendering()
    return fig.axes


def test_the_strip_has_a_field_for_each_bucket_in_a_colour_of_its_own_and_no_gap(d, panels):
    fields = sorted(panels[0].patches, key=lambda field: field.get_x())
    starts = [field.get_x() for field in fields]
    ends = [field.get_x() + field.get_width() for field in fields]
    assert [int(start + 0.5) for start in starts] == [
        o for o, new in zip(d.both, np.diff(d.buckets, prepend=-1), strict=True) if new
    ]
    assert ends == [*starts[1:], FAR + 0.5]
    colours = [field.get_facecolor() for field in fields]
    assert len(set(colours)) == len(fields) == len(set(d.buckets)) == 25
    for field in fields:
        red, _, blue, _ = field.get_facecolor()
        assert (blue < red) == (field.get_x() < 0.4)  # orange behind; offset 0 is the first bucket there


def test_a_number_on_the_strip_is_the_bucket_under_it_and_fits_into_its_field(d, panels):
    *numbers, near = panels[0].texts
    assert len(numbers) == 10
    fields = [field.get_window_extent() for field in panels[0].patches]
    for text in numbers:
        assert d.buckets[d.both == round(text.get_position()[0])] == [int(text.get_text())]
        (box,) = (box for box in fields if box.x0 < text.get_window_extent().x0 < box.x1)
        assert text.get_window_extent().x1 < box.x1
    assert near.get_text() == "7 … 1, 0, 17 … 23: one offset each"
    alone = d.buckets[np.bincount(d.buckets)[d.buckets] == 1]
    assert alone.tolist() == [*range(7, -1, -1), *range(17, 24)]


def test_it_draws_five_curves_with_their_names_at_them_and_no_line_through_a_name(d, panels):
    _, below = panels
    assert [line.get_label() for line in below.lines] == list(d.curves)
    assert [text.get_text().split("\n")[0] for text in below.texts] == list(d.curves)
    for line, text in zip(below.lines, below.texts, strict=True):
        assert line.get_color() == text.get_color()
    frame = below.get_window_extent()
    for box in (text.get_window_extent() for text in below.texts):
        assert frame.x0 < box.x0 < box.x1 < frame.x1
        assert frame.y0 < box.y0 < box.y1 < frame.y1
        for line in below.lines:
            x, y = below.transData.transform(line.get_xydata()).T
            dense = np.linspace(box.x0, box.x1, 50)
            there = np.interp(dense, x[~np.isnan(y)], y[~np.isnan(y)], left=np.nan)
            assert not ((box.y0 < there) & (there < box.y1)).any()


def test_the_curves_fill_the_height_of_their_panel(d, panels):
    low, high = panels[1].get_ylim()
    lowest = min(np.nanmin(found) for found in d.curves.values())
    assert low < lowest
    assert -lowest > 0.85 * (high - low)
