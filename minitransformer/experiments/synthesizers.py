"""What can weights do that don't look at the keys? The same pairs and questions twice: once the key matters, once the place.

A sequence is eight tokens that each stand for a pair of a key and a value, and then eight tokens that name a key. By content,
the answer to a question is the value of the pair with its key. By place, it is the value of the pair at a place that depends on
the place of the question alone, whatever its key is. There is one block, so that a source of weights can't find in another layer
what it does not see itself.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.arrays import orders
from minitransformer.experiments.which import BAG, even, learned
from minitransformer.models import SequenceModel
from minitransformer.pullback import Tree
from minitransformer.training.loop import start, train
from minitransformer.training.objective import DrawnTask
from minitransformer.training.recipes import usual_training
from minitransformer.typing import Array

IN_A_TEST = {"steps": 2}
PAIRS, KEYS, VALUES = 8, 32, 8
JUDGED = 512  # sequences
# Dense attention; a network that sees one token; tables of places, learned and as drawn; both sorts of weights; one mean of all.
KINDS = {
    "dot product": "softmax",
    "dense": "synthesizer",
    "random": "synthesizer:kind=random",
    "random, not learned": "synthesizer:kind=random,learned=False",
    "dense + dot product": "synthesizer:mixture=gated",
    BAG: "synthesizer:kind=random,learned=False",
}


@dataclass(frozen=True)
class Trial:
    """One training: question is "content" or "place"."""

    question: str
    kind: str
    seed: int
    steps: int = 300


def trials() -> list[Trial]:
    """Three seeds each; by content some of them also for three times as long."""
    short = [Trial(question, kind, seed) for question in ("content", "place") for kind in KINDS for seed in range(3)]
    return short + [Trial("content", kind, seed, 900) for kind in ("dot product", "dense", BAG) for seed in range(3)]


def run(trial: Trial) -> dict[str, Any]:
    """The part of the values that are right, and how many numbers the model learns."""
    task = Questions(trial.question)
    model, params = fit(trial.kind, task, trial.seed, trial.steps)
    tokens, values = task.batch(JUDGED, np.random.default_rng(2**32))
    said = model(params, tokens)[0][:, -PAIRS:].argmax(-1)
    return {"right": round(float((said == values).mean()), 4), "learned": learned(model)}


def fit(kind: str, task: "Questions", seed: int, steps: int) -> tuple[SequenceModel, Tree]:
    """A model of one block with two heads, and its parameters after this many steps of 64 sequences."""
    model = SequenceModel(
        KEYS * (VALUES + 1), 2 * PAIRS, 32, 1, 2, 64, attention=KINDS[kind], positions="learned", outputs=VALUES
    )
    training = usual_training(steps, 64, 1e-2, seed)
    state = start(model, training)
    if kind == BAG:
        state = state._replace(params=even(state.params))
    return model, train(model, task, training, state=state, progress=False).params


@dataclass(frozen=True)
class Questions(DrawnTask):
    """Pairs as one token each, all keys different, and then all their keys in another order."""

    question: str

    @property
    def length(self) -> int:
        """Values to be said."""
        return PAIRS

    @property
    def places(self) -> Array:
        """Which pair the question at each place is about, if only the place matters: an order drawn once."""
        return np.random.default_rng(0).permutation(PAIRS)

    def batch(self, size: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Tokens (size, 16): key · 8 + value for a pair, 256 + key for a question; and the values of the last eight."""
        keys = orders(rng, size, KEYS)[:, :PAIRS]
        values = rng.integers(0, VALUES, keys.shape)
        asked = orders(rng, size, PAIRS)
        questions = KEYS * VALUES + np.take_along_axis(keys, asked, 1)
        tokens = np.concatenate([keys * VALUES + values, questions], 1)
        return tokens, np.take_along_axis(values, asked, 1) if self.question == "content" else values[:, self.places]
