"""What the site needs of Sphinx beyond the usual: names for cells, anchors for equations, links out of running text."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import words
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform

BEFORE, BEHIND = re.compile(r"[(\[“\"]+$"), re.compile(r"[-,.;:!?)\]”’'\"]+")  # what stays on the line of its formula
CLOSED = (
    nodes.literal,
    nodes.literal_block,
    nodes.reference,
    nodes.math,
    nodes.math_block,
    nodes.title,
    nodes.raw,
    nodes.term,
)
LETTERED = ("glossary", "symbols", "map")  # beside the chapters


class Places(SphinxTransform):
    """Anchors and classes: cells by id and tags, displays by their tags, boxes by their first word."""

    default_priority = 900

    def apply(self, **_: Any) -> None:
        for cell in self.document.findall(lambda node: isinstance(node, nodes.container) and "cell" in node["classes"]):
            meta = cell.get("cell_metadata") or {}
            own = [tag for tag in meta.get("tags", []) if tag.startswith("eq-")]
            cell["ids"] += [f"cell-{meta['cell']}", *own] if "cell" in meta else own
        for block in list(self.document.findall(nodes.math_block)):  # a list, because the tree grows
            for tag in words.TAG.findall(block.astext()):
                ids = [words.anchor(name) for name in words.names(tag)]
                block.parent.insert(block.parent.index(block), nodes.target("", "", ids=ids))
            if r"\tag" in block.astext():  # Sphinx would put several lines into `split`, which forbids \tag
                block["no-wrap"] = block["nowrap"] = True
                block[:] = [nodes.Text(rf"\[{block.astext()}\]")]
        for paragraph in self.document.findall(nodes.paragraph):
            if (
                len(paragraph) == 1
                and isinstance(paragraph[0], nodes.emphasis)
                and not isinstance(paragraph.parent, nodes.list_item)
            ):
                paragraph["classes"].append("figure-caption")
        for formula in list(self.document.findall(nodes.math)):
            _keep_together(formula)
        for quote in self.document.findall(nodes.block_quote):
            quote["classes"].append("erratum" if quote.astext().startswith(("Erratum", "Errata")) else "aside")


class Sought(SphinxTransform):
    """The search finds a term of the glossary by other names of it, too."""

    default_priority = 900

    def apply(self, **_: Any) -> None:
        for term in self.document.findall(nodes.term) if self.env.docname == "glossary" else []:
            for index in term.findall(addnodes.index):
                ((kind, name, *where),) = index["entries"]
                index["entries"] += [(kind, other, *where) for other in words.SOUGHT.get(name, ())]


class Search(SearchEnglish):
    """Sphinx's, in which a text has the words of which its names are put together, too."""

    def split(self, text: str) -> list[str]:
        found = super().split(text)
        return [*found, *(part for word in found for part in words.parts(word))]


class Links(SphinxPostTransform):
    """ "chapter 03", "(2.1)", "Aalto (12)" and "Child et al. (2019)" lead to their places."""

    default_priority = 5

    def run(self, **_: Any) -> None:
        here = self.env.docname + ".html"
        known = json.loads((Path(self.app.srcdir) / "places.json").read_text(encoding="utf-8"))
        papers = [words.Paper(*paper) for paper in known["papers"]]
        chapters = {number: page for number, page in known["chapters"].items() if page != here}
        found = words.mentions(chapters, known["equations"], papers, here)
        for text in list(self.document.findall(nodes.Text)):
            if text.parent is None or any(isinstance(node, CLOSED) for node in _above(text)):
                continue
            pieces = words.linked(str(text), found)
            if any(where for _, where in pieces):
                text.parent.replace(text, [_piece(words_, where) for words_, where in pieces])


class Letters(SphinxPostTransform):
    """A letter of the notation is italic in running text, as in a formula, and "d = 256" stays on one line."""

    default_priority = 6  # behind `Links`, which reads whole sentences

    def run(self, **_: Any) -> None:
        if (not self.env.docname[:2].isdigit() and self.env.docname not in LETTERED) or self.env.docname.startswith(
            "99"
        ):
            return
        for text in list(self.document.findall(nodes.Text)):
            if text.parent is None or any(isinstance(node, CLOSED) for node in _above(text)):
                continue
            if len(text) == 1 and isinstance(text.parent, nodes.strong):  # the name of an item
                continue
            pieces = words.lettered(str(text))
            if any(is_letter for piece in pieces for _, is_letter in piece):
                text.parent.replace(text, [node for piece in pieces for node in _formula(piece)])


def _formula(piece: list[tuple[str, bool]]) -> list[nodes.Node]:
    parts = [nodes.inline("", part, classes=["letter"]) if is_letter else nodes.Text(part) for part, is_letter in piece]
    return [nodes.inline("", "", *parts, classes=["together"])] if len(parts) > 1 else parts


def _keep_together(formula: nodes.math) -> None:
    """No line begins with the comma behind a formula, or ends with the bracket before it."""
    parent, at = formula.parent, formula.parent.index(formula)
    first, last = (parent[k] if 0 <= k < len(parent) else None for k in (at - 1, at + 1))
    before = BEFORE.search(first) if isinstance(first, nodes.Text) else None
    behind = BEHIND.match(last) if isinstance(last, nodes.Text) else None
    if before or behind:
        signs = [nodes.Text(found[0]) if found else None for found in (before, behind)]
        pieces = [piece for piece in (signs[0], formula.deepcopy(), signs[1]) if piece is not None]
        parent[at] = nodes.inline("", "", *pieces, classes=["together"])
    if before:  # by place: `replace` would take the first text that reads the same
        parent[at - 1] = nodes.Text(first[: before.start()])
    if behind:
        parent[at + 1] = nodes.Text(last[behind.end() :])


def _above(node: nodes.Node) -> list[nodes.Node]:
    found = []
    while (node := node.parent) is not None and not isinstance(node, nodes.section):
        found.append(node)
    return found


def _piece(text: str, where: str | None) -> nodes.Node:
    return nodes.reference("", text, refuri=where, internal=True, classes=["mention"]) if where else nodes.Text(text)


def copy(app: Sphinx, error: Exception | None) -> None:
    """Fonts, MathJax and figures beside the pages; and pages that have colours without scripts, too."""
    if error is None and app.builder.format == "html":
        static = Path(app.outdir) / "_static"
        for name, (source, parts) in app.config.FOLDERS.items():
            for part in parts:
                if (source / part).is_dir():
                    shutil.copytree(source / part, static / name / part, dirs_exist_ok=True)
                else:
                    (static / name).mkdir(parents=True, exist_ok=True)
                    shutil.copy(source / part, static / name / part)
        shutil.copytree(Path(app.srcdir) / "_static", static, dirs_exist_ok=True)
        for unused in [
            *static.rglob("*.map"),
            *(static / "locales").glob("*"),
        ]:  # for who debugs or translates the theme
            shutil.rmtree(unused) if unused.is_dir() else unused.unlink()
        for page in Path(app.outdir).glob("*.html"):  # without scripts "auto" would stay, which has no colours
            text = page.read_text(encoding="utf-8")
            page.write_text(text.replace('data-theme="auto">', 'data-theme="light">', 1), encoding="utf-8")
        (Path(app.outdir) / ".nojekyll").touch()  # a static host that builds pages leaves these alone


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_config_value("FOLDERS", {}, "")
    app.add_transform(Places)
    app.add_transform(Sought)
    app.add_search_language(Search)
    app.add_post_transform(Links)
    app.add_post_transform(Letters)
    app.connect("build-finished", copy)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
