"""What leads from chapter to chapter: a cell after the title and one at the end, and links where the prose names a chapter.

All of it is made from the list of chapters and from their headings, so nobody writes it by hand, and making it again
changes nothing. `blank` makes a reader's own copy, from which every link leads where it led.
"""

import os
import re
from pathlib import Path
from typing import Any

from minitransformer import files
from minitransformer.book.equations import notebooks

TAG = "navigation"
README = "../README.md#chapters"
SECTION = re.compile(r"^## +(.+?) *$", re.MULTILINE)
MENTION = re.compile(r"\[([Cc]hapter (\d\d))\]\([^)\s]+\.ipynb\)|(?<![\[`])\b([Cc]hapter (\d\d))\b")
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")  # to a file; not to the net, nor to a heading of the same page


def navigate(notebook: Any, path: Path, chapters: list[Path]) -> None:
    """Bring the two cells and the mentions of one chapter up to date. A notebook that begins with no title has none."""
    import nbformat

    notebook.cells = [cell for cell in notebook.cells if TAG not in cell.metadata.get("tags", [])]
    if not (notebook.cells and notebook.cells[0].source.startswith("# ")):
        return
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _linked(cell.source, path, chapters)
    marks = {"tags": [TAG]}
    ways = _ways(path, chapters)
    contents = "\n".join(f"- [{heading}]({anchor(heading)})" for heading in headings(notebook))
    top = f"{ways}\n\n{contents}".strip()
    notebook.cells.insert(1, nbformat.v4.new_markdown_cell(top, id="navigation-top", metadata=marks))
    notebook.cells.append(nbformat.v4.new_markdown_cell(ways, id="navigation-end", metadata=marks))


def headings(notebook: Any) -> list[str]:
    """The sections of a chapter."""
    return [found for cell in notebook.cells if cell.cell_type == "markdown" for found in SECTION.findall(cell.source)]


def anchor(heading: str) -> str:
    """Where a heading is, for JupyterLab and for GitHub: they put - for a space and leave other signs."""
    return "#" + heading.replace(" ", "-")


def _ways(path: Path, chapters: list[Path]) -> str:
    """Links to the chapter before, to the list of all, and to the chapter after."""
    here = chapters.index(path)
    ways = [f"[all chapters]({README})"]
    if here > 0:
        ways.insert(0, f"[← {_title(chapters[here - 1])}]({chapters[here - 1].name})")
    if here + 1 < len(chapters):
        ways.append(f"[{_title(chapters[here + 1])} →]({chapters[here + 1].name})")
    return " | ".join(ways)


def _title(path: Path) -> str:
    """The first heading of a chapter, with its number, or its file's name."""
    import nbformat

    first = nbformat.read(path, as_version=4).cells[:1]
    return first[0].source.partition("\n")[0].lstrip("# ") if first else path.stem


def _linked(text: str, path: Path, chapters: list[Path]) -> str:
    """The prose, in which "chapter 05" leads there; headings stay as they are."""
    numbered = {chapter.name[:2]: chapter.name for chapter in chapters if chapter != path}

    def link(found: re.Match[str]) -> str:
        words, number = found[1] or found[3], found[2] or found[4]
        return f"[{words}]({numbered[number]})" if number in numbered else words

    return "\n".join(line if line.startswith("#") else MENTION.sub(link, line) for line in text.split("\n"))


# ------------------------------------------------------------------------------------- a reader's own copy


def blank(root: Path, chosen: list[Path], folder: Path) -> list[Path]:
    """Write the chapters without outputs into a folder, with another one for the figures that they will draw.

    Links to other chapters stay within the folder if the chapters do, and all others lead to the book.

    raises   ValueError that names the files which are there already; then nothing is written
    """
    import nbformat

    if there := [str(folder / path.name) for path in chosen if (folder / path.name).exists()]:
        raise ValueError(f"{', '.join(there)}: there already, and not overwritten")
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    own = {path.name for path in chosen}
    for path in chosen:
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
            else:
                cell.source = LINK.sub(lambda found: _from(folder, root, found[1], own), cell.source)
        files.write(folder / path.name, nbformat.writes(notebook) + "\n")
    return [folder / path.name for path in chosen]


def _from(folder: Path, root: Path, link: str, own: set[str]) -> str:
    """A link of a chapter, as it reads in another folder."""
    if link in own:
        return link
    return Path(os.path.relpath((root / "notebooks" / link).resolve(), folder.resolve())).as_posix()


def renewed(root: Path, path: Path) -> Any:
    """A chapter of the repository with its navigation up to date, whatever is on the disk."""
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    navigate(notebook, path, notebooks(root))
    return notebook
