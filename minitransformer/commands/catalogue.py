"""`minitransformer attentions` and `minitransformer positions`: what can be chosen by name, and its options."""

import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from minitransformer.attention.core import Part
from minitransformer.attention.registry import ATTENTIONS, EXAMPLE, attention_of, positions
from minitransformer.named import named, options
from minitransformer.positions.registry import AT_EMBEDDING, IN_ATTENTION

COLUMNS = 100
SIZES = {**EXAMPLE, "longest": 128}
ENCODINGS = {**AT_EMBEDDING, **IN_ATTENTION}


def attentions(name: str | None = None) -> str:
    """Every kind of attention: cost, causality, memory, positions, what it is, options; or all there is to say of one.

    raises   ValueError for an unknown name
    """
    return _catalogue("attention", ATTENTIONS, _of_attention, name)


def encodings(name: str | None = None) -> str:
    """Every encoding of positions: where it acts, what it is, options; or all there is to say of one.

    raises   ValueError for an unknown name
    """
    return _catalogue("positions", ENCODINGS, _of_encoding, name)


def _catalogue(what: str, registry: dict[str, Any], about: Any, name: str | None) -> str:
    names = list(registry) if name is None else [name]
    widest = max(map(len, registry)) + 2
    lines: list[str] = []
    for each in names:
        made = named(what, registry, each, SIZES)
        said = [about(each, made), (inspect.getdoc(made) or "").splitlines()[0], *_options(registry[each])]
        for k, part in enumerate(said):
            indent = each.ljust(widest) if k == 0 else " " * widest
            lines += textwrap.wrap(part, COLUMNS, initial_indent=indent, subsequent_indent=" " * (widest + 2))
    if name is not None:
        lines += ["", *(inspect.getdoc(made) or "").splitlines()]
    return "\n".join(lines)


def _of_attention(name: str, made: Any) -> str:
    part: Part = attention_of(made, EXAMPLE)
    causal = "values only" if part.looks_ahead else {"either": "yes"}.get(part.causal, part.causal)
    remembers = part.remembers or ("does not write" if part.causal == "never" else "reads all again")
    remembers = f"remembers {part.remembers}" if part.remembers else remembers
    needs = f"; needs {part.needs}" if part.needs else ""
    return f"{part.cost}; causal: {causal}; {remembers}; positions: {positions(part)}{needs}"


def _of_encoding(name: str, made: Any) -> str:
    return "added to the embeddings" if name in AT_EMBEDDING else "in every attention"


def _options(maker: Any) -> Iterator[str]:
    """One line, or none where nothing can be chosen; `…` is what the model fills in or the reader has to say."""
    known = inspect.signature(maker).parameters
    said = [f"{option}={_default(known[option])}" for option in options(maker, SIZES)]
    if said:
        yield f"options: {', '.join(said)}"


def _default(parameter: inspect.Parameter) -> str:
    return "…" if parameter.default is parameter.empty else str(parameter.default)
