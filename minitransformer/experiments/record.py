"""The record of an experiment: what came of each trial, on which machine, in a file that a diff can show.

    {"experiment": "positions", "digest": "…", "machines": [{"machine": …, "numpy": …}, …],
    "trials": [
    {"trial": {"task": "copy", "seed": 0}, "machine": 0, "seconds": 40.2, "result": {"right": 0.98}},
    …

The digest is that of machines, trials and results: a record that was changed by hand, or cut short, is not read.
"""

import hashlib
import json
import re
import reprlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from minitransformer import files
from minitransformer.ranges import so_many

RECORDS = Path(__file__).with_name("records")
MAKES = RECORDS / "makes"  # the records of times that other makes of processor have, each in a folder of its name
T = TypeVar("T")


@dataclass(frozen=True)
class Record(Generic[T]):
    """Trials, their results, the machines they were run on and the seconds they took there (None: not measured), side
    by side. Iterating gives pairs of the first two.
    """

    trials: list[T]
    results: list[dict[str, Any]]
    machines: list[dict[str, Any]]
    seconds: list[float | None]

    def __iter__(self) -> Iterator[tuple[T, dict[str, Any]]]:
        return iter(zip(self.trials, self.results, strict=True))

    def of(self, trials: list[T]) -> "Record[T]":
        """The record of these trials alone."""
        rows, wanted = zip(self.trials, self.results, self.machines, self.seconds, strict=True), set(trials)
        here = [row for row in rows if row[0] in wanted]
        return Record(*map(list, zip(*here, strict=True))) if here else Record([], [], [], [])

    def where(self, **fields: Any) -> list[dict[str, Any]]:
        """The results of the trials that have these fields."""
        return [found for trial, found in self if all(getattr(trial, name) == value for name, value in fields.items())]

    def only(self) -> dict[str, Any]:
        """The result of an experiment of one trial."""
        (result,) = self.results
        return result

    @property
    def made_on(self) -> str:
        """One short line for the reader: whose numbers these are. The record itself says more of its machines."""
        alike: dict[str, dict[str, None]] = {}  # processors of machines that are alike otherwise, each once
        for about in self.machines:
            alike.setdefault(_said(about), {})[_processor(about)] = None
        return "; ".join(f"{' and '.join(names)}, {rest}" for rest, names in alike.items())


def _said(about: dict[str, Any]) -> str:
    cores = so_many(about["cores"], "core")
    return f"{cores}, tier {about['tier']}, numpy {about['numpy']}, numba {about['numba']}"


def _processor(about: dict[str, Any]) -> str:
    """The name of the processor, without marks of trade, words that say nothing, and the system."""
    name = about["machine"].partition(", ")[0]
    return " ".join(re.sub(r"\((R|TM)\)|\b(CPU|Processor)\b", " ", name).split())


def digest(value: Any) -> str:
    """Sixteen digits that change with any of the plain values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def plain(trial: Any) -> dict[str, Any]:
    """The fields of a trial as a file holds them."""
    return json.loads(json.dumps(asdict(trial)))


def write(path: Path, name: str, record: Record[Any]) -> None:
    """Write a record in one step, one trial a line.

    raises   ValueError for a result that is not plain, such as a NumPy array or a NaN
    """
    machines: list[Any] = []
    for machine in record.machines:
        if machine not in machines:
            machines.append(machine)
    rows = [
        {"trial": plain(trial), "machine": machines.index(machine)}
        | ({} if seconds is None else {"seconds": seconds})
        | {"result": result}
        for trial, result, machine, seconds in zip(
            record.trials, record.results, record.machines, record.seconds, strict=True
        )
    ]
    try:
        lines = ",\n".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: a result can't be kept: {error}") from None
    head = {"experiment": name, "digest": digest([machines, rows]), "machines": machines}
    text = f'{json.dumps(head, ensure_ascii=False)[:-1]},\n"trials": [\n{lines}\n]}}\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, text)


def _name(path: Path) -> str:
    """The experiment of which a record of this path is."""
    return path.stem.removesuffix(".part").lstrip(".")


def command(path: Path) -> str:
    """The command that writes the record of this path."""
    return f"minitransformer experiment {_name(path)}{f' --make {path.parent.name}' * (path.parent.parent == MAKES)}"


def read(path: Path, trial: type[T]) -> Record[T]:
    """Read a record of such trials.

    raises   ValueError, with what to do, for a file that is missing or is not a whole record
    """
    try:
        content = json.loads(path.read_bytes())
        rows, machines = content["trials"], content["machines"]
        if content["experiment"] != _name(path):
            raise ValueError(f"it says that it is one of {reprlib.repr(content['experiment'])}")
        if digest([machines, rows]) != content["digest"]:
            raise ValueError("its digest is not that of its results")
        record = Record(
            [trial(**{name: _frozen(value) for name, value in row["trial"].items()}) for row in rows],
            [{**row["result"]} for row in rows],
            [machines[row["machine"]] for row in rows],
            [row["seconds"] + 0.0 if "seconds" in row else None for row in rows],
        )
        record.made_on  # noqa: B018  (whether machines are machines)
        return record
    except FileNotFoundError:
        raise ValueError(f"{path.name}: there is no such record; `{command(path)}` makes it") from None
    except OSError:
        raise
    except Exception as error:  # made by hand, or damaged: there is no end to what may be in it
        said = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"{path.name} is not a whole record ({said}); `{command(path)} --renew` makes it anew"
        ) from None


def _frozen(value: Any) -> Any:
    """JSON has lists only; in a trial they are tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
