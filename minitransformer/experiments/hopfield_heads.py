"""How far is one step of attention from its fixed point, in each head of a trained BERT?

Queries and keys are the model's own, β = 1/√d, on eight sentences. With p₁ the weights of attention, and p* those of the
state that it would come to if it were repeated, the distance is ½‖p* − p₁‖₁: the part of the weight that has to move.
A model of the same form with random weights is the control.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.backend import backend
from minitransformer.experiments.attention_rank import heads_of
from minitransformer.experiments.bert_heads import TEXTS
from minitransformer.measurements.rows import in_use
from minitransformer.models.bert_files import load_bert
from minitransformer.related import hopfield_attention
from minitransformer.typing import Array

IN_A_TEST = {"texts": 1}
STEPS = 2000


@dataclass(frozen=True)
class Trial:
    """The trained weights, or those that a seed draws."""

    weights: str
    seed: int = 0
    texts: int = len(TEXTS)


def trials() -> list[Trial]:
    """The trained ones, and three draws."""
    return [Trial("trained"), *(Trial("random", seed) for seed in range(3))]


def run(trial: Trial) -> dict[str, Any]:
    """Averages over all tokens of all sentences, (blocks, heads) each.

    distance    ½‖p* − p₁‖₁
    first       exp of the entropy of p₁: how many keys are in use after one step
    last        the same of p*, at the fixed point
    spread      ½‖p* − p*′‖₁ between the fixed points of two tokens of a sentence, on average: 0 if all come to the same
    steps       how often a query is compared with the keys until it has settled, the mean
    settled     the part of the queries that has settled after STEPS
    """
    model, params, tokenizer = load_bert()
    if trial.weights == "random":
        params = model.init(np.random.default_rng(trial.seed))
    found, weights = [], []
    with backend("numpy"):  # the definition, here and in what repeats it
        for text in TEXTS[: trial.texts]:
            heads = heads_of(model, params, tokenizer([text]).tokens)
            found.append(np.stack([measured(Q, K, A) for Q, K, _, A in heads], 1))
            weights.append(len(tokenizer.pieces(text)))
    averages = np.average(found, axis=0, weights=weights)
    names = ("distance", "first", "last", "spread", "steps", "settled")
    return {name: values.round(4).tolist() for name, values in zip(names, averages, strict=True)}


def measured(Q: Array, K: Array, first: Array) -> Array:
    """What `run` returns, of the heads of one block and one sentence, (6, heads); `first` are the weights of attention."""
    _, retrieval = hopfield_attention(Q, K, K, steps=STEPS, tolerance=1e-5)
    last = retrieval.A
    apart = np.abs(last[:, :, None] - last[:, None]).sum(-1) / 2
    n = apart.shape[-1]
    kinds = [np.abs(last - first).sum(-1) / 2, in_use(first), in_use(last)]
    means = [x.mean(-1) for x in (*kinds, apart.sum(-1) / (n - 1), retrieval.steps, retrieval.settled)]
    return np.stack(means)
