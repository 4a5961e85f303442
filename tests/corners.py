"""The same book in every corner: in a fresh clone `make book && make test && make check`, and nothing has changed after it.

    python tests/corners.py                        all corners, in turns (hours)
    python tests/corners.py no-numba lowest        these
    python tests/corners.py --in-turns             one that is not plain, another one for the next commit
    python tests/corners.py --only check           only this target (it can be given several times)
    python tests/corners.py --list                 what there is

What is committed counts. A clone in which something went wrong stays, with all that was said in `corner.log`.
"""

import argparse
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ("book", "test", "check")
LONGER = ("test-all",)  # what only the plain corner has to pass
LAST = 80  # lines of the log that are shown where something went wrong
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
NOT_INHERITED = ("MINITRANSFORMER_", "MPL", "NPY_", "NUMBA_", "OMP_", "OPENBLAS_", "PYTHON", "VIRTUAL_ENV", "MAKE")
SHORT = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+prefer-128-bit"}
HASWELL = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma"}  # Numba alone would add what this one has


class Corner(NamedTuple):
    """Where the book must be the same: an environment (its lock, or another one), and variables that are set in it."""

    about: str
    variables: dict[str, str] = {}  # noqa: RUF012  (nobody changes it)
    environment: str = "lock"
    avx512: bool = True  # for NumPy, which has names of its own for it


CORNERS = {
    "plain": Corner("the lock, this machine as it is"),
    "no-avx512": Corner("NumPy and Numba as on a processor without AVX-512", HASWELL, avx512=False),
    "sixteen-bytes": Corner("micro-kernel with registers as short as those of ARM", SHORT),
    "blas-haswell": Corner("matrix products for AVX2", {"OPENBLAS_CORETYPE": "Haswell"}),
    "blas-skylakex": Corner("matrix products for AVX-512", {"OPENBLAS_CORETYPE": "SkylakeX"}),
    "one-thread": Corner("one thread", dict.fromkeys(THREADS, "1")),
    "two-threads": Corner("two threads", dict.fromkeys(THREADS, "2")),
    "no-numba": Corner("NumPy only", environment="no-numba"),
    "lowest": Corner("Python 3.11 and the lower bounds of pyproject.toml", environment="lowest"),
    "newest": Corner("the newest Python on this machine", environment="newest"),
}


class CouldNotError(Exception):
    """This machine has no such corner; the message says why."""


class FailedError(Exception):
    """The book is not the same there; the message says where it failed."""


# ------------------------------------------------------------------------------------------------- what a corner needs


def lower_bounds(pyproject: str) -> list[str]:
    """Every requirement of a pyproject.toml with its lower bound as the only version: "numpy>=2.0" gives "numpy==2.0"."""
    project = tomllib.loads(pyproject)
    needs = sum(project["dependency-groups"].values(), project["project"]["dependencies"])
    return [need.replace(">=", "==") for need in needs]


def with_avx512(dispatched: list[str], features: dict[str, bool]) -> list[str]:
    """Names of this NumPy for AVX-512 (they change with its versions) that the processor has: no others can be disabled."""
    return [name for name in dispatched if re.match("AVX512|X86_V4", name) and features.get(name)]


def pythons() -> dict[int, str]:
    """Interpreters that can make environments, by the number after 3, on the path or of pyenv; the highest number first."""
    found = {}
    for minor in range(30, 10, -1):
        of_pyenv = glob.glob(str(Path.home() / f".pyenv/versions/3.{minor}.*/bin/python"))
        for python in filter(None, [shutil.which(f"python3.{minor}"), *of_pyenv]):
            tried = subprocess.run([python, "-c", "import ensurepip, venv"], capture_output=True, check=False)
            if tried.returncode == 0:
                found[minor] = python
    return found


def in_turns() -> str:
    """A corner that is not plain: the next one for each commit."""
    count = subprocess.run(["git", "rev-list", "--count", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    others = [name for name in CORNERS if name != "plain"]
    return others[int(count.stdout) % len(others)]


def surroundings(corner: Corner) -> dict[str, str]:
    """The reader's variables without those that the corner is about, and those of the corner."""
    return {key: value for key, value in os.environ.items() if not key.startswith(NOT_INHERITED)} | corner.variables


# --------------------------------------------------------------------------------------------------------- one corner


def run(command: list[str], clone: Path, environment: dict[str, str]) -> bool:
    """Run a command in the clone; what it says goes to the log."""
    with (clone.parent / "corner.log").open("a") as log:
        print("$", *command, file=log, flush=True)
        done = subprocess.run(command, cwd=clone, env=environment, stdout=log, stderr=log, check=False)
    return done.returncode == 0


def ask(clone: Path, environment: dict[str, str], question: str) -> str:
    """What Python in the clone prints, or "" if it fails."""
    command = [str(clone / ".venv/bin/python"), "-c", question]
    return subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False).stdout


def prepare(corner: Corner, clone: Path, environment: dict[str, str]) -> None:
    """Make the environment of the corner in its clone."""
    python, pip = sys.executable, [".venv/bin/python", "-m", "pip", "install", "-q"]
    if corner.environment == "newest":
        minor, python = next(iter(pythons().items()), (0, ""))
        if minor <= sys.version_info.minor:
            raise CouldNotError(f"there is no newer Python than 3.{sys.version_info.minor}, which `plain` has")
    if corner.environment == "lowest":
        if 11 not in (there := pythons()):
            raise CouldNotError("there is no Python 3.11")
        needs = lower_bounds((clone / "pyproject.toml").read_text())
        alone = [need for need in needs if need.startswith("gt-")]  # asks for PyTorch, and does not need it
        steps = [
            [there[11], "-m", "venv", ".venv"],
            [*pip, *(need for need in needs if need not in alone)],
            [*pip, "--no-deps", *alone],
            [*pip, "--no-deps", "--no-build-isolation", "-e", "."],
            ["touch", ".venv/.ready"],
        ]
    else:
        steps = [["make", "environment", f"PYTHON={python}"]]
    if corner.environment == "no-numba":
        steps.append([".venv/bin/python", "-m", "pip", "uninstall", "-q", "-y", "numba", "llvmlite"])
    for step in steps:
        if not run(step, clone, environment):
            kind = FailedError if corner.environment == "lock" else CouldNotError
            raise kind(f"its environment can't be made: {last_line(clone)}")


def last_line(clone: Path) -> str:
    """The end of the log, without what make says about it."""
    lines = (clone.parent / "corner.log").read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip() and not line.startswith("make")), "")[:150]


def settle(corner: Corner, clone: Path, environment: dict[str, str]) -> dict[str, str]:
    """The variables, with those that depend on this NumPy; CouldNotError if the processor can't do what they say."""
    if not corner.avx512:
        umath = "from numpy._core._multiarray_umath import __cpu_dispatch__ as names, __cpu_features__ as has"
        question = f"{umath}; import json; print(json.dumps([names, has]))"
        if not (names := with_avx512(*json.loads(ask(clone, environment, question)))):
            raise CouldNotError("this processor has no AVX-512, so `plain` is without it")
        environment = environment | {"NPY_DISABLE_CPU_FEATURES": " ".join(names)}
    if kind := corner.variables.get("OPENBLAS_CORETYPE"):
        product = "import numpy as np, threadpoolctl; np.ones((99, 99)) @ np.ones((99, 99))"
        kinds = "print(*(pool.get('architecture') for pool in threadpoolctl.threadpool_info()))"
        found = ask(clone, environment, f"{product}; {kinds}").split()
        if kind not in found:
            raise CouldNotError(f"BLAS does not run its kernels for {kind} here, but {found or 'nothing'}")
    return environment


def visit(name: str, targets: list[str], place: Path) -> None:
    """Run the targets in a fresh clone, and look whether anything has changed."""
    corner, clone = CORNERS[name], place / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    environment = surroundings(corner)
    prepare(corner, clone, environment)
    environment = settle(corner, clone, environment)
    for target in targets:
        start = time.monotonic()
        if not run(["make", target], clone, environment):
            raise FailedError(f"failed at make {target}")
        print(f"  make {target:<8} {(time.monotonic() - start) / 60:5.1f} min   {last_line(clone)}", flush=True)
        status = subprocess.run(["git", "status", "--porcelain"], cwd=clone, capture_output=True, text=True, check=True)
        if status.stdout:
            raise FailedError(f"make {target} changed {', '.join(line[3:] for line in status.stdout.splitlines())}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="corners (default: all)")
    parser.add_argument("--only", action="append", choices=TARGETS + LONGER, help="only this target")
    parser.add_argument("--in-turns", action="store_true", help="a corner that changes from commit to commit")
    parser.add_argument("--list", action="store_true", help="list the corners")
    args = parser.parse_args()
    if unknown := set(args.names) - set(CORNERS):
        parser.error(f"no corner {', '.join(unknown)}; there are {', '.join(CORNERS)}")
    if args.list:
        print(*(f"{name:<15} {corner.about}" for name, corner in CORNERS.items()), sep="\n")
        return 0
    # a shell that starts this with & has Ctrl-C ignored, and so would the tests that send it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rows = []
    for name in args.names + [in_turns()] * args.in_turns or CORNERS:
        print(name, flush=True)
        place, start, result = Path(tempfile.mkdtemp(prefix=f"minitransformer-{name}-")), time.monotonic(), "ok"
        try:
            visit(name, args.only or list(TARGETS), place)
        except CouldNotError as why:
            result = f"could not: {why}"
        except FailedError as where:
            result = f"FAILED: {where}"
            print(*(place / "corner.log").read_text(errors="replace").splitlines()[-LAST:], sep="\n")
            print(f"what is left of it lies in {place}")
        if not result.startswith("FAILED"):
            shutil.rmtree(place, ignore_errors=True)
        rows.append(f"{name:<15} {(time.monotonic() - start) / 60:6.1f} min   {result}")
        print(rows[-1], flush=True)
    print("", f"{len(rows)} corners", *rows, sep="\n")
    return any("FAILED" in row for row in rows)


if __name__ == "__main__":
    sys.exit(main())
