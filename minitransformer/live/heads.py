"""All 72 heads of a real BERT on one sentence: for a chosen token and a block, where each of the twelve heads looks."""

import base64
import json
from importlib import resources
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure

REST = ("[CLS]", "[SEP]")  # where heads rest


def data() -> dict[str, Any]:
    """Tokens, and the matrices (blocks, heads, n, n) in 255ths, as `measured` has found them."""
    return json.loads(resources.files(__package__).joinpath("heads.json").read_text("utf-8"))


def measured() -> dict[str, Any]:
    """The same from the weights.

    raises   BertMissing where they are not installed
    """
    from minitransformer.backend import backend
    from minitransformer.experiments.bert_heads import SENTENCE
    from minitransformer.models.bert_files import load_bert

    model, params, tokenizer = load_bert()
    with backend("numpy"):  # the tier that keeps A
        _, pullback = model(params, tokenizer([SENTENCE]).tokens)
    A = np.stack([block.attention.A[0] for block in pullback.blocks])
    packed = base64.b64encode(np.rint(255 * A).astype(np.uint8).tobytes()).decode()
    return {"tokens": tokenizer.pieces(SENTENCE), "shape": list(A.shape), "A": packed}


def matrices(data: dict[str, Any]) -> np.ndarray:
    """The matrices as numbers."""
    return np.frombuffer(base64.b64decode(data["A"]), np.uint8).reshape(data["shape"]) / 255


def compute(data: dict[str, Any], block: int, token: int) -> dict[str, Any]:
    """What each head gives to each token; the largest weight on another word, whose it is; the mean weight at rest."""
    A, tokens = matrices(data)[block, :, token], np.array(data["tokens"])
    rest = np.isin(tokens, REST)
    others = np.where(rest | (np.arange(len(tokens)) == token), -1, A)
    head, key = np.unravel_index(others.argmax(), others.shape)
    return {
        "A": A.tolist(),
        "head": int(head),
        "key": int(key),
        "weight": float(A[head, key]),
        "rest": float(A[:, rest].sum(1).mean()),
    }


def still(data: dict[str, Any]) -> Figure:
    """In the third block, what each head gives for the token "it"."""
    fig, ax = figure(width=7, height=4.4)
    tokens = data["tokens"]
    ax.imshow(compute(data, 2, tokens.index("it"))["A"], cmap="Blues", vmin=0, vmax=1, aspect="auto")
    ax.set(ylabel="head", yticks=range(1, 12, 2), yticklabels=range(2, 13, 2), xticks=range(len(tokens)))
    ax.set_xticklabels(tokens, rotation=60, ha="right", rotation_mode="anchor")
    return fig
