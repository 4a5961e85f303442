"""Can E and F be learned so that a head of a trained BERT says with k keys what it says with n, here and on another text?

Every head gets its own E and F, fitted to what it says of one passage or of 48, the head itself unchanged; then they are tried
on eight other passages. Beside it: random queries, keys and values of width 8, for which n grows and k does not.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.attention import dot_product_attention
from minitransformer.attention.compressed import linformer_attention
from minitransformer.data.text import python_docs
from minitransformer.experiments.attention_rank import averages, heads_of, passages_of, relative_error
from minitransformer.models.bert_files import load_bert
from minitransformer.training.optimiser import AdamW
from minitransformer.training.schedule import Cosine
from minitransformer.typing import Array

IN_A_TEST = {"steps": 2, "n": 64, "k": 8, "passages": 2}
OTHERS = 8  # passages that E and F are not fitted to, and are tried on
Sample = tuple[Array, Array, Array]  # Q, K and V of some heads, (heads, n, d)


@dataclass(frozen=True)
class Trial:
    """`block` of the BERT, from 0, on texts of n tokens; or with None one random head of width 8 for each of four seeds.

    passages   how many texts E and F are fitted to, one in each step, in turns
    """

    block: int | None
    n: int
    k: int
    steps: int = 300
    rate: float = 3e-2
    passages: int = 1


def trials() -> list[Trial]:
    """Six blocks, fitted to one text with two k, and to many; five lengths."""
    real = [Trial(block, 256, k) for k in (32, 128) for block in range(6)]
    many = [Trial(block, 256, 128, steps=1200, rate=1e-2, passages=48) for block in range(6)]
    return real + many + [Trial(None, n, 32, steps=2000) for n in (64, 128, 256, 512, 1024)]


def run(trial: Trial) -> dict[str, Any]:
    """‖Y′ − Y‖/‖Y‖, mean of the heads and of the passages.

    start     with E and F as averages of neighbours, on what they are going to be fitted to
    fitted    after the steps, on the same
    before    with averages, on other passages; None for random heads, where there is no other
    other     after the steps, on the same others
    mean      of the average of all values in place of Y
    """
    fitted_to, others = samples_of(trial)
    averaged = np.tile(averages(trial.k, trial.n).astype(np.float32), (fitted_to[0][0].shape[0], 1, 1))
    E, F = fit(fitted_to, averaged, trial)

    def error(samples: list[Sample], E: Array, F: Array) -> float | None:
        return round(float(np.mean([apart(sample, E, F) for sample in samples])), 3) if samples else None

    flat = [relative_error(V.mean(-2, keepdims=True), said((Q, K, V))) for Q, K, V in fitted_to]
    return {
        "start": error(fitted_to, averaged, averaged),
        "fitted": error(fitted_to, E, F),
        "before": error(others, averaged, averaged),
        "other": error(others, E, F),
        "mean": round(float(np.mean(flat)), 3),
    }


def samples_of(trial: Trial) -> tuple[list[Sample], list[Sample]]:
    """Q, K, V of the heads (heads, n, d) on the passages to be fitted to, and on others."""
    if trial.block is None:
        rngs = [np.random.default_rng(seed) for seed in range(4)]
        Q, K, V = (np.stack([rng.standard_normal((trial.n, 8), np.float32) for rng in rngs]) for _ in range(3))
        return [(Q, K, V)], []
    model, params, tokenizer = load_bert()
    found = []
    for row in passages_of(python_docs(), tokenizer, trial.passages + OTHERS, trial.n):
        blocks = list(heads_of(model, params, row[None]))
        Q, K, V, _ = (X.astype(np.float32) for X in blocks[trial.block])
        found.append((Q, K, V))
    return found[OTHERS:], found[:OTHERS]


def said(sample: Sample) -> Array:
    """What the heads say with dense attention."""
    return dot_product_attention(*sample)[0]


def apart(sample: Sample, E: Array, F: Array) -> Array:
    """‖Y′ − Y‖/‖Y‖ of each head."""
    return relative_error(linformer_attention(*sample, E, F)[0], said(sample))


def fit(samples: list[Sample], E: Array, trial: Trial) -> tuple[Array, Array]:
    """E and F after the trial's steps of AdamW on the squared error of each head, relative to its size; a sample a step."""
    wants = [said(sample) for sample in samples]
    optimiser, rate = AdamW(weight_decay=0.0), Cosine(trial.rate, trial.steps)
    params = (E, E.copy())
    state = optimiser.init(params)
    for step in range(1, trial.steps + 1):
        sample, want = samples[step % len(samples)], wants[step % len(samples)]
        size = (want**2).sum((-2, -1), keepdims=True)
        Y, pullback = linformer_attention(*sample, *params)
        *_, dE, dF = pullback((2 * (Y - want) / size).astype(np.float32))
        params, state = optimiser.update(params, (dE, dF), state, rate(step) / trial.k**0.5)
    return params
