"""Does it help digits if the pieces of an image agree on what they see? Capsules with 1 to 5 rounds, beside plain networks."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from minitransformer.data.digits import Digits, digits
from minitransformer.functional import cross_entropy, linear, relu
from minitransformer.measurements.rows import in_use
from minitransformer.pullback import Tree, tree_size
from minitransformer.related import CapsuleClassifier, margin_loss
from minitransformer.training.optimiser import AdamW
from minitransformer.training.schedule import Cosine
from minitransformer.typing import Array

IN_A_TEST = {"epochs": 1}
CAPSULES = {"1 round": 1, "3 rounds": 3, "5 rounds": 5}
RATE = 0.03  # for each of them the best of 0.003, 0.01 and 0.03, with one seed or two
HIDDEN = 314  # of a network with nearly as many numbers as the capsules have, 23,560 and 23,584
BATCH = 50
KEPT = (0, 1, 2, 3)  # digits whose first image in the held-out part is kept with its routing


@dataclass(frozen=True)
class Trial:
    """One training: capsules, a network with one hidden layer, or a linear map."""

    model: str
    seed: int
    epochs: int = 15
    rate: float = RATE


def trials() -> list[Trial]:
    """Three seeds each; and again, all but the linear map, with twice the passes at a larger rate."""
    short = [Trial(model, seed) for model in (*CAPSULES, "network", "linear") for seed in range(3)]
    return short + [Trial(model, seed, 30, 0.1) for model in (*CAPSULES, "network") for seed in range(3)]


def capsules(rounds: int) -> CapsuleClassifier:
    """Nine pieces of 4 × 4 pixels with four capsules each, below ten of digits."""
    return CapsuleClassifier(iterations=rounds)


def plain(name: str, rng: np.random.Generator) -> Tree:
    """Weights and biases of each layer, uniform on ±√(3/width)."""
    widths = (64, HIDDEN, 10) if name == "network" else (64, 10)
    draw = [rng.uniform(-1, 1, (D, E)) * np.sqrt(3 / D) for D, E in pairwise(widths)]
    return [(W.astype(np.float32), np.zeros(W.shape[1], np.float32)) for W in draw]


def gradient(name: str, params: Tree, part: Digits) -> Tree:
    """The gradient of the mean loss of a batch: margins for capsules, cross-entropy for the others."""
    if name in CAPSULES:
        V, pullback = capsules(CAPSULES[name])(params, part.images)
        _, back = margin_loss(V, part.labels)
        return pullback(back(np.float32(1)))[0]
    logits, steps = forward(params, part.images)
    _, back = cross_entropy(logits, part.labels)
    dX, grads = back(np.float32(1)), []
    for layer, activation in reversed(steps):
        dX, *grad = layer(dX if activation is None else activation(dX))
        grads.append(tuple(grad))
    return grads[::-1]


def forward(params: Tree, images: Array) -> tuple[Array, list[Any]]:
    """Logits of a plain network, and the pullbacks of its layers."""
    X, steps = images.reshape(len(images), 64), []
    for k, (W, b) in enumerate(params):
        X, layer = linear(X, W, b)
        activation = None
        if k + 1 < len(params):
            X, activation = relu(X)
        steps.append((layer, activation))
    return X, steps


def answers(name: str, params: Tree, images: Array) -> Array:
    """The digit that each image is taken for."""
    if name not in CAPSULES:
        return forward(params, images)[0].argmax(-1)
    V, _ = capsules(CAPSULES[name])(params, images)
    return (V * V).sum(-1).argmax(-1)


def fit(name: str, seed: int, epochs: int, rate: float) -> Tree:
    """Parameters after this many epochs of the training images."""
    rng = np.random.default_rng(seed)
    learn, _ = digits()
    params = capsules(CAPSULES[name]).init(rng) if name in CAPSULES else plain(name, rng)
    optimiser, per_epoch = AdamW(), len(learn.labels) // BATCH
    schedule, state = Cosine(rate, epochs * per_epoch, warmup=per_epoch), optimiser.init(params)
    for step in range(epochs * per_epoch):
        if step % per_epoch == 0:
            order = rng.permutation(len(learn.labels))
        rows = order[step % per_epoch * BATCH :][:BATCH]
        grads = gradient(name, params, Digits(learn.images[rows], learn.labels[rows]))
        params, state = optimiser.update(params, grads, state, schedule(step + 1))
    return params


def run(trial: Trial) -> dict[str, Any]:
    """The part of the 360 held-out digits that is right; of capsules also the routing.

    learned   how many numbers the model learns
    sharing   how many outputs share an input in each round, exp of the entropy of c
    kept      of the first seed at the smaller rate, the weights c of the first image of each of KEPT, by round
    """
    params = fit(trial.model, trial.seed, trial.epochs, trial.rate)
    _, judged = digits()
    right = answers(trial.model, params, judged.images) == judged.labels
    found: dict[str, Any] = {"right": round(float(right.mean()), 4), "learned": tree_size(params)}
    if trial.model in CAPSULES:
        _, pullback = capsules(CAPSULES[trial.model])(params, judged.images)
        C = [c.astype(np.float64) for c in pullback.classes.routing.C]
        found["sharing"] = [round(float(in_use(c).mean()), 3) for c in C]
        first = [int(np.flatnonzero(judged.labels == digit)[0]) for digit in KEPT]
        found["kept"] = (
            [[c[k].round(3).tolist() for c in C] for k in first] if (trial.seed, trial.rate) == (0, RATE) else []
        )
    return found
