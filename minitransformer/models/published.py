"""Published architectures, each in ten lines: the parts are those of the registry, and a model is a choice of them.

                norm    positions           heads             second half   blocks
    GPT-2       layer   learned             all               GELU          all alike
    Llama       RMS     turned, in halves   in groups         SwiGLU        all alike
    gpt-oss     RMS     turned, in halves   groups, sinks     SwiGLU        a window, all, a window, all …
    DeepSeek    RMS     turned, apart       from one latent   SwiGLU        all alike
    Qwen3-Next  RMS     turned in part      groups, gated     SwiGLU        three with a gated delta rule, one with all

Sizes are small unless others are given, so that they train on a text. D = H d in them, and where a published model has heads
that are wider together than its rows, `head_width` says so. Mixtures of experts are left out of all; each function says what
else it leaves out.
"""

from minitransformer.attention import GatedDelta, MultiHeadAttention, SoftmaxAttention, Window
from minitransformer.attention.sink import LearnedSink
from minitransformer.models.block import FFN
from minitransformer.models.sequence_model import LanguageModel, Outputs
from minitransformer.positions import RoPE
from minitransformer.positions.registry import head_width_of
from minitransformer.ranges import PositiveNumber, so_many
from minitransformer.typing import checked


def _turned(width: int, heads: int, head_width: int | None, base: float, part: int | None = None) -> RoPE:
    """Queries and keys whose halves are pairs. Raises ValueError for heads that have no whole pairs."""
    if head_width is None and (heads < 1 or width % (2 * heads)):
        raise ValueError(
            f"heads: {so_many(width, 'column')} can't be divided into {so_many(heads, 'head')} of whole pairs"
        )
    if head_width is not None and head_width % 2:
        raise ValueError(f"head_width: {head_width} channels are no whole pairs")
    return RoPE(head_width_of(width, heads, head_width), base, "halves", part)


@checked
def gpt2(
    vocabulary: int = 256, context: int = 128, width: int = 128, depth: int = 4, heads: int = 4,
    hidden: int | None = None, ffn: FFN = "gelu_tanh", norm: str = "layer", outputs: Outputs = "tied",
) -> LanguageModel:  # fmt: skip
    """GPT-2. The smallest of the published ones is gpt2(50257, 1024, 768, 12, 12): 124,439,808 parameters.

    source   Radford et al. 2019, and `modeling_gpt2.py` in huggingface/transformers
    """
    return LanguageModel(
        vocabulary, context, width, depth, heads, hidden,
        positions="learned", ffn=ffn, norm=norm, embedding="plain", outputs=outputs,
    )  # fmt: skip


@checked
def llama(
    vocabulary: int = 256, context: int = 128, width: int = 128, depth: int = 4, heads: int = 4, groups: int = 2,
    hidden: int | None = None, base: PositiveNumber = 10000.0, norm: str = "rms", outputs: Outputs = "own",
    head_width: int | None = None,
) -> LanguageModel:  # fmt: skip
    """The Llama kind. Llama 3 8B is llama(128256, 8192, 4096, 32, 32, 8, 14336, 500000.0): 8,030,261,248 parameters.

    base     of the angles, `rope_theta` in its files. Longer texts by other frequencies: RoPE(…, scaling=…)
    head_width   d, if it is not D/H
    source   Touvron et al. 2023, Grattafiori et al. 2024, and `modeling_llama.py` in huggingface/transformers, for whose files
             the columns of W_q and W_k were permuted: in Meta's own the pairs are neighbours
    """
    return LanguageModel(
        vocabulary, context, width, depth, heads, hidden, positions=_turned(width, heads, head_width, base),
        groups=groups, head_width=head_width, ffn="swiglu", norm=norm, bias=False, embedding="plain", outputs=outputs,
    )  # fmt: skip


@checked
def gpt_oss(
    vocabulary: int = 256, context: int = 128, width: int = 128, depth: int = 4, heads: int = 4, groups: int = 2,
    hidden: int | None = None, window: int = 32, base: PositiveNumber = 150000.0, head_width: int | None = None,
) -> LanguageModel:  # fmt: skip
    """The pattern of gpt-oss: every other block sees a window of the last tokens, its own among them; 128 in the published ones.

    Every head has a sink, a learned score that takes weight and has no value. Without its experts,
    gpt-oss-120b is gpt_oss(201088, 131072, 2880, 36, 64, 8, 2880, 128, head_width=64): heads that are 4096 wide together.
    Left out: the mixture of experts, whose SwiGLU is clipped, with σ(1.702 x) and one added to what it opens; YaRN
    source   OpenAI 2025, `gpt_oss/torch/model.py` in openai/gpt-oss
    """
    near, all_ = (SoftmaxAttention(pattern, sink=LearnedSink(heads)) for pattern in (Window(window - 1), None))
    return LanguageModel(
        vocabulary, context, width, depth, heads, hidden, (near, all_),
        positions=_turned(width, heads, head_width, base), groups=groups, head_width=head_width,
        ffn="swiglu", norm="rms", embedding="plain", outputs="own",
    )  # fmt: skip


@checked
def deepseek_v2_lite(
    vocabulary: int = 256, context: int = 128, width: int = 128, depth: int = 4, heads: int = 4,
    hidden: int | None = None, rank: int | None = None, rotary: int | None = None, query_rank: int | None = None,
) -> LanguageModel:  # fmt: skip
    """DeepSeek-V2-Lite with dense blocks only. There D = 2048, 27 blocks, 16 heads, a latent of 512 and 64 turned channels.

    rank         r, the width of the latent; D/4 if None
    rotary       d_r, the channels that are turned; half of a head's if None
    query_rank   the width of a latent for the queries; None for no such latent, as in the published model
    Left out: the mixture of experts in all blocks but the first, whose hidden width is 10944; YaRN
    source   DeepSeek-AI 2024a, and `modeling_deepseek_v2.py` in huggingface/transformers
    """
    options = {"rank": rank, "query_rank": query_rank, "rotary": rotary}
    return LanguageModel(
        vocabulary, context, width, depth, heads, hidden,
        "latent:" + ",".join(f"{name}={value}" for name, value in options.items()), positions="none",
        ffn="swiglu", norm="rms:eps=1e-6", bias=False, embedding="plain", outputs="own",
    )  # fmt: skip


@checked
def qwen3_next(
    vocabulary: int = 256, context: int = 128, width: int = 128, depth: int = 4, heads: int = 4, groups: int = 2,
    hidden: int | None = None, key_heads: int = 2, taps: int = 4, head_width: int | None = None,
    delta_heads: int | None = None, delta_width: int | None = None,
) -> LanguageModel:  # fmt: skip
    """The pattern of Qwen3-Next: three blocks with a gated delta rule, and one with softmax, of which a quarter is turned.

    The softmax blocks normalise queries and keys, and open each channel by a gate. In the model of 80 billion parameters D is
    2048, they have 16 heads of 256 in 2 groups, and the delta rule has 32 of 128, of which two share a query and a key.

    key_heads, taps            of the delta rule: heads of queries and keys, which its H heads share, and taps of its convolution
    delta_heads, delta_width   H and d of the delta rule; as in the softmax blocks if None
    Left out: the mixture of experts. The published gains of norms are γ − 1, but for that behind the delta rule
    source   Qwen 2025a, and `modeling_qwen3_next.py` in huggingface/transformers
    """
    d = head_width_of(width, heads, head_width)
    H, e = delta_heads or heads, delta_width or d
    turned = _turned(width, heads, head_width, 1e7, max(d // 8 * 2, 2))
    core = GatedDelta(H, e, taps=taps, key_heads=key_heads, eps=1e-6)
    delta = MultiHeadAttention(width, H, bias=False, core=core, head_width=e)
    gated = SoftmaxAttention(norm="rms", gate="element")
    full = MultiHeadAttention(width, heads, bias=False, core=gated, rotate=turned, groups=groups, head_width=d)
    return LanguageModel(
        vocabulary, context, width, depth, heads, hidden, (delta, delta, delta, full), positions="none",
        head_width=head_width, ffn="swiglu", norm="rms:eps=1e-6", bias=False, embedding="plain", outputs="own",
    )  # fmt: skip
