"""The page that is made from all others: a map of what can be chosen by name, and a glossary of the terms in bold.

`chapters.toml` says which chapter explains a kind of attention, and which terms it introduces; what stands in the tables
comes from the registry, and what a term means from the sentence in which a chapter first has it in bold.
"""

import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from minitransformer.book.cross_references import anchor, prose

TABLE = Path(__file__).with_name("chapters.toml")
BLOCK = re.compile(r"^## +(?P<heading>.+?) *$|\n\n+|\n(?=[-|] )", re.MULTILINE)
SENTENCE = re.compile(r"(?<![ (]al\.)(?<=[.?!])[)*]* +(?=[A-Z*_`$(\[\"])")


class Term(NamedTuple):
    """A word of the field, the sentence that says what it is, and where that stands."""

    term: str
    sentence: str
    chapter: Path
    heading: str


def terms(chapters: list[Path]) -> list[Term]:
    """Every term of the glossary, in the order of the alphabet.

    raises   ValueError for a term that `chapters.toml` gives a chapter in which it is nowhere in bold
    """
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    found = []
    for chapter in chapters:
        for term in table.get(chapter.name[:2], {}).get("terms", ()):
            for heading, sentence in sentences(prose(chapter)):
                if f"**{term}**" in sentence:
                    found.append(Term(term, sentence, chapter, heading))
                    break
            else:
                raise ValueError(f"{TABLE.name}: **{term}** stands nowhere in {chapter.name}")
    return sorted(found, key=lambda row: row.term.lower())


def sentences(text: str) -> Iterator[tuple[str, str]]:
    """The sentences of a chapter, each with the section that it stands in."""
    heading, start = "", 0
    for found in [*BLOCK.finditer(text), None]:
        block = text[start : found.start() if found else len(text)]
        for sentence in SENTENCE.split(" ".join(block.replace("\n> ", "\n").split())):
            yield heading, sentence.lstrip("> -")
        if found:
            heading, start = found["heading"] or heading, found.end()


def glossary(chapters: list[Path]) -> str:
    lines = []
    for term, sentence, chapter, heading in terms(chapters):
        here = f"{chapter.name}{anchor(heading) if heading else ''}"
        plain = sentence.replace("**", "").replace("](#", f"]({chapter.name}#")
        lines.append(f"- **{term}** ([{chapter.name[:2]}]({here})). {plain}")
    return "\n".join(["## Glossary", "", "The sentence in which a chapter introduces the term, and a link to it.", "", *lines])


def attention_map(chapters: list[Path]) -> str:
    """What every kind of attention changes, what it costs, whether it can be causal, and the chapter that builds it."""
    from minitransformer.attention import registry

    where = _chapter_of("attentions", chapters)
    lines = ["| name | what it is | cost of n tokens | causal | chapter |", "|---|---|---|---|---|"]
    for name, part, what in registry.rows():
        causal = "values only" if part.looks_ahead else {"either": "yes"}.get(part.causal, part.causal)
        lines.append(f"| `{name}` | {_cell(what)} | {_cell(part.cost)} | {causal} | {where(name)} |")
    return "\n".join(lines)


def position_map(chapters: list[Path]) -> str:
    """The same for encodings of positions."""
    from minitransformer.positions import AT_EMBEDDING, IN_ATTENTION

    where = _chapter_of("positions", chapters)
    lines = ["| name | what it is | where it acts | chapter |", "|---|---|---|---|"]
    for table, place in ((AT_EMBEDDING, "at the embeddings"), (IN_ATTENTION, "in every attention")):
        for name, kind in table.items():
            lines.append(f"| `{name}` | {_cell((kind.__doc__ or '').splitlines()[0])} | {place} | {where(name)} |")
    return "\n".join(lines)


MADE: dict[str, Callable[[list[Path]], str]] = {  # by the cell that holds it
    "map-of-attention": attention_map,
    "map-of-positions": position_map,
    "glossary": glossary,
}


def _chapter_of(kind: str, chapters: list[Path]) -> Callable[[str], str]:
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    names = {chapter.name[:2]: chapter.name for chapter in chapters}
    found = {name: number for number, row in table.items() for name in row.get(kind, ())}

    def link(name: str) -> str:
        number = found.get(name)
        return f"[{number}]({names[number]})" if number in names else ""

    return link


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
