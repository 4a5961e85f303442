"""Do heads that may look anywhere in a picture become shifts, as those of a convolution are? Digits of 8 × 8 pixels.

Four models of two blocks with nine heads read a picture pixel by pixel, and say what it shows. They differ in their scores:

    shifts           the nine offsets of a 3 × 3 kernel, fixed: a convolution, whose kernel is what W_v and W_o learn
    places           a number for each offset, learned, and no content
    both             the same, and content
    content          no places at all

A table of offsets has a learning rate of its own, ten times that of the rest: with the same one, a number could not come far
enough from zero to single out a pixel in so few steps.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.data.digits import digits
from minitransformer.functional import cross_entropy, softmax
from minitransformer.measurements.rows import in_use
from minitransformer.models import SequenceModel
from minitransformer.pullback import Tree, tree_get, tree_set, tree_size
from minitransformer.training.optimiser import AdamW
from minitransformer.training.schedule import Cosine
from minitransformer.typing import Array

IN_A_TEST = {"steps": 2}
KINDS = ("shifts", "places", "both", "content")
SIDE, HEADS, DEPTH = 8, 9, 2
HEIGHT = 12.0  # of a fixed offset, beside which all others have 0: its pixel gets nearly all the weight
FASTER = 10  # how many times the learning rate of the rest a table has
TABLES = tuple(f"stack.blocks.{k}.attention.core.table" for k in range(DEPTH))
OFFSETS = [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1)]


@dataclass(frozen=True)
class Trial:
    """One training of one of the four models."""

    kind: str
    seed: int
    steps: int = 600
    batch: int = 16


def trials() -> list[Trial]:
    """Three seeds for each model."""
    return [Trial(kind, seed) for seed in range(3) for kind in KINDS]


def model_of(kind: str) -> SequenceModel:
    """Seventeen levels of grey are the vocabulary, 64 pixels the text, ten digits the answers."""
    positions = "none" if kind == "content" else f"grid:columns={SIDE}"
    sizes: dict[str, Any] = {"context": SIDE * SIDE, "width": 36, "depth": DEPTH, "heads": HEADS, "hidden": 72}
    return SequenceModel(17, **sizes, positions=positions, outputs=10)


def drawn(kind: str, rng: np.random.Generator) -> Tree:
    """Parameters before the first step. Where W_q and W_k are zero their gradients are, too: content never comes in."""
    params = model_of(kind).init(rng)
    for path in TABLES if kind == "shifts" else ():
        table = np.zeros_like(tree_get(params, path))
        for h, (y, x) in enumerate(OFFSETS):
            table[h, SIDE - 1 + y, SIDE - 1 + x] = HEIGHT
        params = tree_set(params, path, table)
    for k in range(DEPTH) if kind in ("shifts", "places") else ():
        for name in ("W_q", "W_k", "b_q", "b_k"):
            path = f"stack.blocks.{k}.attention.{name}"
            params = tree_set(params, path, np.zeros_like(tree_get(params, path)))
    return params


def tokens_of(images: Array) -> Array:
    """Pixels in a line, from 0 for paper to 16 for ink."""
    return np.round(16 * images).astype(np.int64).reshape(len(images), -1)


def weights(table: Array) -> Array:
    """What the pixel in row 4 and column 4, counted from 0, gives to each pixel, by its place alone, (H, 8, 8)."""
    seen = table[:, SIDE - 5 : 2 * SIDE - 5, SIDE - 5 : 2 * SIDE - 5]
    return softmax(seen.reshape(HEADS, -1).astype(np.float64))[0].reshape(HEADS, SIDE, SIDE)


def right(model: SequenceModel, params: Tree, images: Array, labels: Array) -> float:
    """The share of pictures that the mean over the pixels gets right."""
    found = [model(params, tokens_of(images[k : k + 60]))[0].mean(-2).argmax(-1) for k in range(0, len(images), 60)]
    return float((np.concatenate(found) == labels).mean())


def run(trial: Trial) -> dict[str, Any]:
    """How many held-out pictures are told; and of each layer, before and after, what the middle pixel looks at by place."""
    learn, judge = digits()
    model, rng = model_of(trial.kind), np.random.default_rng([trial.seed, 15])
    params, optimiser, schedule = drawn(trial.kind, rng), AdamW(), Cosine(5e-3, trial.steps, warmup=trial.steps // 10)
    state = optimiser.init(params)
    for step in range(1, trial.steps + 1):
        chosen = rng.integers(0, len(learn.labels), trial.batch)
        logits, pullback = model(params, tokens_of(learn.images[chosen]))
        _, back = cross_entropy(logits.mean(-2), learn.labels[chosen])
        dlogits = np.broadcast_to(back(np.float32(1))[:, None] / logits.shape[-2], logits.shape)
        new, state = optimiser.update(params, pullback(dlogits), state, schedule(step))
        for path in () if trial.kind == "content" else TABLES:
            old = tree_get(params, path)
            speed = 0 if trial.kind == "shifts" else FASTER
            new = tree_set(new, path, old + np.float32(speed) * (tree_get(new, path) - old))
        params = new
    found: dict[str, Any] = {
        "parameters": tree_size(params),
        "right": round(right(model, params, *judge), 4),
        "right in training": round(right(model, params, *learn), 4),
    }
    if trial.kind != "content":
        A = np.stack([weights(tree_get(params, path)) for path in TABLES])
        flat = A.reshape(DEPTH, HEADS, -1)
        found["largest"] = flat.max(-1).round(4).tolist()
        found["pixels"] = in_use(flat).round(2).tolist()
        found["A"] = A.round(4).tolist() if trial.seed == 0 else None
    return found
