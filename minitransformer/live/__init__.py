"""Figures that move: numbers from Python, drawn by a few kilobytes of JavaScript in the reader's browser, without a library.

Each has a module, and beside it a file of JavaScript of the same name. The module has

    data()          what is drawn, as numbers that JSON can hold
    compute(…)      what the figure says at one setting, by the book's own functions
    still(data)     the figure at its first setting, for places without scripts; with `compute`, its claims are tests

and the file an object with `compute(data, setting)`, which a test holds equal to Python's to 10⁻⁹, and `build(tools)`, which
draws. `live.js` has what all of them need. A figure says what it shows in a sentence that is read aloud, and keeps its
numbers in `data-…`. It is worked with a mouse, with a finger or with the keyboard.
"""

import importlib
import json
import pkgutil
from importlib import resources
from types import ModuleType
from typing import Any, NamedTuple

from minitransformer.figures.style import Picture, save
from minitransformer.registry import instead

__all__ = ["Live", "modules", "show"]


class Live(NamedTuple):
    """A figure that moves. A notebook keeps it as two outputs: its still picture, and HTML whose script takes that one's place.

    Where no script may run, as on GitHub or in a notebook that nobody trusts yet, the picture remains.
    """

    still: Picture
    html: str

    def __repr__(self) -> str:
        return repr(self.still)

    def _repr_html_(self) -> str:
        return self.html

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self.still)
        display({"text/html": self.html, "text/plain": "(it moves where scripts may run)"}, raw=True)


def modules() -> dict[str, ModuleType]:
    """The figures that move, by name."""
    return {name: importlib.import_module(f"{__name__}.{name}") for name in _names()}


def _names() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(__path__)]


def show(name: str) -> Live:
    """The figure of this name, with its still picture in `figures/`.

    raises   ValueError for an unknown name
    """
    if name not in _names():
        raise ValueError(f"no figure that moves {name!r}; {instead(name, _names())}")
    module = importlib.import_module(f"{__name__}.{name}")
    data = module.data()
    return Live(save(module.still(data), f"live_{name}"), html(name, data))


def html(name: str, data: dict[str, Any]) -> str:
    """One figure without ids, globals and network: style, numbers and script. The same bytes in each run."""
    numbers = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    style, tools, piece = (source(file) for file in ("live.css", "live.js", f"{name}.js"))
    return (
        f'<figure class="live" data-live="{name}"><style>{style}</style>'
        f'<script type="application/json">{numbers}</script>'
        f'<script>({tools})(document.currentScript.closest("figure"), {piece})</script></figure>'
    )


def source(file: str) -> str:
    """A file of this folder, without its comments at the top."""
    lines = resources.files(__name__).joinpath(file).read_text("utf-8").splitlines()
    while lines[0].startswith(("//", "/*")):
        lines.pop(0)
    return "\n".join(lines).strip()
