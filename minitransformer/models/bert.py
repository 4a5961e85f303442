"""BERT: an encoder that has read a lot. Post-norm blocks over the sum of three tables.

    X = LN(E[tokens] + Π + T[types]),     hidden = blocks(X)

A token sees both sides; only padding is hidden. Every part is one that the book already has: post-norm blocks, layer norm with
ε = 10⁻¹² under the root, GELU, learned positions. `bert_files.py` fills it with weights that others have trained.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from minitransformer.checks import frozen
from minitransformer.models.block import FFN, Order
from minitransformer.models.sequence_model import Outputs, SequenceModel, SequenceParams
from minitransformer.ranges import Depth
from minitransformer.typing import Array, Float, checked


@frozen
class BERT(SequenceModel):
    """The encoder of a BERT: one vector for each token. The fields are those of SequenceModel, with the sizes of BERT-Base.

    context   rows of the table of positions: no longer sequence can be read
    outputs   "none" for the vectors themselves; a number for a linear layer on top, and so a classifier
    source    Borealis II, learned absolute position embeddings; Lecture notes, encoder block
    """

    vocabulary: int = 30522
    context: int = 512
    width: int = 768
    depth: Depth = 12
    heads: int = 12
    hidden: int | None = 3072
    positions: Any = "learned"
    ffn: FFN = "gelu"
    norm: str = "layer:eps=1e-12"
    order: Order = "post"
    embedding: str = "normed:types=2"
    outputs: Outputs = "none"


@checked
def sentence_embeddings(
    model: BERT, params: SequenceParams, tokenizer: Any, sentences: Sequence[str]
) -> Float[Array, "sentences {model.width}"]:
    """One vector of length 1 per sentence, (sentences, D): the direction of the mean of its tokens' vectors.

        e = m / ‖m‖,     m = (1/n) Σ_i hidden_i     over the n tokens that are not padding

    Eight sentences are read at a time. The dot product of two embeddings is their cosine similarity.
    source   what all-MiniLM-L6-v2 was trained to compare (modules.json in its folder: mean, then normalise)
    raises   TypeError for a single string, or a tokenizer that can't be called; ValueError for a model whose outputs are not
             the vectors
    """
    if model.outputs != "none":
        raise ValueError(f'model: outputs {model.outputs!r} should be "none", the vectors themselves')
    if isinstance(sentences, str):
        raise TypeError("sentences: expected a list of strings, got one string")
    if not callable(tokenizer):
        raise TypeError(f"tokenizer: {type(tokenizer).__name__} should be callable, from strings to tokens and lengths")
    embeddings = np.empty((len(sentences), model.width), params.E.dtype)
    for start in range(0, len(sentences), 8):
        tokens, lengths = tokenizer(sentences[start : start + 8])
        hidden = model(params, tokens, lengths=lengths)[0]
        real = np.arange(tokens.shape[-1]) < lengths[:, None]
        mean = np.where(real[..., None], hidden, 0).sum(1) / lengths[:, None].astype(hidden.dtype)
        embeddings[start : start + 8] = mean / np.linalg.norm(mean, axis=-1, keepdims=True)
    return embeddings
