"""The loops of the book are compiled in less time; what a reader compiles beside them is compiled as ever."""

import pytest

from minitransformer.backend import available

pytestmark = pytest.mark.skipif("numba" not in available(), reason="needs Numba")


def settings():
    """What the block changes."""
    from minitransformer.kernels.less_compiling import CHANGES

    return [getattr(place, name) for place, name, _ in CHANGES]


def test_in_the_block_all_is_changed_and_after_it_nothing():
    from minitransformer.kernels.less_compiling import CHANGES, LEVEL, in_less_time

    if not CHANGES:
        pytest.skip("an older Numba, which is left as it is")

    @in_less_time()
    def fail():
        with in_less_time():
            pass
        level, *others = settings()
        assert level == LEVEL
        assert all(now is not then for now, then in zip(others, before[1:], strict=True))
        raise ZeroDivisionError

    before = settings()
    with pytest.raises(ZeroDivisionError):
        fail()
    assert settings() == before


def test_a_function_that_is_part_of_another_keeps_its_own_names():
    """With branches, loops, a name that is set again, and itself in parts that are parts."""
    import numba

    from minitransformer.kernels.less_compiling import in_less_time

    @numba.njit(inline="always")
    def inner(x, n):
        y = x
        for i in range(n):
            if i % 2:
                y = y + x
            else:
                y = 2 * y
        return y

    @numba.njit(inline="always")
    def middle(x):
        y = inner(x, 3)
        if y > 10:
            y = inner(y, 2) - x
        return y

    def outer(x):
        y = middle(x) + middle(x + 1)
        for i in range(2):
            y += inner(y, i)
        return y

    with in_less_time():
        fast = numba.njit(outer)
        fast(1)
    plain = numba.njit(outer)
    for x in range(6):
        assert fast(x) == plain(x) == outer(x)


def test_what_only_loops_call_has_no_code_of_its_own():
    import numba

    from minitransformer.kernels.less_compiling import CHANGES, in_less_time

    if not CHANGES:
        pytest.skip("an older Numba, which is left as it is")

    @numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
    def half(x):
        return x / 2

    @numba.njit
    def quarter(x):
        return half(half(x))

    with in_less_time():
        assert quarter(1.0) == 0.25
    for loop, has_code in ((half, False), (quarter, True)):
        (kind,) = loop.overloads.values()
        assert kind.library._codegen._engine.is_symbol_defined(kind.fndesc.llvm_func_name) == has_code
