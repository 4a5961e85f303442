"""Self-attention without weights: every row is compared with every other, and nothing is learned."""

from minitransformer.attention.around import AroundAttention
from minitransformer.attention.dot_product import dot_product_attention
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Bool, Float, checked


class UnweightedPullback(AroundAttention):
    """X is query, key and value at once: dX is the sum of the three gradients."""

    attention: Pullback

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
