"""Measure the rows: each implementation in a process of its own, in turns, and ratios from the same round.

    python -m benchmarks.run --peer-python PATH [--quick] [--only WORDS] [--name NAME] [--strict]
    python -m benchmarks.run --import FILE.py --only layer          what the file registers, beside dense attention

One library is never timed while another one's threads are in the same process, and what slows the machine for a moment
slows all implementations of a round.
"""

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.rows import Row, rows, yours
from benchmarks.worker import WAKING
from minitransformer import files
from minitransformer.attention import ATTENTIONS
from minitransformer.extensions import ReaderFile

HERE = Path(__file__).resolve().parent
LIMIT = 900  # seconds that one answer may take
QUICK, FULL = 1.5, 10.0  # seconds of a row, about
NOT_A_READER_S = ("PYTHONDONTWRITEBYTECODE",)  # each first call would compile a thousand files of Python again
LOOKED_AT = 20  # calls whose time is divided among kinds of work, in a row that is mixed
# Our implementations, and what is added to the environment of each.
OURS = {"ours": {}, "limit": {}, "loops": {"MINITRANSFORMER_BACKEND": "numba"}, "dense": {}}
IMPORTS = {"ours": "minitransformer.attention", "eager": "torch"}


class Worker:
    """A process that answers one request at a time."""

    def __init__(self, python: str, *arguments: str, **environment: str) -> None:
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed with the process)
        self.process = subprocess.Popen(
            [python, "-m", "benchmarks.worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            cwd=HERE.parent,
            env={**{name: os.environ[name] for name in os.environ if name not in NOT_A_READER_S}, **environment},
        )

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """The answer, which has an "error" if something went wrong."""
        watch = threading.Timer(LIMIT, self.process.kill)
        watch.start()
        try:
            self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            watch.cancel()
        if answer:
            return json.loads(answer)
        self.errors.seek(0)
        return {"error": "the process ended: " + " ".join(self.errors.read()[-200:].split())}

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()


class Team:
    """The workers, each started when it is first needed."""

    def __init__(self, peer_python: str | None, brought: Sequence[ReaderFile] = ()) -> None:
        self.peer_python, self.brought = peer_python, brought
        self.workers: dict[str, Worker] = {}
        self.compiled = tempfile.TemporaryDirectory()  # compiled code of the rows about the first call

    def start(self, name: str, **environment: str) -> Worker:
        """A new process for one of our implementations, or of the peers'."""
        if name in OURS:
            peer = ("dense",) if name == "dense" else ()
            worker = Worker(sys.executable, "ours", *peer, **OURS[name], **environment)
            for file in self.brought:
                worker.ask("bring", path=file.path, text=file.text)
            return worker
        if self.peer_python is None:
            raise LookupError("no interpreter for the peers, see --peer-python")
        return Worker(self.peer_python, "peers", name, **environment)

    def __getitem__(self, name: str) -> Worker:
        if name in self.workers and self.workers[name].process.poll() is not None:
            self.workers.pop(name).close()
        if name not in self.workers:
            self.workers[name] = self.start(name)
        return self.workers[name]

    def close(self) -> None:
        """End them all."""
        for worker in self.workers.values():
            worker.close()
        self.compiled.cleanup()


def measure(row: Row, team: Team, seconds: float) -> dict[str, Any]:
    """All rounds of a row. `samples` has a number for each implementation and round, ours under "ours".

    "limit" is no implementation: it takes as long as the bare multiply-adds of the row.
    """

    def there(peer: str) -> bool:
        return peer in OURS or team.peer_python is not None

    names = {"ours": row.ours, **{peer: peer for peer in row.peers if there(peer)}}
    if row.operations:
        names["limit"] = "limit"
    take = {"time": _times, "import": _imports}.get(row.measure, _fresh)
    samples, unavailable, differs = take(row, names, team, seconds)
    missing = {peer: "no interpreter for the peers" for peer in row.peers if not there(peer)}
    return report.judge(
        {**row._asdict(), "label": row.label, "unavailable": {**missing, **unavailable}}
        | {"shares": _shares(row, team) if row.mixed and "ours" in samples else {}}
        | {"samples": samples, "differs": differs if row.alike else []}
    )


Taken = tuple[dict[str, list[float]], dict[str, str], list[str]]


def _times(row: Row, names: dict[str, str], team: Team, seconds: float) -> Taken:
    """Rounds in alternating order; each sample is the mean of enough calls to last a while."""
    answers = {}
    for label, name in names.items():
        work, case = ("limit", {"operations": row.operations}) if label == "limit" else (row.work, row.case)
        answers[label] = team[name].ask("setup", work=work, case=case)
        if label == "ours" and "error" in answers[label]:
            break
    unavailable = {label: answer["error"] for label, answer in answers.items() if "error" in answer}
    there = [label for label in answers if label not in unavailable]
    inner = {label: max(1, min(1000, int(seconds / 60 / answers[label]["value"]))) for label in there}
    one_round = sum(answers[label]["value"] * inner[label] + max(WAKING, answers[label]["value"]) for label in there)
    least = 5 if one_round < seconds else 3
    rounds = max(least, min(25, int(seconds / one_round))) if there and len(answers) == len(names) else 0
    samples: dict[str, list[float]] = {label: [] for label in there if rounds}
    for k in range(rounds):
        for label in there[:: 1 if k % 2 else -1]:
            samples[label].append(team[names[label]].ask("run", inner=inner[label])["value"])
    for label in there:
        team[names[label]].ask("drop")
    wrong = [label for label in there[1:] if not report.agree(answers["ours"]["sample"], answers[label]["sample"])]
    return samples, unavailable, wrong


def _shares(row: Row, team: Team) -> dict[str, float]:
    """Where our own time goes."""
    worker = team[row.ours]
    worker.ask("setup", work=row.work, case=row.case)
    shares = worker.ask("where", calls=LOOKED_AT).get("shares", {})
    worker.ask("drop")
    return shares


def _fresh(row: Row, names: dict[str, str], team: Team, seconds: float) -> Taken:
    """Each sample from a new process: the highest use of memory, or the first call with no compiled code, or with it."""
    samples: dict[str, list[float]] = {label: [] for label in names}
    unavailable: dict[str, str] = {}
    many = seconds >= FULL
    rounds = {"memory": 5 if many else 2, "cold": 3 if many else 1, "cached": 6 if many else 4}[row.measure]
    for k in range(rounds):
        for label in [label for label in names if label not in unavailable]:
            with tempfile.TemporaryDirectory() as empty:
                # the first cold call fills the folder that the cached ones find
                compiled = empty if row.measure == "cold" and k > 0 else team.compiled.name
                environment = {} if row.measure == "memory" else {"NUMBA_CACHE_DIR": compiled}
                worker = team.start(names[label], **environment)
                answer = worker.ask("memory" if row.measure == "memory" else "first", work=row.work, case=row.case)
                worker.close()
            if "error" in answer:
                unavailable[label] = answer["error"]
                del samples[label]
            elif k > 0 or row.measure != "cached":
                samples[label].append(answer["value"])
    return samples if "ours" in samples else {}, unavailable, []


def _imports(row: Row, names: dict[str, str], team: Team, seconds: float) -> Taken:
    """Seconds that an import takes in a new process; the first of six is not counted."""
    samples: dict[str, list[float]] = {label: [] for label in names}
    for k in range(6):
        for label in names:
            code = f"import time; t = time.perf_counter(); import {IMPORTS[label]}; print(time.perf_counter() - t)"
            python = sys.executable if label == "ours" else team.peer_python
            done = subprocess.run([python, "-c", code], cwd=HERE.parent, capture_output=True, text=True, check=True)
            if k > 0:
                samples[label].append(float(done.stdout))
    return samples, {}, []


def run(chosen: list[Row], team: Team, seconds: float) -> Iterator[dict[str, Any]]:
    """The results, printed as they come."""
    print(report.HEADER)
    for row in chosen:
        result = measure(row, team, seconds)
        print(report.line(result), flush=True)
        yield result


def parser() -> argparse.ArgumentParser:
    """All options."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description="How fast the cores are, compared with PyTorch's."
    )
    top.add_argument("--peer-python", metavar="PATH", help="a Python that has torch; without it only ours is timed")
    top.add_argument("--quick", action="store_true", help="only the rows for which five minutes are enough")
    top.add_argument("--only", metavar="WORDS", default="", help="only rows whose label holds all of these words")
    top.add_argument("--seconds", type=float, help=f"about how long a row may take ({QUICK} if quick, else {FULL})")
    top.add_argument("--name", help="name of the files in results/ (quick, full or yours)")
    top.add_argument("--strict", action="store_true", help="exit with 1 if a target is not met")
    own = "a file of yours; what it registers is measured beside dense attention"
    top.add_argument("--import", dest="imports", action="append", default=[], metavar="FILE.py", help=own)
    return top


def main() -> int:
    """Measure, print, write results/NAME.json and .png."""
    top = parser()
    options, before = top.parse_args(), set(ATTENTIONS)
    if options.peer_python is not None and shutil.which(options.peer_python) is None:
        top.error(f"--peer-python {options.peer_python}: there is no such program")
    if options.seconds is not None and not 0 < options.seconds < LIMIT:
        top.error(f"--seconds {options.seconds:g}: should be above 0 and below {LIMIT}")
    if options.name is not None and (Path(options.name).name != options.name or not options.name):
        top.error(f"--name {options.name!r}: should be the name of a file, without a folder")
    try:
        brought = [ReaderFile.read(path) for path in options.imports]
        for file in brought:
            file.bring()
    except ValueError as error:
        top.error(str(error))
    added = yours(name for name in ATTENTIONS if name not in before)
    chosen = [*(row for row in rows() if row.quick or not options.quick), *added]
    chosen = [row for row in chosen if all(word in row.label for word in options.only.split())]
    if not chosen:
        top.error(f"--only {options.only!r}: no row{' of --quick' * options.quick} has a label with all of these words")

    started, described = time.time(), report.machine()
    team = Team(options.peer_python, brought)
    described["ours"] = team["ours"].ask("machine")
    described["peers"] = team["sdpa"].ask("machine") if options.peer_python else {}
    for key, value in described.items():
        print(f"{key:<10} {value}")
    warning = report.busy(described)
    print(f"\n{warning}\n" if warning else "")
    try:
        results = list(run(chosen, team, options.seconds or (QUICK if options.quick else FULL)))
    finally:
        team.close()
    print(report.summary(results))
    minutes = round((time.time() - started) / 60, 1)
    record = {"machine": described, "date": time.strftime("%Y-%m-%d"), "minutes": minutes, "warning": warning}
    name = options.name or ("yours" if brought else "quick" if options.quick or options.only else "full")
    file = HERE / "results" / f"{name}.json"
    _write(file, {**record, "slopes": report.slopes(results), "rows": results})
    print(f"{minutes} minutes; {file.relative_to(HERE.parent)} and its picture are written")
    return int(options.strict and any(result["met"] is False for result in results))


def _write(file: Path, record: dict[str, Any]) -> None:
    from benchmarks.picture import draw

    file.parent.mkdir(exist_ok=True)
    files.write(file, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    with io.BytesIO() as picture:
        draw(record).savefig(picture, format="png", metadata={"Software": None})
        files.write(file.with_suffix(".png"), picture.getvalue())


if __name__ == "__main__":
    sys.exit(main())
