"""Which attention learns what? Every registered one in the same small model, on four tasks, beside a bag of tokens.

Two blocks of width 32 with two heads and sinusoidal positions, as many parameters as with dense attention (the feed-forward
network is made narrower or wider), as many steps, one learning rate for all.

    text       the next byte of the Python documentation, from up to 64 before it             bits per byte
    recall     8 pairs of a key and a value, one token each, somewhere in 64 tokens; their values are asked for at the end
    digits     handwritten digits of 8 × 8 pixels, read pixel by pixel
    listops    nested minima and maxima of digits, of 8 to 17 tokens

The last two are miniatures of tasks of the Long Range Arena. Kinds that can be causal are so in `text` and `recall`; in the
others they see both sides, if they can. What can't be causal does not read the text, and sees both sides in `recall`. A class
is read off the mean of the logits of all tokens.

A window of radius 32 leaves most pairs of 64 tokens in sight. So whatever has a budget of keys sees about 8 to 16 of them here
(`SMALL`).
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from minitransformer.arrays import orders
from minitransformer.attention.registry import ATTENTIONS, EXAMPLE, attention_of
from minitransformer.data.digits import digits
from minitransformer.data.listops import VOCABULARY, listops
from minitransformer.data.text import python_docs
from minitransformer.experiments.heads_on_digits import tokens_of
from minitransformer.functional import CrossEntropyPullback, cross_entropy
from minitransformer.models import SequenceModel
from minitransformer.models.sequence_model import Outputs
from minitransformer.pullback import Pullback, Tree, tree_get, tree_set, tree_size
from minitransformer.training.loop import TrainingDiverged, start, train
from minitransformer.training.objective import DrawnTask, LossPullback, NextByte
from minitransformer.training.recipes import usual_training
from minitransformer.typing import Array

GROWS = True  # a kind that is registered later has no trials in the record yet
IN_A_TEST = {"steps": 2}
WIDTH, HEADS, DEPTH = 32, 2, 2
HIDDEN, LEAST = 128, 8  # width of the feed-forward networks: beside dense attention, and the least that any model has
SEEDS = 3
BAG = "bag of tokens"
SMALL = {  # about 8 to 16 keys for a query that sees both sides, where a kind has such a choice
    "pooled": "block=8,window=8",
    "linformer": "k=8",
    "nystrom": "landmarks=8,taps=9",
    "local": "block=8",
    "window": "radius=4",
    "sinks": "first=2,last=8",
    "strided": "stride=8",
    "fixed": "block=8",
    "longformer": "radius=4",
    "etc": "radius=4,global_tokens=2",
    "bigbird": "block=2",
    "span": "ramp=8",
    "reformer": "chunk=8",
    "sinkhorn": "block=8",
    "moba": "block=4",
    "nsa": "block=4,chosen=4,window=4",
    "indexer": "chosen=8",
    "gat": "radius=4",
    "gcn": "radius=4",
}
KEYS, VALUES, PAIRS = 16, 8, 8  # of recall


@dataclass(frozen=True)
class Trial:
    """One training of a registered attention, with its options, or of the bag of tokens."""

    attention: str
    task: str
    seed: int
    steps: int

    @property
    def name(self) -> str:
        """The name under which it is registered, without options."""
        return self.attention.partition(":")[0]


def trials() -> list[Trial]:
    """Task after task, seed after seed: all that are registered, where they can be causal if need be, and the bag."""
    found = []
    for task, kind in TASKS.items():
        names = [*(name for name in ATTENTIONS if kind.takes(name)), BAG]
        chosen = [f"{name}:{SMALL[name]}" if name in SMALL else name for name in names]
        for seed in range(SEEDS):
            found += [Trial(name, task, seed, kind.steps) for name in chosen]
    return found


def run(trial: Trial) -> dict[str, Any]:
    """Train, and judge on what was held out.

    score        bits per byte for `text`, else the share of right answers
    parameters   how many numbers the model learns
    causal       whether it is causal
    diverged     the step at which the training diverged; 0 if it did not
    """
    return trained(model_of(trial.attention, TASKS[trial.task]), trial)


def trained(model: SequenceModel, trial: Trial) -> dict[str, Any]:
    """What `run` keeps of this model, trained as the trial says."""
    task = TASKS[trial.task]
    training = usual_training(trial.steps, task.size, task.rate, trial.seed)
    state = start(model, training)
    if trial.attention == BAG:
        state = state._replace(params=even(state.params))
    found: dict[str, Any] = {"score": task.chance, "parameters": learned(model), "causal": model.causal, "diverged": 0}
    try:
        params = train(model, task.objective, training, state=state, progress=False).params
    except TrainingDiverged as diverged:
        return found | {"diverged": diverged.step}
    return found | {"score": round(task.judge(model, params), 4)}


def even(params: Tree) -> Tree:
    """The parameters with equal logits in every layer of the bag of tokens, whose tables no step changes."""
    for k in range(len(params.stack.blocks)):
        path = f"stack.blocks.{k}.attention.core.logits.R"
        params = tree_set(params, path, np.zeros_like(tree_get(params, path)))
    return params


def model_of(attention: str, task: "Task", positions: str = "sinusoidal") -> SequenceModel:
    """The model, with as many parameters as that of dense attention, as nearly as its feed-forward networks can make it."""
    wanted = learned(_model("softmax", task, HIDDEN))
    model = _model(attention, task, HIDDEN, positions)
    more = round((wanted - learned(model)) / (DEPTH * (2 * WIDTH + 1)))
    return replace(model, hidden=max(LEAST, HIDDEN + more))


def learned(model: SequenceModel) -> int:
    """How many numbers it learns."""
    params = model.init(np.random.default_rng(0))
    return tree_size(params) - sum(tree_size(tree_get(params, path)) for path in model.untrained)


def _model(attention: str, task: "Task", hidden: int, positions: str = "sinusoidal") -> SequenceModel:
    """The model with networks of this hidden width; causal if the attention has to be, or the task wants it and it can be."""
    bag = attention == BAG
    attention = "synthesizer:kind=random,learned=False" if bag else attention
    part = attention_of(attention, EXAMPLE)
    sizes: dict[str, Any] = {"context": task.n, "width": WIDTH, "depth": DEPTH, "heads": HEADS, "hidden": hidden}
    return SequenceModel(
        task.vocabulary,
        **sizes,
        attention=attention,
        positions="none" if bag else positions,
        causal=part.causal == "always" or (task.causal and part.causal != "never"),
        outputs=task.outputs,
    )


# ------------------------------------------------------------------------------------------------ tasks


class Batch(NamedTuple):
    """Tokens (size, n), and what should be said of them: a class (size,), or of the last tokens (size, asked)."""

    tokens: Array
    targets: Array


class MeanPullback(Pullback):
    """The answer is the mean of the logits of n tokens, so each of them gets the n-th part of its gradient."""

    cross_entropy: CrossEntropyPullback
    n: int

    def __call__(self, dloss: Array) -> Array:
        danswer = self.cross_entropy(dloss)
        return np.repeat(danswer[:, None] / danswer.dtype.type(self.n), self.n, 1)


@dataclass(frozen=True)
class Task(DrawnTask):
    """What is the same in all tasks.

    n, size, steps        tokens of a sequence, sequences of a step, steps of a training
    vocabulary, outputs   of the model; "tied" for the next token
    rate                  the highest learning rate
    causal                whether kinds that can be causal are so
    chance                what is kept of a training that diverged
    judged                sequences that are drawn to be judged by
    """

    n: int
    size: int
    steps: int
    vocabulary: int
    outputs: Outputs
    rate: float = 1e-2
    causal: bool = False
    chance: float = 0.0
    judged: int = 1000

    def takes(self, name: str) -> bool:
        """Whether this attention can be run on it."""
        return True

    @property
    def objective(self) -> Any:
        """What the training loop asks."""
        return self

    @property
    def length(self) -> int:
        """One answer for a sequence, as far as the progress bar is concerned."""
        return 1

    def batch(self, size: int, rng: np.random.Generator) -> Batch:
        """A batch to learn from."""
        raise TypeError(f"{type(self).__name__} does not say what a batch is")

    def held_out(self) -> Batch:
        """What it is judged by: drawn with a generator that no training has."""
        return self.batch(self.judged, np.random.default_rng(2**32))

    def answers(self, logits: Array, targets: Array) -> Array:
        """The logits that are compared with the targets."""
        return logits.mean(1) if targets.ndim == 1 else logits[:, -targets.shape[1] :]

    def loss(
        self, model: Any, params: Tree, batch: Batch, rng: np.random.Generator | None = None
    ) -> tuple[Any, LossPullback]:
        """Mean of −log P of the answers."""
        if batch.targets.ndim == 2:
            return super().loss(model, params, batch, rng)
        logits, pullback = model(params, batch.tokens, rng=rng)
        loss, back = cross_entropy(logits.mean(1), batch.targets)
        return loss, LossPullback(pullback, MeanPullback(back, logits.shape[1]))

    def look(self, model: Any, params: Tree) -> float:
        """0: nothing is measured during the training."""
        return 0.0

    def judge(self, model: Any, params: Tree) -> float:
        """The share of held-out answers that are right, read 50 sequences at a time."""
        tokens, targets = self.held_out()
        right = []
        for k in range(0, len(tokens), 50):
            some = targets[k : k + 50]
            right.append(self.answers(model(params, tokens[k : k + 50])[0], some).argmax(-1) == some)
        return float(np.concatenate(right).mean())


@dataclass(frozen=True)
class Reading(Task):
    """Predict the next byte of a text."""

    def takes(self, name: str) -> bool:
        """Whether this attention can be causal."""
        return attention_of(name, EXAMPLE).causal != "never"

    @cached_property
    def objective(self) -> NextByte:
        """`NextByte` on the documentation inside Python."""
        return NextByte(python_docs(), self.n)

    def judge(self, model: Any, params: Tree) -> float:
        """Bits per byte of all of the held-out text."""
        return float(self.objective.bits(model, params).mean())


@dataclass(frozen=True)
class Recall(Task):
    """Pairs somewhere among tokens that say nothing; at the end their keys, in another order.

    · · a3 · b7 · · · c1 · ·   b a c          answers 7 3 1
    """

    def batch(self, size: int, rng: np.random.Generator) -> Batch:
        """key · VALUES + value for a pair; then a token for each key that asks; and one that says nothing."""
        keys = orders(rng, size, KEYS)[:, :PAIRS]
        values, order = rng.integers(0, VALUES, keys.shape), orders(rng, size, PAIRS)
        tokens = np.full((size, self.n), KEYS * (VALUES + 1))
        places = np.sort(np.argsort(rng.random((size, self.n - PAIRS)), axis=1)[:, :PAIRS], axis=1)
        np.put_along_axis(tokens, places, keys * VALUES + values, 1)
        tokens[:, -PAIRS:] = KEYS * VALUES + np.take_along_axis(keys, order, 1)
        return Batch(tokens, np.take_along_axis(values, order, 1))


@dataclass(frozen=True)
class Pixels(Task):
    """Seventeen levels of grey are the vocabulary; digits the classes."""

    def batch(self, size: int, rng: np.random.Generator) -> Batch:
        """Some pictures of those to learn from, drawn with repeats."""
        learn, _ = digits()
        chosen = rng.integers(0, len(learn.labels), size)
        return Batch(tokens_of(learn.images[chosen]), learn.labels[chosen])

    def held_out(self) -> Batch:
        """The pictures that are not learned from."""
        images, labels = digits()[1]
        return Batch(tokens_of(images), labels)


@dataclass(frozen=True)
class Nested(Task):
    """What a nested expression comes to."""

    def batch(self, size: int, rng: np.random.Generator) -> Batch:
        """Drawn anew in every step."""
        return Batch(*listops(size, self.n, rng))


TASKS: dict[str, Task] = {
    "recall": Recall(64, 12, 300, KEYS * (VALUES + 1) + 1, VALUES, causal=True),
    "text": Reading(64, 8, 500, 256, "tied", rate=1.5e-2, causal=True, chance=8.0),
    "digits": Pixels(64, 16, 300, 17, 10),
    "listops": Nested(20, 32, 300, VOCABULARY, 10),
}
