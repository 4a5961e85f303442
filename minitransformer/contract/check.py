"""`check_attention`: one kind of attention is held against all the rules that are meant for it."""

import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from textwrap import shorten
from time import monotonic
from typing import Any

import numpy as np

from minitransformer.attention import ATTENTIONS, Core, SoftmaxAttention, attention_of
from minitransformer.attention.core import Part
from minitransformer.backend import available
from minitransformer.contract.in_a_model import PIECES, learns, one_by_one, saved_and_loaded, state_continued_twice
from minitransformer.contract.parts import HEADS, LONGEST, WIDTH, can, directions, enough, pattern_of, positions_for
from minitransformer.contract.reach import (
    hidden_reaches_nothing,
    later_changes_nothing,
    nothing_to_see,
    padding_changes_nothing,
    samples_apart,
)
from minitransformer.contract.refusals import refuses, refuses_other_heads
from minitransformer.contract.values import (
    any_length,
    encodings_act,
    form_is_kept,
    gradients,
    groups_share_keys,
    pairs_are_there,
    tiers_agree,
    values_have_a_width,
)
from minitransformer.extensions import named_classes
from minitransformer.models.registry import STACKS
from minitransformer.positions import AT_EMBEDDING, IN_ATTENTION, Encoding
from minitransformer.registry import named

SAID = 400  # letters of an error that are printed
NOT_THE_READERS = (str(Path(__file__).parents[1]), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), "<")


class AttentionError(AssertionError):
    """Some rules are broken; the message names them."""


def check_attention(attention: Any) -> None:
    """Check a kind of attention against every rule, print which rules it keeps, and say of the others what is wrong.

    It takes a few seconds. An encoding of positions that acts inside attention is checked inside that of softmax. All is tried
    with a model of 12 channels and few tokens: what an option hides there is said to be missing, and how to ask again. So
    "performer:redraw=9000" is said to leave its directions as they are, and "performer:redraw=3" is not.
    attention   a name, with options or without; a class, which is then made for two heads of width 6; or an object of your own
    raises      AttentionError at the end, if a rule is broken; ValueError for what is no attention
    """
    start_time, broken, part, told = monotonic(), [], _made(attention), set()
    print(f"{attention if isinstance(attention, str) else type(part).__name__}: {part}")
    rules = list(_rules(part))
    for says, holds in rules:
        try:
            holds()
        except Exception as error:  # whatever a wrong core does
            what = shorten(str(error).replace("; mt.check_attention says more", ""), SAID)
            if not isinstance(error, AssertionError):
                what = f"{type(error).__name__}: {what}"
                cause = re.sub(r"\d+", "", what)  # the same at other lengths
                what = "the same error as above" if cause in told else what + _where(error)
                told.add(cause)
            print(f"BROKEN  {says}\n        {what}")
            broken.append(says)
        else:
            print(f"kept    {says}")
    print(f"{len(rules) - len(broken)} of {len(rules)} rules kept, in {monotonic() - start_time:.1f} s.")
    if broken:
        are = "is" if len(broken) == 1 else "are"
        raise AttentionError("\n".join([f"{len(broken)} of {len(rules)} rules {are} broken:", *broken]))


def _where(error: Exception) -> str:
    """The last line outside of the package that was reached before an error, and what was tried, in brackets."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        f"{one.name}, line {one.lineno}: {one.line}" for one in frames if not one.filename.startswith(NOT_THE_READERS)
    ]
    said = "; ".join([*own[-1:], *getattr(error, "__notes__", ())])
    return f" ({said})" if said else ""


def _made(attention: Any) -> Part:
    """The part to be checked, from its name, its class or itself. Raises ValueError for what is no attention."""
    sizes = {"width": WIDTH, "heads": HEADS, "d": WIDTH // HEADS, "longest": LONGEST}
    if isinstance(attention, type):
        attention = named("attention", {attention.__name__: attention}, attention.__name__, sizes)
    if isinstance(attention, str):
        name = attention.partition(":")[0]
        both = ATTENTIONS | IN_ATTENTION | ATTENTIONS  # an attention is listed first, and chosen
        if name not in both and (name in STACKS or name in AT_EMBEDDING):
            what = "a stack" if name in STACKS else "added to the embeddings"
            raise ValueError(f"attention: {name!r} is {what}, and no part of attention; mt.check_pullback checks it")
        attention = named("attention", both, attention, sizes)
    return attention_of(SoftmaxAttention(encoding=attention) if isinstance(attention, Encoding) else attention, sizes)


def _all_cases(part: Part, rule: Callable[..., None], **grid: Iterable[Any]) -> Callable[[], None]:
    """A function that tries a rule on the part, with each combination of these values; a note to an error says with which."""

    def tried() -> None:
        for values in product(*grid.values()):
            case = dict(zip(grid, values, strict=True))
            try:
                rule(part, **case)
            except Exception as error:
                error.add_note(", ".join(f"{name}={getattr(value, '__name__', value)}" for name, value in case.items()))
                raise

    return tried


def _rules(part: Part) -> Iterator[tuple[str, Callable[[], None]]]:
    """The rules that are meant for such a part: a sentence that is true if it keeps the rule, and how to find out."""
    ways, tiers, writes, each = directions(part), available(), can(part, True), partial(_all_cases, part)
    if (pattern := pattern_of(part)) is not None:
        yield (
            "The tiles of its pattern, and what it keeps, have the pairs that it sees, whatever follows.",
            partial(pairs_are_there, pattern),
        )
    if isinstance(part, Core):
        yield (
            "Y and the gradients have the shapes and the dtype that they should have.",
            each(form_is_kept, causal=ways, dtype=(np.float32, np.float64)),
        )
    yield (
        "Every gradient is the derivative of the value, and no argument is changed.",
        lambda: each(gradients, causal=ways, n=(enough(part, 20),), padded=(False, True))(),
    )
    if isinstance(part, Core) and part.places and part.encoding is None:
        yield "Encodings of positions act in it.", each(encodings_act, positions=("t5", "transformer-xl", "shaw"))
    yield (
        "All tiers give the same values and gradients, in float32 and in float64.",
        each(tiers_agree, causal=ways, dtype=(np.float32, np.float64)),
    )
    if writes:
        yield (
            "Where it is causal, what comes later changes no bit of what was before.",
            each(later_changes_nothing, tier=tiers),
        )
    yield (
        "Where a mask hides padding, the padding changes no bit of what is there.",
        each(padding_changes_nothing, causal=ways, tier=tiers),
    )
    yield (
        "What stands in a hidden token, be it NaN, reaches nothing.",
        each(hidden_reaches_nothing, causal=ways, tier=tiers),
    )
    yield "Where a query sees no key, nothing becomes NaN.", each(nothing_to_see, causal=ways, tier=tiers)
    yield "Samples know nothing of each other.", each(samples_apart)
    yield "It works for any length.", each(any_length, n=(1, 2, 63, 64, 65))
    if isinstance(part, Core):
        yield (
            "Values may have a width of their own, or it says one_width.",
            each(values_have_a_width, causal=ways, tier=tiers),
        )
    if isinstance(part, Core) and not part.queries_are_keys and part.key_heads is None:
        yield "Heads can share their keys and values.", each(groups_share_keys, causal=ways, groups=(1,))
    if writes:
        yield (
            "Written token by token, a text gives the same numbers as read at once.",
            each(one_by_one, positions=positions_for(part), pieces=PIECES, tier=tiers),
        )
        yield "A state is as it was after somebody has gone on from it.", each(state_continued_twice, tier=tiers)
    yield "A model with it learns: its loss falls within ten steps.", each(learns, tier=tiers)
    inside = (part, getattr(part, "pattern", None), getattr(part, "encoding", None))
    if {type(own).__name__ for own in inside if own is not None} <= named_classes().keys():
        yield "A model with it can be saved and loaded.", each(saved_and_loaded)
    yield "What does not fit is refused.", each(refuses)
    if isinstance(part, Core):
        yield "Heads that do not fit each other are refused.", each(refuses_other_heads, tier=tiers)
