"""Numbers that a chapter's text quotes: they must stand in an output above it, in the same section, as it is now."""

import json
import re

import pytest

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
    for chapter in chapters(root):
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
