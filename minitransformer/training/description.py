"""What a checkpoint says of its model and training, in JSON; and the way back, which trusts nothing in the file.

A dataclass is written as its class and its fields, and its type hints say what a field may be. So a description can name
what the book offers and nothing else, and before anything large is made, its sizes are compared with those of the file.
"""

import dataclasses
import math
import reprlib
import typing
from collections.abc import Iterator
from typing import Any

import numpy as np

from minitransformer import models
from minitransformer.checks import fits
from minitransformer.extensions import named_classes
from minitransformer.models.model import Model
from minitransformer.models.weights import FREE
from minitransformer.pullback import Tree, tree_leaves
from minitransformer.ranges import so_many
from minitransformer.registry import UnknownName, written_now
from minitransformer.training import schedule
from minitransformer.training.choices import Training
from minitransformer.training.optimiser import AdamW

DEEPEST, LONGEST = 6, 1000  # parts within parts; items of a list, letters of a name
PART = object  # stands for the hint `Any` within a part: a part or None; in the model itself a name or several parts will do, too
COUNT = 2**63 - 1  # the largest number where no array depends on it
OF_TRAINING = {kind.__name__: kind for kind in (schedule.Noam, schedule.Cosine, AdamW)}
BRINGS = "mt.register gives a class of yours its name, and `--import FILE.py` brings a file that does so"


def described(value: Any) -> Any:
    """A dataclass as its class and fields, and what is in these likewise; anything else as it is."""
    if isinstance(value, (tuple, list)):
        return [described(part) for part in value]
    if not dataclasses.is_dataclass(value):
        return value
    return {
        "class": type(value).__name__,
        **{f.name: described(getattr(value, f.name)) for f in dataclasses.fields(value)},
    }


def training_of(about: Any) -> Training:
    """The training that is described. Raises ValueError, which names the field, if there can be none."""
    return _object(about, "training", {"Training": Training}, COUNT)


def model_of(about: Any, size: int) -> Any:
    """The model that is described. Raises ValueError, which names the field, if there can be none.

    size   of the file in bytes: no count, nor the product of two counts of one part, may be above both it and 2²⁰
    """
    known = {name: getattr(models, name) for name in models.__all__}
    known = {name: kind for name, kind in known.items() if isinstance(kind, type) and issubclass(kind, Model)}
    largest = max(size, FREE)
    model = _object(about, "model", known, largest)
    for part in _parts(tuple(vars(model).values())):
        _refuse_large(part, largest)
    return model


def fitting_model(about: Any, shapes: dict[str, tuple[int, ...]], size: int) -> tuple[Any, Tree]:
    """The model that is described, and parameters of its form, which are no more numbers than there are in the file.

    shapes   of the arrays in the file, by their names
    raises   ValueError, which names the field, if there can be no such model, or not with so few numbers
    """
    depth = about.get("depth") if isinstance(about, dict) else None
    if isinstance(depth, int) and depth > len(shapes):
        raise ValueError(f"model.depth: {so_many(depth, 'block')}, and {so_many(len(shapes), 'array')} in the file")
    model = model_of(about, size)
    numbers = sum(map(math.prod, shapes.values()))
    shared = sum(math.prod(shape) for name, shape in shapes.items() if ".shared." in name)  # every block draws it
    try:
        return model, model.init(_Counting(numbers + model.depth * shared))
    except Exception as error:
        raise ValueError(f"model: {error}") from error


# ------------------------------------------------------------------------------------------- types and ranges


def checked_as(hint: Any, value: Any, where: str, largest: float = COUNT) -> Any:
    """The value, if the type hint allows it. A whole number is a count: neither negative nor above the largest.

    where    the field that the value is of, for the error
    raises   ValueError for another value, a name that is too long, or a float that is not finite
    """
    if not (_names_a_part(value, hint) if hint in (Any, PART) else fits(value, hint)):
        names = {Any: "a name or a part", PART: "a part"}
        wanted = names.get(hint) or (hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", ""))
        raise ValueError(f"{where}: {reprlib.repr(value)} should be {wanted}")
    for part in tree_leaves(value):
        if isinstance(part, str) and len(part) > LONGEST:
            raise ValueError(
                f"{where}: {reprlib.repr(part)} is a name of {len(part)} letters, should have {LONGEST} at most"
            )
        if isinstance(part, float) and not math.isfinite(part):
            raise ValueError(f"{where}: {part} should be a finite number")
        if type(part) is int and not (0 <= part <= largest or (hint is float and abs(part) <= COUNT)):
            raise ValueError(f"{where}: {reprlib.repr(part)} is not within 0 … {largest}")
    return value


def _names_a_part(value: Any, hint: Any) -> bool:
    """Whether a value is None or a part; with the hint Any, also a name, or a tuple of all these."""
    if hint is Any and isinstance(value, tuple):
        return all(_names_a_part(part, hint) for part in value)
    return value is None or dataclasses.is_dataclass(value) or (hint is Any and isinstance(value, str))


def _made(value: Any, hint: Any, where: str, largest: float) -> Any:
    """The inverse of `described`, for what attention and positions offer, and for the parts of a training."""
    if where.count(".") > DEEPEST:
        raise ValueError(f"{where}: too many parts within parts")
    if isinstance(value, dict):
        value = _object(value, where, OF_TRAINING if where.startswith("training") else named_classes(), largest)
    elif isinstance(value, list):
        if len(value) > LONGEST:
            raise ValueError(f"{where}: a list of {len(value)} should have {LONGEST} parts at most")
        value = tuple(
            _made(v, Any, f"{where}.{k}", largest) if isinstance(v, (dict, list)) else v for k, v in enumerate(value)
        )
    return checked_as(hint, value, where, largest)


def _object(about: Any, where: str, known: dict[str, Any], largest: float) -> Any:
    """An object of one of the known classes, made of the fields that are described. Raises ValueError, which names the field."""
    name = about.get("class") if isinstance(about, dict) else about
    if not isinstance(about, dict) or not isinstance(name, str) or name not in known:
        brings = f"; {BRINGS}" if isinstance(name, str) and "." in where else ""
        if known is OF_TRAINING:
            brings = f"; a checkpoint can name {', '.join(known)}"
        raise ValueError(f"{where}: there is no {reprlib.repr(name)}{brings}")
    hints = typing.get_type_hints(known[name])
    if where != "model":
        hints = {field: PART if hint is Any else hint for field, hint in hints.items()}
    fields = [f.name for f in dataclasses.fields(known[name])]
    if odd := sorted(set(fields) ^ (about.keys() - {"class"})):
        now = written_now(odd[0], fields)
        other = f"{name} has no such field" + f"; write {now} instead" * (now is not None)
        raise ValueError(f"{where}.{odd[0]}: {'is missing' if odd[0] in fields else other}")
    values = {
        field: _made(about[field], hints[field], f"{where}.{field}", math.inf if field == "seed" else largest)
        for field in fields
    }
    try:
        return known[name](**values)
    except UnknownName as unknown:
        raise ValueError(f"{where}: {unknown.what}: no {reprlib.repr(unknown.name)} is registered; {BRINGS}") from None
    except Exception as error:  # whatever a constructor makes of values that nobody would give it
        raise ValueError(f"{where}: {error}") from error


# -------------------------------------------------------------------------------------------------- sizes


class _Counting:
    """A generator that raises ValueError when more than `left` numbers are drawn.

    How many a call draws is read off its arguments: the shape is `size`, or else the last argument that is a number or a tuple.
    """

    def __init__(self, left: int) -> None:
        self.rng, self.left = np.random.default_rng(0), left

    def __getattr__(self, method: str) -> Any:
        def draw(*args: Any, **options: Any) -> Any:
            sizes = [size for size in args if isinstance(size, (int, np.integer, tuple, list))]
            shape = options.get("size", sizes[-1] if sizes else 1)
            self.left -= math.prod(shape) if isinstance(shape, (tuple, list)) else shape
            if self.left < 0:
                raise ValueError("its parameters would be more numbers than there are in the file")
            return getattr(self.rng, method)(*args, **options)

        return draw


def _parts(value: Any) -> Iterator[Any]:
    """The dataclasses that a model is made of, by name or as they were given."""
    if isinstance(value, tuple):
        for part in value:
            yield from _parts(part)
    elif dataclasses.is_dataclass(value):
        yield value
        yield from _parts(tuple(vars(value).values()))


def _refuse_large(part: Any, largest: int) -> None:
    """No two counts of a part that has parameters may make an array that is not in the file; not all arrays are drawn."""
    if not hasattr(part, "init"):
        return
    counts = {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.name != "seed"}
    counts = {name: count for name, count in counts.items() if type(count) is int}
    large = sorted(counts, key=lambda name: counts[name])[-2:]
    if math.prod(counts[name] for name in large) > largest:
        said = " and ".join(f"{name} {counts[name]}" for name in reversed(large))
        raise ValueError(f"model: {type(part).__name__} with {said} is larger than the file")
