"""The picture of a run: ratios with their quartiles and targets, and time against n with the copy of V as the limit."""

from typing import Any

from matplotlib.figure import Figure

from minitransformer.figures.style import figure


def draw(record: dict[str, Any]) -> Figure:
    """Left a line for each row that has a target, right a line for each core."""
    judged = [row for row in record["rows"] if row["best"] is not None and row["target"] is not None]
    fig, (left, right) = figure(1, 2, width=13, height=max(4.5, 0.21 * len(judged) + 1.2), width_ratios=(1, 1.1))
    _ratios(left, judged)
    _lengths(right, record["slopes"])
    machine = record["machine"]
    about = [machine["processor"], f"{machine['cores']} cores"]
    if "register" in machine:  # the oldest records don't say it
        about.append(f"registers of {8 * machine['register']} bits")
    fig.suptitle(", ".join(about), fontsize=12)
    for axis in (left, right):
        axis.tick_params("x", labelsize=9)
        axis.xaxis.label.set_size(10)
        axis.yaxis.label.set_size(10)
    return fig


def _ratios(axis: Any, judged: list[dict[str, Any]]) -> None:
    for y, row in enumerate(reversed(judged)):
        ratio = row["ratios"][row["best"]]
        axis.plot([ratio["q1"], ratio["q3"]], [y, y], color="#20639b", linestyle="-", linewidth=3)
        axis.plot(ratio["median"], y, "o", color="#20639b", markersize=5)
        axis.plot(row["target"], y, "|", color="#c8553d", markersize=10, markeredgewidth=2)
        if row["limit"]:
            axis.plot(row["limit"]["median"], y, ">", color="#888888", markersize=5)
    axis.axvline(1, color="#555555", linewidth=0.8, linestyle="-")
    axis.set(ylim=(-0.7, len(judged) - 0.3), xlabel="best of the peers / ours")
    axis.set_title("● median  — quartiles  | target  ▸ limit", loc="left", fontsize=10)
    axis.set_xscale("log")
    axis.set_xticks([1, 2, 4, 8], labels=["1", "2", "4", "8"], minor=False)
    axis.xaxis.set_minor_formatter("")
    axis.set_yticks(range(len(judged)), [row["label"] for row in reversed(judged)], fontsize=8)


# A colour for each core, a dash for the way back, a marker for each line.
COLOURS = {"attention": "#20639b", "block": "#c8553d", "linear": "#3b8554", "delta": "#8a5a9e", "one": "#b8860b"}
MARKERS = "osv^D<>pPX*h"


def _lengths(axis: Any, slopes: list[dict[str, Any]]) -> None:
    fits = [
        fit for fit in slopes if fit["by"] == "ours" and " H=1 " not in fit["core"] and "(loops)" not in fit["core"]
    ]
    for k, fit in enumerate(fits):
        core = fit["core"]
        n, seconds = zip(*fit["points"], strict=True)
        if core.startswith("copy"):
            look = {"color": "#555555", "linestyle": "-", "linewidth": 3}
        else:
            colour, style = COLOURS.get(core.split()[0]), "--" if "backward" in core else "-"
            look = {"color": colour, "linestyle": style, "marker": MARKERS[k % len(MARKERS)]}
        axis.loglog(n, [1e3 * s for s in seconds], markersize=4, label=f"{core}: n^{fit['slope']:.2f}", **look)
    axis.set(xlabel="length n", ylabel="time of ours in ms")
    axis.tick_params("y", labelsize=9)
    axis.set_box_aspect(1.2)
    axis.set_anchor("N")
    if fits:
        axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14))
