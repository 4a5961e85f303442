"""The page that is made from all others: maps of what can be chosen by name, and a glossary of the terms in bold.

`chapters.toml` says which chapter explains a kind of attention, which terms it introduces and what they mean. What else
stands in the maps comes from the registries, and the place of a term is the section in which it is in bold.
"""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minitransformer.book.cross_references import anchor, prose

TABLE = Path(__file__).with_name("chapters.toml")
HEADING = re.compile(r"^## +(.+?) *$", re.MULTILINE)


def table() -> dict[str, Any]:
    """What `chapters.toml` says, by the number of the chapter."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def glossary(chapters: list[Path]) -> str:
    """Every term, what it means, and where it stands.

    raises   ValueError for a term that is nowhere in bold in its chapter
    """
    lines = []
    for chapter in chapters:
        text = prose(chapter)
        for term, meaning in table().get(chapter.name[:2], {}).get("terms", {}).items():
            before, bold, _ = text.partition(f"**{term}**")
            if not bold:
                raise ValueError(f"{TABLE.name}: **{term}** stands nowhere in {chapter.name}")
            sections = HEADING.findall(before)
            place = f"{chapter.name}{anchor(sections[-1]) if sections else ''}"
            lines.append(f"- **{term[0].upper()}{term[1:]}.** {meaning} [{chapter.name[:2]}]({place})")
    return "\n".join(sorted(lines, key=lambda line: line.partition(".**")[0].lower()))  # a word before a longer one


def map_of_attention(chapters: list[Path]) -> str:
    """What every kind of attention changes, what it costs, whether it can be causal, and its chapter."""
    from minitransformer.attention import registry

    where = _chapter_of("attentions", chapters)
    lines = ["| name | what it is | cost | causal | chapter |", "|---|---|---|---|---|"]
    for name, part, what in registry.rows():
        lines.append(f"| `{name}` | {_cell(what)} | {_cell(part.cost)} | {part.causal_in_words} | {where(name)} |")
    return "\n".join(lines)


def map_of_positions(chapters: list[Path]) -> str:
    """What every encoding of positions is, where it acts, and its chapter.

    A name that is another one with an option says so, and one that only sets an option tells which.
    """
    from minitransformer.attention.registry import EXAMPLE
    from minitransformer.positions.registry import AT_EMBEDDING, IN_ATTENTION, place

    where = _chapter_of("positions", chapters)
    sizes = {size: EXAMPLE[size] for size in ("width", "heads", "longest")}
    lines = ["| name | what it is | where it acts | chapter |", "|---|---|---|---|"]
    names = {maker: f"`{name}`" for name, maker in {**AT_EMBEDDING, **IN_ATTENTION}.items()}
    for name, maker in {**AT_EMBEDDING, **IN_ATTENTION}.items():
        added, inside = place(name, **sizes)
        acts = "at the embeddings" if inside is None else "in the attention of every block"
        what = (type(inside or added).__doc__ or "").splitlines()[0]
        if given := " and ".join(f"`{option}={value}`" for option, value in getattr(maker, "keywords", {}).items()):
            plain = names.get(getattr(maker, "func", maker))
            what = f"The same as {plain} with {given}." if plain else f"{what} Chosen by this name it has {given}."
        lines.append(f"| `{name}` | {_cell(what)} | {acts} | {where(name)} |")
    return "\n".join(lines)


MADE: dict[str, Callable[[list[Path]], str]] = {  # by the id of the cell that holds it
    "map-of-attention": map_of_attention,
    "map-of-positions": map_of_positions,
    "glossary": glossary,
}


def _chapter_of(kind: str, chapters: list[Path]) -> Callable[[str], str]:
    names = {chapter.name[:2]: chapter.name for chapter in chapters}
    found = {name: number for number, row in table().items() for name in row.get(kind, ())}

    def link(name: str) -> str:
        number = found.get(name, "")
        return f"[{number}]({names[number]})" if number in names else ""

    return link


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
