"""Every page of the site as a reader sees it, wide and narrow, light and dark: `make site-test`.

The pages come from a server on this machine, and a request to anywhere else is a mistake. For level AA of the accessibility
guidelines axe-core is asked, which npm brings for the test; where it can't, that test says so.
"""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pytest

from minitransformer.cli.site import server
from tests.browser.devtools import new_page, program, wait

if program() is None:
    pytest.skip("there is no browser; on Debian and Ubuntu: apt install chromium", allow_module_level=True)

LOOK, SLIDES = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("site.js", "slides.js"))
WIDTHS, THEMES = (1300, 390), ("light", "dark")
READY = "document.readyState == 'complete' && (window.MathJax?.startup?.promise ?? Promise.resolve()).then(() => true)"
FADED = """new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))
  .then(() => Promise.allSettled(document.getAnimations().map(fading => fading.finished))).then(() => true)"""
BROWSERS = 2  # side by side: axe-core computes for minutes, on one core
AXE = "axe-core@4.14.1"
AA = """axe.run({exclude: [["mjx-container"]]}, {RULES, resultTypes: ["violations"]}).then(found =>
  found.violations.flatMap(rule => rule.nodes.map(node =>
    `${rule.id}: ${node.html.slice(0, 160)} ${node.any[0]?.message ?? ""}`)))"""
LEVEL = 'runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]'
COLOURS = "color-contrast"  # the costly one, and colours are the same at every width
RULES = {
    (1300, "light"): LEVEL,
    (1300, "dark"): f'runOnly: {{type: "rule", values: ["{COLOURS}"]}}',
    (390, "light"): f'{LEVEL}, rules: {{"{COLOURS}": {{enabled: false}}}}',
}


class Site:
    """A page of a browser, and the pages of the site that it shows."""

    def __init__(self, folder, address, page):
        self.folder, self.address, self.page = folder, address, page
        self.names = sorted(path.name for path in folder.glob("*.html"))
        for domain in ("Runtime", "Network", "Log", "Page"):
            page.send(f"{domain}.enable")

    def open(self, name, width, theme="light"):
        """Load a page in a window of that many pixels; what it asks of the network, and complains of, is noted anew."""
        self.page.go("about:blank")  # first, or the page that is left would fit itself into the new window
        self.page.resize(width)
        self.paint(theme)
        self.page.events.clear()
        self.page.go(f"{self.address}/{name}")
        wait(lambda: self.page.ask(f"location.href != 'about:blank' && {READY}"), name)
        self.page.ask(
            "new Promise(done => requestAnimationFrame(() => setTimeout(done, 700)))"
        )  # as `later` in site.js

    def paint(self, theme):
        """Show the page as a reader sees it who prefers that theme, once all colours have faded over."""
        self.page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.page.ask(FADED)

    def requests(self):
        """The addresses that were asked for since a page was opened."""
        sent = [event["params"] for event in self.page.events if event["method"] == "Network.requestWillBeSent"]
        return [params["request"]["url"] for params in sent]

    def complaints(self):
        """What the console has of errors since then."""
        found = []
        for event in self.page.events:
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"].get("exception", {}).get("description")))
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] == "error":
                found.append(str(params["args"]))
        return found


class Seen(NamedTuple):
    """What a page showed at a width; `site.js` says how it is found."""

    name: str
    width: int
    shown: dict
    outward: list
    complaints: list
    violations: list
    slides: dict | None

    def __str__(self):
        return f"{self.name} at {self.width} px"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with new_page(tmp_path_factory.mktemp("home") / "browser") as page:
        yield page


@pytest.fixture(scope="module")
def book(root, tmp_path_factory):
    """The path of the book as a PDF, and the process that prints it."""
    path = tmp_path_factory.mktemp("book") / "book.pdf"
    with subprocess.Popen([sys.executable, root / "site" / "print.py", path]) as printing:
        yield path, printing


@contextmanager
def shown(folder, page):
    """The pages of a folder, from a server of this machine."""
    with server(folder, 0) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield Site(folder, f"http://127.0.0.1:{serving.server_port}", page)
        serving.shutdown()


@pytest.fixture(scope="module")
def site(root, browser):
    folder = root / "_site"
    if not (folder / "index.html").is_file():
        pytest.skip("there is no site: make site")
    with shown(folder, browser) as site:
        yield site


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    """The source of axe-core, or None where npm can't bring it."""
    folder = tmp_path_factory.mktemp("axe")
    if not shutil.which("npm") or subprocess.run(["npm", "pack", AXE], cwd=folder, capture_output=True).returncode:
        return None
    with tarfile.open(next(folder.glob("*.tgz"))) as package:
        return package.extractfile("package/axe.min.js").read().decode("utf-8")


@pytest.fixture(scope="module")
def everything(site, axe, book, tmp_path_factory):
    """What every page shows at every width; the browsers look at it side by side, while another one prints the book."""
    left = iter([(name, width) for name in site.names for width in WIDTHS])

    def some(home):
        with new_page(home / "browser") as page:
            own = Site(site.folder, site.address, page)
            return [look(own, name, width, axe) for name, width in left]

    homes = [tmp_path_factory.mktemp("home") for _ in range(BROWSERS)]
    with ThreadPoolExecutor(BROWSERS) as pool:
        return sorted(seen for part in pool.map(some, homes) for seen in part)


def look(site, name, width, axe):
    """What a page shows at a width, in both themes."""
    site.open(name, width)
    shown, violations = site.page.ask(LOOK), []
    for theme in THEMES:
        site.paint(theme)
        if axe and (width, theme) in RULES:
            site.page.ask(f"window.axe || eval({json.dumps(axe)}), true")
            rules = RULES[width, theme]
            violations += [f"{theme}: {found}" for found in site.page.ask(AA.replace("RULES", rules))]
    slides = site.page.ask(SLIDES) if width == WIDTHS[0] else None
    outward = [url for url in site.requests() if not url.startswith((site.address, "data:", "blob:", "about:"))]
    return Seen(name, width, shown, outward, site.complaints(), violations, slides)


def none_of(problems):
    if problems := list(problems):
        pytest.fail("\n".join(problems[:60]))


def test_every_equation_is_set(everything):
    assert sum(seen.shown["equations"] for seen in everything) > 2000
    none_of(f"{seen}: {error}" for seen in everything for error in seen.shown["errors"])


def test_no_equation_is_cut_off(everything):
    none_of(f"{seen}: {math}" for seen in everything for math in seen.shown["cut"])


def test_no_page_is_wider_than_its_window(everything):
    none_of(f"{seen}: {seen.shown['wider']} px too wide" for seen in everything if seen.shown["wider"] > 0)


def test_every_picture_is_drawn_and_has_alternative_text(everything):
    none_of(f"{seen}: {img}" for seen in everything for kind in ("nameless", "undrawn") for img in seen.shown[kind])


def test_nothing_is_asked_of_another_machine(everything):
    none_of(f"{seen}: {url}" for seen in everything for url in seen.outward)


def test_nothing_complains(everything):
    none_of(f"{seen}: {text}" for seen in everything for text in seen.complaints)


def test_every_link_and_anchor_leads_somewhere(everything, site):
    ids = {seen.name: set(seen.shown["ids"]) for seen in everything}
    none_of(
        f"{seen.name}: {link}"
        for seen in everything
        if seen.width == WIDTHS[0]
        for link in seen.shown["links"]
        if link.startswith(site.address) and dead(urlsplit(link), ids, site.folder)
    )


def dead(link, ids, folder):
    """Whether no file has this name, or nothing on the page that place."""
    name = unquote(link.path).lstrip("/") or "index.html"
    if link.fragment and name in ids:
        return unquote(link.fragment) not in ids[name]
    return not (folder / name).is_file()


def test_every_chapter_can_be_shown_as_slides(everything, root):
    found = {seen.name: seen.slides for seen in everything if seen.slides}
    chapters = {path.stem + ".html" for path in (root / "notebooks").glob("[0-2]*.ipynb")}
    assert set(found) == chapters
    none_of(f"{name}: {text}" for name, slides in found.items() for text in slides["wrong"])
    assert sum(slides["slides"] for slides in found.values()) > 40 * len(chapters)


def test_every_control_can_be_reached_by_keyboard(everything):
    none_of(f"{seen}: {element}" for seen in everything for element in seen.shown["unreachable"])


def test_no_violation_of_level_aa(everything, axe):
    if axe is None:
        pytest.skip("axe-core is not there: npm is needed, and a registry")
    none_of(f"{seen}: {found}" for seen in everything for found in seen.violations)


# ------------------------------------------------------------------------------------------------- and two ways to use it


def test_the_site_works_from_a_folder(site, tmp_path):
    """No server: mathematics is set, and the search finds the Performer in the glossary and in its chapter."""
    with new_page(tmp_path / "browser") as page:
        page.go((site.folder / "search.html").as_uri() + "?q=Performer")
        found = """document.querySelectorAll('#search-results a[href*="10_attention_as_a_kernel"]').length"""
        wait(lambda: page.ask(found), "what the search finds")
        first = "document.querySelector('#search-results a')?.textContent"
        wait(lambda: page.ask(first) == "Glossary > Performer", "the glossary, first of all")
        for name in ("GQA", "MQA", "RoPE", "MoBA", "Attention"):
            page.go((site.folder / "search.html").as_uri() + f"?q={name.lower()}")
            wait(lambda name=name: page.ask(first) == f"Glossary > {name}", f"{name}, first of all")
        for typed, term in (("flash", "FlashAttention"), ("sliding window", "Window"), ("kv-cache", "KV cache")):
            page.go((site.folder / "search.html").as_uri() + f"?q={typed}")
            wait(lambda term=term: page.ask(first) == f"Glossary > {term}", f"{typed}, in the glossary")
        page.go((site.folder / "10_attention_as_a_kernel.html").as_uri())
        wait(lambda: page.ask(f"location.href.includes('10_') && {READY}"), "the chapter")
        assert page.ask("document.querySelectorAll('mjx-container').length") > 50


def test_a_page_has_its_colours_without_scripts(site):
    """A script replaces the theme by the reader's; "auto" alone would have none."""
    pages = {name: (site.folder / name).read_text(encoding="utf-8") for name in site.names}
    none_of(name for name, page in pages.items() if not re.search(r'<html [^>]*data-theme="light"', page))


def test_the_tab_key_comes_by_every_link_of_a_page(site):
    site.open("index.html", 1300)
    page = site.page
    page.send("Emulation.setFocusEmulationEnabled", enabled=True)
    wanted = page.ask("[...document.querySelectorAll('article a[href]:not(.headerlink)')].map(a => a.href)")
    reached = []
    for _ in range(150):
        press(page, "Tab", 9)
        reached.append(page.ask("document.activeElement.href ?? null"))
    assert len(wanted) > 20
    assert set(wanted) <= set(reached)


def press(page, key, code, **typed):
    """Press a key, and let it go."""
    for kind in ("keyDown" if typed else "rawKeyDown", "keyUp"):
        page.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **typed)


def test_escape_leads_from_a_list_back_to_its_button(site):
    site.open("02_self_attention.html", 820)
    page = site.page
    page.send("Emulation.setFocusEmulationEnabled", enabled=True)
    for name in ("primary", "secondary"):
        opens = f"document.querySelector('dialog[open]')?.id == 'pst-{name}-sidebar-modal'"
        page.ask(f"document.querySelector('button.{name}-toggle').focus(), true")
        press(page, "Enter", 13, text="\r")
        wait(lambda opens=opens: page.ask(opens), f"the {name} list")
        press(page, "Escape", 27)
        wait(lambda: page.ask("!document.querySelector('dialog[open]')"), "a page without it")
        here = f"document.activeElement.matches('button.{name}-toggle')"
        wait(lambda here=here: page.ask(here), "its button in focus", 10)


def test_code_keeps_the_tab_key_when_a_page_grows(site):
    """The theme looks at all code anew then, and takes it from what does not scroll: from cells that one can edit, too."""
    site.open("02_self_attention.html", 1300)
    page, cells = site.page, "[...document.querySelectorAll('pre[contenteditable]')]"
    wait(lambda: page.ask(f"{cells}.length"), "cells that run")
    page.ask("document.querySelector('#main-content').append(document.createElement('p')), true")
    page.ask("new Promise(done => setTimeout(done, 900))")
    assert page.ask(f"{cells}.every(cell => cell.tabIndex === 0)")


TRIAL = """<!doctype html><html lang="en"><title>trial</title><script>console.error("oh")</script><article>
<img src="gone.png"><img src="http://192.0.2.1/outward.png" alt="far away"><a href="gone.html">1</a><a href="#gone">2</a>
<a href="trial.html#here" id="here">3</a><a href="#here" tabindex="-1">4</a><div style="width: 2000px">wide</div>
<div style="width: 90px; overflow: auto"><div style="width: 200px">scrolls</div></div><div class="math">\\(x\\)</div>
<p class="math" style="width: 20px; overflow: hidden"><mjx-container>
<mjx-math style="display: block; width: 50px">x</mjx-math></mjx-container></p>
<p style="color: #999; background: #fff">pale</p></article></html>"""


def test_what_is_wrong_would_be_noticed(tmp_path, browser, axe):
    (tmp_path / "trial.html").write_text(TRIAL)
    with shown(tmp_path, browser) as site:
        seen = look(site, "trial.html", 1300, axe)
        ids = {"trial.html": set(seen.shown["ids"])}
        links = [link for link in seen.shown["links"] if dead(urlsplit(link), ids, tmp_path)]
    assert len(seen.shown["errors"]) == 1
    assert len(seen.shown["cut"]) == 1
    assert seen.shown["wider"] > 500
    assert len(seen.shown["nameless"]) == 1
    assert any("gone.png" in img for img in seen.shown["undrawn"])
    assert [link.rpartition("/")[2] for link in links] == ["gone.html", "trial.html#gone"]
    assert len(seen.shown["unreachable"]) == 2
    assert seen.outward == ["http://192.0.2.1/outward.png"]
    assert any("oh" in text for text in seen.complaints)
    assert axe is None or any("color-contrast" in found for found in seen.violations)


def test_the_book_prints(root, book):
    """One PDF: every chapter begins on a page of its own, and has a bookmark."""
    path, printing = book
    assert printing.wait() == 0
    pdf = path.read_bytes()
    chapters = len(list((root / "notebooks").glob("*.ipynb")))
    assert pdf.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) > 10 * chapters
    assert headings(root) | {"Solutions"} <= set(bookmarks(pdf))


def headings(root):
    """The titles of chapters and sections."""
    chapters = [json.loads(path.read_text(encoding="utf-8")) for path in (root / "notebooks").glob("*.ipynb")]
    cells = [cell for chapter in chapters for cell in chapter["cells"] if cell["cell_type"] == "markdown"]
    text = "\n".join("".join(cell["source"]) for cell in cells)
    return set(re.findall(r"^#{1,3} (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE))


def bookmarks(pdf):
    """The titles that the outline of a PDF has, in Latin letters or in UTF-16."""
    for latin, coded in re.findall(rb"/Title (?:\(((?:\\.|[^\\)])*)\)|<FEFF([0-9A-F]*)>)", pdf):
        if coded:
            yield bytes.fromhex(coded.decode()).decode("utf-16-be")
        else:
            yield re.sub(r"\\(.)", r"\1", latin.decode("latin-1"))
