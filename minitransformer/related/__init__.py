"""Part III, models that attention is related to, and the recurrent ones from which the book sets out."""

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
from minitransformer.related.ladder import After, Alike, Attend, Candidates, FreeWeights, rungs
from minitransformer.related.modern_hopfield import Hopfield, hopfield_attention, hopfield_energy
from minitransformer.related.rnn import RNN, RNNParams
from minitransformer.related.word_window import WordWindow, WordWindowParams

__all__ = [
    "GRU",
    "RNN",
    "After",
    "Alike",
    "AssociationParams",
    "Attend",
    "Candidates",
    "FreeWeights",
    "GRUParams",
    "Hopfield",
    "HopfieldAssociation",
    "HopfieldLookup",
    "HopfieldPooling",
    "LookupParams",
    "PoolingParams",
    "RNNParams",
    "Recall",
    "UnrolledGRU",
    "WordWindow",
    "WordWindowParams",
    "classical_energy",
    "classical_recall",
    "dense_energy",
    "dense_recall",
    "gru_coefficients",
    "hebbian",
    "hopfield_attention",
    "hopfield_energy",
    "rungs",
]
