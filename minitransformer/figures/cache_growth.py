"""How what a model keeps grows with the text: groups, windows, latents and states of five models, by arithmetic."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure, plain_ticks
from minitransformer.measurements.cache_sizes import GIB, MODELS, READ, Layers, cache_size, keys_and_values, layers_of
from minitransformer.typing import Array

LENGTHS = 2 ** np.arange(10, 21)
QWEN = "36 of a 32 × 128 × 128 state, 12 of 2 heads of 256 (Qwen3-Next's)"
SHAPES: dict[str, tuple[tuple[Layers, ...], tuple[Layers, ...]]] = {  # as they are; and without what makes them small
    "Llama 3 8B": (layers_of(READ["Llama 3 8B"]), (Layers(32, keys_and_values(32, 128)),)),
    "Gemma 3 27B": (
        MODELS["the same, 52 of them a window of 1024 (Gemma 3 27B)"],
        MODELS["62 layers, 16 heads of 128"],
    ),
    "DeepSeek-V3": (MODELS["the same, one latent of 576 (DeepSeek-V3)"], MODELS["61 layers, 128 heads of 128"]),
    "gpt-oss-120b": (
        MODELS["the same, every other a window of 128 (gpt-oss-120b)"],
        MODELS["36 layers, 8 heads of 64"],
    ),
    "Qwen3-Next": (MODELS[QWEN], (Layers(48, keys_and_values(2, 256)),)),
}

# where a name stands beside the end of its line, in GiB, so that no two touch; and what makes the cache small
TOLD = {
    "Llama 3 8B": (160, "groups"),
    "Gemma 3 27B": (92, "windows"),
    "DeepSeek-V3": (54, "a latent"),
    "gpt-oss-120b": (32, "windows"),
    "Qwen3-Next": (18.5, "states"),
}
NUDGED = {"Llama 3 8B": 1.12, "Qwen3-Next": 0.82, "Gemma 3 27B": 1.1}


class CacheGrowth(NamedTuple):
    """Bytes after n tokens, and how many times as many it would be without groups, windows, latents or states."""

    n: Array
    bytes: dict[str, Array]
    saving: dict[str, Array]


def data() -> CacheGrowth:
    """From 1,024 tokens to 1,048,576, in bfloat16."""
    kept, saving = {}, {}
    for name, pair in SHAPES.items():
        kept[name], without = (np.array([cache_size(layers, int(n)) for n in LENGTHS]) for layers in pair)
        saving[name] = without / kept[name]
    return CacheGrowth(LENGTHS, kept, saving)


def draw(data: CacheGrowth) -> Figure:
    """Above: GiB by the number of tokens. Below: how many times smaller that is than without the idea, which stands at the end of
    its line in the colour of the model. All axes logarithmic.
    """
    fig, (above, below) = figure(2, 1, height=11)
    for (name, kept), marker in zip(data.bytes.items(), "os^Dv", strict=True):
        above.loglog(data.n, kept / GIB, marker=marker, markersize=7, label=name)
        below.loglog(data.n, data.saving[name], marker=marker, markersize=7)
    colours = {line.get_label(): line.get_color() for line in above.lines}
    for name, colour in colours.items():
        end, (height, idea) = 1.35 * data.n[-1], TOLD[name]
        above.text(end, height, name, color=colour, va="center")
        below.text(end, data.saving[name][-1] * NUDGED.get(name, 1), idea, color=colour, va="center")
    for ax in (above, below):
        ax.set(xlabel="tokens", xlim=(800, None), xticks=[2**10, 2**14, 2**20], xticklabels=["1k", "16k", "1M"])
    above.set(title="kept of one text, GiB", ylim=(0.02, 200))
    plain_ticks(above, y=[0.1, 1, 10, 100])
    below.set(title="times smaller than without it", ylim=(0.8, 100))
    plain_ticks(below, y=[1, 2, 4, 6, 16, 57])
    return fig
