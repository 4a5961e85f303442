"""Numba compiles the loops in less time: what it does twice, or to no effect, is left out meanwhile.

    level     of LLVM's levels of optimisation, the second gives these loops the speed of the third
    passes    LLVM improves each function of a loop before it improves the loop, where all of it is done again
    code      what only loops call is a part of their code: it gets none of its own, which nobody would run
    copies    where a function becomes a part of another, Numba copies it twice, and all its names anew for each of its blocks

What a reader compiles in the same process is compiled as usual. With NUMBA_OPT the level is the reader's own. Nothing is left out
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
WAYS_IN = "_ZN7cpython", "_ZN5cfunc"  # how names of functions begin that Python, or C, calls
CHANGES: list[tuple[Any, str, Any]] = []

with suppress(ImportError, AttributeError):
    from llvmlite import binding
    from numba.core.codegen import CPUCodeLibrary, JITCPUCodegen
    from numba.core.inline_closurecall import InlineWorker
    from numba.core.ir import Block
    from numba.core.llvm_bindings import create_pass_builder  # noqa: F401  a version that has none has an older LLVM

    def only_lay_out(library: Any, module: Any) -> None:
        """Say how numbers lie in memory, which is the rest of what `_optimize_functions` does."""
        module.data_layout = library._codegen._data_layout

    def add_what_is_called(codegen: Any, module: Any) -> None:
        """`_add_module`, which has code made: of a module without a way in from Python only for the variables that it shares."""
        if not any(function.name.startswith(WAYS_IN) for function in module.functions):
            variables = (str(each) for each in module.global_variables if each.linkage is binding.Linkage.common)
            library, module = module._CPUCodeLibrary__library, binding.parse_assembly("\n".join(variables))
            module._CPUCodeLibrary__library = library
        codegen._engine.add_module(module)

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
        (JITCPUCodegen, "_add_module", add_what_is_called),
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
