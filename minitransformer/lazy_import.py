"""Packages that few functions need are imported when one of them is called: a reader may have NumPy and little else."""

import importlib
from types import ModuleType


def lazy_import(module: str, who: str) -> ModuleType:
    """The module, imported now if nobody has yet.

    raises   ImportError, which says who needs it and what to install
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"{who} needs {package} (pip install {package}): {error}", name=error.name) from None
