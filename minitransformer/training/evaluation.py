"""How good is it? Trained models beside their controls, on what they have not seen."""

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from minitransformer.data import ngrams
from minitransformer.data.text import copied, sample
from minitransformer.pullback import Tree
from minitransformer.training.objective import NextByte
from minitransformer.typing import Array


class Bits(NamedTuple):
    """Held-out bits per byte of one predictor: over all bytes, over copies of training passages, over the rest."""

    name: str
    all: float
    copies: float
    new: float


@lru_cache(maxsize=1)
def judged(objective: NextByte) -> tuple[NextByte, Array]:
    """The objective on a sample of its text, if that is long, and which held-out bytes are copies from the whole of it."""
    small = replace(objective, text=sample(objective.text, objective.context))
    return small, copied(small.text.held_out, objective.text.train)


def bits_per_byte(objective: NextByte, model: Any, params: Tree, *, order: int = 6) -> list[Bits]:
    """The model beside the n-grams of orders 1 … `order` that were fitted on the same training text, or a sample of it.

    All are judged on the same bytes: the held-out text, or a sample, without its first. N-grams see across the ends of
    topics and passages, as the model does. Where a text has no copies, or nothing but copies, that mean is NaN.
    """
    small, copies = judged(objective)
    text, copies = small.text, copies[1:]

    def row(name: str, bits: Array) -> Bits:
        parts = (bits, bits[copies], bits[~copies])
        return Bits(name, *(float(part.mean()) if part.size else float("nan") for part in parts))

    P = ngrams.probabilities(ngrams.fit(text.train, order), text.held_out)[:, 1:]
    rows = [row(f"{k}-gram", bits) for k, bits in enumerate(-np.log2(P), start=1)]
    return [*rows, row("transformer", small.bits(model, params))]


def table(rows: list[Bits]) -> str:
    """The rows as text, one predictor a line."""
    head = f"{'bits per byte':<14}{'all':>8}{'copies':>8}{'new':>8}"
    lines = [f"{row.name:<14}" + "".join(f"{'–' if np.isnan(b) else f'{b:.3f}':>8}" for b in row[1:]) for row in rows]
    none = ["–: the held-out text has no such bytes"] if np.isnan([row[1:] for row in rows]).any() else []
    return "\n".join([head, *lines, *none])
