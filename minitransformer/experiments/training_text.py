"""Do three minutes of a transformer beat a table of six-byte phrases? `minitransformer train`, with its defaults.

Both are judged on the same held-out bytes, those that are copies of training text apart from the others. Beside the
judgement stand the losses on the way, what the model writes, and its distribution over the next byte in one place.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.data import text
from minitransformer.functional import softmax
from minitransformer.models import generate
from minitransformer.pullback import tree_size
from minitransformer.training.evaluation import bits_per_byte
from minitransformer.training.loop import train
from minitransformer.training.objective import NextByte
from minitransformer.training.recipes import TEXT, language_model

IN_A_TEST = {"steps": 3, "width": 16, "depth": 1, "order": 2, "written": 20}
EVERY = 20  # steps whose losses become one number
PROMPT = "The value of "
TEMPERATURES = (0.5, 1.0)


@dataclass(frozen=True)
class Trial:
    """One run; `order` is that of the longest n-gram to compare with."""

    seed: int
    steps: int = TEXT["steps"]
    width: int = TEXT["width"]
    depth: int = TEXT["depth"]
    order: int = 6
    written: int = 300


def trials() -> list[Trial]:
    """Three trials that differ in their seed."""
    return [Trial(seed) for seed in range(3)]


def run(trial: Trial) -> dict[str, Any]:
    """Train, judge, and let it write."""
    model, training = language_model(seed=trial.seed, steps=trial.steps, width=trial.width, depth=trial.depth)
    docs = text.python_docs()
    objective = NextByte(docs, model.context)
    state = train(model, objective, training, progress=False)

    prompt = text.encode(PROMPT)

    def written(temperature: float) -> str:
        rng = np.random.default_rng(trial.seed)
        new = generate(model, state.params, prompt, trial.written, temperature=temperature, rng=rng)
        return text.decode(np.append(prompt, new))

    logits, _ = model(state.params, prompt)
    losses = [np.mean(state.losses[k : k + EVERY]) for k in range(0, len(state.losses), EVERY)]
    return {
        "text": objective.data,
        "bytes": [len(docs.train), len(docs.held_out)],
        "copies": round(float(text.copied(docs.held_out, docs.train).mean()), 4),
        "parameters": tree_size(state.params),
        "bits": [
            [row.name, *(round(b, 4) for b in row[1:])]
            for row in bits_per_byte(objective, model, state.params, order=trial.order)
        ],
        "looks": [[step, round(bits, 4)] for step, bits in state.held_out],
        "losses": [round(float(loss), 3) for loss in losses],
        "written": {str(temperature): written(temperature) for temperature in TEMPERATURES},
        "next": (-np.log2(softmax(logits[-1].astype(np.float64))[0])).round(3).tolist(),
    }
