"""The weights of transformers' DeepSeek, gpt-oss and Qwen3-Next, w by their names, as our parameters. They have no experts."""

import numpy as np

from minitransformer.attention import LatentParams, MultiHeadParams
from minitransformer.attention.linear.gated_delta_net import GatedDeltaParams
from minitransformer.attention.linear.short_convolution import Kernel
from minitransformer.attention.multi_head import Gains, ProjectionParams
from minitransformer.attention.softmax import SinkParams
from minitransformer.models import (
    BlockParams,
    GatedFeedForwardParams,
    NormParams,
    SequenceParams,
    StackParams,
    deepseek_v2_lite,
    gpt_oss,
    qwen3_next,
)
from minitransformer.pullback import NoParams


def linear(w, name):
    """Theirs is y = W x."""
    return np.ascontiguousarray(w[f"{name}.weight"].T)


def parted(W, heads, *widths):
    """Columns of each head side by side, to those of all heads after those of all heads."""
    parts = np.split(W.reshape(len(W), heads, -1), np.cumsum(widths)[:-1], axis=-1)
    return (part.reshape(len(W), -1) for part in parts)


def sequence(w, blocks, gain=0):
    """The whole model. Norms multiply by their weight, or by gain = 1 and their weight."""
    head = ProjectionParams(linear(w, "lm_head"))
    stack = StackParams(tuple(blocks), NormParams(gain + w["model.norm.weight"]))
    return SequenceParams(w["model.embed_tokens.weight"], NoParams(), stack, head=head)


def swiglu(w, name):
    """Without biases."""
    gate, up, down = (linear(w, f"{name}.mlp.{part}_proj") for part in ("gate", "up", "down"))
    return GatedFeedForwardParams(gate, None, up, None, down, None)


def block(w, name, attention, ffn, gain=0):
    """Two norms, and what stands behind them."""
    norms = (NormParams(gain + w[f"{name}.{each}_layernorm.weight"]) for each in ("input", "post_attention"))
    return BlockParams(next(norms), attention, next(norms), ffn)


def deepseek(w, c):
    H, r, d, d_r = c["num_attention_heads"], c["kv_lora_rank"], 4, c["qk_rope_head_dim"]

    def attention(name):
        W_q, W_qr = parted(linear(w, f"{name}.q_proj"), H, d, d_r)
        W_dc, W_kr = np.split(linear(w, f"{name}.kv_a_proj_with_mqa"), [r], axis=1)
        W_uk, W_uv = parted(linear(w, f"{name}.kv_b_proj"), H, d, d)
        return LatentParams(
            W_q, W_qr, W_dc, w[f"{name}.kv_a_layernorm.weight"], W_kr, W_uk, W_uv, linear(w, f"{name}.o_proj")
        )

    layers = [f"model.layers.{k}" for k in range(2)]
    blocks = [block(w, name, attention(f"{name}.self_attn"), swiglu(w, name)) for name in layers]
    return deepseek_v2_lite(11, 16, 12, 2, H, 10, rank=r, rotary=d_r), sequence(w, blocks)


def oss(w, c):
    """Gates and what they open are interleaved, and what they open is one more: a bias of ours."""

    def attention(name):
        W = [linear(w, f"{name}.{part}_proj") for part in "qkvo"]
        b = [w[f"{name}.{part}_proj.bias"] for part in "qkvo"]
        return MultiHeadParams(*W, *b, core=SinkParams(w[f"{name}.sinks"]))

    def ffn(name):
        U, b = w[f"{name}.gate_up_proj"][0], w[f"{name}.gate_up_proj_bias"][0]
        return GatedFeedForwardParams(
            *(U[:, ::2], b[::2], U[:, 1::2], b[1::2] + 1), w[f"{name}.down_proj"][0], w[f"{name}.down_proj_bias"][0]
        )

    layers = [f"model.layers.{k}" for k in range(c["num_hidden_layers"])]
    blocks = [block(w, name, attention(f"{name}.self_attn"), ffn(f"{name}.mlp.experts")) for name in layers]
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    model = gpt_oss(11, 16, *(c[x] for x in sizes), window=c["sliding_window"], head_width=c["head_dim"])
    return model, sequence(w, blocks)


def next_(w, c):
    """In the full blocks a head's gate stands behind its query; in the others, a head of keys with all that it serves."""
    H, G, H_k, H_v = (
        c[x] for x in ("num_attention_heads", "num_key_value_heads", "linear_num_key_heads", "linear_num_value_heads")
    )
    d, e, serves = c["head_dim"], c["linear_key_head_dim"], H_v // H_k

    def full(name):
        W_q, W_g = parted(linear(w, f"{name}.q_proj"), H, d, d)
        W_k, W_v, W_o = (linear(w, f"{name}.{part}_proj") for part in "kvo")
        gains = Gains(*(1 + w[f"{name}.{part}_norm.weight"] for part in "qk"))
        return MultiHeadParams(W_q, W_k, W_v, W_o, streams={"gate": ProjectionParams(W_g)}, gains=gains)

    def delta(name):
        W_q, W_k, W_v, W_g = parted(linear(w, f"{name}.in_proj_qkvz"), H_k, e, e, serves * e, serves * e)
        W_beta, W_alpha = parted(linear(w, f"{name}.in_proj_ba"), H_k, serves, serves)
        theta = w[f"{name}.conv1d.weight"][:, 0].reshape(2 * H_k + H_v, e, -1).swapaxes(1, 2)
        core = GatedDeltaParams(
            w[f"{name}.A_log"],
            w[f"{name}.dt_bias"],
            None,
            w[f"{name}.norm.weight"],
            Kernel(np.ascontiguousarray(theta)),
        )
        streams = {"beta": ProjectionParams(W_beta), "alpha": ProjectionParams(W_alpha), "gate": ProjectionParams(W_g)}
        return MultiHeadParams(W_q, W_k, W_v, linear(w, f"{name}.out_proj"), core=core, streams=streams)

    layers = [f"model.layers.{k}" for k in range(4)]
    mixers = [delta(f"{name}.linear_attn") for name in layers[:3]] + [full(f"{layers[3]}.self_attn")]
    blocks = [block(w, name, mixer, swiglu(w, name), 1) for name, mixer in zip(layers, mixers, strict=True)]
    model = qwen3_next(
        *(11, 16, c["hidden_size"], 4, H, G, 10, H_k, c["linear_conv_kernel_dim"]),
        head_width=d,
        delta_heads=H_v,
        delta_width=e,
    )
    return model, sequence(w, blocks, 1)


TRANSLATED = {"deepseek": deepseek, "gpt_oss": oss, "qwen3_next": next_}
