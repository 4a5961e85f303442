"""From a GRU to attention in nine rungs: the chain of states ends on rung 4, and from rung 5 on one thing is new on each."""

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from minitransformer.figures.interaction_distance import reach
from minitransformer.figures.style import figure
from minitransformer.positions import LearnedPositions
from minitransformer.pullback import Layer, Tree, chain, tree_map
from minitransformer.related import (
    GRU,
    After,
    Alike,
    Attend,
    Candidates,
    FreeWeights,
    UnrolledGRU,
    gru_coefficients,
    rungs,
)
from minitransformer.related.ladder import CandidatesParams
from minitransformer.typing import Array

N, WIDTH, HEADS, ROW = 4, 4, 2, 2  # tokens; D; heads from rung 6 on; row 3 is drawn
FACTS = ("summed", "chained", "maps", "asks", "ahead", "positions", "network")


class Rung(NamedTuple):
    """One rung, run on four tokens.

    weights     (maps, n): of candidates 1 … n in row 3: one map for each coordinate, one in all, or one for each head
    gates       (n, D), of a GRU; None from rung 3 on
    depends     (n,): has row 3 a gradient with respect to token j that is not exactly zero?
    summed      is a row computed as a sum over candidates, and not from the row before?
    chained     does candidate 2 change with token 1?
    maps        how many
    asks        what the candidates are compared with: nothing, "token", "candidate" or "query"
    ahead       does row 3 depend on token 4?
    positions, network    is there a layer of positions, and a network after attention?
    """

    weights: Array
    gates: Array | None
    depends: Array
    summed: bool
    chained: bool
    maps: int
    asks: str
    ahead: bool
    positions: bool
    network: bool


class NineRungs(NamedTuple):
    """The layers of each rung, their parameters, the tokens, and what was found."""

    layers: dict[int, tuple[Layer, ...]]
    params: dict[int, Tree]
    X: Array
    rungs: dict[int, Rung]

    def new(self, number: int) -> set[str]:
        """The facts that are not those of the rung before."""
        if number == 1:
            return set()
        before, now = self.rungs[number - 1], self.rungs[number]
        return {fact for fact in FACTS if getattr(before, fact) != getattr(now, fact)}


def data(seed: int = 38, spread: float = 0.6) -> NineRungs:
    """Random parameters and tokens. What two rungs have in common has the same parameters on both."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, WIDTH))
    layers = rungs(WIDTH, WIDTH, heads=HEADS, longest=N, hidden=2 * WIDTH)
    drawn = {}
    for layer in (*layers[1], *layers[3], *layers[9]):
        drawn[type(layer)] = tree_map(lambda W: spread * rng.standard_normal(W.shape), layer.init(rng, np.float64))
    gru = drawn[GRU]
    drawn |= {UnrolledGRU: gru, Candidates: CandidatesParams(gru.W_c, gru.b_c), Alike: ()}
    drawn[FreeWeights] = drawn[FreeWeights]._replace(W_c=gru.W_c, U_c=gru.U_c, b_c=gru.b_c)
    params = {number: tuple(drawn[type(layer)] for layer in rung) for number, rung in layers.items()}
    return NineRungs(layers, params, X, {r: _look(layers[r], params[r], X) for r in layers})


def candidates(layers: tuple[Layer, ...], params: Tree, X: Array) -> Array:
    """c_1 … c_n, (n, D)."""
    Y, pullback = layers[0](params[0], X)
    if hasattr(pullback, "gru"):
        return pullback.gru.c
    return getattr(pullback, "c", Y)


def _look(layers: tuple[Layer, ...], params: Tree, X: Array) -> Rung:
    _, pullbacks = chain(*layers)(params, X)
    gates, asks = getattr(pullbacks[0], "u", None), ""
    if gates is not None:
        C, _ = gru_coefficients(gates)
        weights = C[ROW + 1, 1:].T  # without h_0, which is zero
    else:
        A = next(step.A for step in pullbacks if hasattr(step, "A"))
        weights = A[..., ROW, :].reshape(-1, N)
        kinds = {FreeWeights: "token", Alike: "candidate", Attend: "query"}
        asks = next(kinds[type(layer)] for layer in layers if type(layer) in kinds)
    other = X + np.eye(N)[:, :1]  # another first token
    depends = reach(chain(*layers), params, X, ROW) > 0
    return Rung(
        weights,
        gates,
        depends,
        summed=gates is None or hasattr(pullbacks[0], "coefficients"),
        chained=not np.array_equal(candidates(layers, params, X)[1], candidates(layers, params, other)[1]),
        maps=len(weights),
        asks=asks,
        ahead=bool(depends[ROW + 1]),
        positions=any(isinstance(layer, LearnedPositions) for layer in layers),
        network=isinstance(layers[-1], After),
    )


# ------------------------------------------------------------------------------------------------- the drawing

NEW, OLD, PALE = "#a82a12", "0.46", "0.78"
CELL, COLUMNS, WORDS = (5.0, 2.1), (0.74, 0.54), 2.66  # a cell; its first column and their distance; where words begin
HEIGHTS = {"x": 0.22, "c": 0.88, "y": 1.54}
SAID = {
    1: ("a GRU", "from the row\nbefore and one\ncandidate"),
    2: ("unrolled", "the same state,\nas a sum of\ncandidates"),
    3: ("free the\nweights", "$x_3$ asks; one\nweight for each\ncandidate"),
    4: ("free the\ncandidates", "$c_j$ reads $x_j$ only,\nand $c_3$ asks"),
    5: ("separate\nqueries, keys\nand values", "till now one\nvector was all\nthree"),
    6: ("H heads", "each has weights\nof its own\n(here H = 2)"),
    7: ("look both ways", "$y_3$ reads $x_4$, too"),
    8: ("positions", "a vector π for\neach place"),
    9: ("a nonlinearity\nafter", "a network $g$,\non each row"),
}


def draw(data: NineRungs) -> Figure:
    """Four tokens, above them their candidates, on top the rows, and lines for what goes into row 3.

    Red is what the rung before does not have: 2 a sum of all candidates so far; 3 one weight for each, asked for by the
    token; 4 no chain; 5 queries, keys and values; 6 heads; 7 token 4 is read, too; 8 positions; 9 a network after.
    """
    fig, ax = figure(width=2 * CELL[0], height=5 * CELL[1])
    ax.set(xlim=(0, 2 * CELL[0]), ylim=(0, 5 * CELL[1]), aspect="equal")
    ax.axis("off")
    ax.plot([CELL[0] - 0.05] * 2, [0.1, 5 * CELL[1] - 0.1], color="0.85", linewidth=1.2, linestyle="-")
    _key(ax, (0, 4 * CELL[1]))
    for number, rung in data.rungs.items():
        corner = (number // 5 * CELL[0], (4 - number % 5) * CELL[1])
        _Sketch(ax, corner, rung, data.new(number)).draw()
        _words(ax, corner, number)
    return fig


def _place(corner: tuple[float, float], level: str, j: int) -> Array:
    return np.array([corner[0] + COLUMNS[0] + j * COLUMNS[1], corner[1] + HEIGHTS[level]])


def _words(ax: Axes, corner: tuple[float, float], number: int) -> None:
    (x, y), (title, text) = corner, SAID[number]
    ax.text(x + 0.15, y + HEIGHTS["c"], str(number), fontsize=30, fontweight="bold", va="center")
    ax.text(x + WORDS, y + 1.86, title, va="top", fontweight="bold", linespacing=1.1)
    ax.text(x + WORDS, y + 1.5 - 0.3 * title.count("\n"), text, va="top", linespacing=1.15)


def _key(ax: Axes, corner: tuple[float, float]) -> None:
    """Names of the three levels."""
    for level, name in {"y": "rows:\nwe follow $y_3$", "c": "candidates", "x": "tokens"}.items():
        for j in range(N):
            strong = level == "y" and j == ROW
            place = _place(corner, level, j)
            ax.text(*place, f"${level}_{j + 1}$", ha="center", va="center", fontsize=21, color="k" if strong else OLD)
        ax.text(corner[0] + WORDS, corner[1] + HEIGHTS[level], name, va="center")


class _Sketch(NamedTuple):
    """One rung: what goes into row 3, from below. New facts are red."""

    ax: Axes
    corner: tuple[float, float]
    rung: Rung
    new: set[str]

    def draw(self) -> None:
        for j in range(N):
            self.column(j)
        self.between_rows()
        self.into_the_row()
        if self.rung.asks in ("token", "candidate"):
            level = "x" if self.rung.asks == "token" else "c"
            ring = {"color": "none", "markeredgecolor": self.colour("asks"), "markeredgewidth": 2.4, "zorder": 3}
            self.ax.plot(*self.at(level, ROW), "o", markersize=25, **ring)
        if self.rung.network:
            self.network()

    def at(self, level: str, j: int) -> Array:
        return _place(self.corner, level, j)

    def colour(self, *facts: str) -> str:
        return NEW if self.new.intersection(facts) else OLD

    def line(self, start: Array, end: Array, colour: str, width: float) -> None:
        self.ax.plot(*np.transpose([start, end]), color=colour, linewidth=width, linestyle="-", zorder=1)

    def column(self, j: int) -> None:
        """Token, candidate and row j; hollow if row 3 does not depend on them."""
        read = bool(self.rung.depends[j])
        colour = (self.colour("ahead") if j > ROW else OLD) if read else PALE
        self.line(self.at("x", j), self.at("c", j), colour, 1.8)
        self.node(self.at("x", j), colour, read, "s")
        if self.rung.asks == "query":
            letters = "qkv" if j == ROW else "kv"  # a key and a value everywhere, and a query in the row that is drawn
            self.box(self.at("c", j), 0.16 * len(letters) + 0.1, letters, NEW if "asks" in self.new else colour)
        else:
            self.node(self.at("c", j), colour, read)
        if self.rung.positions:
            x, y = self.at("c", j)
            self.ax.text(x + 0.07, y - 0.35, "+π", color=self.colour("positions"), va="center")
        if j != ROW:
            carried = self.rung.chained and j < ROW
            self.node(self.at("y", j), OLD if carried else PALE, carried)
        elif not self.rung.network:
            self.node(self.at("y", j), "black", True, size=18)

    def between_rows(self) -> None:
        """A state is read by the next candidate, and a GRU carries it on; dots where the chain has just ended."""
        style = {"color": self.colour("chained"), "shrinkA": 8, "shrinkB": 8}
        style |= {"arrowstyle": "-|>", "linewidth": 1.8, "mutation_scale": 17}
        if not self.rung.chained:
            style |= {"arrowstyle": "-", "linewidth": 2.4, "linestyle": (0, (1, 1.5))}
        if self.rung.chained or "chained" in self.new:
            for j in range(ROW):
                self.ax.annotate("", self.at("c", j + 1), self.at("y", j), arrowprops=style, zorder=2)
        for j in range(ROW if self.rung.chained else 0):
            if not self.rung.summed:
                self.strands(self.at("y", j), self.at("y", j + 1), self.rung.gates[j + 1], OLD)
                self.strands(self.at("c", j), self.at("y", j), 1 - self.rung.gates[j], OLD)
            else:
                for k in range(j + 1):
                    self.line(self.at("c", k), self.at("y", j), PALE, 1.4)

    def into_the_row(self) -> None:
        """What is averaged: all candidates, or the newest alone."""
        for j in np.flatnonzero(self.rung.weights.any(0)):
            if self.rung.summed or j == ROW:
                colour = self.colour("summed", "maps", *(["ahead"] if j > ROW else []))
                self.strands(self.at("c", j), self.at("y", ROW), self.rung.weights[:, j], colour)

    def strands(self, start: Array, end: Array, weights: Array, colour: str) -> None:
        """A line for each weight, thicker where it is larger."""
        along = (end - start) / np.linalg.norm(end - start)
        across = np.array([-along[1], along[0]]) * (0.05 if len(weights) > HEADS else 0.09)
        for k, weight in enumerate(weights):
            shift = across * (k - (len(weights) - 1) / 2)
            self.line(start + shift, end + shift, colour, 3.8 * np.sqrt(weight))

    def node(self, at: Array, colour: str, filled: bool, shape: str = "o", size: float = 13) -> None:
        face, edge = (colour, "white") if filled else ("white", colour)
        size -= 0 if filled else 1.6
        self.ax.plot(*at, shape, markersize=size, color=face, markeredgecolor=edge, markeredgewidth=1.6, zorder=4)

    def network(self) -> None:
        row, colour = self.at("y", ROW), self.colour("network")
        after = row + np.array([0, 0.38])
        self.line(row, after, colour, 2.4)
        self.node(after, "black", True, size=18)
        self.box(row, 0.34, "g", colour)

    def box(self, at: Array, width: float, text: str, colour: str) -> None:
        shape = FancyBboxPatch(at - [width / 2, 0.16], width, 0.32, boxstyle="round,pad=0,rounding_size=0.06")
        shape.set(facecolor="white", edgecolor=colour, linewidth=1.8, zorder=4)
        self.ax.add_patch(shape)
        letters = OLD if colour == PALE else colour  # a pale edge can be seen, and pale letters can't be read
        self.ax.text(*at, text, color=letters, ha="center", va="center_baseline", zorder=5)
