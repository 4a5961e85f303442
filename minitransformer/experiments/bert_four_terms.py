"""How large are the four terms of a score in a real BERT, and how much of position–position is a function of j − i?

A table of positions is added once, before the first layer. What is left of it in the input of a layer is measured: the
mean over many pieces of running text at each position, minus the mean over all positions. The rest is the content,
together with everything that does not change. In the first layer the norm can also be split exactly (`first_layer`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from minitransformer.backend import backend
from minitransformer.data.text import python_docs
from minitransformer.experiments.bert_heads import SENTENCE
from minitransformer.measurements.position_scores import fit_offsets
from minitransformer.models import BERT, SequenceParams
from minitransformer.models.bert_files import WordPiece, load_bert
from minitransformer.models.norms import norm_of
from minitransformer.positions import four_terms
from minitransformer.positions.four_terms import TERMS
from minitransformer.typing import Array

IN_A_TEST = {"pieces": 8, "windows": 6}
HEAD = 5  # of the first layer, in the matrices
EXACT = 64  # windows whose first layer is split exactly


@dataclass(frozen=True)
class Trial:
    """How many windows of running text, and how many word pieces in each."""

    pieces: int
    windows: int
    seed: int = 0


def trials() -> list[Trial]:
    """Short texts, and longer ones."""
    return [Trial(32, 384), Trial(128, 96)]


def run(trial: Trial) -> dict[str, Any]:
    """Read the windows and split the input of each layer; and the scores of one sentence in the first layer, exactly.

    text        the beginning of the SHA-256 of the text; every Python has its own
    size        (blocks, 4, heads) size of each term: standard deviation over j, root mean square over i and windows
    of_offset   (blocks, heads) part of the variance of position–position that is a function of j − i
    share       (blocks,) part of the variance of a layer's input that is position
    exact       (4, heads) size of each term in the first layer, split exactly
    tokens      the n word pieces of SENTENCE
    matrices    (4, n, n) its terms in one head of the first layer, split exactly, without the mean of each row
    """
    model, params, tokenizer = load_bert()
    tokens = running_text(tokenizer, trial)
    sizes, of_offset, share = measured(model, params, tokens)
    exact = [[size(T) for T in terms] for terms in _exact(model, params, tokens[:EXACT])]
    sentence = list(_exact(model, params, tokenizer([SENTENCE]).tokens, ends=True))[HEAD][:, 0]
    return {
        "text": python_docs().sha256[:16],
        "size": sizes.round(4).tolist(),
        "of_offset": of_offset.round(4).tolist(),
        "share": share.round(4).tolist(),
        "exact": np.transpose(exact).round(4).tolist(),
        "tokens": tokenizer.pieces(SENTENCE),
        "matrices": (sentence - sentence.mean(-1, keepdims=True)).round(3).tolist(),
    }


def running_text(tokenizer: WordPiece, trial: Trial) -> Array:
    """Windows of the documentation of Python, cut at random places, between [CLS] and [SEP]: (windows, pieces + 2)."""
    text = python_docs().train[:150_000].tobytes().decode(errors="ignore")
    first, *found, last = tokenizer([text], longest=len(text)).tokens[0]
    starts = np.random.default_rng(trial.seed).integers(0, len(found) - trial.pieces, trial.windows)
    return np.array([[first, *found[s : s + trial.pieces], last] for s in starts])


def measured(model: BERT, params: SequenceParams, tokens: Array) -> tuple[Array, Array, Array]:
    """Of every layer: the size of each term, the part of position–position that is the offset's, the share of position."""
    sizes, of_offset, share = [], [], []
    for block, X in zip(params.stack.blocks, _inputs(model, params, tokens), strict=True):
        position = X.mean(0) - X.mean((0, 1))
        content = X[:EXACT] - position
        heads = [terms_of_head(block.attention, content, position, head, model.heads) for head in range(model.heads)]
        sizes.append(np.transpose([[size(T) for T in terms] for terms in heads]))
        of_offset.append([fit_offsets(terms[3])[1] for terms in heads])
        share.append((position**2).sum(-1).mean() / X.var((0, 1)).sum())
    return np.array(sizes), np.array(of_offset), np.array(share)


def _inputs(model: BERT, params: SequenceParams, tokens: Array) -> Iterator[Array]:
    """The input of attention in each block, without [CLS] and [SEP], (windows, pieces, D) in float64."""
    found: list[list[Array]] = [[] for _ in range(model.depth)]
    with backend("numpy"), threadpool_limits(1):
        for start in range(0, len(tokens), 8):
            _, pullback = model(params, tokens[start : start + 8])
            for block, inputs in zip(pullback.blocks, found, strict=True):
                inputs.append(block.attention.layer.q.projection.X[:, 1:-1].astype(np.float64))
            del pullback, block  # or the next would be made beside them
    while found:
        yield np.concatenate(found.pop(0))


def first_layer(model: BERT, params: SequenceParams, tokens: Array) -> tuple[Array, Array]:
    """Content and position, whose sum is LN(E[tokens] + Π + T), (*batch, n, D).

    A norm is linear once μ and σ of the sum are known:

    LN(w + π) = [γ (w − mean(w))/σ + β] + [γ (π − mean(π))/σ]        σ is that of w + π
    """
    word = params.E[tokens].astype(np.float64) + params.types[0]
    place = np.broadcast_to(params.positions.table[: tokens.shape[-1]], word.shape)
    sigma = np.sqrt((word + place).var(-1, keepdims=True) + norm_of(model.norm, model.width).eps)
    content, position = (params.norm.gamma * (part - part.mean(-1, keepdims=True)) / sigma for part in (word, place))
    return content + params.norm.beta, position


def terms_of_head(attention: Any, content: Array, position: Array, head: int, heads: int) -> list[Array]:
    """cc, cp, pc and pp of one head, for contents (*batch, n, D) and positions (n, D) whose sum is the input.

    The bias of the queries is part of their content: one more column, of ones. That of the keys softmax does not see.
    """
    width, one = attention.W_q.shape[1], np.ones((*content.shape[:-1], 1))
    columns = slice(head * width // heads, (head + 1) * width // heads)
    W_q = np.vstack([attention.W_q[:, columns], attention.b_q[columns]]).astype(np.float64)
    W_k = np.vstack([attention.W_k[:, columns], np.zeros(width // heads)])
    position = np.concatenate([position, np.zeros((len(position), 1))], -1)
    _, pullback = four_terms(np.concatenate([content, one], -1), position, W_q, W_k)
    return [getattr(pullback, term) for term in TERMS]


def _exact(model: BERT, params: SequenceParams, tokens: Array, *, ends: bool = False) -> Iterator[Array]:
    """The terms in each head of the first layer, split exactly, (4, windows, n, n), with or without [CLS] and [SEP]."""
    inner = slice(None) if ends else slice(1, -1)
    both = [part[:, inner] for part in first_layer(model, params, tokens)]
    attention = params.stack.blocks[0].attention
    for head in range(model.heads):
        pairs = [terms_of_head(attention, c, p, head, model.heads) for c, p in zip(*both, strict=True)]
        yield np.swapaxes(pairs, 0, 1)


def size(T: Array) -> float:
    """How much a term can do: its standard deviation over the keys j, which is all that softmax sees of it."""
    return float(np.sqrt(T.var(-1).mean()))
