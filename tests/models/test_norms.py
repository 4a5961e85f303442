"""The three normalisations as layers."""

import numpy as np
import pytest

from minitransformer import check_pullback, random_like
from minitransformer.functional import layer_norm, layer_norm_outside, rms_norm
from minitransformer.models import Norm, NormParams

fixed = np.random.default_rng(0)
X = fixed.standard_normal((2, 3, 5))
KINDS = ["layer", "layer_eps_outside", "rms"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eps", [0.3, 1e-5])
def test_gradient(kind, eps, rng):
    norm = Norm(5, kind, eps)
    check_pullback(norm, random_like(norm.init(rng), rng), X)


def test_each_kind_is_its_function(rng):
    params = NormParams(*rng.standard_normal((2, 5)))
    assert np.array_equal(Norm(5, "layer", 0.1)(params, X)[0], layer_norm(X, *params, eps=0.1)[0])
    assert np.array_equal(Norm(5, "layer_eps_outside", 0.1)(params, X)[0], layer_norm_outside(X, *params, eps=0.1)[0])
    params = NormParams(params.gamma)
    assert np.array_equal(Norm(5, "rms", 0.1)(params, X)[0], rms_norm(X, params.gamma, eps=0.1)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_value_alone_is_that_of_a_call(kind, tier, rng):
    """With ε where it belongs; and a class that has a `__call__` of its own is asked itself, not its base."""

    class Twice(Norm):
        def __call__(self, params, X):
            Y, pullback = super().__call__(params, X)
            return 2 * Y, pullback

    for norm in (Norm(5, kind, 0.3), Twice(5, kind, 0.3)):
        params = random_like(norm.init(rng, np.float64), rng)
        np.testing.assert_allclose(norm.value(params, X), norm(params, X)[0], rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_initial_parameters_do_nothing_but_normalise(kind, rng):
    params = Norm(5, kind).init(rng)
    assert params.gamma.tolist() == [1] * 5
    assert params.gamma.dtype == np.float32
    assert (params.beta is None) == (kind == "rms")
    assert Norm(5, kind).init(rng, np.float64).gamma.dtype == np.float64
    Y, _ = Norm(5, kind)(Norm(5, kind).init(rng, np.float64), X)
    assert np.allclose((Y**2).mean(-1), 1, rtol=1e-3)


def test_bad_input_is_refused(rng):
    norm = Norm(5)
    with pytest.raises(TypeError, match="parameter 'X'"):
        norm(norm.init(rng, np.float64), X[..., :4])
    for function in (norm, norm.value):  # the parameters of an RMS norm
        with pytest.raises(TypeError, match=r"params\.beta: should be an array"):
            function(NormParams(np.ones(5)), X)
