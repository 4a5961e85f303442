"""The settings of the compiler are ours only where the reader has made none."""

import gc
import os
import subprocess
import sys
from typing import NamedTuple

import pytest

from minitransformer.backend import available

pytestmark = pytest.mark.skipif("numba" not in available(), reason="needs Numba")


def said(code, **environment):
    """What a fresh Python prints."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}
    script = [sys.executable, "-c", code]
    return subprocess.run(script, env=clean | environment, capture_output=True, text=True, check=True).stdout.strip()


def features(**environment):
    """What Numba is told about the processor, in a fresh Python."""
    return said("import minitransformer.kernels.compiling, numba; print(numba.config.CPU_FEATURES)", **environment)


def test_the_reader_s_choice_of_processor_is_kept():
    assert features(NUMBA_CPU_FEATURES="+sse2") == "+sse2"


def test_the_reader_s_level_of_optimisation_is_kept():
    assert said("from minitransformer.kernels.less_compiling import LEVEL; print(int(LEVEL))", NUMBA_OPT="1") == "1"


def test_a_processor_that_was_named_has_nothing_of_this_one():
    assert features(NUMBA_CPU_NAME="generic") == ""


def test_wide_registers_are_used_in_full_where_there_are_any():
    from numba.core.codegen import get_host_cpu_features

    host = get_host_cpu_features()
    assert features() == (f"{host},-prefer-256-bit" if "+avx512f" in host.split(",") else host)


def test_every_loop_is_kept_on_disk_and_gives_up_no_rule_of_arithmetic_but_one():
    from numba.core.caching import NullCache

    import minitransformer.kernels.attention_backward as kernels

    loops = [f for f in vars(kernels).values() if hasattr(f, "py_func")]
    assert len(loops) >= 8
    for loop in loops:
        assert not isinstance(loop._cache, NullCache)
        assert loop.targetoptions["fastmath"] == {"contract"}


def test_a_loop_is_kept_until_any_source_of_loops_changes(tmp_path, monkeypatch):
    """Attention has the products of tiles.py in it: with another tiles.py it has to be compiled anew."""
    import minitransformer.kernels.compiling as compiling

    before = compiling.compiled(said)._cache._cache_file._source_stamp
    assert compiling.inlined(said)._cache._cache_file._source_stamp == before
    for name in ("compiling.py", "tiles.py"):
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(compiling, "__file__", str(tmp_path / "compiling.py"))
    monkeypatch.setattr(compiling, "_sources", compiling._sources.__wrapped__)
    stamps = [before]
    for text in ("tiles.py", "mended"):
        (tmp_path / "tiles.py").write_text(text)
        stamps.append(compiling.compiled(said)._cache._cache_file._source_stamp)
    assert len(set(stamps)) == 3
    assert len({own for own, _ in stamps}) == 1


def test_what_older_sources_have_left_stops_no_loop(monkeypatch):
    """Among the types of arguments in an index there may be a class that has got another file since."""
    import minitransformer.kernels.compiling as compiling

    @compiling.compiled
    def twice(x):
        return 2 * x

    class Gone(NamedTuple):
        of: int

    Gone.__qualname__ = "Gone"
    monkeypatch.setattr(compiling, "Gone", Gone, raising=False)
    monkeypatch.setattr(Gone, "__module__", compiling.__name__)
    file = twice._cache._cache_file
    file._save_index({Gone(1): "twice.nbc"})
    assert compiling.named_in(file) == {Gone(1): "twice.nbc"}
    monkeypatch.delattr(compiling, "Gone")
    assert compiling.named_in(file) == {}
    assert twice(1.5) == 3


def test_a_part_of_loops_says_who_may_call_it():
    from minitransformer.kernels.compiling import compiled, inside

    @inside
    def half(x):
        return x / 2

    @compiled
    def quarter(x):
        return half(half(x))

    for _ in range(2):
        with pytest.raises(TypeError, match=r"half is a part of compiled loops, .* call half\.py_func, or a loop"):
            half(1.0)
        assert quarter(1.0) == 0.25


def test_nobody_looks_for_garbage_while_a_loop_is_made():
    from numba.core.errors import TypingError

    from minitransformer.kernels.compiling import compiled

    @compiled
    def twice(x):
        return 2 * x

    compiles, looks = twice.compile, []

    def watched(signature):
        looks.append(gc.isenabled())
        return compiles(signature)

    twice.compile = watched
    assert twice(1.5) == 3
    assert gc.isenabled()
    with pytest.raises(TypingError):  # nothing times two
        twice(None)
    assert looks == [False, False]
    assert gc.isenabled()
