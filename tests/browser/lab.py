"""JupyterLab as a reader starts it, in a home where nothing is set and no notebook is trusted."""

import json
import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.browser.devtools import Page, new_page, running, wait

LOOK = Path(__file__).with_name("look.js").read_text(encoding="utf-8")
THEIRS = ("JUPYTER", "IPYTHON", "XDG_")
NO_KERNEL = {"shouldStart": False, "canStart": True, "autoStartDefault": False}
PAUSE = 100  # milliseconds in which JupyterLab fits itself into another window
LOOKS = 100  # for formulas and figures to appear, 0.1 seconds or more between two; what is not there then is missing


class Lab(NamedTuple):
    """A page with JupyterLab, in which notebooks are opened in turns."""

    page: Page

    def open(self, path: str, kernel: bool = False) -> None:
        """Open a notebook, as a click on its name does; without its kernel, unless it is needed."""
        options = {"path": path, "factory": "Notebook"} | ({} if kernel else {"kernelPreference": NO_KERNEL})
        opening = f"jupyterapp.commands.execute('docmanager:open', {json.dumps(options)})"
        shown = f"{opening}.then(async it => (await it.revealed, opened = it))"
        self.page.ask(f"globalThis.opened = null, globalThis.opening = {shown}, 0")  # kept, or it may be collected
        wait(lambda: self.page.ask("opened !== null"), path)
        if kernel:
            wait(lambda: self.page.ask("opened.content.model.metadata.language_info.version"), "what the kernel notes")
        for _ in range(LOOKS):
            if all(cell["settled"] for cell in self.page.ask(LOOK)):
                break
            time.sleep(0.1)
        self.page.ask("document.fonts.ready.then(() => true)")

    def look(self, width: int) -> list[dict[str, Any]]:
        """What each cell shows in a window of so many pixels; `look.js` says how it is found."""
        self.page.resize(width)
        self.page.ask(f"new Promise(done => requestAnimationFrame(() => setTimeout(done, {PAUSE})))")
        return self.page.ask(LOOK)

    def save(self) -> None:
        """Save the notebook, as Ctrl-S does."""
        self.page.ask("jupyterapp.commands.execute('docmanager:save').then(() => true)")

    def close(self) -> None:
        """Close the notebook, and end its kernel."""
        self.page.ask("opened.context.sessionContext.shutdown().then(() => opened.dispose()).then(() => true)")


@contextmanager
def lab(root: Path, home: Path) -> Iterator[Lab]:
    """JupyterLab with `root` as its top, as README starts it; what it remembers and says goes to `home`."""
    mine = {"HOME": str(home), "JUPYTER_RUNTIME_DIR": str(home / "runtime"), "JUPYTER_TOKEN": secrets.token_hex()}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(THEIRS)} | mine
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser"]
    address = ["--ip=127.0.0.1", "--port=0"]  # a port that is free
    with (
        running([*command, *address], home / "jupyterlab.log", cwd=root, env=environment),
        new_page(home / "browser") as page,
    ):
        server = wait(lambda: json.loads(next((home / "runtime").glob("jpserver-*.json")).read_text()), "JupyterLab")
        page.send("Emulation.setFocusEmulationEnabled", enabled=True)
        page.go(f"{server['url']}lab?token={server['token']}")
        wait(lambda: page.ask("globalThis.jupyterapp?.started.then(() => true)"), "JupyterLab's page")
        page.ask("jupyterapp.restored.then(() => true)")
        yield Lab(page)
