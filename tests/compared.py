"""What `pytest --equation ID` tells of a test that has passed: where it stands, its docstring, and what it compared."""

import ast
import functools
import inspect
import math
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

COMPARING = [
    *((np.testing, name) for name in ("assert_allclose", "assert_array_equal")),
    *((np, name) for name in ("allclose", "array_equal")),
    (math, "isclose"),
]


@contextmanager
def comparisons(test):
    """Within this block, what the file of a test compares: by line, the shape and the largest difference of each time."""
    noted, file = {}, inspect.getsourcefile(test)

    def noting(compare):
        @functools.wraps(compare)
        def call(actual, wanted, *args, **kwargs):
            __tracebackhide__ = True
            result, frame = compare(actual, wanted, *args, **kwargs), sys._getframe(1)
            if frame.f_code.co_filename == file:
                noted.setdefault(frame.f_lineno, []).append(difference(actual, wanted))
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for module, name in COMPARING:
            patch.setattr(module, name, noting(getattr(module, name)))
        yield noted


def difference(actual, wanted):
    """The shape of two arrays or numbers side by side, and the largest difference between them."""
    actual, wanted = np.asarray(actual, float), np.asarray(wanted, float)
    with np.errstate(invalid="ignore"):
        gaps = np.where(actual == wanted, 0, np.abs(actual - wanted))  # ∞ is ∞
    return gaps.shape, float(gaps.max(initial=0))


def told(item, noted):
    """The text: a line for each assertion, and below it what was noted there."""
    test = inspect.unwrap(item.obj)
    lines, first = inspect.getsourcelines(test)
    text = [item.nodeid, "", inspect.getdoc(test) or "", "", "It has compared, line by line:"]
    for node in ast.walk(ast.parse(Path(inspect.getsourcefile(test)).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assert) or (isinstance(node, ast.Expr) and ".assert_" in ast.unparse(node)):
            here = [pair for line in range(node.lineno, node.end_lineno + 1) for pair in noted.get(line, [])]
            if here or first <= node.lineno < first + len(lines):
                text.append(f"{node.lineno:5}  {ast.unparse(node).removeprefix('np.testing.')}")
            if here:
                shapes, gaps = zip(*here, strict=True)
                of = " and ".join(dict.fromkeys("numbers" if s == () else f"arrays {s}" for s in shapes))
                often = f", {len(here)} times" if len(here) > 1 else ""
                text.append(f"{'':9}{of}{often}: the largest difference is {max(gaps):.2g}")
    return "\n".join(text)
