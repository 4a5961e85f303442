"""What `minitransformer train` does in a few minutes, three times, and n-grams of the same text beside it."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.training_text import EVERY
from minitransformer.figures.style import FAINT, figure
from minitransformer.typing import Array


class TrainingText(NamedTuple):
    """Bits per byte.

    steps, losses    (k,), (seeds, k): the training text, means of 20 steps, drawn at the last of them
    looked, looks    (l,), (seeds, l): a few windows of the held-out text
    names, bits      (p,), (seeds, p, 3): every predictor at the end, on all held-out bytes, on copies, and on new ones
    """

    steps: Array
    losses: Array
    looked: Array
    looks: Array
    names: list[str]
    bits: Array


def data() -> TrainingText:
    """What is on record."""
    results = experiments.load("training_text").results
    losses, looks = (np.array([result[name] for result in results]) for name in ("losses", "looks"))
    names = [row[0] for row in results[0]["bits"]]
    bits = np.array([[row[1:] for row in result["bits"]] for result in results])
    steps = EVERY * np.arange(1, losses.shape[1] + 1)
    return TrainingText(steps, losses, looks[0, :, 0], looks[:, :, 1], names, bits)


KINDS = ((2, -0.2, "#20639b", "white", "new passages"), (1, 0.2, "#b9cfe2", "black", "copied passages"))


def draw(data: TrainingText) -> Figure:
    """Above: losses against steps. Below: the judgement, on passages that stand in the training text too, and on others."""
    fig, (ax, judged) = figure(2, 1, width=10.0, height=10.5, height_ratios=(4, 5))
    for k, (losses, looks) in enumerate(zip(data.losses, data.looks, strict=True)):
        name = "_" * (k > 0)  # one entry in the legend for all seeds
        thin = {"color": FAINT, "linewidth": 1.4, "linestyle": "-"}
        ax.plot(data.steps, losses, label=f"{name}training, means of 20 steps", **thin)
        ax.plot(data.looked, looks, color="#20639b", linestyle="-", label=f"{name}held-out, a few windows")
    ax.set(xlabel="step", ylabel="bits per byte", ylim=(1, 5), xlim=(0, data.steps[-1]))
    ax.legend(loc="upper right")

    shown = [k for k, name in enumerate(data.names) if name not in ("1-gram", "2-gram")]
    for place, k in enumerate(shown):
        for kind, shift, colour, ink, name in KINDS:
            seeds = data.bits[:, k, kind]
            judged.barh(place + shift, seeds.mean(), 0.38, color=colour, label="_" * (place > 0) + name)
            judged.plot([seeds.min(), seeds.max()], [place + shift] * 2, color="black", linewidth=3, linestyle="-")
            judged.text(0.05, place + shift + 0.02, f"{seeds.mean():.2f}", va="center", color=ink)
    judged.set_yticks(np.arange(len(shown)), [data.names[k] for k in shown])
    judged.invert_yaxis()
    judged.set(xlabel="bits per held-out byte", xlim=(0, 3.6))
    judged.legend(loc="lower right")
    return fig
