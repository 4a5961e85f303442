"""`minitransformer site`: the chapters as pages for a browser, from their committed outputs, with nothing run."""

import functools
import http.server
import shutil
import subprocess
import sys
import tempfile
from contextlib import nullcontext, suppress
from pathlib import Path

from minitransformer.terminal import ctrl_c_waits

PYTHONS = ("bin/python", "Scripts/python.exe")  # of an environment
MARK = ".minitransformer-site"  # a folder with this file is ours to replace


def build(root: Path, out: Path, *, single: bool = False) -> None:
    """Write the site of the repository at `root` into a folder; `single`: all of it on one page, to be printed.

    raises   ImportError if the site's packages are not there; ValueError if the folder holds something else, or if a step fails
    """
    site = root / "site"
    python = next((path for name in PYTHONS if (path := root / ".venv-site" / name).exists()), None)
    if python is None:
        raise ImportError("the site needs packages of its own: `make site` gets them, or see README")
    if out.exists() and any(out.iterdir()) and not (out / MARK).exists():
        raise ValueError(f"{out}: holds something else than a site, and is not overwritten")
    with tempfile.TemporaryDirectory() as folder:
        pages, made = Path(folder, "pages"), Path(folder, "site")
        _run([sys.executable, str(site / "pages.py"), str(pages), *["--single"] * single])
        kind = "singlehtml" if single else "html"
        options = ["-q", "-j", "2", "-W", "--keep-going", "-d", str(Path(folder, "trees")), "-b", kind, "-c", str(site)]
        _run([str(python), "-m", "sphinx", *options, str(pages), str(made)])
        if (prepare := site / "run" / "prepare.py").exists() and not single:  # ▶ on the cells
            _run([sys.executable, str(prepare), str(made / "_static" / "run")])
        (made / MARK).touch()
        shutil.rmtree(out, ignore_errors=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(made, out)


def _run(command: list[str]) -> None:
    """Run one step, and wait for it. Raises ValueError if it fails.

    At Ctrl-C a script of ours is killed before it hears of it, for it would end in a traceback. Sphinx has 2 s to tidy up.
    """
    ours, process = command[0] == sys.executable, None
    try:
        with ctrl_c_waits() if ours else nullcontext():
            process = subprocess.Popen(command, stdout=sys.stderr)
        failed = process.wait()
    except BaseException:
        if process:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0 if ours else 2)
            process.kill()
            process.wait()
        raise
    if failed:
        raise ValueError(f"{' '.join(command[:3])} … has failed")


class Handler(http.server.SimpleHTTPRequestHandler):
    """Sends files without printing a line for each."""

    extensions_map = {  # noqa: RUF012
        **http.server.SimpleHTTPRequestHandler.extensions_map,
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def server(folder: Path, port: int = 8000) -> http.server.ThreadingHTTPServer:
    """A server that sends the pages to a browser of this machine, at a port or, if it is taken, at any that is free (as 0)."""
    sends = functools.partial(Handler, directory=str(folder))
    with suppress(OSError):
        return http.server.ThreadingHTTPServer(("127.0.0.1", port), sends)
    return http.server.ThreadingHTTPServer(("127.0.0.1", 0), sends)
