"""The quick grid: which of the cases of a test are run by `make test`, and that `make test-all` runs all."""

import itertools
import subprocess
import sys

import pytest

from tests.conftest import cover


@pytest.mark.parametrize("strength", [1, 2])
@pytest.mark.parametrize("sizes", [(7,), (5, 3), (9, 3, 2), (4, 4, 3, 2)])
def test_each_value_or_pair_is_there_with_few_rows(sizes, strength):
    rows = list(itertools.product(*map(range, sizes)))
    kept = [rows[number] for number in cover(rows, strength)]
    for columns in itertools.combinations(range(len(sizes)), min(strength, len(sizes))):
        have, want = ({tuple(row[c] for c in columns) for row in some} for some in (kept, rows))
        assert have == want
    largest = sorted(sizes)[::-1][:strength]
    least = largest[0] * (largest[-1] if len(largest) == 2 else 1)
    assert len(kept) <= 1.5 * least


def test_the_others_take_turns():
    """Thirty parts, each once; all that they are combined with comes as often, in all its pairs."""
    rows = list(itertools.product(range(30), "abc", "xy"))
    kept = [rows[number] for number in cover(rows, 1)]
    assert sorted(part for part, _, _ in kept) == list(range(30))
    assert {(b, c) for _, b, c in kept} == set(itertools.product("abc", "xy"))
    assert all(9 <= sum(b == wanted for _, b, _ in kept) <= 11 for wanted in "abc")


def test_a_row_that_can_not_be_is_not_asked_for():
    rows = [(part, causal) for part, causal in itertools.product(range(5), (False, True)) if part or causal]
    assert [rows[number] for number in cover(rows, 2)] == rows


FILE = """
import pytest

made, init = [], pytest.Function.__init__

def noted(self, *rest, originalname=None, **more):
    made.append(originalname)
    init(self, *rest, originalname=originalname, **more)

pytest.Function.__init__ = noted

@pytest.mark.each_value
@pytest.mark.parametrize("a", range(4))
@pytest.mark.parametrize("b", range(3))
def test_values(a, b):
    pass

@pytest.mark.parametrize("a", range(5))
def test_plain(a):
    pass

def test_no_others_were_made(pytestconfig):
    assert made.count("test_values") == (12 if pytestconfig.getoption("all") else 4)

@pytest.mark.full
def test_long():
    pass
"""


later = pytest.mark.full


@pytest.mark.parametrize(
    ("words", "passed"),
    [
        pytest.param(["FILE"], 4 + 5 + 1, id="quick"),
        pytest.param(["--all", "FILE"], 12 + 5 + 1 + 1, id="all", marks=later),
        pytest.param(["-k", "values", "FILE"], 4, id="chosen", marks=later),
        pytest.param(["FILE::test_long"], 1, id="by name", marks=later),
        pytest.param(["FILE::test_values"], 12, id="all cases by name", marks=later),
    ],
)
def test_a_file_has_a_quick_grid_and_a_full_one(words, passed, root, tmp_path):
    file = tmp_path / "test_few.py"
    file.write_text(FILE)
    words = [word.replace("FILE", str(file)) for word in words]
    conftest = ["-p", "tests.conftest", f"--rootdir={root}", f"-c{root}/pyproject.toml"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *conftest, *words], cwd=root, capture_output=True, text=True
    )
    assert f"{passed} passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0, done.stderr
