"""What a model is trained to do: where its batches come from, its loss, and how it is evaluated on held-out data."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from minitransformer.checks import choose, frozen
from minitransformer.data import dates
from minitransformer.data.text import Text, counted, long_enough, passages, window_starts
from minitransformer.data.text import batch as draw
from minitransformer.functional import CrossEntropyPullback, cross_entropy
from minitransformer.pullback import Pullback, Tree
from minitransformer.ranges import so_many
from minitransformer.training.parallel import each
from minitransformer.typing import Array

QUICK_LOOK = 32  # windows
ROWS = 8  # windows in one forward pass


class LossPullback(Pullback):
    """The loss is a function of the logits, and these of the parameters: back through both.

    model           the pullback that the model has returned, which says what `after_step` has to know, and which losses are added
    cross_entropy   from dloss to dlogits, those of all rows
    """

    model: Pullback
    cross_entropy: Pullback

    def __call__(self, dloss: Array) -> Tree:
        return self.model(self.cross_entropy(dloss))


class LastRowsPullback(Pullback):
    """Only the last rows of the logits (batch, n, vocabulary) enter the loss: the gradient of the others is zero."""

    cross_entropy: CrossEntropyPullback
    shape: tuple[int, ...]

    def __call__(self, dloss: Array) -> Array:
        dlast = self.cross_entropy(dloss)
        dlogits = np.zeros(self.shape, dlast.dtype)
        dlogits[:, -dlast.shape[1] :] = dlast
        return dlogits


class Objective(Protocol):
    """What the training loop needs to know about a task."""

    @property
    def data(self) -> dict[str, Any]:
        """The kind, name and hash of the data, which identify it in a record."""

    @property
    def length(self) -> int:
        """Tokens to predict in one sample."""

    def batch(self, size: int, rng: np.random.Generator) -> Any:
        """A batch of random samples to train on: a tuple of arrays, with a row for each sample."""

    def loss(
        self, model: Any, params: Tree, batch: Any, rng: np.random.Generator | None = None
    ) -> tuple[Any, LossPullback]:
        """Mean cross-entropy in nats, and its pullback to the parameters, whose `model` is the pullback of the model itself."""

    def look(self, model: Any, params: Tree) -> float:
        """A quick measure on held-out data, in bits per token."""


class DrawnTask:
    """A base of tasks that draw their samples at random: they have no data but their name, and look at samples of their own.

    A batch begins with tokens (size, n) and targets (size, answers), what should be said in the last rows.
    """

    @property
    def data(self) -> dict[str, Any]:
        """The name of the task, with its sizes."""
        return {"task": type(self).__name__, "name": repr(self), "sha256": ""}

    def loss(
        self, model: Any, params: Tree, batch: Any, rng: np.random.Generator | None = None
    ) -> tuple[Any, LossPullback]:
        """Mean of −log P(target) in the last rows, and its pullback."""
        tokens, targets, *_ = batch
        logits, pullback = model(params, tokens, rng=rng)
        loss, back = cross_entropy(logits[:, -targets.shape[1] :], targets)
        return loss, LossPullback(pullback, LastRowsPullback(back, logits.shape))

    def look(self, model: Any, params: Tree) -> float:
        """Bits per answer on a hundred samples that are the same each time, and that training does not see."""
        task: Any = self
        return float(task.loss(model, params, task.batch(100, np.random.default_rng(2**32 + 1)))[0]) / math.log(2)


def in_parts(batch: Any, count: int) -> list[Any]:
    """The batch in `count` equal parts, each a tuple of the same type."""
    make = getattr(type(batch), "_make", tuple)
    return [make(arrays) for arrays in zip(*(np.split(array, count) for array in batch), strict=True)]


def loss_of(said: tuple[Array, Pullback], targets: Array, mask: Array | None = None) -> tuple[Any, LossPullback]:
    """Mean of −log P(target) by the logits of a model, over those that the mask lets count, and its pullback.

    said   what the model has returned: the logits, and their pullback to the parameters
    """
    logits, model = said
    loss, back = cross_entropy(logits, targets, mask=mask)
    return loss, LossPullback(model, back)


def bits_of(logits: Array, targets: Array) -> Array:
    """−log₂ P of each target."""
    logits = logits.astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    chosen = np.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return (np.log(np.exp(logits).sum(-1)) - chosen) / math.log(2)


@dataclass(frozen=True, eq=False)
class NextByte:
    """Predict each byte of a text from those before it.

    raises   ValueError if one of the two parts of the text is too short for the context
    """

    text: Text
    context: int

    def __post_init__(self) -> None:
        choose("text", self.text, Text)
        long_enough(self.text.train, self.context, f"{self.text.name}, training part")
        long_enough(self.text.held_out, self.context, f"{self.text.name}, held-out part")

    @property
    def data(self) -> dict[str, Any]:
        """The kind of the task, and the name and hash of the text."""
        return {"task": "text", "name": self.text.name, "sha256": self.text.sha256}

    @property
    def length(self) -> int:
        """A prediction at each position of the context."""
        return self.context

    def batch(self, size: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Inputs and targets, (size, context) each."""
        return draw(self.text.train, self.context, size, rng)

    def loss(
        self, model: Any, params: Tree, batch: tuple[Array, Array], rng: np.random.Generator | None = None
    ) -> tuple[Any, LossPullback]:
        """Mean of −log P(next byte)."""
        inputs, targets = batch
        return loss_of(model(params, inputs, rng=rng), targets)

    def look(self, model: Any, params: Tree) -> float:
        """Bits per byte on a few windows, evenly spread over the held-out text."""
        starts = window_starts(self.text.held_out, self.context)
        few = np.linspace(0, len(starts) - 1, min(QUICK_LOOK, len(starts))).astype(int)
        return float(self._bits(model, params, starts[few]).mean())

    def bits(self, model: Any, params: Tree) -> Array:
        """−log₂ P of every held-out byte but the first, (m − 1,), predicted from at least half a context, or all before it."""
        starts = window_starts(self.text.held_out, self.context)
        return self._bits(model, params, starts)[counted(starts, self.context)]

    def _bits(self, model: Any, params: Tree, starts: Array) -> Array:
        """−log₂ P of each target of the held-out windows that begin here, (starts, context); ROWS windows in a forward pass."""

        def part(some: Array) -> Array:
            inputs, targets = passages(self.text.held_out, some, self.context)
            return bits_of(model(params, inputs)[0], targets)

        return np.concatenate(list(each(part, [starts[k : k + ROWS] for k in range(0, len(starts), ROWS)])))


@dataclass(frozen=True, eq=False)
class Segments(NextByte):
    """The next byte of a text that is read on and on: for models with a memory, and for those that are compared with them.

    A batch of B samples is B streams through the text, which begin at equal distances. Step s reads segment s of each, and
    the model gets the memory that step s − 1 has left. After the last segment all streams begin again, without a
    memory.
    """

    def segment(self, size: int, step: int, carried: tuple[Array, ...]) -> tuple[Array, ...]:
        """Inputs and targets of step 1, 2, …, (size, context) each, and the memory of each block, if there is one."""
        stream = (len(self.text.train) - 1) // size
        if stream < self.context:
            raise ValueError(
                f"{self.text.name}: too short for {so_many(size, 'stream')} of {so_many(self.context, 'byte')}"
            )
        number = (step - 1) % (stream // self.context)
        starts = np.arange(size) * stream + number * self.context
        return (*passages(self.text.train, starts, self.context), *(carried if number else ()))

    def loss(
        self, model: Any, params: Tree, batch: tuple[Array, ...], rng: np.random.Generator | None = None
    ) -> tuple[Any, LossPullback]:
        """Mean of −log P(next byte)."""
        inputs, targets, *memory = batch
        return loss_of(model(params, inputs, rng=rng, memory=tuple(memory) or None), targets)

    def carry(self, pullback: LossPullback) -> tuple[Array, ...]:
        """The memory that the next segment finds; nothing, if the model has none."""
        return getattr(pullback.model.stack, "memory", ())

    def look(self, model: Any, params: Tree) -> float:
        """Bits per byte of a few segments of a few streams through the held-out text."""
        rows = min(ROWS, (len(self.text.held_out) - 1) // self.context)
        stream = (len(self.text.held_out) - 1) // rows
        some = min(QUICK_LOOK // ROWS, stream // self.context) * self.context
        both = np.stack([self.text.held_out[k * stream : k * stream + some + 1] for k in range(rows)])
        return float(np.mean(list(self._read(model, params, both))))

    def bits(self, model: Any, params: Tree) -> Array:
        """−log₂ P of every held-out byte but the first, read once, from the start to the end: (m − 1,)."""
        return np.concatenate(list(self._read(model, params, self.text.held_out[None])), -1)[0]

    def _read(self, model: Any, params: Tree, tokens: Array) -> Iterator[Array]:
        """Bits of the bytes of streams (rows, n + 1), segment by segment, each with the memory of those before."""
        memory = None
        for start in range(0, tokens.shape[-1] - 1, self.context):
            both = tokens[:, start : start + self.context + 1].astype(np.int64)
            logits, pullback = model(params, both[:, :-1], memory=memory)
            memory = getattr(pullback.stack, "memory", None)
            yield bits_of(logits, both[:, 1:])


@frozen
class WriteISO:
    """Translate a written date into ISO 8601, character by character."""

    data: ClassVar[dict[str, Any]] = {"task": "dates", "name": "written dates", "sha256": ""}  # drawn, not read
    length: ClassVar[int] = dates.ISO_LENGTH + 1  # the characters of an ISO date, and its end

    def batch(self, size: int, rng: np.random.Generator) -> dates.Dates:
        """Random dates of the training side."""
        return dates.sample(size, rng)

    def loss(
        self, model: Any, params: Tree, batch: dates.Dates, rng: np.random.Generator | None = None
    ) -> tuple[Any, LossPullback]:
        """Mean of −log P(next character), the right characters before it being given."""
        said = model(params, batch.source, batch.target[:, :-1], lengths=batch.lengths, rng=rng)
        return loss_of(said, batch.target[:, 1:])

    def look(self, model: Any, params: Tree) -> float:
        """Bits per character on a hundred held-out dates."""
        return float(self.loss(model, params, dates.held_out_set(100))[0]) / math.log(2)

    def translate(self, model: Any, params: Tree, written: Sequence[str]) -> list[str]:
        """The model's ISO dates, the most probable character at each step. Raises ValueError for an unknown character."""

        def part(texts: Sequence[str]) -> list[str]:
            source, lengths = dates.to_sources(texts)
            longest = dates.ISO_LENGTH + 1
            tokens = model.translate(params, source, begin=dates.BOS, end=dates.EOS, longest=longest, lengths=lengths)
            return [dates.decode(row) for row in tokens]

        parts = each(part, [written[k : k + QUICK_LOOK] for k in range(0, len(written), QUICK_LOOK)])
        return [answer for answers in parts for answer in answers]
