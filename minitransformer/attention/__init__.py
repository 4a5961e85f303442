"""Part II: attention. The cores, and one file per variant."""

from minitransformer.attention.block_sparse import (
    BlockPattern,
    block_pattern,
    block_sparse_attention,
    one_pattern,
)
from minitransformer.attention.core import Core, Mixer
from minitransformer.attention.delta_rule import DeltaRule, delta_rule, delta_rule_step
from minitransformer.attention.dot_product import aggregate, dot_product_attention, scores
from minitransformer.attention.flash import flash_attention
from minitransformer.attention.groups import mean_pool_heads, repeat_heads
from minitransformer.attention.kernel_attention import (
    EluFeatures,
    KernelAttention,
    KernelState,
    elu_features,
    kernel_attention,
    kernel_attention_step,
    kernel_state,
)
from minitransformer.attention.keys_values import KeysValues
from minitransformer.attention.masks import causal_mask, padding_mask
from minitransformer.attention.merge import merge, partial_attention
from minitransformer.attention.multi_head import (
    MultiHeadAttention,
    MultiHeadParams,
    merge_heads,
    split_heads,
)
from minitransformer.attention.pages import Paged, block_tables, paged_attention
from minitransformer.attention.registry import ATTENTIONS, attention_of
from minitransformer.attention.ring import ring_attention
from minitransformer.attention.softmax import SoftmaxAttention
from minitransformer.attention.sparse import (
    ETC,
    BigBird,
    Causal,
    EachHead,
    Fixed,
    Graph,
    Intersection,
    Local,
    Longformer,
    Pattern,
    RandomKeys,
    Sinks,
    Strided,
    Union,
    Window,
    bigbird_attention,
    cache_bytes,
    etc_attention,
    labelled_attention,
    longformer_attention,
    sink_attention,
)
from minitransformer.attention.unweighted import unweighted_attention

__all__ = [
    "ATTENTIONS",
    "ETC",
    "BigBird",
    "BlockPattern",
    "Causal",
    "Core",
    "DeltaRule",
    "EachHead",
    "EluFeatures",
    "Fixed",
    "Graph",
    "Intersection",
    "KernelAttention",
    "KernelState",
    "KeysValues",
    "Local",
    "Longformer",
    "Mixer",
    "MultiHeadAttention",
    "MultiHeadParams",
    "Paged",
    "Pattern",
    "RandomKeys",
    "Sinks",
    "SoftmaxAttention",
    "Strided",
    "Union",
    "Window",
    "aggregate",
    "attention_of",
    "bigbird_attention",
    "block_pattern",
    "block_sparse_attention",
    "block_tables",
    "cache_bytes",
    "causal_mask",
    "delta_rule",
    "delta_rule_step",
    "dot_product_attention",
    "elu_features",
    "etc_attention",
    "flash_attention",
    "kernel_attention",
    "kernel_attention_step",
    "kernel_state",
    "labelled_attention",
    "longformer_attention",
    "mean_pool_heads",
    "merge",
    "merge_heads",
    "one_pattern",
    "padding_mask",
    "paged_attention",
    "partial_attention",
    "repeat_heads",
    "ring_attention",
    "scores",
    "sink_attention",
    "split_heads",
    "unweighted_attention",
]
