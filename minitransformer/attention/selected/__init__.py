"""Part II, learned sparsity: which pairs are looked at depends on what stands there, or is learned."""

from minitransformer.attention.selected.adaptive_span import AdaptiveSpan, adaptive_span_attention
from minitransformer.attention.selected.indexer import Indexer, index_loss, index_scores
from minitransformer.attention.selected.moba import MoBA, moba_attention
from minitransformer.attention.selected.nsa import NSA, nsa_attention
from minitransformer.attention.selected.reformer import Reformer, lsh_attention
from minitransformer.attention.selected.routing import Routing, routing_attention
from minitransformer.attention.selected.sinkhorn import Sinkhorn, sinkhorn, sinkhorn_attention

__all__ = [
    "NSA",
    "AdaptiveSpan",
    "Indexer",
    "MoBA",
    "Reformer",
    "Routing",
    "Sinkhorn",
    "adaptive_span_attention",
    "index_loss",
    "index_scores",
    "lsh_attention",
    "moba_attention",
    "nsa_attention",
    "routing_attention",
    "sinkhorn",
    "sinkhorn_attention",
]
