"""Every kind of attention under a name, so that a model can be told which one to use.

LanguageModel(attention="bigbird")              the sizes are those of the model, the options as usual
LanguageModel(attention="window:radius=32")     with an option of its own
LanguageModel(attention=("softmax", "window"))  one kind of block after another, over and over
"""

from collections.abc import Callable
from typing import Any

from minitransformer.attention.compressed import FNet, Linformer, MemoryCompressed, Nystrom
from minitransformer.attention.core import Core, Mixer
from minitransformer.attention.differential import Differential
from minitransformer.attention.kernel_attention import KernelAttention
from minitransformer.attention.latent import Latent
from minitransformer.attention.linear import (
    DPFP,
    GLA,
    SSD,
    CosFormer,
    DeltaRule,
    Forgetting,
    GatedDelta,
    Performer,
    RetNet,
    Smoother,
    Taylor,
)
from minitransformer.attention.pooled_indexer import pooled
from minitransformer.attention.selected import NSA, AdaptiveSpan, Indexer, MoBA, Reformer, Routing, Sinkhorn
from minitransformer.attention.softmax import SoftmaxAttention, softmax_attention
from minitransformer.attention.sparse import ETC, BigBird, Fixed, Local, Longformer, Pattern, Sinks, Strided, Window
from minitransformer.registry import named
from minitransformer.related.dynamic_convolution import DynamicConvolution, LightweightConvolution
from minitransformer.related.gmlp import GMLP
from minitransformer.related.graph_mixer import GraphAttention, GraphMean
from minitransformer.related.modern_hopfield import Hopfield
from minitransformer.related.synthesizer import Synthesizer
from minitransformer.typing import checked

ATTENTIONS: dict[str, Callable[..., Core | Mixer | Pattern]] = {
    "softmax": softmax_attention,
    "differential": Differential,
    "latent": Latent,
    "pooled": pooled,
    "compressed": MemoryCompressed,
    "linformer": Linformer,
    "nystrom": Nystrom,
    "fnet": FNet,
    "local": Local,
    "window": Window,
    "sinks": Sinks,
    "strided": Strided,
    "fixed": Fixed,
    "longformer": Longformer,
    "etc": ETC,
    "bigbird": BigBird,
    "span": AdaptiveSpan,
    "reformer": Reformer,
    "routing": Routing,
    "sinkhorn": Sinkhorn,
    "moba": MoBA,
    "nsa": NSA,
    "indexer": Indexer,
    "smoother": Smoother,
    "linear": KernelAttention,
    "taylor": Taylor,
    "performer": Performer,
    "cosformer": CosFormer,
    "dpfp": DPFP,
    "delta": DeltaRule,
    "retnet": RetNet,
    "gla": GLA,
    "ssd": SSD,
    "gated-delta": GatedDelta,
    "forgetting": Forgetting,
    "gmlp": GMLP,
    "lightweight-convolution": LightweightConvolution,
    "dynamic-convolution": DynamicConvolution,
    "gat": GraphAttention,
    "gcn": GraphMean,
    "synthesizer": Synthesizer,
    "hopfield": Hopfield,
}
EXAMPLE = {"width": 128, "heads": 4, "d": 32, "longest": 128}  # sizes for the table


@checked
def attention_of(attention: Any, sizes: dict[str, int]) -> Core | Mixer:
    """The core or mixer of this name for a model of these sizes, or the one that is given; a pattern becomes a core.

    raises   ValueError for an unknown name or option
    """
    if isinstance(attention, str):
        attention = named("attention", ATTENTIONS, attention, sizes)
    if isinstance(attention, Pattern):
        attention = SoftmaxAttention(attention)
    if not isinstance(attention, (Core, Mixer)):
        raise ValueError(f"attention: {attention!r} is not a name, nor a core, a mixer or a pattern")
    return attention


def rows() -> list[tuple[str, Core | Mixer, str]]:
    """Name, an example of it, and what it is in one line: the first line of its docstring."""
    made = {name: named("attention", ATTENTIONS, name, EXAMPLE) for name in ATTENTIONS}
    return [(name, attention_of(it, EXAMPLE), (type(it).__doc__ or "").splitlines()[0]) for name, it in made.items()]


def positions(part: Core | Mixer) -> str:
    """Which encodings of positions it can be combined with."""
    if isinstance(part, Mixer):
        return "at the embeddings"
    return "any" if part.places else "at the embeddings, rope"
