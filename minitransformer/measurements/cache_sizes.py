"""What models have to remember while they write, by arithmetic: their published shapes, and the bytes of one long text.

A layer keeps some numbers for each token, of `cap` tokens at most, and perhaps a state of a fixed size:

    bytes(n) = Σ_kinds layers · (2 · numbers · min(n, cap) + fixed)             two bytes for a bfloat16, a state in float32

Where a layer keeps the rows of a window beside rows of all tokens, those of the window are counted as fixed. For a text
that is shorter than the window this is too much.
"""

from typing import Any, NamedTuple

from minitransformer.attention import GatedDelta, Latent
from minitransformer.models import LanguageModel, deepseek_v2_lite, gpt2, llama

GIB = 2**30


class Layers(NamedTuple):
    """Layers of one kind: how many, numbers for each token, tokens at most (None: all), and bytes besides."""

    layers: int
    numbers: float
    cap: int | None = None
    fixed: int = 0


def keys_and_values(groups: int, d: int) -> int:
    """Numbers that a token leaves in a layer: G keys and G values of width d."""
    return 2 * groups * d


MODELS: dict[str, tuple[Layers, ...]] = {
    "61 layers, 128 heads of 128": (Layers(61, keys_and_values(128, 128)),),
    "the same, one latent of 576 (DeepSeek-V3)": (Layers(61, 576),),
    "43 layers, 41 with blocks of 4 or 128 tokens (DeepSeek-V4-Flash)": (  # and all with a window of 128
        Layers(2, 512, 128),
        Layers(21, (512 + 128) / 4, None, 2 * 512 * 128),  # a row and a key of the indexer for 4 tokens
        Layers(20, 512 / 128, None, 2 * 512 * 128),
    ),
    "36 layers, 8 heads of 64": (Layers(36, keys_and_values(8, 64)),),
    "the same, every other a window of 128 (gpt-oss-120b)": (
        Layers(18, keys_and_values(8, 64), 128),
        Layers(18, keys_and_values(8, 64)),
    ),
    "36 in chunks of 8192, 12 full, 8 heads of 128 (Llama 4)": (
        Layers(36, keys_and_values(8, 128), 8192),
        Layers(12, keys_and_values(8, 128)),
    ),
    "62 layers, 16 heads of 128": (Layers(62, keys_and_values(16, 128)),),
    "the same, 52 of them a window of 1024 (Gemma 3 27B)": (
        Layers(52, keys_and_values(16, 128), 1024),
        Layers(10, keys_and_values(16, 128)),
    ),
    "36 of a 32 × 128 × 128 state, 12 of 2 heads of 256 (Qwen3-Next's)": (
        Layers(36, 0, None, 4 * 32 * 128 * 128),
        Layers(12, keys_and_values(2, 256)),
    ),
}


# models of the book in published sizes, for `layers_of`; they have no parameters here
READ: dict[str, LanguageModel] = {
    "GPT-2": gpt2(50257, 1024, 768, 12, 12),
    "Llama 3 8B": llama(128256, 8192, 4096, 32, 32, 8, 14336, 500000.0),
    "DeepSeek-V2-Lite": deepseek_v2_lite(102400, 4096, 2048, 27, 16, 10944, rank=512, rotary=64),
}


def layers_of(model: LanguageModel) -> tuple[Layers, ...]:
    """What each block of a model keeps, from its own numbers.

    raises   ValueError for another kind of attention than softmax in any pattern, latents and the gated delta rule
    """
    return tuple(_kept_by(block.attention) for block in model.body.blocks)


def _kept_by(mixer: Any) -> Layers:
    """Latents; or keys and values, of a window or of all; or a memory, and the last rows that its convolution wants again."""
    if isinstance(mixer, Latent):
        return Layers(1, mixer.kept)
    core: Any = getattr(mixer, "core", None)
    if not isinstance(core, GatedDelta) and not hasattr(core, "pattern"):
        raise ValueError(f"attention: what {type(core or mixer).__name__} keeps is not counted here")
    H, d = mixer.heads, mixer.d
    if isinstance(core, GatedDelta):
        rows = 0 if core.taps is None else core.taps - 1
        return Layers(1, 0, None, 4 * (H * d * d + rows * (H + 2 * (core.key_heads or H)) * d))
    kept = None if core.pattern is None else core.pattern.kept
    return Layers(1, keys_and_values(mixer.groups or H, d), None if kept is None else kept.first + kept.last)


def cache_size(layers: tuple[Layers, ...], n: int) -> float:
    """Bytes that these layers keep after n tokens."""
    return sum(
        kind.layers * (2 * kind.numbers * (n if kind.cap is None else min(n, kind.cap)) + kind.fixed) for kind in layers
    )


def table(lengths: tuple[int, ...] = (4096, 131072)) -> str:
    """Model by model, in GiB."""
    head = f"{'cache in GiB':<68}" + "".join(f"{n // 1024:>7}k" for n in lengths)
    rows = [
        f"{name:<68}" + "".join(f"{cache_size(layers, n) / GIB:8.2f}" for n in lengths)
        for name, layers in MODELS.items()
    ]
    return "\n".join([head, *rows])
