"""What stands in a legend or a title is what is drawn: lines, bars and images against the data."""

import numpy as np
import pytest

from minitransformer import live
from minitransformer.figures import (
    bias_height,
    feature_variance,
    heads_and_kernels,
    hopfield_temperature,
    recall,
    reversible_memory,
    speed_roofline,
    state_filling,
    static_and_dynamic,
    streaming,
    training_text,
)


def line(axis, label):
    (found,) = (one for one in axis.lines if one.get_label() == label)
    return found.get_ydata()


def test_state_filling():
    found = state_filling.data()
    (below,) = (axis for axis in state_filling.draw(found).axes if axis.get_legend())
    assert np.array_equal(line(below, "keys and values"), found.cache_bytes / 1024)
    assert np.array_equal(line(below, "S and z"), found.state_bytes / 1024)


def test_reversible_memory():
    found = reversible_memory.data()
    axis = reversible_memory.draw(found).axes[0]
    assert np.array_equal(line(axis, "plain"), found.plain / 1024)
    assert np.array_equal(line(axis, "reversible"), found.reversible / 1024)


def test_hopfield_temperature():
    found = hopfield_temperature.data()
    axis = hopfield_temperature.draw(found).axes[1]
    assert np.array_equal(line(axis, "patterns in an end, mean"), found.last_use.mean(1))
    assert np.array_equal(line(axis, "patterns in use\nafter one step, mean"), found.first_use.mean(1))


def test_static_and_dynamic():
    found = static_and_dynamic.data()
    for axis, name, A in zip(static_and_dynamic.draw(found).axes, ("GAT:", "GATv2:"), found, strict=False):
        assert axis.get_title().startswith(name)
        assert np.array_equal(axis.images[0].get_array(), A)


def test_recall():
    found = recall.data()
    for axis in recall.draw(found).axes:
        expected = line(axis, r"$\sqrt{(m-1)/d}$")
        assert expected[0] == 0
        assert expected[-1] == pytest.approx(np.sqrt((max(found.pairs) - 1) / recall.WIDTH))


def test_bias_height():
    found = bias_height.data()
    thin = [one.get_ydata() for one in bias_height.draw(found).axes[0].lines if one.get_linewidth() == 1]
    for n, y in zip(found.errors, thin, strict=True):
        assert np.allclose(y, n * np.exp(-found.heights))


def test_streaming():
    found = streaming.data()
    told = {
        tuple(int(x) - 1 for x in text.get_position()): text.get_text() for text in streaming.draw(found).axes[0].texts
    }
    assert told == {(j, i): str(place) for (i, j), place in np.ndenumerate(found.place) if place >= 0}


def test_training_text():
    found = training_text.data()
    axis = training_text.draw(found).axes[1]
    first = next(k for k, name in enumerate(found.names) if name not in ("1-gram", "2-gram"))
    for kind, label in ((2, "new passages"), (1, "copied passages")):
        (bars,) = (one for one in axis.containers if one.get_label() == label)
        assert bars[0].get_width() == pytest.approx(found.bits[:, first, kind].mean())


def test_speed_roofline():
    found = speed_roofline.data()
    one, many = found.cores
    names = {text.get_text(): text.xy[1] for text in speed_roofline.draw(found).axes[0].texts}
    assert (names["roof of one core"], names[f"roof of {many} cores"]) == (found.peak[one], found.peak[many])


def test_feature_variance():
    angles, at = np.linspace(0, 180, 181), np.arange(45, 180, 30)
    drawn, marks = (
        {name: np.full(len(x), k + 1.0) for k, name in enumerate(feature_variance.LOOKS)} for x in (angles, at)
    )
    found: dict[str, set[float]] = {}
    for one in feature_variance.draw(feature_variance.FeatureVariance(angles, drawn, at, marks)).axes[0].lines:
        found.setdefault(one.get_color(), set()).add(float(one.get_ydata()[0]))
    assert all(len(numbers) == 1 for numbers in found.values())


def test_heads_and_kernels():
    found = heads_and_kernels.data()
    for axis, (kind, title) in zip(heads_and_kernels.draw(found).axes, heads_and_kernels.SHOWN.items(), strict=False):
        assert axis.get_title() == title
        assert len(axis.images) == len(found[kind])
        assert np.allclose(axis.images[0].get_array(), found[kind][0] / found[kind][0].max())


def test_alibi_with_a_half():
    bias = live.modules()["drawn_bias"].data()["biases"]["ALiBi, λ = ½"]
    assert (bias[7], bias[9]) == (-1, 0)
