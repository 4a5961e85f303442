"""Capsules that are routed by agreement: inputs vote, and outputs compete for them.

    u_j|i = u_i W_ij                                   votes: what output j would be if input i alone decided
    b_ij ← 0, then T times
        c_i = softmax of b_i over the outputs j        who gets input i
        s_j = Σ_i c_ij u_j|i
        v_j = squash(s_j) = s_j |s_j| / (1 + |s_j|²)   the length says how sure j is that its thing is there
        b_ij ← b_ij + ⟨u_j|i, v_j⟩                     inputs that agree with it weigh more in the next round

In attention the softmax runs over the inputs of one output, here it runs over the outputs of one input.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from minitransformer.arrays import must_broadcast, one_dtype
from minitransformer.checks import frozen
from minitransformer.functional import SoftmaxPullback, softmax
from minitransformer.gather_scatter import unbroadcast
from minitransformer.pullback import Pullback
from minitransformer.ranges import Iterations, NonNegative
from minitransformer.typing import Array, Float, checked


class SquashPullback(Pullback):
    """v = f s with f = |s|/(1 + |s|²), so δv = f δs + f′ ⟨ŝ, δs⟩ s with ŝ = s/|s|, and f′ |s| = f (1 − 2 |v|). Hence

    ds = f (dv + (1 − 2 |v|) ⟨ŝ, dv⟩ ŝ), which is 0 at s = 0, as f is.
    """

    S: Array
    norm: Array
    f: Array

    def __call__(self, dV: Array) -> Array:
        unit = self.S / np.where(self.norm == 0, 1, self.norm)
        along = (unit * dV).sum(-1, keepdims=True)
        return self.f * (dV + (1 - 2 * self.norm * self.f) * along * unit)


@checked
def squash(S: Float[Array, "*batch d"]) -> tuple[Float[Array, "*batch d"], SquashPullback]:
    """Rows of any length become rows that are shorter than 1, in the same direction: v = s |s| / (1 + |s|²).

    Short rows nearly vanish, as |s|², and long ones come near to 1. At s = 0 both v and the gradient are 0, where s/|s| would
    be NaN.

    source   Borealis II, attention as routing; Sabour, Frosst and Hinton 2017
    """
    with np.errstate(divide="ignore", over="ignore"):
        norm = np.sqrt((S * S).sum(-1, keepdims=True))
        if np.isinf(norm).any():  # where |s|² is too large, |s| may not be
            norm = _norm_in_units(S)
        f = 1 / (norm + 1 / norm)  # |s|/(1 + |s|²), also there; 0 at 0
    return f * S, SquashPullback(S, norm, f)


def _norm_in_units(S: Array) -> Array:
    """|s| of each row, (*batch, 1), by squares of numbers that are at most 1: in units of the row's largest entry."""
    largest = np.abs(S).max(-1, keepdims=True)
    units = S / np.where(largest == 0, 1, largest)
    return largest * np.sqrt((units * units).sum(-1, keepdims=True))


class VotesPullback(Pullback):
    """u_j|i = u_i W_ij, so du_i = Σ_j du_j|i W_ijᵀ, and dW_ij = Σ u_iᵀ du_j|i, a sum over the samples."""

    U: Array
    W: Array

    def __call__(self, dvotes: Array) -> tuple[Array, Array]:
        inputs, outputs, width, d = self.W.shape
        rows, wide = by_input(self.U), _side_by_side(self.W)
        dvotes = by_input(dvotes.reshape(*dvotes.shape[:-2], outputs * d))
        dU = (dvotes @ wide.mT).transpose(1, 0, 2).reshape(self.U.shape)
        dW = (rows.mT @ dvotes).reshape(inputs, width, outputs, d).transpose(0, 2, 1, 3)
        return dU, np.ascontiguousarray(dW)


def by_input(U: Array) -> Array:
    """(*batch, inputs, width) to (inputs, samples, width): one product of matrices for each input."""
    *batch, inputs, width = U.shape
    return U.reshape(math.prod(batch), inputs, width).transpose(1, 0, 2)


def _side_by_side(W: Array) -> Array:
    inputs, outputs, width, d = W.shape
    return W.transpose(0, 2, 1, 3).reshape(inputs, width, outputs * d)


@checked
def votes(
    U: Float[Array, "*batch inputs width"], W: Float[Array, "inputs outputs width d"]
) -> tuple[Float[Array, "*batch inputs outputs d"], VotesPullback]:
    """What each input says of each output: u_j|i = u_i W_ij, with a matrix for each pair.

    cost     O(samples · inputs · outputs · width · d) time; memory for the votes
    returns  the votes and a pullback: dU, dW = pullback(dvotes)
    """
    one_dtype(U=U, W=W)
    _, outputs, _, d = W.shape
    said = by_input(U) @ _side_by_side(W)
    return said.transpose(1, 0, 2).reshape(*U.shape[:-1], outputs, d), VotesPullback(U, W)


class RoutePullback(Pullback):
    """Round T gives Y; each round before it only changes the weights of the next. From the last round to the first, with db = 0,

    dv_j = dy_j in round T, else Σ_i db_ij u_j|i         and du_j|i += db_ij v_j: agreement is a product of both
    ds_j = squash's pullback of dv_j
    dc_ij = ⟨u_j|i, ds_j⟩                                and du_j|i += c_ij ds_j
    db_ij += softmax's pullback of dc_i

    C and V hold the weights and outputs of all rounds. What is left in db is the gradient of the first logits.
    """

    votes: Array
    C: tuple[Array, ...]
    V: tuple[Array, ...]
    squashes: tuple[SquashPullback, ...]
    shape: tuple[int, ...] | None  # of the first logits, if they were given

    def __call__(self, dY: Array) -> Any:
        dvotes, db, dV = np.zeros_like(self.votes), np.zeros_like(self.C[0]), dY
        for t in reversed(range(len(self.C))):
            if t + 1 < len(self.C):
                dV = (db[..., None] * self.votes).sum(-3)
                dvotes += db[..., None] * self.V[t][..., None, :, :]
            dS = self.squashes[t](dV)[..., None, :, :]
            dvotes += self.C[t][..., None] * dS
            db = db + SoftmaxPullback(self.C[t])((self.votes * dS).sum(-1))
        return dvotes if self.shape is None else (dvotes, unbroadcast(db, self.shape))


@checked
def route(
    votes: Float[Array, "*batch inputs outputs d"],
    logits: Float[Array, "..."] | None = None,
    *,
    iterations: Iterations = 3,
) -> tuple[Float[Array, "*batch outputs d"], RoutePullback]:
    """Outputs that the inputs agree on, after T rounds.

        c_i = softmax_j(b_i),   v_j = squash(Σ_i c_ij u_j|i),   b_ij ← b_ij + ⟨u_j|i, v_j⟩

    logits      b before the first round, (inputs, outputs) or what broadcasts to (*batch, inputs, outputs); zero if not given
    iterations  T; with 1 every input is divided equally, or as the logits say
    source      Borealis II, attention as routing; Sabour, Frosst and Hinton 2017
    cost        O(T · size of the votes) time; remembers the votes, and weights and outputs of each round
    returns     (v_1 … v_outputs) and a pullback through all rounds: dvotes = pullback(dY), and dlogits if they were given. Its
                field C has the weights of each round
    raises      TypeError for a wrong shape or dtype; ValueError for logits that don't broadcast, and for votes that are NaN,
                which would reach every weight of their input and so every output
    """
    one_dtype(votes=votes, logits=logits)
    if np.isnan(votes).any():
        raise ValueError(f"votes: {np.isnan(votes).sum()} of {votes.size} are NaN, and would reach every output")
    b = np.zeros(votes.shape[:-1], votes.dtype)
    if logits is not None:
        b = b + must_broadcast(logits, b.shape, "logits", "the weights")
    C, V, squashes = [], [], []
    for _ in range(iterations):
        if V:
            b = b + (votes * V[-1][..., None, :, :]).sum(-1)
        c, _ = softmax(b)
        v, back = squash((c[..., None] * votes).sum(-3))
        C.append(c)
        V.append(v)
        squashes.append(back)
    shape = None if logits is None else logits.shape
    return V[-1], RoutePullback(votes, tuple(C), tuple(V), tuple(squashes), shape)


# ----------------------------------------------------------------------------------------------- the layer


class CapsulesParams(NamedTuple):
    """A matrix for each pair of an input and an output, (inputs, outputs, width, d)."""

    W: Array


class CapsulesPullback(Pullback):
    """Back through the routing, then through the votes."""

    votes: VotesPullback
    routing: RoutePullback

    def __call__(self, dV: Array) -> tuple[CapsulesParams, Array]:
        dU, dW = self.votes(self.routing(dV))
        return CapsulesParams(dW), dU


@frozen
class Capsules:
    """A layer of capsules over a layer of capsules, connected by agreement.

    inputs      capsules below, rows of U
    outputs     capsules above
    width       of a row of U
    d           of an output
    iterations  T, rounds of routing
    source      as `route`; the gradient goes through all rounds, as in the published code
    cost        inputs · outputs · width · d parameters, and as many products for each sample
    """

    inputs: int
    outputs: NonNegative
    width: int
    d: int
    iterations: Iterations = 3

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> CapsulesParams:
        """Normal with variance 1/d: the vote of an input of length 1 has a length near 1."""
        shape = self.inputs, self.outputs, self.width, self.d
        return CapsulesParams((rng.standard_normal(shape) / math.sqrt(self.d)).astype(dtype))

    @checked
    def __call__(
        self, params: CapsulesParams, U: Float[Array, "*batch {self.inputs} {self.width}"]
    ) -> tuple[Float[Array, "*batch {self.outputs} {self.d}"], CapsulesPullback]:
        """Pullback: dV to (dparams, dU). Raises as `route`."""
        said, cast = votes(U, params.W)
        if np.isnan(said).any():
            raise ValueError(f"U: gives votes that are NaN, {np.isnan(said).sum()} of {said.size}")
        V, routing = route(said, iterations=self.iterations)
        return V, CapsulesPullback(cast, routing)
