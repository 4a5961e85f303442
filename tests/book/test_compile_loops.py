"""Every loop is among those that are compiled ahead."""

import importlib
import pkgutil
import subprocess
import sys

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import kernels
from minitransformer.backend import available
from minitransformer.book import compile_loops
from minitransformer.kept_loops import kept_in
from tests.fresh_python import fresh_python

OF_ONE_TOKEN = (
    *("norm_rows", "two_layers", "attend_plainly", "through_blocks", "through_memories", "three_views"),
    *("read_best", "convolve_last", "gated_layers", "merge_parts"),
)


@pytest.mark.skipif("numba" not in available(), reason="needs Numba")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_loop_is_forgotten(dtype):
    from numba.core.dispatcher import Dispatcher

    from minitransformer.kernels.threads import one_by_one

    for loops in compile_loops.LOOPS:
        loops(np.random.default_rng(0).standard_normal((2, 100, 16)).astype(dtype))
    of_one_chapter = {"compiled_stairs"}
    names = {module.name for module in pkgutil.iter_modules(kernels.__path__)} - of_one_chapter
    if mt.backend() != "micro":
        names.remove("matmul")
    forgotten = [
        f"{name}.{loop.__name__}"
        for name in sorted(names)
        for loop in vars(importlib.import_module(f"minitransformer.kernels.{name}")).values()
        if isinstance(loop, Dispatcher) and loop.targetoptions.get("inline") != "always" and loop is not one_by_one
        if "queue" in loop._compiler.pysig.parameters or loop.__name__ in OF_ONE_TOKEN  # what Python calls
        if not any(f"rray({np.dtype(dtype).name}" in str(signature) for signature in loop.signatures)
    ]
    assert forgotten == []


FIRST_USE = """
import gc
import numpy as np
from numba.core.caching import NullCache
from numba.core.dispatcher import Dispatcher
import minitransformer as mt
from minitransformer.attention import Mixer, dot_product_attention
from minitransformer.attention.registry import rows
from minitransformer.backend import available
from minitransformer.functional import cross_entropy
from minitransformer.models import EncoderDecoder, LanguageModel, SequenceModel, generate
from minitransformer.training.optimiser import AdamW

rng, tokens = np.random.default_rng(0), np.arange(80).reshape(2, 40)

def learn(model, params, logits, pullback, targets):
    loss, back = cross_entropy(logits, targets)
    AdamW().update(params, pullback(back(loss)), AdamW().init(params), 1e-3)

def a_model(dtype, kind=LanguageModel, **choices):
    model = kind(context=40, width=24, depth=2, heads=4, **choices)
    params = model.init(rng, dtype)
    learn(model, params, *model(params, tokens), tokens)
    if model.causal:
        generate(model, params, tokens[0, :5], 6, rng=rng)

def use(dtype):
    for attention, part, _ in rows():
        kind = SequenceModel if part.causal == "never" else LanguageModel
        for positions in ("sinusoidal",) if isinstance(part, Mixer) else ("rope", "sinusoidal"):
            a_model(dtype, kind, attention=attention, positions=positions)
    for choices in ({"positions": "alibi"}, {"positions": "learned"}, {"groups": 2}, {"ffn": "gelu"}, {"ffn": "geglu"},
                    {"ffn": "gelu_tanh", "positions": "rope", "norm": "rms"}):
        a_model(dtype, **choices)
    model = EncoderDecoder(80, width=24, depth=1, heads=4)
    params = model.init(rng, dtype)
    learn(model, params, *model(params, tokens, tokens, lengths=np.array([13, 40])), tokens)
    model.translate(params, tokens, begin=1, end=2, longest=8, lengths=np.array([13, 40]))
    Q, K = rng.standard_normal((3, 5, 8)).astype(dtype), rng.standard_normal((3, 9, 8)).astype(dtype)
    for queries in (Q, Q[:, :2], Q[0]):
        keys = K[: len(queries)] if queries.ndim == 3 else K[0]
        for mask in (None, rng.random((queries.shape[-2], 9)) > 0.3):
            Y, pullback = dot_product_attention(queries, keys, keys, mask=mask)
            pullback(Y)

def missed():
    for loop in gc.get_objects():
        if isinstance(loop, Dispatcher) and not isinstance(loop._cache, NullCache):
            if loop.py_func.__module__.startswith("minitransformer") and loop.targetoptions.get("inline") != "always":
                yield from (f"{loop.py_func.__qualname__}{signature}" for signature in loop.stats.cache_misses)
                if (kinds := len(loop.signatures)) > 4:
                    yield f"{loop.py_func.__qualname__} is compiled for {kinds} kinds of arguments"

for tier in available()[1:]:
    with mt.backend(tier):
        use(np.float32)
        use(np.float64)
print(*missed(), sep="\\n")
"""


@pytest.mark.skipif("numba" not in available(), reason="needs Numba")
def test_after_it_nothing_is_left_to_compile():
    """Models of all kinds in every tier, float32 and float64, in a new process: all that they call is on the disk.

    And no loop is compiled for more than two kinds of arguments in a dtype: what differs between models is data.
    """
    compile_loops.compile_loops()
    assert fresh_python(FIRST_USE).split("\n") == ["", ""]


@pytest.mark.skipif("numba" not in available(), reason="needs Numba")
def test_it_says_once_that_it_compiles_and_does_not_where_all_is_compiled(monkeypatch, capfd):
    """It said so each time, and at a terminal once more for each process. Here a loop is looked for that nobody keeps."""
    look = "from minitransformer.kernels import compiling; compiling._or_say(lambda: None)()"
    side_by_side = compile_loops._side_by_side
    for code, said in ((look, "Compiling the loops for this processor, once "), ("", "All loops are compiled for ")):
        calls = [(exec, code)] * 2
        monkeypatch.setattr(compile_loops, "_side_by_side", lambda _, __, line: side_by_side(1, calls, line))  # noqa: B023
        compile_loops.compile_loops()
        lines = [line for line in capfd.readouterr().out.splitlines() if not line.startswith("Removed")]
        assert len(lines) == 1
        assert lines[0].startswith(said)
        assert str(kept_in()) in lines[0]


OLD = """
from pathlib import Path
from minitransformer.book.compile_loops import remove_old_loops
from minitransformer.kernels.threads import watch
import numpy as np

watch(np.ones(1, np.int64), 1)
kept = watch._cache._cache_file
now, python = set(Path(kept._cache_path).iterdir()), kept._index_name.split(".")[-2]
old = [f"threads.gone-1.{python}.nbi", f"threads.gone-1.{python}.0a.nbc", kept._index_name[:-3] + "0b.nbc"]
others = ["threads.gone-1.py27.nbi", "threads.gone-1.py27.1.nbc", "threads.py", f"threads.a-1.{python}.nbi.tmp.0c"]
for name in (*old, *others):
    Path(kept._cache_path, name).write_bytes(b"12345")
type(kept)(kept._cache_path, old[0].removesuffix(".nbi"), (0.0, 1))._save_index({"key": old[1]})
index = Path(kept._cache_path, old[0]).stat().st_size
print(remove_old_loops() == index + 10, remove_old_loops())
print(set(Path(kept._cache_path).iterdir()) == now | {Path(kept._cache_path, name) for name in others})
"""


@pytest.mark.skipif("numba" not in available(), reason="needs Numba")
def test_what_older_sources_were_compiled_to_is_removed(tmp_path):
    """What the sources of now were compiled to stays, and so does what another Python has left."""
    assert fresh_python(OLD, NUMBA_CACHE_DIR=str(tmp_path)).split() == ["True", "0", "True"]
    again = OLD.partition("kept =")[0] + "print(len(watch.stats.cache_misses))"
    assert fresh_python(again, NUMBA_CACHE_DIR=str(tmp_path)) == "0\n"


def test_a_killed_command_leaves_no_process_behind():
    """Its workers have its standard output, too: only when all of them have ended, there is nothing more to read.

    Nor a warning: Python counted semaphores that the command had not taken away.
    """
    asleep = "import time; print('asleep', flush=True); time.sleep(120)"
    command = f"from minitransformer.book.compile_loops import _side_by_side; _side_by_side(1, [(exec, {asleep!r})])"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", command], **pipes, text=True) as process:
        assert process.stdout.readline() == "asleep\n"
        process.kill()
        assert process.communicate(timeout=60) == ("", "")
