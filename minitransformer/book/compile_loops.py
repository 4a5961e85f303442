"""Compile every loop ahead of its first use, on all cores at once.

Without this, the first call of each function waits for its compiler: seconds for attention both ways. What is compiled
is cached on disk (`minitransformer doctor` says where), for every later process.
"""

import glob
import importlib
import itertools
import multiprocessing
import os
import pkgutil
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from minitransformer import kernels
from minitransformer.attention import (
    Window,
    block_sparse_attention,
    delta_rule,
    delta_rule_step,
    dot_product_attention,
    gated_delta_rule,
    gated_linear_attention,
    kernel_attention_step,
    kernel_state,
)
from minitransformer.attention.dot_product import attend_to_buffer
from minitransformer.attention.kernel_attention import elu_features, kernel_attention
from minitransformer.attention.selected import moba_attention
from minitransformer.backend import available, backend
from minitransformer.functional import (
    cross_entropy,
    embedding,
    gated,
    gelu,
    gelu_tanh,
    layer_norm,
    linear,
    relu,
    rms_norm,
)
from minitransformer.kept_loops import kept_in
from minitransformer.machine import cores
from minitransformer.models import FeedForward, GatedFeedForward, LanguageModel, Norm, generate
from minitransformer.positions.rope import rotate
from minitransformer.related import dynamic_convolution, edge_attention, edges_of, propagate
from minitransformer.terminal import ctrl_c_waits
from minitransformer.training.optimiser import AdamW
from minitransformer.typing import Array


def _both_ways(function: Callable, *inputs: object, **options: object) -> None:
    Y, pullback = function(*inputs, **options)
    pullback(Y)


# Each function from here to LOOPS calls the loops of one kind on X (2, 100, 16), which compiles them


def _attention(X: Array) -> None:
    from minitransformer.kernels.attention import LONG  # only where there is Numba

    _both_ways(dot_product_attention, X, X, X)
    dot_product_attention(X[:, :1], X, X)
    long = np.resize(X, (1, 1 + LONG // X.shape[-1], X.shape[-1]))
    dot_product_attention(long[:, :1], long, long)  # in parts, which are merged


def _sparse(X: Array) -> None:
    _both_ways(block_sparse_attention, X, X, X, Window(3)(X.shape[-2], X.shape[-2], causal=False))


def _chosen(X: Array) -> None:
    _both_ways(moba_attention, X, X, X)


def _kernel_attention(X: Array) -> None:
    F, back = elu_features(X)
    back(F)
    for Y in (F, np.repeat(F, 5, -1)):  # in sweeps, and wider heads
        for causal, normalise in ((False, True), (True, True), (True, False)):
            _both_ways(kernel_attention, Y, Y, Y, causal=causal, normalise=normalise)


def _delta_rule(X: Array) -> None:
    _both_ways(delta_rule, X / 10, X / 10, X, X[..., 0])
    state = kernel_state(X, X)  # one recurrence for all memories
    kernel_attention_step(X, X, X, state)
    delta_rule_step(X / 10, X / 10, X, X[..., 0], state.S)


def _gated(X: Array) -> None:
    for log_decay in (-abs(X[..., 0]), -abs(X)):
        _both_ways(gated_linear_attention, X, X, X, log_decay)
        _both_ways(gated_delta_rule, X / 10, X / 10, X, abs(X[..., 0]), log_decay)


def _convolution(X: Array) -> None:
    _both_ways(dynamic_convolution, X, X[0, :16, None] * np.ones((4, 1), X.dtype))


def _pointwise(X: Array) -> None:
    Y = np.repeat(X[0, :64], 2, axis=0)
    for function in (relu, gelu, gelu_tanh):
        _both_ways(function, Y)
    _both_ways(gated, Y, Y)
    _both_ways(embedding, np.arange(len(Y)) % 9, Y[:9])
    _both_ways(rotate, Y, angles=Y[:, :3])
    AdamW().update(Y, Y, AdamW().init(Y), rate=1e-3)


def _rows(X: Array) -> None:
    Y = np.repeat(X[0, :64], 2, axis=0)
    _both_ways(layer_norm, Y, Y[0], Y[0])
    _both_ways(rms_norm, Y, Y[0])
    _both_ways(linear, Y, Y[: Y.shape[-1]], Y[0])
    _both_ways(cross_entropy, Y, np.arange(len(Y)) % Y.shape[-1])


def _graph(X: Array) -> None:
    edges = edges_of(np.array([[0, 1], [1, 0]]), X.shape[-2])
    Y = X[:1, None]
    _both_ways(edge_attention, Y, Y, Y, edges)  # the additive scores go through the same loops
    _both_ways(propagate, X, edges)


LAST_ROWS = (  # with a loop for one new token; all other memories have that of gated-delta, or of linear
    *("softmax", "gated-delta", "nsa", "hopfield", "linear", "forgetting"),
    *("differential", "moba", "indexer", "smoother", "lightweight-convolution"),
)


def _one_token(X: Array) -> None:
    x, rng = X[0, :1], np.random.default_rng(0)
    for kind in ("layer", "rms"):
        norm = Norm(x.shape[-1], kind)
        norm.value(norm.init(rng, x.dtype.type), x)
    networks: tuple[Any, ...] = (FeedForward(x.shape[-1], 8), GatedFeedForward(x.shape[-1], 8))
    for ffn in networks:
        ffn.value(ffn.init(rng, x.dtype.type), x)
    attend_to_buffer(X[:, :1], X, X, 50)
    for attention in LAST_ROWS:
        model = LanguageModel(context=8, width=x.shape[-1], depth=1, heads=2, attention=attention)
        generate(model, model.init(rng, x.dtype.type), np.zeros(2, np.int64), 3, rng=rng)


DTYPES = ("float32", "float64")
LOOPS = (  # what takes longest comes first
    *(_gated, _delta_rule, _attention, _rows, _kernel_attention, _sparse),
    *(_pointwise, _convolution, _chosen, _graph, _one_token),
)


def _compile(some: Sequence[Callable], dtypes: Sequence[str]) -> None:
    for loops, dtype, tier in itertools.product(some, dtypes, available()[1:]):
        with backend(tier):
            loops(np.random.default_rng(0).standard_normal((2, 100, 16)).astype(dtype))


def compile_loops() -> None:
    """Compile what is not compiled yet, for every tier, float32 and float64.

    What was compiled from older sources is removed.
    """
    if "numba" not in available():
        return
    groups = max(1, cores() // len(DTYPES))  # loops of one dtype share parts, which every process compiles for itself
    jobs = [(_compile, LOOPS[group::groups], [dtype]) for group in range(groups) for dtype in DTYPES]
    place = kept_in()
    line = f"Compiling the loops for this processor, once (a minute or two); they are kept in {place} ..."
    if not _side_by_side(cores(), jobs, line):
        print(f"All loops are compiled for this processor; they are kept in {place}.", flush=True)
    if old := remove_old_loops():
        print(f"Removed {old / 2**20:.1f} MB of loops that were compiled from older sources.")


def remove_old_loops() -> int:
    """Remove the files of loops that nothing reads any more, since their source has changed; returns how many bytes they were.

    Of each function there is an index, with the stamp of the source that it belongs to, and beside it the loops that it names.
    What another Python has compiled stays. A loop that another process saves just now may be removed, too: it is compiled again.
    """
    from minitransformer.kernels.compiling import named_in

    freed = 0
    for name in (module.name for module in pkgutil.iter_modules(kernels.__path__)):
        members = vars(importlib.import_module(f"{kernels.__name__}.{name}")).values()
        found = (file for file in map(_kept_as, members) if file and file._index_name.startswith(f"{name}."))
        if (kept := next(found, None)) is None:
            continue  # no loops, or all of them inside others
        folder, python = Path(kept._cache_path), kept._index_name.split(".")[-2]  # py311
        functions = defaultdict(list)
        for file in folder.glob(f"{glob.escape(name)}.*.{python}.*"):
            if file.suffix in (".nbi", ".nbc"):
                functions[file.name.partition(f".{python}.")[0]].append(file)
        for function, files in functions.items():
            index = type(kept)(kept._cache_path, f"{function}.{python}", kept._source_stamp)
            named = named_in(index)
            for file in files:
                if file.name not in named.values() and not (named and file.suffix == ".nbi"):
                    with suppress(OSError):  # another process has removed it
                        size = file.stat().st_size
                        file.unlink()
                        freed += size
    return freed


def _kept_as(loop: Any) -> Any:
    """Where Numba caches a loop; None for what is no loop."""
    return getattr(getattr(loop, "_cache", None), "_cache_file", None)


def _side_by_side(workers: int, calls: list[tuple], line: str = "") -> bool:
    """The calls, in new processes. (A fork takes along what other threads hold, such as a compiler's lock.)

    line     printed by the first process that finds a loop that is not compiled
    returns  whether one did
    """
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as ends:
        try:
            # before the first semaphore: if this process is killed, nobody tells of those it leaves
            with ctrl_c_waits():
                told = spawn.Value("b", 0)
                pool = ends.enter_context(ProcessPoolExecutor(workers, spawn, _begin, (told, line)))
                jobs = [pool.submit(*call) for call in calls]
            for job in as_completed(jobs):
                job.result()
        except BaseException:  # Ctrl-C too, of which they have not heard
            for process in multiprocessing.active_children():
                process.terminate()
            raise
    return bool(told.value)


def _begin(told: Any, line: str) -> None:
    """What a worker does first: it waits for its parent's end, and takes in what to say of a loop that is not compiled."""
    _end_with_parent()
    if line:
        from minitransformer.kernels import compiling

        def say() -> None:
            with told.get_lock():
                if not told.value:
                    print(line, flush=True)
                told.value = 1

        compiling.say_by(say)


def _end_with_parent() -> None:
    """A worker whose parent is killed would wait for ever for more to do: a thread of it waits for that, and ends it."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        parent.join()  # type: ignore[union-attr]
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
