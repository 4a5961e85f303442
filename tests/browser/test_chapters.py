"""Every chapter as a reader sees it who has started JupyterLab at the top of the repository, and trusts nothing yet.

It is opened in a browser without a window: `make browser`. `pytest` alone leaves this folder out.
"""

import re
import shutil
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import nbformat
import pytest

from tests.browser.devtools import program
from tests.browser.lab import lab

if program() is None:
    pytest.skip("there is no browser; on Debian and Ubuntu: apt install chromium", allow_module_level=True)

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="  # one, as PNG
)
DRAWING = "<svg xmlns='http://www.w3.org/2000/svg' width='20' height='20'/>"
LONG = "+".join(["word"] * 30)


class Seen(NamedTuple):
    """A notebook, and what its cells showed in a window of 1,280 pixels and in one of 1,000."""

    notebook: nbformat.NotebookNode
    wide: list
    narrow: list


@pytest.fixture(scope="module")
def copy(root, tmp_path_factory):
    """A copy of the repository: JupyterLab writes beside what it opens."""
    copy = tmp_path_factory.mktemp("copy") / "repository"
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".*", "_site", "__pycache__"))
    nbformat.write(trial(), copy / "notebooks" / "trial.ipynb")
    return copy


@pytest.fixture(scope="module")
def jupyterlab(copy, tmp_path_factory):
    with lab(copy, tmp_path_factory.mktemp("home")) as page:
        yield page


@pytest.fixture(scope="module")
def everything(copy, jupyterlab):
    """Path and sight of every chapter, and of the notebook that has everything wrong; each is saved, too."""
    seen = {}
    for path in sorted((copy / "notebooks").glob("*.ipynb")):
        notebook, name = nbformat.read(path, as_version=4), path.relative_to(copy).as_posix()
        jupyterlab.open(name, kernel=not seen)  # one is enough, to see that what it notes is not saved
        seen[name] = Seen(notebook, jupyterlab.look(1280), jupyterlab.look(1000))
        jupyterlab.save()
        jupyterlab.close()
    return seen


@pytest.fixture(scope="module")
def chapters(everything):
    return {name: seen for name, seen in everything.items() if name != "notebooks/trial.ipynb"}


# ------------------------------------------------------------------------------------------------- what is wrong


def numbered(name, cells):
    return [(f"{name}, cell {number}", cell) for number, cell in enumerate(cells, start=1)]


def figures(cell):
    """How many pictures a cell of a notebook file holds."""
    if cell.cell_type == "markdown":
        return cell.source.count("![")
    return sum(any(kind.startswith("image/") for kind in output.get("data", {})) for output in cell.get("outputs", []))


def missing_figures(name, seen):
    for (place, cell), shown in zip(numbered(name, seen.notebook.cells), seen.wide, strict=True):
        if len(shown["figures"]) != figures(cell):
            yield f"{place}: {len(shown['figures'])} of {figures(cell)} figures drawn"


def wide_figures(name, seen):
    for width, cells in ((1280, seen.wide), (1000, seen.narrow)):
        for place, shown in numbered(name, cells):
            for over in shown["figures"]:
                if over > 0:
                    yield f"{place}: a figure is {over} px wider than its column in a window of {width} px"


def wide_formulas(name, seen):
    for place, shown in numbered(name, seen.wide):
        for formula, over in shown["formulas"]:
            if over > 0:
                yield f"{place}: {over} px wider than its column: {formula}"


def wrong_formulas(name, seen):
    for place, shown in numbered(name, seen.wide):
        yield from (f"{place}: {error}" for error in shown["errors"])


def dead_links(name, everything, copy):
    """Links to files, notebooks and headings that are not there; nobody asks the network."""
    for place, shown in numbered(name, everything[name].wide):
        for link in map(urlsplit, shown["links"]):
            path, anchor = unquote(link.path).removeprefix("/files/") or name, unquote(link.fragment)
            if link.hostname not in (None, "127.0.0.1"):
                continue
            if not (copy / path).exists():
                yield f"{place}: {path}"
            elif anchor and not has_heading(path, anchor, everything, copy):
                yield f"{place}: {path}#{anchor}"


def has_heading(path, anchor, everything, copy):
    """Whether a notebook that was seen has a place of this name, or a text a heading."""
    if path in everything:
        return any(anchor in cell["anchors"] for cell in everything[path].wide)
    words = re.escape(anchor.replace("-", " "))
    text = (copy / path).read_text(encoding="utf-8")
    return re.search(rf"^#+ {words}$", text, re.IGNORECASE | re.MULTILINE) is not None


# --------------------------------------------------------------------------------------------------- the chapters


def none_of(problems):
    if problems := list(problems):
        pytest.fail("\n".join(problems))


def test_every_figure_is_drawn(chapters):
    assert sum(figures(cell) for seen in chapters.values() for cell in seen.notebook.cells) > 50
    none_of(problem for name, seen in chapters.items() for problem in missing_figures(name, seen))


def test_no_figure_is_wider_than_its_column(chapters):
    none_of(problem for name, seen in chapters.items() for problem in wide_figures(name, seen))


def test_no_formula_is_wider_than_its_column(chapters):
    none_of(problem for name, seen in chapters.items() for problem in wide_formulas(name, seen))


def test_every_formula_is_set(chapters):
    assert sum(len(cell["formulas"]) for seen in chapters.values() for cell in seen.wide) > 1000
    none_of(problem for name, seen in chapters.items() for problem in wrong_formulas(name, seen))


def test_no_link_is_dead(chapters, everything, copy):
    none_of(problem for name in chapters for problem in dead_links(name, everything, copy))


def test_opening_and_saving_a_chapter_leaves_its_file_as_it_was(root, copy, chapters):
    none_of(name for name in chapters if (copy / name).read_bytes() != (root / name).read_bytes())


# --------------------------------------------------------------------------------------- and they would be noticed


def trial():
    """A notebook in which everything goes wrong, and some things don't."""
    markdown, code, output = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell, nbformat.v4.new_output

    def shows(data, **metadata):
        return code(outputs=[output("display_data", data | {"text/plain": "a figure"}, metadata=metadata)])

    chapter = "01_from_gru_to_attention.ipynb"
    return nbformat.v4.new_notebook(
        cells=[
            markdown(f"# A heading\n[1]({chapter}) [2](#A-heading) [3](../tests/conftest.py) [4](https://example.com)"),
            markdown("[text](../README.md#two-commands) [gone](../README.md#three-commands)"),
            markdown(f"[5](gone.ipynb) [6](#gone) [7]({chapter}#gone) [8](../tests/gone.py)"),
            markdown("![drawn](../figures/fig_pullback.svg) ![gone](../figures/gone.svg)"),
            markdown(r"$x$ and $$\frac{a}{b} \tag{1}$$ and `$`"),
            markdown(f"${LONG}$ and $$ {LONG} \\tag{{2}}$$"),
            markdown(r"$\nobody{x}$, $x^2^2$ and $$\frac{a}{b \tag{3}$$"),
            shows({"image/png": PIXEL, "image/svg+xml": DRAWING}),
            shows({"image/svg+xml": DRAWING}),
            shows({"image/png": PIXEL}, **{"image/png": {"width": 800, "height": 9, "unconfined": True}}),
            shows({"image/png": PIXEL}, **{"image/png": {"width": 900, "height": 9, "unconfined": True}}),
        ]
    )


def test_what_is_wrong_would_be_noticed(everything, copy):
    name = "notebooks/trial.ipynb"
    seen = everything[name]

    def cells(problems):
        return [int(problem.partition("cell ")[2].partition(":")[0]) for problem in problems]

    assert cells(missing_figures(name, seen)) == [4, 9]
    assert cells(wide_figures(name, seen)) == [11, 10, 11]
    assert cells(wide_formulas(name, seen)) == [6, 6]
    assert cells(wrong_formulas(name, seen)) == [7, 7, 7]
    assert [problem.partition(": ")[2] for problem in dead_links(name, everything, copy)] == [
        "README.md#three-commands",
        "notebooks/gone.ipynb",
        "notebooks/trial.ipynb#gone",
        "notebooks/01_from_gru_to_attention.ipynb#gone",
        "tests/gone.py",
    ]
    assert "kernelspec" not in seen.notebook.metadata
    assert "kernelspec" in nbformat.read(copy / name, as_version=4).metadata  # it was saved
