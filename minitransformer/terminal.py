"""What stands between a command and its terminal: characters that the terminal may lack or should not get, and Ctrl-C.

It imports nothing that takes time, so Ctrl-C is answered while all the rest is being imported.
"""

import codecs
import os
import re
import signal
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any

SIGNS = {
    "−": "-", "–": "-", "…": "...", "·": "*", "×": "x", "÷": "/", "±": "+-", "⊙": "(*)", "√": "sqrt", "∂": "d", "∞": "inf",
    "∝": "~", "≈": "~", "≤": "<=", "≥": ">=", "≠": "!=", "→": "->", "←": "<-", "⟨": "<", "⟩": ">", "‖": "||", "′": "'",
    "⌈": "ceil(", "⌉": ")", "⌊": "floor(", "⌋": ")", "°": " deg", "∏": "prod", "⊤": "T", "½": "1/2", "¼": "1/4",
    "●": "o", "│": "|", "—": "-",
}  # fmt: skip
CONTROL = re.compile(r"(?!\r\n)[\x00-\x08\x0b-\x1f\x7f-\x9f]")
SCRIPTS = {"<super>": "^", "<sub>": "_"}


# ------------------------------------------------------------------------------------------------- signs


def in_ascii(sign: str) -> str:
    """How a character is spelled in ASCII: θ is theta, ² is ^2, ≤ is <=, é is e; one without a spelling is a question mark."""
    if sign in SIGNS:
        return SIGNS[sign]
    kind, _, codes = unicodedata.decomposition(sign).rpartition("> ")
    if kind + ">" in SCRIPTS:
        letters = (chr(int(code, 16)) for code in codes.split())
        return SCRIPTS[kind + ">"] + "".join(letter if letter.isascii() else in_ascii(letter) for letter in letters)
    alphabet, _, letter = unicodedata.name(sign, "").partition(" LETTER ")
    if alphabet.startswith("GREEK"):
        return letter.lower() if alphabet.endswith("SMALL") else letter.capitalize()
    if unicodedata.combining(sign):
        return ""
    return unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode() or "?"


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """What Python writes in place of characters that a stream can't encode, and where it goes on after them."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = "".join(map(in_ascii, error.object[error.start : error.end]))
    return signs, error.end


codecs.register_error("in_ascii", _replaced)


def shown(text: str) -> str:
    """A text that a model has generated, with a · for each character that could ring, colour or clear a terminal.

    Tabs and ends of lines, \\n and \\r\\n, stay.
    """
    return CONTROL.sub("·", text)


def in_a_line(text: object, longest: int = 100) -> str:
    """What a file of others says, in one line: a · for each control character, the middle of a long text left out."""
    line = CONTROL.sub("·", " ".join(str(text).splitlines())).replace("\t", " ")
    return line if len(line) <= longest else f"{line[: longest // 2]} … {line[-longest // 2 :]}"


def columns() -> int:
    """How wide lines of text should be: as the terminal, but from 60 to 100 characters; 100 where there is no terminal."""
    import shutil  # takes time

    return min(100, max(60, shutil.get_terminal_size((100, 24)).columns))


def prepare() -> None:
    """Let standard output and error take any character, in ASCII if need be; what is written to a closed one is dropped."""
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  (as long as we live)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="in_ascii")


def say(line: object, before: str = "") -> None:
    """One line on standard error, if there is one; what it quotes from a file can't ring, colour or clear the terminal."""
    with suppress(OSError):
        print(f"{before}minitransformer: {shown(str(line))}", file=sys.stderr, flush=True)


def finish() -> None:
    """Flush both streams, and drop what can't be written: Python would try again when it ends, and complain."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


# ------------------------------------------------------------------------------------------------ Ctrl-C


def end(*_: object) -> None:
    """End the process at once, with exit code 130: there is nothing to save or to tidy up."""
    with suppress(OSError):
        os.write(2, b"\nminitransformer: interrupted\n")
    os._exit(130)


def begin() -> None:
    """Ctrl-C ends this process from now on if it is the command, and no notebook, test or other program."""
    if _is_command(sys.argv[0]) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)


def _is_command(program: str) -> bool:
    """Whether a program is the script, or `python -m`, which names its file only after it has imported the package."""
    module = os.path.join(os.path.dirname(__file__), "__main__.py")
    return program in ("-m", module) or os.path.basename(program).removesuffix(".exe") == "minitransformer"


def ctrl_c_ends() -> AbstractContextManager[None]:
    """In this block Ctrl-C ends the process. An exception could get lost: an import of NumPy turns it into an ImportError."""
    return _on(signal.SIGINT, end)


@contextmanager
def ctrl_c_raises() -> Iterator[None]:
    """In this block Ctrl-C raises KeyboardInterrupt, for code that has something to save or to tidy up.

    So does SIGTERM, with which `kill`, or a queue whose time is up, ends a job.
    """
    ours = os.getpid()

    def terminated(number: int, frame: Any) -> None:
        if os.getpid() != ours:  # a fork of this process has nothing to save
            os._exit(128 + number)
        signal.default_int_handler(number, frame)

    with _on(signal.SIGINT, signal.default_int_handler), _on(signal.SIGTERM, terminated):
        yield


@contextmanager
def _on(number: int, handler: Any) -> Iterator[None]:
    before = signal.getsignal(number)
    if before is signal.SIG_IGN:  # the shell wants it so: `minitransformer train &`
        yield
        return
    signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """In this block Ctrl-C and SIGTERM wait, and a process that is started in it never hears Ctrl-C: its parent has to end it.

    A fork does not hear SIGTERM either.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    import threading
    from multiprocessing import resource_tracker

    # The tracker removes the lock of Numba that a killed process leaves behind, and would warn of it. It unblocks the signal when
    # it starts: if not here, it would start with the first process, inside the block
    sys.warnoptions.append("ignore:resource_tracker")
    resource_tracker.ensure_running()
    sys.warnoptions.pop()
    heard: list[int] = []
    main = threading.current_thread() is threading.main_thread()
    try:
        # the mask is for what is started here: an older thread may take the signal, and Python gives it to the main one
        with ExitStack() as stack:
            for number in (signal.SIGINT, signal.SIGTERM) if main else ():
                stack.enter_context(_on(number, lambda number, _: heard.append(number)))
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                yield
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
    finally:
        if heard:
            signal.raise_signal(heard[0])
