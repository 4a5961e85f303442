"""The other side's small language model, in PyTorch: a step of training, and how it writes.

It has our layers and other weights: pre-norm blocks, sinusoidal positions, tied embeddings, and one of several attentions.
When it writes, X holds the tokens from `first` on, and `past` what a block keeps of those before, in arrays made beforehand.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.rows import BATCH, MODEL, STEPS

Job = Callable[[], Any]
Past = dict[str, torch.Tensor]

sdpa = F.scaled_dot_product_attention


def _keep(past: Past | None, first: int, **rows: torch.Tensor) -> list[torch.Tensor]:
    """Each array (…, n, d) with all positions up to now, and these n written into the past; the array itself without a past."""
    if past is None:
        return list(rows.values())
    last = first + next(iter(rows.values())).shape[-2]
    for name, X in rows.items():
        past[name][..., first:last, :] = X
    return [past[name][..., :last, :] for name in rows]


def _hidden(n: int, m: int) -> torch.Tensor:
    """−∞ at the keys after a query, (n, m), where the queries are the last n positions."""
    return torch.full((n, m), -math.inf).triu(m - n + 1)


class Softmax(nn.Module):
    """PyTorch's own attention; the three projections are one product."""

    def __init__(self, D: int, heads: int) -> None:
        super().__init__()
        self.heads, self.d = heads, D // heads
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def room(self, context: int) -> Past:
        """The past of a block that has read nothing."""
        return {name: torch.zeros(1, self.heads, context, self.d) for name in ("K", "V")}

    def in_heads(self, X: torch.Tensor) -> torch.Tensor:
        """Q, K and V, (3, batch, H, n, d)."""
        return self.qkv(X).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def merged(self, Y: torch.Tensor) -> torch.Tensor:
        """The output of heads (batch, H, n, d)."""
        return self.out(Y.transpose(1, 2).flatten(2))

    def forward(self, X: torch.Tensor, past: Past | None, first: int) -> torch.Tensor:
        """Y."""
        Q, K, V = self.in_heads(X)
        K, V = _keep(past, first, K=K, V=V)
        return self.merged(sdpa(Q, K, V, is_causal=X.shape[1] > 1))


class Differential(Softmax):
    """Two softmaxes of a pair of heads, one subtracted from the other; a pair has one value twice as wide."""

    def __init__(self, D: int, heads: int) -> None:
        super().__init__(D, heads)
        self.of_lambda = nn.Parameter(0.1 * torch.randn(2, 2, self.d))
        self.gain = nn.Parameter(torch.ones(2 * self.d))

    def room(self, context: int) -> Past:
        pairs = torch.zeros(1, self.heads // 2, context, 2 * self.d)
        return {"K": torch.zeros(1, self.heads, context, self.d), "V": pairs}

    def forward(self, X: torch.Tensor, past: Past | None, first: int) -> torch.Tensor:
        Q, K, V = self.in_heads(X)
        K, V = _keep(past, first, K=K, V=V.unflatten(1, (-1, 2)).transpose(2, 3).flatten(3))
        S = Q @ K.mT / math.sqrt(self.d)
        A = (S if X.shape[1] == 1 else S + _hidden(*S.shape[2:])).softmax(-1).unflatten(1, (-1, 2))
        one, other = self.of_lambda.prod(0).sum(-1).exp()
        Y = (A[:, :, 0] - (one - other + 0.8) * A[:, :, 1]) @ V
        Y = 0.2 * F.rms_norm(Y, Y.shape[-1:], self.gain, 1e-5)
        return self.merged(Y.unflatten(3, (2, -1)).transpose(2, 3).flatten(1, 2))


class Forgetting(Softmax):
    """A gate of each head fades what is behind it: its logarithms are summed, and differences of the sums added to the scores."""

    def __init__(self, D: int, heads: int) -> None:
        super().__init__(D, heads)
        self.forget = nn.Linear(D, heads)

    def room(self, context: int) -> Past:
        return {**super().room(context), "c": torch.zeros(1, self.heads, context, 1)}

    def forward(self, X: torch.Tensor, past: Past | None, first: int) -> torch.Tensor:
        Q, K, V = self.in_heads(X)
        c = F.logsigmoid(self.forget(X)).mT.cumsum(-1)[..., None]
        if past is not None and first:
            c = c + past["c"][:, :, first - 1 : first]
        K, V, before = _keep(past, first, K=K, V=V, c=c)
        fades = c - before.mT
        return self.merged(sdpa(Q, K, V, fades if X.shape[1] == 1 else fades + _hidden(*fades.shape[2:])))


class Latent(nn.Module):
    """Keys and values are a latent row for all heads, which the queries and the outputs meet; beside it a key that is turned."""

    def __init__(self, D: int, heads: int) -> None:
        super().__init__()
        self.heads, self.d = heads, D // heads
        self.rank, self.turned = self.d, self.d // 2
        self.q, self.q_turned = nn.Linear(D, D, bias=False), nn.Linear(D, heads * self.turned, bias=False)
        self.latent, self.k_turned = nn.Linear(D, self.rank, bias=False), nn.Linear(D, self.turned, bias=False)
        self.norm = nn.RMSNorm(self.rank, 1e-5)
        self.up_k = nn.Parameter(torch.randn(heads, self.d, self.rank) / math.sqrt(self.rank))
        self.up_v = nn.Parameter(torch.randn(heads, self.rank, self.d) / math.sqrt(self.rank))
        self.out = nn.Linear(D, D, bias=False)
        angles = torch.arange(MODEL["context"])[:, None] * 10000.0 ** (-torch.arange(0, self.turned, 2) / self.turned)
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def room(self, context: int) -> Past:
        """The past of a block that has read nothing."""
        return {"latent": torch.zeros(1, context, self.rank), "turned": torch.zeros(1, context, self.turned)}

    def turn(self, X: torch.Tensor, first: int) -> torch.Tensor:
        """Pairs of neighbouring coordinates turned by the angles of their positions."""
        pairs = torch.view_as_complex(X.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * self.turns[first : first + X.shape[-2]]).flatten(-2)

    def forward(self, X: torch.Tensor, past: Past | None, first: int) -> torch.Tensor:
        """Y."""
        Q, turned = (M.unflatten(-1, (self.heads, -1)).transpose(1, 2) for M in (self.q(X), self.q_turned(X)))
        C, K = _keep(past, first, latent=self.norm(self.latent(X)), turned=self.turn(self.k_turned(X), first))
        S = (Q @ self.up_k) @ C.mT[:, None] + self.turn(turned, first) @ K.mT[:, None]
        S = S / math.sqrt(self.d + self.turned)
        A = (S if X.shape[1] == 1 else S + _hidden(*S.shape[2:])).softmax(-1)
        return self.out(((A @ C[:, None]) @ self.up_v).transpose(1, 2).flatten(2))


class Linear(Softmax):
    """Sums of features of the keys, with values and alone."""

    def room(self, context: int) -> Past:
        return {"S": torch.zeros(1, self.heads, self.d, self.d), "z": torch.zeros(1, self.heads, 1, self.d)}

    def forward(self, X: torch.Tensor, past: Past | None, first: int) -> torch.Tensor:
        Q, K, V = self.in_heads(X)
        Q, K = F.elu(Q) + 1, F.elu(K) + 1
        A = (Q @ K.mT).tril()
        numerators, sums = A @ V + Q @ past["S"], A.sum(-1, keepdim=True) + Q @ past["z"].mT
        past["S"] += K.mT @ V
        past["z"] += K.sum(-2, keepdim=True)
        return self.merged(numerators / sums)


ATTENTIONS = {
    "softmax": Softmax,
    "differential": Differential,
    "forgetting": Forgetting,
    "latent": Latent,
    "linear": Linear,
}


class Block(nn.Module):
    """Pre-norm."""

    def __init__(self, D: int, heads: int, attention: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attention = ATTENTIONS[attention](D, heads)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, X: torch.Tensor, past: Past | None = None, first: int = 0) -> torch.Tensor:
        """The tokens after attention and feed-forward network."""
        X = X + self.attention(self.norm1(X), past, first)
        return X + self.down(F.gelu(self.up(self.norm2(X)), approximate="tanh"))


class Model(nn.Module):
    """The same model as ours: tied embeddings, sinusoidal positions."""

    def __init__(
        self, vocabulary: int, context: int, width: int, depth: int, heads: int, attention: str = "softmax"
    ) -> None:
        super().__init__()
        self.E = nn.Parameter(torch.randn(vocabulary, width) / math.sqrt(width))
        angles = torch.arange(context)[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], -1).flatten(1))
        self.blocks = nn.ModuleList([Block(width, heads, attention) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor, past: list[Past] | None = None, first: int = 0) -> torch.Tensor:
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


def generate_eager(attention: str) -> Job:
    """What each block keeps is written into arrays that were made beforehand."""
    torch.manual_seed(0)
    model = Model(**MODEL, attention=attention)

    @torch.inference_mode()
    def job() -> None:
        past, tokens, first = (
            [block.attention.room(MODEL["context"]) for block in model.blocks],
            torch.arange(16)[None],
            0,
        )
        for _ in range(STEPS):
            P = model(tokens, past, first)[:, -1].softmax(-1)
            first += tokens.shape[1]
            tokens = torch.multinomial(P, 1)
            tokens.item()

    return job
