"""AdamW, clipping and accumulation: functions over trees of parameters and of gradients. Nothing is changed in place."""

import math
import reprlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from minitransformer.checks import beside, choose, fits, frozen, refuse_other_numbers
from minitransformer.functional import loops_in
from minitransformer.pullback import Tree, tree_add, tree_items, tree_leaves, tree_map
from minitransformer.ranges import Fraction, NonNegativeNumber, PositiveNumber
from minitransformer.training.parallel import each
from minitransformer.typing import Array


class AdamWState(NamedTuple):
    """Number of updates so far, and the running means of the gradients and of their squares, trees like the parameters."""

    step: int
    m: Tree
    v: Tree


@frozen
class AdamW:
    """Adam with the weight decay beside the gradient, not inside it.

        m ← β₁ m + (1 − β₁) g                m̂ = m / (1 − β₁ᵗ)
        v ← β₂ v + (1 − β₂) g²               v̂ = v / (1 − β₂ᵗ)
        θ ← θ − rate · (m̂ / (√v̂ + ε) + λ θ)

    weight_decay   λ, for arrays of two axes or more; gains and biases, which have one, are not pulled to zero
    source         Loshchilov and Hutter 2019; Adam: Kingma and Ba 2015
    cost           O(parameters); the state is twice as large as they are
    """

    betas: tuple[Fraction, Fraction] = (0.9, 0.99)
    eps: PositiveNumber = 1e-8  # with 0, a gradient of zeros would be divided by 0
    weight_decay: NonNegativeNumber = 0.01

    def init(self, params: Tree) -> AdamWState:
        """The state before the first update: both means are zero."""
        return AdamWState(0, tree_map(np.zeros_like, params), tree_map(np.zeros_like, params))

    def update(self, params: Tree, grads: Tree, state: AdamWState, rate: float) -> tuple[Tree, AdamWState]:
        """One step against the gradient, of size about `rate` in each coordinate; returns new parameters and state.

        A parameter without a gradient (None in its place) is left as it is: no weight decay either.
        Gradients and means belong to parameters by their names; what has another dtype is brought to that of its parameter.
        raises   ValueError or TypeError that names the part: for a gradient or a mean of another shape than its parameter, a part
                 that only one of the trees has, or a parameter that is no array of float32 or float64
        """
        if not isinstance(state, AdamWState):
            raise TypeError(f"state: {reprlib.repr(state)} should be AdamWState")
        choose("rate", rate, float)
        t = state.step + 1
        beta1, beta2 = self.betas
        c1, c2 = 1 - beta1**t, 1 - beta2**t

        def step(theta: Array, g: Array, m: Array, v: Array) -> tuple[Array, Array, Array]:
            m, v = beta1 * m, beta2 * v
            work = (1 - beta1) * g  # the one temporary array, used over and over
            m += work
            np.multiply(g, g, out=work)
            work *= 1 - beta2
            v += work
            np.sqrt(v, out=work)
            work *= c2**-0.5
            work += self.eps
            np.divide(m, work, out=work)
            work *= -rate / c1
            work += self._kept(theta, rate) * theta
            return work, m, v

        trees = {"grads": grads, "state.m": state.m, "state.v": state.v}
        refuse_other_numbers(params, "params")
        columns = tree_leaves(params), *(beside(tree, params, name) for name, tree in trees.items())
        leaves = list(zip(*columns, strict=True))
        trained = [leaf for leaf in leaves if leaf[1] is not None]
        if trained and (loops := loops_in("pointwise")):
            kept = [self._kept(theta, rate) for theta, *_ in trained]
            moved = loops.adamw(*zip(*trained, strict=True), kept, betas=self.betas, t=t, eps=self.eps, rate=rate)
        else:
            moved = [step(*leaf) for leaf in trained]
        new = iter(moved)
        now = [next(new) if g is not None else (theta, m, v) for theta, g, m, v in leaves]
        params, m, v = (with_leaves(params, [leaf[k] for leaf in now]) for k in range(3))
        return params, AdamWState(t, m, v)

    def _kept(self, theta: Array, rate: float) -> float:
        """What weight decay leaves of a parameter: 1 − rate · λ."""
        return 1 - rate * self.weight_decay if theta.ndim >= 2 else 1.0


def with_leaves(tree: Tree, leaves: Iterable[Any]) -> Tree:
    """A tree of the same shape with other leaves, given in the order of `tree_leaves`."""
    rest = iter(leaves)
    return tree_map(lambda _: next(rest), tree)


def global_norm(grads: Tree) -> float:
    """√ Σ g², over every entry of every array of a tree."""
    return math.sqrt(sum(float(np.vdot(g, g)) for g in tree_leaves(grads)))


def clip(grads: Tree, largest: float) -> tuple[Tree, float]:
    """Shrink a gradient to the norm `largest` if it is longer, keeping its direction; also returns the norm it had.

    source   Pascanu, Mikolov and Bengio 2013
    raises   TypeError for what is no array of float32 or float64, or a norm that is no number; ValueError for a norm below 0
    """
    refuse_other_numbers(grads, "grads")
    if not fits(largest, float):
        raise TypeError(f"largest: {reprlib.repr(largest)} should be a number, at least 0")
    if not largest >= 0:
        raise ValueError(f"largest: {largest} should be a number, at least 0")
    norm = global_norm(grads)
    if norm <= largest or not math.isfinite(norm):
        return grads, norm
    return tree_map(lambda g: g * g.dtype.type(largest / norm), grads), norm


def accumulate(gradient: Callable[[Any], tuple[float, Tree]], parts: Sequence[Any]) -> tuple[float, Tree]:
    """Mean loss and mean gradient over the parts of a batch; with equal parts, those of the whole batch.

    gradient   part -> (loss, gradient tree)
    raises     TypeError for what is no function, or for parts that are no list or tuple; ValueError if there is no part, or
               gradients of two parts differ in form
    """
    if not callable(gradient):
        raise TypeError(f"gradient: {reprlib.repr(gradient)} should be a function of a part")
    if isinstance(parts, str) or not isinstance(parts, Sequence):
        raise TypeError(f"parts: {reprlib.repr(parts)} should be a list of parts of a batch")
    if not parts:
        raise ValueError("parts: a mean needs at least one")
    loss, total = 0.0, None
    for part_loss, grads in each(gradient, parts):
        loss += part_loss
        if total is None:
            total = grads
        else:
            _refuse_other_form(grads, total)
            total = tree_add(total, grads)
    if len(parts) > 1:
        total = tree_map(lambda g: g / g.dtype.type(len(parts)), total)
    return loss / len(parts), total


def _refuse_other_form(grads: Tree, before: Tree) -> None:
    """Raise ValueError, which names the array, unless two gradients have the same arrays, in the same shapes."""
    tree_map(lambda *_: None, before, grads)  # which names a part that only one of them has
    shapes, wanted = ({path: np.shape(leaf) for path, leaf in tree_items(tree, "grads")} for tree in (grads, before))
    for path in shapes | wanted:
        if shapes.get(path) != wanted.get(path):
            said = " and ".join(str(found.get(path, "missing")) for found in (wanted, shapes))
            raise ValueError(f"{path}: the gradients of two parts differ in form, {said}")
