"""Patterns as graphs: how many edges from one token to another, and how fast a random walk forgets where it began."""

from typing import NamedTuple

from matplotlib.figure import Figure

from minitransformer.attention import BigBird, Graph, Pattern, RandomKeys, Window
from minitransformer.figures.style import figure

SEEN = 8  # about as many keys as a query sees, in all of them but BigBird
PATTERNS: dict[str, Pattern] = {
    "window": Window(SEEN // 2),
    "random": RandomKeys(SEEN),
    "window and random": Window(SEEN // 4) | RandomKeys(SEEN // 2),
    "BigBird": BigBird(block=2, random=1, global_tokens=1),
}


class PatternGraphs(NamedTuple):
    """For each length and pattern the mean distance and the spectral gap."""

    n: tuple[int, ...]
    paths: dict[str, tuple[float, ...]]
    gaps: dict[str, tuple[float, ...]]


def data(lengths: tuple[int, ...] = (16, 32, 64, 128, 256)) -> PatternGraphs:
    """The graphs that the tiles are made of; an edge may be walked both ways."""
    edges = {name: [pattern.graph(n).A for n in lengths] for name, pattern in PATTERNS.items()}
    graphs = {name: [Graph(A | A.T) for A in several] for name, several in edges.items()}
    paths = {name: tuple(graph.average_path() for graph in several) for name, several in graphs.items()}
    gaps = {name: tuple(graph.spectral_gap() for graph in several) for name, several in graphs.items()}
    return PatternGraphs(lengths, paths, gaps)


def draw(data: PatternGraphs) -> Figure:
    """Above the paths, below the gaps, both against the length."""
    fig, (above, below) = figure(2, 1, height=9.5)
    for name, values in data.paths.items():
        above.plot(data.n, values, marker="o", label=name)
        below.plot(data.n, data.gaps[name], marker="o")
    for ax in (above, below):
        ax.set_xscale("log", base=2)
        ax.set_xlabel("tokens $n$")
    above.set_yscale("log", base=2)
    above.set(title="mean distance", ylabel="edges", ylim=(None, 48))  # room for the names
    below.set(title="spectral gap", ylabel="$1 - |\\lambda_2|$", yscale="log")
    above.legend()
    return fig
