"""Every loop is among those that are compiled ahead."""

import importlib
import pkgutil

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import kernels
from minitransformer.backend import available
from minitransformer.workshop import compile_loops

OF_ONE_TOKEN = ("norm_rows", "two_layers", "attend_plainly", "through_block")


@pytest.mark.skipif("numba" not in available(), reason="needs Numba")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_loop_is_forgotten(dtype):
    from numba.core.dispatcher import Dispatcher

    for loops in compile_loops.LOOPS:
        loops(np.random.default_rng(0).standard_normal((2, 100, 16)).astype(dtype))
    of_one_chapter = {"compiled_stairs"}
    names = {module.name for module in pkgutil.iter_modules(kernels.__path__)} - of_one_chapter
    if mt.backend() != "micro":
        names.remove("matmul")
    forgotten = [
        f"{name}.{loop.__name__}"
        for name in sorted(names)
        for loop in vars(importlib.import_module(f"minitransformer.kernels.{name}")).values()
        if isinstance(loop, Dispatcher) and loop.targetoptions.get("inline") != "always"
        if "threads" in loop._compiler.pysig.parameters or loop.__name__ in OF_ONE_TOKEN  # what Python calls
        if not any(f"rray({np.dtype(dtype).name}" in str(signature) for signature in loop.signatures)
    ]
    assert forgotten == []
