"""Part II, learned sparsity: which pairs are looked at depends on what stands there, or is learned."""

from minitransformer.attention.learned.adaptive_span import AdaptiveSpan, adaptive_span_attention
from minitransformer.attention.learned.reformer import Reformer, lsh_attention

__all__ = ["AdaptiveSpan", "Reformer", "adaptive_span_attention", "lsh_attention"]
