"""The micro-kernel: an inner loop that keeps its sums in registers, written in LLVM's instructions from Python.

Six rows of a matrix product:

    c₀ … c₅ = six rows of S, or the one row that S has, or 0; several vectors each, all in registers
    for each k:
        b = row k of B, as vectors                    read once, used six times
        for r in 0 … 5:
            c_r += A[r, k] · b                        one fused multiply-add for each vector
    write c₀ … c₅ to C                                once

Why this is fast. A core can start two fused multiply-adds in a cycle, and each takes four cycles: to keep it busy there
must be eight or more that don't wait for each other. The plain loop `tiles.add_product_by_loops` reads and writes C again
at every fourth k, and leaves a part of that unused; here C stays in registers from the first k to the last, so that a step of
AVX-512 is 24 multiply-adds for 4 vectors of B and 6 numbers of A. A compiler does not find this form by itself: the
function below writes down LLVM's instructions, one by one, as a Python loop over rows and vectors.

A vector is as wide as the registers of this machine are. With 32 registers (of 64 bytes in AVX-512, of 16 on ARM) there are
four vectors to a row (24 for C), with 16 registers (of 32 bytes in AVX2) two (12 for C). More rows mean fewer reads for each
multiply-add: chapter 17 measures what six are worth against four. Rows that six leave over are taken four at a time.

To have another machine's shape: NUMBA_CPU_NAME=haswell gives that of AVX2, and where there is AVX-512,
NUMBA_CPU_NAME=x86-64-v4 NUMBA_CPU_FEATURES=+prefer-128-bit gives that of ARM.

The tier "numba" does without this file: the loops of tiles.py compute the same, more slowly. The kernels of memories
(memory_kernel.py) are made of the same instructions.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from minitransformer.backend import vector_bytes

REGISTER = vector_bytes() or 16  # bytes of a vector; where there are no such registers, nobody calls this kernel
WIDE = 2 if REGISTER == 32 else 4  # vectors to a row of C
NARROW = 2  # ... at its right edge, if the columns are no multiple of WIDE vectors
WIDTH = 64  # columns of a memory
LINE = 64  # bytes in a line of the cache; a vector that straddles two of them is read twice
I64 = ir.IntType(64)


def fixed(value):
    """An integer constant, written into the code."""
    return ir.Constant(I64, value)


def read_from(builder, address, kind, size):
    """The number or vector at an address, which is a multiple of `size`."""
    load = builder.load(builder.inttoptr(address, kind.as_pointer()))
    load.align = size
    return load


def fma_of(builder, vector, size):
    """LLVM's function for a · b + c of vectors."""
    name = f"llvm.fma.v{vector.count}f{8 * size}"
    return builder.module.globals.get(name) or ir.Function(builder.module, ir.FunctionType(vector, [vector] * 3), name)


def _some_rows(rows, vectors_in_row):
    """Code for C[r:s, c:e] = S[r:s, c:e] + A[r:s] B[:, c:e], with s = r + rows and `vectors_in_row` vectors from c to e.

    S has a row for each of C, or one for all of them, or none, and then C = A B. Rows of B, S and C are contiguous.
    """

    def typing(typingctx, A, B, S, C, r, c):
        def code(context, builder, signature, arguments):
            number = context.get_value_type(signature.args[0].dtype)
            size = context.get_abi_sizeof(number)
            vector = ir.VectorType(number, REGISTER // size)
            array_A, array_B, array_S, array_C = (
                context.make_array(kind)(context, builder, value)
                for kind, value in zip(signature.args[:4], arguments, strict=False)
            )
            (A_row, A_step), (B_row, _), (C_row, _) = (
                [builder.extract_value(array.strides, axis) for axis in (0, 1)] for array in (array_A, array_B, array_C)
            )
            inner = builder.extract_value(array_A.shape, 1)
            r, c = arguments[4:]

            def read(address, kind):
                return read_from(builder, address, kind, size)

            def vectors(address):
                return [builder.add(address, fixed(v * REGISTER)) for v in range(vectors_in_row)]

            left = builder.mul(c, fixed(size))
            A0 = builder.add(builder.ptrtoint(array_A.data, I64), builder.mul(r, A_row))
            B0 = builder.add(builder.ptrtoint(array_B.data, I64), left)
            A_rows = [builder.mul(A_row, fixed(row)) for row in range(rows)]

            def places(array, its_row):
                first = builder.add(builder.add(builder.ptrtoint(array.data, I64), left), builder.mul(r, its_row))
                return [vectors(builder.add(first, builder.mul(its_row, fixed(row)))) for row in range(rows)]

            S_rows, S_row = (builder.extract_value(axes, 0) for axes in (array_S.shape, array_S.strides))
            nothing, before = builder.icmp_signed("==", S_rows, fixed(0)), builder.block
            with builder.if_then(builder.not_(nothing)):
                its_row = builder.select(builder.icmp_signed("==", S_rows, fixed(1)), fixed(0), S_row)
                found = [read(place, vector) for row in places(array_S, its_row) for place in row]
                reading = builder.block
            start = []
            for value in found:
                start.append(builder.phi(vector))
                start[-1].add_incoming(ir.Constant(vector, [0.0] * vector.count), before)
                start[-1].add_incoming(value, reading)

            # The loop over k. What changes from step to step is a "phi": first what it was before, then what a step made.
            before, loop, after = builder.block, builder.append_basic_block("k"), builder.append_basic_block("end")
            some = builder.icmp_signed("<", fixed(0), inner)
            builder.cbranch(some, loop, after)
            builder.position_at_end(loop)
            first = [fixed(0), A0, B0, *start]
            now = [builder.phi(value.type) for value in first]
            k, a, b, *totals = now
            B_k = [read(place, vector) for place in vectors(b)]
            fma = fma_of(builder, vector, size)
            following = [builder.add(k, fixed(1)), builder.add(a, A_step), builder.add(b, B_row)]
            for row, offset in enumerate(A_rows):
                everywhere = spread(builder, read(builder.add(a, offset), number), vector)
                for v, B_kv in enumerate(B_k):
                    total = totals[row * vectors_in_row + v]
                    following.append(builder.call(fma, [everywhere, B_kv, total]))
            for phi, value, changed in zip(now, first, following, strict=True):
                phi.add_incoming(value, before)
                phi.add_incoming(changed, loop)
            builder.cbranch(builder.icmp_signed("<", following[0], inner), loop, after)

            builder.position_at_end(after)
            last = [builder.phi(vector) for _ in totals]
            for phi, value, changed in zip(last, first[3:], following[3:], strict=True):
                phi.add_incoming(value, before)
                phi.add_incoming(changed, loop)
            for value, place in zip(last, (place for row in places(array_C, C_row) for place in row), strict=True):
                builder.store(value, builder.inttoptr(place, vector.as_pointer())).align = size
            return context.get_dummy_value()

        return types.void(A, B, S, C, types.intp, types.intp), code

    return typing


def spread(builder, value, vector):
    """A vector with the same number in every place."""
    places = ir.VectorType(ir.IntType(32), vector.count)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(places.element, 0))
    return builder.shuffle_vector(first, first, ir.Constant(places, [0] * vector.count))


def _fetches(numbers):
    """Code that lets some numbers, from X[t, c] on, come into the cache while other work goes on. There may be no such row."""

    def typing(typingctx, X, t, c):
        def code(context, builder, signature, arguments):
            array, (_, t, c) = context.make_array(signature.args[0])(context, builder, arguments[0]), arguments
            size = context.get_abi_sizeof(context.get_value_type(signature.args[0].dtype))
            row = builder.add(
                builder.ptrtoint(array.data, I64), builder.mul(t, builder.extract_value(array.strides, 0))
            )
            place, how = ir.IntType(8).as_pointer(), ir.IntType(32)
            name, kind = "llvm.prefetch.p0", ir.FunctionType(ir.VoidType(), [place, how, how, how])
            prefetch = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
            for line in range(0, numbers * size, LINE):
                there = builder.add(row, builder.add(builder.mul(c, fixed(size)), fixed(line)))
                builder.call(prefetch, [builder.inttoptr(there, place), how(0), how(3), how(1)])  # to read, soon, data
            return context.get_dummy_value()

        return types.void(X, types.int64, types.int64), code

    return typing


six_rows = intrinsic(_some_rows(6, WIDE))
four_rows = intrinsic(_some_rows(4, WIDE))
four_rows_narrow = intrinsic(_some_rows(4, NARROW))
fetch = intrinsic(_fetches(WIDTH))
fetch_line = intrinsic(_fetches(1))
