"""The book on attention that runs: every variant in NumPy, with its gradient derived by hand."""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from minitransformer import terminal

terminal.begin()  # for the command only: Ctrl-C ends it even while NumPy is being imported

from minitransformer.backend import backend  # noqa: E402
from minitransformer.checker import GradientError, check_pullback  # noqa: E402
from minitransformer.pullback import chain, random_like, residual, tree_bytes, tree_items, tree_map, tree_size  # noqa: E402

if TYPE_CHECKING:
    from minitransformer.contract import check_attention
    from minitransformer.exercises import check_exercise
    from minitransformer.extensions import register

__version__ = "0.1.0"
__all__ = [
    "GradientError",
    "backend",
    "chain",
    "check_attention",
    "check_exercise",
    "check_pullback",
    "random_like",
    "register",
    "residual",
    "tree_bytes",
    "tree_items",
    "tree_map",
    "tree_size",
]


def _later(name: str) -> Any:
    """`register`, `check_exercise` and `check_attention` need most of the package, so they are imported on first use."""
    later = {"register": "extensions", "check_exercise": "exercises", "check_attention": "contract"}
    if name not in later:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_instead(name)}")
    return getattr(importlib.import_module(f"minitransformer.{later[name]}"), name)


if not TYPE_CHECKING:  # else a type checker would believe that every name exists
    __getattr__ = _later


def _instead(name: str) -> str:
    """What to write, if it is a module of the package, or a name in one of the modules that readers import from."""
    if name.startswith("_") or not name.isidentifier():
        return ""
    if importlib.util.find_spec(f"{__name__}.{name}") is not None:
        return f"; `import {__name__}.{name}` brings it"
    for place in ("pullback", "attention", "functional", "models", "positions", "related", "arrays", "checks"):
        module = importlib.import_module(f"{__name__}.{place}")
        places = module.__name__, f"{__name__}.marks"
        own = (each for each, it in vars(module).items() if str(getattr(it, "__module__", "")).startswith(places))
        if name in getattr(module, "__all__", own):
            return f"; `from {__name__}.{place} import {name}` brings it"
    return ""


def __dir__() -> list[str]:
    """The public names, with those that are imported on first use, but without what this file itself imports."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
