"""Part II: attention. The cores, and one file per variant."""

from minitransformer.attention.dot_product import aggregate, dot_product_attention, scores
from minitransformer.attention.masks import causal_mask, padding_mask
from minitransformer.attention.multi_head import (
    KeysValues,
    MultiHeadAttention,
    MultiHeadParams,
    merge_heads,
    split_heads,
)
from minitransformer.attention.unweighted import unweighted_attention

__all__ = [
    "KeysValues",
    "MultiHeadAttention",
    "MultiHeadParams",
    "aggregate",
    "causal_mask",
    "dot_product_attention",
    "merge_heads",
    "padding_mask",
    "scores",
    "split_heads",
    "unweighted_attention",
]
