"""The four terms of a score in a real BERT: what content and position of two words make of each other, layer by layer.

A table of positions is added once, before the first layer. What is left of it in the input of a layer is measured: the
mean over many pieces of running text at each position, minus the mean over all positions. The rest is the content,
together with everything that does not change. In the first layer the norm can also be split exactly (`first_layer`).

The numbers come from `data/bert_four_terms.json`, which `python -m minitransformer.figures.bert_four_terms` writes in
about a minute.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

from minitransformer.backend import backend
from minitransformer.data.text import python_docs
from minitransformer.figures.style import figure
from minitransformer.models.bert import BERT, BertParams
from minitransformer.models.bert_files import WordPiece, load_bert
from minitransformer.positions import four_terms
from minitransformer.positions.four_terms import TERMS
from minitransformer.typing import Array

STORED = Path(__file__).with_name("data") / "bert_four_terms.json"
SENTENCE = "The animal didn't cross the street because it was too tired."
HEAD = 5  # of the first layer, in the matrices
WINDOWS, PIECES = 384, 32
LONG_WINDOWS, LONG_PIECES = 96, 128
TEXT = "939fdd476b82f822"  # the beginning of the SHA-256 of the text that was read; every Python has its own
NAMES = ("content–content", "content–position", "position–content", "position–position")


class FourTermsOfBert(NamedTuple):
    """What was measured; blocks and heads count from 0 here, from 1 in the figure.

    tokens      the n word pieces of SENTENCE
    matrices    (4, n, n) the terms of one head of the first layer, split exactly; the mean of each row is taken off
    exact       (4, heads) size of each term in the first layer, split exactly
    size        (blocks, 4, heads) size of each term: standard deviation over j, root mean square over i and windows
    of_offset   (blocks, heads) part of the variance of position–position that is a function of j − i
    share       (blocks,) part of the variance of a layer's input that is position
    long_size, long_of_offset    (blocks, heads) of position–position, in texts of 128 pieces
    """

    tokens: list[str]
    matrices: Array
    exact: Array
    size: Array
    of_offset: Array
    share: Array
    long_size: Array
    long_of_offset: Array


def data() -> FourTermsOfBert:
    """What `live` measured when the book was made."""
    content = json.loads(STORED.read_text(encoding="utf-8"))
    return FourTermsOfBert(content.pop("tokens"), **{name: np.array(values) for name, values in content.items()})


def live(
    model: BERT, params: BertParams, tokenizer: WordPiece, *, windows: int = WINDOWS, long_windows: int = LONG_WINDOWS
) -> FourTermsOfBert:
    """Read the windows and split the input of each layer."""
    tokens = running_text(tokenizer, windows, PIECES)
    sizes, of_offset, share = measured(model, params, tokens)
    long_sizes, long_of_offset, _ = measured(model, params, running_text(tokenizer, long_windows, LONG_PIECES))
    exact = []
    C, P = first_layer(params, tokens[:64], eps=model.eps)
    for head in range(model.heads):
        pairs = [_exact(params, c, p, head, model.heads) for c, p in zip(C[:, 1:-1], P[:, 1:-1], strict=True)]
        exact.append([size(T) for T in np.swapaxes(pairs, 0, 1)])
    C, P = first_layer(params, tokenizer([SENTENCE]).tokens, eps=model.eps)
    matrices = np.array(_exact(params, C[0], P[0], HEAD, model.heads))
    numbers = (np.transpose(exact), sizes, of_offset, share, long_sizes[:, 3], long_of_offset)
    return FourTermsOfBert(
        tokenizer.pieces(SENTENCE),
        (matrices - matrices.mean(-1, keepdims=True)).round(3),
        *(np.round(x, 4) for x in numbers),
    )


def running_text(tokenizer: WordPiece, windows: int, pieces: int, seed: int = 0) -> Array:
    """Windows of the documentation of Python, cut at random places, between [CLS] and [SEP]: (windows, pieces + 2)."""
    text = python_docs().train[:150_000].tobytes().decode(errors="ignore")
    first, *found, last = tokenizer([text], longest=len(text)).tokens[0]
    starts = np.random.default_rng(seed).integers(0, len(found) - pieces, windows)
    return np.array([[first, *found[s : s + pieces], last] for s in starts])


def measured(model: BERT, params: BertParams, tokens: Array) -> tuple[Array, Array, Array]:
    """Of every layer: the size of each term, the part of position–position that is the offset's, the share of position."""
    sizes, of_offset, share = [], [], []
    for block, X in zip(params.stack.blocks, _inputs(model, params, tokens), strict=True):
        P = X.mean(0) - X.mean((0, 1))
        heads = [terms_of_head(block.attention, X[:64] - P, P, head, model.heads) for head in range(model.heads)]
        sizes.append(np.transpose([[size(T) for T in terms] for terms in heads]))
        of_offset.append([part_of_offset(terms[3]) for terms in heads])
        share.append((P**2).sum(-1).mean() / X.var((0, 1)).sum())
    return np.array(sizes), np.array(of_offset), np.array(share)


def _inputs(model: BERT, params: BertParams, tokens: Array) -> list[Array]:
    """The input of attention in each block, without [CLS] and [SEP], (windows, pieces, D) in float64."""
    found: list[list[Array]] = [[] for _ in range(model.depth)]
    with backend("numpy"), threadpool_limits(1):
        for start in range(0, len(tokens), 32):
            _, pullback = model(params, tokens[start : start + 32])
            for block, inputs in zip(pullback.blocks, found, strict=True):
                inputs.append(block.attention.layer.cross.q.X[:, 1:-1].astype(np.float64))
    return [np.concatenate(inputs) for inputs in found]


def first_layer(params: BertParams, tokens: Array, *, eps: float) -> tuple[Array, Array]:
    """C and P with C + P = LN(E[tokens] + Π + T), (*batch, n, D): a norm is linear once μ and σ of the sum are known.

    LN(e + p + t) = γ (e + t − mean(e + t))/σ + β    and    γ (p − mean(p))/σ        σ is that of e + p + t
    """
    word = params.word[tokens].astype(np.float64) + params.type[0]
    place = np.broadcast_to(params.position.table[: tokens.shape[-1]], word.shape)
    sigma = np.sqrt((word + place).var(-1, keepdims=True) + eps)
    C, P = (params.norm.gamma * (part - part.mean(-1, keepdims=True)) / sigma for part in (word, place))
    return C + params.norm.beta, P


def terms_of_head(attention: Any, C: Array, P: Array, head: int, heads: int) -> list[Array]:
    """cc, cp, pc and pp of one head, for contents (*batch, n, D) and positions (n, D) whose sum is the input.

    The bias of the queries is part of their content: one more column, of ones. That of the keys softmax does not see.
    """
    width, one = attention.W_q.shape[1], np.ones((*C.shape[:-1], 1))
    columns = slice(head * width // heads, (head + 1) * width // heads)
    W_q = np.vstack([attention.W_q[:, columns], attention.b_q[columns]]).astype(np.float64)
    W_k = np.vstack([attention.W_k[:, columns], np.zeros(width // heads)])
    P = np.concatenate([P, np.zeros((len(P), 1))], -1)
    _, pullback = four_terms(np.concatenate([C, one], -1), P, W_q, W_k)
    return [getattr(pullback, term) for term in TERMS]


def _exact(params: BertParams, C: Array, P: Array, head: int, heads: int) -> list[Array]:
    return terms_of_head(params.stack.blocks[0].attention, C, P, head, heads)


def size(T: Array) -> float:
    """How much a term can do: its standard deviation over the keys j, which is all that softmax sees of it."""
    return float(np.sqrt(T.var(-1).mean()))


def part_of_offset(T: Array) -> float:
    """R² of T_ij = r_i + f_{j−i}, fitted by least squares, of the variance within rows: 1 if only the offset counts."""
    within, inverse = _offsets(len(T))
    y = (T - T.mean(1, keepdims=True)).ravel()
    rest = y - within @ (inverse @ (within.T @ y))
    return float(1 - rest @ rest / (y @ y))


@cache
def _offsets(n: int) -> tuple[Array, Array]:
    """Which offset each of the n² pairs has, without the mean of its row, (n², 2n − 1); and (XᵀX)⁺ of it."""
    i, j = np.indices((n, n))
    offset = np.eye(2 * n - 1)[j - i + n - 1]
    within = (offset - offset.mean(1, keepdims=True)).reshape(n * n, -1)
    return within, np.linalg.pinv(within.T @ within, hermitian=True)


def draw(data: FourTermsOfBert) -> Figure:
    """Above: the terms of one head and their sum. Below: their sizes in each layer; what the last has of the offset."""
    fig, _ = figure(width=11.5, height=6.5)
    fig.clear()
    top, bottom = fig.subfigures(2, 1, height_ratios=[0.92, 1.08])
    axes = top.subplots(1, 5, sharey=True)
    limit = np.abs(data.matrices).max()
    n = np.arange(len(data.tokens))
    for ax, name, T in zip(axes, (*NAMES, "sum: the score"), (*data.matrices, data.matrices.sum(0)), strict=True):
        image = ax.imshow(T, vmin=-limit, vmax=limit, cmap="cividis")
        ax.set_title(name)
        ax.set_xticks(n[::4], n[::4])
        ax.set_xlabel("key $j$")
        ax.spines[:].set_visible(False)
    axes[0].set_yticks(n, data.tokens, fontsize=8)
    axes[0].set_ylabel("query $i$")
    top.colorbar(image, ax=axes, shrink=0.7, aspect=25, label="score − mean of its row")
    left, right = bottom.subplots(1, 2)
    blocks = np.arange(1, len(data.size) + 1)
    for k, (name, marker) in enumerate(zip(NAMES, "o^vs", strict=True)):
        left.plot(blocks, data.size[:, k].mean(-1), marker=marker, label=name)
    left.set(xlabel="layer", ylabel="standard deviation over $j$", title="size of each term, mean of 12 heads")
    left.set_ylim(0)
    left.legend(fontsize=9)
    for block, (size_, part) in enumerate(zip(data.size[:, 3], data.of_offset, strict=True), 1):
        places = block + np.linspace(-0.25, 0.25, len(part))
        right.scatter(places, part, s=8 + 25 * size_, color="#20639b", alpha=0.6, linewidths=0)
    right.set(xlabel="layer", ylabel="part of its variance", ylim=(0, 1.02))
    right.set_title("position–position: how much of it is a matter of $j − i$")
    return fig


def write_stored(found: FourTermsOfBert) -> None:
    """Keep what was measured, one field a line."""
    plain = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in found._asdict().items()}
    lines = [f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in plain.items()]
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write_stored(live(*load_bert()))
