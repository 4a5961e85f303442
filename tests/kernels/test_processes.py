"""What happens to the loops in other processes and threads, on other processors, without a compiler, without Numba."""

import multiprocessing
import os
import platform
import subprocess
import sys

import pytest

from minitransformer.backend import available

pytestmark = pytest.mark.skipif("numba" not in available(), reason="needs Numba")


def run(code, **environment):
    """The output of a script in a fresh Python; what would end the process ends only that one."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "MINITRANSFORMER_"))}
    script = subprocess.run(
        [sys.executable, "-c", code], env=clean | environment, capture_output=True, text=True, check=False
    )
    assert script.returncode == 0, script.stdout + script.stderr
    return script.stdout.split()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the resident memory of Linux")
def test_the_whole_process_stays_far_below_one_matrix():
    code = """
import numpy as np
from minitransformer.attention import dot_product_attention as attention
def pass_through(n):
    Q = np.ones((1, n, 8), np.float32)
    Y, pullback = attention(Q, Q, Q, causal=True)
    pullback(Y)
    # not ru_maxrss: a process that was started begins with that of its parent
    return int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) // 1024
before = pass_through(256)
print(pass_through(8192) - before)
"""
    grown = int(run(code)[0])
    assert grown < 64  # MiB; one matrix of 8192 × 8192 has 256


# ------------------------------------------------------------------------------- processes and threads

SETUP = """
import multiprocessing, os, signal, threading
from concurrent.futures import ThreadPoolExecutor
import numpy as np, minitransformer as mt
from minitransformer.attention import dot_product_attention as attention
rng = np.random.default_rng(0)
Q, K, V, dY = rng.standard_normal((4, 2, 8, 150, 8)).astype(np.float32)
def both_ways(_=None):
    Y, pullback = attention(Q, K, V, causal=True)
    return Y, *pullback(dY)
def same(have):
    return all(np.array_equal(h, w) for h, w in zip(have, want))
"""
QUESTIONS = """
def two_threads_at_once():
    with ThreadPoolExecutor(4) as pool:
        return all(same(have) for have in pool.map(both_ways, range(200)))

def pool(how):
    with multiprocessing.get_context(how).Pool(2) as pool:
        return all(same(have) for have in pool.map(both_ways, range(6))) and same(both_ways())

def fork_beside_a_thread():
    done, began = [], threading.Event()
    def work():
        while not done:
            both_ways()
            began.set()
    def in_a_child():
        if (child := os.fork()) == 0:
            os._exit(0 if same(both_ways()) else 1)
        return os.waitpid(child, 0)[1] == 0
    thread = threading.Thread(target=work)
    thread.start()
    began.wait()
    well = all(in_a_child() for _ in range(20))
    done.append(True)
    thread.join()
    return well and same(both_ways())

def ctrl_c_again_and_again():
    for _ in range(30):
        timer = threading.Timer(0.003, signal.raise_signal, [signal.SIGINT])
        try:
            timer.start()
            while True:
                both_ways()
        except KeyboardInterrupt:
            timer.join()
    return same(both_ways())

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    want = both_ways()
    print("threads", two_threads_at_once())
    for how in multiprocessing.get_all_start_methods():
        print(how, pool(how))
    if hasattr(os, "fork"):
        print("beside", fork_beside_a_thread())
    print("interrupted", ctrl_c_again_and_again())
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What one process says, which was asked all of it one after the other."""
    script = tmp_path_factory.mktemp("processes") / "questions.py"
    script.write_text(SETUP + QUESTIONS)
    words = run(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')")
    return dict(zip(words[::2], words[1::2], strict=True))


def test_two_python_threads_at_once(answers):
    assert answers["threads"] == "True"


@pytest.mark.parametrize("how", multiprocessing.get_all_start_methods())
def test_a_process_pool_after_a_parallel_loop(how, answers):
    assert answers[how] == "True"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_beside_a_thread_that_uses_the_loops(answers):
    assert answers["beside"] == "True"


def test_ctrl_c_leaves_nothing_half_done_behind(answers):
    assert answers["interrupted"] == "True"


def test_ctrl_c_comes_after_a_loop_that_is_being_loaded():
    code = """
from numba.core.registry import cpu_target
signal.signal(signal.SIGINT, signal.default_int_handler)
want = both_ways()
llvm = cpu_target.target_context.codegen()._engine._ee
load, asked = llvm._object_cache_getbuffer, []
def interrupted(module):
    asked.append(module)
    signal.raise_signal(signal.SIGINT)
    return load(module)
llvm._object_cache_getbuffer = interrupted
Q, K, V, dY = np.stack([Q, K, V, dY], dtype=float)
try:
    both_ways()
except KeyboardInterrupt:
    print("interrupted", len(asked) > 0)
llvm._object_cache_getbuffer = load
print(all(np.allclose(have, w, atol=1e-4) for have, w in zip(both_ways(), want)))
"""
    assert run(SETUP + code) == ["interrupted", "True", "True"]


x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names processors of this kind")
with_vectors = pytest.mark.skipif(
    "micro" not in available(), reason="needs a processor that multiplies and adds vectors"
)


@x86
@with_vectors
@pytest.mark.parametrize(
    ("features", "register"), [pytest.param("", "32", marks=pytest.mark.full), ("+prefer-128-bit", "16")]
)
def test_the_shapes_of_other_processors(features, register):
    code = """
import numpy as np
from minitransformer.backend import available
from minitransformer.kernels.micro_kernel import REGISTER
from numba import njit
from minitransformer.kernels.tiles import product_from

@njit
def product(S, A, B, C, c, columns):
    product_from(S, A, B, C, c, columns, False)

print(*available(), REGISTER)
rng = np.random.default_rng(0)
for dtype, bound in (("float32", 2e-6), ("float64", 4e-15)):
    for rows, inner, c, columns in ((4, 1, 0, 3), (12, 5, 0, 64), (28, 17, 0, 37), (32, 4, 32, 64)):
        A, B, C = (rng.standard_normal(s).astype(dtype) for s in ((inner, rows), (inner, 64), (rows, 64)))
        for S in (C[:0], C[:1].copy(), C):
            want, before = A.T @ B + (S if len(S) else 0), C[:, :c].copy()
            product(S, A.T, B, C, c, columns)
            print(np.abs(C - want)[:, c:columns].max() < bound * np.abs(want).max() and (C[:, :c] == before).all())
"""
    said = run(code, NUMBA_CPU_NAME="haswell", NUMBA_CPU_FEATURES=features)
    assert said == ["numpy", "numba", "micro", register] + ["True"] * 24


@x86
@with_vectors
@pytest.mark.full  # compiles for minutes
def test_memories_in_narrow_registers():
    code = """
import numpy as np, minitransformer as mt
from minitransformer.attention import gated_delta_rule, kernel_attention
rng = np.random.default_rng(0)
def everything(Q, K, V, beta, log_decay):
    Y, pullback = kernel_attention(Q, K, V, causal=True)
    yield from (Y, *pullback(V))
    Y, pullback = gated_delta_rule(Q, K / 9, V, beta, log_decay)
    yield from (Y, *pullback(V))
for n, r, dv in ((7, 5, 4), (6, 33, 64), (9, 64, 37)):
    shapes = (n, r), (n, r), (n, dv), (n,), (n, r)
    Q, K, V, beta, decay = (rng.random((1, *shape), np.float32) for shape in shapes)
    with mt.backend("micro"):
        have = list(everything(Q, K, V, beta, np.log(decay)))
    with mt.backend("numpy"):
        want = list(everything(Q, K, V, beta, np.log(decay)))
    print(all(np.abs(h - w).max() < 1e-5 * (1 + np.abs(w).max()) for h, w in zip(have, want, strict=True)))
"""
    assert run(code, NUMBA_CPU_NAME="haswell", NUMBA_CPU_FEATURES="+prefer-128-bit") == ["True"] * 3


@x86
@with_vectors
def test_code_for_another_processor_has_only_what_that_one_has():
    code = """
import numba, numpy as np, minitransformer.kernels.compiling
@numba.njit
def double(x):
    for i in range(len(x)):
        x[i] *= 2
double(np.ones(9))
print(*(registers in "".join(double.inspect_asm().values()) for registers in ("ymm", "zmm")))
"""
    assert run(code, NUMBA_CPU_NAME="haswell") == ["True", "False"]


@x86
@pytest.mark.full  # compiles for ten seconds
@pytest.mark.parametrize(("name", "register", "told"), [("skylake-avx512", "zmm", 24), ("haswell", "ymm", 30)])
def test_vector_instructions_of_softmax_for_each_vector_of_weights(name, register, told):
    """Chapter 17 says about how many: in the loop of the maxima those for each maximum, in that of exp2 those for each shift."""
    code = f"""
import numba
from minitransformer.kernels.attention_forward import exponentiate
from minitransformer.kernels.compiling import CONTRACT
@numba.njit([(numba.float32[:, ::1],) * 3], fastmath=CONTRACT, error_model="numpy")
def softmax(S, YT, rows):
    exponentiate(S, YT, rows)
(text,) = softmax.inspect_asm().values()
lines = text.splitlines()
labels = {{line[:-1]: k for k, line in enumerate(lines) if line.endswith(":")}}
jumps = [(labels.get(line.split()[-1], k), k) for k, line in enumerate(lines) if line.startswith("\\tj")]
loops = [[line for line in lines[start:k] if "{register}" in line] for start, k in jumps if start < k]
for what in "vmaxps", "vpslld":  # one for each vector; a loop around the loop has more beside it
    print(min(len(loop) / "".join(loop).count(what) for loop in loops if what in "".join(loop)))
"""
    assert sum(map(float, run(code, NUMBA_CPU_NAME=name))) == pytest.approx(told, abs=3)


@x86
def test_a_processor_without_wide_vectors_has_the_loops():
    code = "from minitransformer.backend import available; print(*available())"
    assert run(code, NUMBA_CPU_NAME="nehalem") == ["numpy", "numba"]


AS_PLAIN_PYTHON = {
    "attention": """
from minitransformer.attention import dot_product_attention
mask = rng.random((5, 6)) < 0.6
mask[2] = False
Q, K, V, dY = (rng.standard_normal(s).astype("float64") for s in ((2, 5, 3), (2, 6, 3), (2, 6, 2), (2, 5, 2)))
def run():
    Y, pullback = dot_product_attention(Q, K, V, causal=True, mask=mask)
    found = Y, *pullback(dY)
    assert {a.dtype for a in found} == {np.dtype("float64")}
    return found
""",
    "chunks": """
from minitransformer.attention import elu_features, kernel_attention
args = rng.random((1, 5, 3)), rng.random((1, 70, 3)), rng.standard_normal((1, 70, 2))
def run():
    Y, pullback = kernel_attention(*args, causal=True)
    return Y, *pullback(Y), elu_features(args[2])[0]
""",
    "scan": """
from minitransformer.attention import delta_rule, gated_delta_rule
args = *rng.random((3, 1, 34, 2)), rng.random((1, 34)) / 2, -rng.random((1, 34, 2))
def run():
    Y, pullback = gated_delta_rule(*args)
    Z, pullback_2 = delta_rule(*args[:4])
    return Y, *pullback(Y), Z, *pullback_2(Z)
""",
    "step": """
from minitransformer.attention import KernelState, gated_delta_step, kernel_attention_step
Q, K, V = rng.random((3, 2, 5, 3))
S = rng.random((2, 3, 3))
def run():
    Y, state = kernel_attention_step(Q, K, V, KernelState(S, S[..., 0], 1))
    return *gated_delta_step(Q, K, V, V[..., 0], -K, S), Y, state.S, state.z
""",
}
AS_PLAIN_PYTHON["attention in float32"] = AS_PLAIN_PYTHON["attention"].replace("float64", "float32")


@pytest.fixture(scope="module")
def differences():
    """The largest between what each `run()` gives in the tiers "numpy" and "numba", in a process where nothing is compiled."""
    code = f"""
import warnings
import numba, numpy as np, minitransformer as mt
from minitransformer.kernels.tiles import add_product
warnings.simplefilter("error")
warnings.filterwarnings("ignore", ".* encountered in (matmul|matvec|vecmat|dot)", RuntimeWarning)
assert type(add_product).__name__ == "function"
for code in {list(AS_PLAIN_PYTHON.values())}:
    names, found = {{"np": np, "rng": np.random.default_rng(0)}}, []
    exec(code, names)
    for tier in ("numpy", "numba"):
        with mt.backend(tier):
            found.append(names["run"]())
    print(np.max([np.abs(have - want).max() for want, have in zip(*found, strict=True)]))  # NaN if one is
"""
    return dict(zip(AS_PLAIN_PYTHON, map(float, run(code, NUMBA_DISABLE_JIT="1")), strict=True))


@pytest.mark.parametrize(
    ("part", "bound"),
    [("attention", 1e-14), ("attention in float32", 2e-6), ("chunks", 1e-13), ("scan", 1e-12), ("step", 1e-12)],
)
def test_the_loops_run_as_plain_python(part, bound, differences):
    assert differences[part] < bound


def test_without_numba_the_package_imports_and_attends():
    code = """
import sys
sys.modules["numba"] = None
import numpy as np, minitransformer as mt
from minitransformer.attention import dot_product_attention
Q = np.eye(3, 4)
Y, pullback = dot_product_attention(Q, Q, Q, causal=True)
print(mt.backend(), Y.shape, type(pullback).__name__)
"""
    assert " ".join(run(code)) == "numpy (3, 4) AttentionPullback"
