"""One unit of a gated layer over the plane of its two paths, f(L) R, and how much of that a linear map would do as well."""

from typing import Any, get_args

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import SIGNED, figure
from minitransformer.functional import Gate, gated

GRID = 32  # points to a side of the square
LINES: dict[str, Any] = {"colors": "0.3", "linewidths": 1}  # dashed below zero


def data() -> dict[str, Any]:
    """The functions that open a gate, and where the point begins."""
    return {"gates": list(get_args(Gate)), "start": [0.5, 0.5]}


def square(reach: float) -> np.ndarray:
    """The middles of GRID × GRID cells that fill the square of all L and R up to ±reach, (GRID, GRID, 2)."""
    side = reach * ((np.arange(GRID) + 0.5) / GRID * 2 - 1)
    return np.stack(np.meshgrid(side, side), -1)


def compute(data: dict[str, Any], gate: Gate, L: float, R: float, reach: float) -> dict[str, Any]:
    """The gate f(L), what the unit says, what it makes of a gradient of one; and of the squares of what it says in a square
    around zero, the share that the best linear map of L and R, with a constant, explains.
    """
    Y, pullback = gated(np.array([L]), np.array([R]), gate)
    dL, dR = pullback(np.ones(1))
    places = square(reach).reshape(-1, 2)
    said, _ = gated(places[:, 0].copy(), places[:, 1].copy(), gate)
    best, *_ = np.linalg.lstsq(np.column_stack([places, np.ones(len(places))]), said, rcond=None)
    apart = said - places @ best[:2] - best[2]
    return {
        "Y": float(Y[0]),
        "dL": float(dL[0]),
        "dR": float(dR[0]),
        "linear": float(1 - (apart * apart).sum() / (said * said).sum()),
    }


def still(data: dict[str, Any]) -> Figure:
    """For small numbers: left a sigmoid, whose unit is nearly half of R, right f(L) = L, whose unit is a product; lines of equal
    height are dashed below zero.
    """
    fig, axes = figure(1, 2, width=9, height=4.6, sharey=True)
    side = square(0.5)
    names: dict[Gate, str] = {"sigmoid": "σ(L) R", "none": "L R"}
    for ax, (gate, name) in zip(axes, names.items(), strict=True):
        said, _ = gated(side[..., 0].copy(), side[..., 1].copy(), gate)
        steps = ax.contourf(side[0, :, 0], side[:, 0, 1], said, levels=13, cmap=SIGNED, vmin=-0.3, vmax=0.3)
        ax.contour(side[0, :, 0], side[:, 0, 1], said, levels=steps.levels[np.abs(steps.levels) > 1e-9], **LINES)
        linear = compute(data, gate, 0.5, 0.5, 0.5)["linear"]
        ax.set(title=f"{name}: {linear:.0%} linear", xlabel="$L$", aspect="equal")
        ax.set(xticks=[-0.4, 0, 0.4], yticks=[-0.4, 0, 0.4])
    axes[0].set_ylabel("$R$")
    return fig
