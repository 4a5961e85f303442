"""Numba compiles the loops in four fifths of its time: what it does twice, or to no effect, is left out meanwhile.

    level     of LLVM's levels of optimisation, the second gives these loops the speed of the third
    passes    LLVM improves each function of a loop before it improves the loop, where all of it is done again
    names     where a function becomes a part of another, Numba copies all its names anew for each of its blocks

What a reader compiles in the same process is compiled as ever. With NUMBA_OPT the level is the reader's own. Nothing is left out
in a version of Numba that has other names for these, nor in one whose LLVM needs them: with that of Numba 0.61 the loops of
attention would lose a fifth of their speed.
"""

import copy
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
    from numba.core.ir import Scope
    from numba.core.llvm_bindings import create_pass_builder  # noqa: F401  a version that has none has an older LLVM

    optimize_functions, inline_ir = CPUCodeLibrary._optimize_functions, InlineWorker.inline_ir

    def only_lay_out(library: Any, module: Any) -> None:
        """Say how numbers lie in memory, which is the rest of what `optimize_functions` does."""
        module.data_layout = library._codegen._data_layout

    def inline_with_names_copied_once(worker: Any, *args: Any, **kwargs: Any) -> Any:
        """`inline_ir`, where all blocks of a copied function share a copy of its names."""
        copies: dict[int, Any] = {}

        def copied(scope: Any, memo: dict[int, Any]) -> Any:
            if id(scope) not in copies:
                new = memo[id(scope)] = copies[id(scope)] = Scope.__new__(Scope)
                vars(new).update(copy.deepcopy(vars(scope), memo))
            return copies[id(scope)]

        Scope.__deepcopy__ = copied
        try:
            return inline_ir(worker, *args, **kwargs)
        finally:
            del Scope.__deepcopy__

    CHANGES = [
        (config, "OPT", LEVEL),
        (CPUCodeLibrary, "_optimize_functions", only_lay_out),
        (InlineWorker, "inline_ir", inline_with_names_copied_once),
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
