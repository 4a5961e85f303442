"""The page of sources: every paper that a chapter or the package names is in its bibliography, and no other."""

import json
import re
from collections import defaultdict

import pytest

from minitransformer.book import cross_references, equations

NAME = r"[^\W\d_a-z][\w’-]+"
YEAR = r"(?P<year>(?:19|20)\d\d[a-z]?)"
PAPER = re.compile(  # Shaw et al. (2018); (Dai et al. 2019); Ke, He and Liu (2021); Shazeer (2019)
    rf"(?P<first>{NAME})(?:(?: et al\.|(?:, {NAME})* and {NAME}),? \(?{YEAR}(?!\w)| \({YEAR.replace('year', 'alone')}\))"
)
ENTRY = re.compile(
    r"^- \*\*(?P<names>.+) \((?P<year>\d{4}[a-z]?)\)(?:, (?P<system>.+))?\.\*\* (?P<authors>.+?): \*.+\*\. .+\.$",
    re.MULTILINE,
)


def words(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def papers(text):
    """First author and year of each paper that a text names."""
    return {(found["first"], found["year"] or found["alone"]) for found in PAPER.finditer(text)}


@pytest.fixture(scope="module")
def page(root):
    return words(root / "notebooks" / "99_sources.ipynb")


@pytest.fixture(scope="module")
def entries(page):
    return list(ENTRY.finditer(page.partition("## Papers")[2]))


def test_the_bibliography_has_what_chapters_and_the_code_name_and_nothing_else(root, entries):
    chapters = [words(path) for path in equations.notebooks(root) if path.name < "98"]
    modules = [" ".join(path.read_text(encoding="utf-8").split()) for path in (root / "minitransformer").rglob("*.py")]
    text = "\n\n".join(chapters + modules)
    listed = {(entry["names"].split()[0], entry["year"]): entry["system"] for entry in entries}
    assert papers(text) - set(listed) == set(), "not in the bibliography"
    rest = {paper for paper, system in listed.items() if not (system and re.search(rf"\b{system}\b", text))}
    assert rest - papers(text) == set(), "named nowhere"


def test_every_line_of_the_bibliography_is_an_entry_in_order(page, entries):
    lines = [line for line in page.partition("## Papers")[2].splitlines() if line.startswith("-")]
    assert len(lines) == len(entries) > 20
    assert lines == sorted(lines)


def test_an_entry_is_called_after_its_authors(entries):
    for entry in entries:
        surnames = [author.split()[-1] for author in re.split(r", | and ", entry["authors"])]
        expected = f"{surnames[0]} et al." if len(surnames) > 2 else " and ".join(surnames)
        assert entry["names"] == expected


def test_papers_of_the_same_authors_and_year_have_letters_wherever_they_are_named(root, entries):
    letters = defaultdict(list)
    for entry in entries:
        letters[f"{entry['names']} {entry['year'][:4]}"].append(entry["year"][4:])
    several = {paper: found for paper, found in letters.items() if found != [""]}
    assert len(several) > 5
    for paper, found in several.items():
        assert len(found) > 1, paper
        assert found == list("abcdefgh"[: len(found)]), paper
    files = [path for part in ("minitransformer", "site", "tests") for path in (root / part).rglob("*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in [*files, *root.glob("*.md")]}
    for path, text in (texts | {path: words(path) for path in equations.notebooks(root)}).items():
        for found in re.finditer(cross_references.PAPER, " ".join(text.split())):
            cited = cross_references.entry(found["cited"] or found["paper"])
            paper, letter = re.fullmatch(r"(.+ \d{4})([a-z]?)", cited).groups()
            assert paper not in several or letter in several[paper], (path, found[0])


def test_links_lead_to_the_numbers_they_show(page):
    links = re.findall(r"\[`(.+?)`\]\(https://arxiv\.org/abs/(.+?)\)", page)
    assert len(links) > 10
    for shown, address in links:
        assert shown == address
        assert re.fullmatch(r"\d{4}\.\d{4,5}", shown)


def test_all_five_sources_are_introduced(page):
    for source in equations.SOURCES:
        assert f"\n**{source}.** " in page


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("by Shaw et al. (2018).", {("Shaw", "2018")}),
        ("T5 (Raffel et al. 2020) and (Dao et al., 2022)", {("Raffel", "2020"), ("Dao", "2022")}),
        ("Ke, He and Liu (2021), and Kingma and Ba (2015)", {("Ke", "2021"), ("Kingma", "2015")}),
        ("(Williams, Waterman and Patterson, 2009)", {("Williams", "2009")}),
        ("Witten (1991)", {("Witten", "1991")}),
        ("Shaw et al. 2018b", {("Shaw", "2018b")}),
        ("in April 2024, and Chapter 2019", set()),
    ],
)
def test_the_search_would_notice(text, found):
    assert papers(text) == found


def test_a_paper_is_a_link_to_its_letter_where_a_chapter_first_names_it(root, entries):
    listed = {(entry["names"].split()[0], entry["year"]) for entry in entries}
    for path in equations.notebooks(root):
        text = words(path)
        named = [found for found in PAPER.finditer(text) if (found["first"], found["year"] or found["alone"]) in listed]
        seen = set()
        for found in named if path.name < "98" else ():
            first, year = found["first"], found["year"] or found["alone"]
            if (first, year) not in seen:
                link = rf"\[{re.escape(first)}[^\]]*{year}\)?\]\(99_sources\.ipynb#{first[0]}\)"
                assert re.match(link, text[found.start() - 1 :]), (path.stem, found[0])
                seen.add((first, year))


def test_the_bibliography_has_a_heading_for_each_letter(page):
    papers = page.partition("## Papers")[2]
    letters = re.findall(r"^### (\w)$", papers, re.MULTILINE)
    assert letters == sorted(set(re.findall(r"^- \*\*(\w)", papers, re.MULTILINE)))
    for part in re.split(r"^### ", papers, flags=re.MULTILINE)[1:]:
        assert set(re.findall(r"^- \*\*(\w)", part, re.MULTILINE)) == {part[0]}
