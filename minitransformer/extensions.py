"""What readers bring: an attention, an encoding of positions or a stack of their own, from a file or a cell outside the package.

    mt.register("sigmoid", Sigmoid)                                  from here on the name means this class, in every model
    minitransformer train --import mine.py --attention sigmoid       mine.py is run first, and registers it

A file is run because its reader names it on the command line. No checkpoint and no record can ask for one.
"""

import dataclasses
import inspect
import re
import reprlib
import sys
import traceback
from collections.abc import Callable, MutableMapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from minitransformer import attention, positions
from minitransformer.attention import ATTENTIONS, Core, Mixer, Pattern
from minitransformer.attention.registry import EXAMPLE
from minitransformer.models.registry import EXAMPLE as STACK_EXAMPLE
from minitransformer.models.registry import STACKS
from minitransformer.models.stack import Stack
from minitransformer.positions import AT_EMBEDDING, IN_ATTENTION, Encoding, OffsetBias, ScoreEncoding
from minitransformer.registry import named

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
GIVEN = dict.fromkeys(("causal", "mask", "rng"))  # to a core, a mixer and a stack, beside arrays
Registry = MutableMapping[str, Callable[..., Any]]


def register(name: str, kind: type) -> None:
    """Give a class of yours a name, in every model, on the command line and in checkpoints.

    A `Core`, `Mixer` or `Pattern` becomes a kind of attention, `LanguageModel(attention=name)`. An `Encoding`, or a class that
    adds something to the embeddings, becomes an encoding of positions, `LanguageModel(positions=name)`. A `Stack` becomes a way
    to put blocks together, `LanguageModel(stack=name)`.

    Registering a class of the same module and name again replaces it, so a cell of a notebook can be run twice.
    kind     a frozen dataclass (`@frozen`); a model fills in the fields width, heads, d and longest, whatever their default,
             and a stack's blocks; every other field has a default
    raises   ValueError, with the reason, for a name that is taken or can't be typed, and for a class that a model couldn't use
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"name: {name!r} should be a letter, and then up to 39 letters, digits, - or _")
    if not isinstance(kind, type):
        raise ValueError(f"{name}: {kind!r} should be a class; a model makes an object of it, with its own sizes")
    registry, others = _registry_of(name, kind)
    for known in others:
        if name in known and not _same(known[name], kind):
            raise ValueError(f"{name}: this name already means {_full_name(known[name])}")
    other = named_classes().get(kind.__name__)
    if other is not None and not _same(other, kind):
        raise ValueError(
            f"{name}: there is another class {kind.__name__}, {_full_name(other)}; a checkpoint could not tell them apart"
        )
    sizes = STACK_EXAMPLE if registry is STACKS else EXAMPLE
    _refuse_fields(kind, sizes)
    _refuse_signatures(kind, _example(kind, sizes))
    for known in others:
        for taken, old in known.items():
            if _same(old, kind):
                known[taken] = kind  # a cell that was run again, whatever it called the class before
    registry[name] = kind


def named_classes() -> dict[str, type]:
    """The kinds of attention and of positions that a checkpoint can name: those of the book, and those that are registered."""
    kinds = [getattr(package, name) for package in (attention, positions) for name in package.__all__]
    kinds += [kind for registry in (ATTENTIONS, AT_EMBEDDING, IN_ATTENTION) for kind in registry.values()]
    return {kind.__name__: kind for kind in kinds if isinstance(kind, type) and dataclasses.is_dataclass(kind)}


# --------------------------------------------------------------------------------------- what a class has to be


def _same(one: Any, other: Any) -> bool:
    """Whether two classes have the same module and name, as after a cell of a notebook has made a class for the second time."""
    return _full_name(one) == _full_name(other)


def _full_name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}" if hasattr(kind, "__qualname__") else repr(kind)


def _registry_of(name: str, kind: type) -> tuple[Registry, tuple[Registry, ...]]:
    """Where a class belongs, and where its name must not mean anything else."""
    if issubclass(kind, (Core, Mixer, Pattern)):
        return ATTENTIONS, (ATTENTIONS,)
    if issubclass(kind, Stack):
        return STACKS, (STACKS,)
    if issubclass(kind, Encoding):
        return IN_ATTENTION, (AT_EMBEDDING, IN_ATTENTION)
    if hasattr(kind, "init") and "__call__" in vars(kind):
        return AT_EMBEDDING, (AT_EMBEDDING, IN_ATTENTION)
    raise ValueError(
        f"{name}: {kind.__name__} should be a Core, a Mixer or a Pattern, for attention; an Encoding, or a class with init and "
        "__call__, for positions; or a Stack"
    )


def _refuse_fields(kind: type, sizes: dict[str, Any]) -> None:
    """Raise ValueError unless a model can make objects of the class, compare them, and save them."""
    if "__dataclass_params__" not in vars(kind) or not vars(kind)["__dataclass_params__"].frozen:
        raise ValueError(
            f"{kind.__name__}: should be a frozen dataclass; write @frozen (minitransformer.checks) over it"
        )
    missing = (dataclasses.MISSING, dataclasses.MISSING)
    for field in dataclasses.fields(kind):
        if field.init and (field.default, field.default_factory) == missing and field.name not in sizes:
            raise ValueError(
                f"{kind.__name__}: the field {field.name} needs a default; a model fills in {', '.join(sizes)} only"
            )


def _example(kind: type, sizes: dict[str, Any]) -> Any:
    """An object of the class, as a model would make it."""
    try:
        return named(kind.__name__, {"it": kind}, "it", sizes)
    except Exception as error:
        said = ", ".join(f"{size}={reprlib.repr(value)}" for size, value in sizes.items())
        raise ValueError(f"{kind.__name__}: can't be made for a model of {said}: {error}") from error


def _refuse_signatures(kind: type, made: Any) -> None:
    """Raise ValueError unless its methods can be called as a model calls them."""
    if issubclass(kind, Pattern):
        if kind.sees is Pattern.sees and kind.of_heads is Pattern.of_heads:
            raise ValueError(f"{kind.__name__}: a pattern needs sees(i, j, m, *, causal), which says who sees whom")
        _refuse_signature(kind, "sees", ("i", "j", "m"), {"causal": True})
        return
    _refuse_signature(kind, "init", ("rng", "dtype"))
    if issubclass(kind, Stack):
        _refuse_signature(kind, "__call__", ("params", "X"), GIVEN)
        _refuse_signature(kind, "step", ("params", "X", "states"))
    elif issubclass(kind, Core):
        heads = ("params", "Q", "K", "V", *made.streams)
        _refuse_signature(kind, "__call__", heads, GIVEN, own=Core)
        _refuse_signature(kind, "step", heads, {"state": None})
        for method in (kind.__call__, kind.step):
            if (called := tuple(_parameters(method))[2:5]) != ("Q", "K", "V"):
                raise ValueError(
                    f"{kind.__name__}.{method.__name__}: {', '.join(called)} should be called Q, K, V, the names that are checked"
                )
    elif issubclass(kind, Mixer):
        _refuse_signature(kind, "__call__", ("params", "X"), GIVEN, own=Mixer)
        _refuse_signature(kind, "step", ("params", "X", "state"))
    elif not issubclass(kind, Encoding):
        _refuse_signature(kind, "__call__", ("params", "X"), {"first": 0})
    elif issubclass(kind, OffsetBias):
        _refuse_signature(kind, "bias", ("params", "n", "m"), {"causal": True}, own=OffsetBias)
    elif issubclass(kind, ScoreEncoding):
        _refuse_signature(kind, "scores", ("params", "Q", "K"), own=ScoreEncoding)
        _refuse_signature(kind, "aggregate", ("params", "A", "V"))
    else:
        _refuse_signature(kind, "turn", ("X",), {"first": 0, "length": 1})


def _parameters(method: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(inspect.unwrap(method)).parameters)


def _refuse_signature(
    kind: type, name: str, arrays: tuple[str, ...], options: dict[str, Any] | None = None, own: type | None = None
) -> None:
    """Raise ValueError unless a method is there, is not that of `own`, and can be called with these arguments."""
    options = options or {}
    wanted = ", ".join((*arrays, *(["*", *options] if options else [])))
    method = getattr(kind, name, None)
    if method is None or (own is not None and method is getattr(own, name, None)):
        raise ValueError(f"{kind.__name__}: has no {name}({wanted})")
    signature = inspect.signature(inspect.unwrap(method))
    try:
        signature.bind(None, *arrays, **options)
    except TypeError as error:
        is_now = ", ".join(_parameters(method))
        raise ValueError(
            f"{kind.__name__}.{name}: is called as {name}({wanted}), and takes ({is_now}): {error}"
        ) from None


# --------------------------------------------------------------------------------------------- a reader's file


class ReaderFile(NamedTuple):
    """A Python file, as it was when it was read: other processes run the same text, whether they can read the file or not."""

    path: str
    text: str

    @classmethod
    def read(cls, path: str | Path) -> "ReaderFile":
        """The file at a path.

        raises   ValueError if it can't be read, or can't be a module
        """
        path = Path(path).resolve()
        if path.suffix != ".py" or not path.stem.isidentifier():  # /dev/zero, too, which has no end
            raise ValueError(f"--import {path}: should have the name of a module: letters, digits and _ before .py")
        try:
            if path.is_fifo():  # where nobody writes, reading never ends
                raise ValueError(f"--import {path}: should be a file, and is a pipe")
            text = path.read_bytes().decode("utf-8-sig")
        except OSError as error:
            raise ValueError(f"--import {path}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise ValueError(f"--import {path}: should be Python in UTF-8") from None
        return cls(str(path), text)

    def bring(self) -> None:
        """Run it, as a module of its name. What it registers can be named from then on.

        raises   ValueError, with the line, if it fails, or if there is a module of its name already
        """
        name = Path(self.path).stem
        before = sys.modules.get(name)
        if before is not None and getattr(before, "__file__", None) != self.path:
            raise ValueError(f"--import {self.path}: there is a module {name} already; give the file another name")
        module = ModuleType(name)
        module.__file__ = self.path
        folder = str(Path(self.path).parent)
        if folder not in sys.path:
            sys.path.append(folder)  # for what it imports from beside it
        sys.modules[name] = module
        try:
            exec(compile(self.text, self.path, "exec"), vars(module))
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise ValueError(f"--import {self.path}{self._line(error)}: {_in_one_line(error)}") from error

    def tells(self, error: BaseException) -> str | None:
        """An error in the file, met while something that it registered was used, in one line; None if the error is elsewhere."""
        if not (line := self._line(error)):
            return None
        module = Path(self.path).stem
        names = [name for name, kind in ATTENTIONS.items() if getattr(kind, "__module__", None) == module]
        more = f"; mt.check_attention says more of {' and '.join(names)}" if names else ""
        return f"--import {self.path}{line}: {_in_one_line(error)}{more}"

    def _line(self, error: BaseException) -> str:
        """Where in the file it went wrong."""
        if isinstance(error, SyntaxError) and error.filename == self.path:
            return f", line {error.lineno}"
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == self.path]
        return f", line {lines[-1]}" if lines else ""


def _in_one_line(error: BaseException) -> str:
    said = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return said if isinstance(error, ValueError) and said else f"{type(error).__name__}: {said}"
