"""Hopfield networks of neurons that are −1 or 1: the classical one, and dense associative memories.

    classical    E(s) = −½ sᵀ W s,        W = (1/d) Σ_j x_j x_jᵀ without its diagonal
    dense        E(s) = −Σ_j F(⟨x_j, s⟩),    F(z) = zᵖ or exp z

A neuron takes the side on which the energy is lower. One after another, they can never let it grow; all at once, they can.
With F(z) = z² the dense memory is the classical one: there d E is −½ Σ_j ⟨x_j, s⟩², and the diagonal adds the same for every s.
"""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from minitransformer.arrays import one_dtype
from minitransformer.typing import Array, Float, checked

Order = Literal["asynchronous", "synchronous"]


class Recall(NamedTuple):
    """The states that a memory goes through, one after each sweep over all neurons.

    states     (1 + sweeps, *batch, d), the first is where it set out
    energies   (1 + sweeps, *batch)
    settled    whether the last sweep changed nothing, (*batch)
    """

    states: Array
    energies: Array
    settled: Array


def _refuse_other_signs(name: str, s: Array) -> None:
    if not (np.abs(s) == 1).all():
        raise ValueError(f"{name}: its entries should be −1 or 1")


def _side(difference: Array, rounding: Array, before: Array) -> Array:
    """The sign of E(−1) − E(1); where both are equal, but for rounding, a neuron stays as it was."""
    return np.where(np.abs(difference) <= rounding, before, np.sign(difference)).astype(before.dtype)


def _order(d: int, rng: np.random.Generator | None) -> Array:
    return np.arange(d) if rng is None else rng.permutation(d)


def _until_still(s: Array, sweep: Callable[[Array], Array], energy: Callable[[Array], Array], sweeps: int) -> Recall:
    """Sweep after sweep from the state s on, until one changes nothing or there have been as many as allowed."""
    states = [s]
    for _ in range(sweeps):
        states.append(sweep(states[-1]))
        if (states[-1] == states[-2]).all():
            break
    return Recall(np.stack(states), np.stack([energy(state) for state in states]), (states[-1] == states[-2]).all(-1))


# ----------------------------------------------------------------------------------------------- classical


@checked
def hebbian(X: Float[Array, "m d"]) -> Float[Array, "d d"]:
    """The weights that store m patterns of d neurons: what fires together is wired together.

        W_ab = (1/d) Σ_j X_ja X_jb,   W_aa = 0

    source   Hopfield 1982
    cost     O(m d²) time, O(d²) memory, however many patterns are stored
    raises   TypeError for a wrong shape or dtype, ValueError for entries that are not −1 or 1
    """
    _refuse_other_signs("X", X)
    W = X.T @ X / X.dtype.type(max(X.shape[-1], 1))
    np.fill_diagonal(W, 0)
    return W


@checked
def classical_energy(W: Float[Array, "d d"], s: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
    """E(s) = −½ sᵀ W s of a state s. Cost O(d²). Source: Hopfield 1982."""
    one_dtype(W=W, s=s)
    return np.asarray(-((s @ W) * s).sum(-1) / 2)


@checked
def classical_recall(
    W: Float[Array, "d d"],
    s: Float[Array, "*batch d"],
    *,
    order: Order = "asynchronous",
    sweeps: int = 50,
    rng: np.random.Generator | None = None,
) -> Recall:
    """Where a classical Hopfield network goes from a state.

        s_a ← sign Σ_b W_ab s_b,   since E(s_a = −1) − E(s_a = 1) = 2 Σ_b W_ab s_b

    A neuron on a tie stays as it was; a sum that is no larger than its rounding may be is a tie.

    order    "asynchronous": one neuron after another, and no change lets the energy grow; "synchronous": all at once, where a
             pair of states can follow each other for ever
    sweeps   largest number of sweeps over all neurons
    rng      draws the order of each sweep; without it, from the first neuron to the last
    source   Hopfield 1982. About 0.138 d random patterns can be stored (Amit, Gutfreund and Sompolinsky 1985)
    cost     O(d²) for a sweep
    raises   TypeError for a wrong shape or dtype, ValueError for entries that are not −1 or 1, or a W that is not symmetric or
             has a diagonal: then there is no such energy
    """
    one_dtype(W=W, s=s)
    _refuse_other_signs("s", s)
    if not np.array_equal(W, W.T) or np.diagonal(W).any():
        raise ValueError("W: it should be symmetric, with zeros on its diagonal")

    exact = W.astype(np.float64)  # so that in float32 only the weights are rounded, and not their sums too
    rounding = (np.finfo(W.dtype).eps + len(W) * np.finfo(np.float64).eps) * np.abs(exact).sum(-1)

    def sweep(s: Array) -> Array:
        if order == "synchronous":
            return _side(s @ exact, rounding, s)
        s = s.copy()
        for a in _order(len(W), rng):
            s[..., a] = _side(s @ exact[a], rounding[a], s[..., a])
        return s

    return _until_still(s, sweep, lambda s: classical_energy(W, s), sweeps)


# --------------------------------------------------------------------------------------------------- dense


def _power(z: Array, power: int) -> Array:
    """z^power, for a whole number of factors."""
    return functools.reduce(np.multiply, [z] * power)


def _rises(overlaps: Array, x: Array, power: int | None) -> tuple[Array, Array]:
    """Σ_j F(o_j + x_j) − F(o_j − x_j), as a number of the same sign: an exponential is taken relative to the largest.

    overlaps   of the patterns with all other neurons, (*batch, m)
    returns    the sum, in float64, and how large rounding can make it where it is zero
    """
    up, down = ((overlaps + sign * x).astype(np.float64) for sign in (1, -1))
    if power is None:
        top = np.maximum(up, down).max(-1, keepdims=True, initial=-np.inf)
        terms = np.exp(up - top) - np.exp(down - top)
    else:
        terms = _power(up, power) - _power(down, power)
    return terms.sum(-1), len(x) * np.finfo(np.float64).eps * np.abs(terms).sum(-1)


@checked
def dense_energy(
    X: Float[Array, "m d"], s: Float[Array, "*batch d"], *, power: int | None = 3
) -> Float[Array, "*batch"]:
    """The energy of a state in a dense associative memory.

        E(s) = −Σ_j F(⟨x_j, s⟩),   F(z) = z^power, or exp z without a power; then E is given as −ln of the sum

    The logarithm keeps the order of energies, and the exponential of a large overlap from being infinite. Without patterns E is
    0, and ∞ without a power.
    source   Krotov and Hopfield 2016 (powers); Demircigil et al. 2017 (exp)
    cost     O(m d)
    raises   TypeError for a wrong shape or dtype
    """
    one_dtype(X=X, s=s)
    overlaps = s @ X.T
    if power is not None:
        return np.asarray(0 - _power(overlaps, power).sum(-1))
    top = overlaps.max(-1, initial=np.finfo(s.dtype).min)
    with np.errstate(divide="ignore"):  # without patterns it is −ln 0
        return np.asarray(-(top + np.log(np.exp(overlaps - top[..., None]).sum(-1))))


@checked
def dense_recall(
    X: Float[Array, "m d"],
    s: Float[Array, "*batch d"],
    *,
    power: int | None = 3,
    order: Order = "asynchronous",
    sweeps: int = 50,
    rng: np.random.Generator | None = None,
) -> Recall:
    """Where a dense associative memory goes from a state.

        s_a ← sign Σ_j [F(X_ja + Σ_{b≠a} X_jb s_b) − F(−X_ja + Σ_{b≠a} X_jb s_b)]

    power    of F(z) = z^power; None for exp z. With 2 it is the classical network
    order    as in `classical_recall`
    source   Krotov and Hopfield 2016, who store a number of patterns that grows as d^(power − 1); Demircigil et al. 2017, as
             2^(d/2) for exp
    cost     O(m d) for a sweep: the patterns themselves are kept, and no matrix of weights
    raises   TypeError for a wrong shape or dtype, ValueError for entries that are not −1 or 1
    """
    one_dtype(X=X, s=s)
    _refuse_other_signs("X", X)
    _refuse_other_signs("s", s)

    def sweep(old: Array) -> Array:
        s, overlaps = old.copy(), old @ X.T
        for a in _order(X.shape[-1], rng):
            others = overlaps - old[..., a, None] * X[:, a]
            s[..., a] = _side(*_rises(others, X[:, a], power), old[..., a])
            if order == "asynchronous":
                overlaps = others + s[..., a, None] * X[:, a]
        return s

    return _until_still(s, sweep, lambda s: dense_energy(X, s, power=power), sweeps)
