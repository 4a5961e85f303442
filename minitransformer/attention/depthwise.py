"""Depthwise convolution: each channel is a weighted sum of itself over a few tokens, and no channel meets another one.

    y_ihc = Σ_s a_ihsc x_(i − left + s)hc,      s = 0 … K − 1

What differs is only who shares a kernel. Each channel has its own in the short convolution of a memory, all channels of a head
have the same in a lightweight convolution, and each token brings one along in a dynamic one.
"""

import numpy as np

from minitransformer.arrays import must_broadcast, one_dtype
from minitransformer.functional import loops_in
from minitransformer.gather_scatter import unbroadcast
from minitransformer.pullback import Pullback
from minitransformer.ranges import so_many
from minitransformer.typing import Array, Float, checked


class DepthwisePullback(Pullback):
    """dx_j = Σ_s a_(j + left − s)s ⊙ dy_(j + left − s); da_is = dy_i ⊙ x_(i − left + s), a sum over who shares a; db = Σ dy.

    rows   X with the rows before and after it, zeros where there are none
    """

    rows: Array
    A: Array
    b: Array | None
    left: int

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        n, d_rows, dA = dY.shape[-3], np.zeros_like(self.rows), np.empty_like(self.A)
        for s in range(self.A.shape[-2]):
            row = self.rows[..., s : s + n, :, :]
            d_rows[..., s : s + n, :, :] += self.A[..., s, :] * dY
            dA[..., s, :] = _of_all(dY * row, self.A[..., s, :])
        db = () if self.b is None else (_of_all(dY, self.b),)
        return d_rows[..., self.left : self.left + n, :, :], dA, *db


class SharedPullback(Pullback):
    """From the pullback of the compiled loop, for a kernel that all channels of a head share: dA (…, H, K) gets a last axis."""

    convolve: Pullback

    @property
    def rows(self) -> Array:
        """X with zeros before and after it, as in `DepthwisePullback`."""
        X, left, taps = self.convolve.X, self.convolve.left, self.convolve.A.shape[-1]
        return np.pad(X, [(0, 0)] * (X.ndim - 3) + [(left, taps - 1 - left), (0, 0), (0, 0)])

    def __call__(self, dY: Array) -> tuple[Array, Array]:
        dX, dA = self.convolve(dY)
        return dX, dA[..., None]


def _of_all(dA: Array, A: Array) -> Array:
    """The sum of dA over all that share an entry of A: first over the tokens of a text, then as broadcasting says."""
    if A.ndim < 3 or A.shape[-3] == 1:
        dA = dA.sum(-3, keepdims=A.ndim > 2)
    return unbroadcast(dA, A.shape)


def taps_before(taps: int, causal: bool) -> int:
    """How many of the taps fall on tokens before the one whose row they make."""
    return taps - 1 if causal else (taps - 1) // 2


@checked
def depthwise_convolution(
    X: Float[Array, "*batch n heads d"],
    A: Float[Array, "*kernels taps width"],
    b: Float[Array, "..."] | None = None,
    *,
    causal: bool = False,
    before: Float[Array, "*batch past heads d"] | None = None,
) -> tuple[Float[Array, "*batch n heads d"], Pullback]:
    """Each channel's weighted sum over K tokens around it.

        y_i = Σ_s a_is ⊙ x_(i − left + s) + b,  s = 0 … K − 1

    X        tokens in heads (*batch, n, H, d)
    A        kernels, to be broadcast to (*batch, n, H, K, d): (H, K, d) is one for each channel, (H, K, 1) one for each head,
             (*batch, n, H, K, 1) one for each head and token
    b        to be broadcast to X; None for none
    causal   whether all taps but the last fall on tokens before i: left = K − 1; otherwise left = ⌊(K − 1)/2⌋
    before   if causal, the K − 1 rows that stood before X, to which no gradient goes; zeros if there are none
    cost     O(n K H d) time
    returns  Y and a pullback: dX, dA = pullback(dY), and db if there is a b
    raises   TypeError for a wrong shape or dtype, ValueError for no taps, for a kernel or a b that does not broadcast, for
             another number of rows in `before`, or a `before` where it is not causal
    """
    one_dtype(X=X, A=A, b=b, before=before)
    (*batch, n, H, d), K = X.shape, A.shape[-2]
    if K == 0:
        raise ValueError("A: no taps, should be at least one")
    left = taps_before(K, causal)
    must_broadcast(A, (*batch, n, H, K, d), "A", "the kernels")
    if b is not None:
        must_broadcast(b, X.shape, "b", "X")
    if before is not None and not (causal and before.shape[-3] == left):
        raise ValueError(
            f"before: {so_many(before.shape[-3], 'row')} for {so_many(K, 'tap')}, should be {K - 1}, with causal=True"
        )
    if A.shape[-1] == 1 and b is None and before is None and (loops := loops_in("convolution")):
        Y, convolve = loops.depthwise(X, A[..., 0], left=left)
        return Y, SharedPullback(convolve)
    rows = np.zeros_like(X, shape=(*batch, n + K - 1, H, d))
    rows[..., left : left + n, :, :] = X
    if before is not None:
        rows[..., :left, :, :] = before
    Y = np.zeros_like(X) if b is None else np.zeros_like(X) + b
    if n == 1:
        Y += (A * rows.swapaxes(-2, -3)[..., None, :, :, :]).sum(-2)
    else:
        for s in range(K):
            Y += A[..., s, :] * rows[..., s : s + n, :, :]
    return Y, DepthwisePullback(rows, A, b, left)
