"""Part I: where am I? Position encodings, one file for each kind."""

from minitransformer.positions.absolute import LearnedPositions, SinusoidalPositions, sinusoids
from minitransformer.positions.alibi import ALiBi, alibi_slopes
from minitransformer.positions.choose import AT_EMBEDDING, IN_ATTENTION, Placed, place
from minitransformer.positions.encoding import (
    Encoding,
    NoPositionParams,
    OffsetBias,
    ScoreEncoding,
    offsets,
    refuse_without_scores,
)
from minitransformer.positions.none import NoPositions

__all__ = [
    "AT_EMBEDDING",
    "IN_ATTENTION",
    "ALiBi",
    "Encoding",
    "LearnedPositions",
    "NoPositionParams",
    "NoPositions",
    "OffsetBias",
    "Placed",
    "ScoreEncoding",
    "SinusoidalPositions",
    "alibi_slopes",
    "offsets",
    "place",
    "refuse_without_scores",
    "sinusoids",
]
