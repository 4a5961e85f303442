"""Put what the pages need to run Python into a folder of the site: `python site/run/prepare.py OUT`.

    OUT/run.js, run.css, worker.mjs, python.mjs, cell.py    ours, as they stand here
    OUT/book.zip            the package, what it imports that is pure Python, and the files that chapters look at
    OUT/pyodide-lock.json   the parts of Pyodide that are fetched, each with its SHA-256
    OUT/book.json           where they come from, how many bytes each has, and why some cells don't run

They come from Pyodide's public address. With SITE_OFFLINE=1 the site has its own copies, and asks nobody: they are taken
from the folder SITE_PYODIDE (`.pyodide` if it is not set), and a file with another hash is refused. `site/run/README.md` says
how to fill that folder.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OURS = ("run.js", "run.css", "worker.mjs", "python.mjs", "cell.py")
PURE = (
    "jaxtyping",
    "beartype",
    "wadler-lindig",
    "tqdm",
    "threadpoolctl",
)  # of this environment, as requirements.lock has it
LOOKED_AT = ("pyproject.toml", "tests/equations")  # by chapters, which stand in a repository there, too
FIRST = "numpy"  # with it the book begins; the rest is loaded when a cell draws
IN_A_CLONE = "It runs in a clone of the book."
WHY = {  # a cell with such a tag does not run in a browser; the first that it has says why
    "live": f"This cell trains or measures with the compiled loops of a computer, and a browser has none. {IN_A_CLONE}",
    "needs-bert": f"The weights of the real BERT are 90 MB, and this page does without. {IN_A_CLONE}",
    "needs-processes": f"This cell starts two processes, and a page of a browser is one. {IN_A_CLONE}",
    "needs-safetensors": f"This cell needs the package safetensors, which is not in this page. {IN_A_CLONE}",
    "native": f"This cell needs more than a browser has. {IN_A_CLONE}",
}
WHEN = 1980, 1, 1, 0, 0, 0  # the same bytes whenever it is made


class PrepareError(Exception):
    """A file is missing, or is not the one that was pinned; the message is for whoever makes the site."""


def pinned() -> dict:
    """The parts of Pyodide that we use: its version and address, its core and its packages, by name of the file."""
    return json.loads((HERE / "pyodide.json").read_text())


def prepare(out: Path, pyodide: Path | None) -> int:
    """Fill the folder; how many bytes a reader fetches. `pyodide` holds its files, or is None for the public address."""
    out.mkdir(parents=True, exist_ok=True)
    pins = pinned()
    for name in OURS:
        shutil.copy(HERE / name, out)
    zip_book(out / "book.zip")
    if pyodide:
        for name, pin in pins["files"].items():
            copy(pyodide / name, out, pin["sha256"])
    lock = {"info": pins["info"], "packages": {name: packages(pins, name) for name in pins["packages"]}}
    (out / "pyodide-lock.json").write_text(json.dumps(lock, indent=1))
    sizes = {name: pin["bytes"] for name, pin in pins["files"].items()} | {
        "book.zip": (out / "book.zip").stat().st_size
    }
    hashes = {name: pin["sha256"] for name, pin in pins["files"].items()} | {"book.zip": sha256(out / "book.zip")}
    book = {"pyodide": "./" if pyodide else pins["url"], "first": [FIRST], "drawing": ["matplotlib"]}
    (out / "book.json").write_text(json.dumps(book | {"native": native(), "bytes": sizes, "sha256": hashes}, indent=1))
    return sum(sizes.values())


def native() -> dict[str, str]:
    """The cells that need a machine of their own, by id, each with the reason."""
    cells = (
        cell for path in (ROOT / "notebooks").glob("*.ipynb") for cell in json.loads(path.read_text("utf-8"))["cells"]
    )
    tags = {cell["id"]: cell["metadata"].get("tags", ()) for cell in cells}
    return {id: next(WHY[tag] for tag in WHY if tag in tags[id]) for id in sorted(tags) if WHY.keys() & tags[id]}


def packages(pins: dict, name: str) -> dict:
    """A package as Pyodide's lock describes it."""
    about = pins["packages"][name]
    common = {"name": name, "install_dir": "site", "package_type": "package", "unvendored_tests": False}
    return common | about | {"sha256": pins["files"][about["file_name"]]["sha256"]}


def copy(path: Path, out: Path, expected: str) -> None:
    """Copy a file of Pyodide, if it is the one that was pinned."""
    if not path.is_file():
        raise PrepareError(f"{path}: not there; site/run/README.md says where it can be had")
    if sha256(path) != expected:
        raise PrepareError(f"{path}: its SHA-256 is {sha256(path)}, and {expected} is pinned")
    shutil.copy(path, out)


def sha256(path: Path) -> str:
    """The hash of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def zip_book(path: Path) -> None:
    """The package, what it imports, and what chapters look at, as they lie in a repository; always the same bytes."""
    topics = Path(importlib.util.find_spec("pydoc_data").origin).parent  # the text that models learn from
    found = tree(topics.parent, topics) | tree(ROOT, *(ROOT / name for name in ("minitransformer", *LOOKED_AT)))
    for name in PURE:
        for file in importlib.metadata.distribution(name).files or ():
            if file.suffix in {".py", ".pyi"} or file.name == "METADATA":
                found[file.as_posix()] = Path(file.locate())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, file in sorted(found.items()):
            archive.writestr(zipfile.ZipInfo(name, WHEN), file.read_bytes(), zipfile.ZIP_DEFLATED, 9)


def tree(root: Path, *tops: Path) -> dict[str, Path]:
    """Files, and the files below folders, by their names as seen from `root`."""
    files = [file for top in tops for file in ([top] if top.is_file() else top.rglob("*")) if file.is_file()]
    wanted = [file for file in files if "__pycache__" not in file.parts and not file.name.startswith(".")]
    return {file.relative_to(root).as_posix(): file for file in wanted}


def main() -> None:
    """The command."""
    if len(sys.argv) != 2:
        sys.exit("python site/run/prepare.py OUT")
    offline = os.environ.get("SITE_OFFLINE") == "1"
    pyodide = Path(os.environ.get("SITE_PYODIDE", ROOT / ".pyodide")) if offline else None
    try:
        size = prepare(Path(sys.argv[1]), pyodide)
    except PrepareError as error:
        sys.exit(str(error))
    print(f"{size / 1e6:.1f} MB for a reader, from {pyodide or pinned()['url']}")


if __name__ == "__main__":
    main()
