"""For every row of the equation map the debugger stops at the call, one `s` leads into the function, and one `r` back."""

import functools
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
from bdb import BdbQuit
from contextlib import suppress
from pathlib import Path

import pytest

from minitransformer.backend import TIERS, available, backend
from minitransformer.book import equations
from tests.stepping import ASIDE, ROOT, Debugger, codes_of, first_call

STOP = re.compile(r"^> (.+)\(\d+\)(\S+)\(\)", re.MULTILINE)
ROWS = equations.load()
CALLED_BY_THE_BOOK = {  # and by no line of their tests
    *("borealis-22", "borealis-local-attention", "borealis-longformer", "borealis-etc", "borealis-gmlp"),
    *("gru-free-candidates", "gru-positions", "borealis-11", "aalto-17", "cs224n-relative-positions"),
}


@functools.cache
def module(file):
    spec = importlib.util.spec_from_file_location(file.replace("/", "."), ROOT / file)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def stepped(test, place, *keys):
    """What the debugger says before the first key and after each; it begins at this place."""
    said = io.StringIO()
    debugger = Debugger(stdin=io.StringIO("\n".join([*keys, "q", ""])), stdout=said, nosigint=True, readrc=False)
    debugger.place = place
    with suppress(BdbQuit):
        debugger.runcall(test)
    return said.getvalue().split("(Pdb) ")[: len(keys) + 1]


@pytest.mark.each_value
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("row", ROWS, ids=[row.id for row in ROWS])
def test_one_key_leads_into_the_function_and_one_back(row, tier):
    if tier not in available():
        pytest.skip(f"this machine has no tier {tier}")
    file, _, name = row.test.partition("::")
    test = getattr(module(file), name)
    with backend(tier):
        place = first_call(test, codes_of(equations.resolve(row.function)))
        said = stepped(test, place, "s", "p 6 * 7", "n", "u", "d", "r")
    caller, line, function = place
    start, inside, printed, following, up, down, back = said

    assert caller.co_filename == str(ROOT / file) or row.id in CALLED_BY_THE_BOOK
    assert start.startswith(f"> {caller.co_filename}({line}){caller.co_name}()")
    assert STOP.findall(inside) == [(function.co_filename, function.co_name)]
    assert "--Call--" not in inside
    assert printed == "42\n"
    assert STOP.findall(up) == STOP.findall(start)
    assert STOP.findall(down)[0][1] == STOP.findall(following)[0][1] == function.co_name
    assert STOP.findall(back) == [(caller.co_filename, caller.co_name)]


@pytest.mark.full
def test_rows_can_be_stepped_through_as_plain_python():
    """With NUMBA_DISABLE_JIT=1, where the tier "numba" is loops that a debugger can enter."""
    options = ["-q", "--all", "-p", "no:cacheprovider", __file__, "-k", "test_one_key and numba"]
    env = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-m", "pytest", *options], cwd=ROOT, env=env, capture_output=True, text=True)
    assert f"{len(ROWS)} passed" in done.stdout, done.stdout


class Terminal:
    """A command that believes that it talks to a person."""

    def __init__(self, *command, **environment):
        pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")
        self.ours, its = pty.openpty()
        environment = os.environ | environment | {"TERM": "dumb"}
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=its, stdout=its, stderr=its)
        os.close(its)

    def press(self, key=""):
        """Type a line, if there is one; return what is answered, up to the next prompt or the end."""
        if key:
            os.write(self.ours, f"{key}\n".encode())
        said = b""
        with suppress(OSError):  # the other side has closed
            while not said.endswith(b"(Pdb) "):
                said += os.read(self.ours, 4096)
        return said.decode().replace("\r\n", "\n")


@pytest.mark.skipif("numba" not in available(), reason="needs Numba")
def test_at_a_terminal_one_steps_from_a_test_into_a_compiled_loop():
    """With NUMBA_DISABLE_JIT=1, the loop is plain Python."""
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--equation", "borealis-1", "--trace")
    terminal = Terminal(*command, NUMBA_DISABLE_JIT="1", MINITRANSFORMER_BACKEND="numba")
    assert "-> Y, _ = dot_product_attention(X @ Phi_q, X @ Phi_k, X @ Phi_v)" in terminal.press()
    assert "/attention/dot_product.py" in terminal.press("s")
    assert "(4, 3)" in terminal.press("p Q.shape")
    assert any("attend_few()" in terminal.press("s") for _ in range(100))
    assert "test_borealis_eq_1_self_attention()" in terminal.press("w")
    assert "1 passed" in terminal.press("c")
    assert terminal.process.wait() == 0


def test_it_tells_what_an_equation_is_and_what_was_compared():
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--equation", "borealis-1")
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert told.startswith("\ntests/equations/test_borealis.py::test_borealis_eq_1_self_attention\n")
    assert "\n    Sa[X] = Softmax[ (X Φ_q)(X Φ_k)ᵀ / √d_q ] X Φ_v\n" in told
    found = re.search(r"assert_allclose\(Y, Sa, .*\n +arrays \(4, 2\): the largest difference is (\S+)", told)
    assert 0 <= float(found[1]) < 1e-13


def configurations(root):
    """Those of VS Code, with its variables filled in."""
    text = (root / ".vscode" / "launch.json").read_text(encoding="utf-8")
    for name, value in {"${workspaceFolder}": root.as_posix(), "${input:equation}": "borealis-1"}.items():
        text = text.replace(name, value)
    return json.loads(text)["configurations"]


def test_another_debugger_skips_the_same_files(root):
    for configuration in configurations(root):
        rules = {Path(rule["path"]): rule["include"] for rule in configuration["rules"]}
        own = {root / "minitransformer" / file for file in ASIDE}
        assert rules == {file / "**" if file.is_dir() else file: False for file in own}
        assert all(file.exists() for file in own)


class Editor:
    """As much of the Debug Adapter Protocol as it takes to step, spoken to the debugger of VS Code."""

    def __init__(self):
        command = [sys.executable, "-m", "debugpy.adapter"]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.number = 0

    def say(self, command, **arguments):
        self.number += 1
        request = {"seq": self.number, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(request).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.process.stdin.flush()

    def hear(self, wanted):
        """The next event of this name, or answer to this command."""
        while length := self.process.stdout.readline():
            self.process.stdout.readline()
            message = json.loads(self.process.stdout.read(int(length.split(b":")[1])))
            if wanted in (message.get("event"), message.get("command")):
                return message.get("body")
        raise EOFError(wanted)

    def stack(self):
        """File and function of each frame, where it stops next."""
        thread = self.hear("stopped")["threadId"]
        self.say("stackTrace", threadId=thread)
        frames = self.hear("stackTrace")["stackFrames"]
        return thread, [(Path(frame["source"]["path"]).name, frame["name"]) for frame in frames]


@pytest.mark.full
def test_the_debugger_of_an_editor_needs_one_key_as_well(root):
    pytest.importorskip("debugpy")
    test = ("test_borealis.py", "test_borealis_eq_1_self_attention")
    lines = (root / "tests" / "equations" / test[0]).read_text(encoding="utf-8").splitlines()
    line = 1 + next(k for k, line in enumerate(lines) if "dot_product_attention(X @" in line)
    editor = Editor()
    try:
        editor.say("initialize", adapterID="debugpy", pathFormat="path")
        editor.say("launch", **configurations(root)[0] | {"console": "internalConsole", "python": [sys.executable]})
        editor.hear("initialized")
        source = {"path": str(root / "tests" / "equations" / test[0])}
        editor.say("setBreakpoints", source=source, breakpoints=[{"line": line}])
        editor.say("configurationDone")
        thread, stack = editor.stack()
        assert stack == [test]
        editor.say("stepIn", threadId=thread)
        assert editor.stack() == (thread, [("dot_product.py", "dot_product_attention"), test])
        editor.say("stepOut", threadId=thread)
        assert editor.stack() == (thread, [test])
        editor.say("disconnect", terminateDebuggee=True)
        editor.hear("disconnect")
    finally:
        editor.process.kill()
