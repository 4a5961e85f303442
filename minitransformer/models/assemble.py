"""From names and sizes to blocks: which attention, with which positions, in how many heads; and several kinds in turns."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from minitransformer.attention import ATTENTIONS, Core, Mixer, MultiHeadAttention, attention_of, padding_mask
from minitransformer.models.block import Block, second_half
from minitransformer.positions import IN_ATTENTION, Encoding
from minitransformer.positions.registry import head_width_of
from minitransformer.registry import name_of
from minitransformer.typing import Array

INSTEAD = "; positions at the embeddings go with it, such as 'sinusoidal'"  # ends an error that refuses an encoding


def mixer_of(
    attention: Any, encoding: Encoding | None, *, width: int, heads: int, groups: int | None, longest: int,
    bias: bool = True, head_width: int | None = None,
) -> Mixer:  # fmt: skip
    """Attention as a mixer, with an encoding of positions that acts inside it.

    attention    a name, or a core, a mixer or a pattern; a core gets multi-head attention around it
    encoding     what acts on queries and keys, or on scores; None for neither
    groups       heads of keys and values; H if None
    longest      length of the longest sequence, for attention that has parameters for each place
    head_width   d; D/H if None
    raises   ValueError for attention that can't have this encoding, `groups` or `head_width`, in one line that says why
    """
    d = head_width_of(width, heads, head_width)
    part = attention_of(attention, {"width": width, "heads": heads, "d": d, "longest": longest})
    if isinstance(part, Mixer):
        # a MultiHeadAttention that is given whole has heads of a width of its own
        own = head_width is not None and not isinstance(part, MultiHeadAttention)
        why = f"{name_of(part, ATTENTIONS)} {part.unplaced}"
        if encoding is not None:
            raise ValueError(f"positions: {name_of(encoding, IN_ATTENTION)}: {why}{INSTEAD}")
        if groups is not None or own:
            raise ValueError(f"{'head_width' if groups is None else 'groups'}: {why}")
        return part
    rotate = None
    if encoding is not None and encoding.acts_on == ("queries and keys",):
        if part.turns:
            part = replace(part, rotate=encoding)  # type: ignore[type-var]
        else:
            rotate = encoding
    elif encoding is not None:
        part = _with_scores(part, encoding)
    return MultiHeadAttention(width, heads, bias, part, rotate, groups, head_width)


def _with_scores(core: Core, encoding: Encoding) -> Core:
    """The core with an encoding that acts on its scores. Raises ValueError if it has none, or has an encoding already."""
    name = f"positions: {name_of(encoding, IN_ATTENTION)}"
    if not core.places:
        acts = f"{name} acts on the {' and the '.join(encoding.acts_on)}"
        raise ValueError(f"{acts}, and {name_of(core, ATTENTIONS)} {core.unplaced}{INSTEAD}")
    if core.encoding is not None:
        raise ValueError(f"{name} and {name_of(core.encoding, IN_ATTENTION)} would both make the scores")
    return replace(core, encoding=encoding)  # type: ignore[type-var]


def block_of(
    model: Any, kind: Any, encoding: Encoding | None, longest: int, *, bias: bool = True, cross: bool = False
) -> Block:
    """A block with this kind of attention; its sizes and all other choices are those of the model."""
    width, heads, d = model.width, model.heads, model.head_width
    sizes = {"width": width, "heads": heads, "groups": model.groups, "longest": longest, "head_width": d}
    return Block(
        mixer_of(kind, encoding, bias=bias, **sizes),
        second_half(model.ffn, width, model.hidden, bias),
        MultiHeadAttention(width, heads, head_width=d) if cross else None,
        *(model.order, model.norm, model.dropout),
    )


def in_turns(attention: Any, block: Callable[[Any], Block], depth: int) -> tuple[Block, ...]:
    """A block for each layer. Several kinds of attention take turns along the depth."""
    kinds = attention if isinstance(attention, Sequence) and not isinstance(attention, str) else (attention,)
    if not kinds:
        raise ValueError("attention: an empty sequence")
    if len(kinds) > depth:
        raise ValueError(f"attention: there should be a block for each of the {len(kinds)} kinds, there are {depth}")
    blocks = [block(kind) for kind in kinds]
    return tuple(blocks[k % len(blocks)] for k in range(depth))


def keys_that_are_there(lengths: Array | None, m: int) -> Array | None:
    """The mask that hides the padding after each sequence, with the axis for the heads; None without lengths."""
    return None if lengths is None else padding_mask(lengths, m)[..., None, :, :]
