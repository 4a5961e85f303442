"""What chapter 15's captions say of its figures, on their data."""

import numpy as np

from minitransformer.figures import (
    bias_height,
    gate_bits,
    gated_mixing,
    gated_unit,
    heads_and_kernels,
    image_filters,
    learned_mixing,
)
from minitransformer.related import convolve_with_heads


def test_heads_filter_a_photograph_but_for_its_frame(monkeypatch):
    """Larger pixels than the figure's, of which there are less: nine matrices of 1,116² scores would take 300 MB."""
    assert image_filters.photograph().shape == (36, 31)
    monkeypatch.setattr(image_filters, "STEP", 15)
    data = image_filters.data()
    assert data.picture.shape == (24, 20)
    for name, by_heads in data.by_heads.items():
        apart = np.abs(by_heads - data.convolved[name]) > 1e-12
        assert not apart[1:-1, 1:-1].any()
        assert apart.sum() == 2 * (24 + 20) - 4
    assert data.by_heads["blur"][1:-1, 1:-1].std() < data.picture[1:-1, 1:-1].std()  # a blur
    assert abs(data.by_heads["edges"][1:-1, 1:-1].mean()) < 0.05 < np.abs(data.by_heads["edges"]).max()
    assert len(image_filters.draw(data).axes) == 5


def test_a_convolution_turns_its_kernel_as_heads_do():
    """Which both kernels of the figure leave open, since they are the same from all sides."""
    picture, kernel = np.random.default_rng(0).random((6, 5)), np.arange(9.0).reshape(3, 3)
    by_heads = convolve_with_heads(picture.reshape(-1, 1), kernel, picture.shape).reshape(picture.shape)
    np.testing.assert_allclose(image_filters.convolved(picture, kernel)[1:-1, 1:-1], by_heads[1:-1, 1:-1], atol=1e-12)


def test_the_error_of_a_shift_falls_as_its_bound():
    data = bias_height.data()
    for n, errors in data.errors.items():
        bound = n * np.exp(-data.heights) * 2  # two numbers between −1 and 1 are at most 2 apart
        assert (errors <= bound + 1e-15).all()
        assert (errors[bound < 1] >= bound[bound < 1] / 8)[data.heights[bound < 1] < 24].all()
    assert (data.single[data.heights <= 28] > 0).all()
    assert (data.single[data.heights >= 32] == 0).all()  # at 30 the last digit of an exponential decides
    assert data.errors[1024][-1] < 1e-15
    bias_height.draw(data)


def test_a_gate_lies_between_shut_and_open():
    data = gated_unit.data()
    assert ((data.gate > 0) & (data.gate < 1)).all()
    np.testing.assert_allclose(data.gate, 1 / (1 + np.exp(-data.A)), rtol=1e-12)
    np.testing.assert_allclose(data.Y, data.gate * data.B, rtol=1e-12)
    assert (data.gate < 0.1).any()
    assert (data.gate > 0.9).any()
    gated_unit.draw(data)


def test_a_gate_that_follows_two_tokens():
    data = gated_mixing.data()
    assert np.array_equal(np.flatnonzero(data.Z_2.any(1)), gated_mixing.AT)
    assert not np.triu(data.M, 1).any()
    np.testing.assert_allclose(data.G, data.M @ data.Z_2 + 1, rtol=1e-12)
    np.testing.assert_allclose(data.S, data.S[0] * data.G, rtol=1e-12)  # the other half has equal rows
    assert (data.G[: gated_mixing.AT[0]] == 1).all()  # nobody has spoken
    moved = np.abs(data.G - 1).max(1)
    for at in gated_mixing.AT:
        assert moved[at + 1 : at + 3].min() > 0.5  # one and two places after it
        moved[at + 1 : at + 3] = 0
    assert moved.max() < 0.4
    gated_mixing.draw(data)


def test_what_is_learned_over_the_places_has_stripes():
    """The means of the diagonals explain at least nine tenths of the first two layers, in every training (see the record)."""
    data = learned_mixing.data()
    for form in learned_mixing.FORMS:
        assert data.M[form].shape == (3, 64, 64)
        assert not np.triu(data.M[form], 1).any()
        kernels = data.kernels(form)
        assert (np.abs(kernels[:2, 1:3]).max(1) > 0.3).all()  # what stands one or two places back counts most
        assert (np.abs(kernels[:, 5:]) < np.abs(kernels).max(1, keepdims=True) / 2).all()
    learned_mixing.draw(data)


def test_heads_that_may_look_anywhere_do():
    data = heads_and_kernels.data()
    for A in data.values():
        assert A.shape == (9, 8, 8)
        np.testing.assert_allclose(A.sum((1, 2)), 1, atol=4e-3)
    assert (data["shifts"].max((1, 2)) > 0.99).all()
    at = {tuple(np.argwhere(A == A.max())[0] - heads_and_kernels.MIDDLE) for A in data["shifts"]}
    assert at == {(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1)}
    assert (data["places"].max((1, 2)) < 0.5).all()
    heads_and_kernels.draw(data)


def test_bits_of_gates():
    data = gate_bits.data()
    assert len(data.bits) == 7
    assert all(len(bits) == 3 for bits in data.bits.values())
    means = [np.mean(bits) for bits in data.bits.values()]
    assert means == sorted(means)
    gate_bits.draw(data)
