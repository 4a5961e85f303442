"""How the loops are compiled: four decorators that all kernels share.

    compiled     what other compiled functions call, and Python. Other Python threads go on while it runs
    inlined      what is called in one place only, or short: compiled with its caller, once instead of twice
    in_loops     what a loop draws from with `for … in`: kept with the loop alone, as Numba finds no generator on the disk
    any_order    a sum whose terms may be added in any order, so that 16 partial sums stand side by side in a register

    contract     a · b + c may be one instruction. No other liberty with arithmetic is given: sums are taken in the order
                 in which they are written (`exp2` needs it), and −∞ and NaN keep their meaning (masks need it).
    numpy        a division by zero gives what NumPy gives, without a test of every divisor
    cache        compiled once per machine (seconds for attention, both ways), then read from the disk (under a second)

LLVM leaves half of a 512-bit register unused on Intel's servers, because their first generation slowed its clock for the
full width. Today that costs these loops a third of their speed, so unless NUMBA_CPU_FEATURES is set the preference is
switched off. With NUMBA_CPU_NAME the loops are compiled for another processor, with what that one has. What is kept on the
disk is kept under the name and the features: code for two processors never mixes.
"""

import sys
from contextlib import suppress

import numba
from numba.np import linalg

from minitransformer.backend import processor, register
from minitransformer.kept_loops import keep_somewhere

# Numba's functions of arrays look for SciPy's BLAS when they are imported, 0.2 s, which no loop of the book calls. Here they find
# that it is there; it is looked for when somebody's loop calls it.
with suppress(AttributeError):  # a Numba that does not look
    find_blas, linalg.ensure_blas = linalg.ensure_blas, bool
    import numba.np.arraymath

    linalg.ensure_blas = find_blas

if place := keep_somewhere():
    numba.config.CACHE_DIR = str(place)
    with suppress(OSError):  # nobody listens
        print(
            f"minitransformer: compiled loops can't be kept where they should be, and are in {place}", file=sys.stderr
        )

if numba.config.CPU_FEATURES is None:
    numba.config.CPU_FEATURES = processor()[1] + (",-prefer-256-bit" if register() == 64 else "")

CONTRACT = {"contract"}
_options = {"cache": True, "error_model": "numpy", "nogil": True, "no_cfunc_wrapper": True}
compiled = numba.njit(**_options, fastmath=CONTRACT)
inlined = numba.njit(**_options, fastmath=CONTRACT, inline="always")
in_loops = numba.njit(**{**_options, "cache": False}, fastmath=CONTRACT)
any_order = numba.njit(**_options, fastmath=CONTRACT | {"reassoc"})
