"""Vectors of eight numbers, for what a compiler makes no vectors of: loops of eight steps, and the transpose of a matrix.

    set_eight      X[c : c + 8] = x
    dot_eight      Σ x y of X[c : c + 8] and Y[c : c + 8], in halves: 4 sums of two, 2 of these, 1
    turn_eight     8 × 8 numbers change their rows for columns, in three steps of eight shuffles:

        a₀ a₁ a₂ a₃ …      a₀ b₀ a₁ b₁ …      a₀ b₀ c₀ d₀ …      a₀ b₀ c₀ d₀ e₀ f₀ g₀ h₀
        b₀ b₁ b₂ b₃ …  →   a₂ b₂ a₃ b₃ …  →   a₁ b₁ c₁ d₁ …  →   a₁ b₁ c₁ d₁ e₁ f₁ g₁ h₁
        …                  …                  …                  …

LLVM makes of eight numbers what the processor has: two registers, one, or half of one. Arrays are contiguous along their last
axis.
"""

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core.cgutils import unpack_tuple
from numba.extending import intrinsic

EIGHT = range(8)
_i32, _i64 = ir.IntType(32), ir.IntType(64)


def _vector(context: Any, kind: Any) -> tuple[ir.VectorType, int]:
    """Eight numbers of an array of this kind, and the bytes of one."""
    number = context.get_value_type(kind.dtype)
    return ir.VectorType(number, 8), context.get_abi_sizeof(number)


def _place(context: Any, builder: Any, kind: Any, array: Any, *at: Any) -> Any:
    """Where X[c : c + 8] or X[r, c : c + 8] lies."""
    view = context.make_array(kind)(context, builder, array)
    address = builder.ptrtoint(view.data, _i64)
    for i, stride in zip(at, unpack_tuple(builder, view.strides), strict=True):
        address = builder.add(address, builder.mul(i, stride))
    return builder.inttoptr(address, _vector(context, kind)[0].as_pointer())


def _shuffled(builder: Any, a: Any, b: Any, places: tuple[int, ...]) -> Any:
    """These places of two vectors; those of b begin where a ends."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_i32, len(places)), places))


@intrinsic
def set_eight(typingctx, X, c, x):
    """X[c : c + 8] = x."""

    def code(context, builder, signature, arguments):
        array, c, x = arguments
        vector, size = _vector(context, X)
        first = builder.insert_element(ir.Constant(vector, ir.Undefined), x, _i32(0))
        builder.store(_shuffled(builder, first, first, (0,) * 8), _place(context, builder, X, array, c), align=size)
        return context.get_dummy_value()

    return types.void(X, types.intp, X.dtype), code


@intrinsic
def dot_eight(typingctx, X, Y, c):
    """The dot product of X[c : c + 8] and Y[c : c + 8]."""

    def code(context, builder, signature, arguments):
        places = [_place(context, builder, X, array, arguments[2]) for array in arguments[:2]]
        x = builder.fmul(*(builder.load(place, align=_vector(context, X)[1]) for place in places))
        for half in (4, 2, 1):
            x = builder.fadd(*(_shuffled(builder, x, x, tuple(range(at, at + half))) for at in (0, half)))
        return builder.extract_element(x, _i32(0))

    return X.dtype(X, X, types.intp), code


# how far apart two vectors are, and which places of them two others have
STEPS = (
    (1, (0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15)),
    (2, (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)),
    (4, (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)),
)


@intrinsic
def turn_eight(typingctx, X, r, c, factors, XT):
    """XT[c + j, r + i] = factors[c + j] · X[r + i, c + j] for i, j < 8."""

    def code(context, builder, signature, arguments):
        source, r, c, factors_of, target = arguments
        size = _vector(context, X)[1]

        def place(kind, array, row, i, column):
            return _place(context, builder, kind, array, builder.add(row, _i64(i)), column)

        by = builder.load(_place(context, builder, factors, factors_of, c), align=size)
        rows = [builder.fmul(by, builder.load(place(X, source, r, i, c), align=size)) for i in EIGHT]
        for apart, low, high in STEPS:
            turned: list[Any] = [None] * 8
            for i in (i for i in EIGHT if not i & apart):
                a, b = rows[i], rows[i + apart]
                turned[i], turned[i + apart] = _shuffled(builder, a, b, low), _shuffled(builder, a, b, high)
            rows = turned
        for i, j in enumerate((0, 2, 1, 3, 4, 6, 5, 7)):  # the steps have exchanged the two lowest bits of a number
            builder.store(rows[i], place(XT, target, c, j, r), align=size)
        return context.get_dummy_value()

    return types.void(X, types.intp, types.intp, factors, XT), code


if numba.config.DISABLE_JIT:  # the same in plain Python

    def set_eight(X, c, x):
        """X[c : c + 8] = x."""
        X[c : c + 8] = x

    def dot_eight(X, Y, c):
        """The dot product of X[c : c + 8] and Y[c : c + 8]."""
        return X[c : c + 8] @ Y[c : c + 8]

    def turn_eight(X, r, c, factors, XT):
        """XT[c + j, r + i] = factors[c + j] · X[r + i, c + j] for i, j < 8."""
        XT[c : c + 8, r : r + 8] = (X[r : r + 8, c : c + 8] * factors[c : c + 8]).T
