"""The loops of a training step that go through an array row by row: layer norm, RMS norm, cross-entropy.

    for each row x, in parallel:                             one after another, if the array is small
        numbers of the row: its mean, root, top …            a pass over a row that is in the first-level cache
        y = what the definition makes of x and these         another pass, while it is still there
    in the backward pass
        x̂ or P is found again from x and the numbers;  dx = …
        dγ and dβ are sums over the rows, in 32 parts        in one, if the array is small

Why this is fast. A row comes from memory once and its result goes there once, where NumPy writes and reads an array for
every step of the formula. All that is remembered besides the arguments is one or two numbers for each row.

A sum along a row may be taken in any order (`any_order`), because the compiler can then keep many partial sums side by side
in a register. Loops of this kind hold no `exp2`, whose rounding trick needs the written order. The order is fixed when they
are compiled, the number of parts by the size of the array, so bits don't depend on the number of threads.
"""

import math

import numpy as np

from minitransformer.kernels.compiling import any_order, compiled
from minitransformer.kernels.exp2 import LOG2E, exp2
from minitransformer.kernels.pointwise import SMALL, for_loops, run
from minitransformer.kernels.threads import borrowed, claimed
from minitransformer.kernels.tiles import larger
from minitransformer.pullback import Pullback
from minitransformer.typing import Array

LANES = 16  # entries of a row that are compared side by side, in search of the largest
PARTS = 32  # of the rows, for a sum over all of them


def _rows(X: Array) -> Array:
    """X as the loops take it, with all batch axes as one: (*batch, D) to (rows, D), contiguous."""
    return for_loops(X, X.dtype, X.shape).reshape(math.prod(X.shape[:-1]), X.shape[-1])


@any_order
def total(x):
    """The sum Σ x_j."""
    s = x.dtype.type(0)
    for j in range(len(x)):
        s += x[j]
    return s


# ----------------------------------------------------------------------------------------- normalisation


@any_order
def squares(x, mu):
    """Σ (x_j − μ)²."""
    s = x.dtype.type(0)
    for j in range(len(x)):
        s += (x[j] - mu) * (x[j] - mu)
    return s


@any_order
def along(dy, gamma, x, mu):
    """Σ G and Σ G ⊙ (x − μ), with G = dy ⊙ γ."""
    s, t = x.dtype.type(0), x.dtype.type(0)
    for j in range(len(x)):
        G = dy[j] * gamma[j]
        s += G
        t += G * (x[j] - mu)
    return s, t


@compiled
def norm(centre, X, gamma, beta, eps, Y, mu, root, queue):
    """Fill each row of Y, y = γ ⊙ (x − μ)/root + β, and its mu and root = √(mean (x − μ)² + ε); with `centre` = False, μ is 0."""
    one, D = X.dtype.type(1), X.dtype.type(X.shape[1])
    for part in claimed(queue, queue[1]):
        for i in range(part * len(X) // queue[1], (part + 1) * len(X) // queue[1]):
            x, y = X[i], Y[i]
            m = total(x) / D if centre else X.dtype.type(0)
            below = np.sqrt(squares(x, m) / D + eps)
            mu[i], root[i] = m, below
            r = one / below
            for j in range(len(x)):
                y[j] = (x[j] - m) * r * gamma[j] + beta[j]


@compiled
def norm_back(centre, X, gamma, mu, root, dY, dX, dgamma, dbeta, queue):
    """Fill dX, dx = (G − mean G − x̂ mean(G ⊙ x̂))/root, and add to dgamma and dbeta (parts, D), each part from some rows.

    G is dy ⊙ γ. With `centre` = False, mean G is left out.
    """
    X, gamma, dY, dX, dgamma, dbeta = borrowed((X, gamma, dY, dX, dgamma, dbeta))
    one, zero, D = X.dtype.type(1), X.dtype.type(0), X.dtype.type(X.shape[1])
    parts = len(dgamma)
    for share in claimed(queue, queue[1]):
        # neighbours share lines of the cache
        for part in range(share * parts // queue[1], (share + 1) * parts // queue[1]):
            dg, db = dgamma[part], dbeta[part]
            for i in range(part * len(X) // parts, (part + 1) * len(X) // parts):
                x, dy, dx = X[i], dY[i], dX[i]
                m, r = mu[i], one / root[i]
                sum_G, sum_Gx = along(dy, gamma, x, m)
                mean_G, slope = sum_G / D if centre else zero, sum_Gx * r * r / D
                for j in range(len(x)):
                    dx[j] = (dy[j] * gamma[j] - mean_G - (x[j] - m) * slope) * r  # undoes x̂ = (x − m) r, y = γ x̂ + β
                for j in range(len(x)):
                    dg[j] += dy[j] * ((x[j] - m) * r)  # undoes y = γ x̂ + β, for γ
                    db[j] += dy[j]  # and for β


def _norm(centre: bool, X: Array, gamma: Array, beta: Array, eps: float) -> tuple[Array, Array, Array]:
    """Y, μ and root, the last two (*batch, 1)."""
    Y, mu, root = (
        np.empty(X.shape, X.dtype),
        np.empty((*X.shape[:-1], 1), X.dtype),
        np.empty((*X.shape[:-1], 1), X.dtype),
    )
    rows, gamma, beta = _rows(X), for_loops(gamma, X.dtype, X.shape[-1:]), for_loops(beta, X.dtype, X.shape[-1:])
    arrays = Y.reshape(rows.shape), mu.reshape(-1), root.reshape(-1)
    run(norm, X.size, centre, rows, gamma, beta, X.dtype.type(eps), *arrays)
    return Y, mu, root


def _norm_back(centre: bool, X: Array, gamma: Array, mu: Array, root: Array, dY: Array) -> tuple[Array, Array, Array]:
    """dX, dγ and dβ."""
    rows, dX = _rows(X), np.empty(X.shape, X.dtype)
    dY = for_loops(dY, X.dtype, X.shape).reshape(rows.shape)
    shape = 1 if X.size < SMALL else PARTS, X.shape[-1]
    dgamma, dbeta = np.zeros(shape, X.dtype), np.zeros(shape, X.dtype)
    known = rows, for_loops(gamma, X.dtype, X.shape[-1:]), mu.reshape(-1), root.reshape(-1)
    run(norm_back, X.size, centre, *known, dY, dX.reshape(rows.shape), dgamma, dbeta)
    return dX, dgamma.sum(0), dbeta.sum(0)


class LayerNormLoopPullback(Pullback):
    """With G = dY ⊙ γ, dX = (G − mean G − x̂ mean(G ⊙ x̂))/root, where x̂ = (x − μ)/root is found again from x."""

    X: Array
    gamma: Array
    mu: Array
    root: Array

    @property
    def Xhat(self) -> Array:  # noqa: N802
        """(X − μ)/root, made again when it is asked for."""
        return (self.X - self.mu) / self.root

    def __call__(self, dY: Array) -> tuple[Array, Array, Array]:
        return _norm_back(True, self.X, self.gamma, self.mu, self.root, dY)


def layer_norm(X: Array, gamma: Array, beta: Array, eps: float) -> tuple[Array, LayerNormLoopPullback]:
    """Y = γ ⊙ (x − μ)/√(σ² + ε) + β."""
    Y, mu, root = _norm(True, X, gamma, beta, eps)
    return Y, LayerNormLoopPullback(X, gamma, mu, root)


class RMSNormLoopPullback(Pullback):
    """With G = dY ⊙ γ, dX = (G − x̂ mean(G ⊙ x̂))/root, where x̂ = x/root is found again from x."""

    X: Array
    gamma: Array
    root: Array

    @property
    def Xhat(self) -> Array:  # noqa: N802
        """X/root, made again when it is asked for."""
        return self.X / self.root

    def __call__(self, dY: Array) -> tuple[Array, Array]:
        return _norm_back(False, self.X, self.gamma, np.zeros_like(self.root), self.root, dY)[:2]


def rms_norm(X: Array, gamma: Array, eps: float) -> tuple[Array, RMSNormLoopPullback]:
    """Y = γ ⊙ x/√(mean x² + ε)."""
    Y, _, root = _norm(False, X, gamma, np.zeros_like(gamma), eps)
    return Y, RMSNormLoopPullback(X, gamma, root)


# ----------------------------------------------------------------------------------------- cross-entropy


@compiled
def entropy(logits, targets, top, totals, losses, queue):
    """Of each row x: top = max x, total = Σ exp(x − top) and the loss −log P(target) = ln total − (x_target − top)."""
    log2e = logits.dtype.type(LOG2E)
    lanes, e = np.empty(LANES, logits.dtype), np.empty(logits.shape[1], logits.dtype)
    whole = logits.shape[1] // LANES * LANES
    for part in claimed(queue, queue[1]):
        for i in range(part * len(logits) // queue[1], (part + 1) * len(logits) // queue[1]):
            x = logits[i]
            lanes[:] = -np.inf
            for j in range(0, whole, LANES):
                for k in range(LANES):
                    lanes[k] = larger(lanes[k], x[j + k])
            largest = logits.dtype.type(-np.inf)
            for k in range(LANES):
                largest = max(largest, lanes[k])
            for j in range(whole, len(x)):
                largest = max(largest, x[j])
            for j in range(len(x)):
                e[j] = exp2((x[j] - largest) * log2e)
            top[i], totals[i] = largest, total(e)
            losses[i] = np.log(totals[i]) - (x[targets[i]] - largest)


@compiled
def entropy_back(logits, targets, top, totals, weight, dlogits, queue):
    """Fill the rows of dlogits: (P − one-hot(target)) · weight, with P = exp(x − top)/total."""
    log2e = logits.dtype.type(LOG2E)
    for part in claimed(queue, queue[1]):
        for i in range(part * len(logits) // queue[1], (part + 1) * len(logits) // queue[1]):
            x, dx, largest, share = logits[i], dlogits[i], top[i], weight[i] / totals[i]
            for j in range(len(x)):
                dx[j] = exp2((x[j] - largest) * log2e) * share  # undoes ln Σ exp(x − top)
            dx[targets[i]] -= weight[i]  # undoes − (x_target − top)


class CrossEntropyLoopPullback(Pullback):
    """∂(−log P_t)/∂logits = P − one-hot(t), times the weight of its row; P = exp(x − top)/total is found again."""

    logits: Array
    targets: Array
    weight: Array
    top: Array
    total: Array

    @property
    def P(self) -> Array:  # noqa: N802
        """The probabilities, made again when they are asked for."""
        return np.exp(self.logits - self.top[..., None]) / self.total[..., None]

    def __call__(self, dloss: Array) -> Array:
        rows, dlogits = _rows(self.logits), np.empty(self.logits.shape, self.logits.dtype)
        weight = for_loops((dloss * self.weight).reshape(-1), rows.dtype, rows.shape[:1])
        targets = for_loops(self.targets.reshape(-1), np.dtype(np.int64), rows.shape[:1])
        arrays = self.top.reshape(-1), self.total.reshape(-1), weight, dlogits.reshape(rows.shape)
        run(entropy_back, rows.size, rows, targets, *arrays)
        return dlogits


def cross_entropy(logits: Array, targets: Array, weight: Array) -> tuple[Array, CrossEntropyLoopPullback]:
    """The loss, Σ −log P(target) · weight over all rows, with P = softmax(logits)."""
    rows = _rows(logits)
    top, totals, losses = (np.empty(targets.shape, logits.dtype) for _ in range(3))
    numbers = top.reshape(-1), totals.reshape(-1), losses.reshape(-1)
    run(entropy, rows.size, rows, for_loops(targets.reshape(-1), np.dtype(np.int64), numbers[0].shape), *numbers)
    return (losses * weight).sum(), CrossEntropyLoopPullback(logits, targets, weight, top, totals)
