"""What a learned table of positions becomes if most of its training sees only its first rows, as BERT's did.

One model reads short passages for nine tenths of its steps and long ones for the rest; another, equal in everything else,
reads long ones from the beginning. Both read the same number of bytes in every step.
"""

from dataclasses import dataclass
from typing import NamedTuple

from minitransformer.data.text import Text
from minitransformer.models import LanguageModel
from minitransformer.training.loop import start, train
from minitransformer.training.objective import NextByte
from minitransformer.training.schedule import Cosine
from minitransformer.training.state import Training
from minitransformer.typing import Array


@dataclass(frozen=True)
class TwoPhase:
    """The choices: half a minute on two cores.

    short, long    bytes in a passage
    share          of the steps that read short ones
    steps, batch   updates, and long passages in one of them; of short ones there are more, for the same number of bytes
    lr, floor      of the cosine, at its top and at its end: phase two still learns, at a twentieth of the rate
    width, depth, heads, hidden    of the model
    """

    short: int = 32
    long: int = 96
    share: float = 0.9
    steps: int = 1500
    batch: int = 4
    lr: float = 2e-2
    floor: float = 1e-3
    width: int = 32
    depth: int = 1
    heads: int = 2
    hidden: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.short <= self.long or self.long % self.short:
            raise ValueError(f"short: {self.short} is not a divisor of {self.long}, the length of the long passages")
        if not 0 < self.share < 1:
            raise ValueError(f"share: {self.share} is not between 0 and 1")


class PositionTables(NamedTuple):
    """The record: Π (long, D) at the start and at the end of each training, and bits per held-out byte at the end."""

    choices: TwoPhase
    fresh: Array
    two_phase: Array
    full: Array
    bits: dict[str, float]


def position_tables(choices: TwoPhase, text: Text) -> PositionTables:
    """Train both models from the same start.

    raises   ValueError if the text is too short for a long passage
    """
    c = choices
    model = LanguageModel(
        context=c.long,
        width=c.width,
        depth=c.depth,
        heads=c.heads,
        hidden=c.hidden,
        positions="learned",
        activation="relu",
    )
    schedule = Cosine(c.lr, c.steps, c.steps // 10, c.floor)
    short = Training(
        round(c.share * c.steps), c.batch * c.long // c.short, schedule, parts=1, seed=c.seed, look_every=c.steps
    )
    long = Training(c.steps, c.batch, schedule, parts=1, seed=c.seed, look_every=c.steps)
    read_short, read_long = NextByte(text, c.short), NextByte(text, c.long)

    fresh = start(model, long)
    two = train(model, read_short, short, state=fresh, progress=False)
    two = train(model, read_long, long, state=two, progress=False)  # goes on at the step where the first one ended
    full = train(model, read_long, long, state=fresh, progress=False)
    fresh_table, two_table, full_table = (state.params.positions.table for state in (fresh, two, full))
    bits = {"two phases": two.held_out[-1][1], "full length": full.held_out[-1][1]}
    return PositionTables(c, fresh_table, two_table, full_table, bits)
