"""What can be chosen by name: "window", or with options of its own, "window:radius=32,globals_=1"."""

import ast
import inspect
from collections.abc import Callable, Mapping
from typing import Any


def named(what: str, registry: Mapping[str, Callable[..., Any]], text: str, sizes: Mapping[str, int]) -> Any:
    """What the registry has under a name, made with those of the sizes that it asks for, and with the options in the text.

    what     the name of the choice, for the error
    text     NAME or NAME:OPTION=VALUE,OPTION=VALUE
    sizes    of the model; no option can change them
    raises   ValueError for a name, an option or a value that makes no sense
    """
    name, _, rest = text.partition(":")
    if name not in registry:
        raise ValueError(f"{what}: no {name!r}; there are {', '.join(registry)}")
    known = inspect.signature(registry[name]).parameters
    choices = [option for option in known if option not in sizes]
    options = {}
    for part in rest.split(",") if rest else ():
        option, equals, value = part.partition("=")
        if not equals or option not in choices:
            own = f"it has {', '.join(choices)}, as {name}:{choices[0]}=…" if choices else "it has none"
            raise ValueError(f"{what}: {name!r} has no option {part!r}; {own}")
        options[option] = _value(value)
    try:
        return registry[name](**{size: sizes[size] for size in known if size in sizes}, **options)
    except TypeError as error:
        raise ValueError(f"{what}: {text!r}: {error}") from error


def _value(text: str) -> Any:
    """A number, True, False or None if it reads like one, else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
