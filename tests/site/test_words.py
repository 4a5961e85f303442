"""What the site does to text: anchors, links, symbols, terms, docstrings. Sphinx is not needed for any of it."""

import ast
import importlib.util
import json
import re
import sys
from html import escape

import pytest

from tests.conftest import ROOT


def module(name):
    """A module of the folder `site`, whose name the standard library has taken."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "site" / f"{name}.py")
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


words = module("words")
package = module("package")
pages = module("pages")

BIBLIOGRAPHY = """
- **Ainslie et al. (2020), ETC.** Joshua Ainslie, …: *ETC: Encoding Long and Structured Inputs*. EMNLP 2020.
- **Child et al. (2019).** Rewon Child, …: *Generating Long Sequences with Sparse Transformers*. arXiv.
- **Dao and Gu (2024), Mamba-2.** Tri Dao and Albert Gu: *Transformers are SSMs*. ICML 2024.
- **Dao et al. (2024a), One.** Tri Dao, …: *One*. arXiv.
- **Dao et al. (2024b), Two.** Tri Dao, …: *Two*. arXiv.
- **OpenAI (2025), gpt-oss.** OpenAI: *Model Card*. arXiv.
"""


def links(text, here="08_sparse_attention.html"):
    chapters = {"02": "02_self_attention.html", "04": "04_absolute_positions.html"}
    equations = {
        "2.1": "02_self_attention.html#equation-2-1",
        "Aalto 5": "map.html#aalto-5",
        "0.5": "00_how.html#equation-0-5",
    }
    found = words.mentions(chapters, equations, words.papers(BIBLIOGRAPHY), here)
    pieces = words.linked(text, found)
    assert "".join(piece for piece, _ in pieces) == text
    return [(piece, where) for piece, where in pieces if where]


def italic(text):
    """The letters of a text in angles; what stays on one line in brackets."""
    pieces = words.lettered(text)
    assert "".join(part for piece in pieces for part, _ in piece) == text
    marked = ["".join(f"<{part}>" if is_letter else part for part, is_letter in piece) for piece in pieces]
    return "".join(f"[{mark}]" if len(piece) > 1 else mark for piece, mark in zip(pieces, marked, strict=True))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("so 16 for d = 256, and 2 for d = 4: warm", "so 16 for [<d> = 256], and 2 for [<d> = 4]: warm"),
        ("the matrix A, n × n. Two rows", "the matrix <A>, [<n> × <n>]. Two rows"),
        ("at 1,024 < n ≤ 4,096 it is √d or D/H", "at [1,024 < <n> ≤ 4,096] it is √<d> or <D>/<H>"),
        ("X (n, D), at position i. The next", "<X> (<n>, <D>), at position <i>. The next"),
        ("K = V. As O(n²) is dY, λ times w′", "[<K> = <V>]. As <O>(<n>²) is <dY>, <λ> times <w>′"),
        ("A plot of A and M = I. I see a row", "A plot of <A> and [<M> = <I>]. I see a row"),
        ("⟨dq, q⟩ = 0: I do D H K steps", "⟨<dq>, <q>⟩ = 0: I do [<D> <H> <K>] steps"),
        *[
            (text, text)
            for text in (
                *("Simon J. D. Prince", "Lecture notes, B.2", "e.g. i.e. x-ray, 4 × 5", "W_q's, w₁", ""),
                *("154 GFLOP/s at 10.8 GB/s", "they adjust[s] it", "errata of kind A, part B"),
            )
        ],
    ],
)
def test_letters_of_the_notation_are_italic_and_formulas_stay_on_a_line(text, shown):
    assert italic(text) == shown


@pytest.mark.parametrize(
    ("tag", "anchors"),
    [
        ("8.1", ["equation-8-1"]),
        ("Borealis II 10, Aalto 16", ["equation-borealis-ii-10", "equation-aalto-16"]),
        ("Borealis II 19, 20", ["equation-borealis-ii-19", "equation-borealis-ii-20"]),
        ("Borealis 22", ["equation-borealis-ii-22"]),
        ("Lecture notes", ["equation-lecture-notes"]),
    ],
)
def test_every_equation_of_a_tag_has_an_anchor(tag, anchors):
    assert [words.anchor(name) for name in words.names(tag)] == anchors


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "From chapter 02, and (2.1).",
            [("02", "02_self_attention.html"), ("(2.1)", "02_self_attention.html#equation-2-1")],
        ),
        ("Chapters 02, 03 and 04", [("02", "02_self_attention.html"), ("04", "04_absolute_positions.html")]),
        ("chapter 2024, 02 of them, section 2.1, (9.9), a probability (0.5)", []),
        ("Aalto (5), Aalto, (5)", [("Aalto (5)", "map.html#aalto-5"), ("Aalto, (5)", "map.html#aalto-5")]),
        ("Child et al. (2019)", [("Child et al. (2019)", "99_sources.html#paper-child-2019")]),
        ("(Dao and Gu 2024)", [("Dao and Gu 2024", "99_sources.html#paper-dao-and-gu-2024-mamba-2")]),
        ("Dao et al. (2024b)", [("Dao et al. (2024b)", "99_sources.html#paper-dao-2024b-two")]),
        ("Dao, Fu and Ré, 2024a", [("Dao, Fu and Ré, 2024a", "99_sources.html#paper-dao-2024a-one")]),
        ("OpenAI 2025; Dao et al. 2024", [("OpenAI 2025", "99_sources.html#paper-openai-2025-gpt-oss")]),
        ("ETC, and ETC again, not ETCs", [("ETC", "99_sources.html#paper-ainslie-2020-etc")]),
    ],
)
def test_what_is_named_becomes_a_link(text, expected):
    assert links(text) == expected


def test_the_bibliography_does_not_lead_to_itself():
    assert links("Child et al. (2019), ETC", here=words.SOURCES) == []


def test_a_number_below_one_is_an_equation_where_they_stand():
    assert links("By (0.5)", here="00_how.html") == [("(0.5)", "00_how.html#equation-0-5")]


TABLES = r"""
| symbol | shape | what it is |
|---|---|---|
| $\beta$ | (H,) | a temperature |
| P | set | who sees whom |

| new symbol | meaning | shape |
|---|---|---|
| dY | the gradient | of Y |

| text | n |
|---|---|
| not a symbol | 3 |
"""


def test_symbols_are_read_by_the_heads_of_their_columns():
    found = list(words.symbols("08", TABLES))
    assert found[0] == words.Symbol("08", r"$\beta$", "(H,)", "a temperature")
    assert found[2] == words.Symbol("08", "dY", "of Y", "the gradient")
    assert len(found) == 3


def test_symbols_stand_in_the_order_of_their_letters():
    signs = [r"$\Lambda$", "b", r"$\boldsymbol\alpha$", "B", "β", r"$\tilde A$", "÷", r"$a_i$"]
    assert sorted(signs, key=words.order) == [
        r"$\tilde A$",
        r"$a_i$",
        "B",
        "b",
        r"$\boldsymbol\alpha$",
        "β",
        r"$\Lambda$",
        "÷",
    ]


def test_terms_are_those_of_the_glossary_with_what_they_mean():
    page = "## Map\n\n- **No.** Term.\n\n## Glossary\n\n- **KV cache.** Keys and values. [03](03_a.ipynb#Writing)\n"
    assert words.terms(page) == [("KV cache", "Keys and values. [03](03_a.ipynb#Writing)")]


def test_a_short_form_is_what_a_meaning_ends_with():
    assert words.short("Heads that share (GQA). [12](12_a.ipynb#Writing)") == ["GQA"]
    assert words.short("Rows (compressed sparse rows). [14](14_a.ipynb), (2.1). [02](02_a.ipynb)") == []


def test_other_names_are_those_of_terms_that_the_glossary_has(root):
    page = json.loads((root / "notebooks" / "98_map_and_glossary.ipynb").read_text(encoding="utf-8"))
    text = "\n".join("".join(cell["source"]) for cell in page["cells"] if cell["cell_type"] == "markdown")
    known = {name.lower() for term, meaning in words.terms(text) for name in (term, *words.short(meaning))}
    assert {term.lower() for term in words.SOUGHT} <= known
    assert not {other.lower() for others in words.SOUGHT.values() for other in others} & known


def test_a_name_has_the_words_of_which_it_is_put_together():
    assert words.parts("FlashAttention") == ["Flash", "Attention"]
    assert words.parts("GatedDeltaNet") == ["Gated", "Delta"]
    assert words.parts("Window") == words.parts("window") == words.parts("GQA") == []


DOCSTRING = """Attention, of *batch axes.

    Y = softmax(Q Kᵀ) V

`Q` asks.

cost     O(n m d) time,
         O(n m) memory
raises   ValueError

After."""

MARKDOWN = """Attention, of \\*batch axes.

```text
Y = softmax(Q Kᵀ) V
```

`Q` asks.

`cost`
: O(n m d) time,
  O(n m) memory

`raises`
: ValueError

After.
"""


def test_a_docstring_of_the_house_becomes_markdown():
    assert words.docstring(DOCSTRING) == MARKDOWN


def test_a_chapter_opens_with_its_question():
    text = "# 08 · Sparse attention\n\n**Which pairs\ncan be left out?**\n\nDense attention …"
    assert words.opening(text) == ("08 · Sparse attention", "Which pairs can be left out?", "Dense attention …")
    navigation = "[← 07](07.ipynb) | [all chapters](../README.md#chapters)\n\n**40 minutes.**\n\n- [A](#A)\n- [B](#B)"
    assert words.notes(navigation) == ["**40 minutes.**"]


def test_what_follows_a_list_of_key_words_is_text_again():
    text = "One line,\ntwo lines.\n\nkey   a `name_` with_a `long_` name_\n\nAfter it\ntwo lines.\n\n    x = 1\n\nEnd."
    told = words.docstring(text).split("\n\n")
    assert told[:2] == ["One line,\ntwo lines.", "`key`\n: a `name_` with\\_a `long_` name\\_"]
    assert told[2:] == ["After it\ntwo lines.", "```text\nx = 1\n```", "End.\n"]


def test_the_figures_of_a_cell_are_found():
    code = 'x = 1\nsave(heads.draw(heads.data("a")), "heads", format="png")\nlive.show("clocks")\nprint("no")'
    assert words.saved(code) == ["heads", "live_clocks"]


def test_a_name_that_is_quoted_can_be_alternative_text():
    assert 'alt="&quot;a&quot; &lt; b"' in words.picture("fig_a.svg", '"a"\n < b', (3.6, 2.2), "line")


def test_the_signature_of_a_function_is_as_it_is_written():
    def signature(source):
        return package.signature(ast.parse(source).body[0])

    assert (
        signature("def f(a: Float[Array, 'n d'], *, b=1) -> Array: ...")
        == "def f(a: Float[Array, 'n d'], *, b=1) -> Array"
    )
    long = "def long_name(first: Float[Array, '*batch n d'], /, second: int = 3, *rest, mask: Array | None = None, **more): ..."
    assert signature(long).splitlines() == [
        "def long_name(",
        "    first: Float[Array, '*batch n d'],",
        "    /,",
        "    second: int = 3,",
        "    *rest,",
        "    mask: Array | None = None,",
        "    **more,",
        ")",
    ]
    by_name = "def long_name(first: Float[Array, '*batch n d'], *, second: int = 3, a_mask: Array | None = None): ..."
    assert signature(by_name).splitlines()[1:4] == [
        "    first: Float[Array, '*batch n d'],",
        "    *,",
        "    second: int = 3,",
    ]
    assert signature("class A(B):\n    x: int = 1\n    def f(self): ...") == "class A(B)\n    x: int = 1"


@pytest.fixture(scope="module")
def book():
    return pages.Book()


def test_the_map_leads_to_every_function_test_cell_and_figure(book):
    text = pages.equation_map(book)
    for row in book.rows:
        assert f'id="{row.id}"' in text
        assert f'href="{row.notebook}.html#eq-{row.id}"' in text
        assert row.test.partition("::")[2] in text
        assert not row.figure or row.figure in text
    assert 'href=""' not in text


def test_every_link_of_a_chapter_has_a_place(book):
    for stem in book.chapters:
        notebook = pages.chapter(book, stem)
        kept = [cell["id"] for cell in book.chapters[stem]["cells"] if "navigation" not in pages._tags(cell)]
        assert [cell["id"] for cell in notebook["cells"]] == kept
        text = "".join(cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown")
        assert ".ipynb)" not in text
        assert "](../" not in text
        assert "navigation" not in str([cell["metadata"].get("tags") for cell in notebook["cells"]])
        assert not any(
            "image/png" in output.get("data", {}) for cell in notebook["cells"] for output in cell.get("outputs", [])
        )


def test_the_contents_lead_to_every_chapter_and_its_question(book):
    text = pages.index(book, ["map"])
    found = re.findall(
        r'<li><a href="(\S+)\.html"><span class="number">(\S+)</span>.*"asks">(.*)</span></a></li>', text
    )
    assert found == [(stem, stem[:2], escape(book.question(stem))) for stem in book.chapters]
    assert [line for line in text.splitlines() if line in {*book.chapters, "map"}] == [*book.chapters, "map"]


@pytest.mark.parametrize("single", [False, True])
def test_every_page_is_written(single, book, tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "Book", lambda: book)
    monkeypatch.setattr(pages, "chapter", lambda book, stem: {"title": stem})
    monkeypatch.setattr(pages, "code", lambda rows, sources: {"api": "# Functions", "code": "# Files"})
    pages.write(tmp_path / "out", single=single)
    names = ["map", "symbols", "glossary", "index", *["api", "code"] * (not single)]
    written = {path.name: path.read_text() for path in (tmp_path / "out").glob("*.*")}
    assert set(written) == {
        *(f"{stem}.ipynb" for stem in book.chapters),
        *(f"{name}.md" for name in names),
        "places.json",
    }
    assert all(f'"{stem}"' in written[f"{stem}.ipynb"] for stem in book.chapters)
    assert ("\napi\n" in written["index.md"]) == (not single)
    places = json.loads(written["places.json"])
    assert places["chapters"]["00"] == "00_how_to_read_this_book.html"
    assert places["equations"]["8.1"] == "08_sparse_attention.html#equation-8-1"
    assert len(places["papers"]) == len(book.papers)
    assert len(list((tmp_path / "out" / "_static" / "figures").iterdir())) == len(list((ROOT / "figures").iterdir()))
    assert [font.name for font in (tmp_path / "out" / "_static" / "fonts").iterdir()] == ["DejaVuSansMono.ttf"]


def test_the_symbols_of_all_chapters_are_listed(book):
    lines = [line for line in pages.symbols(book).splitlines() if line.startswith("| ")][1:]
    rows = [row for stem, text in book.text.items() for row in words.symbols(stem, text)]
    assert len(lines) == len(rows) > 100
    assert all(any(line.startswith(f"| {row.sign} | {row.shape} | ") for line in lines) for row in rows)


def test_a_listing_has_a_place_for_every_function_and_a_heading_for_every_test():
    source = (ROOT / "tests" / "test_checker.py").read_text()
    names = [node.name for node in ast.parse(source).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    text = package.listing("tests/test_checker.py")
    assert re.findall(r'<div class="place" id="(\w+)">', text) == names
    assert re.findall("^## (.*)", text, re.MULTILINE) == [name for name in names if name.startswith("test_")]
    first = text.index(":lineno-start: ", text.index(f'id="{names[-1]}"'))
    number = int(text[first:].split()[1])
    assert source.splitlines()[number - 1] == text[first:].splitlines()[2]


def test_every_public_name_stands_on_the_page_of_its_module(book):
    found = package.public(book.rows)
    for title, modules in package.API.items():
        for module in modules:
            for name in package._names(module):
                assert found[f"{module}.{name}"] == f"api-{words.slug(title)}.html#{module}.{name}"


def test_the_source_is_shown_of_what_the_map_names(book):
    row = next(row for row in book.rows if row.function.startswith("minitransformer.functional."))
    for rows in ([], [row]):
        assert package.api(rows, "A page", ["minitransformer.functional"]).count("<details>") == len(rows)


class Example:
    """An example."""

    def __call__(self, x):
        """It is called."""

    def step(self):
        """It takes a step."""

    def _inner(self):
        """Nobody calls it."""

    def bare(self): ...


@pytest.mark.parametrize("whole", [False, True])
def test_an_entry_has_the_methods_that_one_calls(whole):
    text = "\n".join(package.entry(Example, whole)).partition("<details>")
    assert re.findall(r"^(?:class|def) .*", text[0], re.MULTILINE) == [
        "class Example",
        "def __call__(self, x)",
        "def step(self)",
    ]
    assert re.findall(r"^[AIN].*[.]", text[0], re.MULTILINE) == ["An example.", "It is called.", "It takes a step."]
    assert ("def bare" in text[2]) == whole


def test_files_of_one_name_are_told_apart_by_their_folders(book):
    listed = [
        line.removesuffix(">").split(" <")
        for line in package.code(book.rows, book.sources)["code"].splitlines()
        if line.endswith(">")
    ]
    assert {f"{page}.html": path for path, page in listed} == {page: path for path, page in book.sources.items()}


def test_every_paper_has_a_place_of_its_own(book):
    text = "".join(str(cell["source"]) for cell in pages.chapter(book, "99_sources")["cells"])
    anchors = [paper.anchor for paper in book.papers]
    assert len(anchors) == len(set(anchors)) > 100
    assert all(f'<span id="{anchor}"></span>**' in text for anchor in anchors)


def test_a_coarse_link_is_unmade_because_the_site_has_a_place(book):
    text = "[(8.1)](08_sparse_attention.ipynb#A-rule) of [Tay et al. (2021a)](99_sources.ipynb#T), [1](02_self_attention.ipynb)"
    assert pages._relinked(book, text) == "(8.1) of Tay et al. (2021a), [1](02_self_attention.html)"


def test_every_display_with_a_tag_is_known(book):
    equations = book.equations()
    assert equations["8.1"] == "08_sparse_attention.html#equation-8-1"
    assert equations["Borealis II 15"] == "07_smaller_attention_matrices.html#equation-borealis-ii-15"
    assert equations["Aalto 1"] == "map.html#aalto-1"
