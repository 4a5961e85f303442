"""GPT-2, Qwen3 and the Llama kind from their files: config.json and model.safetensors of huggingface/transformers."""

import reprlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from minitransformer.attention import MultiHeadParams, SoftmaxAttention
from minitransformer.attention.multi_head import Gains, ProjectionParams
from minitransformer.checks import refuse_dtype
from minitransformer.models.bert_files import activation_of
from minitransformer.models.block import BlockParams
from minitransformer.models.feed_forward import FeedForwardParams
from minitransformer.models.gated_feed_forward import GatedFeedForwardParams
from minitransformer.models.published import gpt2, llama
from minitransformer.models.sequence_model import LanguageModel, Outputs, SequenceParams
from minitransformer.models.stack import StackParams
from minitransformer.models.weights import Tensors, json_object, number, refuse_larger, refuse_others, sizes_in, whole
from minitransformer.positions import Llama3
from minitransformer.positions.absolute import LearnedPositionParams
from minitransformer.pullback import NoParams
from minitransformer.typing import Array, checked


@checked
def from_safetensors(folder: str | Path, dtype: type = np.float32) -> tuple[LanguageModel, SequenceParams]:
    """A trained GPT-2, a Qwen3 without experts or a model of the Llama kind: the model, and its parameters in float32 or float64.

    folder   with config.json and model.safetensors, or the files that model.safetensors.index.json names; every tensor in them
             has to belong to the model
    raises   FileNotFoundError for a missing file; ValueError, which names the file, for a model of another kind, a choice that
             the book does not have, and a tensor that is missing, has another shape or type, or belongs to nothing;
             TypeError for another dtype; ImportError without the package safetensors
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    refuse_dtype(dtype)
    path = folder / "config.json"
    config = json_object(path)
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(
            f"{path}: this is a model of type {reprlib.repr(kind)}; only {', '.join(map(repr, KINDS))} can be read"
        )
    refuse_others(path, config, {"is_causal": True, "quantization_config": None, "per_layer_config": None})
    refuse_larger(path, config)
    model_of, params_of, plain = KINDS[kind]
    model = model_of(path, config)
    tensors = Tensors(folder / "model.safetensors", plain, dtype)
    params = params_of(tensors, model)
    tensors.refuse_more()
    return model, params


def _head(tensors: Tensors, model: LanguageModel, E: Array) -> ProjectionParams | None:
    """What turns rows into logits: a matrix of its own, or None for the table E, which may stand in the file again."""
    name, shape = "lm_head.weight", (model.vocabulary, model.width)
    if model.outputs == "own":
        return ProjectionParams(tensors.linear("lm_head", model.width, model.vocabulary, bias=False)[0])
    if name in tensors and not np.array_equal(tensors(name, *shape), E):
        raise ValueError(f"{tensors.path}: {name} is another table than that of the tokens, and config.json ties them")
    return None


def _outputs(config: dict[str, Any], *, tied: bool) -> Outputs:
    """What a model reads its answers off: one table, or one more. Raises ValueError for what is neither true nor false."""
    tied = config.get("tie_word_embeddings", tied)
    if not isinstance(tied, bool):
        raise ValueError(f"tie_word_embeddings: {reprlib.repr(tied)} should be true or false")
    return "tied" if tied else "own"


# ------------------------------------------------------------------------------------------------------ GPT-2

ALSO_CALLED = {  # sizes of a GPT-2, and the names that they have in other models
    "n_embd": "hidden_size",
    "n_positions": "max_position_embeddings",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
}


def _gpt2(path: Path, config: dict[str, Any]) -> LanguageModel:
    """The GPT-2 that config.json describes. Raises ValueError, which names the file, for a choice that can't be had."""
    refuse_others(
        *(path, config),
        {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    )
    config = {own: config[other] for own, other in ALSO_CALLED.items() if other in config} | config
    refuse_others(path, config, {other: config[own] for own, other in ALSO_CALLED.items() if own in config})
    ffn = activation_of(path, config, "activation_function", "gelu_new")
    with sizes_in(path):
        return gpt2(
            vocabulary=whole(config, "vocab_size"),
            context=whole(config, "n_positions"),
            width=whole(config, "n_embd"),
            depth=whole(config, "n_layer"),
            heads=whole(config, "n_head"),
            hidden=None if config.get("n_inner") is None else whole(config, "n_inner"),
            ffn=ffn,
            norm=f"layer:eps={number(config, 'layer_norm_epsilon', 1e-5)}",
            outputs=_outputs(config, tied=True),
        )


def _plain_gpt2(name: str) -> str | None:
    """The name of a tensor without the prefix that only some files have; None for a mask in an old file, which is no weight."""
    return None if name.endswith((".attn.bias", ".attn.masked_bias")) else name.removeprefix("transformer.")


def _gpt2_params(tensors: Tensors, model: LanguageModel) -> SequenceParams:
    D, E = model.width, tensors("wte.weight", model.vocabulary, model.width)
    return SequenceParams(
        E=E,
        positions=LearnedPositionParams(tensors("wpe.weight", model.context, D)),
        stack=StackParams(
            tuple(_gpt2_block(tensors, f"h.{k}", D, model.hidden or 4 * D) for k in range(model.depth)),
            tensors.norm("ln_f", D),
        ),
        head=_head(tensors, model, E),
    )


def _gpt2_block(tensors: Tensors, name: str, D: int, hidden: int) -> BlockParams:
    """A block of GPT-2, whose file keeps W as (in, out), and those of queries, keys and values side by side in one matrix."""

    def linear(part: str, rows: int, columns: int) -> tuple[Array, Array]:
        return tensors(f"{name}.{part}.weight", rows, columns), tensors(f"{name}.{part}.bias", columns)

    W, b = linear("attn.c_attn", D, 3 * D)
    W_q, W_k, W_v = (np.ascontiguousarray(part) for part in np.split(W, 3, axis=1))
    b_q, b_k, b_v = (part.copy() for part in np.split(b, 3))
    W_o, b_o = linear("attn.c_proj", D, D)
    return BlockParams(
        attention_norm=tensors.norm(f"{name}.ln_1", D),
        attention=MultiHeadParams(W_q, W_k, W_v, W_o, b_q, b_k, b_v, b_o),
        ffn_norm=tensors.norm(f"{name}.ln_2", D),
        ffn=FeedForwardParams(*linear("mlp.c_fc", D, hidden), *linear("mlp.c_proj", hidden, D)),
    )


# ------------------------------------------------------------------------------------------------------ Llama


def _llama(path: Path, config: dict[str, Any]) -> LanguageModel:
    """The Llama that config.json describes. Raises ValueError, which names the file, for a choice that can't be had."""
    refuse_others(path, config, {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False})
    _refuse_window(path, config)
    rope, way = _angles(path, config)
    with sizes_in(path):
        heads = whole(config, "num_attention_heads")
        model = llama(
            vocabulary=whole(config, "vocab_size"),
            context=whole(config, "max_position_embeddings"),
            width=whole(config, "hidden_size"),
            depth=whole(config, "num_hidden_layers"),
            heads=heads,
            groups=heads if config.get("num_key_value_heads") is None else whole(config, "num_key_value_heads"),
            hidden=whole(config, "intermediate_size"),
            base=number(rope if "rope_theta" in rope else config, "rope_theta", 10000.0),
            norm=f"rms:eps={number(config, 'rms_norm_eps', 1e-6)}",
            outputs=_outputs(config, tied=False),
            head_width=None if config.get("head_dim") is None else whole(config, "head_dim"),
        )
        if way == "llama3":
            factor, fast, slow = (number(rope, name) for name in ("factor", "high_freq_factor", "low_freq_factor"))
            scaling = Llama3(factor, whole(rope, TRAINED), fast, slow)
            model = replace(model, positions=replace(model.positions, scaling=scaling))
    return model


TRAINED = "original_max_position_embeddings"


def _angles(path: Path, config: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """What config.json says of the angles, and their type. Raises ValueError, which names the file, for other types.

    Today's files have them in `rope_parameters`, older ones in `rope_scaling`. What both say has to be the same.
    """
    new, old = (config.get(name) or {} for name in ("rope_parameters", "rope_scaling"))
    for name, rope in ("rope_parameters", new), ("rope_scaling", old):
        if not isinstance(rope, dict):
            raise ValueError(f"{path}: {name}: {reprlib.repr(rope)} should be an object")
        if apart := [key for key, value in rope.items() if isinstance(value, dict)]:
            one = reprlib.repr(apart[0])
            raise ValueError(f"{path}: angles of their own for {one}; only those that all blocks have can be read")
    ways = [rope.get("rope_type", rope.get("type", "default")) for rope in (new, old) if rope]
    if (len(ways) == 2 and ways[0] != ways[1]) or any(new[key] != old[key] for key in new.keys() & old.keys()):
        raise ValueError(f"{path}: rope_parameters and rope_scaling say different things of the angles")
    rope, (way, *_) = new or old, [*ways, "default"]
    for choices in (config, rope):
        refuse_others(path, choices, {"partial_rotary_factor": 1.0})
    if way not in ("default", "llama3"):
        raise ValueError(f"{path}: angles of the type {reprlib.repr(way)}; only 'default' and 'llama3' can be read")
    if way == "llama3" and TRAINED in config:
        rope = {TRAINED: config[TRAINED]} | rope
        refuse_others(path, config, {TRAINED: rope[TRAINED]})
    return rope, way


def _refuse_window(path: Path, config: dict[str, Any]) -> None:
    """Raise ValueError for a window that hides tokens, as in a Mistral under the name of a Llama. A Qwen3 has to ask for one."""
    kinds = config.get("layer_types")
    if kinds is not None and (not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds)):
        raise ValueError(
            f"{path}: layer_types is {reprlib.repr(kinds)}; only 'full_attention' in every layer can be read"
        )
    window, context = config.get("sliding_window"), config.get("max_position_embeddings")
    all_seen = isinstance(window, int) and isinstance(context, int) and window >= context
    if config.get("use_sliding_window", config["model_type"] == "llama") and not all_seen:
        refuse_others(path, config, {"sliding_window": None})


def _qwen3(path: Path, config: dict[str, Any]) -> LanguageModel:
    """A Llama that normalises queries and keys, by the ε of `rms_norm`; its heads are 128 wide if nothing else is said."""
    refuse_others(path, config, {"rms_norm_eps": 1e-6, "use_sliding_window": False})
    return replace(_llama(path, {"head_dim": 128} | config), attention=SoftmaxAttention(norm="rms"))


def _plain_llama(name: str) -> str | None:
    """The name of a tensor without its prefix; None for the angles in an old file, which are no weights."""
    return None if name.endswith(".rotary_emb.inv_freq") else name.removeprefix("model.")


def _llama_params(tensors: Tensors, model: LanguageModel) -> SequenceParams:
    D, E = model.width, tensors("embed_tokens.weight", model.vocabulary, model.width)
    blocks = tuple(_llama_block(tensors, f"layers.{k}", block) for k, block in enumerate(model.body.blocks))
    stack = StackParams(blocks, tensors.norm("norm", D, bias=False))
    return SequenceParams(E, NoParams(), stack, head=_head(tensors, model, E))


def _llama_block(tensors: Tensors, name: str, block: Any) -> BlockParams:
    D, hidden, d = block.width, block.ffn.hidden, block.attention.d
    q, kv, gains = block.attention.heads * d, block.attention.groups * d, None

    def linear(part: str, rows: int, columns: int) -> Array:
        return tensors.linear(f"{name}.{part}_proj", rows, columns, bias=False)[0]

    W_q, W_k, W_v = (linear(f"self_attn.{part}", D, columns) for part, columns in (("q", q), ("k", kv), ("v", kv)))
    if block.attention.core.norm is not None:
        gains = Gains(*(tensors(f"{name}.self_attn.{part}_norm.weight", d) for part in "qk"))
    gate, up = linear("mlp.gate", D, hidden), linear("mlp.up", D, hidden)
    return BlockParams(
        attention_norm=tensors.norm(f"{name}.input_layernorm", D, bias=False),
        attention=MultiHeadParams(W_q, W_k, W_v, linear("self_attn.o", q, D), gains=gains),
        ffn_norm=tensors.norm(f"{name}.post_attention_layernorm", D, bias=False),
        ffn=GatedFeedForwardParams(gate, None, up, None, linear("mlp.down", hidden, D), None),
    )


# By `model_type`: what makes a model of config.json, what fills it with the tensors, and what makes our names of theirs
KINDS: dict[str, Any] = {
    "gpt2": (_gpt2, _gpt2_params, _plain_gpt2),
    "llama": (_llama, _llama_params, _plain_llama),
    "qwen3": (_qwen3, _llama_params, _plain_llama),
}
