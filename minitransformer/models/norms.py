"""The three normalisations as layers: hyper-parameters, parameters, and the function of `functional.py`."""

from typing import Literal, NamedTuple

import numpy as np

from minitransformer.checks import frozen
from minitransformer.functional import layer_norm, layer_norm_outside, loops_in, rms_norm
from minitransformer.pullback import Pullback
from minitransformer.ranges import NonNegativeNumber
from minitransformer.typing import Array, Float, checked


class NormParams(NamedTuple):
    """Gain γ and bias β, (D,). RMS norm has no bias."""

    gamma: Array
    beta: Array | None = None


class NormPullback(Pullback):
    """dY to (dparams, dX)."""

    norm: Pullback

    def __call__(self, dY: Array) -> tuple[NormParams, Array]:
        dX, *dparams = self.norm(dY)
        return NormParams(*dparams), dX


@frozen
class Norm:
    """One of the normalisations, with a learned gain.

    kind   "layer" (ε under the root), "layer_eps_outside" (ε beside σ), or "rms" (no mean, no bias)
    """

    width: int
    kind: Literal["layer", "layer_eps_outside", "rms"] = "layer"
    eps: NonNegativeNumber = 1e-5

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> NormParams:
        """Gain one, bias zero."""
        ones = np.ones(self.width, dtype)
        return NormParams(ones) if self.kind == "rms" else NormParams(ones, np.zeros(self.width, dtype))

    @checked
    def __call__(self, params: NormParams, X: Float[Array, "*batch {self.width}"]):
        """Normalise each row."""
        if self.kind == "rms":
            Y, pullback = rms_norm(X, params.gamma, eps=self.eps)
        elif params.beta is None:
            raise ValueError("params: a layer norm has a bias β, these (of an RMS norm?) have none")
        else:
            function = layer_norm if self.kind == "layer" else layer_norm_outside
            Y, pullback = function(X, params.gamma, params.beta, eps=self.eps)
        return Y, NormPullback(pullback)

    def value(self, params: NormParams, X: Array) -> Array:
        """Y alone, without a pullback."""
        if self.kind != "layer_eps_outside" and (loops := loops_in("few_rows")):
            Y = loops.normed(X, params.gamma, params.beta, self.eps)
            if Y is not None:
                return Y
        return self(params, X)[0]
