"""What can be chosen by name: "window", or with options of its own, "window:radius=32,global_tokens=1"."""

import ast
import difflib
import inspect
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Self

from minitransformer.ranges import alternatives, bare

RENAMED = {"globals_": "global_tokens", "step": "dilation"}  # options by an old name
OLD_FIELDS = {  # of a model or a block, and what to write instead
    "reversible": 'stack="reversible"',
    "memory": 'stack="transformer-xl:memory=…"',
    "universal": 'stack="universal:halting=…"',
    "ponder": 'stack="universal:ponder=…"',
    "activation": 'ffn="…"',
    "eps": 'norm="layer:eps=…"',
    "types": 'embedding="normed:types=…"',
    "tied": 'outputs="tied" or outputs="own"',
}
PLAIN = (int, float, bool, str, type(None))  # what an option in a text can be


class UnknownName(ValueError):
    """Nothing is registered under this name."""

    def __init__(self, what: str, name: str, registry: Iterable[str]) -> None:
        super().__init__(f"{what}: no {name!r}; {instead(name, registry)}")
        self.what, self.name = what, name


def instead(name: str, known: Iterable[str]) -> str:
    """The known names, for an error about an unknown one: first those that are spelled like it, if any are."""
    known = list(known)
    near = difflib.get_close_matches(str(name).lower(), known, cutoff=0.7)
    return f"near it: {', '.join(near)}; " * bool(near) + f"there are {', '.join(known)}"


def name_of(thing: Any, registry: Mapping[str, Callable[..., Any]]) -> str:
    """The name under which a registry makes such a thing, for an error; that of its class if there is none.

    A function makes what its signature says, `-> A` or `-> A | B`.
    """
    found = type(thing).__name__
    for name, maker in registry.items():
        given = getattr(maker, "keywords", {})  # of a partial
        made = getattr(maker, "func", maker)
        made = getattr(made, "__annotations__", {}).get("return", made)
        if type(thing) in (typing.get_args(made) or (made,)) and all(getattr(thing, k) == v for k, v in given.items()):
            found = name
    return found


def written_now(field: str, own: Collection[str]) -> str | None:
    """What to write now for a field that was renamed, if `own` has its new name, and not the old one; else None."""
    now = OLD_FIELDS.get(field, "")
    return now if field not in own and now.partition("=")[0] in own else None


class OldFieldsRefused:
    """A dataclass of which some fields were renamed. Its error for an old name says what to write instead."""

    def __new__(cls, *_: Any, **fields: Any) -> Self:
        """Raise TypeError for the old name of a field."""
        for field in fields:
            if now := written_now(field, getattr(cls, "__dataclass_fields__", ())):
                raise TypeError(f"{field}: write {now} instead")
        return super().__new__(cls)


def named(what: str, registry: Mapping[str, Callable[..., Any]], text: str, sizes: Mapping[str, Any]) -> Any:
    """An object of the class under a name, made with those of the sizes that it asks for, and with the options in the text.

    what     the name of the choice, for the error
    text     NAME or NAME:OPTION=VALUE,OPTION=VALUE
    sizes    of the model, and for a stack its blocks; no option can change them
    raises   ValueError for a name, an option or a value that makes no sense
    """
    name, colon, rest = text.partition(":")
    if name not in registry:
        raise UnknownName(what, name, registry)
    known = inspect.signature(registry[name]).parameters
    choices = options(registry[name], sizes)
    chosen: dict[str, Any] = {}
    for part in rest.split(",") if colon else ():
        option, equals, value = part.partition("=")
        if not equals or option not in choices or option in chosen:
            own = f"it has {', '.join(choices)}, as {name}:{next(iter(choices))}=…" if choices else "it has none"
            if RENAMED.get(option) in choices:
                own = f"write {RENAMED[option]} instead"
            elif close := difflib.get_close_matches(option, choices, cutoff=0.7):
                own = f"near it: {', '.join(close)}; {own}"
            if option in known and option in sizes:
                own = f"{option} is filled in by the model; {own}"
            elif option in choices and not equals:
                raise ValueError(f"{what}: {option} of {name!r} needs a value, as {name}:{option}=…")
            raise ValueError(f"{what}: {name!r} has no option {part!r}{', or has it already' * bool(chosen)}; {own}")
        chosen[option] = _value(value)
        if type(chosen[option]) not in choices[option]:
            wanted = " or ".join(kind.__name__ for kind in choices[option]).replace("NoneType", "None")
            raise ValueError(f"{what}: {option} of {name!r} should be {wanted}, got {value!r}")
    given = {size: sizes[size] for size in known if size in sizes} | chosen
    if missing := [option for option, p in known.items() if p.default is p.empty and option not in given]:
        raise ValueError(f"sizes: {name!r} needs {', '.join(missing)}")
    return registry[name](**given)


def options(maker: Callable[..., Any], sizes: Mapping[str, Any]) -> dict[str, tuple[type, ...]]:
    """The options that a text can set, besides the sizes, and the types that they may have."""
    known = inspect.signature(maker, eval_str=True).parameters
    return {option: kinds for option in known if option not in sizes and (kinds := _kinds(known[option]))}


def _kinds(parameter: inspect.Parameter) -> tuple[type, ...]:
    """The plain types that an option may have; none if it is an object, which no text can give."""
    hint = type(parameter.default) if parameter.annotation is parameter.empty else bare(parameter.annotation)
    parts = [str if typing.get_origin(part) is typing.Literal else part for part in alternatives(hint)]
    kinds = tuple(kind for kind in parts if kind in PLAIN)
    if kinds == (type(None),):
        return ()
    return (*kinds, int) if float in kinds and int not in kinds else kinds


def _value(text: str) -> Any:
    """A number, True, False or None if it reads like one, else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # the last two: a thousand brackets
        return text
