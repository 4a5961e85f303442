"""The other side, in PyTorch: each function is named after a kind of work and the implementation of it.

Nothing of the book is imported here but the shapes and inputs of the rows.
"""

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.rows import BATCH, BLOCK, MODEL, STEPS, WINDOW, arrays, bigbird, features, pairs, unit, visible

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


# ------------------------------------------------------------------------------------- a small language model


def linear_layer_eager(n: int, D: int, E: int, backward: bool) -> Job:
    """A linear layer; our weights are (D, E), as in the book."""
    X, W, dY = arrays((n, D), (D, E), (n, E))
    return _timed(torch.matmul, X, W, dY=dY if backward else None)


class Block(nn.Module):
    """Pre-norm; the three projections of attention are one product."""

    def __init__(self, D: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, X: torch.Tensor, past: torch.Tensor | None = None, first: int = 0) -> torch.Tensor:
        """With a past, (2, batch, H, context, d): X holds the tokens from `first` on, and the past is filled in."""
        Q, K, V = self.qkv(self.norm1(X)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if past is not None:
            last = first + X.shape[1]
            past[0, :, :, first:last], past[1, :, :, first:last] = K, V
            K, V = past[:, :, :, :last]
        X = X + self.out(sdpa(Q, K, V, is_causal=X.shape[1] > 1).transpose(1, 2).flatten(2))
        return X + self.down(F.gelu(self.up(self.norm2(X)), approximate="tanh"))


class Model(nn.Module):
    """The same model as ours: tied embeddings, sinusoidal positions."""

    def __init__(self, vocabulary: int, context: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.E = nn.Parameter(torch.randn(vocabulary, width) / math.sqrt(width))
        angles = torch.arange(context)[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], -1).flatten(1))
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor, past: torch.Tensor | None = None, first: int = 0) -> torch.Tensor:
        """Logits."""
        X = math.sqrt(self.E.shape[1]) * F.embedding(tokens, self.E) + self.positions[first : first + tokens.shape[1]]
        for number, block in enumerate(self.blocks):
            X = block(X, None if past is None else past[number], first)
        return self.norm(X) @ self.E.T


def _training(compiled: bool) -> Job:
    torch.manual_seed(0)
    model = Model(**MODEL)
    optimiser = torch.optim.AdamW(model.parameters(), 3e-4, betas=(0.9, 0.99), weight_decay=0.01, fused=True)
    predict = torch.compile(model) if compiled else model
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (BATCH, MODEL["context"] + 1)))

    def job() -> None:
        optimiser.zero_grad(set_to_none=True)
        loss = F.cross_entropy(predict(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        loss.item()

    return job


def training_step_eager() -> Job:
    """As it is."""
    return _training(False)


def training_step_compile() -> Job:
    """Through torch.compile."""
    return _training(True)


def generate_eager() -> Job:
    """Keys and values are written into arrays that were made beforehand."""
    torch.manual_seed(0)
    model = Model(**MODEL)
    shape = (MODEL["depth"], 2, 1, MODEL["heads"], MODEL["context"], MODEL["width"] // MODEL["heads"])

    @torch.inference_mode()
    def job() -> None:
        past, tokens, first = torch.zeros(shape), torch.arange(16)[None], 0
        for _ in range(STEPS):
            P = model(tokens, past, first)[:, -1].softmax(-1)
            first += tokens.shape[1]
            tokens = torch.multinomial(P, 1)
            tokens.item()

    return job
