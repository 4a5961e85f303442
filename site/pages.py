"""The sources of the site, written from chapters, figures, map, docstrings and tests: `pages.py FOLDER [--single]`.

Chapters stay notebooks, with links and figures of the site; everything else is Markdown, the pages of code from package.py.
Sphinx makes pages of both.
"""

import json
import re
import shutil
import sys
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
import words
from package import ROOT, code, place, public

from minitransformer import live
from minitransformer.book import equations

NOTATION = "98_map_and_glossary.html#notation-of-the-five-texts"  # the table of letters
ORDER = "98_map_and_glossary.html#a-map-of-chapters"  # what has to be read before what
NO_SCRIPTS = (
    "Scripts are off in this browser, so equations stand as their source in LaTeX, and figures with sliders don't move."
)
PARTS = {  # the number of the first chapter of each
    "00": "Foundations",
    "04": "Part I: where a word stands",
    "07": "Part II: long texts",
    "13": "Part III: relatives of attention",
    "17": "On real machines",
    "19": "Errata, comparison, sources",
}
HEAT = re.compile(rb"<image |pcolormesh|QuadMesh")  # a picture whose colours are numbers: it keeps them on a dark page


class Book:
    """What is read once: chapters, map, tests that something links to, and where each of them stands in the site."""

    def __init__(self) -> None:
        self.chapters = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in equations.notebooks(ROOT)}
        self.text = {stem: _prose(chapter) for stem, chapter in self.chapters.items()}
        self.rows = equations.load()
        self.figures = {path.stem: path for path in sorted((ROOT / "figures").glob("fig_*.*"))}
        self.sources: dict[str, str] = {}  # files that are shown: path to page
        for row in self.rows:
            self.show(row.test.partition("::")[0])
        self.api = public(self.rows)
        self.papers = words.papers(self.text["99_sources"].partition("## Papers")[2])

    def title(self, stem: str) -> str:
        return words.opening(_source(self.chapters[stem]["cells"][0]))[0]

    def question(self, stem: str) -> str:
        return words.opening(_source(self.chapters[stem]["cells"][0]))[1]

    def show(self, path: str) -> str:
        """The page that shows a file."""
        return self.sources.setdefault(path, words.slug(path.removesuffix(".py")).replace("_", "-") + ".html")

    def equations(self) -> dict[str, str]:
        """The address of each numbered display, and of each row of the map whose equation is displayed nowhere."""
        found = {}
        for stem, text in self.text.items():
            for tag in words.TAG.findall(text):
                for name in words.names(tag):
                    found[name] = f"{stem}.html#{words.anchor(name)}"
        for row in self.rows:
            if row.number:
                found.setdefault(f"{row.source} {row.number}", f"map.html#{row.id}")
        return found

    def address(self, link: str) -> str:
        """Where a link of a notebook leads in the site."""
        path, _, place = link.partition("#")
        if path.endswith(".ipynb") or not path:
            path = path.replace(".ipynb", ".html")
            place = words.slug(place)
        elif path == "../README.md":
            path = "index.html"
        elif path.startswith("../") and (ROOT / path[3:]).is_file():
            path = self.show(path[3:])
        return path + f"#{place}" * bool(place)


def _source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def _tags(cell: dict[str, Any]) -> list[str]:
    return cell["metadata"].get("tags", [])


def _prose(chapter: dict[str, Any]) -> str:
    cells = [cell for cell in chapter["cells"] if cell["cell_type"] == "markdown" and "navigation" not in _tags(cell)]
    return "\n\n".join(map(_source, cells))


# ------------------------------------------------------------------------------------------------------- chapters


def chapter(book: Book, stem: str) -> dict[str, Any]:
    """The notebook as Sphinx gets it."""
    notebook = json.loads(json.dumps(book.chapters[stem]))
    told, cells = "", []
    for cell in notebook["cells"]:
        if "navigation" in _tags(cell):
            told = told or _source(cell)
            continue
        if cell["cell_type"] == "markdown":
            names = [tag for tag in _tags(cell) if tag.startswith("eq-")] + [cell["id"]] * cell["id"].startswith("ex-")
            anchors = "".join(map(place, names))
            text = words.ENTRY.sub(_paper, _source(cell)) if stem == "99_sources" else _source(cell)
            cell["source"] = anchors + _relinked(book, text)
        elif cell["cell_type"] == "code":
            cell["metadata"]["cell"] = cell["id"]
            drawn(book, cell)
        cells.append(cell)
    first = cells[0]["source"]
    cells[0]["source"] = opened(book, stem, first, told)
    notebook["cells"] = cells
    return notebook


def _paper(entry: re.Match[str]) -> str:
    return f'- <span id="{words.paper(entry).anchor}"></span>{entry[0][2:]}'


def drawn(book: Book, cell: dict[str, Any]) -> None:
    """Figures of a cell come from `figures/`, where they are drawings, and not as the bitmap that notebooks keep."""
    names = iter(words.saved(_source(cell)))
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "text/markdown" in data:
            data["text/markdown"] = _relinked(book, "".join(data["text/markdown"]))
        if "image/png" in data and (path := book.figures.get(f"fig_{next(names, '')}")):
            shown = output["metadata"]["image/png"]
            output["data"] = {
                "text/html": words.picture(path.name, shown["alt"], (shown["width"], shown["height"]), _kind(path))
            }
            output["metadata"] = {}


def _kind(path: Path) -> str:
    return "heat" if path.suffix == ".png" or HEAT.search(path.read_bytes()) else "line"


COARSE = re.compile(r"\[(\(\d+\.\d+\)|[^\W\d_a-z][^\]\n]*? \(?\d{4}[a-z]?\)?)\]\((?:\d\d_\w+\.ipynb)?#[^)\s]+\)")


def _relinked(book: Book, text: str) -> str:
    """Links as they are here. A display or a paper was linked to its section: that is unmade, because here it has a place."""
    text = COARSE.sub(r"\1", text)
    return re.sub(r"(?<=\]\()(?![a-z]+:)([^)\s]+)", lambda found: book.address(found[1]), text)


def opened(book: Book, stem: str, text: str, told: str) -> str:
    """The first screen: title, question, notes and ways, one figure, and then the chapter's own first words."""
    title, question, rest = words.opening(text)
    stems = list(book.chapters)
    k = stems.index(stem)
    ways = []
    if k > 0:
        ways.append(f'<a rel="prev" href="{stems[k - 1]}.html">← {escape(book.title(stems[k - 1]))}</a>')
    if k + 1 < len(stems):
        ways.append(f'<a rel="next" href="{stems[k + 1]}.html">{escape(book.title(stems[k + 1]))} →</a>')
    lines = [f"# {title}", "", first_figure(book, stem), "", ":::{container} question", question, ":::", ""]
    for note in words.notes(told):
        lines += [":::{container} note-line", _relinked(book, note), ":::", ""]
    lines += [f'<nav class="ways" aria-label="chapters before and after">{" ".join(ways)}</nav>', ""]
    lines += [f'<div class="note-line"><noscript><p>{NO_SCRIPTS}</p></noscript></div>', ""]
    return "\n".join([*lines, rest])


def first_figure(book: Book, stem: str) -> str:
    """The chapter's first figure, which leads to its place."""
    for cell in book.chapters[stem]["cells"]:
        for name in words.saved(_source(cell)):
            path = book.figures[f"fig_{name}"]
            return (
                f'<a class="emblem drawn {_kind(path)}" href="#{path.stem}">'
                f'<img src="_static/figures/{path.name}" alt="The first figure of this chapter: go to it"></a>'
            )
    return ""


# ------------------------------------------------------------------------------------------------ pages of the book


def index(book: Book, reference: list[str]) -> str:
    """The cover and the contents; `reference` are the pages to look something up in."""
    lines = [
        "# The book on attention that runs",
        "",
        ":::{container} question",
        "Attention and its variants, each by its equation, in NumPy, with its gradient derived by hand.",
        ":::",
        "",
        f"{len(book.chapters)} chapters, {len(book.figures)} figures, and [a map](map.html) that leads from {len(book.rows)} "
        "equations and systems to their code and tests. "
        "Each chapter is a notebook: a question, a guess, an equation, the lines of code that are the equation, a number or a "
        "picture, and what it means. There is no deep-learning framework underneath; gradients are checked against difference "
        "quotients, and what a figure claims is tested.",
        "",
        "**Begin** with [how to read this book](00_how_to_read_this_book.html), then "
        "[self-attention](02_self_attention.html) and [the transformer](03_the_transformer.html). You need linear algebra, the "
        f"chain rule and Python. [A map]({ORDER}) says which chapter needs which.",
        "",
        "**Look up** [a symbol](symbols.html), "
        f"[what the five texts write for it]({NOTATION}), "
        "[a word](glossary.html), [an equation](map.html) or [a function](api.html).",
        "",
        *cover(book),
        place("chapters"),
    ]
    tree = []
    for part, stems in parts(book).items():
        lines += [f"## {part}", "", '<ol class="contents">']
        for stem in stems:
            number, _, title = book.title(stem).rpartition(" · ")
            lines.append(
                f'<li><a href="{stem}.html"><span class="number">{number or stem[:2]}</span>'
                f'<span class="title">{escape(title)}</span><span class="asks">{escape(book.question(stem))}</span></a></li>'
            )
        lines += ["</ol>", ""]
        tree += ["```{toctree}", ":hidden:", f":caption: {part}", ":maxdepth: 1", *stems, "```", ""]
    tree += ["```{toctree}", ":hidden:", ":caption: To look up", ":maxdepth: 1", *reference, "```"]
    return "\n".join(lines + tree)


def cover(book: Book) -> list[str]:
    """A figure that moves, and its still picture for readers without scripts: where each head of a BERT looks."""
    name, data = "heads", live.modules()["heads"].data()
    still, alt = book.figures[f"fig_live_{name}"], "Where each head of a BERT looks, from one word of a sentence"
    return [
        "```{raw} html",
        f'<div class="cell_output cover"><img src="_static/figures/{still.name}" alt="{alt}">',
        live.html(name, data),
        f"<p>Choose a word: what do the heads of a small BERT look at, and in which block? "
        f'A figure of <a href="03_the_transformer.html#{still.stem}">chapter 03</a>.</p></div>',
        "```",
        "",
    ]


def parts(book: Book) -> dict[str, list[str]]:
    """The chapters, part by part."""
    found: dict[str, list[str]] = {}
    for stem in book.chapters:
        part = PARTS[max(first for first in PARTS if first <= stem[:2])] if stem[:2] != "99" else PARTS["19"]
        found.setdefault(part, []).append(stem)
    return {part: found[part] for part in [*PARTS.values()] if part in found}


def equation_map(book: Book) -> str:
    """Equation → function → test → cell → figure."""
    lines = [
        "# The map",
        "",
        "Each line is an equation of one of the five sources, or a system that has no number there. It leads to the function "
        "that is the equation, to the test that spells it out in loops, to the cell that explains it, and to its figure.",
        "",
    ]
    for source in dict.fromkeys(row.source for row in book.rows):
        lines += [f"## {source}", "", '<table class="map"><thead><tr>']
        lines += [f'<th scope="col">{head}</th>' for head in ("equation", "function", "test", "cell", "figure")]
        lines += ["</tr></thead><tbody>"]
        for row in (row for row in book.rows if row.source == source):
            file, _, test = row.test.partition("::")
            figure = (
                f'<a href="{figure_place(book, row.figure)}">{row.figure.removeprefix("fig_")}</a>'
                if row.figure
                else ""
            )
            function = row.function.rpartition(".")[2].replace("_", "_<wbr>")
            lines.append(
                f'<tr id="{row.id}"><th scope="row">{escape(row.printed)}</th>'
                f'<td data-is="function"><a href="{book.api[row.function]}"><code>{function}</code></a></td>'
                f'<td data-is="test"><a href="{book.show(file)}#{test}">{row.id}</a></td>'
                f'<td data-is="cell"><a href="{row.notebook}.html#eq-{row.id}">chapter {row.notebook[:2]}</a></td>'
                f'<td data-is="figure">{figure}</td></tr>'
            )
        lines += ["</tbody></table>", ""]
    return "\n".join(lines)


def figure_place(book: Book, figure: str) -> str:
    """Where a figure stands in a chapter."""
    for stem, notebook in book.chapters.items():
        for cell in notebook["cells"]:
            if figure.removeprefix("fig_") in words.saved(_source(cell)):
                return f"{stem}.html#{figure}"
    return f"_static/figures/{book.figures[figure].name}"


def symbols(book: Book) -> str:
    """The rows of all closing tables, in one order."""
    rows = [row for stem, text in book.text.items() for row in words.symbols(stem, text)]
    lines = [
        "# Symbols",
        "",
        "One letter means one thing within a chapter. The chapters' own closing tables, in one. "
        f"[What the five texts write]({NOTATION}) stands in the appendix.",
        "",
    ]
    lines += ["| symbol | shape | what it is | chapter |", "|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: (words.order(row.sign), row.chapter)):
        lines.append(f"| {row.sign} | {row.shape} | {_relinked(book, row.meaning)} | {_chapter(row.chapter)} |")
    return "\n".join(lines)


def _chapter(stem: str, place: str = "what-we-know-now") -> str:
    return f"[{stem[:2]}]({stem}.html#{place})"


def glossary(book: Book) -> str:
    """The glossary of page 98, in the form in which the search finds each term by its name, and by its short form."""
    about = "Each term with the chapter that introduces it; the link leads to the section."
    lines = ["# Glossary", "", about, "", "```{glossary}"]
    for term, meaning in words.terms(book.text["98_map_and_glossary"]):
        lines += [term, *words.short(meaning), f"  {_relinked(book, meaning)}", ""]
    return "\n".join([*lines, "```"])


# --------------------------------------------------------------------------------------------------------------- all


def write(out: Path, *, single: bool = False) -> None:
    """Everything that Sphinx reads; of a single page, which is going to be printed, only what one reads."""
    book = Book()
    out.mkdir(parents=True, exist_ok=True)
    pages = {"map": equation_map(book), "symbols": symbols(book), "glossary": glossary(book)}
    for stem in book.chapters:
        (out / f"{stem}.ipynb").write_text(json.dumps(chapter(book, stem)), encoding="utf-8")
    pages["index"] = index(book, [*pages] if single else [*pages, "api", "code"])
    if not single:
        pages |= code(book.rows, book.sources)
    for name, text in pages.items():
        (out / f"{name}.md").write_text(text, encoding="utf-8")
    shutil.copytree(ROOT / "figures", out / "_static" / "figures")
    (out / "_static" / "fonts").mkdir()
    shutil.copy(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSansMono.ttf"), out / "_static" / "fonts")
    places = {
        "chapters": {stem[:2]: f"{stem}.html" for stem in book.chapters},
        "equations": book.equations(),
        "papers": book.papers,
    }
    (out / "places.json").write_text(json.dumps(places), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]), single="--single" in sys.argv)
