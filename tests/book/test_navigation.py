"""From every chapter one gets to the next, to its sections, to tests and back; also from a copy of one's own."""

import json
import re
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
import pytest

from minitransformer import cli
from minitransformer.attention import ATTENTIONS
from minitransformer.book import appendix, book, navigation
from minitransformer.book.cross_references import anchor, displays, prose
from minitransformer.book.equations import notebooks
from minitransformer.positions import AT_EMBEDDING, IN_ATTENTION

LINKED = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
TITLES = {"00_first": "# 00 · First", "01_second": "# 01 · Second", "02_third": "# 02 · Third"}
PROSE = """\
## Why ask?

Chapter 00 has begun, chapter 01 is this one, chapter 02 follows and chapter 03 is not written.
See [chapter 00](00_old_name.ipynb), [a test](../tests/errata/test_aalto.py) and [the net](https://example.org).
Chapters 00, 01 and 02 are three. From (0.1), (1.1) and [(2.1)](gone.ipynb#gone), not `(1.1)`, $(1.1)$ or (3.1).
By Dao et al. (2022), then Dao et al. (2022) again, (Ke, He and Liu 2021), and Shaw et al. (2018), whom nobody lists.
Dao et al. 2023a is not (Dao et al. 2023b).

$$1 = 1 \\tag{%d.1}$$

### How? As in chapter 00

## Who cares?

★ Nobody."""
SOURCES = """\
# Sources

## Papers

### D

- **Dao et al. (2022), FlashAttention.** Tri Dao: *FlashAttention*. NeurIPS 2022.
- **Dao et al. (2023a), One.** Tri Dao: *One*. ICLR 2023.
- **Dao et al. (2023b), Two.** Tri Dao: *Two*. ICLR 2023.

### K

- **Ke et al. (2021), TUPE.** Guolin Ke: *TUPE*. ICLR 2021."""


@pytest.fixture
def made(tmp_path):
    """A repository of three chapters."""
    for part in ("notebooks", "minitransformer", "tests"):
        (tmp_path / part).mkdir()
    sources = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(SOURCES, id="sources")])
    for k, (name, title) in enumerate(TITLES.items()):
        prose = nbformat.v4.new_markdown_cell(PROSE % k, id="prose")
        cells = [nbformat.v4.new_markdown_cell(title, id="title"), prose]
        output = nbformat.v4.new_output("stream", text="1\n")
        cells.append(nbformat.v4.new_code_cell("print(1)", id="code", outputs=[output], execution_count=1))
        notebook = nbformat.v4.new_notebook(cells=cells)
        path = tmp_path / "notebooks" / f"{name}.ipynb"
        path.write_text(book.as_text(notebook), encoding="utf-8")
    (tmp_path / "notebooks" / "99_sources.ipynb").write_text(book.as_text(sources), encoding="utf-8")
    return tmp_path


def links(notebook):
    return [link for cell in notebook.cells if cell.cell_type == "markdown" for link in LINKED.findall(cell.source)]


def test_a_chapter_leads_to_its_neighbours_and_its_sections(made):
    notebook = navigation.renewed(made, notebooks(made)[1])
    ways = "[← 00 · First](00_first.ipynb) | [all chapters](../README.md#chapters) | [02 · Third →](02_third.ipynb)"
    assert [cell.id for cell in notebook.cells] == ["title", "navigation-top", "prose", "code", "navigation-end"]
    time = "**5 minutes to read**, exercises not counted."
    before = "It builds on chapter [00](00_first.ipynb)."
    assert notebook.cells[1].source.startswith(f"{ways}\n\n{time} {before}")
    assert notebook.cells[1].source.endswith("\n\n- [Why ask?](#Why-ask?)\n- [Who cares?](#Who-cares?) ★")
    assert notebook.cells[-1].source == ways


def test_the_first_and_the_last_have_one_neighbour(made):
    first, *_, last = (navigation.renewed(made, path).cells[-1].source for path in notebooks(made))
    assert first == "[all chapters](../README.md#chapters) | [01 · Second →](01_second.ipynb)"
    assert last == "[← 02 · Third](02_third.ipynb) | [all chapters](../README.md#chapters)"


def test_a_chapter_that_is_named_is_a_link(made):
    prose = navigation.renewed(made, notebooks(made)[1]).cells[2].source
    assert "[Chapter 00](00_first.ipynb) has begun, chapter 01 is this one, [chapter 02](02_third.ipynb) f" in prose
    assert "and chapter 03 is not written" in prose
    assert "See [chapter 00](00_first.ipynb), [a test](../tests/errata/test_aalto.py)" in prose
    assert "### How? As in chapter 00\n" in prose
    assert "Chapters [00](00_first.ipynb), 01 and [02](02_third.ipynb) are three" in prose


def test_a_display_that_is_named_leads_to_its_section(made):
    prose = navigation.renewed(made, notebooks(made)[1]).cells[2].source
    assert (
        "From (0.1), [(1.1)](#Why-ask?) and [(2.1)](02_third.ipynb#Why-ask?), not `(1.1)`, $(1.1)$ or (3.1)." in prose
    )
    first = navigation.renewed(made, notebooks(made)[0]).cells[2].source
    assert "From [(0.1)](#Why-ask?), " in first  # elsewhere it is a number between 0 and 1


def test_a_paper_leads_to_its_letter_where_it_is_first_named(made):
    prose = navigation.renewed(made, notebooks(made)[1]).cells[2].source
    assert "By [Dao et al. (2022)](99_sources.ipynb#D), then Dao et al. (2022) again, " in prose
    assert "([Ke, He and Liu 2021](99_sources.ipynb#K)), and Shaw et al. (2018), whom" in prose
    assert "[Dao et al. 2023a](99_sources.ipynb#D) is not ([Dao et al. 2023b](99_sources.ipynb#D))." in prose


def test_minutes_are_those_of_words_and_cells(made):
    notebook = nbformat.read(notebooks(made)[1], as_version=4)
    words = len(f"{TITLES['01_second']}\n{PROSE % 1}".split())
    assert navigation.minutes(notebook) == words / 200 + 0.5
    notebook.cells.append(nbformat.v4.new_code_cell("answer = ...", id="ex-2-1"))  # stands in a section before
    assert navigation.minutes(notebook) == words / 200 + 0.5
    exercise = nbformat.v4.new_markdown_cell("## Exercises\n\nThese words are not counted.", id="more")
    notebook.cells += [exercise, nbformat.v4.new_code_cell("2", id="two")]
    assert navigation.minutes(notebook) == words / 200 + 0.5


def test_a_chapter_takes_an_hour_at_most_and_says_what_it_builds_on(root):
    table = appendix.table()
    for path in notebooks(root):
        assert navigation.minutes(nbformat.read(path, as_version=4)) <= 60, path.stem
        if path.name < "90":
            row = table[path.name[:2]]  # KeyError: the chapter lacks a row in chapters.toml
            assert all(before < path.name[:2] for before in row["builds_on"])
    fields = {"builds_on", "mathematics", "attentions", "positions", "terms"}
    assert all({"builds_on", "mathematics"} <= set(row) <= fields for row in table.values())


def test_a_chapter_uses_equations_of_those_it_builds_on(root):
    """Directly or by way of another; chapter 19 collects slips from all of them."""
    table = appendix.table()

    def behind(number):
        return {number}.union(*map(behind, table[number]["builds_on"]))

    for number in table.keys() - {"19"}:
        (path,) = (root / "notebooks").glob(f"{number}_*.ipynb")
        used = {tag.partition(".")[0].zfill(2) for tag in re.findall(r"\[\((\d+\.\d+)\)\]\(", prose(path))}
        assert used <= behind(number), (number, used - behind(number))


def test_the_map_of_chapters_has_what_each_says_of_itself_and_both_ends_of_every_link(root):
    lines = navigation.map_of_chapters(notebooks(root)).splitlines()[2:]
    rows = {line[3:5]: [re.findall(r"\[(\d\d)\]", cell) for cell in line.split("|")[3:5]] for line in lines}
    assert {number: before for number, (before, _) in rows.items()} == {
        number: row["builds_on"] for number, row in appendix.table().items()
    }
    assert all(after == [other for other in rows if number in rows[other][0]] for number, (_, after) in rows.items())
    for line in lines:
        path = root / "notebooks" / re.search(r"\((\S+)\)", line)[1]
        (says,) = re.findall(r"\*\*(\d+) minutes to read\*\*", prose(path))
        assert f"| {says} |" in line


def test_to_make_it_again_changes_nothing(made):
    path = notebooks(made)[1]
    once = book.as_text(navigation.renewed(made, path))
    path.write_text(once, encoding="utf-8")
    assert book.as_text(navigation.renewed(made, path)) == once


def test_a_notebook_without_a_title_is_left_alone(made):
    path = made / "notebooks" / "03_sketch.ipynb"
    path.write_text(book.as_text(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", id="one")])))
    assert [cell.id for cell in navigation.renewed(made, path).cells] == ["one"]


def test_the_chapters_of_the_book_are_up_to_date(root):
    for path in notebooks(root):
        assert book.as_text(navigation.renewed(root, path)) == path.read_text(encoding="utf-8"), path.stem


def test_every_link_of_the_book_leads_somewhere(root):
    books = {path.resolve(): nbformat.read(path, as_version=4) for path in notebooks(root)}
    anchors = {path: {anchor(heading) for heading in headings(notebook)} for path, notebook in books.items()}
    for path, notebook in books.items():
        own = {anchor(heading) for heading, _ in navigation.sections(notebook)}
        assert all(map(str.isascii, own)), f"{path.stem}: JupyterLab can't follow a link with other letters"
        for link in links(notebook):
            if urlsplit(link).scheme:
                continue
            file, sign, part = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            assert target.exists(), (path.stem, link)
            if sign and target in anchors:
                assert f"#{part}" in anchors[target], (path.stem, link)


def headings(notebook):
    text = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return re.findall(r"^#{2,3} +(.+?) *$", text, re.MULTILINE)


def test_what_chapters_name_is_a_link(root):
    """Every mention of another chapter or of a display; headings and code are left alone."""
    for path in notebooks(root):
        tags = {f"({tag})" for chapter in notebooks(root) for tag in displays(chapter) if tag[:2] != "0."}
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "markdown" and "navigation" not in cell.metadata.get("tags", []):
                text = re.sub(r"```.*?```|\$\$.*?\$\$|\$[^$\n]+\$|`[^`\n]+`|^#.*?$", "", cell.source, flags=re.S | re.M)
                text = re.sub(r"\[[^\]]*\]\([^)\s]*\)", "", text)
                named = [n for n in re.findall(r"[Cc]hapter (\d\d)\b", text) if n != path.name[:2]]
                assert named == [], (path.stem, cell.id, named)
                assert [n for n in re.findall(r"\(\d+\.\d+\)", text) if n in tags] == [], (path.stem, cell.id)


# ------------------------------------------------------------------------------------- a reader's own copy


@pytest.mark.parametrize("folder", ["mine", "at/home", "../beside"])
def test_links_of_a_copy_lead_where_they_led(made, folder):
    navigation.blank(made, notebooks(made)[1:], made / folder)
    for path in (made / folder).glob("*.ipynb"):
        for link in links(nbformat.read(path, as_version=4)):
            if link.startswith(("#", "https:")):
                continue
            target = (path.parent / link.partition("#")[0]).resolve().relative_to(made.parent.resolve())
            name = target.name
            if name in ("01_second.ipynb", "02_third.ipynb", "99_sources.ipynb"):
                assert target.parent == path.parent.resolve().relative_to(made.parent.resolve())
            else:
                where = {".md": "", ".py": "tests/errata", ".ipynb": "notebooks"}[target.suffix]
                assert target.parent.as_posix() == f"{made.name}/{where}".rstrip("/")


def test_a_copy_holds_no_outputs_and_the_book_stays_as_it_is(made, monkeypatch, capsys):
    before = {path: path.read_bytes() for path in notebooks(made)}
    monkeypatch.chdir(made)
    assert cli.main(["book", "--blank", "mine", "01"]) == 0
    assert capsys.readouterr().out.strip() == "mine/01_second.ipynb"
    (cell,) = (cell for cell in nbformat.read("mine/01_second.ipynb", as_version=4).cells if cell.cell_type == "code")
    assert (cell.source, cell.outputs, cell.execution_count) == ("print(1)", [], None)
    assert {path: path.read_bytes() for path in notebooks(made)} == before


def test_a_copy_holds_no_solutions_and_links_to_them(root, tmp_path):
    (path,) = navigation.blank(root, notebooks(root)[2:3], tmp_path / "mine")
    text = path.read_text(encoding="utf-8")
    assert "mt.check_exercise(" in text
    assert "<details>" not in text
    assert "<summary>" not in text
    assert "q, *_ = np.linalg.lstsq" not in text  # of the solution of 2.5
    assert "[Solution of 2.5](" in text
    link = next(link for link in links(nbformat.read(path, as_version=4)) if "02_self" in link)
    assert (path.parent / link.partition("#")[0]).resolve() == notebooks(root)[2]


def test_what_a_reader_wrote_is_not_overwritten(made, monkeypatch, capsys):
    monkeypatch.chdir(made)
    (made / "mine").mkdir()
    own = made / "mine" / "01_second.ipynb"
    own.write_text("notes of my own")
    assert cli.main(["book", "--blank", "mine"]) == 1
    assert "mine/01_second.ipynb: there already, and not overwritten" in capsys.readouterr().err
    assert [path.name for path in (made / "mine").iterdir()] == ["01_second.ipynb"]
    assert own.read_text() == "notes of my own"


def test_a_copy_made_twice_names_two_of_its_files_and_what_to_do(made, monkeypatch, capsys):
    monkeypatch.chdir(made)
    assert cli.main(["book", "--blank", "mine"]) == 0
    written = capsys.readouterr().out.split()
    assert len(written) > 2
    assert cli.main(["book", "--blank", "mine"]) == 1
    named = f"{', '.join(written[:2])} and {len(written) - 2} more"
    why = "there already, and not overwritten; choose another folder"
    assert capsys.readouterr().err.strip() == f"minitransformer: {named}: {why}"
    for other in written[2:]:
        (made / other).unlink()
    assert cli.main(["book", "--blank", "mine"]) == 1
    assert capsys.readouterr().err.strip() == f"minitransformer: {', '.join(written[:2])}: {why}"


@pytest.mark.parametrize("number", ["01", "1"])
def test_a_chapter_in_place_of_the_folder_is_refused(number, made, monkeypatch, capsys):
    monkeypatch.chdir(made)
    before = sorted(made.iterdir())
    assert cli.main(["book", "--blank", number]) == 1
    why = "that is a chapter, and not a folder: write --blank mine 01"
    assert capsys.readouterr().err.strip() == f"minitransformer: --blank {number}: {why}"
    assert sorted(made.iterdir()) == before


def test_a_folder_without_a_name_is_refused_and_no_chapter_runs(made, monkeypatch, capsys):
    """As `--blank "$FOLDER"` gives it where there is no such variable."""
    monkeypatch.chdir(made)
    before = {path: path.read_bytes() for path in notebooks(made)}
    assert cli.main(["book", "--blank", "", "01"]) == 1
    assert capsys.readouterr().err.strip() == "minitransformer: --blank '': should be the folder that the copy goes to"
    assert {path: path.read_bytes() for path in notebooks(made)} == before


def test_jupyterlab_makes_the_cells_that_a_link_leads_to(root):
    """Its own choice is to make a cell when it comes into sight: until then a link to its heading leads nowhere."""
    settings = json.loads((root / "minitransformer/book/jupyterlab.json").read_text(encoding="utf-8"))
    plugin, values = next(iter(settings.items()))
    assert values == {"windowingMode": "none"}
    package, _, name = plugin.partition(":")
    schemas = Path(pytest.importorskip("jupyterlab.commands").get_app_dir()) / "schemas" / package
    known = json.loads((schemas / f"{name}.json").read_text(encoding="utf-8"))["properties"]["windowingMode"]
    assert "none" in known.get("enum", []) + [choice["const"] for choice in known.get("oneOf", [])]
    shared = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    assert "minitransformer/book/jupyterlab.json" in shared["wheel"]["shared-data"]


# ------------------------------------------------------------------------------------- the map and the glossary


def test_every_kind_of_attention_and_of_positions_has_its_chapter():
    """In chapters.toml, each once: the map says it to the reader."""
    rows = appendix.table().values()
    assert sorted(name for row in rows for name in row.get("attentions", ())) == sorted(ATTENTIONS)
    assert sorted(name for row in rows for name in row.get("positions", ())) == sorted({**AT_EMBEDDING, **IN_ATTENTION})


def test_the_map_has_a_line_for_each(root):
    made = appendix.map_of_attention(notebooks(root)), appendix.map_of_positions(notebooks(root))
    for text, names in zip(made, (ATTENTIONS, {**AT_EMBEDDING, **IN_ATTENTION}), strict=True):
        lines = text.splitlines()[2:]
        assert [re.match(r"\| `(.+?)` \|", line)[1] for line in lines] == list(names)
        for line in lines:
            assert all(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]), line
            assert "_" not in re.sub(r"`.*?`|\]\(.*?\)", "", line), "an index, which a table does not set"


def test_a_term_is_in_bold_in_its_chapter_and_explained_once(root):
    terms = [term for row in appendix.table().values() for term in row.get("terms", {})]
    assert len(terms) == len(set(terms)) > 80
    lines = appendix.glossary(notebooks(root)).splitlines()
    assert len(lines) == len(terms)
    names = [line.partition(".**")[0].lower() for line in lines]
    assert names == sorted(names), "as in a dictionary: Kernel, and then Kernel attention"


def test_a_term_that_its_chapter_lacks_is_named(made, monkeypatch):
    monkeypatch.setattr(appendix, "table", lambda: {"01": {"terms": {"no such thing": "Nothing."}}})
    with pytest.raises(ValueError, match=r"\*\*no such thing\*\* stands nowhere in 01_second.ipynb"):
        appendix.glossary(notebooks(made))


def test_a_term_is_in_bold_once_in_the_book(root):
    """But for words that mean another thing in another chapter, where that is said."""
    others = {("15", "offset"), ("15", "kernel")}
    chapters = [path for path in notebooks(root) if path.name < "90"]
    for number, row in appendix.table().items():
        for term in row.get("terms", {}):
            bold = re.compile(re.escape(f"**{term}**"), re.IGNORECASE)  # a term may begin a sentence
            words = {path.name[:2]: len(bold.findall(navigation.EXERCISES.sub("", prose(path)))) for path in chapters}
            found = {chapter: times for chapter, times in words.items() if times and (chapter, term) not in others}
            assert found == {number: 1}, term
