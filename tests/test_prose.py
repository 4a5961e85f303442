"""Numbers that a chapter's text quotes.

Those of two decimals and more are measurements: they must stand in an output above the text, in the same section, as it is
now. Any other from 13 on must stand somewhere in the chapter: in an output, in a cell, in a formula or a table, or in the
experiment or figure that a cell uses. What is smaller counts something ("two heads, 12 layers").
"""

import json
import re

import pytest

from minitransformer.book import errata
from minitransformer.training.defaults import TEXT

# Two decimals and more are measurements, as a rule. These are not: known before anything is run.
KNOWN = {
    "00": {"0.001"},  # a step, chosen
    "02": {"0.016"},  # 1/64
    "03": {"1.17"},  # billion pairs of sentences, from the model card
    "04": {"0.01", "0.841", "0.010", "0.02"},  # sin 1, sin 0.01; a fresh embedding
    "05": {"0.06", "0.01"},  # of a random matrix; KERPLE's bound
    "06": {"0.02"},  # a fresh embedding
    "07": {"91.83", "91.85", "92.18"},  # of the paper's table
    "17": {"1.442695"},  # log₂ e
    "19": {"0.99", "0.022", "0.00099"},  # in an exercise
}
ELSEWHERE = {  # known without the chapter's cells
    "00": {"1280"},  # 4 · (64 + 256) bytes
    "03": {"2,400", "8601"},  # what `minitransformer train` does; a standard
    "04": {"49", "52", "409"},  # in the test that the box links to; four fifths of 512
    "05": {"700"},  # an example
    "08": {"36", "1,000,000"},  # 6 · 6, and a published model; an example
    "10": {"1,000,000", "3.8", "60"},  # an example; of a paper's table; the package's bound
    "11": {"36"},  # degrees, π/5
    "13": {"27", "1,437"},  # 27/5, by hand; 1,797 − 360
    "14": {"5,000", "23"},  # by hand
    "15": {"1,797"},  # digits that come with the book
    "17": {"76", "79", "81", "84"},  # 64 + 12 and 64 + 15 cycles; 64/79, 64/76
    "18": {"10,000"},  # an example
    "19": {"27"},  # errata of Borealis II: see below
    "20": {"2,000"},  # tokens of a benchmark's expressions
}
EXERCISES = re.compile(r"^#{2,3} (?:Exercises|Four things to try|To try)\b.*", re.MULTILINE | re.DOTALL)
NOT_PROSE = re.compile(
    r"\$\$.*?\$\$|\$[^$\n]+\$|`[^`\n]+`|\]\([^)]*\)|^\|.*?$|^#.*?$|https?:\S+"  # formulas, code, links, tables, headings
    r"|[Cc]hapters? \[?\d\d(?:\]?,? (?:and|to) \[?\d\d)?|\[\d\d\]|\(\d+(?:\.\d+)?\)|\bE\d+"  # chapters, displays, errata
    r"|^> \*\*Errat.*?$|[Ff]igures? \d+|[Pp]age \d+|\b(?:1[89]|20)\d\d\b|^\d+\. ",  # of a source; years; items
    re.DOTALL | re.MULTILINE,
)
COUNT = re.compile(r"(?<![\w.,−-])(?P<whole>\d{1,3}(?:,\d{3})+|\d+)(?P<part>\.\d+)?(?![\w]|[.,]\d)")
NUMBER = r"(?<![\w.])\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w%]|\.\d)"


def chapters(root):
    return sorted((root / "notebooks").glob("*.ipynb"))


def printed(cell):
    return " ".join(
        "".join(output.get("text", "")) + "".join(output.get("data", {}).get("text/plain", ""))
        for output in cell.get("outputs", [])
    )


def quoted(source):
    """Numbers of two decimals or more in the words of a cell: not in formulas, code or addresses."""
    words = re.sub(r"\$\$.*?\$\$|\$.*?\$|`[^`]*`|\]\([^)]*\)|\(\d+\.\d+\)", " ", source, flags=re.DOTALL)
    return re.findall(r"(?<![\w.])\d+\.\d{2,}(?!\d|\.\d)", words)


def missing(cells, known=frozenset()):
    """(cell, number) for each number in the text that rounds no number printed above it in its section."""
    seen, lost = set(), []
    for place, cell in enumerate(cells):
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            seen |= {float(x) for x in re.findall(NUMBER, printed(cell))}
            continue
        for part, text in enumerate(re.split(r"^## ", source, flags=re.MULTILINE)):
            seen = set() if part else seen  # a heading: another section
            for number in quoted(text):
                places = len(number.split(".")[1])
                if number not in known and not any(f"{x:.{places}f}" == number for x in seen):
                    lost.append((place, number))
    return lost


def test_numbers_in_the_text_stand_in_an_output_above(root):
    assert chapters(root)
    for chapter in (path for path in chapters(root) if path.name < "98"):
        cells = json.loads(chapter.read_text(encoding="utf-8"))["cells"]
        lost = missing(cells, KNOWN.get(chapter.name[:2], frozenset()))
        assert not lost, f"{chapter.name}: (cell, number) {lost}"


@pytest.mark.parametrize(
    ("text", "number", "found"),
    [
        ("loss: 1.7324 bits", "It ends at 1.73 bits.", True),
        ("loss: 1.7324 bits", "It ends at 1.74 bits.", False),
        ("loss: 1.7324 bits", "A cosine of $0.11$, `0.12` and [here](0.13)", True),
        ("x = 9.7e-01", "between 0.97 and 1.00", False),
    ],
)
def test_the_search_would_notice(text, number, found):
    cells = [
        {"cell_type": "code", "source": "", "outputs": [{"text": text}]},
        {"cell_type": "markdown", "source": number},
    ]
    assert (missing(cells) == []) is found


# ------------------------------------------------------------------------------------- any other number


def modules(root, code):
    """The sources of the experiments and figures that cells name: what was trained, and for how long, stands there."""
    names = set(re.findall(r"\b[a-z_]+\b", code))
    for folder in ("experiments", "figures"):
        for path in (root / "minitransformer" / folder).glob("*.py"):
            if path.stem in names - {"run", "record", "style"}:
                yield path.read_text(encoding="utf-8")


def stands(root, cells):
    """Every number of a chapter's cells, outputs, formulas and tables."""
    texts = []
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            texts += [source, printed(cell), *modules(root, source)]
        else:
            texts += re.findall(r"\$\$.*?\$\$|\$[^$\n]+\$|`[^`\n]+`|^\|.*$", source, re.DOTALL | re.MULTILINE)
    text = re.sub(r"(?<=\d)(?:_|,|\{,\})(?=\d{3}(?!\d))", "", " ".join(texts))
    return {float(x) for x in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", text)}


def unfounded(root, cells, known=frozenset()):
    """(cell, number) for each number of the words that stands nowhere."""
    there, lost = stands(root, cells), []
    for place, cell in enumerate(cells):
        if cell["cell_type"] == "code" or cell.get("id", "").startswith("ex-"):
            continue
        source = "".join(cell["source"])
        words = NOT_PROSE.sub(" ", EXERCISES.sub("", source))
        for found in COUNT.finditer(words):
            number, places = float(found[0].replace(",", "")), len(found["part"] or ".") - 1
            after = words[found.end() : found.end() + 14]
            factor = (
                100
                if re.match(r"(?: to \d+)? ?(?:%|per ?cent)", after)
                else 1e-6
                if after.startswith(" million")
                else 1
            )
            if found[0] in known or (not places and number <= 12):
                continue
            until = words[: found.start()].endswith("to ") and {number - 1, number + 1} & there  # of 512: "0 to 511"
            if not until and not any(round(x * f, places) == number for x in there for f in (1, factor)):
                lost.append((place, found[0]))
        if EXERCISES.search(source):
            break
    return lost


def test_every_number_of_the_text_stands_somewhere_in_the_chapter(root):
    for chapter in chapters(root):
        cells = json.loads(chapter.read_text(encoding="utf-8"))["cells"]
        cells = [cell for cell in cells if "navigation" not in cell["metadata"].get("tags", [])]
        known = KNOWN.get(chapter.name[:2], set()) | ELSEWHERE.get(chapter.name[:2], set())
        if chapter.name < "9":
            lost = unfounded(root, cells, known)
            assert not lost, f"{chapter.name}: (cell, number) {lost}"


def test_the_errata_of_a_source_are_as_many_as_chapter_19_says(root):
    text = json.loads((root / "notebooks" / "19_errata.ipynb").read_text(encoding="utf-8"))["cells"]
    (said,) = re.findall(r"Of its (\d+) errata", "".join("".join(cell["source"]) for cell in text))
    assert int(said) == sum(row.source == "Borealis II" for row in errata.load())


def test_a_training_from_the_command_line_is_as_long_as_chapter_03_says():
    assert (TEXT["steps"], TEXT["width"], TEXT["depth"]) == (2400, 128, 4)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("In 400 steps", True),
        ("In 401 steps", False),
        ("It is 83 %, of two heads and 12 layers.", True),
        ("It is 84 %.", False),
        ("They are positions 0 to 399, of 22.6 million.", True),
        ("[Chapter 17](17_x.ipynb), (17.3), E61, page 99 and 2019, $n = 99$, but 3,000 rows", True),
        ("and 3,001 rows", False),
    ],
)
def test_the_second_search_would_notice(root, text, found):
    cells = [
        {"cell_type": "code", "source": "steps = 400", "outputs": [{"text": "0.8312  22,565,376  3,000"}]},
        {"cell_type": "markdown", "source": text},
    ]
    assert (unfounded(root, cells) == []) is found
