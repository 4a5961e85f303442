"""Every encoding under a name, so that a model can be told which one to use.

LanguageModel(positions="rope")                 with the sizes of the model, and the rest as in its paper
LanguageModel(positions=RoPE(32, base=500.0))   an encoding of the reader's own choice, for heads of width 32
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from minitransformer.positions.absolute import LearnableSinusoids, LearnedPositions, SinusoidalPositions
from minitransformer.positions.alibi import ALiBi
from minitransformer.positions.deberta import DeBERTa
from minitransformer.positions.encoding import Encoding
from minitransformer.positions.fire import FIRE
from minitransformer.positions.kerple import KerpleLog
from minitransformer.positions.multiplicative import Multiplicative
from minitransformer.positions.none import NoPositions
from minitransformer.positions.relative_sinusoids import TENER, TransformerXLPositions
from minitransformer.positions.rope import RoPE
from minitransformer.positions.shaw import Shaw
from minitransformer.positions.sinusoidal_keys import SinusoidalKeys
from minitransformer.positions.t5 import T5Bias
from minitransformer.positions.tupe import TUPE

AT_EMBEDDING: dict[str, Callable[[int, int], Any]] = {  # of width, longest
    "none": lambda width, longest: NoPositions(width),
    "sinusoidal": lambda width, longest: SinusoidalPositions(width),
    "learned": LearnedPositions,
    "learnable sinusoids": lambda width, longest: LearnableSinusoids(width),
}
IN_ATTENTION: dict[str, Callable[[int, int, int], Encoding]] = {  # of width, heads, longest
    "shaw": lambda width, heads, longest: Shaw(width // heads, CLIP),
    "relative keys": lambda width, heads, longest: Shaw(width // heads, CLIP, values=False),
    "relative sinusoids": lambda width, heads, longest: SinusoidalKeys(width // heads),
    "learnable relative sinusoids": lambda width, heads, longest: SinusoidalKeys(width // heads, learn=True),
    "multiplicative": lambda width, heads, longest: Multiplicative(width // heads, CLIP),
    "transformer-xl": lambda width, heads, longest: TransformerXLPositions(width, heads),
    "tener": lambda width, heads, longest: TENER(heads, width // heads),
    "deberta": DeBERTa,  # offsets up to the longest sequence of training
    "tupe": lambda width, heads, longest: TUPE(width, heads, longest, cls=False),
    "t5": lambda width, heads, longest: T5Bias(heads),
    "alibi": lambda width, heads, longest: ALiBi(heads),
    "kerple": lambda width, heads, longest: KerpleLog(heads),
    "fire": lambda width, heads, longest: FIRE(heads),
    "rope": lambda width, heads, longest: RoPE(width // heads),
}
CLIP = 16  # k of Shaw's tables, and of what is like them


class Placed(NamedTuple):
    """What a model adds to its embeddings, and what its attention does about positions (None: nothing)."""

    at_embedding: Any
    in_attention: Encoding | None


def place(positions: str | Encoding, *, width: int, heads: int, longest: int) -> Placed:
    """The encoding of this name, for a model of this size.

    longest   positions that a learned table holds
    raises    ValueError for an unknown name
    """
    if isinstance(positions, Encoding):
        return Placed(NoPositions(width), positions)
    if positions in AT_EMBEDDING:
        return Placed(AT_EMBEDDING[positions](width, longest), None)
    if positions in IN_ATTENTION:
        return Placed(NoPositions(width), IN_ATTENTION[positions](width, heads, longest))
    raise ValueError(f"positions: no {positions!r}; there are {', '.join((*AT_EMBEDDING, *IN_ATTENTION))}")
