"""The other side, in PyTorch: each function is named after a kind of work and the implementation of it.

Nothing of the book is imported here but the shapes and inputs of the rows.
"""

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.peers_model import generate_eager, training_step_compile, training_step_eager  # noqa: F401
from benchmarks.rows import BLOCK, WINDOW, arrays, bigbird, features, pairs, unit, visible

Job = Callable[[], Any]

torch.set_num_threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
sdpa = F.scaled_dot_product_attention


def machine() -> dict[str, Any]:
    """Versions, and the vector instructions that PyTorch chose."""
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": torch.get_num_threads(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
    }


def _timed(function: Callable[..., torch.Tensor], *inputs: np.ndarray, dY: np.ndarray | None = None) -> Job:
    """Forward without a graph, or with a dY forward and backward; a tuple of tensors."""
    tensors = [torch.from_numpy(array).requires_grad_(dY is not None) for array in inputs]
    gradient = None if dY is None else torch.from_numpy(dY)

    def job() -> tuple[torch.Tensor, ...]:
        if gradient is None:
            with torch.no_grad():
                return (function(*tensors),)
        Y = function(*tensors)
        return (Y.detach(), *torch.autograd.grad(Y, tensors, gradient))

    return job


# ------------------------------------------------------------------------------------- softmax attention


def attention_sdpa(n: int, H: int, d: int, causal: bool, backward: bool) -> Job:
    """PyTorch's own attention."""
    Q, K, V, dY = arrays(*[(1, H, n, d)] * 4)
    return _timed(lambda Q, K, V: sdpa(Q, K, V, is_causal=causal), Q, K, V, dY=dY if backward else None)


def one_query_sdpa(n: int) -> Job:
    """One query against n keys."""
    return _timed(sdpa, *arrays((1, 8, 1, 64), *[(1, 8, n, 64)] * 2))


def masked_attention_sdpa(n: int, backward: bool) -> Job:
    """A boolean mask."""
    Q, K, V, dY, noise = arrays(*[(1, 8, n, 64)] * 4, (n, n))
    mask = torch.from_numpy(noise > 0)
    return _timed(lambda Q, K, V: sdpa(Q, K, V, attn_mask=mask), Q, K, V, dY=dY if backward else None)


def masked_attention_flex(n: int, backward: bool) -> Job:
    """The mask as a function of the indices, compiled."""
    Q, K, V, dY, noise = arrays(*[(1, 8, n, 64)] * 4, (n, n))
    mask = torch.from_numpy(noise > 0)
    attend = _flex(lambda b, h, i, j: mask[i, j], n)
    return _timed(attend, Q, K, V, dY=dY if backward else None)


def biased_attention_sdpa(n: int, backward: bool) -> Job:
    """The bias written out as an (H, n, n) array, inside the time, as in training."""
    Q, K, V, dY, bias = arrays(*[(1, 8, n, 64)] * 4, (8, 2 * n - 1))
    offsets = torch.arange(n)[None] - torch.arange(n)[:, None] + n - 1
    bias = torch.from_numpy(bias).requires_grad_(backward)
    return _timed(lambda Q, K, V: sdpa(Q, K, V, attn_mask=bias[:, offsets]), Q, K, V, dY=dY if backward else None)


def biased_attention_flex(n: int, backward: bool) -> Job:
    """The bias looked up for each score, compiled."""
    from torch.nn.attention.flex_attention import flex_attention

    Q, K, V, dY, bias = arrays(*[(1, 8, n, 64)] * 4, (8, 2 * n - 1))
    bias = torch.from_numpy(bias)
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)

    def add(score, b, h, i, j):
        return score + bias[h, j - i + n - 1]

    return _timed(lambda Q, K, V: compiled(Q, K, V, score_mod=add), Q, K, V, dY=dY if backward else None)


# ------------------------------------------------------------------------------------- block-sparse attention


def _flex(sees: Callable[..., torch.Tensor], n: int, block: int = 128) -> Callable[..., torch.Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()
    mask = create_block_mask(sees, None, None, n, n, device="cpu", BLOCK_SIZE=block)
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda Q, K, V: compiled(Q, K, V, block_mask=mask)


def block_sparse_flex(pattern: str, n: int, backward: bool) -> Job:
    """flex_attention, compiled; on a CPU it has no backward pass."""
    Q, K, V, dY = arrays(*[(1, 8, n, 64)] * 4)
    if pattern == "window":
        attend = _flex(lambda b, h, i, j: (i - j).abs() <= WINDOW, n)
    else:
        blocks = torch.from_numpy(bigbird(n))
        attend = _flex(lambda b, h, i, j: blocks[i // BLOCK, j // BLOCK], n, BLOCK)
    return _timed(attend, Q, K, V, dY=dY if backward else None)


def block_sparse_sdpa(pattern: str, n: int, backward: bool) -> Job:
    """Everything is computed, and hidden by a mask."""
    Q, K, V, dY = arrays(*[(1, 8, n, 64)] * 4)
    mask = torch.from_numpy(visible(pattern, n))
    return _timed(lambda Q, K, V: sdpa(Q, K, V, attn_mask=mask), Q, K, V, dY=dY if backward else None)


def block_sparse_chunked(pattern: str, n: int, backward: bool) -> Job:
    """Dense attention of each chunk of queries to the keys that it may see, gathered."""
    Q, K, V, dY = arrays(*[(1, 8, n, 64)] * 4)
    attend = _window_chunks(n) if pattern == "window" else _bigbird_chunks(n)
    return _timed(attend, Q, K, V, dY=dY if backward else None)


def _window_chunks(n: int) -> Callable[..., torch.Tensor]:
    """Chunks as long as the window, each with the one before and the one after."""
    i, j = torch.arange(WINDOW)[:, None], torch.arange(-WINDOW, 2 * WINDOW)
    sees = ((i - j).abs() <= WINDOW).repeat(n // WINDOW, 1, 1)
    sees[0] &= j >= 0
    sees[-1] &= j < WINDOW
    hidden = torch.zeros(sees.shape).masked_fill(~sees, -math.inf)

    def three(X: torch.Tensor) -> torch.Tensor:
        padded = F.pad(X, (0, 0, WINDOW, WINDOW)).unflatten(-2, (-1, WINDOW))
        return torch.cat([padded[..., :-2, :, :], padded[..., 1:-1, :, :], padded[..., 2:, :, :]], -2)

    def attend(Q, K, V):
        return _dense(Q.unflatten(-2, (-1, WINDOW)), three(K), three(V), hidden).flatten(-3, -2)

    return attend


def _bigbird_chunks(n: int) -> Callable[..., torch.Tensor]:
    """Blocks of queries with the blocks of keys they see; the first and the last block see all keys."""
    sees = bigbird(n)[1:-1]
    longest = sees.sum(1).max()
    order = np.argsort(~sees, 1, kind="stable")[:, :longest]
    missing = torch.from_numpy(~np.take_along_axis(sees, order, 1)).repeat_interleave(BLOCK, 1)
    hidden = torch.zeros(missing.shape).masked_fill(missing, -math.inf)[:, None]
    order = torch.from_numpy(order)

    def gather(X: torch.Tensor) -> torch.Tensor:
        return X.unflatten(-2, (-1, BLOCK))[..., order, :, :].flatten(-3, -2)

    def attend(Q, K, V):
        middle = _dense(Q[..., BLOCK:-BLOCK, :].unflatten(-2, (-1, BLOCK)), gather(K), gather(V), hidden)
        first, last = sdpa(Q[..., :BLOCK, :], K, V), sdpa(Q[..., -BLOCK:, :], K, V)
        return torch.cat([first, middle.flatten(-3, -2), last], -2)

    return attend


def _dense(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return ((Q @ K.mT) * Q.shape[-1] ** -0.5 + hidden).softmax(-1) @ V


# ------------------------------------------------------------------------------------- graphs


def _edges(attend: Callable[..., torch.Tensor], edges: int, dynamic: bool, backward: bool) -> Job:
    n, r = edges // 10, 8 if dynamic else 1
    Q, K, V, dY, a = arrays(*[(n, 8, r)] * 2, *[(n, 8, 8)] * 2, (8, r))
    i, j = torch.from_numpy(pairs(edges)).T.contiguous()

    def along(Q, K, V, a):
        return attend(Q, K, V, a, i, j)

    job = _timed(along, Q, K, V, a, dY=dY if backward else None)

    def turned() -> tuple[torch.Tensor, ...]:
        Y, *grads = job()
        heads = [X.transpose(0, 1) for X in (Y, *grads[:3])]
        return (*heads, *grads[3:])

    return turned


def _scatter(Q, K, V, a, i, j):
    """Gather both ends of every edge, the largest score and the sums by scattering them to the nodes."""
    S = (a * F.leaky_relu(Q.index_select(0, i) + K.index_select(0, j), 0.2)).sum(-1)
    top = S.new_full((len(V), S.shape[1]), -math.inf)
    top = top.scatter_reduce(0, i[:, None].expand_as(S), S.detach(), "amax")
    A = (S - top.index_select(0, i)).exp()
    total = torch.zeros_like(top).index_add(0, i, A)
    A = A / total.index_select(0, i)
    return torch.zeros_like(V).index_add(0, i, A[..., None] * V.index_select(0, j))


def graph_attention_scatter(edges: int, dynamic: bool, backward: bool) -> Job:
    """index_select and index_add, as PyTorch Geometric does it."""
    return _edges(_scatter, edges, dynamic, backward)


def graph_attention_compile(edges: int, dynamic: bool, backward: bool) -> Job:
    """The same, compiled."""
    torch._dynamo.reset()
    return _edges(torch.compile(_scatter, dynamic=False), edges, dynamic, backward)


# ------------------------------------------------------------------------------------- recurrences


def _linear(attend: Callable[..., torch.Tensor], n: int, backward: bool) -> Job:
    Q, K, V, dY = arrays(*[(1, 8, n, 64)] * 4)
    return _timed(attend, features(Q), features(K), V, dY=dY if backward else None)


def linear_attention_cumsum(n: int, backward: bool) -> Job:
    """All n states, as a cumulative sum."""

    def attend(Q, K, V):
        states = torch.einsum("bhnd,bhne->bhnde", K, V).cumsum(2)
        return torch.einsum("bhnd,bhnde->bhne", Q, states) / (Q * K.cumsum(2)).sum(-1, keepdim=True)

    return _linear(attend, n, backward)


def _linear_chunks(C: int, n: int, backward: bool) -> Job:
    """Masked products inside a chunk of C, and one state for each chunk."""
    lower = torch.ones(C, C).tril()

    def attend(Q, K, V):
        q, k, v = (X.unflatten(-2, (-1, C)) for X in (Q, K, V))
        added, keys = k.mT @ v, k.sum(-2)
        state, total = added.cumsum(2) - added, keys.cumsum(2) - keys
        A = (q @ k.mT) * lower
        above, below = A @ v + q @ state, A.sum(-1, keepdim=True) + q @ total[..., None]
        return (above / below).flatten(-3, -2)

    return _linear(attend, n, backward)


def linear_attention_chunk64(n: int, backward: bool) -> Job:
    """Chunks of 64."""
    return _linear_chunks(64, n, backward)


def linear_attention_chunk128(n: int, backward: bool) -> Job:
    """Chunks of 128."""
    return _linear_chunks(128, n, backward)


def _convolution(convolve: Callable[..., torch.Tensor], kind: str, n: int, taps: int, backward: bool) -> Job:
    """Logits of the taps, their softmax, and `convolve` of X (4, n, 512) with weights (8, taps) or (4, n, 8, taps)."""
    X, dY, kernel = arrays(*[(4, n, 512)] * 2, (8, taps) if kind == "light" else (512, 8, taps))

    def job(X, kernel):
        S = kernel if kind == "light" else (X @ kernel.flatten(1)).unflatten(-1, (8, taps))
        return convolve(X, S.softmax(-1))

    return _timed(job, X, kernel / 20, dY=dY if backward else None)


def convolution_unfold(kind: str, n: int, taps: int, backward: bool) -> Job:
    """A window of each token, as a view, times its weights: fairseq's own way."""

    def convolve(X, A):
        windows = F.pad(X, (0, 0, taps - 1, 0)).unfold(1, taps, 1).unflatten(2, (8, 64))  # (4, n, 8, 64, taps)
        return (windows @ A.expand(4, n, 8, taps)[..., None])[..., 0].flatten(2)

    return _convolution(convolve, kind, n, taps, backward)


def convolution_taps(kind: str, n: int, taps: int, backward: bool) -> Job:
    """One tap after the other: so many products of a shifted X with a weight for each head."""

    def convolve(X, A):
        padded, Y = F.pad(X, (0, 0, taps - 1, 0)).unflatten(2, (8, 64)), 0
        for s in range(taps):
            Y = torch.addcmul(Y, padded[:, s : s + n], A[..., s, None]) if s else padded[:, :n] * A[..., 0, None]
        return Y.flatten(2)

    return _convolution(convolve, kind, n, taps, backward)


def convolution_band(kind: str, n: int, taps: int, backward: bool) -> Job:
    """Weights as bands in matrices (n, n), times X: fairseq's way for short texts."""

    def convolve(X, A):
        rows = A.expand(4, n, 8, taps).transpose(1, 2)
        side = n + taps - 1  # a row of weights and n zeros, cut at one number less, moves on by one place
        bands = F.pad(rows, (0, n)).flatten(2)[..., : n * side].unflatten(2, (n, side))[..., taps - 1 :]
        return (bands @ X.unflatten(2, (8, 64)).transpose(1, 2)).transpose(1, 2).flatten(2)

    return _convolution(convolve, kind, n, taps, backward)


def convolution_conv1d(kind: str, n: int, taps: int, backward: bool) -> Job:
    """PyTorch's own convolution, each channel a group of its own; of a lightweight one only."""

    def convolve(X, A):
        kernels = A.repeat_interleave(64, 0)[:, None]
        return F.conv1d(F.pad(X.mT, (taps - 1, 0)), kernels, groups=512).mT

    return _convolution(convolve, kind, n, taps, backward)


def _delta(attend: Callable[..., torch.Tensor], n: int, backward: bool) -> Job:
    Q, K, V, dY, beta = arrays(*[(1, 8, n, 64)] * 4, (1, 8, n))
    return _timed(attend, Q, unit(K), V, 1 / (1 + np.exp(-beta)), dY=dY if backward else None)


def delta_rule_recurrent(n: int, backward: bool) -> Job:
    """One step after the other."""

    def attend(Q, K, V, beta):
        state, rows = Q.new_zeros(1, 8, 64, 64), []
        for q, k, v, b in zip(*(X.unbind(2) for X in (Q, K, V, beta)), strict=True):
            error = b[..., None] * (v - (k[..., None, :] @ state)[..., 0, :])
            state = state + k[..., :, None] * error[..., None, :]
            rows.append((q[..., None, :] @ state)[..., 0, :])
        return torch.stack(rows, 2)

    return _delta(attend, n, backward)


def delta_rule_chunk64(n: int, backward: bool) -> Job:
    """The corrections of a chunk from one triangular system, then one step for each chunk."""
    C = 64

    def attend(Q, K, V, beta):
        q, k, v, b = (X.unflatten(2, (-1, C)) for X in (Q, K, V, beta[..., None]))
        system = torch.eye(C) + (b * (k @ k.mT)).tril(-1)
        solved = torch.linalg.solve_triangular(system, torch.cat([b * v, b * k], -1), upper=False, unitriangular=True)
        A = (q @ k.mT).tril()
        state, chunks = Q.new_zeros(1, 8, 64, 64), []
        for t in range(q.shape[2]):
            errors = solved[:, :, t, :, :64] - solved[:, :, t, :, 64:] @ state
            chunks.append(q[:, :, t] @ state + A[:, :, t] @ errors)
            state = state + k[:, :, t].mT @ errors
        return torch.cat(chunks, 2)

    return _delta(attend, n, backward)


def linear_layer_eager(n: int, D: int, E: int, backward: bool) -> Job:
    """A linear layer; our weights are (D, E), as in the book."""
    X, W, dY = arrays((n, D), (D, E), (n, E))
    return _timed(torch.matmul, X, W, dY=dY if backward else None)
