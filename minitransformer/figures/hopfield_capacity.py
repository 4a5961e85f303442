"""How many random patterns Hopfield networks keep: recall by load, and the largest load by the number of neurons."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.hopfield_capacity import CURVES, LOADS, NEURONS, SIZES
from minitransformer.figures.style import figure, plain_ticks
from minitransformer.typing import Array

THEORY = 0.138  # m / d of the classical network, for many neurons
NAMES = {
    "classical": "classical, $z^2$",
    "power 3": "dense, $z^3$",
    "exponential": "dense, $e^z$",
    "continuous": "modern",
}
MARKERS = dict(zip(NAMES, "osD^", strict=True))


class Capacity(NamedTuple):
    """Loads m/d; by kind of memory overlaps (seeds, loads); and capacities (sizes, seeds) at the numbers of neurons."""

    loads: Array
    overlaps: dict[str, Array]
    neurons: dict[str, Array]
    capacities: dict[str, Array]


def data() -> Capacity:
    """What is on record."""
    record = experiments.load("hopfield_capacity")

    def of(what: str, **trial: str | int) -> list[Any]:
        return [result[what] for result in record.where(**trial)]

    overlaps = {kind: np.array(of("overlaps", look="curve", kind=kind)) for kind in CURVES}
    neurons = {kind: np.array(sizes) for kind, sizes in SIZES.items()}
    capacities = {
        kind: np.array([of("capacity", look="capacity", kind=kind, neurons=d) for d in sizes])
        for kind, sizes in SIZES.items()
    }
    return Capacity(np.array(LOADS), overlaps, neurons, capacities)


def draw(data: Capacity) -> Figure:
    """Above: overlap with what was stored, by patterns per neuron; the line is the theory of the classical network. Below:
    the capacity by neurons, the median of five draws and all of them as dots."""
    fig, (above, below) = figure(2, 1, height=11)
    for kind, overlaps in data.overlaps.items():
        above.plot(data.loads, overlaps.mean(0), marker=MARKERS[kind], markersize=7, label=NAMES[kind])
    above.axvline(THEORY, color="0.3", linestyle=":", linewidth=2)
    above.text(THEORY * 0.9, 0.03, f"{THEORY}", ha="right", color="0.3")
    above.set(xscale="log", ylim=(0, 1.05), xlabel="patterns per neuron $m/d$", ylabel="overlap after recall")
    above.set_title(f"{NEURONS} neurons, 8 flipped")
    above.text(0.55, 0.5, NAMES["classical"], color="#20639b")
    above.text(9, 0.66, NAMES["power 3"], ha="right", color="#c8553d")
    above.text(0.35, 0.91, f"{NAMES['exponential']},", color="#3b8554")
    above.text(0.35, 0.84, "and modern", color="#8a5a9e")
    for kind, counts in data.capacities.items():
        d = data.neurons[kind]
        (line,) = below.plot(d, np.median(counts, 1), marker=MARKERS[kind], markersize=9, label=NAMES[kind])
        below.plot(np.repeat(d, counts.shape[1]), counts.ravel(), "o", color=line.get_color(), markersize=4, alpha=0.6)
    d = np.array([30.0, 550])
    below.plot(d, THEORY * d, color="0.3", linestyle=":", linewidth=2)
    below.set(xscale="log", yscale="log", xlabel="neurons $d$", ylabel="capacity: patterns")
    plain_ticks(below, x=[8, 16, 32, 64, 128, 256, 512])
    below.set_title("one flipped")
    below.text(24, 1800, NAMES["exponential"], color="#3b8554", va="center")
    below.text(150, 1100, NAMES["power 3"], color="#c8553d", va="center")
    below.text(230, 62, NAMES["classical"], color="#20639b", ha="right")
    below.text(140, 11, f"{THEORY} $d$", color="0.3")
    return fig
