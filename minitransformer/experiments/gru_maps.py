"""How long does a trained GRU keep what it has read, and what do heads of attention look at?

Both learn to predict the next byte of the Python documentation, in the same way and for the same number of steps. Then
the GRU reads held-out text, where the ages of what it holds are measured, and both read a few words, to be drawn.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from minitransformer.data import ngrams
from minitransformer.data.text import encode, python_docs
from minitransformer.functional import EmbeddingPullback, LinearPullback, embedding, linear
from minitransformer.positions import SinusoidalPositions
from minitransformer.pullback import Pullback, Tree, chain, tree_size
from minitransformer.related import GRU, After, Attend, Candidates, gru_coefficients
from minitransformer.training.objective import NextByte
from minitransformer.training.optimiser import AdamW, clip
from minitransformer.training.schedule import Cosine
from minitransformer.typing import Array

IN_A_TEST = {"steps": 5}
WIDTH, HEADS, CONTEXT = 64, 4, 64
TEXT = "a name is a name"
READ, SKIPPED = 2000, 200  # bytes of held-out text, and of these before ages are counted
DRAWN = (2.0, 10.0)  # bytes: the map of a coordinate is kept if its mean age is the nearest to one of these


@dataclass(frozen=True)
class Trial:
    """One model, trained once."""

    model: Literal["GRU", "attention"]
    seed: int
    steps: int = 500


def trials() -> list[Trial]:
    """Both models from three starts."""
    return [Trial(model, seed) for model in ("GRU", "attention") for seed in range(3)]


def run(trial: Trial) -> dict[str, Any]:
    """Bits per byte on held-out text, those of counting, and the maps."""
    objective = NextByte(python_docs(), CONTEXT)
    model = MODELS[trial.model]
    params = train(model, objective, trial.steps, trial.seed)
    counted = ngrams.bits_per_byte(ngrams.fit(objective.text.train, 3), objective.text.held_out)
    return {
        "bits": round(float(objective.bits(model, params).mean()), 4),
        "counted": [round(float(bits), 4) for bits in counted],  # bytes, pairs, triples
        "parameters": tree_size(params),
        **(gru_maps if trial.model == "GRU" else attention_maps)(params),
    }


def gru_maps(params: "ByteParams") -> dict[str, Any]:
    """Mean age, in bytes, of what each coordinate holds, and C_ij of two coordinates, (n, n + 1): h_0 is column 0."""
    held_out = python_docs().held_out[:READ].astype(np.int64)
    ages = mean_ages(gates(params, held_out))[SKIPPED:].mean(0)
    drawn = [int(np.abs(ages - target).argmin()) for target in DRAWN]
    C = gru_coefficients(gates(params, encode(TEXT))[:, drawn])[0][1:]
    return {"ages": ages.round(3).tolist(), "drawn": drawn, "C": C.transpose(2, 0, 1).round(4).tolist()}


def gates(params: "ByteParams", tokens: Array) -> Array:
    """The gates of the GRU while it reads, (n, width)."""
    return MODELS["GRU"](params, tokens)[1].layers[0].u.astype(np.float64)


def mean_ages(u: Array) -> Array:
    """Σ_j C_ij (i − j), the mean age of what is in every state: a byte older at each step, as far as it is kept."""
    ages, age = np.empty_like(u), np.zeros(u.shape[-1])
    for i, u_i in enumerate(u):
        ages[i] = age = u_i * (age + 1)
    return ages


def attention_maps(params: "ByteParams") -> dict[str, Any]:
    """A of every head, (H, n, n)."""
    A = MODELS["attention"](params, encode(TEXT))[1].layers[2].A
    return {"A": A.astype(np.float64).round(4).tolist()}


def train(
    model: "ByteModel", objective: NextByte, steps: int, seed: int, batch: int = 16, peak: float = 1e-2
) -> "ByteParams":
    """Descend on the loss of random passages."""
    rng = np.random.default_rng(seed)
    params, optimiser, schedule = model.init(rng), AdamW(), Cosine(peak, steps, max(steps // 10, 1))
    state = optimiser.init(params)
    for step in range(1, steps + 1):
        _, pullback = objective.loss(model, params, objective.batch(batch, rng))
        grads, _ = clip(pullback(np.ones((), np.float32)), 1.0)
        params, state = optimiser.update(params, grads, state, schedule(step))
    return params


class ByteParams(NamedTuple):
    """Embeddings (256, D), the trees of the layers, and the linear layer to the logits of the next byte."""

    E: Array
    layers: tuple[Tree, ...]
    W: Array
    b: Array


class BytePullback(Pullback):
    """From the gradient of the logits back through the linear layer, the layers and the embedding."""

    embedding: EmbeddingPullback
    layers: Pullback
    linear: LinearPullback

    def __call__(self, dlogits: Array) -> ByteParams:
        dY, dW, db = self.linear(dlogits)
        dlayers, dX = self.layers(dY)
        return ByteParams(self.embedding(dX), dlayers, dW, db)


@dataclass(frozen=True)
class ByteModel:
    """A language model of bytes: an embedding, these causal layers, and a linear layer to the logits of the next byte."""

    layers: tuple[Any, ...]

    def init(self, rng: np.random.Generator) -> ByteParams:
        """Rows of E have a length of about 3; W is small, so that all bytes are about equally likely at first."""
        E, W = (rng.standard_normal(shape, np.float32) / 8 for shape in ((256, WIDTH), (WIDTH, 256)))
        return ByteParams(3 * E, tuple(layer.init(rng) for layer in self.layers), W / 3, np.zeros(256, np.float32))

    def __call__(self, params: ByteParams, tokens: Array, *, rng: Any = None) -> tuple[Array, BytePullback]:
        """Logits of the byte after each."""
        X, embedded = embedding(tokens, params.E)
        Y, layers = chain(*self.layers)(params.layers, X)
        logits, out = linear(Y, params.W, params.b)
        return logits, BytePullback(embedded, layers, out)


MODELS = {
    "GRU": ByteModel((GRU(WIDTH, WIDTH),)),
    "attention": ByteModel(  # rung 9 of chapter 01's ladder, but causal, and with positions from sinusoids
        (Candidates(WIDTH, WIDTH), SinusoidalPositions(WIDTH), Attend(WIDTH, HEADS), After(WIDTH, 4 * WIDTH))
    ),
}
