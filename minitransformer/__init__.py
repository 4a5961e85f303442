"""The book on attention that runs: every variant in NumPy, with its gradient derived by hand."""

from minitransformer.commands import terminal

terminal.begin()  # of the command alone: Ctrl-C is answered while NumPy is imported, too

from minitransformer.backend import backend  # noqa: E402
from minitransformer.checker import GradientError, check_pullback  # noqa: E402
from minitransformer.pullback import (  # noqa: E402
    chain,
    random_like,
    residual,
    tree_bytes,
    tree_items,
    tree_map,
    tree_size,
)

__version__ = "0.1.0"
__all__ = [
    "GradientError",
    "backend",
    "chain",
    "check_pullback",
    "random_like",
    "residual",
    "tree_bytes",
    "tree_items",
    "tree_map",
    "tree_size",
]
