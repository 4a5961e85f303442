"""Part III, models that attention is related to, and the recurrent ones from which the book sets out."""

from minitransformer.related.capsule_classifier import (
    CapsuleClassifier,
    CapsuleClassifierParams,
    margin_loss,
    pieces,
)
from minitransformer.related.capsules import Capsules, CapsulesParams, route, squash, votes
from minitransformer.related.gru import GRU, GRUParams, UnrolledGRU, gru_coefficients
from minitransformer.related.hypernetwork import attention_weights
from minitransformer.related.ladder import After, Alike, Attend, Candidates, FreeWeights, rungs
from minitransformer.related.rnn import RNN, RNNParams
from minitransformer.related.synthesizer import Synthesizer, SynthesizerParams
from minitransformer.related.word_window import WordWindow, WordWindowParams

__all__ = [
    "GRU",
    "RNN",
    "After",
    "Alike",
    "Attend",
    "Candidates",
    "CapsuleClassifier",
    "CapsuleClassifierParams",
    "Capsules",
    "CapsulesParams",
    "FreeWeights",
    "GRUParams",
    "RNNParams",
    "Synthesizer",
    "SynthesizerParams",
    "UnrolledGRU",
    "WordWindow",
    "WordWindowParams",
    "attention_weights",
    "gru_coefficients",
    "margin_loss",
    "pieces",
    "route",
    "rungs",
    "squash",
    "votes",
]
