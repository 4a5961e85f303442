"""The chapters as notebooks in a browser, with JupyterLite: `python site/run/lite.py OUT`; `make lite` writes `_site/lite`.

    OUT/lab/index.html      JupyterLab; what a reader changes stays in the storage of that browser
    OUT/files/              chapters, and what they look at
    OUT/static/pyodide/     Python, the book, and IPython with all that it needs: no request leaves the site

Files of Pyodide come from the folder SITE_PYODIDE (`.pyodide` if it is not set), and one with another hash is refused. IPython
and its like are those of this environment, and JupyterLite is that of `.venv-lite`.
"""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from prepare import LOOKED_AT, ROOT, WHEN, PrepareError, copy, prepare, sha256, tree

from minitransformer import terminal

LITE = ROOT / ".venv-lite"
KERNEL = "@jupyterlite/pyodide-kernel-extension"
OF_KERNEL = ("ipykernel", "piplite", "pyodide-kernel")  # wheels that come with it
MICROPIP = "micropip-0.11.1-py3-none-any.whl", "668cd1270f480ac9f93da4a2b4873a252743e4ad3da723d37a7e4c637c4f2314"
OURS = ("comm", "jedi", "ipython")  # of this environment
BROWSER = {"sys_platform": "emscripten", "platform_system": "Emscripten", "python_version": "3.14", "extra": ""}
SHOWN = ("notebooks", "README.md", *LOOKED_AT)


def lite(out: Path, pyodide: Path) -> None:
    """Write JupyterLite into a folder, in the place of what is there."""
    build = next((path for name in ("bin", "Scripts") for path in (LITE / name).glob("jupyter-lite*")), None)
    if build is None:
        raise PrepareError(f"{LITE}: JupyterLite is not there; `make lite` puts it there")
    with tempfile.TemporaryDirectory() as folder:
        top, made = Path(folder, "lite"), Path(folder, "site")
        prepare(top / "static" / "pyodide", pyodide)
        complete(top / "static" / "pyodide", pyodide)
        for name, file in tree(ROOT, *(ROOT / name for name in SHOWN)).items():
            (top / "files" / name).parent.mkdir(parents=True, exist_ok=True)
            (top / "files" / name).write_bytes(whole(file) if file.suffix == ".ipynb" else file.read_bytes())
        loaded = {"packages": ["micropip", *OF_KERNEL, *OURS, "minitransformer"]}
        settings = {f"{KERNEL}:kernel": {"disablePyPIFallback": True, "loadPyodideOptions": loaded}}
        config = {"appName": "minitransformer", "litePluginSettings": settings}
        (top / "jupyter-lite.json").write_text(
            json.dumps({"jupyter-lite-schema-version": 0, "jupyter-config-data": config})
        )
        options = ["--lite-dir", str(top), "--output-dir", str(made), "--apps", "lab", "--no-sourcemaps"]
        said = subprocess.run([str(build), "build", *options], cwd=top, capture_output=True, text=True)
        if said.returncode:
            raise PrepareError(said.stdout + said.stderr)
        shutil.rmtree(out, ignore_errors=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(made, out)


def whole(path: Path) -> bytes:
    """A notebook whose outputs are strings, as a server sends them; JupyterLite would put a comma between the lines of a list."""
    chapter = json.loads(path.read_text("utf-8"))
    for output in (output for cell in chapter["cells"] for output in cell.get("outputs", ())):
        if "text" in output:
            output["text"] = "".join(output["text"])
    return json.dumps(chapter, ensure_ascii=False, indent=1).encode()


def complete(static: Path, pyodide: Path) -> None:
    """Add what a kernel needs beside Python and the book, and name all of it in the lock: what isn't named is never found."""
    lock = json.loads((static / "pyodide-lock.json").read_text())
    found, wheels = lock["packages"], LITE / "share" / "jupyter" / "labextensions" / KERNEL / "static" / "pypi"
    for name in OF_KERNEL:
        wheel = next(wheels.glob(f"{name.replace('-', '_')}-*.whl"))
        shutil.copy(wheel, static)
        found[name] = package(name, static / wheel.name, [])
    copy(pyodide / MICROPIP[0], static, MICROPIP[1])
    found["micropip"] = package("micropip", static / MICROPIP[0], ["packaging"])
    for name in OURS:
        add(name, found, static)
    found["minitransformer"] = package("minitransformer", static / "book.zip", ["matplotlib", "numpy"])
    (static / "pyodide-lock.json").write_text(json.dumps(lock, indent=1))


def add(name: str, found: dict, static: Path) -> None:
    """Pack a package of this environment as a wheel, and those that it needs in a browser, unless they are there."""
    if name in found:
        return
    here = importlib.metadata.distribution(name)
    path = static / f"{name.replace('-', '_')}-{here.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(here.files or ()):
            if ".." not in file.parts and file.suffix not in {".pyc", ".so", ".pyd"} and file.name != "RECORD":
                archive.writestr(zipfile.ZipInfo(file.as_posix(), WHEN), file.read_binary(), zipfile.ZIP_DEFLATED)
    there = default_environment() | BROWSER
    wanted = [need for need in map(Requirement, here.requires or ()) if not need.marker or need.marker.evaluate(there)]
    needs = sorted({canonicalize_name(need.name) for need in wanted})
    found[name] = package(name, path, needs)
    for need in needs:
        add(need, found, static)


def package(name: str, path: Path, depends: list[str]) -> dict:
    """A package as Pyodide's lock describes it."""
    common = {"install_dir": "site", "package_type": "package", "unvendored_tests": False}
    about = {"name": name, "version": "0", "imports": [name.replace("-", "_")], "depends": depends}
    return common | about | {"file_name": path.name, "sha256": sha256(path)}


def main() -> None:
    """The command."""
    if len(sys.argv) != 2:
        sys.exit("python site/run/lite.py OUT")
    try:
        lite(Path(sys.argv[1]).resolve(), Path(os.environ.get("SITE_PYODIDE", ROOT / ".pyodide")))
    except PrepareError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        terminal.say("interrupted", before="\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
