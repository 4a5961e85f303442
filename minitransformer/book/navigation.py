"""What leads from chapter to chapter: a cell after the title, one at the end, and links where the prose names something.

All of it is made from the list of chapters, from their text and from `chapters.toml`, so nobody writes it by hand, and
making it again changes nothing. `blank` makes a reader's own copy, from which every link leads where it led.
"""

import math
import os
import re
from pathlib import Path
from typing import Any

from minitransformer import files
from minitransformer.book import appendix
from minitransformer.book.cross_references import anchor, linked
from minitransformer.book.equations import notebooks

TAG = "navigation"
README = "../README.md#chapters"
OPTIONAL = re.compile(r"^★", re.MULTILINE)  # begins the first line of a section that nothing later needs
EXERCISES = re.compile(r"^#{2,3} (?:Exercises|Four things to try|To try)\b.*", re.MULTILINE | re.DOTALL)
WORDS, CELL = 200, 0.5  # words that one reads in a minute; minutes for a cell of code and what it shows
SOLUTION = re.compile(r"<details>\s*<summary>(Solution of [\d.]+)</summary>.*?</details>", re.DOTALL)
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")  # to a file; not to the net, nor to a heading of the same page


def navigate(notebook: Any, path: Path, chapters: list[Path]) -> None:
    """Bring the two cells and the links of one chapter up to date, and what is made from all others.

    A notebook whose first cell is no title is left as it is, without navigation.
    """
    import nbformat

    notebook.cells = [cell for cell in notebook.cells if TAG not in cell.metadata.get("tags", [])]
    if not (notebook.cells and notebook.cells[0].source.startswith("# ")):
        return
    named: set[str] = set()
    for cell in notebook.cells:
        if cell.get("id") in MADE:
            cell.source = MADE[cell.id](chapters)
        elif cell.cell_type == "markdown":
            cell.source = linked(cell.source, path, chapters, named)
    marks = {"tags": [TAG]}
    ways = _ways(path, chapters)
    contents = "\n".join(
        f"- [{heading}]({anchor(heading)}){' ★' if optional else ''}" for heading, optional in sections(notebook)
    )
    top = "\n\n".join(part for part in (ways, _before(notebook, path, chapters), contents) if part)
    notebook.cells.insert(1, nbformat.v4.new_markdown_cell(top, id="navigation-top", metadata=marks))
    notebook.cells.append(nbformat.v4.new_markdown_cell(ways, id="navigation-end", metadata=marks))


def sections(notebook: Any) -> list[tuple[str, bool]]:
    """The sections of a chapter, and whether one may leave them out: those that begin with a star."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            _, *parts = appendix.HEADING.split(cell.source)
            for heading, text in zip(parts[::2], parts[1::2], strict=True):
                found.append((heading, bool(OPTIONAL.match(text.lstrip()))))
    return found


def minutes(notebook: Any) -> float:
    """How long a chapter takes to read, its exercises left out: by its words, and by its cells of code."""
    words = cells = 0
    for cell in notebook.cells:
        if cell.get("id", "").startswith("ex-") or TAG in cell.metadata.get("tags", []):
            continue
        if cell.cell_type == "code":
            cells += 1
            continue
        words += len(EXERCISES.sub("", cell.source).split())
        if EXERCISES.search(cell.source):
            break
    return words / WORDS + CELL * cells


def _rounded(notebook: Any) -> int:
    """The minutes of a chapter, to the next five."""
    return 5 * math.ceil(minutes(notebook) / 5)


def map_of_chapters(chapters: list[Path]) -> str:
    """How long every chapter takes to read, what it builds on, and which ones build on it."""
    import nbformat

    rows = {path: row for path in chapters if (row := appendix.table().get(path.name[:2]))}
    links = {path.name[:2]: f"[{path.name[:2]}]({path.name})" for path in rows}
    lines = ["| chapter | minutes | builds on | and on it build |", "|---|---|---|---|"]
    for path, row in rows.items():
        number, notebook = path.name[:2], nbformat.read(path, as_version=4)
        title, _, _ = notebook.cells[0].source.lstrip("# ").partition("\n")
        before = ", ".join(links[other] for other in row["builds_on"] if other in links)
        after = ", ".join(links[other.name[:2]] for other, its in rows.items() if number in its["builds_on"])
        lines.append(f"| [{title}]({path.name}) | {_rounded(notebook)} | {before or '–'} | {after or '–'} |")
    return "\n".join(lines)


MADE = appendix.MADE | {"map-of-chapters": map_of_chapters}  # by the id of the cell that holds it


def _before(notebook: Any, path: Path, chapters: list[Path]) -> str:
    """How long the chapter takes, and what it assumes."""
    time = f"**{_rounded(notebook)} minutes to read**, exercises not counted."
    row = appendix.table().get(path.name[:2])
    if row is None:
        return ""
    named = {chapter.name[:2]: chapter.name for chapter in chapters}
    links = [f"[{number}]({named[number]})" for number in row["builds_on"] if number in named]
    before = f" It builds on chapter{'s' if len(links) > 1 else ''} {_and(links)}." if links else ""
    beyond = f" Mathematics, besides linear algebra and the chain rule: {row['mathematics']}."
    stars = " Sections with a ★ can be left out: nothing later needs them."
    starred = any(optional for _, optional in sections(notebook))
    return time + before + (beyond if row["mathematics"] else "") + (stars if starred else "")


def _and(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


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


# ------------------------------------------------------------------------------------- a reader's own copy


def blank(root: Path, chosen: list[Path], folder: Path) -> list[Path]:
    """Write the chapters without outputs into a folder, with another one for the figures that they will draw.

    In the place of a solution stands a link to the book, which has it. Links to other chapters stay within the folder if the
    chapters do, and all others lead to the book.

    raises   ValueError for a chapter's number in place of a folder, or with files that are there already, two of which are
             named; then nothing is written
    """
    import nbformat

    if (number := str(folder).zfill(2)) in {path.name[:2] for path in notebooks(root)}:
        raise ValueError(f"--blank {folder}: that is a chapter, and not a folder: write --blank mine {number}")
    if there := [str(folder / path.name) for path in chosen if (folder / path.name).exists()]:
        more = f" and {len(there) - 2} more" if len(there) > 2 else ""
        raise ValueError(f"{', '.join(there[:2])}{more}: there already, and not overwritten; choose another folder")
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    own = {path.name for path in chosen}
    for path in chosen:
        solved = f"{_from(folder, root, path.name, set())}#Exercises"
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
            else:
                cell.source = LINK.sub(lambda found: _from(folder, root, found[1], own), cell.source)
                cell.source = SOLUTION.sub(rf"[\1]({solved})", cell.source)
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
