"""Published architectures: the logits of transformers' own classes, their sizes, their files, and what is refused."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import minitransformer as mt
from minitransformer import check_pullback
from minitransformer.attention import GatedDelta, Latent, SoftmaxAttention, Window
from minitransformer.attention.sink import LearnedSink
from minitransformer.data.text import Text
from minitransformer.models import deepseek_v2_lite, from_safetensors, generate, gpt2, gpt_oss, llama, qwen3_next
from minitransformer.models.published_files import ALSO_CALLED
from minitransformer.pullback import random_like, tree_leaves, tree_map, tree_size
from minitransformer.training.choices import Training
from minitransformer.training.loop import train
from minitransformer.training.objective import NextByte
from minitransformer.training.schedule import Cosine
from tests.models.translated import TRANSLATED
from tests.pieces import in_pieces
from tests.waves import waves

STORED = json.loads((Path(__file__).parent / "data" / "published.json").read_text())
TOKENS = np.array([[3, 1, 4, 1, 5, 9, 2, 6], [10, 0, 7, 7, 8, 2, 1, 0]])
PUBLISHED = {f.__name__: f for f in (gpt2, llama, gpt_oss, deepseek_v2_lite, qwen3_next)}
READ = [name for name in STORED if name not in TRANSLATED]
LLAMA_3 = STORED["llama 3"]["config"]["rope_parameters"]


def tensors(name, dtype=np.float64):
    """What is in the file of a case."""
    return {
        each: (0.7 * waves(shape, k)).astype(dtype) for k, (each, shape) in enumerate(STORED[name]["tensors"].items())
    }


def write(folder, name, *, config=None, **others):
    """The folder of a case, with another config or with other tensors; None leaves one out."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**STORED[name]["config"], **(config or {})}))
    there = {**tensors(name), **others}
    save_file({each: X for each, X in there.items() if X is not None}, folder / "model.safetensors")
    return folder


def keys_biases(name, model, kind):
    """Where it is not turned, a bias of the keys adds the same to all scores of a query, and a softmax does not see it."""
    return [f"{name}.stack.blocks.{k}.attention.b_k" for k in range(model.depth)] if "gpt2" in kind else []


def same_as_stored(name, logits, tolerance):
    stored = STORED[name]
    assert np.allclose(logits[:, [0, 3, 7], :4], stored["logits"], rtol=tolerance, atol=tolerance)
    assert abs(np.vdot(logits, 0.7 * waves(logits.shape, 30)) - stored["overlap"]) < 30 * tolerance


# ------------------------------------------------------------------------------------------------- the same logits


@pytest.mark.parametrize("name", READ)
def test_the_logits_of_a_file_are_those_of_transformers(name, tier, tmp_path):
    folder = write(tmp_path / "model", name)
    for dtype, tolerance in ((np.float64, 1e-10), (np.float32, 1e-5)):
        model, params = from_safetensors(folder, dtype)
        logits, _ = model(params, TOKENS)
        assert logits.dtype == dtype
        same_as_stored(name, logits, tolerance)


@pytest.mark.parametrize("name", READ)
def test_what_was_read_writes_and_goes_back(name, tmp_path):
    model, params = from_safetensors(write(tmp_path / "model", name), np.float64)
    logits, _ = model(params, TOKENS)
    assert np.allclose(in_pieces(model, params, TOKENS, range(9))[0], logits, atol=1e-10)
    assert len(generate(model, params, TOKENS[0], 5, rng=np.random.default_rng(0))) == 5
    with mt.backend("numpy"):
        check_pullback(
            lambda params: model(params, TOKENS[:, :4]), params, zero=keys_biases("params", model, name), entries=2
        )


@pytest.mark.parametrize("name", TRANSLATED)
def test_without_experts_the_logits_are_those_of_transformers(name, tier):
    model, params = TRANSLATED[name](tensors(name), STORED[name]["config"])
    same_as_stored(name, model(params, TOKENS)[0], 1e-10)
    same_as_stored(name, in_pieces(model, params, TOKENS, (0, 5, 6, 7, 8))[0], 1e-10)


@pytest.mark.parametrize("name", [name for name in STORED if "slopes" in STORED[name]])
def test_so_is_the_gradient_of_every_tensor(name, tmp_path):
    """`slopes`: how fast `overlap` grows if this tensor alone moves along array 40."""

    def read(weights):
        if name in TRANSLATED:
            return TRANSLATED[name](weights, STORED[name]["config"])
        return from_safetensors(write(tmp_path / "model", name, **weights), np.float64)

    weights = tensors(name)
    model, params = read(weights)
    logits, pullback = model(params, TOKENS)
    gradient, start = tree_leaves(pullback(0.7 * waves(logits.shape, 30))), tree_leaves(params)
    for tensor, W in weights.items():
        moved = tree_leaves(read(weights | {tensor: W + 0.7 * waves(W.shape, 40)})[1])
        slope = sum(np.vdot(d, after - before) for d, after, before in zip(gradient, moved, start, strict=True))
        assert np.isclose(slope, STORED[name]["slopes"][tensor], rtol=1e-9, atol=1e-9), tensor


# ------------------------------------------------------------------------------------------------------ what they are


def test_the_sizes_that_everybody_knows():
    """Counted by formula, as large models would not fit; and the formula by small models."""

    def of_gpt2(V, n, D, depth):
        return V * D + n * D + depth * (12 * D * D + 13 * D) + 2 * D

    def of_llama(V, D, depth, H, G, F):
        return 2 * V * D + depth * (2 * D * D + 2 * D * (D // H * G) + 3 * D * F + 2 * D) + D

    assert tree_size(gpt2(30, 20, 12, 3, 2).init(np.random.default_rng(0))) == of_gpt2(30, 20, 12, 3)
    assert of_gpt2(50257, 1024, 768, 12) == 124_439_808
    assert "124,439,808" in gpt2.__doc__
    assert tree_size(llama(30, 20, 12, 3, 2, 1, 7).init(np.random.default_rng(0))) == of_llama(30, 12, 3, 2, 1, 7)
    assert of_llama(128256, 4096, 32, 32, 8, 14336) == 8_030_261_248
    assert "8,030,261,248" in llama.__doc__


def test_kinds_of_blocks_take_turns():
    cores = [block.attention.core for block in gpt_oss(depth=6, window=7).body.blocks]
    assert cores == [SoftmaxAttention(pattern, sink=LearnedSink(4)) for pattern in (Window(6), None)] * 3
    mixers = [block.attention for block in qwen3_next(depth=8).body.blocks]
    assert [isinstance(mixer.core, GatedDelta) for mixer in mixers] == [True, True, True, False] * 2
    assert mixers[3].core == SoftmaxAttention(norm="rms", gate="element")
    assert [None if mixer.rotate is None else mixer.rotate.part for mixer in mixers] == [None, None, None, 8] * 2
    assert {type(block.attention) for block in deepseek_v2_lite().body.blocks} == {Latent}


def test_a_window_of_w_sees_the_last_w_tokens():
    (first, *_) = gpt_oss(window=3).body.blocks
    mask = first.attention.core.pattern(6, 6, causal=True).mask
    assert [row.sum() for row in mask] == [1, 2, 3, 3, 3, 3]


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_gradient(name):
    model = PUBLISHED[name](11, 9, 8, 4, 2, hidden=6)
    params = tree_map(
        lambda a: 0.5 * a, random_like(model.init(np.random.default_rng(0), np.float64), np.random.default_rng(1))
    )
    with mt.backend("numpy"):
        check_pullback(lambda params: model(params, TOKENS), params, zero=keys_biases("params", model, name), entries=2)


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_writes_as_it_reads(name):
    model = PUBLISHED[name](11, 16, 16, 4, 2, hidden=6)
    params = model.init(np.random.default_rng(0), np.float64)
    logits, _ = model(params, TOKENS)
    assert np.allclose(in_pieces(model, params, TOKENS, (0, 5, 6, 7, 8))[0], logits, atol=1e-10)


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_learns_from_a_text(name):
    """After forty steps it knows more of a short text than how often each letter occurs."""
    letters = np.frombuffer(b"the cat sat on the mat, and the dog sat on the log. " * 40, np.uint8)
    often = np.unique_counts(letters).counts / len(letters)
    model = PUBLISHED[name](context=16, width=16, depth=4, heads=2, hidden=32)
    training = Training(steps=40, batch=8, schedule=Cosine(0.02, 40, 5))
    after = train(model, NextByte(Text(letters, letters[:60], "letters", ""), 16), training, progress=False)
    assert after.losses[0] > 5
    assert np.mean(after.losses[-5:]) < -(often * np.log2(often)).sum() - 0.5  # in bits, as losses are


# ------------------------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_shorter_numbers_are_read_as_float32(dtype, tmp_path):
    short = {each: X.astype(dtype) for each, X in tensors("llama").items()}
    model, params = from_safetensors(write(tmp_path / "model", "llama", **short))
    assert {leaf.dtype for leaf in tree_leaves(params)} == {np.dtype(np.float32)}
    same_as_stored("llama", model(params, TOKENS)[0], 1e-5 if dtype == np.float32 else 0.02)


def test_bfloat16_is_the_upper_half_of_a_float32(tmp_path):
    """Written by hand, since NumPy has no such type."""
    folder, header, data = write(tmp_path / "model", "llama"), {}, b""
    for each, X in tensors("llama").items():
        upper = (X.astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
        header[each] = {"dtype": "BF16", "shape": X.shape, "data_offsets": [len(data), len(data) + len(upper)]}
        data += upper
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    _, params = from_safetensors(folder)
    table = tensors("llama")["model.embed_tokens.weight"].astype(np.float32)
    assert np.array_equal(params.E, (table.view(np.uint32) & 0xFFFF0000).view(np.float32))
    assert {leaf.dtype for leaf in tree_leaves(from_safetensors(folder, np.float64)[1])} == {np.dtype(np.float64)}


@pytest.mark.parametrize("name", READ)
def test_names_with_a_prefix_or_without_and_what_is_no_weight(name, tmp_path):
    """The first files of GPT-2 hold its masks and no prefix; old ones of Llama hold its frequencies."""
    prefix = "transformer." if "gpt2" in name else "model."
    bare = {each.removeprefix(prefix): X for each, X in tensors(name).items()}
    no_weights = {"h.0.attn.bias": np.tri(16)[None, None], "layers.0.self_attn.rotary_emb.inv_freq": np.ones(3)}
    no_weights["h.0.attn.masked_bias"] = np.full((), -1e4)
    extra = {each: X for each, X in no_weights.items() if ("gpt2" in name) == each.startswith("h.")}
    folder = write(tmp_path / "model", name, **(dict.fromkeys(tensors(name)) | bare | extra))
    model, params = from_safetensors(folder, np.float64)
    same_as_stored(name, model(params, TOKENS)[0], 1e-10)


def in_files(folder, name, dtype=np.float64):
    """The folder of a case with every third tensor in the same file, and an index beside them."""
    write(folder, name)
    (folder / "model.safetensors").unlink()
    all_of_them, where = list(tensors(name, dtype).items()), {}
    for k in range(3):
        file = f"model-{k + 1:05}-of-00003.safetensors"
        save_file(dict(all_of_them[k::3]), folder / file)
        where |= {each: file for each, _ in all_of_them[k::3]}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


@pytest.mark.parametrize("name", READ)
def test_weights_may_stand_in_several_files(name, tmp_path):
    model, params = from_safetensors(in_files(tmp_path / "model", name), np.float64)
    same_as_stored(name, model(params, TOKENS)[0], 1e-10)


SECOND = "model-00002-of-00003.safetensors"


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ("{", "model.safetensors.index.json: not a JSON file"),
        (
            "{}",
            "model.safetensors.index.json: weight_map should say of each tensor in which safetensors file it stands",
        ),
        ('{"weight_map": {}}', "weight_map should say of each tensor"),
        ('{"weight_map": ["model.safetensors"]}', "weight_map should say of each tensor"),
        ('{"weight_map": {"norm.weight": 1}}', "weight_map should say of each tensor"),
        ('{"weight_map": {"norm.weight": "pytorch_model.bin"}}', "weight_map should say of each tensor"),
        (
            '{"weight_map": {"a": "../a.safetensors"}}',
            "index.json: ../a.safetensors should be the name of a file beside",
        ),
        (
            '{"weight_map": {"a": "a.safetensors"}}',
            "a.safetensors: no such file, and model.safetensors.index.json names",
        ),
        (
            f'{{"weight_map": {{"norm.weight": "{SECOND}"}}}}',
            "index.json: the tensor layers.0.self_attn.q_proj.weight is missing",
        ),
    ],
)
def test_an_index_that_does_not_lead_to_the_weights_is_refused(index, says, tmp_path):
    folder = in_files(tmp_path / "model", "llama")
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(says)):
        from_safetensors(folder)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            "embed_tokens.weight",
            f"model-00003-of-00003.safetensors: the tensor embed_tokens.weight is in {SECOND} already",
        ),
        ("more.weight", "model-00003-of-00003.safetensors: the tensor more.weight belongs to no part"),
        (None, f"{SECOND}: not a whole safetensors file"),
    ],
)
def test_of_several_files_the_one_at_fault_is_named(more, says, tmp_path):
    folder, third = in_files(tmp_path / "model", "llama"), dict(list(tensors("llama").items())[2::3])
    if more is None:
        (folder / SECOND).write_bytes((folder / SECOND).read_bytes()[:-1])
    else:
        save_file({**third, more: np.ones(12)}, folder / "model-00003-of-00003.safetensors")
    with pytest.raises(ValueError, match=re.escape(says)):
        from_safetensors(folder)


def test_a_tied_table_may_stand_in_the_file_twice(tmp_path):
    table = tensors("gpt2")["transformer.wte.weight"]
    model, params = from_safetensors(write(tmp_path / "same", "gpt2", **{"lm_head.weight": table}), np.float64)
    same_as_stored("gpt2", model(params, TOKENS)[0], 1e-10)
    with pytest.raises(ValueError, match=r"lm_head.weight is another table .* config.json ties them"):
        from_safetensors(write(tmp_path / "other", "gpt2", **{"lm_head.weight": table + 1}))


@pytest.mark.parametrize("name", READ)
def test_what_was_read_is_laid_out_as_loops_want_it(name, tmp_path):
    """Row by row, also where the file holds Wᵀ, or three matrices side by side; and in the dtype that is asked for."""
    short = {each: X.astype(np.float16) for each, X in tensors(name).items()}
    _, params = from_safetensors(write(tmp_path / "model", name, **short), np.float64)
    for leaf in tree_leaves(params):
        assert leaf.flags.c_contiguous
        assert leaf.dtype == np.float64


@pytest.mark.parametrize(("name", "outputs"), [("llama", "own"), ("gpt2", "tied")])
def test_a_llama_that_does_not_say_so_reads_and_writes_by_two_tables_and_a_gpt2_by_one(name, outputs, tmp_path):
    folder = write(tmp_path / "model", name)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "tie_word_embeddings"}))
    assert from_safetensors(folder)[0].outputs == outputs


def test_the_oldest_configs_keep_the_base_of_the_angles_elsewhere(tmp_path):
    old = {"rope_parameters": None, "rope_theta": 500.0, "head_dim": None}
    model, params = from_safetensors(write(tmp_path / "model", "llama", config=old), np.float64)
    same_as_stored("llama", model(params, TOKENS)[0], 1e-10)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("llama 3", {"rope_scaling": LLAMA_3}),
        ("llama 3", {"original_max_position_embeddings": LLAMA_3["original_max_position_embeddings"]}),
        ("llama", {"rope_scaling": {}, "is_causal": True, "layer_types": ["full_attention"] * 2}),
        ("gpt2", {"hidden_size": 12, "num_hidden_layers": 2}),
    ],
)
def test_a_config_may_say_the_same_twice(name, config, tmp_path):
    model, params = from_safetensors(write(tmp_path / "model", name, config=config), np.float64)
    same_as_stored(name, model(params, TOKENS)[0], 1e-10)


def test_a_gpt2_may_have_its_sizes_under_the_names_of_other_models(tmp_path):
    folder = write(tmp_path / "model", "gpt2")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({ALSO_CALLED.get(key, key): config[key] for key in config}))
    model, params = from_safetensors(folder, np.float64)
    same_as_stored("gpt2", model(params, TOKENS)[0], 1e-10)


def test_the_heads_of_a_qwen3_are_128_wide_unless_its_config_says_another_width(tmp_path):
    folder = write(tmp_path / "model", "qwen3")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({key: config[key] for key in config if key != "head_dim"}))
    with pytest.raises(
        ValueError, match=rf"q_proj.weight has shape .* says \({128 * config['num_attention_heads']}, 12\)"
    ):
        from_safetensors(folder)


@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("llama", {"sliding_window": 16}),
        ("llama", {"sliding_window": 4, "use_sliding_window": False}),
        ("qwen3", {"sliding_window": 4}),
    ],
)
def test_a_window_that_hides_nothing_is_none(name, window, tmp_path):
    """It is as long as the context, or is not asked for."""
    model, params = from_safetensors(write(tmp_path / "model", name, config=window), np.float64)
    same_as_stored(name, model(params, TOKENS)[0], 1e-10)


# --------------------------------------------------------------------------------------------------------- refusals

W_Q = "model.layers.1.self_attn.q_proj.weight"
CONFIGS: list[tuple[str, dict, str]] = [
    ("llama", {"model_type": "qwen3_next"}, "model of type 'qwen3_next'; only 'gpt2', 'llama', 'qwen3' can be read"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu'"),
    ("llama", {"attention_bias": True}, "attention_bias is True"),
    ("llama", {"head_dim": 5}, "head_width: 5 channels are no whole pairs"),
    ("qwen3", {"rms_norm_eps": 1e-5}, "rms_norm_eps is 1e-05; only 1e-06"),
    ("qwen3", {"use_sliding_window": True}, "use_sliding_window is True; only False"),
    ("llama", {"rope_parameters": {"rope_type": "yarn"}}, "angles of the type 'yarn'; only 'default' and 'llama3'"),
    ("llama", {"rope_parameters": {"rope_type": "llama3"}}, "config.json: factor is missing"),
    ("llama", {"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "angles of the type 'linear'"),
    ("llama", {"rope_parameters": "llama3"}, "config.json: rope_parameters: 'llama3' should be an object"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; only 1.0 can be read"),
    (
        "qwen3",
        {"rope_parameters": {"partial_rotary_factor": 0.25}},
        "partial_rotary_factor is 0.25; only 1.0 can be read",
    ),
    ("llama", {"num_attention_heads": 5, "head_dim": None}, "heads: 12 columns can't be divided into 5 heads"),
    ("llama", {"num_attention_heads": 4, "head_dim": None}, "heads: 12 columns can't be divided into 4 heads of whole"),
    ("llama", {"vocab_size": "many"}, "config.json: vocab_size: 'many' should be a whole number"),
    ("llama", {"vocab_size": 30.7}, "config.json: vocab_size: 30.7 should be a whole number"),
    ("llama", {"hidden_size": None}, "config.json: hidden_size: None should be a whole number"),
    ("llama", {"rms_norm_eps": None}, "config.json: rms_norm_eps: None should be a number"),
    ("gpt2", {"layer_norm_epsilon": None}, "config.json: layer_norm_epsilon: None should be a number"),
    ("llama", {"rope_parameters": {"rope_theta": None}}, "config.json: rope_theta: None should be a number"),
    ("llama 3", {"rope_parameters": {**LLAMA_3, "factor": None}}, "config.json: factor: None should be a number"),
    ("llama", {"sliding_window": 4}, "config.json: sliding_window is 4; only None can be read"),
    ("llama", {"num_attention_heads": 0, "head_dim": None}, "heads: 12 columns can't be divided into 0 heads"),
    ("llama", {"num_key_value_heads": 0}, "config.json: groups: 0 should be at least 1"),
    ("llama", {"model_type": ["llama"]}, "config.json: this is a model of type ['llama']; only 'gpt2'"),
    ("gpt2", {"activation_function": "tanh"}, "activation_function 'tanh' is none of gelu"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True; only False"),
    *((name, {"is_causal": False}, "is_causal is False; only True") for name in ("gpt2", "llama", "qwen3")),
    ("llama", {"is_causal": None}, "is_causal is None; only True"),
    (
        "llama",
        {"per_layer_config": {"1": {"hidden_act": "gelu"}}},
        "per_layer_config is {'1': {'hidden_act': 'gelu'}}; only",
    ),
    (
        "llama",
        {"quantization_config": {"quant_method": "awq"}},
        "quantization_config is {'quant_method': 'awq'}; only None",
    ),
    ("gpt2", {"num_attention_heads": 3}, "num_attention_heads is 3; only 2 can be read"),
    ("gpt2", {"tie_word_embeddings": "false"}, "tie_word_embeddings: 'false' should be true or false"),
    ("llama", {"tie_word_embeddings": None}, "tie_word_embeddings: None should be true or false"),
    (
        "llama",
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        "rope_parameters and rope_scaling say different things",
    ),
    ("llama", {"rope_parameters": {"full_attention": LLAMA_3}}, "angles of their own for 'full_attention'"),
    (
        "llama 3",
        {"original_max_position_embeddings": 32},
        "original_max_position_embeddings is 32; only 64 can be read",
    ),
    (
        "llama 3",
        {"rope_parameters": {**LLAMA_3, "original_max_position_embeddings": 16.5}},
        "original_max_position_embeddings: 16.5 should be a whole number",
    ),
    ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "only 'full_attention' in every layer"),
    ("llama", {"layer_types": "full_attention"}, "layer_types is 'full_attention'; only"),
]


@pytest.mark.parametrize(("name", "config", "says"), CONFIGS)
def test_a_config_of_another_kind_is_refused(name, config, says, tmp_path):
    with pytest.raises(ValueError, match=re.escape(says)):
        from_safetensors(write(tmp_path / "model", name, config=config))


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ({W_Q: None}, "the tensor layers.1.self_attn.q_proj.weight is missing"),
        ({W_Q: np.ones((12, 6))}, r"q_proj.weight has shape (12, 6), config.json says (12, 12)"),
        ({W_Q: np.ones((12, 12), np.int8)}, "has type I8; F32, F16, BF16 and F64 can be read"),
        (
            {"model.layers.2.mlp.up_proj.weight": np.ones(3)},
            "the tensor layers.2.mlp.up_proj.weight belongs to no part",
        ),
        ({"lm_head.weight": None}, "the tensor lm_head.weight is missing"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_by_name(others, says, tmp_path):
    with pytest.raises(ValueError, match=re.escape(says)):
        from_safetensors(write(tmp_path / "model", "llama", **others))


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        from_safetensors(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"config.json: no such file"):
        from_safetensors(tmp_path)
    folder = write(tmp_path / "model", "gpt2")
    with pytest.raises(TypeError, match=r"^dtype: int32 should be np\.float32 or np\.float64$"):
        from_safetensors(folder, np.int32)
    (folder / "model.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        from_safetensors(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model.safetensors: no such file .*pickle"):
        from_safetensors(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="expected an object"):
        from_safetensors(folder)
