"""Learning rates over time. A schedule is called with the number of the step, the first being 1."""

import math

from minitransformer.checks import choose, frozen
from minitransformer.ranges import NonNegative, NonNegativeNumber, PositiveNumber, Rounds


@frozen
class Noam:
    """The original transformer's: up in a straight line, then down with the root of the step.

        rate(s) = factor · D^−½ · min(s^−½, s · warmup^−3/2)

    The two curves meet at s = warmup, where the rate is largest.
    source   Vaswani et al. 2017, section 5.3
    """

    width: int
    warmup: int = 4000
    factor: PositiveNumber = 1.0

    def __call__(self, step: int) -> float:
        """The rate of this step."""
        choose("step", step, int)
        return self.factor * self.width**-0.5 * min(step**-0.5, step * self.warmup**-1.5)


@frozen
class Cosine:
    """Up in a straight line, then down along half a cosine to `floor`, which is reached at the last step.

    rate(s) = peak · s / warmup,                                            s ≤ warmup
    rate(s) = floor + ½ (peak − floor) (1 + cos π (s − warmup)/(steps − warmup))

    Where all steps are warmup there is no way down: the last step has the rate `peak`.
    raises   ValueError for a warmup that is longer than the steps
    """

    peak: PositiveNumber
    steps: Rounds
    warmup: NonNegative = 0
    floor: NonNegativeNumber = 0.0

    def __post_init__(self) -> None:
        if self.warmup > self.steps:
            raise ValueError(f"warmup: {self.warmup} is not within 0 … {self.steps}, the number of steps")

    def __call__(self, step: int) -> float:
        """The rate of this step; `floor` after the last."""
        choose("step", step, int)
        if step < self.warmup:
            return self.peak * step / self.warmup
        along = min((step - self.warmup) / max(self.steps - self.warmup, 1), 1.0)
        return self.floor + (self.peak - self.floor) * (1 + math.cos(math.pi * along)) / 2


Schedule = Noam | Cosine
