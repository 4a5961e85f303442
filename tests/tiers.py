"""One function in each tier, held to the same loops."""

import numpy as np

import minitransformer as mt
from minitransformer.backend import available


def assert_every_tier_gives(expected, function, *arrays):
    """The value is `expected` in each tier, and the pullback of it is that of the tier in use."""
    _, by_definition = function(*arrays)
    gradients = by_definition(expected)
    for tier in available():
        with mt.backend(tier):
            Y, pullback = function(*arrays)
            found = pullback(expected)
        assert np.allclose(Y, expected, rtol=1e-9), tier
        for gradient, same in zip(found, gradients, strict=True):
            assert np.allclose(gradient, same, rtol=1e-8, atol=1e-9 * abs(same).max()), tier
