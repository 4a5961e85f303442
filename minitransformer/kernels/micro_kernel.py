"""The micro-kernels: inner loops that keep their sums in registers, written in LLVM's instructions from Python.

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

A pass over some columns of a memory M, which positions s and s′ write and the next two, t and t′, read (passes.py says why):

    y_t = y_t′ = 0
    for each row c of M:
        m = f ⊙ M_c + w_sc · x_s + w_s′c · x_s′           M is read once, and written once; f, x and y run along the columns
        y_t += r_tc · m,  y_t′ += r_t′c · m
        M_c = m

Four operations or more for a vector of M that is in the first-level cache, and a core starts two in a cycle: the loads and the
store hide behind them. x and y stay in registers from the first row to the last. A compiler that is given the lines above writes
y at every row.

To have another machine's shape: NUMBA_CPU_NAME=haswell gives that of AVX2, and where there is AVX-512,
NUMBA_CPU_NAME=x86-64-v4 NUMBA_CPU_FEATURES=+prefer-128-bit gives that of ARM.

The tier "numba" does without this file: the loops of tiles.py and passes.py compute the same, more slowly.
"""

import itertools

from llvmlite import ir
from numba import types
from numba.core.cgutils import unpack_tuple
from numba.extending import intrinsic

from minitransformer.backend import register

REGISTER = register() or 16  # bytes of a vector; where there are no such registers, nobody calls this kernel
WIDE = 2 if REGISTER == 32 else 4  # vectors to a row of C
NARROW = 2  # ... at its right edge, if the columns are no multiple of WIDE vectors
WIDTH = 64  # columns of a memory
LINE = 64  # bytes in a line of the cache; a vector that straddles two of them is read twice
WRITTEN, READ, FADES = 0, 4, 8  # where rows below it begin: x of two positions, then for W_2; y of two, then for R_2; f
AS_R, AS_R_2, AS_W, AS_W_SECOND, AS_W_2, AS_W_2_SECOND, AS_M = range(7)  # columns beside it, where its rows fade
BY_ROWS, BY_COLUMNS = 1, 2  # how a memory fades, if it does
READS_2, WRITES_2 = 1, 2  # whether there is a second read, or a second write, if any
_i64 = ir.IntType(64)


def fixed(value):
    """An integer constant, written into the code."""
    return ir.Constant(_i64, value)


def _read(builder, address, kind, size):
    load = builder.load(builder.inttoptr(address, kind.as_pointer()))
    load.align = size
    return load


def _fma(builder, vector, size):
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
                return _read(builder, address, kind, size)

            def vectors(address):
                return [builder.add(address, fixed(v * REGISTER)) for v in range(vectors_in_row)]

            left = builder.mul(c, fixed(size))
            A0 = builder.add(builder.ptrtoint(array_A.data, _i64), builder.mul(r, A_row))
            B0 = builder.add(builder.ptrtoint(array_B.data, _i64), left)
            A_rows = [builder.mul(A_row, fixed(row)) for row in range(rows)]

            def places(array, its_row):
                first = builder.add(builder.add(builder.ptrtoint(array.data, _i64), left), builder.mul(r, its_row))
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
            fma = _fma(builder, vector, size)
            following = [builder.add(k, fixed(1)), builder.add(a, A_step), builder.add(b, B_row)]
            for row, offset in enumerate(A_rows):
                everywhere = _spread(builder, read(builder.add(a, offset), number), vector)
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


def _spread(builder, value, vector):
    """A vector with the same number in every place."""
    places = ir.VectorType(ir.IntType(32), vector.count)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(places.element, 0))
    return builder.shuffle_vector(first, first, ir.Constant(places, [0] * vector.count))


@intrinsic
def some_columns(typingctx, memory, reads, writes, at, part, fading, second):
    """M = f ⊙ M + Σ w xᵀ, y = rᵀ M for each r, for WIDE vectors of columns from c on; for NARROW, if no more are left.

    memory   M, below, beside: M (rows · WIDTH); `below` (its rows · WIDTH): x of s and of s_2, both again for W_2, y of t and
             of t_2, both again for R_2, and f; `beside` (7, numbers), used only if M fades by rows
    reads    R and R_2, of which positions t and t_2 are read
    writes   W and W_2, of which positions s and s_2 are written
    at       (t, t_2, s, s_2)
    part     (start, rows, c, left): M has the rows start … start + rows − 1 of a memory; `left` columns are there from c on
    fading   0: f is 1. BY_COLUMNS: f stands below. BY_ROWS: row k of M is multiplied by beside[AS_M, k], and the other rows of
             `beside` are taken in the place of w and w₂, and of r and r₂ of t_2
    second   0: there is neither R_2 nor W_2. READS_2: R_2 is read as R is. WRITES_2: W_2 is written as W is
    Each case has its own instructions, all in one piece of code: to compile a whole sweep for each takes minutes.
    """

    def code(context, builder, signature, arguments):
        kinds = [kind for group in signature.args[:3] for kind in group]
        values = [value for group in arguments[:3] for value in unpack_tuple(builder, group)]
        M, below, beside, R, R_2, W, W_2 = (
            context.make_array(kind)(context, builder, value) for kind, value in zip(kinds, values, strict=True)
        )
        arrays = M, R, R_2, W, W_2, beside, below
        start, rows, c, left = unpack_tuple(builder, arguments[4])
        places = (*unpack_tuple(builder, arguments[3]), start, rows, c)
        fading, second = arguments[5:]
        number = context.get_value_type(kinds[0].dtype)
        size = context.get_abi_sizeof(number)
        wide = builder.icmp_signed(">", left, fixed(NARROW * REGISTER // size))
        which = builder.add(builder.mul(fading, fixed(3)), second)
        which = builder.add(builder.mul(which, fixed(2)), builder.zext(wide, _i64))
        end = builder.append_basic_block("pass")
        choice = builder.switch(which, end)
        for case, form in enumerate(itertools.product(range(3), range(3), (NARROW, WIDE))):
            block = builder.append_basic_block("pass")
            choice.add_case(fixed(case), block)
            builder.position_at_end(block)
            _columns(*form, builder, number, size, arrays, places)
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    four = types.UniTuple(types.int64, 4)
    return types.void(memory, reads, writes, four, four, types.int64, types.int64), code


def _columns(fading, second, vectors_in_row, builder, number, size, arrays, positions):
    """The code of `some_columns` for one case: how M fades, what else is read or written, how many vectors of columns."""
    M, R, R_2, W, W_2, beside, below = arrays
    t, t_2, s, s_2, start, rows, c = positions
    vector = ir.VectorType(number, REGISTER // size)
    fma = _fma(builder, vector, size)
    left = builder.mul(c, fixed(size))

    def vectors(array, row):
        corner = builder.add(builder.ptrtoint(array.data, _i64), left)
        first = builder.add(corner, builder.mul(row, fixed(WIDTH * size)))
        return [builder.add(first, fixed(v * REGISTER)) for v in range(vectors_in_row)]

    def read(row):
        return [_read(builder, place, vector, size) for place in vectors(below, fixed(row))]

    def row_of(array, row):
        first = builder.mul(fixed(row), builder.extract_value(array.strides, 0))
        return builder.add(builder.ptrtoint(array.data, _i64), first)

    def begin(array, position, faded):
        """Address of the w or r of a position, from row `start` on; of its row `faded` of `beside`, where the rows of M fade."""
        if fading == BY_ROWS and faded is not None:
            return row_of(beside, faded)
        offset = builder.mul(position, builder.extract_value(array.strides, 0))
        offset = builder.add(offset, builder.mul(start, fixed(size)))
        return builder.add(builder.ptrtoint(array.data, _i64), offset)

    def write(values, places):
        for value, place in zip(values, places, strict=True):
            builder.store(value, builder.inttoptr(place, vector.as_pointer())).align = size

    def each(row, *those):
        """For each w or r: its address, and the row below M that holds its x or y."""
        return [(begin(*one), row + i) for i, one in enumerate(those)]

    its_W, its_R = [(W, s, AS_W), (W, s_2, AS_W_SECOND)], [(R, t, None), (R, t_2, AS_R)]
    its_W += [(W_2, s, AS_W_2), (W_2, s_2, AS_W_2_SECOND)] if second == WRITES_2 else []
    its_R += [(R_2, t, None), (R_2, t_2, AS_R_2)] if second == READS_2 else []
    writes, reads = [(w, read(row)) for w, row in each(WRITTEN, *its_W)], each(READ, *its_R)
    columns = read(FADES) if fading == BY_COLUMNS else None
    a = row_of(beside, AS_M) if fading == BY_ROWS else None
    nothing = [ir.Constant(vector, [0.0] * vector.count)] * (len(reads) * vectors_in_row)

    before, loop, after = builder.block, builder.append_basic_block("row"), builder.append_basic_block("end")
    builder.cbranch(builder.icmp_signed("<", fixed(0), rows), loop, after)
    builder.position_at_end(loop)
    row, *totals = now = [builder.phi(value.type) for value in (fixed(0), *nothing)]
    there = builder.mul(row, fixed(size))

    def everywhere(first):
        return _spread(builder, _read(builder, builder.add(first, there), number, size), vector)

    places = vectors(M, row)
    m = [_read(builder, place, vector, size) for place in places]
    m = [builder.fmul(f_v, m_v) for f_v, m_v in zip(columns, m, strict=True)] if columns else m
    m = [builder.fmul(everywhere(a), m_v) for m_v in m] if a else m
    for w, x in writes:
        m = [builder.call(fma, [everywhere(w), x_v, m_v]) for x_v, m_v in zip(x, m, strict=True)]
    write(m, places)
    following = [builder.add(row, fixed(1))]
    for i, (r, _) in enumerate(reads):
        its = totals[i * vectors_in_row : (i + 1) * vectors_in_row]
        following += [builder.call(fma, [everywhere(r), m_v, y]) for m_v, y in zip(m, its, strict=True)]
    for phi, value, changed in zip(now, (fixed(0), *nothing), following, strict=True):
        phi.add_incoming(value, before)
        phi.add_incoming(changed, loop)
    builder.cbranch(builder.icmp_signed("<", following[0], rows), loop, after)

    builder.position_at_end(after)
    last = [builder.phi(vector) for _ in totals]
    for phi, value, changed in zip(last, nothing, following[1:], strict=True):
        phi.add_incoming(value, before)
        phi.add_incoming(changed, loop)
    for i, (_, out) in enumerate(reads):
        write(last[i * vectors_in_row : (i + 1) * vectors_in_row], vectors(below, fixed(out)))


def _fetches(numbers):
    """Code that lets some numbers, from X[t, c] on, come into the cache while other work goes on. There may be no such row."""

    def typing(typingctx, X, t, c):
        def code(context, builder, signature, arguments):
            array, (_, t, c) = context.make_array(signature.args[0])(context, builder, arguments[0]), arguments
            size = context.get_abi_sizeof(context.get_value_type(signature.args[0].dtype))
            row = builder.add(
                builder.ptrtoint(array.data, _i64), builder.mul(t, builder.extract_value(array.strides, 0))
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
