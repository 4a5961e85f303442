"""What pytest does for this book.

pytest --equation borealis-18     the test that spells out one equation; with `--trace`, step by step
pytest                            the quick grid: what each mark below leaves of a test's cases
pytest --all                      every case
"""

import copy
import ctypes
import difflib
import functools
import gc
import itertools
import signal
import sys
from collections import Counter, defaultdict
from contextlib import nullcontext, suppress
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from minitransformer import checker, machine
from minitransformer.backend import available, backend
from minitransformer.book import equations
from minitransformer.marks import the_call
from tests.compared import comparisons, told
from tests.stepping import Debugger, codes_of, first_call, watched

machine.keep_freed_memory = lambda *_: False  # or what one test has freed would stay with this process until its end
threadpool_limits(1, "blas")  # tests run side by side, on every core one: their BLAS threads would wait for each other
with suppress(ImportError):  # and so would threads of loops, if they looked for work for as long as a reader's do
    from minitransformer.kernels import threads

    threads.LOOKS = 1000

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell that starts this with & has Ctrl-C ignored,
    signal.signal(signal.SIGINT, signal.default_int_handler)  # and so would all that tests send it
if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

sys.modules["rfc3987_syntax"] = None  # jsonschema would read 38 grammars, a second and 20 MB, and uses none here

ROOT = Path(__file__).resolve().parents[1]
ROWS = {row.test: row for row in equations.load()}
MARKS = {
    "each_value": "in the quick grid, each value of each parameter is tried once, beside others that change as they can",
    "each_pair": "in the quick grid, each pair of values of different parameters is tried once",
    "full": "not in the quick grid",
}
for name, examples in (("quick", 20), ("all", 100)):  # on a machine that is busy, drawing them takes long
    hypothesis.settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )

collect_ignore = ["browser"]  # needs a browser and minutes: `make browser` asks for it


def pytest_addoption(parser):
    parser.addoption(
        "--equation", metavar="ID", help="run the test of one row of the equation map, such as borealis-18"
    )
    parser.addoption("--all", action="store_true", help="the full grid: every combination of what tests are tried with")


def products_raise_flags():
    """Whether a product of ones is said to divide by zero: in its matrix mode a processor (Apple's M4) raises all flags."""
    ones = np.ones((64, 64), np.float32)
    try:
        with np.errstate(divide="raise"):
            np.matmul(ones, ones)
    except FloatingPointError:
        return True
    return False


def pytest_configure(config):
    if config.getoption("usepdb_cls") is None:
        config.option.usepdb_cls = (Debugger.__module__, "Debugger")
    for mark, about in MARKS.items():
        config.addinivalue_line("markers", f"{mark}: {about}")
    if products_raise_flags():
        config.addinivalue_line("filterwarnings", "ignore:.* encountered in (matmul|matvec|vecmat|dot):RuntimeWarning")
    hypothesis.settings.load_profile("all" if config.getoption("--all") else "quick")
    if not config.getoption("--all"):  # every entry of an array at once, and some of them one by one
        checker.DENSE, checker.check_pullback.__kwdefaults__["entries"] = 1, 8
    wish = config.getoption("--equation")
    if wish is None:
        return
    tests = {row.id: row.test for row in equations.load()}
    if wish not in tests:
        near = difflib.get_close_matches(wish, tests, cutoff=0.4)
        others = f"near it: {', '.join(near)}" if near else f"there are {', '.join(sorted(tests))}"
        raise pytest.UsageError(f"no equation {wish!r} in the map; {others}")
    config.args[:] = [str(ROOT / tests[wish])]
    config.option.no_header, config.option.verbose = True, -1


def cover(rows, strength):
    """Some of the rows, in which each value of each column is found (strength 1), or each pair of values (strength 2).

    Of the rows that have what is missing, the one is taken whose values were used least, then whose pairs were.
    """
    parts = [[set(itertools.combinations(enumerate(row), size)) for size in (1, 2)] for row in rows]
    having, used, kept = defaultdict(list), Counter(), []
    for number, row in enumerate(rows):
        for part in itertools.combinations(enumerate(row), min(strength, len(row))):
            having[part].append(number)
    for part, numbers in having.items():
        if not used[part]:
            best = min(numbers, key=lambda number: [sum(used[part] for part in of_size) for of_size in parts[number]])
            kept.append(best)
            for of_size in parts[best]:
                used.update(of_size)
    return sorted(kept)


@pytest.fixture(scope="session")
def thinned(pytestconfig):
    """For a test that makes its cases itself: a function from all rows to those of the grid, each value of each column."""
    return list if pytestconfig.getoption("--all") else lambda rows: [rows[i] for i in cover(rows, 1)]


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported stays until the end: looking through it for garbage, now and between tests, would take seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def whole(config):
    """Whether all cases are asked for, as those of a test that is asked for by its own name always are."""
    return config.getoption("--all") or any("::" in name for name in config.args)


def chosen(config):
    """Whether -k or -m chooses among the tests; then the grid is that of what they choose."""
    return config.option.keyword or config.option.markexpr


def grid(test, rows):
    """Which of the cases of a test are on its quick grid: numbers of rows, that hold a name for each `parametrize`."""
    for strength, mark in enumerate(("each_value", "each_pair"), 1):
        if test.get_closest_marker(mark):
            return cover(rows, strength)
    return range(len(rows))


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc):
    """Cases are thinned before a test is made of each: all at once they would fill 100 MB."""
    yield
    if not whole(metafunc.config) and not chosen(metafunc.config):
        cases = [case for case in metafunc._calls if all(mark.name != "full" for mark in case.marks)]
        kept = [cases[k] for k in grid(metafunc.definition, [case._idlist for case in cases])]
        metafunc._calls = kept or metafunc._calls  # without any, pytest would make one test, without values


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector):
    made = yield
    if not isinstance(made, list) or whole(collector.config) or chosen(collector.config):
        return made
    return [item for item in made if not item.get_closest_marker("full")]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    # what needs the most memory comes first, before a worker keeps what others leave
    items.sort(key=lambda item: item.path.parent.name not in ("experiments", "figures"))
    if whole(config) or not chosen(config):
        return
    cases, kept = defaultdict(list), set()
    for item in items:
        if not item.get_closest_marker("full"):
            cases[item.parent.nodeid, item.originalname].append(item)
    for same in cases.values():
        rows = [item.callspec._idlist if hasattr(item, "callspec") else () for item in same]
        kept.update(same[k] for k in grid(same[0], rows))
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


_first_states = {}  # of the generators that are made when a file of tests is imported


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """A generator that the tests of a file share draws for each of them the same: their order does not matter."""
    for value in vars(getattr(item, "module", None) or item).values():
        if isinstance(value, np.random.Generator):
            value.bit_generator.state = _first_states.setdefault(value, value.bit_generator.state)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """After the last test of a file, what it has freed is given back to the system: a worker would grow by 100 MB.

    And after each test of an experiment, some of which need that much.
    """
    if nextitem is None or nextitem.path != item.path or item.path.parent.name == "experiments":
        with suppress(OSError, AttributeError, TypeError):  # another allocator than glibc's
            ctypes.CDLL(None).malloc_trim(0)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """A test that the equation map names for a function has to call it, or a method of the class."""
    file = Path(pyfuncitem.path).relative_to(ROOT).as_posix() if ROOT in Path(pyfuncitem.path).parents else ""
    row = ROWS.get(f"{file}::{pyfuncitem.originalname}")
    if row is None or sys.getprofile() is not None:
        return (yield)
    codes, called = codes_of(equations.resolve(row.function)), set()
    if pyfuncitem.config.getoption("trace"):
        given = {name: copy.deepcopy(pyfuncitem.funcargs[name]) for name in pyfuncitem._fixtureinfo.argnames}
        Debugger.place = first_call(functools.partial(pyfuncitem.obj, **given), codes)
        return (yield)
    if watched():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(the_call, "inside", True)  # no checks, and few frames before a function
            return (yield)

    def note(frame, event, _):
        if event == "call" and frame.f_code in codes:
            called.add(frame.f_code)

    with comparisons(pyfuncitem.obj) if pyfuncitem.config.getoption("equation") else nullcontext() as noted:
        sys.setprofile(note)
        try:
            result = yield
        finally:
            sys.setprofile(None)
    assert called, f"the map says that this test of {row.id} calls {row.function}, and it does not"
    if noted is not None:
        pyfuncitem.user_properties.append(("told", told(pyfuncitem, noted)))
    return result


def pytest_report_teststatus(report, config):
    """With --equation, no dot for a test that has passed: `pytest_terminal_summary` tells more."""
    if config.getoption("equation") and report.passed and report.when == "call":
        return "passed", "", ""
    return None


def pytest_terminal_summary(terminalreporter):
    for report in terminalreporter.getreports("passed"):
        for text in (text for name, text in report.user_properties if name == "told"):
            terminalreporter.write_line(text)


@pytest.fixture(scope="session")
def root():
    """The top of the repository."""
    return ROOT


@pytest.fixture
def rng():
    """A generator of its own for each test: the order of tests does not matter."""
    return np.random.default_rng(1)


@pytest.fixture(params=available())
def tier(request):
    """A test that takes it runs in each tier of this machine."""
    with backend(request.param):
        yield request.param


@pytest.fixture
def definitions():
    """The tier that forms every matrix: for tests that open a pullback and look at what it keeps."""
    with backend("numpy"):
        yield
