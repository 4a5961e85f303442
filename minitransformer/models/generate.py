"""Generation: draw the next token, append it, repeat, with the keys and values of the past kept.

P = softmax(logits / temperature), restricted to the k most probable tokens (top-k)
    or to the fewest tokens whose probabilities reach p (top-p), and renormalised
"""

import math
from contextlib import nullcontext
from typing import Any

import numpy as np

from minitransformer.functional import loops_in, refuse_unknown
from minitransformer.machine import keep_freed_memory, one_blas_thread
from minitransformer.models.norms import Norm
from minitransformer.models.sequence_model import LanguageModel, SequenceModel, SequenceParams, Written
from minitransformer.models.stack import Stack
from minitransformer.positions import LearnableSinusoids, LearnedPositions, NoPositions, SinusoidalPositions
from minitransformer.ranges import NonNegativeNumber, PositivePart, Repeats
from minitransformer.typing import Array, Float, Int, checked

PIECE = 4096  # tokens of a text that are read at once
AT_ONCE = 16  # tokens that the loops write before Python has its turn, and Ctrl-C is heard: a few milliseconds
ADDED = NoPositions, SinusoidalPositions, LearnableSinusoids, LearnedPositions
DIVERGED = "logits: the largest is not finite; has training diverged?"
COLDEST = 1e-30  # a quotient by a lower temperature would not be finite


@checked
def next_token_distribution(
    logits: Float[Array, "*batch vocabulary"],
    *,
    temperature: NonNegativeNumber = 1.0,
    top_k: int | None = None,
    top_p: PositivePart | None = None,
) -> Float[Array, "*batch vocabulary"]:
    """Probabilities of the next token. Temperature 0 puts everything on the most probable one, the first of equals.

    With top_k and top_p, tokens as probable as the last one that is kept are kept too, whatever their order. A logit of −∞ is a
    probability of 0.
    raises   ValueError for a negative temperature, top_k < 1, top_p outside (0, 1], a NaN, or logits whose largest is not finite
    """
    if not logits.shape[-1]:
        raise ValueError(f"logits: shape {logits.shape} should have at least one token")
    top = logits.max(-1, keepdims=True)
    if not np.isfinite(top).all():
        raise ValueError(DIVERGED)
    if temperature < COLDEST:
        best = logits == top
        first = best & (best.cumsum(-1) == 1)
        return first.astype(logits.dtype)
    P = np.exp((logits - top) / logits.dtype.type(temperature))
    P /= P.sum(-1, keepdims=True)
    if top_k is not None and top_k < P.shape[-1]:
        P = _keep(P, np.sort(P, -1)[..., -top_k, None])
    if top_p is not None and top_p < 1:
        ordered = -np.sort(-P, -1)
        before = ordered.cumsum(-1) - ordered  # probability of all that are more probable
        last = (before < top_p).sum(-1, keepdims=True) - 1
        P = _keep(P, np.take_along_axis(ordered, last, -1))
    return P


def _keep(P: Array, least: Array) -> Array:
    """The probabilities of at least this size, renormalised; 0 for the others."""
    P = np.where(P >= least, P, 0)
    return P / P.sum(-1, keepdims=True)


class GenerationInterrupted(KeyboardInterrupt):
    """Ctrl-C. `tokens` are those that were drawn before."""

    def __init__(self, tokens: Int[Array, "n"], steps: int) -> None:
        super().__init__(f"interrupted after {len(tokens)} of {steps}")
        self.tokens = tokens


@checked
def generate(
    model: LanguageModel,
    params: SequenceParams,
    prompt: Int[Array, "n"],
    steps: Repeats,
    *,
    temperature: NonNegativeNumber = 1.0,
    top_k: int | None = None,
    top_p: PositivePart | None = None,
    rng: np.random.Generator,
) -> Int[Array, "steps"]:
    """Continue a prompt by `steps` tokens; returns only the new ones.

    When the context is full, the second half of it is read again and generation goes on from there. A model with a memory
    reads on. Compiled loops write up to 16 tokens in one call, where they can; Ctrl-C is heard between two calls.
    cost     O(steps · (context D + D²)) per block with dense attention; without the cache, `context` times as much
    raises   ValueError for an empty prompt, a token outside the vocabulary, a negative number of steps, or a model whose
             outputs are not tokens; GenerationInterrupted at Ctrl-C, with the tokens so far
    """
    if len(prompt) == 0:
        raise ValueError("prompt: a model of the next token needs at least one token to start from")
    if model.outputs not in ("tied", "own"):
        raise ValueError(f'model: outputs {model.outputs!r} should be "tied" or "own", to say which token is next')
    refuse_unknown(prompt, model.vocabulary, "prompt")
    keep_freed_memory()
    tokens, wanted = list(prompt), len(prompt) + steps
    ends = _ends(model, params) if top_k is top_p is None else None
    temperature = float(temperature) if temperature >= COLDEST else 0.0
    try:
        with one_blas_thread() if loops_in("threads") else nullcontext():
            logits, state = read(model, params, np.array(tokens if model.body.remembers else tokens[-model.context :]))
            while len(tokens) < wanted:
                tokens.append(_next(logits[-1], rng, temperature, top_k, top_p))
                while ends and (n := min(wanted - len(tokens), model.context - state.length, AT_ONCE)) > 0:
                    drawn, state = _write(model, params, ends, tokens[-1], state, n, temperature, rng)
                    if not drawn:  # there is no loop for these blocks: from here on Python writes, token by token
                        ends = None
                    tokens += drawn
                if len(tokens) == wanted:
                    break
                if state.length >= model.context and not model.body.remembers:
                    logits, state = read(model, params, np.array(tokens[-max(model.context // 2, 1) :]))
                else:
                    logits, state = model.step(params, np.array(tokens[-1:]), state)
    except KeyboardInterrupt:
        raise GenerationInterrupted(np.array(tokens[len(prompt) :], dtype=np.int64), steps) from None
    return np.array(tokens[len(prompt) :], dtype=np.int64)


@checked
def read(
    model: LanguageModel, params: SequenceParams, tokens: Int[Array, "n"]
) -> tuple[Float[Array, "last {model.answers}"], Any]:
    """The logits at the last tokens of a text, (last, vocabulary), and the model's state after it.

    The text is read in pieces of 4096 tokens, so the blocks need memory for one piece, however long it is. Where attention
    keeps no state, all of it is read at once.
    """
    pieces = range(PIECE, len(tokens), PIECE) if model.body.decodes else ()
    state = None
    for piece in np.split(tokens, pieces):
        logits, state = model.step(params, piece, state)
    return logits, state


def _ends(model: LanguageModel, params: SequenceParams) -> Any:
    """What a model computes before and behind its blocks, embedding, last norm and head, for the loops that write a text.

    None if the loops can't compute all of it, so that Python has its turn at every token.
    """
    norm, loops, positions = model.body.blocks[0]._norm, loops_in("one_token_text"), type(model._placed.at_embedding)
    # a class of a reader's may embed, step, norm or answer in a way of its own, which loops know nothing of
    usual = type(model) in (LanguageModel, SequenceModel) and type(model.body) is Stack and type(norm) is Norm
    if not loops or not usual or not model.body.decodes or positions not in ADDED or model._embedding.types is not None:
        return None
    if getattr(model._placed.at_embedding, "longest", model.context) < model.context:
        return None
    found = params.stack.norm and norm.for_loops(params.stack.norm)
    if not found:
        return None
    gamma, beta, _ = found
    beta = np.zeros_like(gamma) if beta is None else beta
    W, _ = model._head(params)
    scale = math.sqrt(model.width) if model._embedding.scaled else 1.0
    ends = loops.Ends(params.E, scale, gamma, beta, np.ascontiguousarray(W.T))
    return ends if ends.fit() else None


def _write(
    model: LanguageModel, params: SequenceParams, ends: Any, token: int, state: Written, n: int, temperature: float,
    rng: np.random.Generator,
) -> tuple[list[int], Written]:  # fmt: skip
    """The next n tokens after this one, drawn by loops, and the state before the last of them.

    No tokens, and the state as it was, if there is no loop for the blocks.
    """
    X, _ = model._embed(params, np.array([token]), first=state.length)
    nowhere = np.zeros((n, model.width), X.dtype)
    places, _ = model._placed.at_embedding(params.positions, nowhere, first=state.length)
    before, blocks = rng.bit_generator.state, None
    text = ends.text(places, temperature, [rng.random() for _ in range(n)])
    try:
        blocks = model.body.write(params.stack, X, state.blocks, text)
    finally:
        if blocks is None:
            rng.bit_generator.state = before
    if blocks is None:
        return [], state
    drawn = text.drawn.tolist()
    if min(drawn) < 0:
        raise ValueError(DIVERGED)
    return drawn, Written(state.length + n, blocks, None)


def _next(logits: Array, rng: np.random.Generator, temperature: float, top_k: int | None, top_p: float | None) -> int:
    """`draw` from the `next_token_distribution`, which is one loop where no token is left out."""
    if top_k is top_p is None and (loops := loops_in("one_token_text")):
        token = loops.draw_one(logits, temperature, rng.random())
        if token < 0:
            raise ValueError(DIVERGED)
        return token
    P = next_token_distribution(logits.astype(np.float64), temperature=temperature, top_k=top_k, top_p=top_p)
    return draw(P, rng)


def draw(P: Array, rng: np.random.Generator) -> int:
    """A token with the probabilities P: the first at which their running sum passes a uniform number."""
    below = P.cumsum()
    return int((below / below[-1]).searchsorted(rng.random(), side="right"))
