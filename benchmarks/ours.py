"""Our side: for each kind of work a function of its size, which makes the inputs and returns what is to be timed.

The functions of the book are imported inside, so that one which is missing costs only its own rows.
"""

import functools
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from benchmarks.rows import BATCH, MODEL, STEPS, WINDOW, arrays, bigbird, features, pairs, unit

Job = Callable[[], Any]


def machine() -> dict[str, Any]:
    """Versions, and how BLAS and Numba are set up."""
    from minitransformer.backend import available, current

    blas = [
        {key: pool.get(key) for key in ("internal_api", "version", "architecture", "num_threads")}
        for pool in threadpool_info()
        if pool["user_api"] == "blas"
    ]
    found = {name: version(name) for name in ("numpy", "numba", "llvmlite", "scipy")}
    return {**found, "tier": current(), "tiers": available(), "blas": blas}


def _timed(function: Callable[..., Any], *inputs: np.ndarray, dY: np.ndarray | None = None, **options: Any) -> Job:
    """Forward, or with a dY forward and backward; a tuple of arrays."""

    def job() -> tuple[np.ndarray, ...]:
        Y, pullback = function(*inputs, **options)
        return (Y,) if dY is None else (Y, *pullback(dY))

    return job


def attention(n: int, H: int, d: int, causal: bool, backward: bool) -> Job:
    """Softmax attention, (1, H, n, d)."""
    from minitransformer.attention import dot_product_attention

    Q, K, V, dY = arrays(*[(1, H, n, d)] * 4)
    return _timed(dot_product_attention, Q, K, V, dY=dY if backward else None, causal=causal)


def masked_attention(n: int, backward: bool) -> Job:
    """A mask without structure, shared by the heads."""
    from minitransformer.attention import dot_product_attention

    Q, K, V, dY, noise = arrays(*[(1, 8, n, 64)] * 4, (n, n))
    return _timed(dot_product_attention, Q, K, V, dY=dY if backward else None, mask=noise > 0)


def biased_attention(n: int, backward: bool) -> Job:
    """A number for each head and offset is added to the scores; it has a gradient too."""
    from minitransformer.attention import dot_product_attention

    Q, K, V, dY, bias = arrays(*[(1, 8, n, 64)] * 4, (8, 2 * n - 1))
    return _timed(functools.partial(dot_product_attention, bias=bias), Q, K, V, dY=dY if backward else None)


def one_query(n: int) -> Job:
    """A step of generation: one query against n keys."""
    from minitransformer.attention import dot_product_attention

    Q, K, V = arrays((1, 8, 1, 64), *[(1, 8, n, 64)] * 2)
    return _timed(dot_product_attention, Q, K, V, causal=True)


def layer(attention: str, n: int, backward: bool, dense: bool = False) -> Job:
    """One layer of width 512 with 8 heads, of any kind of attention that has a name; causal if that kind can be.

    dense   softmax attention in its place, causal under the same condition
    """
    from minitransformer.models.assemble import mixer_of

    kinds = (attention, "softmax")
    mixers = [mixer_of(kind, None, width=512, heads=8, groups=None, longest=n) for kind in kinds]
    mixer, causal = mixers[dense], mixers[0].causal != "never"
    params = mixer.init(np.random.default_rng(0))
    X, dY = arrays((1, n, 512), (1, n, 512))

    def job() -> tuple[np.ndarray, ...]:
        Y, pullback = mixer(params, X, causal=causal)
        return (Y, pullback(dY)[1]) if backward else (Y,)

    return job


def layer_dense(attention: str, n: int, backward: bool) -> Job:
    """Softmax attention in a layer like that of `attention`, to compare it with."""
    return layer(attention, n, backward, dense=True)


def block_sparse(pattern: str, n: int, backward: bool) -> Job:
    """Attention within ± 256, or between the blocks of BigBird."""
    from minitransformer.attention import block_sparse_attention

    Q, K, V, dY = arrays(*[(1, 8, n, 64)] * 4)
    return _timed(block_sparse_attention, Q, K, V, _pattern(pattern, n), dY=dY if backward else None)


def _pattern(pattern: str, n: int) -> Any:
    from minitransformer.attention import Window, block_pattern

    if pattern == "window":
        return Window(WINDOW)(n, n, causal=False)
    return block_pattern(n, n, lambda i, j: np.True_, bigbird(n))


def graph_attention(edges: int, dynamic: bool, backward: bool) -> Job:
    """GAT (scores of one number for each node and head) or GATv2 (of eight), eight heads of eight channels."""
    from minitransformer.related import additive_edge_attention, edges_of

    n, r = edges // 10, 8 if dynamic else 1
    Q, K, V, dY, a = arrays(*[(n, 8, r)] * 2, *[(n, 8, 8)] * 2, (8, r))
    heads = [X.swapaxes(0, 1) for X in (Q, K, V, dY)]
    attend = functools.partial(additive_edge_attention, edges=edges_of(pairs(edges), n))
    return _timed(attend, *heads[:3], a, dY=heads[3] if backward else None)


def linear_attention(n: int, backward: bool) -> Job:
    """Causal kernel attention; the features of queries and keys are given."""
    from minitransformer.attention.kernel_attention import kernel_attention

    Q, K, V, dY = arrays(*[(1, 8, n, 64)] * 4)
    return _timed(kernel_attention, features(Q), features(K), V, dY=dY if backward else None, causal=True)


def convolution(kind: str, n: int, taps: int, backward: bool) -> Job:
    """A causal lightweight or dynamic convolution of 8 heads of 64 channels, (4, n, 512)."""
    from minitransformer.related import dynamic_convolution, lightweight_convolution

    X, dY, kernel = arrays(*[(4, n, 512)] * 2, (8, taps) if kind == "light" else (512, 8, taps))
    function = lightweight_convolution if kind == "light" else dynamic_convolution
    return _timed(function, X, kernel / 20, dY=dY if backward else None, causal=True)


def delta_rule(n: int, backward: bool) -> Job:
    """A memory that is corrected by each key and value; keys have length one."""
    from minitransformer.attention import delta_rule

    Q, K, V, dY, beta = arrays(*[(1, 8, n, 64)] * 4, (1, 8, n))
    return _timed(delta_rule, Q, unit(K), V, 1 / (1 + np.exp(-beta)), dY=dY if backward else None)


def copy_of_V(n: int) -> Job:  # noqa: N802
    """What any attention must at least do: write as many numbers as V has."""
    V, Y = arrays(*[(1, 8, n, 64)] * 2)
    return lambda: np.copyto(Y, V)


def limit(operations: float) -> Job:
    """This many operations by the inner loop of a matrix product, on tiles that stay in the first-level cache.

    This is what the processor can do now: by the micro-kernel, or by plain loops where there is none. There are eight tasks for
    each core, as in a virtual machine one core may be slower than the other for a while.
    """
    from minitransformer.kernels.compiled_stairs import multiply_adds
    from minitransformer.kernels.threads import in_parallel
    from minitransformer.kernels.tiles import plain_loops, tiles
    from minitransformer.machine import cores

    (A,) = arrays((64, 64))
    B, C = tiles(1, 64, A)[0], tiles(8 * cores(), 64, A)
    times = max(1, round(operations / (2 * C.size * 64)))

    def job() -> None:
        in_parallel(len(C), multiply_adds, A, B, times, plain_loops(), C)

    return job


def linear_layer(n: int, D: int, E: int, backward: bool) -> Job:
    """A linear layer of the training step: one matrix product, or all three."""
    from minitransformer.functional import linear

    X, W, dY = arrays((n, D), (D, E), (n, E))
    return _timed(lambda X, W: linear(X, W), X, W, dY=dY if backward else None)


def training_step() -> Job:
    """Forward, backward, clipping and AdamW, as `minitransformer train` does it."""
    from minitransformer.data.text import Text
    from minitransformer.machine import keep_freed_memory
    from minitransformer.models import LanguageModel
    from minitransformer.training.choices import Training
    from minitransformer.training.loop import advance, start
    from minitransformer.training.objective import NextByte
    from minitransformer.training.recipes import parts_of
    from minitransformer.training.schedule import Cosine

    noise = np.random.default_rng(0).integers(0, 256, 2**16).astype(np.uint8)
    never = 2**20
    objective = NextByte(Text(noise, noise[:1024], "noise", ""), MODEL["context"])
    schedule, parts = Cosine(3e-4, never), parts_of(BATCH, BATCH * MODEL["context"])
    training = Training(never, BATCH, schedule, parts=parts, look_every=never, save_every=never)
    model = LanguageModel(**MODEL)
    state = start(model, training)
    keep_freed_memory()  # as `train` does

    def job() -> None:
        nonlocal state
        state = advance(model, objective, training, state)
        state = state._replace(losses=())

    return job


def generate(attention: str) -> Job:
    """Continue a prompt of 16 bytes, with the states of the blocks kept."""
    from minitransformer.models import LanguageModel, generate

    model = LanguageModel(**MODEL, attention=attention)
    params = model.init(np.random.default_rng(0))

    def job() -> None:
        generate(model, params, np.arange(16), STEPS, rng=np.random.default_rng(0))

    return job
