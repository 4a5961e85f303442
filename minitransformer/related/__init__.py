"""Part III, models that attention is related to, and the recurrent ones from which the book sets out."""

import minitransformer.attention  # noqa: F401  first: its registry takes the mixers of this room by their files
from minitransformer.related.dynamic_convolution import (
    DynamicConvolution,
    LightweightConvolution,
    dynamic_convolution,
    lightweight_convolution,
)
from minitransformer.related.gru import GRU, GRUParams, UnrolledGRU, gru_coefficients
from minitransformer.related.ladder import After, Alike, Attend, Candidates, FreeWeights, rungs
from minitransformer.related.rnn import RNN, RNNParams
from minitransformer.related.word_window import WordWindow, WordWindowParams

__all__ = [
    "GRU",
    "RNN",
    "After",
    "Alike",
    "Attend",
    "Candidates",
    "DynamicConvolution",
    "FreeWeights",
    "GRUParams",
    "LightweightConvolution",
    "RNNParams",
    "UnrolledGRU",
    "WordWindow",
    "WordWindowParams",
    "dynamic_convolution",
    "gru_coefficients",
    "lightweight_convolution",
    "rungs",
]
