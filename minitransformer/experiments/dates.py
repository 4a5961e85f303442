"""How many of a thousand held-out dates does the translator write without a wrong character, and where does it look?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.backend import backend
from minitransformer.data import dates
from minitransformer.models import EncoderDecoder
from minitransformer.pullback import Tree, tree_size
from minitransformer.training.loop import train
from minitransformer.training.objective import WriteISO
from minitransformer.training.recipes import DATES, date_translator
from minitransformer.typing import Array

IN_A_TEST = {"steps": 3, "judged": 20}
LOOKED_AT = ("Wednesday, March 3rd, 2021", "14.7.1989")
KEPT = 6  # mistakes


@dataclass(frozen=True)
class Trial:
    """One run of `minitransformer train --task dates`, evaluated on this many held-out dates."""

    seed: int
    steps: int = DATES["steps"]
    judged: int = 1000


def trials() -> list[Trial]:
    """Three trials that differ in their seed."""
    return [Trial(seed) for seed in range(3)]


def run(trial: Trial) -> dict[str, Any]:
    """Train, translate what was held out, and open the cross-attention of two dates."""
    model, training = date_translator(seed=trial.seed, steps=trial.steps)
    objective = WriteISO()
    state = train(model, objective, training, progress=False)
    held_out = dates.held_out_set(trial.judged)
    answers = objective.translate(model, state.params, held_out.written)
    rows = list(zip(held_out.written, answers, held_out.iso, strict=True))
    wrong = [row for row in rows if row[1] != row[2]]
    written, A = cross_attention(model, state.params, LOOKED_AT)
    return {
        "parameters": tree_size(state.params),
        "exact": round(1 - len(wrong) / len(rows), 4),
        "looks": [[step, round(bits, 4)] for step, bits in state.held_out],
        "wrong": wrong[:KEPT],
        "read": list(LOOKED_AT),
        "written": written,
        "attention": [a.astype(np.float64).round(3).tolist() for a in A],
    }


def cross_attention(model: EncoderDecoder, params: Tree, sources: Sequence[str]) -> tuple[list[str], list[Array]]:
    """What the model writes for each source, and the mean over all heads and blocks of where it looked, (n, m) each."""
    with backend("numpy"):  # the tier that keeps A
        tokens, lengths = dates.to_sources(sources)
        answer = model.translate(
            params, tokens, begin=dates.BOS, end=dates.EOS, longest=dates.ISO_LENGTH + 1, lengths=lengths
        )
        target = np.concatenate([np.full((len(sources), 1), dates.BOS), answer], 1)
        _, pullback = model(params, tokens, target, lengths=lengths)
    A = np.mean([block.cross.A.mean(1) for block in pullback.decoder.blocks], axis=0)
    written = [dates.decode(row) for row in answer]
    return written, [A[k, : len(w), :m] for k, (w, m) in enumerate(zip(written, lengths, strict=True))]
