"""Which tier computes a core: the definition in NumPy, the compiled loops, or the loops around a micro-kernel.

    minitransformer.backend()                  the tier in use
    minitransformer.backend("numpy")           use this one from now on
    with minitransformer.backend("numpy"):     ... or inside this block
    MINITRANSFORMER_BACKEND=numpy              ... or for a whole run, from the shell

All tiers give the same answer to float tolerance, values and gradients. The default is the fastest that the machine
has. The choice holds for the whole process, for all its threads.
"""

import functools
import os
import re
from typing import Any

TIERS = ("numpy", "numba", "micro")  # slowest first


def processor() -> tuple[str, str]:
    """Name and features, in LLVM's terms, of the processor to compile for: this one, or that of NUMBA_CPU_NAME. Needs Numba.

    A processor that is named has only its own features; Numba by itself would add those of this machine.
    """
    from llvmlite.binding import get_host_cpu_name
    from numba import config
    from numba.core.codegen import get_host_cpu_features

    name, features = config.CPU_NAME, config.CPU_FEATURES
    if features is None:
        features = "" if name else get_host_cpu_features()
    return name or get_host_cpu_name(), features


MULTIPLY_ADD = """
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
define <16 x float> @multiply_add(<16 x float> %a, <16 x float> %b, <16 x float> %c) {
    %d = call <16 x float> @llvm.fma.v16f32(<16 x float> %a, <16 x float> %b, <16 x float> %c)
    ret <16 x float> %d
}
"""


@functools.cache
def vector_bytes() -> int:
    """Bytes of the vectors that this processor multiplies and adds in one instruction; 0 if it has no such one. Needs Numba.

    There is no list of processors here: the compiler is asked how many instructions it needs for 64 bytes. The answer is 64 with
    AVX-512, 32 with AVX and FMA, and 16 on ARM; also 16 if the features ask for it by +prefer-128-bit.
    """
    from llvmlite import binding as llvm
    from numba.core.codegen import initialize_llvm

    initialize_llvm()
    name, features = processor()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(cpu=name, features=features)
    number = len(re.findall("vfmadd|fmla", machine.emit_assembly(llvm.parse_assembly(MULTIPLY_ADD))))
    return number and (16 if "+prefer-128-bit" in features.split(",") else 64 // number)


@functools.cache
def _missing(name: str) -> str:
    """Why this machine can't run a tier; "" if it can. Only an import tells whether Numba accepts the NumPy that is installed."""
    if name == "numpy":
        return ""
    try:
        import numba
    except ImportError as error:
        return f"the tier {name!r} needs Numba (pip install numba): {error}"
    if name == "micro":
        if numba.config.DISABLE_JIT:
            return "the tier 'micro' is made of vector instructions, and NUMBA_DISABLE_JIT asks for plain Python"
        if not vector_bytes():
            return "the tier 'micro' needs a processor that multiplies and adds vectors: x86 with AVX and FMA, or ARM"
    return ""


def available() -> tuple[str, ...]:
    """The tiers that this machine can run, slowest first."""
    return tuple(name for name in TIERS if not _missing(name))


def _known(name: str, origin: str) -> str:
    """The name of a tier that this machine can run; ValueError, with what asked for it, for any other."""
    if name not in TIERS:
        raise ValueError(f"{origin}: no tier {name!r}; there are {', '.join(TIERS)}")
    if _missing(name):
        raise ValueError(f"{origin}: {_missing(name)}")
    return name


class backend:  # noqa: N801  (reads as a function: backend("numpy"))
    """Choose a tier, from now on or for a `with` block; `backend()` alone changes nothing.

    str(backend()) is the name of the tier in use; backend() == "numpy" compares it.
    raises ValueError for an unknown tier, or one that this machine lacks
    """

    _current: str | None = None

    def __init__(self, name: str | None = None) -> None:
        self.previous = self._current  # None if nobody has asked yet: then the default is found when it is needed
        if name is not None:
            type(self)._current = _known(name, "backend")

    def __enter__(self) -> "backend":
        return self

    def __exit__(self, *_: Any) -> None:
        type(self)._current = self.previous

    def __eq__(self, name: object) -> bool:
        return current() == str(name)

    __hash__ = None  # type: ignore[assignment]  # what it equals changes with the tier

    def __str__(self) -> str:
        return current()

    def __repr__(self) -> str:
        return f"backend({current()!r}), available: {', '.join(available())}"


def current() -> str:
    """Name of the tier in use."""
    if backend._current is None:
        wish = os.environ.get("MINITRANSFORMER_BACKEND", "")
        backend._current = _known(wish, "MINITRANSFORMER_BACKEND") if wish else available()[-1]
    return backend._current
