"""Self-attention without weights: every row is compared with every other, and nothing is learned."""

from minitransformer.attention.dot_product import dot_product_attention
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Bool, Float, checked


class UnweightedPullback(Pullback):
    """X is query, key and value at once: dX is the sum of the three gradients."""

    attention: Pullback

    @property
    def A(self) -> Array:  # noqa: N802
        """The weights w_ij, (*batch, n, n)."""
        return self.attention.A

    def __call__(self, dY: Array) -> Array:
        dQ, dK, dV = self.attention(dY)
        return dQ + dK + dV


@checked
def unweighted_attention(
    X: Float[Array, "*batch n D"], *, causal: bool = False, mask: Bool[Array, "..."] | None = None
):
    """Each row becomes an average of all rows, weighted by how alike they are.

        Y = softmax(X Xᵀ) X

    No parameters and no scale: at large D a row is so much more like itself that Y is nearly X.
    source   Lecture notes, basic self-attention
    cost     O(n² D). Can be causal.
    """
    Y, attention = dot_product_attention(X, X, X, causal=causal, mask=mask, scale=1.0)
    return Y, UnweightedPullback(attention)
