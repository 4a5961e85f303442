"""Attention as a hypernetwork: the text makes the weights of a linear network, and the network is applied to the text.

With the rows of X one after another in one long vector, vec(X) = (x_1, …, x_n), a row for each output:

    vec(X W_v) = (I ⊗ W_vᵀ) vec(X)           n copies of one block: the same values network for each token
    vec(A V)   = (A ⊗ I) vec(V)              n × n blocks, each a multiple of the identity: channels don't mix
    vec(Y)     = (A ⊗ W_vᵀ) vec(X)           both together

Where the columns are written one after another, which mathematicians prefer, the factors change places: W_vᵀ ⊗ I and I ⊗ A.
"""

import numpy as np

from minitransformer.arrays import one_dtype
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Float, checked


class KroneckerPullback(Pullback):
    """M_(i a)(j b) = A_ij W_ba, so dA_ij = Σ_ab dM_(i a)(j b) W_ba and dW_ba = Σ_ij dM_(i a)(j b) A_ij."""

    A: Array
    W: Array

    def __call__(self, dM: Array) -> tuple[Array, Array]:
        (n, m), (D, dv) = self.A.shape[-2:], self.W.shape[-2:]
        blocks = dM.reshape(*dM.shape[:-2], n, dv, m, D)
        dA = np.einsum("...iajb,...ba->...ij", blocks, self.W)
        return dA, np.einsum("...iajb,...ij->...ba", blocks, self.A)


@checked
def attention_weights(
    A: Float[Array, "*batch n m"], W: Float[Array, "*batch D dv"]
) -> tuple[Float[Array, "*batch ndv mD"], Pullback]:
    """The weights that attention makes for the network from vec(X) to vec(Y): M = A ⊗ Wᵀ, so that vec(A X W) = M vec(X).

        M_(i a)(j b) = A_ij W_ba

    Block (i, j) of the n × m blocks is A_ij Wᵀ. With A = I it is the values network, with W = I the mixing one.

    A        the attention matrix, of one head
    W        the projection W_v of the values
    source   Borealis II, figure 11
    cost     O(n m D dv) time and memory, n m D dv numbers made of n m + D dv; attention itself never forms them
    returns  M and a pullback: dA, dW = pullback(dM)
    raises   TypeError for a wrong shape or dtype
    """
    one_dtype(A=A, W=W)
    (n, m), (D, dv) = A.shape[-2:], W.shape[-2:]
    M = A[..., :, None, :, None] * W.mT[..., None, :, None, :]
    return M.reshape(*A.shape[:-2], n * dv, m * D), KroneckerPullback(A, W)
