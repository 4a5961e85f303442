"""The figures of the book. A module that draws one has `data(...)`, which computes, and `draw(data)`, which draws.

`save` keeps what was drawn. What a caption claims about a figure is asserted on its data, in tests/figures/.
"""

import importlib
import pkgutil
from types import ModuleType

from minitransformer.figures.style import Picture, figure, folder, save

__all__ = ["Picture", "figure", "folder", "modules", "save"]


def modules() -> dict[str, ModuleType]:
    """The modules that draw, by name: each has `data` and `draw`."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    found = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    return {name: module for name, module in found.items() if hasattr(module, "data") and hasattr(module, "draw")}
