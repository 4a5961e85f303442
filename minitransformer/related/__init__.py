"""Part III, models that attention is related to, and the recurrent ones from which the book sets out."""

import minitransformer.attention  # noqa: F401  first, because its registry imports modules of this package
from minitransformer.related.capsule_classifier import CapsuleClassifier, CapsuleClassifierParams, margin_loss, pieces
from minitransformer.related.capsules import Capsules, CapsulesParams, route, squash, votes
from minitransformer.related.convolution_from_heads import (
    ConvolutionFromHeads,
    convolution_from_heads,
    convolve_with_heads,
    widened,
)
from minitransformer.related.dynamic_convolution import (
    DynamicConvolution,
    LightweightConvolution,
    dynamic_convolution,
    lightweight_convolution,
)
from minitransformer.related.edge_attention import (
    additive_attention,
    additive_edge_attention,
    additive_scores,
    edge_attention,
)
from minitransformer.related.gmlp import GMLP, GMLPParams, spatial_gate
from minitransformer.related.graph import Edges, edges_of, edges_of_mask
from minitransformer.related.graph_attention import GAT, GATParams, GATv2, GATv2Params
from minitransformer.related.graph_convolution import GraphConvolution, GraphConvolutionParams, edge_weights, propagate
from minitransformer.related.graph_mixer import GraphAttention, GraphMean
from minitransformer.related.gru import GRU, GRUParams, UnrolledGRU, gru_coefficients
from minitransformer.related.hopfield import (
    Recall,
    classical_energy,
    classical_recall,
    dense_energy,
    dense_recall,
    hebbian,
)
from minitransformer.related.hopfield_layers import (
    AssociationParams,
    HopfieldAssociation,
    HopfieldLookup,
    HopfieldPooling,
    LookupParams,
    PoolingParams,
)
from minitransformer.related.hypernetwork import attention_weights
from minitransformer.related.ladder import After, Alike, Attend, Candidates, FreeWeights, rungs
from minitransformer.related.lstm import LSTM, LSTMParams
from minitransformer.related.modern_hopfield import Hopfield, hopfield_attention, hopfield_energy
from minitransformer.related.rnn import RNN, RNNParams
from minitransformer.related.synthesizer import Synthesizer, SynthesizerParams
from minitransformer.related.word_window import WordWindow, WordWindowParams

__all__ = [
    "GAT",
    "GMLP",
    "GRU",
    "LSTM",
    "RNN",
    "After",
    "Alike",
    "AssociationParams",
    "Attend",
    "Candidates",
    "CapsuleClassifier",
    "CapsuleClassifierParams",
    "Capsules",
    "CapsulesParams",
    "ConvolutionFromHeads",
    "DynamicConvolution",
    "Edges",
    "FreeWeights",
    "GATParams",
    "GATv2",
    "GATv2Params",
    "GMLPParams",
    "GRUParams",
    "GraphAttention",
    "GraphConvolution",
    "GraphConvolutionParams",
    "GraphMean",
    "Hopfield",
    "HopfieldAssociation",
    "HopfieldLookup",
    "HopfieldPooling",
    "LSTMParams",
    "LightweightConvolution",
    "LookupParams",
    "PoolingParams",
    "RNNParams",
    "Recall",
    "Synthesizer",
    "SynthesizerParams",
    "UnrolledGRU",
    "WordWindow",
    "WordWindowParams",
    "additive_attention",
    "additive_edge_attention",
    "additive_scores",
    "attention_weights",
    "classical_energy",
    "classical_recall",
    "convolution_from_heads",
    "convolve_with_heads",
    "dense_energy",
    "dense_recall",
    "dynamic_convolution",
    "edge_attention",
    "edge_weights",
    "edges_of",
    "edges_of_mask",
    "gru_coefficients",
    "hebbian",
    "hopfield_attention",
    "hopfield_energy",
    "lightweight_convolution",
    "margin_loss",
    "pieces",
    "propagate",
    "route",
    "rungs",
    "spatial_gate",
    "squash",
    "votes",
    "widened",
]
