"""What a trained GRU keeps of the past, drawn as an attention map, beside the map of trained causal attention."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

from minitransformer.data.text import python_docs
from minitransformer.figures.style import figure
from minitransformer.functional import EmbeddingPullback, LinearPullback, embedding, linear
from minitransformer.kin import GRU, After, Attend, Candidates, gru_coefficients
from minitransformer.positions import SinusoidalPositions
from minitransformer.pullback import ChainPullback, Layer, Tree, chain, tree_size
from minitransformer.training.objective import NextByte
from minitransformer.training.optimiser import AdamW, clip
from minitransformer.training.schedule import Cosine
from minitransformer.typing import Array

WIDTH, HEADS, CONTEXT = 64, 4, 64
TEXT = "if the name is a name"
MEMORIES = (1.0, 3.0, 8.0)  # bytes: which coordinates of the GRU are drawn


class ByteParams(NamedTuple):
    """Embeddings (256, D), the trees of the layers, and the linear layer to the logits of the next byte."""

    E: Array
    layers: tuple[Tree, ...]
    W: Array
    b: Array


class BytePullback(NamedTuple):
    """Backwards: logits, layers, embedding."""

    embedding: EmbeddingPullback
    layers: ChainPullback
    linear: LinearPullback

    def __call__(self, dlogits: Array) -> ByteParams:
        dH, dW, db = self.linear(dlogits)
        dlayers, dX = self.layers(dH)
        return ByteParams(self.embedding(dX), dlayers, dW, db)


@dataclass(frozen=True)
class ByteModel:
    """A causal rung of the ladder between an embedding of bytes and a prediction of the next."""

    layers: tuple[Layer, ...]

    def init(self, rng: np.random.Generator) -> ByteParams:
        """Rows of E of length 3, small logits."""
        E, W = (rng.standard_normal(shape, np.float32) / 8 for shape in ((256, WIDTH), (WIDTH, 256)))
        return ByteParams(3 * E, tuple(layer.init(rng) for layer in self.layers), W / 3, np.zeros(256, np.float32))

    def __call__(self, params: ByteParams, tokens: Array, *, rng: Any = None) -> tuple[Array, BytePullback]:
        """Logits of the byte after each."""
        X, embedded = embedding(tokens, params.E)
        H, layers = chain(*self.layers)(params.layers, X)
        logits, out = linear(H, params.W, params.b)
        return logits, BytePullback(embedded, layers, out)  # type: ignore[arg-type]


RNN_SIDE = ByteModel((GRU(WIDTH, WIDTH),))
ATTENTION_SIDE = ByteModel(  # rung 9 of the ladder, but causal, and with p(i) from sinusoids
    (Candidates(WIDTH, WIDTH), SinusoidalPositions(WIDTH), Attend(WIDTH, HEADS), After(WIDTH, 4 * WIDTH))
)


class Maps(NamedTuple):
    """Maps are rows t, columns i. Those of the GRU begin with h_0, in column 0, and with the row of h_1."""

    text: str
    coefficients: Array  # (n, n + 1, d): C_{t,i} of every coordinate
    memory: Array  # (d,): mean age of what a coordinate holds, in bytes
    attention: Array  # (N, n, n): α_{t,i} of every head
    bits: Array  # (2,): held-out bits per byte of the GRU and of attention
    parameters: Array  # (2,)


@threadpool_limits.wrap(limits=1, user_api="blas")  # products this small are slower on two threads
def data(steps: int = 500, seed: int = 0, text: str = TEXT) -> Maps:
    """Train both on the Python documentation, in the same way, and let them read the text."""
    objective = NextByte(python_docs(), CONTEXT)
    gru, attention = (train(model, objective, steps, seed) for model in (RNN_SIDE, ATTENTION_SIDE))
    tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int64)
    u = RNN_SIDE(gru, tokens)[1].layers[0].u
    C = gru_coefficients(u.astype(np.float64))[0][1:]
    age = np.maximum(np.arange(1, len(tokens) + 1)[:, None] - np.arange(len(tokens) + 1), 0)
    A = ATTENTION_SIDE(attention, tokens)[1].layers[2].A
    bits = [objective.bits(m, p).mean() for m, p in ((RNN_SIDE, gru), (ATTENTION_SIDE, attention))]
    memory = np.einsum("ti,tid->d", age, C) / len(tokens)
    return Maps(text, C, memory, A, np.array(bits), np.array([tree_size(gru), tree_size(attention)]))


def train(
    model: ByteModel, objective: NextByte, steps: int, seed: int, batch: int = 16, peak: float = 1e-2
) -> ByteParams:
    """Descend on the loss of random passages."""
    rng = np.random.default_rng(seed)
    params, optimiser, schedule = model.init(rng), AdamW(), Cosine(peak, steps, steps // 10)
    state = optimiser.init(params)
    for step in range(1, steps + 1):
        _, pullback = objective.loss(model, params, objective.batch(batch, rng))
        grads, _ = clip(pullback(np.float32(1)), 1.0)
        params, state = optimiser.update(params, grads, state, schedule(step))
    return params


def draw(data: Maps) -> Figure:
    """Above, three coordinates of the GRU, from short memory to long; below, three of the heads."""
    fig, axes = figure(2, len(MEMORIES), width=10, height=7)
    letters = [c if c != " " else "␣" for c in data.text]
    for ax, target in zip(axes[0], MEMORIES, strict=True):
        k = int(np.abs(data.memory - target).argmin())
        picture = _map(ax, data.coefficients[..., k], ["h₀", *letters], letters)
        ax.set_title(f"GRU, coordinate {k}: mean age {data.memory[k]:.1f}")
    for ax, head in zip(axes[1], range(HEADS), strict=False):
        _map(ax, data.attention[head], letters, letters)
        ax.set_title(f"attention, head {head + 1}")
    fig.colorbar(picture, ax=axes, label="weight of candidate i (column) in $h_t$ (row)", shrink=0.6)
    return fig


def _map(ax: Any, weights: Array, columns: list[str], rows: list[str]) -> Any:
    picture = ax.imshow(weights, norm=PowerNorm(0.5, 0, 1), aspect="auto")  # the root, so that small weights are seen
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(rows)), rows)
    ax.tick_params(length=0, labelsize=9)
    ax.set(xlabel="i", ylabel="t")
    return picture
