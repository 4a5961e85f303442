"""Which encoding of positions? What small models of every kind did on five tasks, from the record of many trainings.

`python -m minitransformer.figures.which_position` adds the trainings that the record lacks, about a minute each; with names
of tasks or encodings behind it, only theirs.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure
from minitransformer.training import position_study as study
from minitransformer.training.record import circumstances
from minitransformer.typing import Array

RECORD = Path(__file__).with_name("data") / "positions.json"
EXTRAPOLATION = (
    "none", "sinusoidal", "learned", "shaw", "transformer-xl", "tener", "deberta", "tupe", "multiplicative", "t5",
    "alibi", "kerple", "fire", "rope",
)  # fmt: skip
GRID = {
    ("absolute", "learned"): "learned",
    ("absolute", "sinusoids"): "sinusoidal",
    ("absolute", "learned frequencies"): "learnable sinusoids",
    ("relative", "learned"): "relative keys",
    ("relative", "sinusoids"): "relative sinusoids",
    ("relative", "learned frequencies"): "learnable relative sinusoids",
}
SEEDS = {"text": (0,), "copy": (0,), "induction": (0, 1), "order": (0, 1, 2, 3), "span": (0, 1, 2, 3)}


def wanted() -> Iterator[tuple[str, str, int]]:
    """Task, encoding and seed of every trial of the record, the first seeds of all first."""
    for seed in range(5):
        for task, seeds in SEEDS.items():
            for name in GRID.values() if task in ("order", "span") else EXTRAPOLATION:
                if seed in seeds:
                    yield task, name, seed


def load() -> dict[str, Any]:
    """The record as it is on the disk."""
    if not RECORD.is_file():
        return {"trials": [], "circumstances": {}}
    record = json.loads(RECORD.read_text("utf8"))
    return record | {
        "trials": [study.Trial(t, p, s, {int(k): v for k, v in d.items()}) for t, p, s, d in record["trials"]]
    }


def keep(record: dict[str, Any]) -> None:
    """Write the record, one trial a line."""
    lines = ",\n".join(json.dumps(trial) for trial in record["trials"])
    about = json.dumps(record["circumstances"])
    RECORD.write_text(f'{{"circumstances": {about},\n"trials": [\n{lines}\n]}}\n', "utf8")


class WhichPosition(NamedTuple):
    """For each of the two tasks, kinds (absolute, relative) by forms: the fraction of right answers of every seed."""

    kinds: tuple[str, ...]
    forms: tuple[str, ...]
    right: dict[str, Array]  # (kinds, forms, seeds)


def data() -> WhichPosition:
    """The part of the record that compares absolute with relative positions."""
    trials = load()["trials"]
    kinds, forms = (tuple(dict.fromkeys(key[k] for key in GRID)) for k in (0, 1))

    def scores(task: str, name: str) -> list[float]:
        return [next(iter(t.scores.values())) for t in trials if t[:2] == (task, name)]

    return WhichPosition(
        kinds,
        forms,
        {task: np.array([[scores(task, GRID[k, f]) for f in forms] for k in kinds]) for task in ("order", "span")},
    )


def draw(data: WhichPosition) -> Figure:
    """Left: one answer for a sequence. Right: the ends of a span. A bar is a mean, a dot a training."""
    fig, axes = figure(1, 2, width=9.5, height=3.4, sharey=True)
    titles = {"order": "which mark comes first?", "span": "where are the ends of the span?"}
    chance = {"order": 1 / 2, "span": 0.0}
    for ax, (task, right) in zip(axes, data.right.items(), strict=True):
        for k, (kind, colour) in enumerate(zip(data.kinds, ("#b9cfe2", "#20639b"), strict=True)):
            x = np.arange(len(data.forms)) + 0.4 * k - 0.2
            ax.bar(x, right[k].mean(-1), 0.36, color=colour, label=kind)
            ax.plot(np.repeat(x, right.shape[-1]), right[k].ravel(), ".", color="0.15", markersize=5)
        if chance[task]:
            ax.axhline(chance[task], color="0.4", linewidth=1, linestyle=":")
        ax.set(title=titles[task], xticks=range(len(data.forms)), ylim=(0, 1.04))
        ax.set_xticklabels(data.forms)
    axes[0].set_ylabel("fraction of right answers")
    axes[1].legend(loc="lower right", frameon=True, framealpha=0.9)
    return fig


def main(names: list[str]) -> None:
    """Run the trials that are missing."""
    for task, name, seed in wanted():
        record = load()
        if (names and name not in names and task not in names) or any(
            t[:3] == (task, name, seed) for t in record["trials"]
        ):
            continue
        found = study.trial(task, name, seed)
        print(found, flush=True)
        record = load()  # another process may have added to it
        rounded = {length: None if score is None else round(score, 4) for length, score in found.scores.items()}
        record["trials"] = sorted([*record["trials"], found._replace(scores=rounded)], key=lambda t: t[:3])
        keep(record | {"circumstances": circumstances()})


if __name__ == "__main__":
    main(sys.argv[1:])
