"""What does a table of positions know: where does a row stand, and which of two rows comes first?

The probes of Wang and Chen, ten draws of each, on tables that were defined, drawn at random, or trained. Theirs shuffle rows
and draw pairs, so a number without its spread says little.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer import experiments
from minitransformer.experiments.learned_tables import BERT
from minitransformer.measurements.position_probes import logistic_regression, order_error, position_error
from minitransformer.models import load_bert
from minitransformer.positions import sinusoids
from minitransformer.typing import Array

IN_A_TEST = {"draws": 1}


@dataclass(frozen=True)
class Trial:
    """A question, and the table that is asked: its name, rows and channels.

    seed   of a table's training, where it was trained
    """

    question: str
    table: str
    rows: int
    width: int
    seed: int = 0
    draws: int = 10


TABLES = (
    ("sinusoids", 512, 384, 1),
    (BERT, 512, 384, 1),
    ("random", 512, 384, 1),
    ("sinusoids", 96, 32, 1),
    ("two phases", 96, 32, 3),
    ("long from the start", 96, 32, 3),
    ("random", 96, 32, 1),
)


def trials() -> list[Trial]:
    """Both questions to every table; then which pairs are wrong, and what random rows say if none of them comes twice."""
    asked = [
        Trial(question, table, rows, width, seed)
        for table, rows, width, seeds in TABLES
        for seed in range(seeds)
        for question in ("position", "order")
    ]
    return [*asked, Trial("which pairs", "sinusoids", 512, 384), Trial("no row twice", "random", 512, 384)]


def run(trial: Trial) -> dict[str, Any]:
    """The answer to the question in each draw."""
    ask: dict[str, Callable[[Array, np.random.Generator], Any]] = {
        "position": lambda table, rng: round(position_error(table, rng), 2),
        "order": lambda table, rng: round(order_error(table, rng), 4),
        "which pairs": which_pairs,
        "no row twice": no_row_twice,
    }
    answers = [ask[trial.question](table_of(trial, draw), np.random.default_rng(draw)) for draw in range(trial.draws)]
    return {"draws": answers}


def table_of(trial: Trial, draw: int) -> Array:
    """The table itself; a random one is another in each draw."""
    if trial.table == "sinusoids":
        return sinusoids(trial.rows, trial.width)
    if trial.table == "random":
        return np.random.default_rng([draw, trial.rows]).standard_normal((trial.rows, trial.width))
    if trial.table == BERT:
        return load_bert()[1].positions.table
    (trained,) = experiments.load("learned_tables").where(table=trial.table, seed=trial.seed)
    return np.array(trained["table"])


def which_pairs(table: Array, rng: np.random.Generator) -> dict[str, list[int]]:
    """Distances of the pairs that were asked for, and of those whose order was named wrongly."""
    a, b = rng.integers(0, len(table), (2, 512))
    wrong = wrong_order(table, a, b, fit=410)
    distance = np.abs(a - b)[410:]
    return {"asked": np.sort(distance).tolist(), "wrong": np.sort(distance[wrong]).tolist()}


def no_row_twice(table: Array, rng: np.random.Generator) -> float:
    """Fraction of wrong answers if each row is in one pair only."""
    a, b = rng.permutation(len(table)).reshape(2, -1)
    return round(float(wrong_order(table, a, b, fit=len(a) * 4 // 5).mean()), 4)


def wrong_order(table: Array, a: Array, b: Array, fit: int) -> Array:
    """A logistic regression is fitted to the first `fit` pairs of rows (a, b); which of the other pairs it orders wrongly."""
    pairs, later = np.concatenate([table[a], table[b]], axis=1), b > a
    w, c = logistic_regression(pairs[:fit], later[:fit])
    return ((pairs @ w + c > 0) != later)[fit:]
