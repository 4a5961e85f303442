"""Part III, models that attention is related to, and the recurrent ones from which the book sets out."""

import minitransformer.attention  # noqa: F401  first: its registry takes the mixers of this room by their files
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
from minitransformer.related.gmlp import GMLP, GMLPParams, spatial_gate
from minitransformer.related.gru import GRU, GRUParams, UnrolledGRU, gru_coefficients
from minitransformer.related.ladder import After, Alike, Attend, Candidates, FreeWeights, rungs
from minitransformer.related.rnn import RNN, RNNParams
from minitransformer.related.word_window import WordWindow, WordWindowParams

__all__ = [
    "GMLP",
    "GRU",
    "RNN",
    "After",
    "Alike",
    "Attend",
    "Candidates",
    "ConvolutionFromHeads",
    "DynamicConvolution",
    "FreeWeights",
    "GMLPParams",
    "GRUParams",
    "LightweightConvolution",
    "RNNParams",
    "UnrolledGRU",
    "WordWindow",
    "WordWindowParams",
    "convolution_from_heads",
    "convolve_with_heads",
    "dynamic_convolution",
    "gru_coefficients",
    "lightweight_convolution",
    "rungs",
    "spatial_gate",
    "widened",
]
