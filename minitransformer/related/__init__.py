"""Part III, models that attention is related to, and the recurrent ones from which the book sets out."""

import minitransformer.attention  # noqa: F401  first: its registry takes the mixers of this room by their files
from minitransformer.related.edge_attention import (
    additive_attention,
    additive_edge_attention,
    additive_scores,
    edge_attention,
)
from minitransformer.related.graph import Edges, edges_of, edges_of_mask
from minitransformer.related.graph_attention import GAT, GATParams, GATv2, GATv2Params
from minitransformer.related.graph_convolution import (
    GraphConvolution,
    GraphConvolutionParams,
    edge_weights,
    propagate,
)
from minitransformer.related.graph_mixer import GraphAttention, GraphMean
from minitransformer.related.gru import GRU, GRUParams, UnrolledGRU, gru_coefficients
from minitransformer.related.ladder import After, Alike, Attend, Candidates, FreeWeights, rungs
from minitransformer.related.rnn import RNN, RNNParams
from minitransformer.related.word_window import WordWindow, WordWindowParams

__all__ = [
    "GAT",
    "GRU",
    "RNN",
    "After",
    "Alike",
    "Attend",
    "Candidates",
    "Edges",
    "FreeWeights",
    "GATParams",
    "GATv2",
    "GATv2Params",
    "GRUParams",
    "GraphAttention",
    "GraphConvolution",
    "GraphConvolutionParams",
    "GraphMean",
    "RNNParams",
    "UnrolledGRU",
    "WordWindow",
    "WordWindowParams",
    "additive_attention",
    "additive_edge_attention",
    "additive_scores",
    "edge_attention",
    "edge_weights",
    "edges_of",
    "edges_of_mask",
    "gru_coefficients",
    "propagate",
    "rungs",
]
