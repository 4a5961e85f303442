"""Part II: attention. The cores, and one file per variant."""

from minitransformer.attention import sparse
from minitransformer.attention.attend import attend
from minitransformer.attention.block_sparse import BlockPattern, block_pattern, block_sparse_attention, one_pattern
from minitransformer.attention.cache.keys_values import KeysValues
from minitransformer.attention.cache.pages import Paged, block_tables, paged_attention
from minitransformer.attention.core import Core, Mixer
from minitransformer.attention.delta_rule import delta_rule, delta_rule_step
from minitransformer.attention.differential import Differential, differential_attention, first_lambda
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
from minitransformer.attention.latent import Latent, LatentParams, latent_attention
from minitransformer.attention.linear import (
    GLA,
    SSD,
    DeltaRule,
    Forgetting,
    GatedDelta,
    RetNet,
    decay_mask,
    forgetting_attention,
    gated_delta_rule,
    gated_delta_step,
    gated_linear_attention,
    gated_linear_step,
    retention_decays,
    short_convolution,
)
from minitransformer.attention.masks import causal_mask, padding_mask
from minitransformer.attention.merge import merge, partial_attention
from minitransformer.attention.multi_head import MultiHeadAttention, MultiHeadParams, merge_heads, split_heads
from minitransformer.attention.output_gate import output_gate
from minitransformer.attention.pool_pairs import pool_pairs
from minitransformer.attention.pooled import Pooled, PooledParams, pool_blocks, pooled_attention
from minitransformer.attention.pooled_indexer import (
    PooledIndexer,
    PooledIndexerParams,
    chosen_rows_attention,
)
from minitransformer.attention.registry import ATTENTIONS, attention_of
from minitransformer.attention.ring import ring_attention
from minitransformer.attention.sink import LearnedSink, softmax_with_sink
from minitransformer.attention.soft_cap import soft_cap
from minitransformer.attention.softmax import SoftmaxAttention
from minitransformer.attention.sparse import *  # noqa: F403
from minitransformer.attention.unweighted import unweighted_attention

__all__ = [
    *sparse.__all__,
    "ATTENTIONS",
    "GLA",
    "SSD",
    "BlockPattern",
    "Core",
    "DeltaRule",
    "Differential",
    "EluFeatures",
    "Forgetting",
    "GatedDelta",
    "KernelAttention",
    "KernelState",
    "KeysValues",
    "Latent",
    "LatentParams",
    "LearnedSink",
    "Mixer",
    "MultiHeadAttention",
    "MultiHeadParams",
    "Paged",
    "Pooled",
    "PooledIndexer",
    "PooledIndexerParams",
    "PooledParams",
    "RetNet",
    "SoftmaxAttention",
    "aggregate",
    "attend",
    "attention_of",
    "block_pattern",
    "block_sparse_attention",
    "block_tables",
    "causal_mask",
    "chosen_rows_attention",
    "decay_mask",
    "delta_rule",
    "delta_rule_step",
    "differential_attention",
    "dot_product_attention",
    "elu_features",
    "first_lambda",
    "flash_attention",
    "forgetting_attention",
    "gated_delta_rule",
    "gated_delta_step",
    "gated_linear_attention",
    "gated_linear_step",
    "kernel_attention",
    "kernel_attention_step",
    "kernel_state",
    "latent_attention",
    "mean_pool_heads",
    "merge",
    "merge_heads",
    "one_pattern",
    "output_gate",
    "padding_mask",
    "paged_attention",
    "partial_attention",
    "pool_blocks",
    "pool_pairs",
    "pooled_attention",
    "repeat_heads",
    "retention_decays",
    "ring_attention",
    "scores",
    "short_convolution",
    "soft_cap",
    "softmax_with_sink",
    "split_heads",
    "unweighted_attention",
]
