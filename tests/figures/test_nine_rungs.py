"""What the caption of fig_nine_rungs claims: recomputed on its rungs, and looked for in the drawing."""

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import FancyBboxPatch

from minitransformer.figures import nine_rungs
from minitransformer.figures.nine_rungs import HEADS, NEW, PALE, ROW, SAID, WIDTH, N, candidates
from minitransformer.pullback import chain


@pytest.fixture(scope="module")
def data():
    return nine_rungs.data()


def run(data, number, X=None):
    return chain(*data.layers[number])(data.params[number], data.X if X is None else X)


def softmax(S):
    E = np.exp(S - S.max(-1, keepdims=True))
    return E / E.sum(-1, keepdims=True)


def numbers(data, fact):
    return [number for number, rung in data.rungs.items() if getattr(rung, fact)]


# ------------------------------------------------------------------------------------- what is new on a rung


def test_what_is_new_on_each_rung_and_from_rung_5_on_it_is_one_thing(data):
    assert {number: data.new(number) for number in data.rungs} == {
        1: set(),
        2: {"summed"},
        3: {"maps", "asks"},
        4: {"chained", "asks"},
        5: {"asks"},
        6: {"maps"},
        7: {"ahead"},
        8: {"positions"},
        9: {"network"},
    }


def test_the_chain_ends_on_rung_4(data):
    """A candidate that waits for rows changes with every token before it; one that doesn't, with its own token alone."""
    for number, rung in data.rungs.items():
        before = candidates(data.layers[number], data.params[number], data.X)
        changes = np.zeros((N, N), bool)
        for token in range(N):
            other = data.X + np.eye(N)[:, token, None]
            after = candidates(data.layers[number], data.params[number], other)
            changes[:, token] = (before != after).any(-1)
        assert rung.chained == (number <= 3)
        assert np.array_equal(changes, np.tri(N, dtype=bool) if rung.chained else np.eye(N, dtype=bool))


def test_token_4_is_read_from_rung_7_on_and_the_first_three_everywhere(data):
    """No gradient, and no change of any size, below; both above."""
    for number, rung in data.rungs.items():
        later = data.X.copy()
        later[ROW + 1] += 1
        same = np.array_equal(run(data, number)[0][ROW], run(data, number, later)[0][ROW])
        assert rung.depends.tolist() == [True, True, True, number >= 7]
        assert rung.ahead == (number >= 7) == (not same)


def test_weights_of_the_pair_are_d_in_a_gru_then_one_then_one_for_each_head(data):
    assert [rung.maps for rung in data.rungs.values()] == [WIDTH] * 2 + [1] * 3 + [HEADS] * 4
    for number in range(3, 10):
        np.testing.assert_allclose(data.rungs[number].weights.sum(-1), 1, rtol=0, atol=1e-14)


def test_heads_have_weights_of_their_own_that_can_be_told_apart_in_the_drawing(data):
    first, second = data.rungs[6].weights
    assert abs(first - second).max() > 0.15
    assert min(rung.weights[:, rung.depends].min() for rung in data.rungs.values()) > 0.04


def test_unrolled_is_the_same_state_and_a_sum(data):
    (one, _), (two, _) = run(data, 1), run(data, 2)
    np.testing.assert_allclose(one, two, rtol=0, atol=1e-14)
    assert numbers(data, "summed") == list(range(2, 10))
    rung, c = data.rungs[2], candidates(data.layers[2], data.params[2], data.X)
    np.testing.assert_allclose((rung.weights.T * c).sum(0), two[ROW], rtol=0, atol=1e-14)
    u, steps = data.rungs[1].gates, one
    np.testing.assert_allclose(u[ROW] * steps[ROW - 1] + (1 - u[ROW]) * c[ROW], steps[ROW], rtol=0, atol=1e-14)


def test_the_token_asks_then_the_candidate_then_a_query(data):
    c = {number: candidates(data.layers[number], data.params[number], data.X) for number in (3, 4, 5)}
    p, (_, attend) = data.params[3][0], data.params[5]
    seen = slice(0, ROW + 1)
    found = {
        "token": softmax((data.X[ROW] @ p.W_q) @ c[3][seen].T / np.sqrt(WIDTH)) @ c[3][seen],
        "candidate": softmax(c[4][ROW] @ c[4][seen].T / np.sqrt(WIDTH)) @ c[4][seen],
        "query": softmax(c[5][ROW] @ attend.W_q @ (c[5][seen] @ attend.W_k).T / np.sqrt(WIDTH))
        @ (c[5][seen] @ attend.W_v),
    }
    for number, (asks, row) in zip((3, 4, 5), found.items(), strict=True):
        assert data.rungs[number].asks == asks
        np.testing.assert_allclose(run(data, number)[0][ROW], row, rtol=0, atol=1e-14)


def test_positions_are_added_to_the_candidates_from_rung_8_on(data):
    """With positions of zero rung 8 is rung 7, whose rows move with their tokens; those of rung 8 do not."""
    assert numbers(data, "positions") == [8, 9]
    f, p, attend = data.params[8]
    nowhere = chain(*data.layers[8])((f, p._replace(table=0 * p.table), attend), data.X)[0]
    np.testing.assert_allclose(nowhere, run(data, 7)[0], rtol=0, atol=1e-14)
    order = [1, 2, 3, 0]
    assert [np.allclose(run(data, k, data.X[order])[0], run(data, k)[0][order]) for k in (7, 8)] == [True, False]


def test_a_network_follows_on_rung_9_and_the_weights_stay(data):
    assert numbers(data, "network") == [9]
    g = data.params[9][-1]
    Y = run(data, 8)[0]
    expected = np.maximum(Y @ g.W_1 + g.b_1, 0) @ g.W_2 + g.b_2
    np.testing.assert_allclose(run(data, 9)[0], expected, rtol=0, atol=1e-14)
    assert np.array_equal(data.rungs[9].weights, data.rungs[8].weights)


# -------------------------------------------------------------------------------------------- what is drawn


def drawn(data, number, new=None):
    """A rung alone, in axes of its own."""
    _, ax = nine_rungs.figure()
    nine_rungs._Sketch(ax, (0, 0), data.rungs[number], data.new(number) if new is None else new).draw()
    return ax


def into_row_3(ax):
    """Lines that end near row 3 and come from a candidate: from which, and their colour."""
    end = nine_rungs._place((0, 0), "y", ROW)
    c = np.array([nine_rungs._place((0, 0), "c", j) for j in range(N)])
    found = []
    for line in ax.lines:
        xy = line.get_xydata()
        if len(xy) == 2 and np.linalg.norm(xy[1] - end) < 0.12:
            distances = np.linalg.norm(c - xy[0], axis=1)
            if distances.min() < 0.12:
                found.append((int(distances.argmin()), line.get_color(), line.get_linewidth()))
    return found


@pytest.mark.parametrize("number", range(1, 10))
def test_a_line_for_each_weight_thicker_where_it_is_larger(data, number):
    rung = data.rungs[number]
    lines = into_row_3(drawn(data, number))
    read = [ROW] if number == 1 else list(np.flatnonzero(rung.depends))
    assert [j for j, *_ in lines] == [j for j in read for _ in range(rung.maps)]
    widths = np.array([width for *_, width in lines])
    weights = np.concatenate([rung.weights[:, j] for j in read])
    assert np.array_equal(widths.argsort(), weights.argsort())


@pytest.mark.parametrize("number", range(1, 10))
def test_red_is_what_is_new_and_nothing_else(data, number):
    def red(ax):
        colours = [a.get_markeredgecolor() if a.get_color() == "none" else a.get_color() for a in ax.lines]
        colours += [a.get_color() for a in ax.texts] + [a.get_edgecolor() for a in ax.patches]
        arrows = [a.arrow_patch.get_edgecolor() for a in ax.texts if getattr(a, "arrow_patch", None)]
        return sum(to_hex(colour) == NEW for colour in colours + arrows)

    assert red(drawn(data, number, new=set())) == 0
    assert (red(drawn(data, number)) > 0) == (number > 1)


@pytest.mark.parametrize("number", range(1, 10))
def test_the_chain_faces_positions_and_network_are_drawn_where_they_are(data, number):
    ax = drawn(data, number)
    words = [text.get_text() for text in ax.texts]
    arrows = [text.arrow_patch for text in ax.texts if getattr(text, "arrow_patch", None)]
    solid = [arrow for arrow in arrows if arrow.get_linestyle() in ("-", "solid")]
    assert (len(solid), len(arrows) - len(solid)) == ((2, 0) if number <= 3 else (0, 2) if number == 4 else (0, 0))
    assert words.count("kv") == (3 if number >= 5 else 0)
    assert words.count("qkv") == (number >= 5)
    assert words.count("+π") == (N if number >= 8 else 0)
    assert words.count("g") == (number == 9)
    rings = [line for line in ax.lines if line.get_color() == "none"]
    assert len(rings) == (number in (3, 4))
    assert len([p for p in ax.patches if isinstance(p, FancyBboxPatch)]) == (N if number >= 5 else 0) + (number == 9)


@pytest.mark.parametrize("number", range(1, 10))
def test_a_hollow_mark_is_what_row_3_does_not_depend_on(data, number):
    hollow = [line for line in drawn(data, number).lines if line.get_markerfacecolor() == "white"]
    assert all(line.get_markeredgecolor() == PALE for line in hollow)
    rung = data.rungs[number]
    left_out = int((~rung.depends).sum())
    rows = 1 if rung.chained else N - 1
    assert len(hollow) == left_out * (1 if rung.asks == "query" else 2) + rows


def test_letters_are_dark_enough_to_be_read(data):
    """4.5 : 1 on white, as the guidelines for the web ask; only edges and lines are paler."""

    def contrast(colour):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
        return 1.05 / (0.05 + np.dot([0.2126, 0.7152, 0.0722], linear))

    (ax,) = nine_rungs.draw(data).axes
    assert contrast(PALE) < 2
    assert min(contrast(text.get_color()) for text in ax.texts) > 4.5


def test_every_rung_has_its_name(data):
    (ax,) = nine_rungs.draw(data).axes
    words = [text.get_text() for text in ax.texts]
    assert [word for word in words if word.isdigit()] == [str(number) for number in range(1, 10)]
    assert set(words) >= {part for said in SAID.values() for part in said}
