"""What the site does to text, in plain Python: anchors, links, tables of symbols, terms, docstrings. No Sphinx here."""

import re
from collections.abc import Callable, Iterator
from html import escape
from itertools import pairwise
from typing import Any, NamedTuple

TAG = re.compile(r"\\tag\{([^}]+)\}")


class Mention(NamedTuple):
    """A pattern of running text, and the address of what it found, or None; `within` has to be around it."""

    pattern: re.Pattern[str]
    address: Callable[[re.Match[str]], str | None]
    within: re.Pattern[str] | None = None


# ------------------------------------------------------------------------------------------------------ equations


def names(tag: str) -> list[str]:
    r"""The equations that one \tag names: "Borealis II 10, Aalto 16" two of them, "Borealis II 19, 20" two as well."""
    found, source = [], ""
    for part in tag.split(", "):
        *words, number = part.split(" ")
        source = " ".join(words) or source
        found.append(f"{'Borealis II' if source == 'Borealis' else source} {number}".strip())
    return found


def anchor(name: str) -> str:
    """Where an equation stands on its page: "8.1" at #equation-8-1."""
    return "equation-" + slug(name)


def slug(text: str) -> str:
    """Letters, digits and dashes."""
    return re.sub(r"[^\w]+", "-", text.lower()).strip("-")


# ---------------------------------------------------------------------------------------------------------- links


def linked(text: str, mentions: list[Mention]) -> list[tuple[str, str | None]]:
    """The text in pieces, each with its address or None; together they are the text."""
    pieces: list[tuple[str, str | None]] = [(text, None)]
    for mention in mentions:
        pieces = [new for piece in pieces for new in ([piece] if piece[1] else _cut(piece[0], mention))]
    return pieces


def _cut(text: str, mention: Mention) -> Iterator[tuple[str, str | None]]:
    last = 0
    around = [found.span() for found in mention.within.finditer(text)] if mention.within else [(0, len(text))]
    for begin, end in around:
        for found in mention.pattern.finditer(text, begin, end):
            if where := mention.address(found):
                if found.start() > last:
                    yield text[last : found.start()], None
                yield found[0], where
                last = found.end()
    if last < len(text) or not text:
        yield text[last:], None


CHAPTERS = re.compile(r"\b[Cc]hapters? \d\d(?!\d)(?:(?:, | and | to )\d\d(?!\d))*")


def mentions(chapters: dict[str, str], equations: dict[str, str], papers: list["Paper"], here: str) -> list[Mention]:
    """What becomes a link on the page `here`: chapters by number, equations by tag, papers by author and year or by name.

    chapters    number to page
    equations   tag, such as "8.1" or "Borealis II 15", to address
    """
    cited = {paper.name: f"{SOURCES}#{paper.anchor}" for paper in papers}
    systems = {paper.system: f"{SOURCES}#{paper.anchor}" for paper in papers if paper.system}

    def once(found: re.Match[str]) -> str | None:
        return systems.pop(found[0], None)  # the name of a system leads there the first time that a page has it

    def display(found: re.Match[str]) -> str | None:
        if found[1].startswith("0.") and not here.startswith("00_"):
            return None  # a number between 0 and 1
        return equations.get(found[1])

    found = [
        Mention(re.compile(r"\d\d"), lambda m: chapters.get(m[0]), CHAPTERS),
        Mention(re.compile(r"\((\d{1,2}\.\d{1,2})\)"), display),
        Mention(re.compile(r"\b(Borealis II|Aalto),? \((\d+)\)"), lambda m: equations.get(f"{m[1]} {m[2]}")),
    ]
    if here != SOURCES:
        found.append(Mention(CITATION, lambda m: cited.get(entry(m[0]))))
        longest = sorted(map(re.escape, systems), key=len, reverse=True)
        found.append(Mention(re.compile(rf"(?<![\w-])(?:{'|'.join(longest)})(?![\w-])"), once))
    return found


# -------------------------------------------------------------------------------------------------------- letters

# no article, pronoun, initial, abbreviation or unit (GB/s); part of no word, name or number; no kind A
LETTER = re.compile(
    r"(?<![\w'’.–-])(?<![A-Z]\. )(?<![A-Z]{2}/)(?<!\w\[)(?<![Kk]ind )(?<!kinds )(?<![Pp]art )"
    r"(?:[δ∂]?[B-HJ-Z]|d[A-Zbckpqsvwxyzα-ω]|[b-zα-ω]|(?<=[a-z,=+·×√] )A|(?<=√)A|(?<=[=−+] )I)"
    r"(?![^\W²³⁴]|[’'–]|-\w|\.\w|\. [A-Z]\.)"
)
_SIDE = rf"(?:{LETTER.pattern}[²³]?|(?<![\w.])\d+(?:,\d{{3}})*(?:\.\d+)?(?![\w%]))"
FORMULA = re.compile(rf"(?:{_SIDE} [=×·≤≥<>+−] )+{_SIDE}|(?:{LETTER.pattern} )*{LETTER.pattern}")  # D H K: a product


def lettered(text: str) -> list[list[tuple[str, bool]]]:
    """The text in pieces that have to stay on one line, each in parts that are a letter of the notation, or not.

    "for d = 256 and n × n pairs" has two formulas; prose in between may break at any space.
    """
    pieces, last = [], 0
    for found in FORMULA.finditer(text):
        if letters := [letter.span() for letter in LETTER.finditer(text, found.start(), found.end())]:
            if last < found.start():
                pieces.append([(text[last : found.start()], False)])
            edges = [found.start(), *(edge for span in letters for edge in span), found.end()]
            parts = [(text[a:b], k % 2 == 1) for k, (a, b) in enumerate(pairwise(edges))]
            pieces.append([part for part in parts if part[0]])
            last = found.end()
    return [*pieces, [(text[last:], False)]] if last < len(text) or not text else pieces


# --------------------------------------------------------------------------------------------------------- papers

SOURCES = "99_sources.html"
_NAME, _YEAR = r"[^\W\d_a-z][\w’-]+", r"(?:19|20)\d\d[a-z]?"
CITATION = re.compile(  # Shaw et al. (2018); (Dai et al. 2019); Ke, He and Liu (2021); Bell (1991); Tay et al. 2021b
    rf"{_NAME}(?:(?: et al\.|(?:, {_NAME})* and {_NAME}),?)? (?:\({_YEAR}\)|{_YEAR}(?!\w))"
)
ENTRY = re.compile(r"^- \*\*(?P<names>.+) \((?P<year>\d{4}[a-z]?)\)(?:, (?P<system>.+))?\.\*\* ", re.MULTILINE)


class Paper(NamedTuple):
    """An entry of the bibliography, by its authors and year: "Child et al. 2019"."""

    name: str
    system: str
    anchor: str


def papers(text: str) -> list[Paper]:
    """The entries of a bibliography."""
    return [paper(found) for found in ENTRY.finditer(text)]


def paper(found: re.Match[str]) -> Paper:
    """The entry that begins with "Child et al. (2019), Longformer."."""
    name, system = f"{found['names']} {found['year']}", found["system"] or ""
    return Paper(name, system, "paper-" + slug(f"{name.replace(' et al.', '')} {system}"))


def entry(words: str) -> str:
    """Authors and year as the bibliography has them: "Ke, He and Liu (2021)" is "Ke et al. 2021"."""
    return re.sub(r"[(),]", "", re.sub(r", .+ and [\w’-]+", " et al.", words))


# -------------------------------------------------------------------------------------------- symbols and glossary


class Symbol(NamedTuple):
    """A row of a chapter's closing table."""

    chapter: str
    sign: str
    shape: str
    meaning: str


def symbols(chapter: str, text: str) -> Iterator[Symbol]:
    """The rows of the tables whose first column is called "symbol", or "new symbol"."""
    for table in re.finditer(r"^\|(.+)\|\n\|[-:| ]+\|\n((?:\|.*\|\n?)+)", text, re.MULTILINE):
        head = [cell.removeprefix("new ") for cell in _cells(table[1])]
        if head[0] == "symbol":
            for line in table[2].splitlines():
                row = dict(zip(head, _cells(line.strip()[1:-1]), strict=True))
                yield Symbol(
                    chapter, row["symbol"], row.get("shape", ""), row.get("what it is") or row.get("meaning", "")
                )


def _cells(line: str) -> list[str]:
    """The cells of a line of a table; a bar in code or maths is written \\|."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]


NAMES = """alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu
nu xi omicron pi rho sigma tau upsilon phi chi psi omega"""
GREEK = dict(zip("αβγδεζηθικλμνξοπρστυφχψω", NAMES.split(), strict=True))
DRESS = re.compile(r"\\(?:mathbf|boldsymbol|mathrm|mathcal|(?:wide)?(?:tilde|hat)|bar|text|operatorname|overline)\b")


def order(sign: str) -> tuple[Any, ...]:
    """A key that sorts signs as a reader looks for them: Latin, then Greek, then the rest; a and A side by side."""
    bare = DRESS.sub("", sign)
    bare = re.sub(
        r"\\([A-Za-z]+)", lambda m: next((g for g, n in GREEK.items() if n == m[1].lower()), "") or m[1], bare
    )
    bare = re.sub(r"[^\w]", "", bare)
    first = bare[:1].lower()
    kind = 0 if "a" <= first <= "z" else 1 if first in {*GREEK, "ϕ", "ϵ"} else 2
    return kind, GREEK.get(first, first), bare.lower(), bare


def terms(text: str) -> list[tuple[str, str]]:
    """The entries of a glossary, each with what it means: "- **Ring.** A cache …"."""
    return re.findall(r"^- \*\*(.+)\.\*\* (.+)$", text.partition("## Glossary")[2], re.MULTILINE)


def short(meaning: str) -> list[str]:
    """The short form of a term, with which its meaning may end: "… of keys and values (GQA). [12](…)"."""
    return re.findall(r" \(([A-Z]\w+)\)\. \[", meaning)


SOUGHT = {  # what else a reader may type who looks for a term; the page does not show it
    "Difference quotients": ("finite differences", "gradient check"),
    "FlashAttention": ("flash", "flash attention"),
    "Kernel attention": ("linear attention",),
    "KV cache": ("KV-cache", "key-value cache"),
    "Layer normalisation": ("LayerNorm",),
    "Mask": ("causal mask", "attention mask"),
    "PagedAttention": ("paged attention",),
    "Residual connection": ("skip connection",),
    "RMS norm": ("RMSNorm",),
    "Sinks": ("attention sink", "attention sinks"),
    "Top-p": ("nucleus", "nucleus sampling"),
    "Window": ("sliding window", "sliding window attention"),
}


def parts(word: str) -> list[str]:
    """The words of which a name is put together, such as "Flash" and "Attention": the search finds it by each of them."""
    return [part for part in re.findall(r"[A-Z][a-z]{3,}", word) if part != word]


# ------------------------------------------------------------------------------------------------------ docstrings

KEY = re.compile(
    r"^(\*{0,2}\w+(?:(?: or|,) \*{0,2}\w+)*) {2,}(\S.*)$"
)  # "cost     O(n m d)"; continued lines are indented


def docstring(text: str) -> str:
    """A docstring of the house as Markdown: displays become blocks of code, aligned key words a list of definitions."""
    out: list[str] = []
    display: list[str] = []
    within = False

    def flush() -> None:
        while display and not display[-1].strip():
            display.pop()
        if display:
            out.extend(["", "```text", *display, "```", ""])
            display.clear()

    for line in text.splitlines():
        if found := KEY.match(line):
            flush()
            out.extend(["", f"`{found[1]}`", f": {plain(found[2])}"])
            within = True
        elif line.startswith("    ") and within:
            out.append("  " + plain(line.strip()))
        elif line.startswith("    ") or (display and not line.strip()):
            display.append(line.removeprefix("    "))
        else:
            flush()
            if within and line.strip():
                out.append("")
                within = False
            out.append(plain(line))
    flush()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip() + "\n"


def plain(line: str) -> str:
    """A line with Markdown's special characters escaped, except in code."""
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(part if k % 2 else re.sub(r"([*_<\[\]$|~#])", r"\\\1", part) for k, part in enumerate(parts))


# --------------------------------------------------------------------------------------------------------- chapters

SAVED = re.compile(r"(?:save\([^\n]*?, |(live)\.show\()\"(\w+)\"(?:, format=\"\w+\")?\)")


def saved(code: str) -> list[str]:
    """The figures that a cell draws: save(…, "heads"), and live.show("clocks"), whose still picture is live_clocks."""
    return ["_".join(filter(None, found)) for found in SAVED.findall(code)]


def opening(text: str) -> tuple[str, str, str]:
    """Title, question and the rest of a chapter's first cell."""
    title, _, rest = text.partition("\n")
    found = re.match(r"\s*\*\*(.+?)\*\*\s*(?:\n|$)", rest, re.DOTALL)
    return (
        title.lstrip("# "),
        " ".join(found[1].split()) if found else "",
        rest[found.end() :].strip() if found else rest.strip(),
    )


def notes(navigation: str) -> list[str]:
    """What the cell under the title says beside the ways and the contents: minutes, what the chapter assumes."""
    paragraphs = re.split(r"\n\s*\n", navigation.strip())
    return [p for p in paragraphs if p and "all chapters](" not in p and not p.lstrip().startswith("- [")]


def picture(name: str, alt: str, size: tuple[float, float], kind: str) -> str:
    """A figure as HTML: of the size at which it was drawn, so that nothing moves while it loads."""
    width, height = (round(number) for number in size)
    told = escape(" ".join(alt.split()))
    img = f'<img src="_static/figures/{name}" alt="{told}" width="{width}" height="{height}">'
    return f'<figure class="drawn {kind}" id="{name.partition(".")[0]}">{img}</figure>'
