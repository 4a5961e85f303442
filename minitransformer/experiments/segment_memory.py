"""How many bits per byte does a memory save, in training and in evaluation?

Transformer-XL on the text of the book, in segments of 64 bytes: trained with a memory or without, on the same streams, and
then judged with memories of several lengths, for which nothing more is learned.
"""

from dataclasses import dataclass, replace
from typing import Any

from minitransformer.data.text import python_docs
from minitransformer.models import LanguageModel
from minitransformer.models.transformer_xl import reach
from minitransformer.pullback import tree_size
from minitransformer.training.loop import train
from minitransformer.training.objective import Segments
from minitransformer.training.recipes import parts_of, usual_training

IN_A_TEST = {"steps": 2, "width": 16, "depth": 1}
JUDGED = (0, 32, 64, 128, 256, 512)  # lengths of the memory in evaluation
BATCH = 8


@dataclass(frozen=True)
class Trial:
    """One training; the held-out text is read once for each length of the memory."""

    memory: int
    seed: int
    steps: int = 2000
    segment: int = 64
    width: int = 64
    depth: int = 3


def trials() -> list[Trial]:
    """Without a memory, with one segment of it, and with two; three seeds each."""
    return [Trial(memory, seed) for memory in (0, 64, 128) for seed in range(3)]


def run(trial: Trial) -> dict[str, Any]:
    """Held-out bits per byte for each memory; and how many bytes before its segment a prediction can depend on."""
    sizes: dict[str, Any] = {"context": trial.segment, "width": trial.width, "depth": trial.depth, "heads": 4}
    model = LanguageModel(
        **sizes, positions="transformer-xl", stack=f"transformer-xl:memory={trial.memory}", ffn="relu"
    )
    training = replace(
        usual_training(trial.steps, BATCH, 6e-3, trial.seed), parts=parts_of(BATCH, BATCH * trial.segment)
    )
    objective = Segments(python_docs(), trial.segment)
    params = train(model, objective, training, progress=False).params
    return {
        "text": objective.data,
        "parameters": tree_size(params),
        "bits": [
            round(float(objective.bits(replace(model, stack=f"transformer-xl:memory={M}"), params).mean()), 4)
            for M in JUDGED
        ],
        "reach": [reach(trial.depth, trial.segment, M) for M in JUDGED],
    }
