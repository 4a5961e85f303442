"""The book on attention that runs: every variant in NumPy, with its gradient derived by hand."""

from minitransformer.backend import backend
from minitransformer.checker import GradientError, check_pullback
from minitransformer.pullback import chain, random_like, residual, tree_bytes, tree_items, tree_map, tree_size

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
