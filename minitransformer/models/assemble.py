"""From names and sizes to a stack of blocks: which attention, with which positions, in how many heads."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from minitransformer.attention import Core, Mixer, MultiHeadAttention, attention_of, padding_mask
from minitransformer.models.block import Block, Order
from minitransformer.models.feed_forward import FeedForward
from minitransformer.models.gated_feed_forward import GatedFeedForward
from minitransformer.models.reversible import ReversibleStack
from minitransformer.models.stack import Stack
from minitransformer.models.transformer_xl import MemoryStack
from minitransformer.models.universal import UniversalStack
from minitransformer.positions import Encoding
from minitransformer.typing import Array

FFN = Literal["plain", "glu", "reglu", "geglu", "swiglu", "bilinear", "none"]
STACKS: dict[str, type[Stack]] = {
    "plain": Stack,
    "reversible": ReversibleStack,
    "universal": UniversalStack,
    "memory": MemoryStack,
}


def mixer_of(
    attention: Any,
    encoding: Encoding | None,
    *,
    width: int,
    heads: int,
    groups: int | None,
    longest: int,
    bias: bool = True,
) -> Mixer:
    """Attention of this name or form, with an encoding of positions that acts inside it.

    raises   ValueError for a pair that can't be, in one line that says why
    """
    if width % heads:
        raise ValueError(f"width: {width} is not divisible into {heads} heads")
    part = attention_of(attention, {"width": width, "heads": heads, "d": width // heads, "longest": longest})
    if isinstance(part, Mixer):
        if encoding is not None or groups is not None:
            what = "groups" if encoding is None else f"positions: {type(encoding).__name__}"
            raise ValueError(f"{what}: {type(part).__name__} {part.unplaced}")
        return part
    rotate = None
    if encoding is not None and encoding.acts_on == ("queries and keys",):
        if part.turns:
            part = replace(part, rotate=encoding)  # type: ignore[type-var]
        else:
            rotate = encoding
    elif encoding is not None:
        part = _with_scores(part, encoding)
    return MultiHeadAttention(width, heads, bias, part, rotate, groups)


def _with_scores(core: Core, encoding: Encoding) -> Core:
    acts = f"positions: {type(encoding).__name__} acts on the {' and the '.join(encoding.acts_on)}, and "
    if not core.places:
        raise ValueError(f"{acts}{type(core).__name__} {core.unplaced}")
    if core.encoding is not None:
        raise ValueError(
            f"positions: {type(encoding).__name__} and {type(core.encoding).__name__} would both make the scores"
        )
    return replace(core, encoding=encoding)  # type: ignore[type-var]


def stack_of(
    attention: Any, encoding: Encoding | None, *, width: int, depth: int, heads: int, hidden: int | None,
    groups: int | None, longest: int, order: Order, norm: str, eps: float = 1e-5, activation: str, ffn: FFN, dropout: float,
    cross: bool = False, reversible: bool = False, memory: int = 0, universal: str = "no", ponder: float = 0.0,
    places: bool = False, bias: bool = True,
) -> Stack:  # fmt: skip
    """A stack of `depth` blocks. Several kinds of attention take turns along the depth.

    attention    a name, a core, a mixer or a pattern, or a sequence of them
    hidden       width of the feed-forward network; 4 D if None
    ffn          "plain" with this activation, the name of a gated one, or "none" for blocks of attention alone
    cross        whether each block has cross-attention, always dense and without positions
    reversible   whether its layers are (models/reversible.py)
    memory       rows that a block remembers of the segments before (models/transformer_xl.py)
    universal    "fixed", "basic" or "accumulated" for one block over and over (models/universal.py), or "no".
                 ponder: the price of a step; places: whether each step says where a token stands
    bias         whether the projections of attention and the feed-forward network have one
    """
    if (reversible, memory > 0, universal != "no").count(True) > 1:
        raise ValueError("reversible, memory, universal: a stack can be one of these")
    kinds = attention if isinstance(attention, Sequence) and not isinstance(attention, str) else (attention,)
    if not kinds:
        raise ValueError("attention: an empty sequence")
    if len(kinds) > depth:
        raise ValueError(f"attention: {len(kinds)} kinds for {depth} blocks")
    hidden = 4 * width if hidden is None else hidden
    second = {"plain": lambda: FeedForward(width, hidden, activation, bias), "none": lambda: None}  # type: ignore[arg-type]
    half = second.get(ffn, lambda: GatedFeedForward(width, hidden, ffn, bias))()  # type: ignore[arg-type]
    blocks = [
        Block(
            mixer_of(kind, encoding, width=width, heads=heads, groups=groups, longest=longest, bias=bias),
            *(half, MultiHeadAttention(width, heads) if cross else None, order, norm, eps, dropout),
        )
        for kind in kinds
    ]
    blocks = [blocks[k % len(blocks)] for k in range(depth)]
    if memory:
        return MemoryStack(tuple(blocks), memory=memory, segment=longest)
    if universal != "no":
        return UniversalStack(tuple(blocks), rule=universal, ponder=ponder, places=places)  # type: ignore[arg-type]
    return STACKS["reversible" if reversible else "plain"](tuple(blocks))


def keys_that_are_there(lengths: Array | None, m: int) -> Array | None:
    """The mask that hides the padding after each sequence, with the axis for the heads; None without lengths."""
    return None if lengths is None else padding_mask(lengths, m)[..., None, :, :]
