"""Every stack under a name: how blocks are put together along the depth.

LanguageModel(stack="reversible")                        made of the model's blocks, with the defaults of the stack
LanguageModel(stack="universal:halting=accumulated")     with an option of the stack
"""

from collections.abc import Callable
from typing import Any

from minitransformer.models.block import Block
from minitransformer.models.reversible import ReversibleStack
from minitransformer.models.stack import Stack
from minitransformer.models.transformer_xl import MemoryStack
from minitransformer.models.universal import UniversalStack
from minitransformer.registry import named

STACKS: dict[str, Callable[..., Stack]] = {
    "plain": Stack,
    "reversible": ReversibleStack,
    "universal": UniversalStack,
    "transformer-xl": MemoryStack,
}
EXAMPLE: dict[str, Any] = {"blocks": (Block.of(8, 2, 32),) * 2, "segment": 128, "places": True}  # what a model fills in


def stack_of(stack: str, blocks: tuple[Block, ...], *, segment: int, places: bool) -> Stack:
    """The stack of this name, with the options in it.

    segment   tokens that are written before a stack with a memory goes on to the next segment
    places    whether a stack that adds something before every step also says where a token stands
    raises    ValueError for an unknown name or option, and for blocks that it can't be made of
    """
    return named("stack", STACKS, stack, {"blocks": blocks, "segment": segment, "places": places})
