"""Every encoding under a name, so that a model can be told which one to use.

LanguageModel(positions="rope")                 with the sizes of the model, and the rest as in its paper
LanguageModel(positions=RoPE(32, base=500.0))   an encoding of the reader's own choice, for heads of width 32
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from minitransformer.positions.absolute import LearnedPositions, SinusoidalPositions
from minitransformer.positions.alibi import ALiBi
from minitransformer.positions.encoding import Encoding
from minitransformer.positions.none import NoPositions

AT_EMBEDDING: dict[str, Callable[[int, int], Any]] = {  # of width, longest
    "none": lambda width, longest: NoPositions(width),
    "sinusoidal": lambda width, longest: SinusoidalPositions(width),
    "learned": LearnedPositions,
}
IN_ATTENTION: dict[str, Callable[[int, int, int], Encoding]] = {  # of width, heads, longest
    "alibi": lambda width, heads, longest: ALiBi(heads),
}


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
