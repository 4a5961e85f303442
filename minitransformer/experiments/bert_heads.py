"""What do the heads of a trained BERT look at, and what happens without them?

How much of a pattern a head shows is a score. For most of the six PATTERNS it is the weight that the head puts on the keys
that the pattern names; for "a bit of everything" it is the share of the keys that are in use. A score is averaged over eight
sentences, or over twelve pronouns. All 72 heads are measured, and for each pattern the attention matrix of the head with the
highest score is kept.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.backend import backend
from minitransformer.measurements.rows import in_use
from minitransformer.models import BERT, SequenceParams, sentence_embeddings
from minitransformer.models.bert_files import WordPiece, load_bert
from minitransformer.typing import Array

IN_A_TEST = {"texts": 1, "pronouns": 1}
SENTENCE = "The animal didn't cross the street because it was too tired."

PATTERNS = (  # in the order of all that is measured
    "the token before",
    "the token after",
    "the same word elsewhere",
    "a bit of everything",
    "resting on [CLS]",
    "from a pronoun to its noun",
)

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


@dataclass(frozen=True)
class Trial:
    """How many of TEXTS and of PRONOUNS are read."""

    texts: int = len(TEXTS)
    pronouns: int = len(PRONOUNS)


def trials() -> list[Trial]:
    """A single trial, of all sentences and pronouns."""
    return [Trial()]


def run(trial: Trial) -> dict[str, Any]:
    """Measure every head; blocks and heads count from 0. A few seconds.

    tokens        the n word pieces of SENTENCE
    scores        (6, blocks, heads) how much of each of PATTERNS each head shows
    best          (6, 2) block and head with the highest score, for each pattern
    A             (6, n, n) the attention matrices of these six heads on SENTENCE
    antecedent    weight that the best head for pronouns sends from each of PRONOUNS to its noun
    other         ... and to the other noun
    rest          (2,) of the best head for resting: weight on [CLS], and share of [CLS] in the lengths of what is added up
    effect        (blocks, heads) 1 − cosine of the embedding of SENTENCE with and without the head
    """
    model, params, tokenizer = load_bert()
    bert, texts = (model, params, tokenizer), TEXTS[: trial.texts]
    with backend("numpy"):  # the tier that keeps A
        to_noun, to_other = _pronoun_scores(*bert, PRONOUNS[: trial.pronouns])
        scores = np.stack([*_pattern_scores(*bert, texts), to_noun.mean(0)])
        best = np.array([np.unravel_index(score.argmax(), score.shape) for score in scores])
        *_, rests, to_nouns = best
        measured = {
            "scores": scores,
            "A": _attention(*bert, SENTENCE)[best[:, 0], best[:, 1]],
            "antecedent": to_noun[:, *to_nouns],
            "other": to_other[:, *to_nouns],
            "rest": _rest(*bert, texts, *rests),
            "effect": _effects(*bert),
        }
    kept = {name: value.round(4).tolist() for name, value in measured.items()}
    return {"tokens": tokenizer.pieces(SENTENCE), "best": best.tolist(), **kept}


def _attention(model: BERT, params: SequenceParams, tokenizer: WordPiece, text: str) -> Array:
    """The attention matrices of all heads, (blocks, heads, n, n)."""
    _, pullback = model(params, tokenizer([text]).tokens)
    return np.stack([block.attention.A[0] for block in pullback.blocks]).astype(np.float64)


def _weight_on(A: Array, where: Array) -> Array:
    """Total weight on the True entries of a row, averaged over the rows that have any."""
    return (A * where).sum(-1)[..., where.any(-1)].mean(-1)


def _pattern_scores(model: BERT, params: SequenceParams, tokenizer: WordPiece, texts: tuple[str, ...]) -> list[Array]:
    """The first five patterns. Rows are the tokens between [CLS] and [SEP], and so are the keys of the first three."""
    found = []
    for text in texts:
        pieces, A = np.array(tokenizer.pieces(text)), _attention(model, params, tokenizer, text)
        i = np.arange(len(pieces))
        word = (i > 0) & (i < len(pieces) - 1)
        both = word[:, None] & word
        apart = i - i[:, None]
        same = (pieces[:, None] == pieces) & (apart != 0)
        used = (in_use(A) / len(pieces))[..., word].mean(-1)
        weights = [_weight_on(A, where & both) for where in (apart == -1, apart == 1, same)]
        found.append([*weights, used, _weight_on(A, word[:, None] & (i == 0))])
    return list(np.mean(found, axis=0))


def _pronoun_scores(
    model: BERT, params: SequenceParams, tokenizer: WordPiece, pronouns: tuple[tuple[str, ...], ...]
) -> tuple[Array, Array]:
    """Weight from each pronoun to the noun that it stands for and to the other one, (pronouns, blocks, heads) each."""
    to_noun, to_other = [], []
    for text, pronoun, noun, other in pronouns:
        pieces, A = tokenizer.pieces(text), _attention(model, params, tokenizer, text)
        to_noun.append(A[..., pieces.index(pronoun), pieces.index(noun)])
        to_other.append(A[..., pieces.index(pronoun), pieces.index(other)])
    return np.stack(to_noun), np.stack(to_other)


def _rest(
    model: BERT, params: SequenceParams, tokenizer: WordPiece, texts: tuple[str, ...], block: int, head: int
) -> Array:
    """Weight of [CLS] in a head, and the share of ‖A_i,cls v_cls W_o‖ in Σ_j ‖A_ij v_j W_o‖, averaged over the texts."""
    d = model.width // model.heads
    W_o = params.stack.blocks[block].attention.W_o[head * d : (head + 1) * d]
    shares = []
    for text in texts:
        _, pullback = model(params, tokenizer([text]).tokens)
        attention = pullback.blocks[block].attention.layer.core.attention
        A, V = attention.A[0, head, 1:-1], attention.aggregate.V[0, head]
        lengths = A * np.linalg.norm(V @ W_o, axis=-1)
        shares.append([A[:, 0].mean(), (lengths[:, 0] / lengths.sum(-1)).mean()])
    return np.mean(shares, axis=0)


def without_head(model: BERT, params: SequenceParams, block: int, head: int) -> SequenceParams:
    """The same model, where what this head says is multiplied by zero: its d rows of W_o."""
    d = model.width // model.heads
    blocks = list(params.stack.blocks)
    attention = blocks[block].attention
    W_o = attention.W_o.copy()
    W_o[head * d : (head + 1) * d] = 0
    blocks[block] = blocks[block]._replace(attention=attention._replace(W_o=W_o))
    return params._replace(stack=params.stack._replace(blocks=tuple(blocks)))


def _effects(model: BERT, params: SequenceParams, tokenizer: WordPiece) -> Array:
    """1 − cosine of the sentence's embedding with all heads and with one less, for each head."""
    whole = sentence_embeddings(model, params, tokenizer, [SENTENCE])[0]
    effect = np.empty((model.depth, model.heads))
    for block, head in np.ndindex(effect.shape):
        part = sentence_embeddings(model, without_head(model, params, block, head), tokenizer, [SENTENCE])[0]
        effect[block, head] = 1 - whole @ part
    return effect
