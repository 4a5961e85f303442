"""FNet: the tokens are mixed by a Fourier transform along the sequence and along the width, and nothing is learned.

    Y = Re(F_n X F_D),   (F_n)_ab = exp(−2πi ab/n)

It has no queries, keys or heads, so it is no core but a mixer; what a model learns is in its feed-forward networks alone. It
is the baseline beside which any attention has to show what its weights are good for.
"""

from typing import Any

import numpy as np

from minitransformer.attention.core import Mixer, seen_tokens
from minitransformer.checks import frozen
from minitransformer.pullback import NoParams, Pullback
from minitransformer.typing import Array, Bool, Float, checked


def _transform(X: Array, there: Array | None) -> Array:
    """The real part of the transform, over those tokens of each sample that are there; zeros for the others."""
    if not X.size:
        return np.zeros_like(X)
    if there is None:
        return np.ascontiguousarray(np.fft.fft2(X).real)
    Y = np.zeros_like(X)
    for sample in np.ndindex(X.shape[:-2]):
        if there[sample].any():
            Y[sample][there[sample]] = np.fft.fft2(X[sample][there[sample]]).real
    return Y


class FourierPullback(Pullback):
    """Re(F_n X F_D) = C_n X C_D − S_n X S_D, with cosines C and sines S that are symmetric: dX = C_n dY C_D − S_n dY S_D.

    So it is the same transform of dY, and remembers nothing but which tokens were there.
    """

    there: Array | None

    def __call__(self, dY: Array) -> Array:
        return _transform(dY, self.there)


@checked
def fourier_mix(
    X: Float[Array, "*batch n D"], *, mask: Bool[Array, "*batch n"] | None = None
) -> tuple[Float[Array, "*batch n D"], FourierPullback]:
    """The real part of the discrete Fourier transform over positions and channels.

        Y = Re(F_n X F_D)

    mask     True where a token is there. A sample is as long as it has tokens: what is hidden is left out before the
             transform, and gives zeros
    source   Lee-Thorp et al. 2022, where padding is transformed with the rest
    cost     O(n D (log n + log D)) time. Never causal
    returns  Y and a pullback: dX = pullback(dY)
    raises   TypeError for a wrong shape or dtype
    """
    return _transform(X, mask), FourierPullback(mask)


class FNetPullback(Pullback):
    """dY to (NoParams(), dX): nothing is learned."""

    mixed: FourierPullback

    def __call__(self, dY: Array) -> tuple[NoParams, Array]:
        return NoParams(), self.mixed(dY)


@frozen
class FNet(Mixer):
    """A Fourier transform over positions and channels in place of attention; nothing is learned.

    source   Lee-Thorp et al. 2022
    cost     O(n D (log n + log D)). Never causal
    """

    width: int

    stage = "all of them"
    cost = "O(n log n)"
    causal = "never"

    @checked
    def __call__(
        self, params: NoParams, X: Float[Array, "*batch n {self.width}"], *, causal: bool = False,
        mask: Bool[Array, "..."] | None = None, rng: Any = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], FNetPullback]:  # fmt: skip
        """Pullback: dY to (dparams, dX). Raises ValueError for a mask that is not of keys alone, (*batch, 1, 1, n)."""
        self.refuse(causal=causal)
        Y, mixed = fourier_mix(X, mask=seen_tokens(mask, X))
        return Y, FNetPullback(mixed)
