"""Where the arrays of blocks are: what stands in the tables of addresses, and how a loop finds an array with one of them.

one_token_tables.py makes the tables, and has compared the shape and dtype of each array with what the loops expect.
"""

import ctypes
from typing import Any

import numba
import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from minitransformer.kernels.compiling import inlined, inside
from minitransformer.typing import Array

# A row says where the arrays of a block are. First the addresses of these twelve; W₃ and b₃ may be empty. Then six numbers for
# each projection: the addresses of W, of b and of the gain, 0 for no gain; how many columns it has; how many of them are one row
# that is normed or turned; and 1 if it is turned, or 0.
GAMMA, BETA, GAMMA_2, BETA_2, W_O, B_O, W_1, B_1, W_3, B_3, W_2, B_2, FIRST = range(13)
EACH = 6

# What a core has learned stands in a table of its own: of each array the address and three axes, in front 1 where it has fewer.
SPEED, SHIFT, WIDE, GAIN, SKIP, THETA, BIAS, DIRECTIONS = range(8)


@intrinsic
def at(typingctx, address, like):
    """A pointer to the numbers at an address, of the dtype of the array `like`."""

    def code(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(types.int64, like), code


def _at_in_python(address: int, like: Array) -> Any:
    return ctypes.cast(int(address), ctypes.POINTER(np.ctypeslib.as_ctypes_type(like.dtype)))


if numba.config.DISABLE_JIT:
    at = _at_in_python


@inlined
def vector(address, n, like):
    """The array of n numbers at an address, of the dtype of `like`."""
    return carray(at(address, like), (n,))


@inlined
def matrix(address, rows, columns, like):
    """The array of rows × columns numbers at an address, of the dtype of `like`."""
    return carray(at(address, like), (rows, columns))


@inside
def learned(core, which, like):
    """An array of a core, with three axes."""
    address, first, rows, columns = core[which]
    return carray(at(address, like), (first, rows, columns))
