"""How long each token thinks: a walk from place to place, one step of attention at a time, that ends where it can't go on."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import dot_product_attention
from minitransformer.figures.style import figure
from minitransformer.functional import sigmoid
from minitransformer.models.universal import halting
from minitransformer.typing import Array

LEADS_TO = (0, 0, 1, 1, 3, 4, 3, 2, 5, 0)  # where each place leads; 0 leads to itself
SHARP = 60.0  # of scores and of the halting unit: what is meant, to the last digit that is shown


class Pondering(NamedTuple):
    """places (T + 1, n): where each token stands before each step; w (T, n): weights of the steps; N (n,): steps."""

    leads_to: tuple[int, ...]
    places: Array
    w: Array
    N: Array


def walk(leads_to: tuple[int, ...] = LEADS_TO, steps: int = 8) -> tuple[Array, Array]:
    """Where all tokens stand before each step, (T + 1, n), and p of each, (T, n).

    Keys are the places and values say where they lead, so one step of attention is one step of the walk; whoever has arrived at
    0 is sure.
    """
    n = len(leads_to)
    stands, leads = np.eye(n), np.eye(n)[list(leads_to)]
    places, p = [stands.argmax(1)], []
    for _ in range(steps):
        p.append(sigmoid(SHARP * (stands[:, 0] - 0.5))[0])
        stands, _ = dot_product_attention(SHARP * stands, np.eye(n), leads, scale=1.0)
        places.append(stands.argmax(1))
    return np.stack(places), np.stack(p)


def data() -> Pondering:
    """Weights and numbers of steps, by the function that the Universal Transformer halts with."""
    places, p = walk()
    (w, _), pullback = halting(p)
    return Pondering(LEADS_TO, places, w, pullback.N)


def draw(data: Pondering) -> Figure:
    """Left where each token stands before each step, dark when it has arrived; right the steps that each has taken."""
    n, longest = len(data.leads_to), data.N.max()
    fig, (left, right) = figure(1, 2, height=5)
    arrived = data.places[:longest] == 0
    left.imshow(arrived, cmap="Blues", vmin=0, vmax=1.6, aspect="auto")
    for t, i in np.ndindex(longest, n):
        left.text(i, t, str(data.places[t, i]), ha="center", va="center")
    left.set(xlabel="token $i$", xticks=range(n), title="where it stands")
    left.set(ylabel="step $t$", yticks=range(longest), yticklabels=range(1, longest + 1))
    right.bar(range(n), data.N, color="#20639b")
    right.set(xlabel="token $i$", xticks=range(n), title="how long it thinks")
    right.set(ylabel="steps $N_i$", yticks=range(longest + 1))
    return fig
