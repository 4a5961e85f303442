"""A state among five patterns in the plane, and where the update of a modern Hopfield network takes it."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure
from minitransformer.related import hopfield_attention, hopfield_energy

STEPS = 60  # more than a state in the plane needs, but for a β at which it can't decide


def data() -> dict[str, Any]:
    """Five patterns, and where the state begins."""
    turn = 2 * np.pi * (np.arange(5) / 5 + 0.05)
    length = np.array([1.0, 0.85, 1.0, 0.9, 1.0])[:, None]
    return {"patterns": (length * np.stack([np.cos(turn), np.sin(turn)], 1)).round(6).tolist(), "start": [0.15, 0.1]}


def compute(data: dict[str, Any], x: float, y: float, beta: float, steps: int = STEPS) -> dict[str, Any]:
    """The state after `steps` updates, its energy, and its weights."""
    K, xi = np.array(data["patterns"]), np.array([[x, y]])
    if steps:
        xi, _ = hopfield_attention(xi, K, K, beta, steps=steps, tolerance=1e-300)
    _, pullback = hopfield_attention(xi, K, K, beta, steps=1)
    return {
        "x": float(xi[0, 0]),
        "y": float(xi[0, 1]),
        "energy": float(hopfield_energy(xi, K, beta)[0][0]),
        "weights": pullback.A[0].tolist(),
    }


def still(data: dict[str, Any]) -> Figure:
    """From one start: for β = 1 the state goes to the middle of all patterns, for β = 8 next to one of them."""
    fig, axes = figure(1, 2, height=5.4)
    x, y = data["start"]
    K, side = np.array(data["patterns"]), np.linspace(-1.3, 1.3, 41)
    places = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    for ax, beta in zip(axes, (1.0, 8.0), strict=True):
        energy = hopfield_energy(places, K, beta)[0].reshape(41, 41)
        ax.contourf(side, side, energy, levels=14, cmap="Blues_r")
        ax.plot(*K.T, "^", color="k", markersize=11)
        path = [compute(data, x, y, beta, steps) for steps in range(13)]
        ax.plot([at["x"] for at in path], [at["y"] for at in path], "o-", color="#c8553d", linewidth=2, markersize=6)
        ax.set(title=f"β = {beta:.0f}", aspect="equal", xticks=[-1, 0, 1], yticks=[-1, 0, 1], xlabel=r"$\xi_1$")
    axes[0].set_ylabel(r"$\xi_2$")
    return fig
