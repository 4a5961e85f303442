"""Features of q/d^¼ and k/d^¼: their products are then functions of ⟨q, k⟩/√d, as in softmax attention."""

from minitransformer.pullback import Pullback
from minitransformer.typing import Array


class ScaledPullback(Pullback):
    """Features of c x: dx = c · (what comes back to c x)."""

    features: Pullback
    c: Array

    def __call__(self, dF: Array) -> Array:
        return self.c * self.features(dF)


def fourth_root(X: Array) -> Array:
    """The factor c = d^−¼ of queries and of keys, so that their product is divided by √d."""
    return X.dtype.type(max(X.shape[-1], 1) ** -0.25)
