"""A Chromium without a window, and what we need of its DevTools protocol: go to a page, and ask it."""

import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import websocket

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = "--headless --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-sync"


def program() -> str | None:
    """The path of a Chromium or Chrome on this machine."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """The page behind a socket of the DevTools protocol."""

    def __init__(self, socket: websocket.WebSocket) -> None:
        self.socket, self.sent = socket, 0
        self.events: list[dict[str, Any]] = []  # of the domains that were enabled

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol, and wait for what it returns."""
        self.sent += 1
        self.socket.send(json.dumps({"id": self.sent, "method": method, "params": params}))
        while (answer := json.loads(self.socket.recv())).get("id") != self.sent:
            self.events.append(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def ask(self, script: str) -> Any:
        """The value of a JavaScript expression, or of what it promises."""
        answer = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]["exception"].get("description")
        return answer["result"].get("value")

    def go(self, address: str) -> None:
        """Begin to load an address."""
        self.send("Page.navigate", url=address)

    def resize(self, width: int, height: int = 900) -> None:
        """Make the window so many pixels wide and high."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)


@contextmanager
def new_page(profile: Path) -> Iterator[Page]:
    """The only page of a browser that knows nothing: its profile is a new folder."""
    profile.mkdir()
    as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
    place = [f"--user-data-dir={profile}", "--remote-debugging-port=0"]  # a port that is free, on this machine only
    command = [program(), *QUIET.split(), "--disable-component-update", *as_root, *place, "about:blank"]
    with running(command, profile / "browser.log"):
        port = wait(lambda: (profile / "DevToolsActivePort").read_text().split()[0], "the browser")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=10) as answer:
            target = next(target for target in json.load(answer) if target["type"] == "page")
        socket = websocket.create_connection(target["webSocketDebuggerUrl"], suppress_origin=True, timeout=600)
        yield Page(socket)
        socket.close()


@contextmanager
def running(command: list[str], log: Path, **options: Any) -> Iterator[None]:
    """A program that runs as long as the block does; what it says goes to the log."""
    with log.open("w") as file, subprocess.Popen(command, stdout=file, stderr=file, **options) as process:
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:  # a server may wait for a kernel that is gone
                process.kill()


def wait(ready: Callable[[], Any], what: str, seconds: float = 300) -> Any:
    """What `ready()` returns once it is something; a file or an answer that is not there yet is nothing.

    raises   TimeoutError
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(OSError, ValueError, LookupError, StopIteration):
            if found := ready():
                return found
        time.sleep(0.1)
    raise TimeoutError(f"{what}: not there after {seconds} seconds")
