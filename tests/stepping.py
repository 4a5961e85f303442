"""What stands behind `pytest --equation ID --trace`: a debugger that stops where the book computes, and nowhere else.

Between the line of a test that calls a function and that function's first line, checks are made: of shapes, of dtypes, of
parameters, and inside the function a tier is chosen. All that is code of the book, too, and Python's debugger would lead
through each line of it. This one leaves out a frame of that kind and all that it calls. The one way through is the frame
named `call`, in which a check calls the function that it has checked.
"""

import inspect
import os
import pdb
import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BOOK = (str(ROOT / "minitransformer") + os.sep, str(ROOT / "tests") + os.sep)
# the files of checks and choices, and a folder of them, which .vscode/launch.json names, too
ASIDE = {"typing.py", "checks", "marks.py", "backend.py", "arrays.py", "lazy_import.py"}
NAMES = ("refuse", "_refuse", "must_", "loops_in", "<module>")  # ... and beginnings of names, elsewhere


def aside(frame):
    """Whether a frame checks, chooses, refuses or imports."""
    code = frame.f_code
    folder, file = os.path.split(code.co_filename)
    return file in ASIDE or os.path.basename(folder) in ASIDE or code.co_name.startswith(NAMES)


def shown(frame):
    """Whether a reader should come here: into the book or its tests, and not into what stands aside, nor into what that calls."""
    if not frame.f_code.co_filename.startswith(BOOK) or aside(frame):
        return False
    while frame := frame.f_back:
        if frame.f_code.co_filename.startswith(BOOK) and aside(frame) and frame.f_code.co_name != "call":
            return False
    return True


def caller(frame):
    """The next frame above that is shown, or None."""
    frame = frame.f_back
    while frame and not shown(frame):
        frame = frame.f_back
    return frame


def codes_of(function):
    """What is run when a function is called, or any method of a class, its own or inherited, but no constructor."""
    if not isinstance(function, type):
        return {inspect.unwrap(function).__code__}
    kinds = [vars(kind) for kind in function.__mro__ if kind.__module__.startswith("minitransformer.")]
    methods = [m for kind in kinds for name, m in kind.items() if name == "__call__" or not name.startswith("__")]
    return {inspect.unwrap(method).__code__ for method in methods if inspect.isfunction(method)}


class Found(BaseException):
    """Ends a test that is run only to find a call."""


def first_call(test, codes):
    """The code and the line that first call one of these codes, and the code that is called: the test is run to find out.

    A call of `init` counts only if there is no other, and then one from the book only if there is none from the tests.
    """
    calls = []

    def note(frame, event, _):
        if event == "call" and frame.f_code in codes and shown(frame) and (above := caller(frame)):
            in_book = above.f_code.co_filename.startswith(BOOK[0])
            calls.append((frame.f_code.co_name == "init", in_book, above.f_code, above.f_lineno, frame.f_code))
            if calls[-1][:2] == (False, False):
                raise Found

    sys.setprofile(note)
    try:
        with suppress(Found, Exception):  # a test that fails is one to step through
            test()
    finally:
        sys.setprofile(None)
    return min(calls, key=lambda call: call[:2])[2:] if calls else None


def watched():
    """Whether a debugger is looking on, such as that of an editor."""
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    return sys.gettrace() is not None or (monitoring and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None)


class Debugger(pdb.Pdb):
    """Python's debugger, which goes on by itself to the call of an equation's function. There one `s` leads to its first line,
    `r` back behind the call, and `u` and `w` show the frames of tests and of the book alone."""

    place = None  # where it goes by itself: what `first_call` returns
    into = None  # the one code in which the next `s` may stop
    called = None  # what `into` will be if the next key is `s`

    def stop_here(self, frame):
        if self.place or self.into:
            return frame.f_code is (self.into or self.place[0])
        return shown(frame) and super().stop_here(frame)

    def trace_dispatch(self, frame, event, arg):
        on_its_way = self.place or self.into
        elsewhere = self.place and self.botframe and frame.f_code is not self.place[0]
        if elsewhere or (on_its_way and event in ("return", "exception")):
            return frame.f_trace
        return super().trace_dispatch(frame, event, arg)

    def user_call(self, frame, arguments):
        """Not here, at the line of `def`, but at the first line that computes."""

    def user_line(self, frame):
        self.into = self.called = None
        if self.place:
            code, line, called = self.place
            if (frame.f_code, frame.f_lineno) != (code, line):
                return
            self.place, self.called = None, called
        super().user_line(frame)

    def do_step(self, arg):
        self.into = self.called
        return super().do_step(arg)

    do_s = do_step

    def do_return(self, arg):
        """Go on until this function has returned, and stop in the one that called it."""
        above = caller(self.curframe)
        if above is None:
            return super().do_return(arg)
        above.f_trace = self.trace_dispatch
        self.set_next(above)
        # a generator expression stands on one line, and Python 3.14 would not stop on it again
        self.cmdframe = None
        return 1

    do_r = do_return

    def get_stack(self, frame, traceback):
        stack, current = super().get_stack(frame, traceback)
        kept = [pair for pair in stack if shown(pair[0]) or pair is stack[current]]
        return kept, kept.index(stack[current]) if kept else 0
