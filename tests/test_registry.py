"""Choices by name: options in a text, sizes filled in, everything else refused in one line."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest

from minitransformer.attention import ATTENTIONS
from minitransformer.models import Block, EncoderDecoder, LanguageModel, Norm
from minitransformer.models.embed import Embedding
from minitransformer.positions import AT_EMBEDDING, IN_ATTENTION, place
from minitransformer.registry import OLD_FIELDS, named


@dataclass(frozen=True)
class Thing:
    heads: int
    radius: int = 3
    rate: float = 0.5
    part: int | None = None
    kind: Literal["a", "b"] = "a"
    sure: bool = True
    inside: Any = None


REGISTRY = {"thing": Thing, "plain": lambda longest: longest, "other": lambda heads, index="paper": (heads, index)}
SIZES = {"heads": 4, "longest": 9}


@pytest.mark.parametrize(
    ("text", "made"),
    {
        "thing": Thing(4),
        "thing:radius=5": Thing(4, 5),
        "thing:rate=1,part=2": Thing(4, rate=1, part=2),
        "thing:part=None,kind=b,sure=False,rate=2e-1": Thing(4, rate=0.2, kind="b", sure=False),
        "plain": 9,
        "other:index=code": (4, "code"),
    }.items(),
)
def test_options_in_a_text(text, made):
    assert named("choice", REGISTRY, text, SIZES) == made


@pytest.mark.parametrize(
    ("text", "message"),
    {
        "think": "choice: no 'think'; near it: thing; there are thing, plain, other",
        "nonsense": "choice: no 'nonsense'; there are thing, plain, other",
        "thing:": "choice: 'thing' has no option ''; it has radius, rate, part, kind, sure, as thing:radius=…",
        "thing:radius": "choice: radius of 'thing' needs a value, as thing:radius=…",
        "thing:radios=3": "no option 'radios=3'; near it: radius; it has",
        "thing:heads=3": "no option 'heads=3'; heads is filled in by the model; it has radius",
        "thing:inside=3": "no option 'inside=3'",
        "thing:radius=3,radius=4": "no option 'radius=4', or has it already",
        "thing:radius=3.5": "choice: radius of 'thing' should be int, got '3.5'",
        "thing:radius=True": "radius of 'thing' should be int, got 'True'",
        "thing:radius=__import__('os')": "should be int",
        "thing:part=x": "part of 'thing' should be int or None, got 'x'",
        "plain:a=1": "choice: 'plain' has no option 'a=1'; it has none",
    }.items(),
)
def test_what_makes_no_sense_is_refused_in_one_line(text, message):
    with pytest.raises(ValueError, match=r"^choice") as caught:
        named("choice", REGISTRY, text, SIZES)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("much", ["(" * 1000, "-" * 10**5 + "1", "9" * 10**5], ids=["brackets", "signs", "digits"])
def test_what_python_does_not_read_is_a_text(much):
    with pytest.raises(ValueError, match="radius of 'thing' should be int, got"):
        named("choice", REGISTRY, f"thing:radius={much}", SIZES)


@pytest.mark.parametrize("name", [*AT_EMBEDDING, *IN_ATTENTION])
def test_every_encoding_has_a_name(name):
    placed = place(name, width=8, heads=2, longest=16)
    assert (placed.in_attention is None) == (name in AT_EMBEDDING)


def test_in_a_model():
    model = LanguageModel(attention="window:radius=5", positions="rope:base=500,layout=halves")
    assert model.body.blocks[0].attention.core.pattern.radius == 5
    assert model.body.blocks[0].attention.rotate.base == 500
    with pytest.raises(ValueError, match="positions: 'rope' has no option 'scaling=3'"):
        LanguageModel(positions="rope:scaling=3")
    with pytest.raises(ValueError, match="attention: radius of 'window' should be int"):
        LanguageModel(attention="window:radius=0.5")
    assert set(ATTENTIONS) >= {"softmax", "window", "strided", "bigbird", "linear", "delta"}


@pytest.mark.parametrize("field", OLD_FIELDS)
def test_a_field_that_there_was_once_is_refused_with_what_says_it_now(field):
    for refused in (lambda: LanguageModel(**{field: 1}), lambda: replace(LanguageModel(), **{field: 1})):
        with pytest.raises(TypeError, match=f'^{field}: write (stack|ffn|norm|embedding|outputs)="[^ ]+" .*instead$'):
            refused()


def test_only_where_there_is_what_says_it_now():
    """An encoder-decoder and a block have norms, and neither a stack by name nor outputs of another kind."""
    for kind, known, unknown in ((EncoderDecoder, "activation", "memory"), (Block, "eps", "tied")):
        with pytest.raises(TypeError, match=f"^{known}: write"):
            kind(**{known: 1})
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{unknown}'"):
            kind(**{unknown: 1})


def test_norms_and_embeddings_in_a_model():
    model = LanguageModel(norm="rms:eps=1e-6", embedding="normed:types=2")
    assert {block._norm for block in model.body.blocks} == {Norm(128, "rms", 1e-6)}
    assert (model._norm, model._embedding) == (Norm(128, "layer", 1e-6), Embedding(types=2))
    assert EncoderDecoder(9, norm="layer:eps=0").encoder.blocks[0]._norm.eps == 0


def test_stacks_in_a_model():
    assert LanguageModel(stack="universal:halting=accumulated,ponder=0.5").body.ponder == 0.5
    assert LanguageModel(context=7, positions="rope", stack="transformer-xl:memory=9").body.segment == 7
    for text in ("plain:tied=ffn", "universal:places=True", "transformer-xl:segment=3", "reversible:blocks=1"):
        with pytest.raises(ValueError, match=f"^stack: '{text.partition(':')[0]}' has no option"):
            LanguageModel(stack=text)
    with pytest.raises(TypeError, match="stack: None should be str"):
        LanguageModel(stack=None)
