"""Numba compiles the loops in four fifths of its time: what it does twice, or to no effect, is left out meanwhile.

    level     of LLVM's levels of optimisation, the second gives these loops the speed of the third
    passes    LLVM improves each function of a loop before it improves the loop, where all of it is done again
    copies    where a function becomes a part of another, Numba copies it twice, and all its names anew for each of its blocks

What a reader compiles in the same process is compiled as ever. With NUMBA_OPT the level is the reader's own. Nothing is left out
in a version of Numba that has other names for these, nor in one whose LLVM needs them: with that of Numba 0.61 the loops of
attention would lose a fifth of their speed.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from numba import config

LEVEL = config.OPT if "NUMBA_OPT" in os.environ else type(config.OPT)(2)
CHANGES: list[tuple[Any, str, Any]] = []

with suppress(ImportError, AttributeError):
    from numba.core.codegen import CPUCodeLibrary
    from numba.core.inline_closurecall import InlineWorker
    from numba.core.ir import Block
    from numba.core.llvm_bindings import create_pass_builder  # noqa: F401  a version that has none has an older LLVM

    def only_lay_out(library: Any, module: Any) -> None:
        """Say how numbers lie in memory, which is the rest of what `_optimize_functions` does."""
        module.data_layout = library._codegen._data_layout

    def inline_without_copies(worker: Any, caller: Any, block: Any, i: int, function: Any, arg_typs: Any = None) -> Any:
        """`inline_function`, whose copies of the function's blocks are the blocks themselves: they are new, and nobody else's."""
        its_ir, names = worker.run_untyped_passes(function), function.__code__.co_freevars
        Block.__deepcopy__ = lambda block, memo: block
        try:
            return worker.inline_ir(caller, block, i, its_ir, names, arg_typs=arg_typs)
        finally:
            del Block.__deepcopy__

    CHANGES = [
        (config, "OPT", LEVEL),
        (CPUCodeLibrary, "_optimize_functions", only_lay_out),
        (InlineWorker, "inline_function", inline_without_copies),
    ]

one_thread = threading.RLock()


@contextmanager
def in_less_time() -> Iterator[None]:
    """Make the changes above while a loop is compiled in this block; other threads wait with theirs."""
    with one_thread:
        before = [getattr(place, name) for place, name, _ in CHANGES]
        try:
            for place, name, new in CHANGES:
                setattr(place, name, new)
            yield
        finally:
            for (place, name, _), old in zip(CHANGES, before, strict=True):
                setattr(place, name, old)
