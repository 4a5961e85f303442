"""Every encoding under a name, so that a model can be told which one to use.

LanguageModel(positions="rope")                 the sizes are those of the model, the options as in its paper
LanguageModel(positions="rope:base=500")        with an option of its own; "kerple:curve=power", "deberta:index=code,buckets=8"
LanguageModel(positions=RoPE(32, base=500.0))   an encoding that the reader has made, for heads of width 32
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

from minitransformer.arrays import refuse_indivisible
from minitransformer.checks import choose
from minitransformer.positions.absolute import LearnableSinusoids, LearnedPositions, SinusoidalPositions
from minitransformer.positions.alibi import ALiBi
from minitransformer.positions.deberta import DeBERTa, Index
from minitransformer.positions.encoding import Encoding
from minitransformer.positions.fire import FIRE
from minitransformer.positions.grid import GridScalars
from minitransformer.positions.kerple import KerpleLog, KerplePower, KerpleWeighted
from minitransformer.positions.multiplicative import Multiplicative
from minitransformer.positions.none import NoPositions
from minitransformer.positions.relative_sinusoids import TENER, TransformerXLPositions
from minitransformer.positions.rope import RoPE
from minitransformer.positions.shaw import Shaw
from minitransformer.positions.sinusoidal_keys import SinusoidalKeys
from minitransformer.positions.t5 import T5Bias
from minitransformer.positions.tupe import TUPE
from minitransformer.registry import named
from minitransformer.typing import Checked, checked

Curve = Literal["log", "power", "weighted"]
CURVES: dict[str, Callable[[int], KerpleLog | KerplePower | KerpleWeighted]] = {
    "log": KerpleLog,
    "power": KerplePower,
    "weighted": KerpleWeighted,
}


def kerple(heads: int, curve: Curve = "log") -> KerpleLog | KerplePower | KerpleWeighted:
    """KERPLE with one of its three curves. Raises ValueError for another one."""
    choose("curve", curve, Curve)
    return CURVES[curve](heads)


def deberta(width: int, heads: int, longest: int, index: Index = "paper", buckets: int | None = None) -> DeBERTa:
    """DeBERTa with a row for each distance below `longest`; with `buckets`, version 2, in which far ones share a row."""
    return DeBERTa(width, heads, longest, index, buckets)


AT_EMBEDDING: dict[str, Callable[..., Any]] = {
    "none": NoPositions,
    "sinusoidal": SinusoidalPositions,
    "learned": LearnedPositions,
    "learnable sinusoids": LearnableSinusoids,
}
IN_ATTENTION: dict[str, Callable[..., Encoding]] = {
    "shaw": Shaw,
    "relative keys": partial(Shaw, values=False),
    "relative sinusoids": SinusoidalKeys,
    "learnable relative sinusoids": partial(SinusoidalKeys, learn=True),
    "multiplicative": Multiplicative,
    "transformer-xl": TransformerXLPositions,
    "tener": TENER,
    "deberta": deberta,
    "tupe": partial(TUPE, cls=False),
    "t5": T5Bias,
    "alibi": ALiBi,
    "kerple": kerple,
    "fire": FIRE,
    "grid": GridScalars,
    "rope": RoPE,
}


class Placed(NamedTuple):
    """What a model adds to its embeddings, and what its attention does about positions (None: nothing)."""

    at_embedding: Any
    in_attention: Encoding | None

    @property
    def absolute(self) -> Any:
        """The encoding that knows positions, and not distances alone; None if neither does."""
        if not isinstance(self.at_embedding, NoPositions):
            return self.at_embedding
        return None if self.in_attention is None or self.in_attention.relative else self.in_attention


def head_width_of(width: int, heads: int, head_width: int | None) -> int:
    """d, the width of a head: as given, or D/H. Raises ValueError if none is given and H does not divide D."""
    if head_width is not None:
        return head_width
    refuse_indivisible(width, heads)
    return width // heads


@checked
def place(positions: Any, *, width: int, heads: int, longest: int, head_width: int | None = None) -> Placed:
    """The encoding of this name, for a model of this size; or the one that is given.

    longest      positions that a learned table holds, and the farthest offset of DeBERTa's
    head_width   d; D/H if None. What acts inside attention is as wide as all heads together, H d
    raises       ValueError for an unknown name or option, and for what is no encoding
    """
    d = head_width_of(width, heads, head_width)
    if isinstance(positions, str):
        inside = positions.partition(":")[0] in IN_ATTENTION
        sizes = {"width": heads * d if inside else width, "heads": heads, "d": d, "longest": longest}
        try:
            positions = named("positions", {**AT_EMBEDDING, **IN_ATTENTION}, positions, sizes)
        except ValueError as error:
            if head_width is None or not str(error).startswith("d: "):
                raise
            raise ValueError(f"head_width: {str(error).removeprefix('d: ')}") from None
    if isinstance(positions, Encoding):
        return Placed(NoPositions(width), positions)
    if not hasattr(positions, "init") or isinstance(positions, (Checked, type)):
        raise ValueError(f"positions: {positions!r} is not a name, nor an encoding")
    return Placed(positions, None)
