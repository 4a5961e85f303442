"""The micro-kernels of memories: passes over some columns of a memory M, written in LLVM's instructions as in micro_kernel.py.

Four positions write and read in one pass, one after the other (in_turn.py), or one position does:

    y_t = 0 for each of them
    for each row k of M:
        m = M_k                                           M is read once, and written once; x and y run along the columns
        for each of the positions t:
            m = m + w_tk · x_t
            y_t += r_tk · m
        M_k = m

Where M fades, or a position reads or writes a second time, two positions s and s′ have written, and the next two, t and t′, read
(passes.py says why):

    y_t = y_t′ = 0
    for each row c of M:
        m = f ⊙ M_c + w_sc · x_s + w_s′c · x_s′
        y_t += r_tc · m,  y_t′ += r_t′c · m
        M_c = m

Why this is fast. There are eight operations for a vector of M that is in the first-level cache, below four or more, and a core
starts two in a cycle: the loads and the store hide behind them. x and y stay in registers from the first row to the last.
A compiler that is given the lines above writes y at every row.
"""

import itertools

from llvmlite import ir
from numba import types
from numba.core.cgutils import unpack_tuple
from numba.extending import intrinsic

from minitransformer.kernels.micro_kernel import I64, NARROW, REGISTER, WIDE, WIDTH, fixed, fma_of, read_from, spread

# where rows below it begin: x of four positions, or of two, and x₂ of these; y and y₂ likewise; f
WRITTEN, READ, FADES = 0, 4, 8
AS_R, AS_R_2, AS_W, AS_W_SECOND, AS_W_2, AS_W_2_SECOND, AS_M = range(7)  # columns beside it, where its rows fade
BY_ROWS, BY_COLUMNS = 1, 2  # how a memory fades, if it does
READS_2, WRITES_2 = 1, 2  # whether there is a second read, or a second write, if any
TOGETHER = 4  # positions in a pass that write and read one after the other


def _one_of(builder, which, forms, code):
    """code(*form) for the one of these forms whose number is `which`: a block of instructions for each."""
    end = builder.append_basic_block("pass")
    choice = builder.switch(which, end)
    for number, form in enumerate(forms):
        block = builder.append_basic_block("pass")
        choice.add_case(fixed(number), block)
        builder.position_at_end(block)
        code(*form)
        builder.branch(end)
    builder.position_at_end(end)


def _vectors(builder, array, row, c, size, count):
    """Addresses of `count` vectors of row `row` of an array with rows of WIDTH numbers, from column c on."""
    first = builder.add(builder.mul(row, fixed(WIDTH * size)), builder.mul(c, fixed(size)))
    first = builder.add(builder.ptrtoint(array.data, I64), first)
    return [builder.add(first, fixed(v * REGISTER)) for v in range(count)]


def _store(builder, values, places, size):
    for value, place in zip(values, places, strict=True):
        builder.store(value, builder.inttoptr(place, value.type.as_pointer())).align = size


def _over_rows(builder, rows, totals, step):
    """step(row, totals), which returns the next totals, for row 0 … rows − 1; returns the last ones. They stay in registers."""
    before, loop, after = builder.block, builder.append_basic_block("row"), builder.append_basic_block("end")
    builder.cbranch(builder.icmp_signed("<", fixed(0), rows), loop, after)
    builder.position_at_end(loop)
    row, *now = phis = [builder.phi(value.type) for value in (fixed(0), *totals)]
    following = [builder.add(row, fixed(1)), *step(row, now)]
    builder.cbranch(builder.icmp_signed("<", following[0], rows), loop, after)
    builder.position_at_end(after)
    last = [builder.phi(value.type) for value in totals]
    for ends, first, changed in ((phis, (fixed(0), *totals), following), (last, totals, following[1:])):
        for phi, value, new in zip(ends, first, changed, strict=True):
            phi.add_incoming(value, before)
            phi.add_incoming(new, loop)
    return last


# ------------------------------------------------------------------------------------------- one after the other


@intrinsic
def positions_in_turn(typingctx, memory, R, W, at, part, together):
    """M = M + w_t x_tᵀ, y_t = r_tᵀ M for one position or TOGETHER, one after the other, for NARROW vectors from column c on.

    memory   M, below: M (rows · WIDTH); `below` (its rows · WIDTH): x and y of the positions, from rows WRITTEN and READ on
    R, W     (n, rows) of a taller memory
    at       (t, further): the positions are t, t + further, …
    part     (start, rows, c): M has the rows start … start + rows − 1 of a memory
    """

    def code(context, builder, signature, arguments):
        kinds = *signature.args[0], *signature.args[1:3]
        values = *unpack_tuple(builder, arguments[0]), *arguments[1:3]
        arrays = [context.make_array(kind)(context, builder, value) for kind, value in zip(kinds, values, strict=True)]
        places = *unpack_tuple(builder, arguments[3]), *unpack_tuple(builder, arguments[4])
        number = context.get_value_type(kinds[0].dtype)
        several = builder.zext(builder.icmp_signed("==", arguments[5], fixed(TOGETHER)), I64)

        def case(together):
            _in_turn(together, context, builder, number, arrays, places)

        _one_of(builder, several, [(1,), (TOGETHER,)], case)
        return context.get_dummy_value()

    two, three = types.UniTuple(types.int64, 2), types.UniTuple(types.int64, 3)
    return types.void(memory, R, W, two, three, types.int64), code


def _in_turn(together, context, builder, number, arrays, places):
    """The code of `positions_in_turn` for so many positions."""
    (M, below, R, W), (t, further, start, rows, c) = arrays, places
    size = context.get_abi_sizeof(number)
    vector = ir.VectorType(number, REGISTER // size)
    fma = fma_of(builder, vector, size)

    def vectors(array, row):
        return _vectors(builder, array, row, c, size, NARROW)

    def read(places):
        return [read_from(builder, place, vector, size) for place in places]

    def rows_of(array):
        """Addresses of the numbers for row `start` of the memory, of all positions."""
        stride = builder.extract_value(array.strides, 0)
        corner = builder.add(builder.ptrtoint(array.data, I64), builder.mul(start, fixed(size)))
        each = [builder.add(t, builder.mul(fixed(p), further)) for p in range(together)]
        return [builder.add(corner, builder.mul(position, stride)) for position in each]

    X, of_R, of_W = [read(vectors(below, fixed(WRITTEN + p))) for p in range(together)], rows_of(R), rows_of(W)

    def step(row, Y):
        there, row_of_M, following = builder.mul(row, fixed(size)), vectors(M, row), []

        def everywhere(first):
            return spread(builder, read_from(builder, builder.add(first, there), number, size), vector)

        m = read(row_of_M)
        for p in range(together):
            w = everywhere(of_W[p])
            m = [builder.call(fma, [w, x_v, m_v]) for x_v, m_v in zip(X[p], m, strict=True)]
            r, y = everywhere(of_R[p]), Y[p * NARROW : (p + 1) * NARROW]
            following += [builder.call(fma, [r, m_v, y_v]) for m_v, y_v in zip(m, y, strict=True)]
        _store(builder, m, row_of_M, size)
        return following

    last = _over_rows(builder, rows, [ir.Constant(vector, [0.0] * vector.count)] * (together * NARROW), step)
    for p in range(together):
        _store(builder, last[p * NARROW : (p + 1) * NARROW], vectors(below, fixed(READ + p)), size)


# ------------------------------------------------------------------------------------- two that have written, two that read


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
    second   0: there is neither R_2 nor W_2, and M fades. READS_2: R_2 is read as R is. WRITES_2: W_2 is written as W is
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
        which = builder.add(builder.mul(which, fixed(2)), builder.zext(wide, I64))

        def case(fading, second, vectors_in_row):
            _columns(fading, second, vectors_in_row, builder, number, size, arrays, places)

        forms = itertools.product(range(3), range(3), (NARROW, WIDE))
        _one_of(builder, builder.sub(which, fixed(2)), itertools.islice(forms, 2, None), case)
        return context.get_dummy_value()

    four = types.UniTuple(types.int64, 4)
    return types.void(memory, reads, writes, four, four, types.int64, types.int64), code


def _columns(fading, second, vectors_in_row, builder, number, size, arrays, positions):
    """The code of `some_columns` for one case: how M fades, what else is read or written, how many vectors of columns."""
    M, R, R_2, W, W_2, beside, below = arrays
    t, t_2, s, s_2, start, rows, c = positions
    vector = ir.VectorType(number, REGISTER // size)
    fma = fma_of(builder, vector, size)

    def vectors(array, row):
        return _vectors(builder, array, row, c, size, vectors_in_row)

    def read(row):
        return [read_from(builder, place, vector, size) for place in vectors(below, fixed(row))]

    def row_of(array, row):
        first = builder.mul(fixed(row), builder.extract_value(array.strides, 0))
        return builder.add(builder.ptrtoint(array.data, I64), first)

    def begin(array, position, faded):
        """Address of the w or r of a position, from row `start` on; of its row `faded` of `beside`, where the rows of M fade."""
        if fading == BY_ROWS and faded is not None:
            return row_of(beside, faded)
        offset = builder.mul(position, builder.extract_value(array.strides, 0))
        offset = builder.add(offset, builder.mul(start, fixed(size)))
        return builder.add(builder.ptrtoint(array.data, I64), offset)

    def each(row, *those):
        """For each w or r: its address, and the row below M that holds its x or y."""
        return [(begin(*one), row + i) for i, one in enumerate(those)]

    its_W, its_R = [(W, s, AS_W), (W, s_2, AS_W_SECOND)], [(R, t, None), (R, t_2, AS_R)]
    its_W += [(W_2, s, AS_W_2), (W_2, s_2, AS_W_2_SECOND)] if second == WRITES_2 else []
    its_R += [(R_2, t, None), (R_2, t_2, AS_R_2)] if second == READS_2 else []
    writes, reads = [(w, read(row)) for w, row in each(WRITTEN, *its_W)], each(READ, *its_R)
    columns = read(FADES) if fading == BY_COLUMNS else None
    a = row_of(beside, AS_M) if fading == BY_ROWS else None

    def step(row, totals):
        there, places, following = builder.mul(row, fixed(size)), vectors(M, row), []

        def everywhere(first):
            return spread(builder, read_from(builder, builder.add(first, there), number, size), vector)

        m = [read_from(builder, place, vector, size) for place in places]
        m = [builder.fmul(f_v, m_v) for f_v, m_v in zip(columns, m, strict=True)] if columns else m
        m = [builder.fmul(everywhere(a), m_v) for m_v in m] if a else m
        for w, x in writes:
            m = [builder.call(fma, [everywhere(w), x_v, m_v]) for x_v, m_v in zip(x, m, strict=True)]
        _store(builder, m, places, size)
        for i, (r, _) in enumerate(reads):
            its = totals[i * vectors_in_row : (i + 1) * vectors_in_row]
            following += [builder.call(fma, [everywhere(r), m_v, y]) for m_v, y in zip(m, its, strict=True)]
        return following

    last = _over_rows(builder, rows, [ir.Constant(vector, [0.0] * vector.count)] * (len(reads) * vectors_in_row), step)
    for i, (_, out) in enumerate(reads):
        _store(builder, last[i * vectors_in_row : (i + 1) * vectors_in_row], vectors(below, fixed(out)), size)
