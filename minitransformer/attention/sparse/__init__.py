"""Sparse attention: fixed patterns, one file per idea."""

from minitransformer.attention.sparse.bigbird import BigBird
from minitransformer.attention.sparse.cached_tokens import cache_bytes
from minitransformer.attention.sparse.etc import ETC, etc_attention, labelled_attention
from minitransformer.attention.sparse.graph import Graph
from minitransformer.attention.sparse.local import Local
from minitransformer.attention.sparse.longformer import Longformer, longformer_attention
from minitransformer.attention.sparse.pattern import Causal, EachHead, Intersection, Pattern, Union
from minitransformer.attention.sparse.random_keys import RandomKeys
from minitransformer.attention.sparse.rolled_keys import bigbird_attention
from minitransformer.attention.sparse.sinks import Sinks, sink_attention
from minitransformer.attention.sparse.sparse_transformer import Fixed, Strided
from minitransformer.attention.sparse.window import Window

__all__ = [
    "ETC",
    "BigBird",
    "Causal",
    "EachHead",
    "Fixed",
    "Graph",
    "Intersection",
    "Local",
    "Longformer",
    "Pattern",
    "RandomKeys",
    "Sinks",
    "Strided",
    "Union",
    "Window",
    "bigbird_attention",
    "cache_bytes",
    "etc_attention",
    "labelled_attention",
    "longformer_attention",
    "sink_attention",
]
