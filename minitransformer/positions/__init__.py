"""Part I: where am I? Position encodings, one file for each kind."""

from minitransformer.positions.absolute import LearnedPositions, SinusoidalPositions, sinusoids
from minitransformer.positions.alibi import ALiBi, alibi_slopes
from minitransformer.positions.encoding import Encoding, NoPositionParams, OffsetBias, ScoreEncoding, offsets

__all__ = [
    "ALiBi",
    "Encoding",
    "LearnedPositions",
    "NoPositionParams",
    "OffsetBias",
    "ScoreEncoding",
    "SinusoidalPositions",
    "alibi_slopes",
    "offsets",
    "sinusoids",
]
