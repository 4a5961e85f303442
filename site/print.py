"""The book as one PDF, printed by Chromium: `python site/print.py book.pdf`."""

import base64
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from minitransformer import files, terminal  # noqa: E402
from minitransformer.cli import site  # noqa: E402
from tests.browser.devtools import new_page, program, wait  # noqa: E402

READY = "document.readyState == 'complete' && MathJax.startup.promise.then(() => document.fonts.ready).then(() => true)"
READABLE = """document.querySelectorAll('a[href*=".html"]').forEach(a => {
  if (document.getElementById(a.hash.slice(1))) a.href = a.hash
  else if (a.protocol == "file:") a.removeAttribute("href")
})
document.querySelectorAll("details").forEach(folded => folded.open = true)"""
SOLUTIONS = """const chapters = [...document.querySelectorAll("span[id^='document-']")], end = document.createElement("section")
end.innerHTML = "<h3>Solutions</h3>"
document.querySelectorAll("details").forEach(folded => {
  const name = folded.querySelector("summary").textContent, place = folded.previousElementSibling
  if (!name.startsWith("Solution of ")) return
  const line = document.createElement("p"), link = document.createElement("a")
  Object.assign(link, { textContent: name, href: "#" + place.id })
  line.append(link, ": at the end of the book")
  line.style.breakBefore = "avoid"
  place.before(line)
  end.append(place, folded)
})
chapters.at(-1).parentElement.append(Object.assign(document.createElement("span"), { id: "document-solutions" }), end)"""
HEADS = """const heads = document.createElement("style")
document.querySelectorAll("span[id^='document-']").forEach((place, k) => {
  const chapter = place.nextElementSibling, title = chapter.firstElementChild.firstChild.textContent
  place.style.display = "block"
  place.style.page = chapter.style.page = "chapter-" + k
  chapter.firstElementChild.style.breakBefore = "auto" // pages of another name begin anew anyway
  heads.textContent += `@page chapter-${k} { @top-center { content: ${JSON.stringify(title)}; font: 8px serif } }`
})
document.head.append(heads)"""
NUMBER = "<div style='font: 8px serif; width: 100%; text-align: center'><span class='pageNumber'></span></div>"
INCH = 25.4  # millimetres


def write(out: Path) -> None:
    """All pages in one, with bookmarks, links, the chapter at their head, and solutions at the end, for paper can't fold them."""
    with tempfile.TemporaryDirectory() as folder, new_page(Path(folder, "browser")) as page:
        site.build(ROOT, Path(folder, "site"), single=True)
        page.socket.settimeout(600)
        page.send(
            "Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "light"}]
        )
        page.go(f"file://{folder}/site/index.html")
        wait(lambda: page.ask(f"location.protocol == 'file:' && {READY}"), "the book", 600)
        page.ask(f"{SOLUTIONS}, true")
        page.ask(f"{READABLE}, true")
        page.ask(f"{HEADS}, true")
        paper = {"paperWidth": 210 / INCH, "paperHeight": 297 / INCH}
        edges = {f"margin{side}": 18 / INCH for side in ("Top", "Bottom", "Left", "Right")}
        extras = {"generateDocumentOutline": True, "generateTaggedPDF": True, "displayHeaderFooter": True, "scale": 0.8}
        foot = {"headerTemplate": "<span></span>", "footerTemplate": NUMBER}
        stream = page.send("Page.printToPDF", **paper, **edges, **extras, **foot, transferMode="ReturnAsStream")[
            "stream"
        ]
        out.parent.mkdir(parents=True, exist_ok=True)
        parts = []
        while not parts or not parts[-1]["eof"]:
            parts.append(page.send("IO.read", handle=stream, size=1 << 20))
        bytes_of = {True: base64.b64decode, False: str.encode}
        files.write(out, b"".join(bytes_of[part["base64Encoded"]](part["data"]) for part in parts))


def main() -> None:
    """The command."""
    if program() is None:
        sys.exit("there is no browser to print with; on Debian and Ubuntu: apt install chromium")
    try:
        write(Path(sys.argv[1]))
    except KeyboardInterrupt:
        terminal.say("interrupted", before="\n")
        sys.exit(130)
    print(sys.argv[1])


if __name__ == "__main__":
    main()
