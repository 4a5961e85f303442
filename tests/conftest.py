"""`pytest --equation borealis-18` runs the test that spells out one equation; with `--trace`, step by step."""

import difflib
import pdb
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from minitransformer.workshop import equations

threadpool_limits(1, "blas")  # tests run side by side, on every core one: their BLAS threads would wait for each other

ROOT = Path(__file__).resolve().parents[1]

collect_ignore = ["browser"]  # needs a browser and minutes: `make browser` asks for it


def pytest_addoption(parser):
    parser.addoption(
        "--equation", metavar="ID", help="run the test of one row of the equation map, such as borealis-18"
    )


class Debugger(pdb.Pdb):
    """Stops in the code of the book only: `s` leads into its functions, past the checks of shapes before them."""

    def stop_here(self, frame):
        file = Path(frame.f_code.co_filename)
        ours = ROOT / "tests" in file.parents or ROOT / "minitransformer" in file.parents
        return ours and file.name != "typing.py" and super().stop_here(frame)


def pytest_configure(config):
    if config.getoption("usepdb_cls") is None:
        config.option.usepdb_cls = (__name__, "Debugger")
    wish = config.getoption("--equation")
    if wish is None:
        return
    tests = {row.id: row.test for row in equations.load()}
    if wish not in tests:
        near = difflib.get_close_matches(wish, tests, cutoff=0.4) or sorted(tests)
        raise pytest.UsageError(f"no equation {wish!r} in the map; near it: {', '.join(near)}")
    config.args[:] = [str(ROOT / tests[wish])]


@pytest.fixture(scope="session")
def root():
    """The top of the repository."""
    return ROOT


@pytest.fixture
def rng():
    """A generator of its own for each test: the order of tests does not matter."""
    return np.random.default_rng(1)
