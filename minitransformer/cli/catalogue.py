"""`minitransformer attentions`, `positions` and `stacks`: what a model can be made of, and its options."""

import inspect
import itertools
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from minitransformer.attention.core import Core
from minitransformer.attention.registry import ATTENTIONS, EXAMPLE, attention_of, positions
from minitransformer.experiments import makes
from minitransformer.experiments.table import NOT_YET, Table, table
from minitransformer.experiments.which_cost import DENSE, HEADS, LENGTHS, WIDTH
from minitransformer.models import registry
from minitransformer.models.assemble import mixer_of
from minitransformer.models.registry import STACKS
from minitransformer.positions.registry import AT_EMBEDDING, IN_ATTENTION, place
from minitransformer.registry import named, options
from minitransformer.terminal import columns

SIZES = {**EXAMPLE, **registry.EXAMPLE}


def attentions(name: str | None = None) -> str:
    """Every kind of attention: cost, causality, memory, positions, what it is, from which length on it is faster than dense
    attention, options; or a full description of one, with options if you like, as a model takes them.

    raises   ValueError for an unknown name, an option or a value that makes no sense
    """
    found = {make: table(make) for make in makes("which_cost")}
    return _catalogue("attention", ATTENTIONS, _of_attention, name, lambda name: list(_pays(found, name)))


def measured() -> str:
    """The line below the list of attentions, which says where its times come from."""
    where = "; ".join(f"{make}: {table(make).made_on}" for make in makes("which_cost"))
    said = (
        f"Faster than dense: measured from {LENGTHS[0]:,} tokens on, in a layer of width {WIDTH} with {HEADS} heads, "
        f"on one core of each make of processor ({where}). zen-4-avx2 is zen-4 held to the vectors of AVX2."
    )
    return textwrap.fill(said, columns(), break_on_hyphens=False)


def encodings(name: str | None = None) -> str:
    """Every encoding of positions: where it acts, what it is, options; or a full description of one, as `attentions` gives it.

    raises   ValueError for an unknown name, an option or a value that makes no sense
    """
    where = {
        **dict.fromkeys(AT_EMBEDDING, "added to the embeddings"),
        **dict.fromkeys(IN_ATTENTION, "in the attention of every block"),
    }
    return _catalogue("positions", {**AT_EMBEDDING, **IN_ATTENTION}, lambda name, made: where[name], name)


def pairs() -> dict[tuple[str, str], str]:
    """Every kind of attention with every encoding of positions: an empty string, or why a model can't have both."""
    width, heads, longest = EXAMPLE["width"], EXAMPLE["heads"], EXAMPLE["longest"]
    found = {}
    for attention, name in itertools.product(ATTENTIONS, {**AT_EMBEDDING, **IN_ATTENTION}):
        encoding = place(name, width=width, heads=heads, longest=longest).in_attention
        try:
            mixer_of(attention, encoding, width=width, heads=heads, groups=None, longest=longest)
            found[attention, name] = ""
        except ValueError as error:
            found[attention, name] = str(error)
    return found


def grid() -> str:
    """The same as a table, a mark where they go together; and below, why the others don't."""
    encodings, found = (*AT_EMBEDDING, *IN_ATTENTION), pairs()
    widest = max(map(len, ATTENTIONS)) + 2
    lines = [f"{' ' * widest}{'│ ' * k}{name}" for k, name in enumerate(encodings)]
    reasons: dict[str, list[str]] = {}
    for attention in ATTENTIONS:
        marks = " ".join("·" if found[attention, name] else "●" for name in encodings)
        lines.append(f"{attention.ljust(widest)}{marks}")
        part = attention_of(attention, EXAMPLE)
        if not (isinstance(part, Core) and part.places):
            reasons.setdefault(part.unplaced, []).append(attention)
    lines += ["", "● go together, · do not:"]
    for why, names in reasons.items():
        lines += ["", *textwrap.wrap(f"{', '.join(names)}: {why}.", columns(), subsequent_indent="  ")]
    return "\n".join(lines)


def stacks(name: str | None = None) -> str:
    """Every stack of blocks: what its blocks have to be like, what it is, options; or a full description of one, as
    `attentions` gives it.

    raises   ValueError for an unknown name, an option or a value that makes no sense
    """
    return _catalogue("stack", STACKS, lambda name, made: f"takes {made.takes}", name)


def _catalogue(
    what: str, known: dict[str, Any], about: Any, name: str | None, pays: Callable[[str], list[str]] = lambda name: []
) -> str:
    """The list of all that is known, or the full description of one.

    about   (name, object) -> what the first line says of it
    pays    name -> lines on from which length it is faster; attention has some
    """
    names = list(known) if name is None else [name]
    lines: list[str] = []
    for each in names:
        made, key = named(what, known, each, SIZES), each.partition(":")[0]
        timed = pays(key) if each == key else []  # with other options it was not timed
        doc = (inspect.getdoc(made) or "").splitlines()
        first = doc[:1] if name is None else []  # of one, all of it stands below
        said = [about(key, made), *first, *timed, *_options(known[key])]
        lines += _entry(key, known, said)
    if name is not None:
        lines += ["", *doc]
    return "\n".join(lines)


def _entry(name: str, names: Iterable[str], said: list[str]) -> Iterator[str]:
    """Lines of the list: the name, and beside it what is said."""
    widest = max(map(len, names)) + 2
    for k, part in enumerate(said):
        indent = name.ljust(widest) if k == 0 else " " * widest
        yield from textwrap.wrap(part, columns(), initial_indent=indent, subsequent_indent=" " * (widest + 2))


def _of_attention(name: str, made: Any) -> str:
    part = attention_of(made, EXAMPLE)
    without = "can't decode" if part.causal == "never" else "reads all again"
    remembers = f"remembers {part.remembers}" if part.remembers else without
    needs = f"; needs {part.needs}" if part.needs else ""
    return f"{part.cost}; causal: {part.causal_in_words}; {remembers}; positions: {positions(part)}{needs}"


def _pays(found: dict[str, Table], name: str) -> Iterator[str]:
    """A line for each make of processor on which it was timed, or one if all say the same; none for dense attention itself."""
    said = {make: of.paying(of.rows[name]) for make, of in found.items() if of.rows[name].cost}
    if len(set(said.values())) < 2:
        said = {"": next(iter(said.values()), NOT_YET)}
    if name != DENSE:
        yield from (f"faster than dense{f' on {make}' * bool(make)}: {words}" for make, words in said.items())


def _options(maker: Any) -> Iterator[str]:
    """One line, or none where nothing can be chosen; `…` is what the model fills in or the reader has to say."""
    known = inspect.signature(maker).parameters
    said = [f"{option}={_default(known[option])}" for option in options(maker, SIZES)]
    if said:
        yield f"options: {', '.join(said)}"


def _default(parameter: inspect.Parameter) -> str:
    return "…" if parameter.default is parameter.empty else str(parameter.default)
