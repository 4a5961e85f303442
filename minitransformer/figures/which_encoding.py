"""Which position encoding? Five questions about a model and its task lead to encodings by their names."""

import math
import textwrap
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from minitransformer.data.position_tasks import VOCABULARY
from minitransformer.experiments.positions import GRID, LONGER, SEEDS, STEPS
from minitransformer.figures import length_extrapolation, which_position
from minitransformer.figures.block_diagram import arrow
from minitransformer.figures.length_extrapolation import LengthExtrapolation
from minitransformer.figures.style import figure
from minitransformer.figures.which_position import WhichPosition
from minitransformer.measurements.position_facts import runs
from minitransformer.models import BERT, LanguageModel
from minitransformer.positions import AT_EMBEDDING, IN_ATTENTION

# Each line lies in a gap of the record: a training on another machine has other digits, and should change few leaves.
EVERY_SEED = 0.98  # of a reader's answers are right, with its worst seed
HALF = 0.5  # of a decoder's answers are right, in the mean of its seeds
BEHIND = 0.25  # bits per byte that a decoder may need more than the best at that length, in the mean of its seeds
TRAINED, FOUR_TIMES = 0, 2  # which of the three lengths of a task

QUESTIONS = {
    "sums": "Does the attention sum over the keys before it meets a query?",
    "encoder": "Does a token see those after it? (encoder)",
    "place": "Is the answer a place in the sequence?",
    "longer": "Will it read longer texts than in training?",
    "again": "Must it copy, or find again, what it has read?",
}

# The answers that lead to a leaf; the others lead to the next question, but for "no" after the second: to the fourth.
ENDS: dict[str, dict[str, str]] = {
    "sums": {"yes": "sums"},
    "encoder": {},
    "place": {"yes": "place", "no": "whole"},
    "longer": {"no": "same"},
    "again": {"yes": "again", "no": "text"},
}


class Leaf(NamedTuple):
    """Encodings that reach a line in every task, and the others; a score is a fraction right or, on text, bits per byte.

    over   by how much each passes the line that it comes nearest to; below zero, by how much it misses one
    """

    names: tuple[str, ...]
    others: tuple[str, ...]
    scores: dict[str, dict[str, float]]
    over: dict[str, float]

    def range(self, task: str) -> tuple[float, float]:
        """The lowest and the highest score of those that pass."""
        found = [self.scores[task][name] for name in self.names]
        return min(found), max(found)


class WhichEncoding(NamedTuple):
    """What stands in the tree: first three facts by construction, then what was measured.

    summing   what an attention takes that sums over the keys before it meets a query
    blind     by how much the answers of an encoder without positions change, if tokens and answers change places together
    ended     what can't read a longer text than those of training
    place     readers whose answer is a place; whole: one for the whole sequence
    same      decoders at the trained length, on all three tasks; reading: on text alone
    again     decoders at four times that length, on copy and on induction; longer: on text alone
    """

    summing: tuple[str, ...]
    blind: float
    ended: tuple[str, ...]
    place: Leaf
    whole: Leaf
    same: Leaf
    reading: Leaf
    again: Leaf
    longer: Leaf


def passing(scores: dict[str, dict[str, float]], line: float) -> Leaf:
    """Who passes in every task. On text the line is `BEHIND` the best; no score is far below every line."""
    over: dict[str, float] = {}
    for task, found in scores.items():
        limit = np.nanmin(list(found.values())) + BEHIND
        for name, score in found.items():
            by = float(np.nan_to_num(limit - score if task == "text" else score - line, nan=-np.inf))
            over[name] = min(by, over.get(name, np.inf))
    names = [tuple(name for name, by in over.items() if (by >= 0) is passes) for passes in (True, False)]
    return Leaf(*names, scores, over)


def data() -> WhichEncoding:
    """Facts are tried out on fresh models, and the rest is read off the records of the chapter."""
    return WhichEncoding(
        tuple(name for name in (*IN_ATTENTION, *AT_EMBEDDING) if name != "none" and _is_taken(name)),
        _blind(),
        tuple(name for name in LONGER if _ends(name)),
        *leaves(which_position.data(), length_extrapolation.data()),
    )


def leaves(readers: WhichPosition, lengths: LengthExtrapolation) -> list[Leaf]:
    """What was measured, in the order of the tree."""

    def of_readers(task: str) -> Leaf:
        right = zip(GRID.values(), readers.right[task].min(-1).ravel(), strict=True)
        return passing({task: {name: float(worst) for name, worst in right}}, EVERY_SEED)

    def of_decoders(k: int, *tasks: str) -> Leaf:
        means = {task: {name: float(lengths.mean(task, name)[k]) for name in lengths.names} for task in tasks}
        return passing(means, HALF)

    return [
        of_readers("span"),
        of_readers("order"),
        of_decoders(TRAINED, "text", "copy", "induction"),
        of_decoders(TRAINED, "text"),
        of_decoders(FOUR_TIMES, "copy", "induction"),
        of_decoders(FOUR_TIMES, "text"),
    ]


def _is_taken(name: str) -> bool:
    return runs(lambda: LanguageModel(context=8, width=16, depth=1, heads=2, attention="linear", positions=name))


def _ends(name: str) -> bool:
    model = LanguageModel(context=8, width=16, depth=1, heads=2, positions=name)
    return not runs(model, model.init(np.random.default_rng(0)), np.arange(9))


def _blind() -> float:
    rng, n = np.random.default_rng(0), 8
    model = BERT(VOCABULARY, n, width=16, depth=2, heads=2, hidden=16, positions="none", embedding="normed", outputs=2)
    params = model.init(rng, np.float64)
    tokens, other = rng.integers(VOCABULARY, size=n), rng.permutation(n)
    return float(np.abs(model(params, tokens)[0][other] - model(params, tokens[other])[0]).max())


# -------------------------------------------------------------------------------------------- what the boxes say


class Said(NamedTuple):
    """One box: a fact or measured, the names of encodings, and what that rests on."""

    kind: str
    names: str
    evidence: str


def says(data: WhichEncoding) -> dict[str, Said]:
    """Each leaf, and by the name of a question what drops out on the way to the next."""
    more = _listed(name for name in data.reading.names if name not in data.same.names)
    missed = np.nanmax([min(found[name] for found in data.again.scores.values()) for name in data.again.others])
    beyond = np.nanmin([data.longer.scores["text"][name] for name in data.longer.others])
    return {
        "sums": Said("fact", _listed(data.summing), "by construction:\nthe others act on\nthe score of a pair"),
        "encoder": Said("fact", "", "by construction:\nwithout positions\nit sees no order"),
        "place": _reader(data.place),
        "whole": _reader(data.whole),
        "same": Said(
            "measured",
            _listed(data.same.names),
            f"measured: copy {_right(data.same, 'copy')}, induction {_right(data.same, 'induction')},\n"
            f"text {_bits(data.same)}; for text alone also\n{more}",
        ),
        "longer": Said("fact", "", f"by construction:\n{' and '.join(data.ended)} can't,\ntheir tables end"),
        "again": Said(
            "measured",
            _listed(data.again.names),
            f"measured at four times the length:\ncopy {_right(data.again, 'copy')}, "
            f"induction {_right(data.again, 'induction')};\nno other above {_percent(missed)} in both",
        ),
        "text": Said(
            "measured",
            _listed(data.longer.names),
            f"measured at four times the length:\n{_bits(data.longer)}, no other below {beyond:.2f}",
        ),
    }


def _reader(found: Leaf) -> Said:
    ((task, scores),) = found.scores.items()
    least, others = math.floor(100 * found.range(task)[0]) / 100, max(scores[name] for name in found.others)
    return Said(
        "measured",
        _listed(found.names),
        f"measured on {task}, worst of {SEEDS[task]} seeds, {STEPS[task]} steps:\n"
        f"{_percent(least)} or more, the others of the six up to {_percent(others)}",
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(name.replace(" ", "\N{NO-BREAK SPACE}") for name in names)


def _right(found: Leaf, task: str) -> str:
    low, high = found.range(task)
    return f"{100 * low:.0f} to {_percent(high)}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f}\N{NO-BREAK SPACE}%"


def _bits(found: Leaf) -> str:
    low, high = found.range("text")
    return f"{low:.2f} to {high:.2f} bits"


def told(said: dict[str, Said]) -> str:
    """The tree in words, for who can't see it."""
    parts = []
    for name, question in QUESTIONS.items():
        parts += [question, *(f"{answer}: {said[end].names} ({said[end].kind})." for answer, end in ENDS[name].items())]
        if name not in ENDS[name].values() and name in said:  # what drops out on the way
            parts.append(f"yes ({' '.join(said[name].evidence.split())}): the next question.")
        if not ENDS[name]:
            parts.append("no: the question after it.")
    return " ".join(parts).replace("\N{NO-BREAK SPACE}", " ")


# -------------------------------------------------------------------------------------------- the drawing

WIDE = 10.0  # inches, and so are the others
LEFT, RIGHT = (0.6, 3.95), (4.7, 9.95)  # from where to where questions and leaves reach
LINE, EDGE = 0.315, 0.32  # heights of a line, and of a box without its lines
GAP, STEP = 0.2, 0.6  # heights between leaves, and of an arrow
LETTERS = {"question": 20, "names": 33, "evidence": 37, "fact": 18}  # of a line
LOOKS = {
    "question": {"facecolor": "#fff3c4", "linestyle": "-", "linewidth": 1.4},
    "fact": {"facecolor": "#cfe0ee", "linestyle": "-", "linewidth": 2.6},
    "measured": {"facecolor": "white", "linestyle": (0, (4, 2)), "linewidth": 2.2},
}


class Row(NamedTuple):
    """A question in its place: its middle, top and bottom, and where its leaves end."""

    middle: float
    top: float
    bottom: float
    end: float


def draw(data: WhichEncoding) -> Figure:
    """Questions on the left, encodings on the right. A blue box with a solid frame is a fact by construction; a white one with a
    dashed frame was measured, on small models with three or four seeds.
    """
    said = says(data)
    fig, ax = figure(width=WIDE)
    fig.set_label(f"{fig.get_label()} {told(said)}")
    ax.axis("off")
    sums = _row(ax, -0.05, "sums", said)
    encoder = _row(ax, sums.end - STEP, "encoder", said)
    place = _row(ax, encoder.top, "place", said, below=True)
    longer = _row(ax, place.end - 2 * GAP, "longer", said)
    again = _row(ax, longer.end - GAP, "again", said)
    _down(ax, sums, encoder, "no")
    _down(ax, encoder, place, "yes", said["encoder"])
    _down(ax, longer, again, "yes", said["longer"])
    x = LEFT[0] / 4
    _line(ax, (LEFT[0], encoder.middle), (x, encoder.middle), (x, longer.middle), (LEFT[0], longer.middle))
    ax.text((x + LEFT[0]) / 2, encoder.middle + 0.06, "no", ha="center", va="bottom")
    ax.set(xlim=(0, WIDE), ylim=(again.end - 0.05, 0))
    fig.set_figheight(0.05 - again.end)
    return fig


def _row(ax: Axes, top: float, name: str, said: dict[str, Said], *, below: bool = False) -> Row:
    """A question, and to its right a leaf for each answer that ends there; it stands in their middle or at their lower end."""
    lines = _wrapped(QUESTIONS[name], LETTERS["question"])
    leaves = {answer: said[end] for answer, end in ENDS[name].items()}
    high = len(lines) * LINE + EDGE
    sizes = [len(_lines(leaf)) * LINE + EDGE for leaf in leaves.values()]
    reach = sum(sizes) + GAP * (len(sizes) - 1)
    end = top - max(high, reach)
    middle = end + high / 2 if below else (top + end) / 2
    _box(ax, LEFT, middle + high / 2, high, "question")
    ax.text(sum(LEFT) / 2, middle, "\n".join(lines), ha="center", va="center", fontweight="bold", zorder=3)
    y, turn = (top + end + reach) / 2, LEFT[1] + 0.25
    for (answer, leaf), size in zip(leaves.items(), sizes, strict=True):
        _box(ax, RIGHT, y, size, leaf.kind)
        _write(ax, RIGHT[0] + 0.18, y - EDGE / 2, leaf)
        _line(ax, (LEFT[1], middle), (turn, middle), (turn, y - size / 2), (RIGHT[0], y - size / 2))
        ax.text((turn + RIGHT[0]) / 2 - 0.05, y - size / 2 + 0.06, answer, ha="center", va="bottom")
        y -= size + GAP
    return Row(middle, middle + high / 2, middle - high / 2, end)


def _down(ax: Axes, start: Row, end: Row, answer: str, said: Said | None = None) -> None:
    """The way to the next question, and beside it what drops out on the way."""
    x, y = LEFT[0] + 0.5, (start.bottom + end.top) / 2
    _line(ax, (x, start.bottom), (x, end.top))
    ax.text(x - 0.1, y, answer, ha="right", va="center")
    if said:
        high = len(_lines(said)) * LINE + EDGE / 2
        _box(ax, (x + 0.2, LEFT[1]), y + high / 2, high, said.kind)
        _write(ax, x + 0.35, y + high / 2 - EDGE / 4, said)


def _lines(said: Said) -> list[tuple[str, str]]:
    """The lines of a box, each with its weight: names are bold."""
    letters = LETTERS["evidence" if said.names else "fact"]
    return [
        *((line, "bold") for line in _wrapped(said.names, LETTERS["names"])),
        *((line, "normal") for part in said.evidence.splitlines() for line in _wrapped(part, letters)),
    ]


def _wrapped(text: str, letters: int) -> list[str]:
    """In lines of at most this many letters; as few as possible, and of about the same length."""
    whole = {"break_long_words": False, "break_on_hyphens": False}
    count = len(textwrap.wrap(text, letters, **whole))
    tried = (textwrap.wrap(text, width, **whole) for width in range(1, letters + 1))
    return next(lines for lines in tried if len(lines) == count)


def _write(ax: Axes, x: float, top: float, said: Said) -> None:
    for k, (line, weight) in enumerate(_lines(said)):
        ax.text(x, top - (k + 0.55) * LINE, line, fontweight=weight, va="center_baseline", zorder=3)


def _box(ax: Axes, sides: tuple[float, float], top: float, high: float, kind: str) -> None:
    left, right = sides
    style = {"boxstyle": "round,pad=0,rounding_size=0.1", "edgecolor": "0.25", "zorder": 2}
    ax.add_patch(FancyBboxPatch((left, top - high), right - left, high, **style, **LOOKS[kind]))


def _line(ax: Axes, *points: tuple[float, float]) -> None:
    """A way with corners and a head."""
    ax.plot(*zip(*points[:-1], strict=True), color="0.35", linewidth=2, linestyle="-", solid_joinstyle="miter")
    arrow(ax, points[-2], points[-1], "0.35", width=2)
