"""Run cells one after another in Pyodide: what each shows comes back as outputs of the notebook format.

`python.mjs` puts this into the runtime and calls `run_cell`. It needs nothing but the standard library, so a cell of
`print("hello")` does not wait for NumPy.
"""

import ast
import base64
import builtins
import json
import linecache
import os
import sys
import time
import traceback
import types

import __main__

BOOK = "/book"  # the package, as in a repository: some chapters read files of it
RICH = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
}


def begin() -> None:
    """Stand where a chapter stands."""
    os.makedirs(f"{BOOK}/notebooks", exist_ok=True)
    os.makedirs(f"{BOOK}/figures", exist_ok=True)
    os.chdir(f"{BOOK}/notebooks")
    os.environ["MPLBACKEND"] = "agg"
    builtins.display = display
    sys.modules["IPython.display"] = types.ModuleType("IPython.display")  # nobody needs more of IPython
    sys.modules["IPython.display"].display = display


outputs: list[dict] = []  # of the cell that runs
heard = None  # is told what is printed, while the cell still runs


def display(*values, raw: bool = False) -> None:
    """Show values as IPython's function does; raw ones are dictionaries from kinds to contents."""
    for value in values:
        if hasattr(value, "_ipython_display_"):
            value._ipython_display_()
        elif raw:
            outputs.append({"output_type": "display_data", "data": value, "metadata": {}})
        else:
            outputs.append(shown(value, "display_data"))


class Printed:
    """A stream that keeps what is written to it among the outputs, in the order of the cell."""

    def __init__(self, name: str) -> None:
        self.name = name

    def write(self, text: str) -> int:
        if not outputs or outputs[-1].get("name") != self.name:
            outputs.append({"output_type": "stream", "name": self.name, "text": ""})
        outputs[-1]["text"] += text
        if heard:
            heard(text)
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


def shown(value, kind: str) -> dict:
    """A value as an output: its representations by kind, text always among them."""
    data, metadata = {}, {}
    if hasattr(value, "_repr_mimebundle_"):
        found = value._repr_mimebundle_()
        data, metadata = found if isinstance(found, tuple) else (found, {})
    else:
        found = {mime: getattr(value, name)() for mime, name in RICH.items() if hasattr(value, name)}
        data = {mime: content for mime, content in found.items() if content is not None}
    data = {"text/plain": repr(value)} | data
    text = {mime: base64.b64encode(c).decode() if isinstance(c, bytes) else c for mime, c in data.items()}
    return {"output_type": kind, "data": text, "metadata": metadata}


def run_cell(code: str, name: str, tell=None) -> str:
    """Run a cell; outputs, the traceback of an error or None, and seconds, as JSON.

    name   stands in tracebacks, as the file
    tell   is called with each piece of text when it is printed
    """
    global heard
    outputs.clear()
    heard, error, start = tell, None, time.perf_counter()
    file = f"<{name}>"
    linecache.cache[file] = (
        len(code),
        None,
        code.splitlines(keepends=True),
        file,
    )  # for tracebacks and inspect.getsource
    old, sys.stdout, sys.stderr = (sys.stdout, sys.stderr), Printed("stdout"), Printed("stderr")
    try:
        value = _value(code, file)
        if hasattr(value, "_ipython_display_"):
            value._ipython_display_()
        elif value is not None:
            outputs.append(shown(value, "execute_result"))
    except BaseException as problem:
        error = "".join(traceback.format_exception(_from_here(problem)))
    finally:
        sys.stdout, sys.stderr = old
        heard = None
    return json.dumps({"outputs": outputs, "error": error, "seconds": time.perf_counter() - start})


def _value(code: str, file: str):
    """Run the code among the names of the chapter; the value of its last line, if that is an expression without `;`."""
    tree, space = ast.parse(code, file), __main__.__dict__
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, file, "exec"), space)
    if last:
        value = eval(compile(ast.Expression(last.value), file, "eval"), space)
        return None if code.rstrip().endswith(";") else value


def _from_here(problem: BaseException) -> BaseException:
    """The error without the lines of this file, which called the cell."""
    trace = problem.__traceback__
    while trace and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return problem.with_traceback(trace)
