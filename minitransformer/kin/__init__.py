"""Part III: the relatives of attention. Here the recurrent side, from which the book sets out."""

from minitransformer.kin.gru import GRU, GRUParams, UnrolledGRU, gru_coefficients
from minitransformer.kin.ladder import After, Alike, Attend, Candidates, FreeWeights, rungs
from minitransformer.kin.rnn import RNN, RNNParams
from minitransformer.kin.word_window import WordWindow, WordWindowParams

__all__ = [
    "GRU",
    "RNN",
    "After",
    "Alike",
    "Attend",
    "Candidates",
    "FreeWeights",
    "GRUParams",
    "RNNParams",
    "UnrolledGRU",
    "WordWindow",
    "WordWindowParams",
    "gru_coefficients",
    "rungs",
]
