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


def test_it_draws_five_curves(d):
    _, below = offset_bias.draw(d).axes
    assert [line.get_label() for line in below.lines] == list(d.curves)
