"""Six attention heads of a real BERT on one sentence, found by measuring, and what their pictures leave out.

A pattern (the token before, the same word elsewhere, …) is a score: the weight that a head puts on it, averaged over
eight sentences. Of the 72 heads, the one with the highest score is drawn. The numbers come from the live model if it is
installed, else from `data/bert_heads.json`, which `python -m minitransformer.figures.bert_heads` writes.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

from minitransformer.backend import backend
from minitransformer.figures.style import figure
from minitransformer.models.bert import BERT, BertParams, sentence_embeddings
from minitransformer.models.bert_files import BertMissing, WordPiece, load_bert
from minitransformer.typing import Array

STORED = Path(__file__).with_name("data") / "bert_heads.json"

SENTENCE = "The animal didn't cross the street because it was too tired."

TEXTS = (  # where the patterns are measured
    SENTENCE,
    "The cat sat on the mat, and the dog slept on the rug.",
    "When the teacher opened the old book, she found a letter in it.",
    "A transformer reads all words of a sentence at once, and the recurrent network reads them one after another.",
    "My brother plays the piano, but his sister plays the violin.",
    "The ship left the harbour before the storm reached the coast.",
    "We bought bread and cheese at the market and ate it by the river.",
    "The old clock on the wall stopped, so nobody knew what time it was.",
)

PRONOUNS = (  # sentence, pronoun, the noun that it stands for, the other noun
    (SENTENCE, "it", "animal", "street"),
    ("The animal didn't cross the street because it was too wide.", "it", "street", "animal"),
    ("The trophy didn't fit in the suitcase because it was too big.", "it", "trophy", "suitcase"),
    ("The trophy didn't fit in the suitcase because it was too small.", "it", "suitcase", "trophy"),
    ("When the teacher opened the old book, she found a letter in it.", "she", "teacher", "book"),
    ("When the teacher opened the old book, she found a letter in it.", "it", "book", "teacher"),
    ("The boy lost his hat and then he found it.", "he", "boy", "hat"),
    ("The boy lost his hat and then he found it.", "it", "hat", "boy"),
    ("The king called the queen, and she answered.", "she", "queen", "king"),
    ("The king called the queen, and he waited.", "he", "king", "queen"),
    ("The girl fed the horse before she left.", "she", "girl", "horse"),
    ("The farmer sold the cow because it gave no milk.", "it", "cow", "farmer"),
)

PATTERNS = (
    "the token before",
    "the token after",
    "the same word elsewhere",
    "a bit of everything",
    "resting on [CLS]",
    "from a pronoun to its noun",
)


class Heads(NamedTuple):
    """What was measured. Blocks and heads count from 0 here, from 1 in the figure.

    tokens        the n word pieces of SENTENCE
    scores        (6, blocks, heads) how much of each pattern each head shows
    best          (6, 2) block and head with the highest score
    A             (6, n, n) their attention matrices on SENTENCE
    antecedent    (12,) weight that the last head sends from each of PRONOUNS to its noun
    other         (12,) ... and to the other noun
    rest          (2,) of the fifth head: weight on [CLS], and share of [CLS] in the lengths of what is added up
    effect        (blocks, heads) 1 − cosine of the embedding of SENTENCE with and without the head
    """

    tokens: list[str]
    scores: Array
    best: Array
    A: Array
    antecedent: Array
    other: Array
    rest: Array
    effect: Array


def data() -> Heads:
    """Measured with the live model; what is stored, and a line that says so, if it is not installed."""
    try:
        return live(*load_bert())
    except BertMissing:
        print("The real BERT is not installed; these are the numbers stored with the book.")
        return stored()


def stored() -> Heads:
    """What `live` measured when the book was made, to four decimals."""
    content = json.loads(STORED.read_text(encoding="utf-8"))
    return Heads(content.pop("tokens"), **{name: np.array(values) for name, values in content.items()})


def live(model: BERT, params: BertParams, tokenizer: WordPiece) -> Heads:
    """Measure every head. About a hundred sentences are read: a few seconds."""
    with backend("numpy"), threadpool_limits(1):  # the tier that keeps A; for such small products one thread is faster
        to_noun, to_other = _pronoun_scores(model, params, tokenizer)
        scores = np.stack([*_pattern_scores(model, params, tokenizer), to_noun.mean(0)])
        best = np.array([np.unravel_index(score.argmax(), score.shape) for score in scores])
        A = _attention(model, params, tokenizer, SENTENCE)[best[:, 0], best[:, 1]]
        to_noun, to_other = to_noun[:, *best[5]], to_other[:, *best[5]]
        rest = _rest(model, params, tokenizer, *best[4])
        effect = _effects(model, params, tokenizer)
    measured = (A, to_noun, to_other, rest, effect)
    return Heads(tokenizer.pieces(SENTENCE), scores.round(4), best, *(values.round(4) for values in measured))


def _attention(model: BERT, params: BertParams, tokenizer: WordPiece, text: str) -> Array:
    """The attention matrices of all heads, (blocks, heads, n, n)."""
    _, pullback = model(params, tokenizer([text]).tokens)
    return np.stack([block.attention.A[0] for block in pullback.blocks]).astype(np.float64)


def _weight_on(A: Array, where: Array) -> Array:
    """Total weight on the True entries of a row, averaged over the rows that have any."""
    return (A * where).sum(-1)[..., where.any(-1)].mean(-1)


def _pattern_scores(model: BERT, params: BertParams, tokenizer: WordPiece) -> list[Array]:
    """The first five patterns. Rows are the tokens between [CLS] and [SEP], and so are the keys of the first three."""
    found = []
    for text in TEXTS:
        pieces, A = np.array(tokenizer.pieces(text)), _attention(model, params, tokenizer, text)
        i = np.arange(len(pieces))
        word = (i > 0) & (i < len(pieces) - 1)
        both = word[:, None] & word
        apart = i - i[:, None]
        same = (pieces[:, None] == pieces) & (apart != 0)
        entropy = -(A * np.log(np.maximum(A, 1e-30))).sum(-1)  # its exp is the number of keys in use
        in_use = (np.exp(entropy) / len(pieces))[..., word].mean(-1)
        weights = [_weight_on(A, where & both) for where in (apart == -1, apart == 1, same)]
        found.append([*weights, in_use, _weight_on(A, word[:, None] & (i == 0))])
    return list(np.mean(found, axis=0))


def _pronoun_scores(model: BERT, params: BertParams, tokenizer: WordPiece) -> tuple[Array, Array]:
    """Weight from each pronoun to the noun that it stands for and to the other one, (12, blocks, heads) each."""
    to_noun, to_other = [], []
    for text, pronoun, noun, other in PRONOUNS:
        pieces, A = tokenizer.pieces(text), _attention(model, params, tokenizer, text)
        to_noun.append(A[..., pieces.index(pronoun), pieces.index(noun)])
        to_other.append(A[..., pieces.index(pronoun), pieces.index(other)])
    return np.stack(to_noun), np.stack(to_other)


def _rest(model: BERT, params: BertParams, tokenizer: WordPiece, block: int, head: int) -> Array:
    """Weight of [CLS] in a head, and the share of ‖A_i,cls v_cls W_o‖ in Σ_j ‖A_ij v_j W_o‖, averaged over TEXTS."""
    d = model.width // model.heads
    W_o = params.stack.blocks[block].attention.W_o[head * d : (head + 1) * d]
    shares = []
    for text in TEXTS:
        _, pullback = model(params, tokenizer([text]).tokens)
        attention = pullback.blocks[block].attention.layer.cross.attention
        A, V = attention.A[0, head, 1:-1], attention.aggregate.V[0, head]
        lengths = A * np.linalg.norm(V @ W_o, axis=-1)
        shares.append([A[:, 0].mean(), (lengths[:, 0] / lengths.sum(-1)).mean()])
    return np.mean(shares, axis=0)


def without_head(model: BERT, params: BertParams, block: int, head: int) -> BertParams:
    """The same model, where what this head says is multiplied by zero: its d rows of W_o."""
    d = model.width // model.heads
    blocks = list(params.stack.blocks)
    attention = blocks[block].attention
    W_o = attention.W_o.copy()
    W_o[head * d : (head + 1) * d] = 0
    blocks[block] = blocks[block]._replace(attention=attention._replace(W_o=W_o))
    return params._replace(stack=params.stack._replace(blocks=tuple(blocks)))


def _effects(model: BERT, params: BertParams, tokenizer: WordPiece) -> Array:
    """1 − cosine of the sentence's embedding with all heads and with one less, for each head."""
    whole = sentence_embeddings(model, params, tokenizer, [SENTENCE])[0]
    effect = np.empty((model.depth, model.heads))
    for block, head in np.ndindex(effect.shape):
        part = sentence_embeddings(model, without_head(model, params, block, head), tokenizer, [SENTENCE])[0]
        effect[block, head] = 1 - whole @ part
    return effect


def draw(heads: Heads) -> Figure:
    """Six attention matrices: row i is the token that looks, column j the token looked at, dark is much weight."""
    fig, axes = figure(2, 3, width=11.0, height=8.7, sharey=True)
    n = np.arange(len(heads.tokens))
    for ax, A, pattern, (block, head) in zip(axes.flat, heads.A, PATTERNS, heads.best, strict=True):
        image = ax.imshow(A, cmap="magma_r", vmin=0, vmax=1)
        ax.set_title(f"{pattern}\nblock {block + 1}, head {head + 1}", fontsize=13)
        ax.set_xticks(n, heads.tokens, rotation=90, rotation_mode="anchor", ha="right", va="center")
        ax.set_yticks(n, heads.tokens)
        ax.tick_params(length=0, labelsize=12, pad=5)
        ax.spines[["top", "right"]].set_visible(True)
    for ax in axes[:, 0]:
        ax.set_ylabel("token $i$ looks …", fontsize=13)
    for ax in axes[-1]:
        ax.set_xlabel("… at token $j$", fontsize=13)
    bar = fig.colorbar(image, ax=axes, shrink=0.5, aspect=30)
    bar.set_label("attention weight $A_{ij}$", fontsize=13)
    return fig


def write_stored(heads: Heads) -> None:
    """Keep what was measured, one field a line."""

    def plain(value: Any) -> Any:
        return value.tolist() if isinstance(value, np.ndarray) else value

    lines = [f"{json.dumps(k)}: {json.dumps(plain(v), separators=(',', ':'))}" for k, v in heads._asdict().items()]
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write_stored(live(*load_bert()))
