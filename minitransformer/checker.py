"""The checker: is a pullback the derivative of its own forward function?

One function, `check_pullback`, serves the whole book. It compares a pullback with central differences of its
forward function, and looks for the mistakes that a comparison alone would miss: a gradient that is zero because
nothing was tested, an argument changed in place, a pullback that remembers the wrong call.
`tests/test_checker.py` holds a bank of wrong gradients, each of which it must catch.
"""

import inspect
import reprlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array  # as in `typing`, without waiting for Jaxtyping

from minitransformer.checks import choose, must_be_pair
from minitransformer.pullback import Pullback, Tree, tree_items, tree_leaves, tree_map, tree_parts
from minitransformer.ranges import NonNegative, NonNegativeNumber, PositiveNumber, Seed

DENSE = 3  # random directions in each array: in one of them alone, an entry may hardly move


class GradientError(AssertionError):
    """A pullback is not the derivative of its own forward function, or breaks a rule of the book."""


class Checked(NamedTuple):
    """What `check_pullback` found: the largest relative error, where it is, and how many derivatives were compared."""

    error: float
    worst: str
    derivatives: int


def check_pullback(
    function: Callable[..., tuple[Tree, Pullback]],
    *args: Tree,
    zero: Sequence[str] = (),
    untrained: Sequence[str] = (),
    seed: int = 0,
    step: float = 1e-6,
    tolerance: float = 1e-6,
    entries: int = 40,
) -> Checked:
    """Check that a pullback is the vector–Jacobian product of its own forward function.

        ⟨dY, (f(x + h v) − f(x − h v)) / 2h⟩  =  ⟨dx, v⟩        for every input x and direction v

    dY is random. For each real array among the arguments (and in their trees), v runs over single entries (all of them,
    or a random choice of `entries` if there are more) and over random dense directions, which move every entry at once.
    Errors are relative to the largest derivative with respect to that array, to the norm of its gradient if that is
    larger, or to 0.001 if both are smaller.

    It also fails when a gradient has the wrong type, shape or dtype, or is not finite; when every derivative of an
    array is zero, or the array is constant (gains of one and biases of zero hide mistakes: see `random_like`); when
    forward or backward has changed an argument; when the pullback is not linear; when value or gradient come out
    differently the second time, or after the function was called elsewhere; and when float32 does not stay float32,
    or gives another value or gradient than float64.

    What has no effect can't be checked: choose axes of different length, and options that matter (ε = 0.1, not 1e-5).

    function   returns (Y, pullback); Y may be a tree of arrays
    args       its positional arguments; real arrays are cast to float64, anything else is passed on as it is
    zero       arrays whose gradient is zero by construction, by path, such as `"params.b_k"`
    untrained  arrays that no gradient moves, by path: the pullback has None in their place, and nothing else will do
    seed       of dY and the directions; step is h, tolerance the largest relative error that is allowed
    returns    the largest relative error, where it was found, and the number of derivatives compared
    raises     GradientError, with the path of the offending array; TypeError for what is no function, or for paths in a text;
               TypeError or ValueError for a seed, step, tolerance or number of entries that can't be one
    """
    if not callable(function):
        raise TypeError(
            f"function: {type(function).__name__} should be a function that returns its value and a pullback"
        )
    for name, paths in (("zero", zero), ("untrained", untrained)):
        if isinstance(paths, str) or not isinstance(paths, Collection):  # in a text, "K" would be in "QK"
            raise TypeError(f"{name}: {reprlib.repr(paths)} should be a tuple of paths, such as ('params.b_k',)")
    for name, value, hint in (
        ("seed", seed, Seed),
        ("step", step, PositiveNumber),
        ("tolerance", tolerance, NonNegativeNumber),
        ("entries", entries, NonNegative),
    ):
        choose(name, value, hint)
    rng = np.random.default_rng([seed, 271828])  # not default_rng(seed): the arguments may be its first numbers
    x = {name: _cast(a, np.float64) for name, a in zip(_names(function, len(args)), args, strict=True)}
    if not any(_is_real(a) and a.size for a in tree_leaves(x)):
        raise GradientError("no real-valued argument, an array or a tree of arrays: nothing to check")
    _refuse_constants(x, zero)

    Y, dY, pullback, dx = _run(
        function, x, lambda Y: tree_map(lambda y: rng.standard_normal(np.shape(y)), Y), untrained
    )
    _check_linear(pullback, dY, dx, x, rng)
    _check_state(function, pullback, Y, dY, dx, x, rng)
    _check_float32(function, Y, dY, dx, x, zero, untrained)

    worst, where, count = 0.0, "", 0
    for path, a, da in _real_arrays(x, dx):
        directions = list(_directions(a.shape, entries, rng))
        numeric = np.array([_difference(function, x, a, step * v, dY) / (2 * step) for _, v in directions])
        analytic = np.array([np.vdot(da, v) for _, v in directions])
        count += len(directions)
        size = max(np.abs(numeric).max(), np.abs(analytic).max(), np.linalg.norm(da))
        if path in zero:
            if not size <= 1e-7:
                raise GradientError(f"{path}: the gradient should be zero but is {size:.2g}")
            continue
        if size < 1e-7:  # rounding in f, about 1e-16, divided by the step: nothing smaller can be seen
            raise GradientError(
                f"{path}: every derivative is zero: the value does not depend on it, and nothing was tested. Softmax, for one, "
                "ignores a constant added to all scores of a row. If that is as it should be, name it in `zero`"
            )
        errors = np.abs(numeric - analytic) / max(size, 1e-3)
        k = int(errors.argmax())
        if not errors[k] <= tolerance:
            raise GradientError(
                f"{path}{directions[k][0]}: the pullback says {analytic[k]:.9g}, the difference quotient "
                f"{numeric[k]:.9g} (relative error {errors[k]:.2g}, allowed {tolerance:.0e})"
                f"{_multiple(analytic, numeric, a.size, tolerance)}"
            )
        if errors[k] >= worst:
            worst, where = float(errors[k]), path
    return Checked(worst, where, count)


# ------------------------------------------------------------------------------------ the difference quotient


def _difference(function: Callable, x: dict, a: Array, shift: Array, dY: Tree) -> float:
    """⟨dY, f(x + shift) − f(x − shift)⟩, where of all arrays in x only `a` moves, and comes back."""
    here, ends = a.copy(), []
    for moved in (shift, -shift):
        a[...] = here + moved
        Y, _ = function(*x.values())
        ends.append(tree_map(np.copy, Y))
    a[...] = here
    parts = tree_map(lambda g, after, before: np.vdot(g, after - before), dY, *ends)
    return float(sum(tree_leaves(parts)))


def _directions(shape: tuple, entries: int, rng: np.random.Generator) -> Iterator[tuple[str, Array]]:
    """Single entries, at most `entries` of them, and three random directions; each with its name for a message."""
    size = int(np.prod(shape))
    for k in np.arange(size) if size <= entries else rng.choice(size, entries, replace=False):
        v = np.zeros(size)
        v[k] = 1
        yield str([int(i) for i in np.unravel_index(k, shape)]), v.reshape(shape)
    for _ in range(DENSE):
        yield " (all entries, a random direction)", rng.standard_normal(shape)


def _multiple(analytic: Array, numeric: Array, size: int, tolerance: float) -> str:
    """What to say if the gradient of an array is right but for its sign, or for a factor that all its entries have in common."""
    factor = (analytic @ numeric) / (numeric @ numeric or 1)
    if np.abs(analytic - factor * numeric).max() > tolerance * np.abs(analytic).max() or abs(factor) < tolerance:
        return ""
    if abs(factor + 1) < tolerance:
        return "; the whole gradient has the opposite sign"
    return f"; the whole gradient is {factor:.4g} times what it should be" * (size > 1)


# ------------------------------------------------------------------------ forward and backward, and their form


def _run(
    function: Callable, x: dict, cotangent: Callable[[Tree], Tree], untrained: Sequence[str]
) -> tuple[Tree, Tree, Pullback, dict]:
    """One forward and one backward pass: Y, dY, pullback and dx. A wrong form and a changed argument raise GradientError.

    Y and dx are copies: a function that returns the same work array twice would overwrite them.
    """
    before = _copies(x)
    Y, pullback = must_be_pair(function(*x.values()), "the function", GradientError)
    _refuse_changes(before, x, "the forward pass")
    dY = cotangent(Y)
    others = {"dY": dY, "the value": Y}
    before_others = _copies(others)
    dx = _gradients(pullback, dY, x)
    _refuse_changes(before, x, "the backward pass")
    _refuse_changes(before_others, others, "the backward pass")

    dtype = next(a.dtype for a in tree_leaves(x) if _is_real(a))
    for path, y in tree_items(Y, "the value"):
        _check_array(path, "the value", y, np.shape(y), dtype)
    for name, grad in dx.items():
        _check_form(name, x[name], grad, untrained)
    return tree_map(np.copy, Y), dY, pullback, tree_map(np.copy, dx)


def _gradients(pullback: Pullback, dY: Tree, x: dict) -> dict[str, Tree]:
    """Call the pullback, and give each gradient the name of its argument."""
    names = [name for name, a in x.items() if _has_gradient(a)]
    grads = pullback(dY)
    whole = [name for name, a in x.items() if isinstance(a, np.ndarray) and a.dtype.kind in "iu"]
    none = f"; {' and '.join(whole)}, of integers, should get none" if whole else ""
    if len(names) == 1:
        if isinstance(grads, tuple) and _is_real(x[names[0]]):
            raise GradientError(f"{names[0]}: the gradient of an array is a tuple of {len(grads)}{none}")
        grads = (grads,)
    if not isinstance(grads, tuple) or len(grads) != len(names):
        got = len(grads) if isinstance(grads, tuple) else type(grads).__name__
        raise GradientError(f"the pullback should return {len(names)} gradients ({', '.join(names)}); got {got}{none}")
    return dict(zip(names, grads, strict=True))


def _check_form(path: str, a: Tree, grad: Tree, untrained: Sequence[str]) -> None:
    """Raise GradientError unless each part of a gradient has the type, shape and dtype of what it belongs to."""
    if isinstance(a, (tuple, list, dict)):
        if type(grad) is not type(a):
            raise GradientError(f"{path}: the gradient of a {type(a).__name__} is a {type(grad).__name__}")
        parts, grads = tree_parts(a) or {}, tree_parts(grad) or {}
        if parts.keys() != grads.keys():
            raise GradientError(f"{path}: the gradient has the parts {list(grads)}, the tree {list(parts)}")
        for name, part in parts.items():
            _check_form(f"{path}.{name}", part, grads[name], untrained)
    elif path in untrained:
        if grad is not None:
            raise GradientError(f"{path}: has a gradient, but should not be trained")
    elif _is_real(a):
        if grad is None:
            raise GradientError(f"{path}: the gradient is missing")
        if isinstance(grad, (tuple, list, dict)):
            raise GradientError(f"{path}: the gradient of an array is a {type(grad).__name__}")
        _check_array(path, "the gradient", grad, a.shape, a.dtype)
    elif grad is not None:
        raise GradientError(f"{path}: has a gradient, but is no array of real numbers")


def _check_array(path: str, what: str, a: Array, shape: tuple, dtype: Any) -> None:
    if np.shape(a) != shape:
        raise GradientError(f"{path}: {what} has shape {np.shape(a)}, the array {shape}")
    if np.asarray(a).dtype != dtype:
        raise GradientError(f"{path}: {what} is {np.asarray(a).dtype} for {dtype} arguments")
    if not np.isfinite(a).all():
        raise GradientError(f"{path}: {what} is not finite")


def _refuse_constants(x: dict, zero: Sequence[str]) -> None:
    for path, a in tree_items(x):
        if _is_real(a) and a.size > 1 and np.ptp(a) == 0 and path not in zero:
            raise GradientError(f"{path}: every entry is {a.flat[0]}; check at random values (`random_like`)")


def _refuse_changes(before: list[tuple[str, Array]], tree: Tree, who: str) -> None:
    now = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, np.ndarray)]
    for (path, old), new in zip(before, now, strict=True):
        if not np.array_equal(old, new, equal_nan=old.dtype.kind == "f"):
            raise GradientError(f"{path}: changed by {who}")


# --------------------------------------------------------------------- what a comparison alone would not notice


def _check_linear(pullback: Pullback, dY: Tree, dx: dict, x: dict, rng: np.random.Generator) -> None:
    """A pullback maps c (dY + dZ) to c times the sum of its results for dY and dZ. And it can be called many times."""
    dZ = tree_map(lambda g: rng.standard_normal(np.shape(g)), dY)
    again = _gradients(pullback, dY, x)
    _compare(dx, again, "the pullback gave another answer when it was called a second time")
    of_sum = tree_map(np.add, dx, _gradients(pullback, dZ, x))
    _compare(dx, again, "calling the pullback again changed an earlier gradient (a shared work array)")
    for c in (1e-6, 1e3):  # small, where a threshold would show, and large, where clipping would
        scaled = _gradients(pullback, tree_map(lambda g, h, c=c: c * (g + h), dY, dZ), x)
        _compare(tree_map(lambda g, c=c: g * c, of_sum), scaled, "the pullback is not linear in dY", 1e-6, 1e-9 * c)


def _check_state(
    function: Callable, pullback: Pullback, Y: Tree, dY: Tree, dx: dict, x: dict, rng: np.random.Generator
) -> None:
    """Using the function again, elsewhere, must not disturb a value or a pullback that was made before."""
    here, _ = function(*x.values())
    _compare(Y, here, "calling the function again, with the same arguments, gave another value")
    elsewhere = tree_map(lambda a: _moved(a, rng), x)
    _, later = function(*elsewhere.values())
    _gradients(later, dY, x)
    _compare(Y, here, "calling the function again changed an earlier value (a shared work array)")
    _compare(dx, _gradients(pullback, dY, x), "calling the function again changed an earlier pullback (stale state)")


def _check_float32(
    function: Callable, Y: Tree, dY: Tree, dx: dict, x: dict, zero: Sequence[str], untrained: Sequence[str]
) -> None:
    """Everything again in float32, which must stay float32 and give about the same."""
    Y32, _, _, dx32 = _run(function, _cast(x, np.float32), lambda _: _cast(dY, np.float32), untrained)
    _compare(Y, Y32, "the value in float32 is another than in float64", 0.01, 1e-4, zero)
    _compare(dx, dx32, "the gradient in float32 is another than in float64", 0.01, 1e-4, zero)


def _compare(
    a: Tree, b: Tree, complaint: str, relative: float = 0, absolute: float = 0, skip: Sequence[str] = ()
) -> None:
    """Raise GradientError with this complaint unless two trees agree: exactly, or to a fraction of each array's largest entry."""
    for (path, old), new in zip(tree_items(a), tree_leaves(b), strict=True):
        allowed = relative * np.abs(old).max(initial=0) + absolute
        if path not in skip and not (np.abs(new - old) <= allowed).all():
            raise GradientError(f"{path or 'the value'}: {complaint}")


# ----------------------------------------------------------------------------------------------- arguments


def _names(function: Callable, count: int) -> list[str]:
    """The names of the positional arguments, as the signature has them, or their numbers."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return (names + [str(k) for k in range(len(names), count)])[:count]


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (np.ndarray, np.floating))


def _is_real(leaf: Any) -> bool:
    return _is_array(leaf) and np.issubdtype(leaf.dtype, np.floating)


def _has_gradient(a: Tree) -> bool:
    """Whether an argument gets a gradient: real arrays and trees of them, even an empty tree; not tokens, masks or numbers."""
    leaves = tree_leaves(a)
    return any(_is_real(leaf) for leaf in leaves) or (isinstance(a, (tuple, list, dict)) and not leaves)


def _cast(tree: Tree, dtype: Any) -> Tree:
    """A copy of a tree whose reals have the given type."""
    return tree_map(lambda leaf: np.array(leaf, dtype if _is_real(leaf) else None) if _is_array(leaf) else leaf, tree)


def _moved(leaf: Any, rng: np.random.Generator) -> Any:
    """Another argument of the same kind: reals nearby, tokens and masks in the opposite order."""
    if _is_real(leaf):
        return leaf + 0.1 * rng.standard_normal(leaf.shape)
    return np.flip(leaf) if isinstance(leaf, np.ndarray) else leaf


def _copies(tree: Tree) -> list[tuple[str, Array]]:
    return [(path, leaf.copy()) for path, leaf in tree_items(tree) if isinstance(leaf, np.ndarray)]


def _real_arrays(x: dict, dx: dict) -> Iterator[tuple[str, Array, Array]]:
    found = dict(tree_items(dx))
    for path, a in tree_items(x):
        if _is_real(a) and a.size and path in found:
            yield path, a, found[path]
