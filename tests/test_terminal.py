"""Terminals that have few signs, readers that are gone, and Ctrl-C at any moment."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from minitransformer import terminal
from minitransformer.backend import available
from minitransformer.cli import main
from minitransformer.training.checkpoint import load

COMMAND = [sys.executable, "-m", "minitransformer"]
SMALL = ["--width", "8", "--depth", "1", "--heads", "2", "--batch", "2", "--context", "8", "--steps", "2"]
ASCII = {"LC_ALL": "C", "PYTHONIOENCODING": "", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
BUFFERED = os.environ | {"PYTHONUNBUFFERED": ""}  # as usual, so the last of it is written at the end
TEXT = "für θ² – und so weiter … "


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A text that is not ASCII, and a small model of it."""
    folder = tmp_path_factory.mktemp("terminal")
    (folder / "mine.txt").write_text(TEXT * 100, encoding="utf-8")
    assert main(["train", str(folder / "mine.txt"), *SMALL, "--out", str(folder / "small")]) == 0
    return folder


def run(folder, *argv, **environment):
    return subprocess.run(
        [*COMMAND, *argv], cwd=folder, env=os.environ | environment, capture_output=True, stdin=subprocess.DEVNULL
    )


NAMES = {
    "θ": "theta", "Π": "Pi", "²": "^2", "₀": "_0", "ᵀ": "^T", "⁻": "^-", "·": "*", "–": "-", "…": "...", "é": "e", "≤": "<=",
    "½": "1/2", "●": "o", "│": "|", "—": "-", "\u0302": "", "\N{REPLACEMENT CHARACTER}": "?",
}  # fmt: skip


@pytest.mark.parametrize(("sign", "readable"), NAMES.items(), ids=ascii)
def test_a_sign_has_a_name_in_ascii(sign, readable):
    assert sign.encode("ascii", "in_ascii").decode() == readable
    assert f"a{sign}{sign}b".encode("ascii", "in_ascii").decode() == f"a{readable}{readable}b"


def test_every_sign_of_the_map_has_a_name_of_its_own(root):
    """A question mark is for what a model makes up."""
    text = (root / "minitransformer/book/equations.toml").read_text(encoding="utf-8")
    assert [sign for sign in sorted(set(text)) if terminal.in_ascii(sign) == "?" and sign != "?"] == []


def test_whatever_a_model_makes_up_can_be_written():
    """A letter in a script need be no ASCII letter, nor only one."""
    assert [sign for sign in map(chr, range(128, 0x30000)) if not terminal.in_ascii(sign).isascii()] == []
    assert [terminal.in_ascii(sign) for sign in "ᵝ℠"] == ["^beta", "^SM"]


def test_only_what_cant_be_encoded_is_replaced():
    assert "naïve θ".encode("latin-1", "in_ascii") == "naïve theta".encode("latin-1")
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("utf-8", "in_ascii")


def test_what_a_file_of_others_says_is_quoted_in_a_line():
    assert terminal.in_a_line("a\x1b[2J\r\nb\tü") == "a·[2J b ü"
    assert terminal.in_a_line("x" * 100) == "x" * 100
    assert terminal.in_a_line("a" * 60 + "b" * 60) == f"{'a' * 50} … {'b' * 50}"


def test_an_error_can_not_ring_or_clear_the_terminal(capsys):
    terminal.say("a\x1b[2J\x07 is no name\nsecond")
    assert capsys.readouterr().err == "minitransformer: a·[2J· is no name\nsecond\n"


def test_control_characters_are_shown_as_dots():
    """A title, a bell, a screen that is cleared, a line that is written over: all but the ends of lines and tabs."""
    assert terminal.shown("a\x1b[2J\x07\x00\r\x7f\x9bb\tü\n· �\r\n") == "a·[2J·····b\tü\n· �\r\n"


PRINTING = [
    ("--help",),
    ("train", "--help"),
    ("attentions",),
    ("equations",),
    ("equations", "--markdown"),
    ("equations", "--check"),
    ("doctor",),
    ("experiment",),
    ("figures", "scale_by_sqrt_d"),
    ("generate", "small", "A"),
    ("train", "mine.txt", *SMALL, "--out", "new"),
    ("train", "--task", "dates", *SMALL[:8], "--steps", "1", "--out", "dates"),
]


ONE_BY_ONE = """
import os, sys
from minitransformer.backend import available
from minitransformer.cli import main

before = os.dup(1), os.dup(2)
for number, argv in enumerate(eval(sys.argv[1])):
    file = os.open(f"said-{number}", os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1), os.dup2(file, 2)
    try:
        code = main(argv)
    except SystemExit as end:
        code = end.code
    sys.stdout.flush()
    os.dup2(before[0], 1), os.dup2(before[1], 2)
    print(code, flush=True)
"""


def test_every_command_prints_on_a_terminal_of_few_signs(folder):
    """One after the other, in one process that has such a terminal; and so is trouble told."""
    wrong = ("train", "mine.txt", "--attention", "window:radio=3")
    script = [sys.executable, "-c", ONE_BY_ONE, ascii([*PRINTING, wrong])]
    environment = os.environ | ASCII | {"MINITRANSFORMER_FIGURES": str(folder)}
    done = subprocess.run(script, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["0"] * len(PRINTING) + ["1"], done.stderr
    said = [(folder / f"said-{number}").read_bytes() for number in range(len(PRINTING) + 1)]
    for argv, words in zip(PRINTING, said, strict=False):
        assert words, argv
        assert words.isascii(), argv
        assert b"Error" not in words, argv
    assert b"as window:radius=..." in said[-1]


@pytest.mark.each_value
@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "0>&- 1>&- 2>&-", "| true", "2>&1 | true"])
@pytest.mark.parametrize("argv", ["equations --markdown", "train mine.txt --out {out} " + " ".join(SMALL), "nothing"])
def test_nobody_listens(folder, tmp_path, closed, argv):
    """The run of a model comes to its end, and nobody complains."""
    out = tmp_path / "new"
    command = " ".join([*COMMAND, argv.format(out=out), closed])
    done = subprocess.run(command, shell=True, cwd=folder, env=BUFFERED, capture_output=True)
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    if "|" not in closed:
        assert done.returncode == 2 * (argv == "nothing")
    if "train" in argv and "2>&1 |" not in closed:
        assert load(out).state.step == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_that_does_not_fit_is_told_in_one_line(folder):
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "attentions"], stdout=full, stderr=subprocess.PIPE, env=BUFFERED, text=True)
    assert (done.returncode, done.stderr) == (1, "minitransformer: No space left on device\n")


ON_IMPORT = """
import signal, sys
from minitransformer.backend import available
from minitransformer.cli import main

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                raise ImportError("the exception is lost, as in NumPy's own import") from None

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, CtrlC())
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("module", "argv"),
    [
        ("minitransformer.book.book", ("equations",)),
        ("minitransformer.training.loop", ("train", "mine.txt")),
        ("numba", ("train", "mine.txt")),
        ("minitransformer.book.compile_loops", ("compile",)),
        pytest.param("tqdm", ("equations",), marks=pytest.mark.full),
        pytest.param("minitransformer.models", ("train", "mine.txt"), marks=pytest.mark.full),
        pytest.param("numba.core.dispatcher", ("train", "mine.txt"), marks=pytest.mark.full),
        pytest.param("minitransformer.kernels.attention", ("train", "mine.txt"), marks=pytest.mark.full),
        pytest.param("safetensors.numpy", ("train", "mine.txt"), marks=pytest.mark.full),
        pytest.param("minitransformer.experiments", ("experiment",), marks=pytest.mark.full),
    ],
)
def test_ctrl_c_ends_an_import(folder, tmp_path, module, argv):
    out = ("--out", str(tmp_path / "new")) if "train" in argv else ()
    done = subprocess.run(
        [sys.executable, "-c", ON_IMPORT, module, *argv, *out], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 130
    assert done.stderr.endswith("\nminitransformer: interrupted\n") or "interrupted after step 0" in done.stderr
    assert "Traceback" not in done.stderr


def started(*argv, **options):
    """The command in a session of its own, where Ctrl-C is not ignored."""
    hears = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
    return subprocess.Popen(
        [*COMMAND, *argv], stderr=subprocess.PIPE, preexec_fn=hears, start_new_session=True, **options
    )


def compilers(parent):
    """The processes that compile, as folders of Linux; nothing elsewhere."""
    children, found = Path(f"/proc/{parent}/task/{parent}/children"), []
    for child in children.read_text().split() if children.exists() else []:
        with suppress(OSError):  # it has ended since
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(Path("/proc") / child)
    return found


@pytest.mark.skipif("numba" not in available(), reason="needs Numba")
def test_ctrl_c_ends_the_compilers_too(tmp_path):
    process = started("compile", env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)})
    while not list(tmp_path.rglob("*.nbc")):  # they are at work
        assert process.poll() is None
        time.sleep(0.05)
    for compiler in compilers(process.pid):
        blocked = int(re.search(r"SigBlk:\s+(\w+)", (compiler / "status").read_text())[1], 16)
        assert blocked & 1 << signal.SIGINT - 1  # or else it would print a traceback of its own
    os.killpg(process.pid, signal.SIGINT)
    stderr = process.communicate()[1].decode()  # it ends when nobody is left who could write there
    assert process.returncode == 130
    assert stderr.endswith("\nminitransformer: interrupted\n")
    assert "Traceback" not in stderr


LEAVES_A_LOCK = """
import multiprocessing, os, signal
from minitransformer.terminal import ctrl_c_waits

spawn = multiprocessing.get_context("spawn")

def dies():
    lock = spawn.RLock()
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    with ctrl_c_waits():
        child = spawn.Process(target=dies)
        child.start()
    child.join()
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows")
def test_a_worker_that_is_killed_leaves_no_warning_of_python(tmp_path):
    """Numba has a lock in each. It is taken away, and after Ctrl-C two lines said so."""
    (tmp_path / "leaves.py").write_text(LEAVES_A_LOCK)
    done = subprocess.run([sys.executable, str(tmp_path / "leaves.py")], capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows ends a process in its own way")
def test_a_training_that_is_told_to_end_saves_what_it_has(folder, tmp_path):
    """By SIGTERM, as `kill` and a queue of jobs do. Before, all was lost since the last time that it had saved."""
    out = tmp_path / "new"
    argv = [*COMMAND, "train", "mine.txt", *SMALL[:-1], "1000000", "--out", str(out)]
    process = subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not out.exists() or load(out).state.step == 0:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert b"interrupted after step" in process.communicate()[1]
    assert process.returncode == 130
    assert load(out).training.steps == 1000000
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_that_is_told_to_end_has_nothing_to_save():
    with terminal.ctrl_c_raises():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        child = os.fork()
        if not child:
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_training_in_the_background_does_not_hear_ctrl_c(folder, tmp_path):
    """As the shell wants it for `minitransformer train &`."""
    deaf = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)  # noqa: E731
    argv = [*COMMAND, "train", "mine.txt", *SMALL, "--out", str(tmp_path / "new")]
    process = subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=deaf)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    process.communicate()
    assert process.returncode == 0
    assert load(tmp_path / "new").state.step == 2


def test_the_answer_to_ctrl_c_is_given_back():
    """A notebook or a test that calls `main` keeps its own."""
    before = signal.getsignal(signal.SIGINT)
    with terminal.ctrl_c_ends():
        assert signal.getsignal(signal.SIGINT) is terminal.end
        with terminal.ctrl_c_raises(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is terminal.end
    assert signal.getsignal(signal.SIGINT) is before


BEGUN = """
import signal, sys
for program, wish in eval(sys.argv[1]):
    for name in [name for name in sys.modules if name.startswith("minitransformer")]:
        del sys.modules[name]
    sys.argv[0] = program
    signal.signal(signal.SIGINT, getattr(signal, wish))
    import minitransformer.cli.command
    print(getattr(signal.getsignal(signal.SIGINT), "__name__", "SIG_IGN"))
"""
ANSWERS = {
    ("-m", "default_int_handler"): "end",
    ("/usr/bin/minitransformer", "default_int_handler"): "end",
    ("/usr/bin/minitransformer", "SIG_IGN"): "SIG_IGN",
    (terminal.__file__.replace("terminal", "__main__"), "default_int_handler"): "end",
    ("my_program.py", "default_int_handler"): "default_int_handler",
    ("pytest/__main__.py", "default_int_handler"): "default_int_handler",
}


def test_only_the_command_answers_ctrl_c_in_its_own_way():
    argv = [sys.executable, "-c", BEGUN, repr(list(ANSWERS))]
    assert subprocess.run(argv, capture_output=True, text=True).stdout.split() == list(ANSWERS.values())


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="needs a mask of signals")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_waits_until_it_may_be_heard(sent):
    heard = []
    before = signal.signal(sent, lambda number, _: heard.append(number))
    try:
        with terminal.ctrl_c_waits():
            signal.pthread_kill(threading.get_ident(), sent)
            assert heard == []
        assert heard == [sent]
    finally:
        signal.signal(sent, before)


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="needs a mask of signals")
def test_ctrl_c_waits_also_where_another_thread_takes_it():
    """A signal goes to any thread that lets it through, such as those of a BLAS, and Python handles it in the main one."""
    heard = []
    end = threading.Event()
    older = threading.Thread(target=end.wait)
    older.start()
    before = signal.signal(signal.SIGINT, lambda *_: heard.append(1))
    try:
        with terminal.ctrl_c_waits():
            signal.pthread_kill(older.ident, signal.SIGINT)
            time.sleep(0.1)
            assert heard == []
        assert heard == [1]
    finally:
        signal.signal(signal.SIGINT, before)
        end.set()


def test_a_terminal_that_has_the_signs_gets_them(folder):
    assert "O(n²)" in run(folder, "attentions", PYTHONIOENCODING="utf-8").stdout.decode()
