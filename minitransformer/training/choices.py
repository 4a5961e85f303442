"""The choices of a run, which never change while it runs."""

from dataclasses import field

from minitransformer.checks import frozen
from minitransformer.ranges import Largest, Rounds, Seed
from minitransformer.training.optimiser import AdamW
from minitransformer.training.schedule import Schedule


@frozen
class Training:
    """The choices of a run. With the same ones, the same text and the same machine, a run gives the same numbers.

    steps          number of updates
    batch          samples in one update
    schedule       learning rate over the steps
    optimiser      AdamW
    clip           largest norm of a gradient
    parts          that a batch is cut into; computed side by side, one on each core
    seed           everything random in step s is drawn from `np.random.default_rng([seed, s, …])`
    look_every     steps between two evaluations on held-out data
    save_every     steps between two checkpoints
    raises         ValueError for a batch that can't be cut into so many equal parts
    """

    steps: Rounds
    batch: int
    schedule: Schedule
    optimiser: AdamW = field(default_factory=AdamW)
    clip: Largest = 1.0
    parts: int = 4
    seed: Seed = 0
    look_every: int = 100
    save_every: int = 100

    def __post_init__(self) -> None:
        if self.batch % self.parts:
            raise ValueError(f"parts: a batch of {self.batch} can't be cut into {self.parts} equal ones")
