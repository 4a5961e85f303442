"""Links under what the prose of a chapter names: other chapters, numbered displays, and papers where they are first named.

JupyterLab and GitHub follow a link to a heading, and GitHub to nothing smaller. So the mention of a display leads to the
section that holds it, and that of a paper to its letter in the bibliography.
"""

import json
import re
from functools import cache
from pathlib import Path

SOURCES = "99_sources.ipynb"
PROTECTED = r"```.*?```|\$\$.*?\$\$|\$[^$\n]+\$|`[^`\n]+`|^#[^\n]*|</?\w[^>\n]*>"  # code, formulas, headings
CHAPTER = r"\[(?P<linked>[Cc]hapter \d\d)\]\([^)\s]+\.ipynb\)|(?<![\[`])\b(?P<chapter>[Cc]hapter \d\d)\b"
CHAPTERS = r"\b(?P<several>[Cc]hapters (?:\[?\d\d(?:\]\([^)\s]+\.ipynb\))?(?:, | and | to )?)+)"
DISPLAY = r"\[\((?P<known>\d+\.\d+)\)\]\([^)\s]*#[^)\s]+\)|(?<!\]\()\((?P<display>\d+\.\d+)\)"
NAME = r"[^\W\d_a-z][\w’-]+"
YEAR = r"(?:\((?:19|20)\d\d[a-z]?\)|(?:19|20)\d\d[a-z]?(?!\w))"
PAPER = (  # Shaw et al. (2018); Dai et al. 2019; Ke, He and Liu (2021); Shazeer (2019); OpenAI 2025; Tay et al. 2021b
    rf"\[(?P<cited>{NAME}[^\]\n]*? \(?\d{{4}}[a-z]?\)?)\]\({SOURCES}#\w\)"
    rf"|(?P<paper>{NAME}(?:(?: et al\.|(?:, {NAME})* and {NAME}),?)? {YEAR})"
)
MENTION = re.compile(f"(?P<kept>{PROTECTED})|{CHAPTERS}|{CHAPTER}|{DISPLAY}|{PAPER}", re.DOTALL | re.MULTILINE)
TAGGED = re.compile(r"^## +(?P<heading>.+?) *$|\\tag\{(?P<tag>\d+\.\d+)\}", re.MULTILINE)
ENTRY = re.compile(r"^- \*\*(?P<names>.+?) \((?P<year>\d{4}[a-z]?)\)", re.MULTILINE)


def anchor(heading: str) -> str:
    """Where a heading is, for JupyterLab and for GitHub: they put - for a space and keep other characters."""
    return "#" + heading.replace(" ", "-")


def linked(text: str, path: Path, chapters: list[Path], named: set[str]) -> str:
    """The prose of one cell, with links; headings, code and formulas stay as they are.

    named   the papers that the chapter has named so far; those of this cell are added
    """
    numbered = {chapter.name[:2]: chapter.name for chapter in chapters if chapter != path}
    places = {tag: place for chapter in chapters for tag, place in displays(chapter).items()}
    known = papers(path.with_name(SOURCES)) if path.name != SOURCES else frozenset()

    def chapter(words: str) -> str:
        number = words[-2:]
        return f"[{words}]({numbered[number]})" if number in numbered else words

    def display(number: str) -> str:
        file, heading = places.get(number, ("", ""))
        if number.startswith("0.") and file != path.name:
            heading = ""  # a number between 0 and 1
        return f"[({number})]({'' if file == path.name else file}{heading})" if heading else f"({number})"

    def paper(words: str) -> str:
        cited = entry(words)
        if cited in named or cited not in known:
            return words
        named.add(cited)
        return f"[{words}]({SOURCES}{anchor(cited[0])})"

    def link(found: re.Match[str]) -> str:
        if found["kept"]:
            return found["kept"]
        if found["several"]:
            plain = re.sub(r"\[(\d\d)\]\([^)]*\)", r"\1", found["several"])
            return re.sub(r"\d\d", lambda number: chapter(number[0]), plain)
        if words := found["linked"] or found["chapter"]:
            return chapter(words)
        if number := found["known"] or found["display"]:
            return display(number)
        return paper(found["cited"] or found["paper"])

    return MENTION.sub(link, text)


def displays(path: Path) -> dict[str, tuple[str, str]]:
    """The numbered displays of a chapter: the file, and the anchor of the section that each stands in."""
    return _displays(path.name, prose(path))


@cache
def _displays(file: str, text: str) -> dict[str, tuple[str, str]]:
    """Those of a text; every cell of every chapter asks for those of all."""
    places, heading = {}, ""
    for found in TAGGED.finditer(text):
        heading = found["heading"] or heading
        if found["tag"] and heading:
            places[found["tag"]] = (file, anchor(heading))
    return places


def papers(path: Path) -> frozenset[str]:
    """The entries of the bibliography, each by its authors and its year."""
    return frozenset(f"{found['names']} {found['year']}" for found in ENTRY.finditer(prose(path)))


def entry(words: str) -> str:
    """Authors and year as the bibliography has them: "Ke, He and Liu (2021)" is "Ke et al. 2021"."""
    return re.sub(r"[(),]", "", re.sub(r", .+ and [\w’-]+", " et al.", words))


def prose(path: Path) -> str:
    """What a chapter says between its code; nothing where there is no such file."""
    if not path.is_file():
        return ""
    stamp = path.stat()
    return _read(path, stamp.st_mtime_ns, stamp.st_size)


@cache
def _read(path: Path, written: int, size: int) -> str:
    """The prose of a chapter; it is read again when the time of writing or the size has changed."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
