"""Part I: where am I? Position encodings, one file for each kind."""

from minitransformer.positions.absolute import (
    LearnableSinusoids,
    LearnedPositions,
    SinusoidalPositions,
    angular_frequencies,
    shift_matrix,
    sinusoids,
)
from minitransformer.positions.alibi import ALiBi, alibi_slopes
from minitransformer.positions.deberta import DeBERTa, deberta_buckets
from minitransformer.positions.encoding import Encoding, NoParams, OffsetBias, ScoreEncoding, offsets
from minitransformer.positions.fire import FIRE
from minitransformer.positions.four_terms import four_terms
from minitransformer.positions.grid import GridScalars, grid_offsets
from minitransformer.positions.kerple import KerpleLog, KerplePower, KerpleWeighted
from minitransformer.positions.multiplicative import Multiplicative
from minitransformer.positions.none import NoPositions
from minitransformer.positions.registry import AT_EMBEDDING, IN_ATTENTION, Placed, place
from minitransformer.positions.relative_sinusoids import TENER, TransformerXLPositions
from minitransformer.positions.rope import RoPE, change_layout, rotate
from minitransformer.positions.rope_scaling import (
    NTK,
    DynamicNTK,
    Llama3,
    LongRoPE,
    PositionInterpolation,
    YaRN,
    rope_frequencies,
)
from minitransformer.positions.shaw import Shaw
from minitransformer.positions.sinusoidal_keys import SinusoidalKeys
from minitransformer.positions.t5 import OffsetScalars, T5Bias, t5_buckets
from minitransformer.positions.tupe import TUPE

__all__ = [
    "AT_EMBEDDING",
    "FIRE",
    "IN_ATTENTION",
    "NTK",
    "TENER",
    "TUPE",
    "ALiBi",
    "DeBERTa",
    "DynamicNTK",
    "Encoding",
    "GridScalars",
    "KerpleLog",
    "KerplePower",
    "KerpleWeighted",
    "LearnableSinusoids",
    "LearnedPositions",
    "Llama3",
    "LongRoPE",
    "Multiplicative",
    "NoParams",
    "NoPositions",
    "OffsetBias",
    "OffsetScalars",
    "Placed",
    "PositionInterpolation",
    "RoPE",
    "ScoreEncoding",
    "Shaw",
    "SinusoidalKeys",
    "SinusoidalPositions",
    "T5Bias",
    "TransformerXLPositions",
    "YaRN",
    "alibi_slopes",
    "angular_frequencies",
    "change_layout",
    "deberta_buckets",
    "four_terms",
    "grid_offsets",
    "offsets",
    "place",
    "rope_frequencies",
    "rotate",
    "shift_matrix",
    "sinusoids",
    "t5_buckets",
]
