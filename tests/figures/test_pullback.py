"""What chapter 00 says about the picture of an opened pullback."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from minitransformer import backend, check_pullback, tree_bytes
from minitransformer.backend import available
from minitransformer.figures import pullback
from minitransformer.models import FeedForward


@pytest.fixture(scope="module")
def d():
    return pullback.data()


def test_every_gradient_has_the_shape_of_its_value(d):
    for name, value in (d.forward | pullback.PARAMS._asdict()).items():
        assert (d.backward | d.dparams._asdict())[name].shape == value.shape


def test_the_fields_are_the_values_that_went_forward(d):
    assert np.array_equal(d.pullback.linear_1.X, d.forward["X"])
    assert np.array_equal(d.pullback.linear_2.X, d.forward["F"])
    assert np.array_equal(np.maximum(d.forward["U"], 0), d.forward["F"])
    assert np.allclose(d.forward["F"] @ d.pullback.linear_2.W + d.pullback.linear_2.b, d.forward["Y"])


def test_the_white_cells_of_slope_F_and_dU_are_the_same(d):
    dark = d.pullback.activation.slope == 0
    assert 0.25 < dark.mean() < 0.75
    assert np.array_equal(dark, d.forward["F"] == 0)
    assert np.array_equal(dark, d.backward["U"] == 0)
    assert not (d.backward["F"] == 0).any()


def test_the_steps_back_are_those_on_the_arrows(d):
    one, activation, two = d.pullback
    dX, dU, dF, dY = (d.backward[name] for name in "XUFY")
    assert np.allclose(dF, dY @ two.W.T)
    assert np.allclose(dU, activation.slope * dF)
    assert np.allclose(dX, dU @ one.W.T)
    assert np.allclose(d.dparams.W_1, one.X.T @ dU)
    assert np.allclose(d.dparams.b_1, dU.sum(0))
    assert np.allclose(d.dparams.W_2, two.X.T @ dY)
    assert np.allclose(d.dparams.b_2, dY.sum(0))


def steps_back(d):
    """What each step of the pullback turns the gradient of its output into, under the names of the drawing."""
    one, activation, two = d.pullback
    return {
        **dict(zip(("dF", "dW_2", "db_2"), two(d.backward["Y"]), strict=True)),
        "dU": activation(d.backward["F"]),
        **dict(zip(("dX", "dW_1", "db_1"), one(d.backward["U"]), strict=True)),
    }


def changed(d, other):
    before, after = steps_back(d), steps_back(other)
    return {name for name in before if not np.array_equal(before[name], after[name])}


def test_a_step_reads_what_a_blue_arrow_brings_and_nothing_else(d):
    fields = [name for name in pullback.PLACES if "." in name]
    assert len(fields) == 7
    for name in fields:
        step, field = name.split(".")
        old = getattr(d.pullback, step)
        new = old._replace(**{field: getattr(old, field) + 1})
        reading = {pullback.READS[name]} if name in pullback.READS else set()
        assert changed(d, d._replace(pullback=d.pullback._replace(**{step: new}))) == reading
        assert bool(reading) == (field != "b")


def test_of_b_it_matters_only_whether_there_is_one(d):
    X, W, _ = d.pullback.linear_2
    without = type(d.pullback.linear_2)(X, W, None)(d.backward["Y"])
    assert len(without) == 2
    assert all(map(np.array_equal, without, d.pullback.linear_2(d.backward["Y"])))


@pytest.mark.parametrize("name", "UFY")
def test_a_gradient_is_made_of_the_one_that_a_dark_arrow_brings(d, name):
    other = d._replace(backward={**d.backward, name: d.backward[name] + 1})
    assert changed(d, other) == {end for start, end in pullback.BACKWARD if start == f"d{name}"}


def test_every_number_of_the_drawing_is_whole_and_small(d):
    for array in pullback.arrays(d).values():
        assert np.array_equal(array, np.round(array))
        assert np.abs(array).max() < 10


def test_only_where_relu_cut_off_are_gradients_zero(d):
    assert [name for name, a in pullback.arrays(d).items() if name[0] == "d" and not a.all()] == ["dU"]


def test_the_pullback_drawn_is_a_right_one():
    rng = np.random.default_rng(0)
    params = pullback.PARAMS._replace(b_1=rng.standard_normal(4), b_2=rng.standard_normal(2))  # no U near the corner
    assert check_pullback(FeedForward(2, 4), params, pullback.X).error < 1e-6


def test_it_is_that_of_every_tier(d):
    for tier in available():
        with backend(tier):
            Y, other = FeedForward(2, 4)(pullback.PARAMS, pullback.X)
            assert np.array_equal(Y, d.forward["Y"])
            assert np.array_equal(other.activation.slope, d.pullback.activation.slope)
            assert np.array_equal(other(d.backward["Y"])[1], d.backward["X"])


def test_bytes_for_each_token():
    """X, slope and F in the definition; the compiled ReLU keeps no slope, it points to F."""
    network = FeedForward(width=64, hidden=256)
    params = network.init(np.random.default_rng(0))

    def remembered(n):
        return tree_bytes(network(params, np.ones((n, 64), np.float32))[1])

    for tier in available():
        with backend(tier):
            assert (remembered(200) - remembered(100)) / 100 == (2304 if tier == "numpy" else 1280)


def test_the_numbers_drawn_are_those_computed(d):
    fig = pullback.draw(d)
    assert isinstance(fig, Figure)
    texts = {text.get_position(): text.get_text().replace("−", "-") for text in fig.axes[0].texts}
    numbers = {place: float(text) for place, text in texts.items() if text.lstrip("-").isdigit()}
    drawn = pullback.arrays(d)
    assert set(drawn) == set(pullback.PLACES)
    assert len(numbers) == sum(a.size for a in drawn.values())
    for name, a in drawn.items():
        x, y = pullback.PLACES[name]
        for (i, j), value in np.ndenumerate(a):
            assert numbers[x - a.shape[1] / 2 + j + 0.5, y + len(a) - i - 1 + 0.45] == value


def test_arrows_begin_at_what_is_read_and_nothing_crosses(d):
    fig, drawn = pullback.draw(d), pullback.arrays(d)
    arrows = [(*text.xyann, *text.xy) for text in fig.axes[0].texts if isinstance(text, Annotation)]
    assert len(arrows) == len(pullback.FORWARD | pullback.BACKWARD | pullback.READS)
    frames = {
        name: (x - drawn[name].shape[1] / 2, x + drawn[name].shape[1] / 2, y, y + len(drawn[name]))
        for name, (x, y) in pullback.PLACES.items()
    }

    def at(name, x, y):
        left, right, bottom, top = frames[name]
        return left - 0.35 < x < right + 0.35 and bottom - 0.35 < y < top + 0.35

    for start, end in (*pullback.FORWARD, *pullback.BACKWARD):
        assert sum(at(start, x, y) and at(end, to, there) for x, y, to, there in arrows) == 1
    spans = [(min(x, to), max(x, to), min(y, there), max(y, there)) for x, y, to, there in arrows]
    places = [*frames.values(), *spans]
    for k, (left, right, bottom, top) in enumerate(places):
        for other in places[:k]:
            assert right < other[0] or other[1] < left or top < other[2] or other[3] < bottom

    for field, gradient in pullback.READS.items():  # down from the field, into the gradient or onto its step
        [(x, _, to, there)] = [arrow for arrow in arrows if at(field, *arrow[:2])]
        assert x == to
        if gradient in ("dW_1", "dW_2"):
            assert at(gradient, to, there)
        else:
            [start] = [start for start, end in pullback.BACKWARD if end == gradient]
            assert frames[gradient][1] < to < frames[start][0]
            assert frames[start][2] < there < frames[start][3]
