"""A gate behind attention: each token says how much it wants of what it found. Stands before the stage `combine heads`.

    Y ⊙ σ(G),   G = X W_g         a number for each head of each token, or one for each channel

A sink (sink.py) closes where no key matches; this gate closes where the token asks for nothing.
"""

from minitransformer.arrays import one_dtype
from minitransformer.functional import sigmoid
from minitransformer.gather_scatter import unbroadcast
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Float, checked


class OutputGatePullback(Pullback):
    """A product: dY = σ ⊙ dZ, and σ gets Y ⊙ dZ, summed over the channels that share it."""

    Y: Array
    opened: Array
    sigmoid: Pullback

    def __call__(self, dZ: Array) -> tuple[Array, Array]:
        return self.opened * dZ, self.sigmoid(unbroadcast(self.Y * dZ, self.opened.shape))


@checked
def output_gate(
    Y: Float[Array, "*batch n dv"], G: Float[Array, "*batch n w"]
) -> tuple[Float[Array, "*batch n dv"], OutputGatePullback]:
    """Z = Y ⊙ σ(G). Where G = 0, half of Y goes through.

    G        (…, 1) for one gate, or as wide as Y for one of each channel
    source   Qiu et al. 2025; Qwen3-Next has one for each channel
    cost     O(n dv), and the projection O(n D w)
    returns  Z and a pullback: dY, dG = pullback(dZ)
    raises   ValueError for another width of G
    """
    one_dtype(Y=Y, G=G)
    if G.shape[-1] not in (1, Y.shape[-1]):
        raise ValueError(f"G: shape {G.shape} should have 1 or {Y.shape[-1]} columns")
    opened, pullback = sigmoid(G)
    return Y * opened, OutputGatePullback(Y, opened, pullback)
