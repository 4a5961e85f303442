"""Can E and F be learned so that a head of a trained BERT says with k keys what it says with n, here and on another text?

Every head gets its own E and F, fitted to what it says of one passage, the head itself unchanged; then they are tried on other
passages. Beside it: random queries, keys and values of width 8, for which n grows and k does not.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minitransformer.attention import dot_product_attention
from minitransformer.attention.smaller import linformer_attention
from minitransformer.data.text import decode, python_docs
from minitransformer.experiments.attention_rank import heads_of, passages_of
from minitransformer.models.bert_files import load_bert
from minitransformer.training.optimiser import AdamW
from minitransformer.training.schedule import Cosine
from minitransformer.typing import Array

PASSAGES = 4
Sample = tuple[Array, Array, Array]  # Q, K and V of some heads, (heads, n, d)


@dataclass(frozen=True)
class Trial:
    """`block` of the BERT, from 0, on texts of n tokens; or with None one random head of width 8 for each of four seeds."""

    block: int | None
    n: int
    k: int
    steps: int = 300
    rate: float = 3e-2


def trials() -> list[Trial]:
    """Six blocks and two k; five lengths."""
    real = [Trial(block, 256, k) for k in (32, 128) for block in range(6)]
    return real + [Trial(None, n, 32, steps=2000) for n in (64, 128, 256, 512, 1024)]


def small(trial: Trial) -> Trial:
    """Two steps."""
    return replace(trial, steps=2, n=64, k=8)


def run(trial: Trial) -> dict[str, Any]:
    """‖Y′ − Y‖/‖Y‖, mean of the heads.

    start     with E and F as averages of neighbours
    fitted    after the steps, on what they were fitted to
    other     on other passages; None for random heads, where there is no other
    mean      of the average of all values in place of Y
    """
    fitted_to, others = _samples(trial)
    E = averages(trial.k, trial.n).astype(np.float32)
    E = np.tile(E, (fitted_to[0].shape[0], 1, 1))
    before = apart(fitted_to, E, E)
    E, F = fit(fitted_to, E, trial)
    V = fitted_to[2]
    mean = np.broadcast_to(V.mean(-2, keepdims=True), V.shape)
    found = [before, apart(fitted_to, E, F), _relative(mean, said(fitted_to))]
    start, fitted, mean_only = (round(float(error.mean()), 3) for error in found)
    other = None if not others else round(float(np.mean([apart(sample, E, F) for sample in others])), 3)
    return {"start": start, "fitted": fitted, "other": other, "mean": mean_only}


def averages(k: int, n: int) -> Array:
    """E (k, n) whose row a is the mean of the a-th of k blocks of neighbours."""
    which = np.arange(n) * k // n
    return (which == np.arange(k)[:, None]) / np.bincount(which, minlength=k)[:, None]


def _samples(trial: Trial) -> tuple[Sample, list[Sample]]:
    """Q, K, V of the heads (heads, n, d) on the passage to be fitted to, and on others."""
    if trial.block is None:
        rngs = [np.random.default_rng(seed) for seed in range(4)]
        Q, K, V = (np.stack([rng.standard_normal((trial.n, 8), np.float32) for rng in rngs]) for _ in range(3))
        return (Q, K, V), []
    model, params, tokenizer = load_bert()
    docs = python_docs()
    text = decode(np.concatenate([docs.train, docs.held_out]))
    found = []
    for row in passages_of(text, tokenizer, PASSAGES, trial.n):
        blocks = list(heads_of(model, params, row[None]))
        Q, K, V, _ = (X.astype(np.float32) for X in blocks[trial.block])
        found.append((Q, K, V))
    return found[0], found[1:]


def said(sample: Sample) -> Array:
    """Y of dense attention."""
    return dot_product_attention(*sample)[0]


def _relative(Y: Array, want: Array) -> Array:
    return np.linalg.norm(Y - want, axis=(-2, -1)) / np.linalg.norm(want, axis=(-2, -1))


def apart(sample: Sample, E: Array, F: Array) -> Array:
    """‖Y′ − Y‖/‖Y‖ of each head."""
    return _relative(linformer_attention(*sample, E, F)[0], said(sample))


def fit(sample: Sample, E: Array, trial: Trial) -> tuple[Array, Array]:
    """E and F after so many steps of AdamW against the squared error of each head, relative to its size."""
    want = said(sample)
    size = (want**2).sum((-2, -1), keepdims=True)
    optimiser, rate = AdamW(weight_decay=0.0), Cosine(trial.rate, trial.steps)
    params = (E, E.copy())
    state = optimiser.init(params)
    for step in range(1, trial.steps + 1):
        Y, pullback = linformer_attention(*sample, *params)
        *_, dE, dF = pullback((2 * (Y - want) / size).astype(np.float32))
        params, state = optimiser.update(params, (dE, dF), state, rate(step) / trial.k**0.5)
    return params
