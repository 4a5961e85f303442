"""What every core that sweeps over positions promises, whatever it computes."""

import numpy as np
import pytest

from minitransformer.backend import available
from tests.peaks import peak

TIERS = [tier for tier in ("numba", "micro") if tier in available()]
IN_EVERY_TIER = [pytest.mark.skipif(not TIERS, reason="needs Numba"), pytest.mark.usefixtures("tier")]


def assert_agree(have, want, dtype, tolerance, sizes=()):
    """Arrays of one name in both are equal to so much of 1 and the largest number, or of a size that is given for the name."""
    sizes = dict(sizes)
    for name, w in want.items():
        h = have[name]
        assert h.shape == w.shape, name
        assert h.dtype == dtype, name
        assert np.isfinite(h).all(), name
        error = np.abs(h - w).max(initial=0) / (1 + max(np.abs(w).max(initial=0), sizes.get(name, 0)))
        assert error <= tolerance[str(dtype)], f"{name} differs by {error:.2g}"


def assert_any_memory_order(everything, arrays):
    """Arrays column by column, read backwards, or read-only give the same bits."""
    axes = (slice(None), *[slice(None, None, -1)] * 2)
    fortran = [np.asfortranarray(a) for a in arrays]
    backwards = [a[axes].copy()[axes] for a in arrays]
    frozen = [a.copy() for a in arrays]
    for a in frozen:
        a.flags.writeable = False
    want = everything(*arrays)
    for strange in (fortran, backwards, frozen):
        assert_same_bits(everything(*strange), want)


def assert_any_number_of_threads(everything, arrays):
    """One thread gives the bits of three."""
    from minitransformer.kernels.threads import limit

    with limit(3):
        want = everything(*arrays)
    with limit(1):
        assert_same_bits(everything(*arrays), want)


def assert_same_bits(have, want):
    assert have.keys() == want.keys()
    for name, w in want.items():
        np.testing.assert_array_equal(have[name], w, err_msg=name)


def assert_no_past_is_changed(function, arrays, times):
    """What is added to all arrays at a position changes no bit of Y before it, and some at it."""
    Y, _ = function(*arrays)
    for t in times:
        changed = [a.copy() for a in arrays]
        for a in changed:
            a[:, t] += 1
        Z, _ = function(*changed)
        np.testing.assert_array_equal(Z[:, :t], Y[:, :t])
        assert (Z[:, t] != Y[:, t]).any()


def peaks_of(function, inputs, lengths=(2048, 4096)):
    """Bytes that one forward and one backward pass need at their worst moment, with what they return, for each length."""
    return [peak_of(function, *inputs(n)) for n in (128, *lengths)][1:]  # the first call may compile


def peak_of(function, *arrays_and_dY):
    *arrays, dY = arrays_and_dY

    def both_ways():
        _, pullback = function(*arrays)
        pullback(dY)

    return peak(both_ways)
