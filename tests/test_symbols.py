"""The tables of symbols that end the chapters: a letter has one meaning in a chapter.

If that is not the meaning that chapter 00 gives it, its row says "elsewhere", and what it means there.
"""

import re

import pytest

from minitransformer.book import appendix
from minitransformer.book.cross_references import prose
from minitransformer.book.equations import notebooks

TABLE = re.compile(r"^\|[^\n]*\bsymbol\b[^\n]*\|\n\|[-| ]+\|\n((?:\|[^\n]*\n?)+)", re.MULTILINE)
NOTATION = re.compile(r"^\| \| (?:letter|ours), with shape \|[^\n]*\n\|[-| ]+\|\n((?:\|[^\n]*\n?)+)", re.MULTILINE)
SIGN = re.compile(  # a letter with its accents, its index and its prime: \bar K_c, W_{kr}, u′, ξ
    r"(?:\\(?:bar|hat|tilde|mathcal|mathbf)\s*)?\{?(?:\\[A-Za-z]+|[^\W\d_])\}?(?:[_^](?:\{[^}]*\}|\\?\w+|[+*]))*['′*]*(?!\w)"
)
GREEK = {  # a letter, and its name in a formula
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "varepsilon", "η": "eta", "θ": "theta", "κ": "kappa",
    "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "π": "pi", "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "varphi",
    "ω": "omega", "Δ": "Delta", "Π": "Pi", "Φ": "Phi", "Ω": "Omega", "ℓ": "ell",
}  # fmt: skip
NAMES = str.maketrans({letter: rf"\{name}" for letter, name in GREEK.items()})
LONG = re.compile(r"[^\W\d_]{3,}")
EMPTY = {"all", "and", "different", "each", "first", "for", "number", "one", "single", "that", "the", "what", "with"}


def cells_of(row):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip())[1:-1]]


def rows(table):
    """Symbols and meaning of each row."""
    return [(signs(row[0]), row[-1] + " " + row[-2]) for row in map(cells_of, table.strip().splitlines())]


def signs(cell):
    """The symbols that a cell introduces: of `$d = D/H$` the one before the =, of `$i$, $j$` both; no gradient dS."""
    plain = re.sub(
        r"\\\|", "", re.sub(r"\[\(.*?\)\]\([^)]*\)|\([^)]*\)|`[^`]*`|\\[rl]?Vert|\\lvert|\\langle.*", "", cell)
    )
    found = set()
    for part in re.split(r"[,;](?![^{}]*\})", plain.replace("$", "")):
        if sign := SIGN.match(part.partition("=")[0].strip()):
            found.add(re.sub(r"[\s{}]", "", sign[0].translate(NAMES)))
    return found


def of_the_book(text):
    """What chapter 00 says a letter means: the words of its row."""
    meant = {}
    for row in map(cells_of, NOTATION.search(text)[1].strip().splitlines()):
        for formula in re.findall(r"\$([^$]+)\$", row[1]):
            for sign in signs(re.sub(r"\\sqrt.*|1/", "", formula)):
                meant.setdefault(sign, set()).update(words(row[0]))
    for found, meaning in rows(TABLE.search(text)[1]):
        for sign in found:
            meant.setdefault(sign, set()).update(words(meaning))
    return meant


def words(text):
    long = (word.lower() for word in LONG.findall(text))
    return {word if word.endswith("ss") else word.rstrip("s") for word in long} - EMPTY


def clashes(table, meant):
    """(letter, why) for a letter in two rows, or with another meaning than in chapter 00 that the row does not admit."""
    found, seen = [], set()
    for letters, meaning in table:
        found += [(letter, "twice") for letter in sorted(letters & seen)]
        seen |= letters
        for letter in sorted(letters & set(meant)):
            if "elsewhere" not in meaning and not words(meaning) & meant[letter]:
                found.append((letter, "not as in chapter 00"))
    return found


def test_a_letter_means_one_thing_in_a_chapter(root):
    chapters = notebooks(root)
    meant = of_the_book(prose(chapters[0]))
    assert {"n", "m", "i", "j", "X", "Z", "D", "H", "d", "W_q", "Q", "S", "A", "Y", "L", r"\varepsilon"} <= set(meant)
    found = {}
    for path in chapters:
        if path.name < "9" and path.name[:2] != "19":
            tables = TABLE.findall(prose(path))
            assert len(tables) == 1, f"{path.name}: the chapter ends with one table of symbols"
            if lost := clashes(rows(tables[0]), meant):
                found[path.name] = lost
    assert found == {}


def test_the_letters_of_the_book_are_those_beside_the_five_texts(root):
    """Chapter 00 has the two columns that one needs, and leads to the appendix that has them all."""
    first, appendix = (next((root / "notebooks").glob(f"{number}_*.ipynb")) for number in ("00", "98"))
    short, whole = (
        list(map(cells_of, NOTATION.search(prose(path))[1].strip().splitlines())) for path in (first, appendix)
    )
    assert len(short) > 10
    assert short == [row[:2] for row in whole]
    assert all(len(row) == 2 + 5 for row in whole)
    assert f"({appendix.name}#Notation-of-the-five-texts)" in prose(first)


# ---------------------------------------------------------------------------------------- no letter without a row

INDEX = set("abcdefijklnostxyI")  # rows, channels, derivatives, functions; and the identity
LETTER = re.compile(r"\\\\|\\[A-Za-z]+|[A-Za-z]+")
WORDS = re.compile(r"\\(?:text|operatorname|mathrm|mathbb|mathcal|begin|end|tag)\{[^}]*\}")


def letters(display):
    """The letters of a formula, Greek ones by their names; a differential is that of its letter."""
    found = set()
    for word in LETTER.findall(WORDS.sub(" ", display)):
        if word.removeprefix("\\") in GREEK.values() or len(word) == 1:
            found.add(word)
        elif len(word) == 2 and word[0] == "d":
            found.add(word[1])
    return found


def bases(signs_of_rows):
    return {re.sub(r"\\(?:bar|hat|tilde)|[_^].*|['′*]", "", sign) for sign in signs_of_rows}


def test_every_letter_of_a_display_stands_in_a_table(root):
    """In the chapter's own, in chapter 00's, or in that of a chapter on which it builds; q is a row of Q."""
    chapters = {path.name[:2]: prose(path) for path in notebooks(root)}
    of_all = bases(of_the_book(chapters["00"])) | INDEX | {r"\varphi", r"\phi"}

    def own(number):
        tables = TABLE.findall(chapters[number])
        return bases(set().union(*(found for found, _ in rows(tables[0])))) if tables else set()

    def known(number):
        before = (known(other) for other in appendix.table().get(number, {}).get("builds_on", ()))
        return own(number).union(of_all, *before)

    lost = {}
    for number, text in chapters.items():
        if number < "90" and number != "19":
            used = set().union(*map(letters, re.findall(r"\$\$.*?\$\$", text, re.DOTALL)))
            there = known(number)
            if missing := {letter for letter in used - there if letter.upper() not in there or len(letter) > 1}:
                lost[number] = missing
    assert lost == {}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("| $L$ | (n, n) | a mask |", "not as in chapter 00"),
        ("| $L$ | (n, n) | a mask (elsewhere the loss) |", None),
        ("| ρ, $L$ | numbers | radius; the loss |", None),
        ("| $k$, a | numbers | twice in the table |", "twice"),
        ("| $\\bar a$, $a_i$ | numbers | other letters |", None),
    ],
)
def test_the_search_would_notice(row, why):
    found = clashes(rows(f"| a | number | the first |\n{row}"), {"L": {"loss"}})
    assert [reason for _, reason in found] == ([why] if why else [])


def test_letters_of_a_display_are_found():
    assert letters(r"$$dQ = \sum_i \tilde K_{ij}\,e^{\beta W} \text{where} \operatorname{lse}(z) \tag{1.1}$$") == {
        "Q", "i", "K", "e", r"\beta", "W", "z",
    }  # fmt: skip
