"""Rotary positions beyond the length that a model was trained on: the frequencies are changed, the weights are not.

At positions that were never seen, pairs of channels turn to angles that were never seen. A factor s says how much longer
the text may be than in training; the six ways below differ in which frequencies they lower. With s = 1 nothing changes, except
with DynamicNTK, and with LongRoPE, whose lists are as they are.

    PositionInterpolation    every frequency divided by s: positions are squeezed into the old range
    NTK                      the first not at all, the last by s, those between in equal steps of the logarithm
    DynamicNTK               the same, with an s that grows with the text; none up to the old length
    YaRN                     those that turn often not at all, those that turn less than once by s, and larger scores
    Llama3                   the same with another ramp between the two, and no larger scores
    LongRoPE                 each by a number of its own, which a search has found

Each is called with (d, base, length) and gives the d/2 frequencies and a factor for queries and keys; where the
length makes no difference, `fixed` says so. One of them is passed as RoPE(d, scaling=…).
source   the formulas are those of `modeling_rope_utils.py` in huggingface/transformers
"""

import math
from collections.abc import Callable
from typing import Annotated

import numpy as np

from minitransformer.checks import frozen
from minitransformer.positions.absolute import angular_frequencies, must_be_even
from minitransformer.ranges import PositiveNumber, Range, so_many
from minitransformer.typing import Array, checked

Factor = Annotated[float, Range("at least 1, so that texts can be longer than in training", lambda x: x >= 1)]
Scaling = Callable[[int, float, int], tuple[Array, float]]  # (d, base, length) → (frequencies, magnitude)


@checked
def rope_frequencies(d: int, base: PositiveNumber = 10000.0) -> Array:
    """ω_f = base^(−2f/d), f = 0 … d/2 − 1, as in sinusoids: the angle by which pair f turns from one position to the next."""
    must_be_even(d, "d")
    return angular_frequencies(d, base=base)


def _must_rise(slow: float, fast: float) -> None:
    if slow >= fast:
        raise ValueError(f"slow and fast: {slow} and {fast} should be in rising order")


@frozen
class PositionInterpolation:
    """ω_f / s for every f: position i is seen as i/s.

    factor   s
    source   Chen et al. 2023
    """

    factor: Factor

    fixed = True

    def __call__(self, d: int, base: float, length: int) -> tuple[Array, float]:
        return rope_frequencies(d, base) / self.factor, 1.0


@frozen
class NTK:
    """ω_f for the base · s^(d/(d−2)): the highest frequency stays 1, the lowest is divided by exactly s.

    factor   s
    source   NTK-aware scaling
    raises   ValueError for d < 4
    """

    factor: Factor

    fixed = True

    def __call__(self, d: int, base: float, length: int) -> tuple[Array, float]:
        if d < 4:
            raise ValueError(f"d: {d} should be at least 4, for NTK keeps the highest frequency and divides the lowest")
        return rope_frequencies(d, base * self.factor ** (d / (d - 2))), 1.0


@frozen
class DynamicNTK:
    """NTK with the factor s L/L₀ − (s − 1) for a text of length L > L₀, and with 1 up to L₀.

    With s = 1 that is L/L₀, as much as is needed. The frequencies depend on the length of the whole text, so a longer
    text changes earlier rows too, also in causal attention.
    factor    s
    trained   L₀, the length in training
    source    dynamic NTK scaling
    raises    ValueError for d < 4
    """

    factor: Factor
    trained: int

    def __call__(self, d: int, base: float, length: int) -> tuple[Array, float]:
        stretch = self.factor * max(length, self.trained) / self.trained - (self.factor - 1)
        return NTK(max(stretch, 1.0))(d, base, length)  # rounding may have left a little less than 1


@frozen
class Llama3:
    """ω_f (1 − r_f) + ω_f r_f / s, where r_f falls from 1 to 0 as pair f turns from `slow` to `fast` times in the trained length.

    factor    s
    trained   L₀, the length in training; pair f turns L₀ ω_f / 2π times in it
    source    the published code of Llama 3.1; Grattafiori et al. 2024 give the base alone
    """

    factor: Factor
    trained: int
    fast: PositiveNumber = 4.0
    slow: PositiveNumber = 1.0

    fixed = True

    def __post_init__(self) -> None:
        _must_rise(self.slow, self.fast)

    def __call__(self, d: int, base: float, length: int) -> tuple[Array, float]:
        omega = rope_frequencies(d, base)
        turns = self.trained * omega / (2 * math.pi)
        r = np.clip((self.fast - turns) / (self.fast - self.slow), 0, 1)
        return omega * (1 - r * (1 - 1 / self.factor)), 1.0


@frozen
class YaRN:
    """ω_f (1 − r_f) + ω_f r_f / s, and cos and sin times 0.1 ln s + 1, so that scores get its square.

    r_f rises from 0 to 1 between the pair that turns `fast` times within the trained length and that which turns `slow`
    times. Pair number d ln(L₀/(2π β)) / (2 ln base) turns β times; the first is rounded down, the second up.
    factor    s
    trained   L₀, the length in training
    source    Peng et al. 2023
    """

    factor: Factor
    trained: int
    fast: PositiveNumber = 32.0
    slow: PositiveNumber = 1.0

    fixed = True

    def __post_init__(self) -> None:
        _must_rise(self.slow, self.fast)

    def __call__(self, d: int, base: float, length: int) -> tuple[Array, float]:
        low, high = (
            d * math.log(self.trained / (2 * math.pi * turns)) / (2 * math.log(base))
            for turns in (self.fast, self.slow)
        )
        low, high = np.clip([math.floor(low), math.ceil(high)], 0, d - 1)
        r = np.clip((np.arange(d // 2) - low) / max(high - low, 0.001), 0, 1)  # a step, if both are the same pair
        return rope_frequencies(d, base) * (1 - r * (1 - 1 / self.factor)), 0.1 * math.log(self.factor) + 1


@frozen
class LongRoPE:
    """ω_f / λ_f for a list λ that was searched for, and cos and sin times √(1 + ln s / ln L₀), so that scores get its square.

    There is a list for texts longer than L₀, and one for all others. So the frequencies change when a text outgrows L₀, also
    for its earlier rows, and keys that were turned before can't be kept.
    factor    s, which here makes the magnitude alone: the lists come from a search, which is no part of the book
    trained   L₀ > 1, the length in training
    long      λ_f in a longer text, a number for each pair
    short     λ_f up to L₀; None for ones
    source    Ding et al. 2024, whose published models have two lists; the magnitude as in `modeling_rope_utils.py`
    raises    ValueError for a list of another length than there are pairs, and for L₀ = 1
    """

    factor: Factor
    trained: int
    long: tuple[PositiveNumber, ...]
    short: tuple[PositiveNumber, ...] | None = None

    def __post_init__(self) -> None:
        if self.trained < 2:
            raise ValueError(f"trained: {self.trained} should be at least 2, for its logarithm divides")

    def __call__(self, d: int, base: float, length: int) -> tuple[Array, float]:
        omega = rope_frequencies(d, base)
        for name, factors in (("long", self.long), ("short", self.short)):
            if factors is not None and len(factors) != len(omega):
                raise ValueError(
                    f"{name}: {so_many(len(factors), 'number')} for {so_many(len(omega), 'pair')} of channels"
                )
        factors = self.long if length > self.trained else self.short
        magnitude = math.sqrt(1 + math.log(self.factor) / math.log(self.trained))
        return omega if factors is None else omega / np.array(factors), magnitude
