"""Dates as people write them, and as ISO 8601 has them: a small translation task with a right answer.

    "Wednesday, March 3rd, 2021"  ->  "2021-03-03"

The characters are the tokens. A date belongs to training or to the held-out set, never to both: no way of writing a
held-out date was seen in training.
"""

import calendar
import datetime
import string
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from minitransformer.ranges import Repeats
from minitransformer.typing import Array, checked

with calendar.different_locale("C"):  # type: ignore[arg-type]  # English names, whatever the reader's language
    MONTHS, WEEKDAYS = tuple(calendar.month_name), tuple(calendar.day_name)
    MON, WKD = tuple(calendar.month_abbr), tuple(calendar.day_abbr)

FIRST, LAST = datetime.date(1950, 1, 1), datetime.date(2049, 12, 31)
PAD, BOS, EOS = 0, 1, 2
CHARACTERS = " '(),-./" + string.digits + string.ascii_letters
VOCABULARY = 3 + len(CHARACTERS)
ISO_LENGTH = 10  # yyyy-mm-dd


@checked
def ordinal(day: int) -> str:
    """1st, 2nd, 3rd, 4th, … 11th, 12th, 13th, … 21st."""
    ending = "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{ending}"


# Every way of writing is unambiguous: dots and hyphens put the day first, slashes the month, and '50 … '49 is 1950 … 2049.
FORMATS: tuple[Callable[[datetime.date], str], ...] = (
    lambda d: f"{d.day} {MONTHS[d.month]} {d.year}",
    lambda d: f"{d.day:02d} {MON[d.month]} {d.year}",
    lambda d: f"{MONTHS[d.month]} {d.day}, {d.year}",
    lambda d: f"{MON[d.month]} {ordinal(d.day)}, {d.year}",
    lambda d: f"{WEEKDAYS[d.weekday()]}, {d.day} {MONTHS[d.month]} {d.year}",
    lambda d: f"{WKD[d.weekday()]} {d.day} {MON[d.month]} {d.year}",
    lambda d: f"{WEEKDAYS[d.weekday()]}, {MONTHS[d.month]} {ordinal(d.day)}, {d.year}",
    lambda d: f"the {ordinal(d.day)} of {MONTHS[d.month]} {d.year}",
    lambda d: f"{d.day} {MON[d.month]} '{d.year % 100:02d}",
    lambda d: f"{MONTHS[d.month].upper()} {d.day} {d.year}",
    lambda d: f"{d.year} {MON[d.month]} {d.day} ({WKD[d.weekday()]})",
    lambda d: f"{d.month}/{d.day}/{d.year}",
    lambda d: f"{d.day}.{d.month}.{d.year}",
    lambda d: f"{d.day:02d}.{d.month:02d}.{d.year % 100:02d}",
    lambda d: f"{d.day}-{MON[d.month].upper()}-{d.year}",
)


class Dates(NamedTuple):
    """A batch: what was written, padded, with its lengths; and BOS, the ISO date, EOS."""

    source: Array  # (count, m) int64
    lengths: Array  # (count,) int64
    target: Array  # (count, 12) int64

    @property
    def written(self) -> list[str]:
        """The sources as text."""
        return [decode(row) for row in self.source]

    @property
    def iso(self) -> list[str]:
        """The targets as text."""
        return [decode(row) for row in self.target]


@checked
def encode(text: str) -> list[int]:
    """Characters as tokens. Raises ValueError for a character that no date is written with."""
    for character in text:
        if character not in CHARACTERS:
            raise ValueError(f"text: no token for {character!r}; dates are written with {CHARACTERS}")
    return [3 + CHARACTERS.index(character) for character in text]


@checked
def decode(tokens: Sequence[int] | Array) -> str:
    """Tokens as text: up to EOS, without BOS and PAD.

    raises   ValueError for a token outside the vocabulary or tokens of several texts, TypeError for what are no whole numbers
    """
    if isinstance(tokens, np.ndarray) and tokens.ndim != 1:
        raise ValueError(f"tokens: shape {tokens.shape} should be that of one text, (n,)")
    text = ""
    for token in tokens:
        if not isinstance(token, (int, np.integer)):
            raise TypeError(f"tokens: {token!r} should be a whole number")
        if not 0 <= token < VOCABULARY:
            raise ValueError(f"tokens: {token} is outside the vocabulary 0 … {VOCABULARY - 1}")
        if token == EOS:
            break
        text += CHARACTERS[token - 3] if token > EOS else ""
    return text


@checked
def is_held_out(date: datetime.date) -> bool:
    """Every tenth day is held out. Ten and seven have no common factor, so held-out dates fall on all weekdays alike."""
    return date.toordinal() % 10 == 0


@checked
def sample(count: Repeats, rng: np.random.Generator, *, held_out: bool = False) -> Dates:
    """Random dates of 1950 … 2049 from one side of the split, each written in a random format."""
    return to_batch([(FORMATS[rng.integers(len(FORMATS))](date), date) for date in _draw(count, rng, held_out)])


def _draw(count: int, rng: np.random.Generator, held_out: bool) -> list[datetime.date]:
    """Dates from one side of the split; those of the other side are drawn again."""
    dates: list[datetime.date] = []
    while len(dates) < count:
        date = datetime.date.fromordinal(int(rng.integers(FIRST.toordinal(), LAST.toordinal() + 1)))
        if is_held_out(date) == held_out:
            dates.append(date)
    return dates


@checked
def held_out_set(count: Repeats = 1000) -> Dates:
    """The same held-out dates in every run."""
    return sample(count, np.random.default_rng(0), held_out=True)


@checked
def to_batch(pairs: Sequence[tuple[str, datetime.date]]) -> Dates:
    """Pairs of a written date and the date as arrays, padded to the longest."""
    sources, lengths = to_sources([written for written, _ in pairs])
    targets = [[BOS, *encode(date.isoformat()), EOS] for _, date in pairs]
    return Dates(sources, lengths, np.array(targets, np.int64).reshape(len(pairs), ISO_LENGTH + 2))


@checked
def to_sources(texts: Sequence[str]) -> tuple[Array, Array]:
    """Texts as a padded array (count, longest) and their lengths: what an encoder reads."""
    rows = [encode(text) for text in texts]
    lengths = np.array([len(row) for row in rows], np.int64)
    sources = np.full((len(rows), lengths.max(initial=0)), PAD, np.int64)
    for source, row in zip(sources, rows, strict=True):
        source[: len(row)] = row
    return sources, lengths
