"""What `minitransformer train` did in its three minutes, from the record of one run, and n-grams of the same text.

`python -m minitransformer.figures.training_text` repeats the run, with the defaults, and writes the record anew.
"""

import json
import time
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure
from minitransformer.training.judge import Bits
from minitransformer.typing import Array


class TrainingText(NamedTuple):
    """Bits per byte of each step, and of each look at held-out text; the judgement at the end; who ran it, and how long."""

    losses: Array
    looks: Array
    bits: list[Bits]
    circumstances: dict[str, Any]
    seconds: float


def _record() -> Any:
    return resources.files("minitransformer.figures").joinpath("data/train_text.json")


def data() -> TrainingText:
    """Read the committed record."""
    record = json.loads(_record().read_text("utf8"))
    bits = [Bits(*row) for row in record["bits"]]
    return TrainingText(
        np.array(record["losses"]), np.array(record["looks"]), bits, record["circumstances"], record["seconds"]
    )


def draw(data: TrainingText) -> Figure:
    """Left: loss against steps. Right: the judgement, on passages that stand in the training text too, and on others."""
    fig, (ax, judged) = figure(1, 2, width=9.5, height=3.6, width_ratios=(5, 4))
    smooth = np.convolve(data.losses, np.ones(50) / 50, "valid")
    steps = np.arange(50, len(data.losses) + 1)
    ax.plot(steps, smooth, color="0.65", linewidth=1.2, linestyle="-", label="training, mean of 50 steps")
    ax.plot(*data.looks.T, label="held-out, a few windows")
    ax.set(xlabel="step", ylabel="bits per byte", ylim=(1.2, 5), xlim=(0, len(data.losses)))
    ax.legend(loc="upper right")

    shown = [row for row in data.bits if row.name not in ("1-gram", "2-gram")]
    places = np.arange(len(shown))
    judged.barh(places - 0.2, [row.new for row in shown], 0.38, color="#20639b", label="new passages")
    judged.barh(places + 0.2, [row.copies for row in shown], 0.38, color="#b9cfe2", label="copied passages")
    for place, row in zip(places, shown, strict=True):
        judged.text(row.new - 0.04, place - 0.2, f"{row.new:.2f}", va="center", ha="right", color="white", fontsize=9)
        judged.text(row.copies - 0.04, place + 0.2, f"{row.copies:.2f}", va="center", ha="right", fontsize=9)
    judged.set_yticks(places, [row.name for row in shown])
    judged.invert_yaxis()
    judged.set(xlabel="bits per held-out byte", xlim=(0, 3.8))
    judged.legend(loc="lower right", fontsize=9)
    return fig


def main() -> None:
    """Run the default training, judge it, and write the record."""
    from minitransformer.data.text import python_docs
    from minitransformer.training.judge import bits_per_byte
    from minitransformer.training.loop import train
    from minitransformer.training.objective import NextByte
    from minitransformer.training.recipes import language_model
    from minitransformer.training.record import circumstances

    model, training = language_model()
    objective = NextByte(python_docs(), model.context)
    start = time.perf_counter()
    state = train(model, objective, training)
    seconds = time.perf_counter() - start
    record = {
        "circumstances": circumstances(),
        "text": objective.data,
        "seconds": round(seconds),
        "bits": [[row.name, *(round(b, 4) for b in row[1:])] for row in bits_per_byte(objective, model, state.params)],
        "looks": [[step, round(bits, 4)] for step, bits in state.held_out],
        "losses": [round(loss, 3) for loss in state.losses],
    }
    with resources.as_file(_record()) as path:
        path.write_text(json.dumps(record, indent=None, separators=(",", ":")) + "\n", "utf8")
    print(f"{path}: {seconds:.0f} s, {record['bits'][-1]}")


if __name__ == "__main__":
    main()
