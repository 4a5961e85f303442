"""What the caption of fig_position_properties claims, on the record of twelve readers."""

import numpy as np
import pytest

from minitransformer.figures import position_properties


@pytest.fixture(scope="module")
def data():
    return position_properties.data()


def test_offsets_matter_to_the_relative_readers_and_places_to_the_others(data):
    """In every seed."""
    invariance = {name: [p.invariance for p in found] for name, found in data.properties.items()}
    assert {len(values) for values in invariance.values()} == {3}
    added = invariance["learned"] + invariance["sinusoidal"]
    assert max(added) < min(invariance["relative keys"] + invariance["alibi"]) - 0.1
    assert np.mean(added) < 0.5


def test_upright_stripes_and_diagonal_ones(data):
    """ln A, with each row's mean taken away: how much do the key and the offset explain? (ALiBi's reader may mix both.)"""
    for name, A in data.A.items():
        B = np.log(np.maximum(A, 1e-4))
        B = B - B.mean(1, keepdims=True)
        by_key = B.mean(0).var() / B.var()
        assert name == "alibi" or (by_key > 0.3) == (name != "relative keys")
        offset = np.subtract.outer(np.arange(len(A)), np.arange(len(A)))
        means = {o: B[offset == o].mean() for o in np.unique(offset)}
        by_offset = np.vectorize(means.get)(offset).var() / B.var()
        assert (by_offset > 0.45) == (name in ("relative keys", "alibi")), (name, by_offset)


def test_relative_keys_are_nearly_flat_on_average(data):
    A = data.A["relative keys"]
    assert 0.02 < A.min() < A.max() < 0.15
    assert np.quantile(A, 0.94) < 0.06, "all but a thin diagonal, one key in 23"


def test_the_picture_has_one_scale(data):
    fig = position_properties.draw(data)
    assert len(fig.axes) == 5  # four matrices, one colour bar
    assert len({(image.norm.vmin, image.norm.vmax) for ax in fig.axes[:4] for image in ax.images}) == 1
