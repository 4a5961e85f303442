"""What do chapter 03's hundred lines learn of a nursery rhyme in 300 steps, and what does the model write then?"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.attention import MultiHeadParams
from minitransformer.backend import backend
from minitransformer.data import text
from minitransformer.functional import cross_entropy
from minitransformer.models import LanguageModel
from minitransformer.pullback import Tree, tree_size
from minitransformer.training.optimiser import AdamW
from minitransformer.typing import Array

IN_A_TEST = {"steps": 3, "written": 3}
PARTS = (
    "the house that Jack built.",
    "the malt that lay in",
    "the rat that ate",
    "the cat that killed",
    "the dog that worried",
    "the cow with the crumpled horn that tossed",
)
RHYME = "".join("This is " + "\n".join(PARTS[k::-1]) + "\n\n" for k in range(len(PARTS)))
CONTEXT, WIDTH, PEAK = 32, 32, 5e-3
LOOKS = (1, 10, 20, 50, 100, 200, 300)
PROMPT = "This is the cat"


@dataclass(frozen=True)
class Trial:
    """One training of the model of the chapter, on eight passages of 32 bytes at each step."""

    seed: int
    steps: int = 300
    written: int = 90


def trials() -> list[Trial]:
    """Three trials that differ in their seed."""
    return [Trial(seed) for seed in range(3)]


def run(trial: Trial) -> dict[str, Any]:
    """Train, with a rate that rises for twenty steps and then falls to zero; then write the most probable byte, over and over."""
    model = LanguageModel(256, CONTEXT, WIDTH, 2, 4, ffn="relu", positions="learned")
    tokens, optimiser = text.encode(RHYME), AdamW()
    params = without_biases(model.init(np.random.default_rng(trial.seed), np.float64))
    state, rng, bits = optimiser.init(params), np.random.default_rng(trial.seed + 100), []
    with backend("numpy"):
        for t in range(1, trial.steps + 1):
            inputs, targets = text.batch(tokens, CONTEXT, 8, rng)
            logits, to_params = model(params, inputs)
            loss, to_logits = cross_entropy(logits, targets)
            rate = PEAK * min(t / 20, 1 - t / trial.steps)
            params, state = optimiser.update(params, to_params(to_logits(np.float64(1))), state, rate)
            bits.append(float(loss / np.log(2)))
        written = text.encode(PROMPT)
        for _ in range(trial.written):
            logits, _ = model(params, written[None, -CONTEXT:])
            written = np.append(written, logits[0, -1].argmax())
    return {
        "parameters": tree_size(params),
        "bits": [[t, round(bits[t - 1], 3)] for t in LOOKS if t <= trial.steps],
        "last": round(float(np.mean(bits[-20:])), 3),
        "pairs": round(table_of_pairs(tokens), 3),
        "written": text.decode(written),
    }


def without_biases(params: Tree) -> Tree:
    """The parameters of the chapter's model, whose attention has four matrices and no more."""
    bare = [MultiHeadParams(a.W_q, a.W_k, a.W_v, a.W_o) for a in (block.attention for block in params.stack.blocks)]
    blocks = tuple(block._replace(attention=a) for block, a in zip(params.stack.blocks, bare, strict=True))
    return params._replace(stack=params.stack._replace(blocks=blocks))


def table_of_pairs(tokens: Array) -> float:
    """Bits per byte of the table that knows how often each byte follows each other one."""
    pairs = np.unique(np.stack([tokens[:-1], tokens[1:]]), axis=1, return_counts=True)[1]
    firsts = np.unique(tokens[:-1], return_counts=True)[1]
    surprise = (firsts * np.log2(firsts)).sum() - (pairs * np.log2(pairs)).sum()
    return float(surprise / (len(tokens) - 1))
