"""The one idea of the book: a differentiable function returns its value and its pullback.

    Y, pullback = f(X, W)          the value, and what the backward pass remembers
    dX, dW = pullback(dY)          gradients of the inputs, in the order of the signature

A pullback (elsewhere: vector–Jacobian product, or backward function) is a named tuple, of class `Pullback`. Its
fields are what the backward pass remembers, under the names of the equation; calling it maps the gradient of the
output to the gradients of the inputs. One gradient is returned for each real-valued argument, in order; a single one
comes as it is, not in a tuple. Arguments that are not real (tokens, masks, generators) and options (scale,
causal) get none.

In derivations δY is a small change of Y, and dY the gradient ∂L/∂Y: δL = ⟨dY, δY⟩.

Parameters are ordinary inputs: a tree, that is a `NamedTuple`, tuple, list or dict of arrays and further
trees. The gradient of a tree is a tree of the same type.

Three parts: trees, composition, and added losses. The checker that every function of the book has passed is in `checker.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array  # as in `typing`, without waiting for Jaxtyping

from minitransformer.marks import Pullback
from minitransformer.ranges import so_many

Tree = Any  # an array, None, or a (named) tuple, list or dict of trees
Layer = Callable[..., tuple[Array, Pullback]]  # layer(params, X) -> (Y, pullback)

# ---------------------------------------------------------------------------------------------- trees


class NoParams(NamedTuple):
    """The parameters of a layer that has nothing to learn."""


def is_named(tree: Tree) -> bool:
    """Whether a tree is a named tuple. Its class, which a pullback may remember, has the same `_fields`, and is a leaf."""
    return isinstance(tree, tuple) and hasattr(tree, "_fields")


def tree_parts(tree: Tree) -> dict[Any, Tree] | None:
    """The parts of a tree by name, or by number if they have no names; None for a leaf."""
    if isinstance(tree, dict):
        return tree
    if is_named(tree):
        return tree._asdict()
    return dict(enumerate(tree)) if isinstance(tree, (tuple, list)) else None


def tree_items(tree: Tree, path: str = "") -> Iterator[tuple[str, Any]]:
    """Walk the leaves of a tree: pairs of a readable path and a leaf, such as `("blocks.0.attention.W_q", array)`."""
    parts = tree_parts(tree)
    if parts is not None:
        for name, part in parts.items():
            yield from tree_items(part, f"{path}.{name}" if path else str(name))
    elif tree is not None:
        yield path, tree


def tree_map(function: Callable[..., Any], tree: Tree, *others: Tree, path: str = "") -> Tree:
    """Apply a function to each leaf of one tree, or to the corresponding leaves of several; in a dict by name, in any order.

    Where one of the others is None instead of a tree, each leaf is paired with None.
    raises   ValueError that names a part which only one of the trees has
    """
    if tree is None:
        return None
    parts = tree_parts(tree)
    if parts is None:
        return function(tree, *others)
    there = [dict.fromkeys(parts) if other is None else tree_parts(other) or {} for other in others]
    if odd := [name for other in there for name in (*parts, *other) if (name in parts) != (name in other)]:
        raise ValueError(f"{path}{'.' if path else ''}{odd[0]}: one of the trees has it, another has not")
    mapped = {
        name: tree_map(function, part, *(other[name] for other in there), path=f"{path}.{name}" if path else str(name))
        for name, part in parts.items()
    }
    if isinstance(tree, dict):
        return mapped
    return type(tree)(*mapped.values()) if is_named(tree) else type(tree)(mapped.values())


def tree_leaves(tree: Tree) -> list[Any]:
    """The leaves of a tree, in order."""
    return [leaf for _, leaf in tree_items(tree)]


def tree_get(tree: Tree, path: str) -> Tree:
    """The part of a tree at a path such as "attention.core.table"; the empty path is all of it."""
    for name in path.split(".") if path else ():
        tree = getattr(tree, name) if is_named(tree) else tree[name if isinstance(tree, dict) else int(name)]
    return tree


def tree_set(tree: Tree, path: str, part: Tree) -> Tree:
    """A tree with another part at a path."""
    if not path:
        return part
    name, _, rest = path.partition(".")
    part = tree_set(tree_get(tree, name), rest, part)
    if is_named(tree):
        return tree._replace(**{name: part})
    if isinstance(tree, dict):
        return {**tree, name: part}
    return type(tree)(part if k == int(name) else old for k, old in enumerate(tree))


def tree_add(a: Tree, b: Tree) -> Tree:
    """Sum of two trees of the same shape. It is what a weight used twice needs."""
    return tree_map(np.add, a, b)


def tree_size(tree: Tree) -> int:
    """Number of scalars in a tree: of a parameter tree, the number of parameters."""
    return sum(np.size(leaf) for leaf in tree_leaves(tree))


def tree_bytes(tree: Tree) -> int:
    """Bytes that the arrays of a tree occupy, an array that appears twice counted once.

    Of a pullback this is what backpropagation costs in memory.
    """
    owners = {}
    for leaf in tree_leaves(tree):
        if isinstance(leaf, np.ndarray):
            while isinstance(leaf.base, np.ndarray):  # a view remembers the array it looks into
                leaf = leaf.base
            owners[id(leaf)] = leaf
    return sum(owner.nbytes for owner in owners.values())


def random_like(tree: Tree, rng: np.random.Generator) -> Tree:
    """A tree of the same shape with standard normal entries: the parameters at which gradients are checked."""
    return tree_map(lambda leaf: rng.standard_normal(leaf.shape).astype(leaf.dtype), tree)


def first_nonfinite(tree: Tree) -> str | None:
    """Path of the first array in a tree that holds a NaN or an infinity, or None.

    The fields of a pullback stand in the order in which the forward pass made them, so of a pullback this
    is where the trouble began. In L, the logarithms of softmax's sums, −∞ is no trouble: a query that sees no key.
    """
    for path, leaf in tree_items(tree):
        array = np.asarray(leaf)
        if np.issubdtype(array.dtype, np.floating):
            no_trouble = np.isneginf(array) if path.rpartition(".")[2] == "L" else False
            if not (np.isfinite(array) | no_trouble).all():
                return path
    return None


# ---------------------------------------------------------------------------------------- composition


def of_layer(pullback: Pullback, dY: Array, others: int = 0) -> tuple[Any, ...]:
    """The gradients that the pullback of a layer returns: dparams and dX, and dZ if it was given `others` = 1 other rows Z.

    raises   ValueError that names the pullback if it gives anything else
    """
    found = pullback(dY)
    several = isinstance(found, (tuple, list)) and not is_named(found)
    if several and len(found) == 2 + others:
        return tuple(found)
    gives = f"{len(found)}" if several else type(found).__name__
    wanted = "3 gradients, of params, X and Z" if others else "2 gradients, of params and X"
    raise ValueError(f"{type(pullback).__name__}: should give {wanted}, and gives {gives}")


class ChainPullback(Pullback, named=False):
    """The pullbacks of the steps of a chain, first step first. `pullback[3]` is that of the fourth."""

    def __call__(self, dY: Array) -> tuple[Tree, Array]:
        grads = []
        for step in reversed(self):  # the chain rule: backwards through the steps
            dparams, dY = of_layer(step, dY)
            grads.append(dparams)
        return tuple(reversed(grads)), dY


def chain(*layers: Layer) -> Layer:
    """Do one layer after another: `chain(f, g)((p, q), X)` is `g(q, f(p, X))`.

    A layer is a function of its parameters and its input. The parameters of a chain are the tuple of theirs,
    and options given by keyword reach every layer.
    """

    def chained(params: Sequence[Tree], X: Array, **options: Any) -> tuple[Array, ChainPullback]:
        if len(params) != len(layers):
            links, trees = (so_many(len(layers), what) for what in ("layer", "parameter tree"))
            raise ValueError(f"a chain of {links} needs {trees}, got {len(params)}")
        steps = []
        for layer, p in zip(layers, params, strict=True):
            X, pullback = layer(p, X, **options)
            steps.append(pullback)
        return X, ChainPullback(steps)

    return chained


class ResidualPullback(Pullback):
    """δY = δX + δF, so dX = dY + (what F sends back): the gradient has a way around the layer."""

    layer: Pullback

    def __call__(self, dY: Array) -> tuple[Tree, Array]:
        dparams, dX = of_layer(self.layer, dY)
        return dparams, dY + dX


def residual(layer: Layer) -> Layer:
    """Add a layer to its own input: `residual(f)(p, X)` is `X + f(p, X)`. Raises ValueError if f changes the shape of X."""

    def added(params: Tree, X: Array, **options: Any) -> tuple[Array, ResidualPullback]:
        F, pullback = layer(params, X, **options)
        if F.shape != X.shape:
            raise ValueError(
                f"residual: the layer makes {F.shape} of X {X.shape}; what is added should have the shape of X"
            )
        return X + F, ResidualPullback(pullback)

    return added


# -------------------------------------------------------------------------------------------- added losses


def added_losses(pullback: Pullback) -> list[Any]:
    """The losses that the parts of a model add to that of its task: all the fields called `added` of a pullback.

    Where a layer has such a second output (a penalty on its spans, say), its pullback holds its value as `added`, and as
    `dadded` the gradient of the whole loss with respect to it: zero until `with_added` sets it.
    """
    parts = pullback if isinstance(pullback, tuple) else ()
    own = [pullback.added] if is_named(pullback) and "added" in pullback._fields else []
    return own + [loss for part in parts for loss in added_losses(part)]


def with_added(pullback: Pullback, dadded: float) -> Pullback:
    """A copy of a pullback in which the gradient of every added loss is `dadded`."""
    if not isinstance(pullback, tuple):
        return pullback
    if not is_named(pullback):
        return type(pullback)(with_added(part, dadded) for part in pullback)
    parts: dict[str, Any] = {name: with_added(part, dadded) for name, part in pullback._asdict().items()}
    if "dadded" in parts:
        parts["dadded"] = dadded
    return pullback._replace(**parts)
