"""The three normalisations as layers, by name: hyper-parameters, parameters, and the function of `functional.py`."""

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import numpy as np

from minitransformer.checks import frozen
from minitransformer.functional import layer_norm, layer_norm_outside, normed, rms_norm
from minitransformer.models.subclasses import keeps_up
from minitransformer.pullback import Pullback
from minitransformer.ranges import NonNegativeNumber
from minitransformer.registry import named
from minitransformer.typing import Array, Float, checked

Kind = Literal["layer", "layer_eps_outside", "rms"]


class NormParams(NamedTuple):
    """Gain γ and bias β, (D,). RMS norm has no bias."""

    gamma: Array
    beta: Array | None = None


class NormPullback(Pullback):
    """Back through the norm: dY to (dparams, dX)."""

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
    kind: Kind = "layer"
    eps: NonNegativeNumber = 1e-5

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> NormParams:
        """The gain is one, and the bias zero."""
        ones = np.ones(self.width, dtype)
        return NormParams(ones) if self.kind == "rms" else NormParams(ones, np.zeros(self.width, dtype))

    @checked
    def __call__(self, params: NormParams, X: Float[Array, "*batch {self.width}"]):
        """Normalise each row."""
        if self.kind == "rms":
            Y, pullback = rms_norm(X, params.gamma, eps=self.eps)
        else:
            function = layer_norm if self.kind == "layer" else layer_norm_outside
            Y, pullback = function(X, *params, eps=self.eps)  # type: ignore[arg-type]
        return Y, NormPullback(pullback)

    def for_loops(self, params: NormParams) -> tuple[Array, Array | None, float] | None:
        """γ, β and ε, as compiled loops take them: β is None for an RMS norm. None for a norm that they don't have."""
        if self.kind == "rms":
            return params.gamma, None, self.eps
        return (*params, self.eps) if self.kind == "layer" and params.beta is not None else None

    def value(self, params: NormParams, X: Array) -> Array:
        """Y alone, without a pullback."""
        found = self.for_loops(params) if keeps_up(type(self), "value") else None
        if found is None:
            return self(params, X)[0]
        gamma, beta, eps = found
        return normed(X, gamma, beta, eps=eps)


NORMS: dict[str, Callable[..., Norm]] = dict.fromkeys(get_args(Kind), Norm)


def norm_of(norm: str, width: int) -> Norm:
    """The norm of this name, with ε = 10⁻⁵ or the one behind it: "rms", "layer:eps=1e-12".

    raises   ValueError for an unknown name or option, or a negative ε
    """
    return named("norm", NORMS, norm, {"width": width, "kind": norm.partition(":")[0]})
