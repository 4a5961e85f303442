"""FIRE: a small network turns the distance, as a share of how far the query could look back, into a bias.

    S_ij = ⟨q_i, k_j⟩/√d + f(z_ij),    z_ij = ln(|c| |i − j| + 1) / (ln(|c| max(i, |L|) + 1) + ε)

z of a causal pair is between 0 and 1 at any length: so a longer sequence asks f, learned on short ones, for hardly any new
value. Up to i = |L| a distance gives the same z for every query; beyond, distances are squeezed.
"""

import math
from typing import NamedTuple

import numpy as np

from minitransformer.arrays import one_dtype
from minitransformer.checks import frozen
from minitransformer.functional import ScoresPullback, scores
from minitransformer.gather_scatter import by_offset, refuse_other_heads, sum_by_offset, unbroadcast
from minitransformer.positions.encoding import ScoreEncoding, offsets
from minitransformer.pullback import Pullback
from minitransformer.typing import Array

START = 512.0  # |L| is START · |L_mult|; L_mult is learned, and starts at 1
EPS = 1e-6


class FIREParams(NamedTuple):
    """c (1,), L_mult (1,), and f: W_1 (1, U), b_1 (U,), W_2 (U, H), b_2 (H,).

    b_2 adds the same number to every score of a head, which softmax does not see: its gradient is 0.
    """

    c: Array
    L_mult: Array
    W_1: Array
    b_1: Array
    W_2: Array
    b_2: Array


# ---------------------------------------------------------------------------------------- the distance


class RelativeDistancePullback(Pullback):
    """z_ij = N_|i−j|/D_i, so dN = Σ dz/D along the diagonals, and dD_i = −Σ_j dz_ij z_ij/D_i.

    N = ln(|c| t + 1):      d|c| gets  dN t/(|c| t + 1)
    D = ln(|c| M + 1) + ε:  d|c| gets  dD M/(|c| M + 1),  and dM_i = dD_i |c|/(|c| M_i + 1)
    M = max(i, |L|):        d|L| gets  dM_i where |L| > i
    """

    c: Array
    L: Array
    t: Array
    i: Array
    M: Array
    D: Array
    z: Array

    def __call__(self, dz: Array) -> tuple[Array, Array]:
        c = np.abs(self.c)
        dN = sum_by_offset(dz / self.D[:, None])
        dD = -(dz * self.z).sum(-1) / self.D
        dc = (dN * self.t / (c * self.t + 1)).sum(keepdims=True) + (dD * self.M / (c * self.M + 1)).sum(keepdims=True)
        dL = (dD * c / (c * self.M + 1))[np.abs(self.L) > self.i].sum(keepdims=True)
        return np.sign(self.c) * dc, np.sign(self.L) * dL


def relative_distance(c: Array, L: Array, n: int, m: int) -> tuple[Array, RelativeDistancePullback]:
    """z (n, m) of all pairs, for queries at the last n of m positions; and a pullback: dz to (dc, dL)."""
    t = np.abs(offsets(n, m)).astype(c.dtype)
    i = np.arange(m - n, m).astype(c.dtype)
    M = np.maximum(i, np.abs(L))
    D = np.log1p(np.abs(c) * M) + c.dtype.type(EPS)
    z = by_offset(np.log1p(np.abs(c) * t), n, m) / D[:, None]
    return z, RelativeDistancePullback(c, L, t, i, M, D, z)


# ----------------------------------------------------------------------------------------- the network


class FIRENetworkPullback(Pullback):
    """A two-layer network of one number: h = max(z W_1 + b_1, 0), f = h W_2 + b_2. h is computed again, row by row."""

    z: Array
    params: FIREParams

    def __call__(self, dB: Array) -> tuple[Array, Array, Array, Array, Array]:
        _, _, W_1, b_1, W_2, _ = self.params
        dz, dW_1, db_1, dW_2 = np.empty_like(self.z), np.zeros_like(W_1), np.zeros_like(b_1), np.zeros_like(W_2)
        for i, z in enumerate(self.z):
            df = dB[:, i].T
            h = np.maximum(z[:, None] * W_1 + b_1, 0)
            dh = (df @ W_2.T) * (h > 0)
            dz[i] = dh @ W_1[0]
            dW_1 += z @ dh
            db_1 += dh.sum(0)
            dW_2 += h.T @ df
        return dz, dW_1, db_1, dW_2, dB.sum((-2, -1))


def fire_network(params: FIREParams, z: Array) -> tuple[Array, FIRENetworkPullback]:
    """f(z_ij) of each head, (H, n, m). A row at a time, so that the hidden layer needs m U numbers and not n m U."""
    _, _, W_1, b_1, W_2, b_2 = params
    B = np.empty((len(b_2), *z.shape), z.dtype)
    for i, row in enumerate(z):
        B[:, i] = (np.maximum(row[:, None] * W_1 + b_1, 0) @ W_2 + b_2).T
    return B, FIRENetworkPullback(z, params)


# ---------------------------------------------------------------------------------------- the encoding


class FIREPullback(Pullback):
    """S = C + B: dS goes to the contents, and summed over the batch through f and z to what was learned."""

    content: ScoresPullback
    network: FIRENetworkPullback
    distance: RelativeDistancePullback

    def __call__(self, dS: Array) -> tuple[FIREParams, Array, Array]:
        dz, *dnetwork = self.network(unbroadcast(dS, dS.shape[-3:]))
        dc, dL = self.distance(dz)
        return FIREParams(dc, START * dL, *dnetwork), *self.content(dS)


@frozen
class FIRE(ScoreEncoding):
    """A learned function of the distance, as a share of how far the query could look back.

    It goes both ways too, with |i − j|; the z of a key ahead may then be larger than 1.

    heads    H
    hidden   U, width of the network
    source   Li et al. 2023, with the values of the listing there: c from 0.1, |L| from 512, ε = 10⁻⁶
    cost     O(n m U H) time, O(n m H) memory. At i = 0, where there is no distance to divide by, |L| > 0 takes its place
    """

    heads: int
    hidden: int = 32

    unseen = ("b_2",)

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> FIREParams:
        """c = 0.1, L_mult = 1; weights and biases uniform on ±1 and, in the second layer, ±1/√U."""
        U, H, s = self.hidden, self.heads, 1 / math.sqrt(self.hidden)
        first = [rng.uniform(-1, 1, shape).astype(dtype) for shape in ((1, U), (U,))]
        second = [rng.uniform(-s, s, shape).astype(dtype) for shape in ((U, H), (H,))]
        return FIREParams(np.full(1, 0.1, dtype), np.ones(1, dtype), *first, *second)

    def scores(self, params: FIREParams, Q: Array, K: Array) -> tuple[Array, FIREPullback]:
        """C + f(z), where C are the scaled scores of the contents."""
        one_dtype(Q=Q, c=params.c, W_2=params.W_2)
        refuse_other_heads(Q, self.heads)
        z, distance = relative_distance(params.c, START * params.L_mult, Q.shape[-2], K.shape[-2])
        B, network = fire_network(params, z)
        C, content = scores(Q, K)
        return C + B, FIREPullback(content, network, distance)
