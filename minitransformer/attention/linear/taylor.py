"""The features of exp, up to a degree: exp ⟨x, y⟩ = Σ_p ⟨x, y⟩^p / p!, and each power is a product of features.

    ⟨x, y⟩^p = Σ_a…c x_a … x_c · y_a … y_c = ⟨x^⊗p, y^⊗p⟩          x^⊗p: all d^p products of p entries of x
    z(x)     = (1, x, x^⊗2/√2!, …, x^⊗p/√p!, …)                    ⟨z(x), z(y)⟩ = exp ⟨x, y⟩, with infinitely many

So softmax is exactly kernel attention, with infinitely many features. Here they end at a degree.
"""

import math
from typing import Any

import numpy as np

from minitransformer.attention.kernel_attention import FeatureAttention, Features, FeaturesPullback
from minitransformer.attention.linear.chunked import in_pieces
from minitransformer.attention.linear.scaled import ScaledPullback, fourth_root
from minitransformer.checks import frozen
from minitransformer.pullback import NoParams, Pullback
from minitransformer.ranges import Degree, Integer
from minitransformer.typing import Array, Float, checked


class TaylorFeaturesPullback(Pullback):
    """F_p = F_{p−1} ⊗ x/√p, last degree first: what comes back to F_p goes on to both its factors."""

    X: Array
    powers: tuple[Array, ...]

    def __call__(self, dF: Array) -> Array:
        X, d = self.X, self.X.shape[-1]
        dX = np.zeros_like(X)
        parts = np.split(dF, np.cumsum([F.shape[-1] for F in self.powers])[:-1], -1)
        back: Array | float = 0.0
        for p in range(len(self.powers) - 1, 0, -1):
            G = (parts[p] + back).reshape(*self.powers[p - 1].shape, d) / X.dtype.type(math.sqrt(p))
            dX += (G * self.powers[p - 1][..., None]).sum(-2)
            back = (G @ X[..., None])[..., 0]
        return dX


@checked
def taylor_features(
    X: Float[Array, "*batch n d"], *, degree: Degree = 2
) -> tuple[Float[Array, "*batch n r"], TaylorFeaturesPullback]:
    """z(x) = (1, x, x ⊗ x/√2!, …) up to a degree: ⟨z(x), z(y)⟩ = Σ_p ⟨x, y⟩^p / p!, the Taylor polynomial of exp ⟨x, y⟩.

    With t = ⟨x, y⟩ it is wrong by at most |t|^(degree + 1) e^|t| / (degree + 1)!. With an even degree it is above zero for all t.

    source   Borealis II, after (18): "maps the argument to an infinite dimensional space"
    cost     r = 1 + d + d² + … + d^degree features of each row
    raises   TypeError for a wrong shape or dtype, ValueError for degree < 1, or more than 2²⁴ features
    """
    if X.shape[-1] ** degree > 2**24:
        raise ValueError(f"degree: {degree} makes {X.shape[-1]}^{degree} features, and more than 2²⁴ are too many")
    powers = [np.ones((*X.shape[:-1], 1), X.dtype)]
    for p in range(1, degree + 1):
        product = powers[-1][..., :, None] * (X / X.dtype.type(math.sqrt(p)))[..., None, :]
        powers.append(product.reshape(*X.shape[:-1], X.shape[-1] ** p))
    return np.concatenate(powers, -1), TaylorFeaturesPullback(X, tuple(powers))


def _power(p: int) -> str:
    return "d" + str(p).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


@frozen
class Taylor(FeatureAttention):
    """Softmax attention with exp cut off after a degree, in linear time.

    degree   of the polynomial; even, so that no weight is negative. 2 makes 1 + d + d² features
    source   Borealis II (17), (18)
    cost     O(n d^degree dv) time; memory O(n d^degree) up to 256 MiB of features, and beyond that
             O(d^degree √(n dv)), with the features made twice. Can be causal
    raises   ValueError for an odd degree
    """

    degree: Degree = 2

    def __post_init__(self) -> None:
        if self.degree % 2:
            raise ValueError(f"degree: {self.degree} should be even: with an odd degree, weights could be negative")

    @property
    def cost(self) -> str:  # type: ignore[override]
        """The cost, by the degree."""
        return f"O(n {_power(self.degree)})"

    @property
    def remembers(self) -> str:  # type: ignore[override]
        """The sums S and z, and their size, by the degree."""
        powers = ["1", "d", *(_power(p) for p in range(2, self.degree + 1))]
        return f"S and z, ({' + '.join(powers)})(dv + 1) for each head"

    def __call__(
        self, params: NoParams, Q: Array, K: Array, V: Array, *streams: Array, causal: bool = False,
        mask: Array | None = None, rng: Any = None,
    ) -> tuple[Array, Any]:  # fmt: skip
        """As with any features; those of a long text are made piece by piece. Pullback: dY to (dparams, dQ, dK, dV)."""
        done = in_pieces(self, Q, K, V, causal=causal, mask=mask)
        return done or super().__call__(params, Q, K, V, *streams, causal=causal, mask=mask, rng=rng)

    def phi(self, params: NoParams, X: Array, *, first: Integer, query: bool) -> tuple[Array, FeaturesPullback]:
        """`taylor_features` of q/d^¼ and k/d^¼, whose product is ⟨q, k⟩/√d."""
        c = fourth_root(X)
        F, pullback = taylor_features(c * X, degree=self.degree)
        return F, FeaturesPullback(ScaledPullback(pullback, c))

    def for_loops(self, params: NoParams, d: int, first: int) -> Features:
        """`taylor_features` as data, the same at any position."""
        return Features("powers", self.degree, max(d, 1) ** -0.25)
