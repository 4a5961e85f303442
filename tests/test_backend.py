"""The switch between the tiers: as a function, for a block, from the shell; and what it says when it can't."""

import os
import platform
import subprocess
import sys
import threading

import pytest

import minitransformer as mt
from minitransformer.backend import TIERS, available, current, vector_bytes

needs_numba = pytest.mark.skipif("numba" not in available(), reason="needs Numba")


@pytest.fixture(autouse=True)
def the_choice_of_before():
    with mt.backend():
        yield


def run(code: str, **environment: str) -> subprocess.CompletedProcess:
    """Run a script in a fresh Python, whose environment says nothing about a tier unless it is told to."""
    clean = {k: v for k, v in os.environ.items() if k != "MINITRANSFORMER_BACKEND"}
    return subprocess.run(
        [sys.executable, "-c", code], env=clean | environment, capture_output=True, text=True, check=False
    )


@needs_numba
def test_as_a_function_it_holds_from_now_on():
    mt.backend("numpy")
    assert str(mt.backend()) == "numpy"
    mt.backend("numba")
    assert str(mt.backend()) == current() == "numba"


@needs_numba
def test_looking_changes_nothing():
    mt.backend("numpy")
    mt.backend()
    str(mt.backend()), repr(mt.backend())
    with mt.backend():
        assert current() == "numpy"
    assert current() == "numpy"


@needs_numba
def test_as_a_block_it_ends_with_the_block():
    mt.backend("numba")
    with mt.backend("numpy") as chosen:
        assert current() == "numpy" == str(chosen)
    assert current() == "numba"


@needs_numba
def test_blocks_nest():
    mt.backend("numba")
    with mt.backend("numpy"):
        with mt.backend("numba"):
            assert current() == "numba"
            with mt.backend("numba"):
                pass
            assert current() == "numba"
        assert current() == "numpy"
    assert current() == "numba"


@needs_numba
def test_an_exception_ends_the_block_too():
    mt.backend("numba")
    with pytest.raises(ZeroDivisionError), mt.backend("numpy"):
        1 / 0  # noqa: B018
    assert current() == "numba"


@needs_numba
def test_a_choice_made_inside_a_block_ends_with_it():
    mt.backend("numba")
    with mt.backend("numba"):
        mt.backend("numpy")
        assert current() == "numpy"
    assert current() == "numba"


@needs_numba
def test_the_choice_holds_for_all_threads():
    seen = []
    with mt.backend("numpy"):
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()
    assert seen == ["numpy"]


@pytest.mark.parametrize("wrong", ["torch", "", "NumPy", "numpy "])
def test_an_unknown_tier_is_an_error_and_changes_nothing(wrong):
    mt.backend("numpy")
    with pytest.raises(ValueError, match=r"no tier '.*'; there are numpy, numba"):
        mt.backend(wrong)
    assert current() == "numpy"


def test_it_shows_what_it_is():
    mt.backend("numpy")
    assert str(mt.backend()) == "numpy"
    assert repr(mt.backend()) == f"backend('numpy'), available: {', '.join(available())}"
    assert available() == TIERS[: len(available())]


def test_it_can_be_compared_with_a_name():
    """As chapters ask: an object that is equal to no name would never be the tier that they leave out."""
    with mt.backend("numpy"):
        assert mt.backend() == "numpy"
        assert mt.backend() != available()[-1] or available() == ("numpy",)


def test_the_default_is_the_fastest_that_there_is():
    out = run("import minitransformer as mt; print(mt.backend())")
    assert out.stdout.strip() == available()[-1], out.stderr


@pytest.mark.parametrize("name", available())
def test_from_the_shell(name):
    out = run("import minitransformer as mt; print(mt.backend())", MINITRANSFORMER_BACKEND=name)
    assert out.stdout.strip() == name, out.stderr


@needs_numba
def test_a_choice_in_the_program_goes_before_one_in_the_shell():
    code = """
import minitransformer as mt
with mt.backend("numba"):
    print(mt.backend())
print(mt.backend())
mt.backend("numba")
print(mt.backend())
"""
    assert run(code, MINITRANSFORMER_BACKEND="numpy").stdout.split() == ["numba", "numpy", "numba"]


def test_an_unknown_tier_in_the_shell_is_named():
    out = run("import minitransformer as mt; print(mt.backend())", MINITRANSFORMER_BACKEND="jax")
    assert out.returncode != 0
    assert "ValueError: MINITRANSFORMER_BACKEND: no tier 'jax'; there are numpy, numba" in out.stderr


WITHOUT_NUMBA = "import sys; sys.modules['numba'] = None; import minitransformer as mt\n"


def test_without_numba_the_default_is_numpy_and_asking_for_it_says_what_is_missing():
    out = run(WITHOUT_NUMBA + "print(repr(mt.backend())); mt.backend('numba')")
    assert out.stdout.strip() == "backend('numpy'), available: numpy", out.stderr
    assert "ValueError: backend: the tier 'numba' needs Numba (pip install numba)" in out.stderr
    out = run(WITHOUT_NUMBA + "print(mt.backend())", MINITRANSFORMER_BACKEND="numba")
    assert "ValueError: MINITRANSFORMER_BACKEND: the tier 'numba' needs Numba" in out.stderr


def test_a_numba_that_refuses_this_numpy_counts_as_missing(tmp_path):
    (tmp_path / "numba.py").write_text("raise ImportError('Numba needs NumPy 1.0 or less')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import minitransformer as mt\n"
    out = run(code + "print(mt.backend()); mt.backend('numba')")
    assert out.stdout.strip() == "numpy"
    assert "Numba needs NumPy 1.0 or less" in out.stderr


@needs_numba
def test_the_package_and_the_tier_numpy_never_import_numba():
    code = """
import sys, numpy as np, minitransformer as mt
from minitransformer.attention import dot_product_attention
mt.backend("numpy")
Q = np.ones((2, 3))
dot_product_attention(Q, Q, Q)
print("numba" in sys.modules)
"""
    out = run(code)
    assert out.stdout.strip() == "False", out.stderr


@needs_numba
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names processors of this kind")
@pytest.mark.parametrize(
    ("name", "features", "width"),
    [
        ("skylake-avx512", None, 64),
        ("skylake-avx512", "-avx512f", 32),
        ("skylake-avx512", "+prefer-128-bit", 16),
        ("haswell", None, 32),
        ("haswell", "", 32),
        ("haswell", "+prefer-128-bit", 16),
        ("nehalem", None, 0),
        ("nehalem", "+prefer-128-bit", 0),
    ],
)
def test_the_compiler_knows_how_wide_a_register_is(monkeypatch, name, features, width):
    from numba import config

    monkeypatch.setattr(config, "CPU_NAME", name)
    monkeypatch.setattr(config, "CPU_FEATURES", features)
    assert vector_bytes.__wrapped__() == width


@needs_numba
@pytest.mark.skipif(platform.machine() not in ("aarch64", "arm64"), reason="these processors all have the fastest tier")
@pytest.mark.parametrize("features", [None, ""])
def test_every_arm_processor_of_64_bits_has_the_micro_kernel(monkeypatch, features):
    from numba import config

    monkeypatch.setattr(config, "CPU_FEATURES", features)
    assert vector_bytes.__wrapped__() == 16
