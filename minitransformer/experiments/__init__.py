"""The experiments of the book: whatever is trained, swept or timed, one file each, with what came of it on record.

An experiment is a module of this package:

    Trial           a frozen dataclass of plain values: one piece of work, independent of the others
    trials()        all of them, in the order of the record
    run(trial)      does the work, and returns what is kept: numbers, text and lists of these
    IN_A_TEST       the fields of a trial that a test changes, so that it takes a few steps only
    ALONE = True    where times are measured: one trial at a time, on all cores. Otherwise a trial has one core
    MAKE            where times of other makes of processor are kept, too: the make of the record itself
    GROWS = True    where there are trials for each entry of a registry: the record may lack those of what came later

`minitransformer experiment NAME` runs the trials that the record lacks (`run.py`); `load(NAME)` reads the record, which is
all that chapters, figures and tests do. With `--make zen-4` the times are kept beside those of the book, for the processor of
that name.
"""

import importlib
import pkgutil
import re
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import Any

from minitransformer.experiments.record import MAKES, RECORDS, Record, command, read
from minitransformer.registry import instead

__all__ = ["Record", "find", "folder", "load", "makes", "modules"]


def find(name: str) -> ModuleType:
    """The module of an experiment.

    raises   ValueError for an unknown name
    """
    if name not in _names():
        raise ValueError(f"no experiment {name!r}; {instead(name, _names())}")
    return importlib.import_module(f"{__name__}.{name}")


def modules() -> dict[str, ModuleType]:
    """All experiments, by name."""
    return {name: find(name) for name in _names()}


def folder(make: str | None, names: Collection[str]) -> Path:
    """Where the records of these experiments are kept: those of the book, or those of another make of processor.

    raises   ValueError for a make that is no name, or an experiment that keeps one record only
    """
    if make is None:
        return RECORDS
    kept = [name for name, module in modules().items() if hasattr(module, "MAKE")]
    if not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", make):
        raise ValueError(f"make {make!r} should be a name of small letters, digits and hyphens, such as zen-4")
    if not names or set(names) - set(kept):
        raise ValueError(f"make {make}: of which experiment? Times of several makes are kept of {', '.join(kept)}")
    return RECORDS if make in {find(name).MAKE for name in names} else MAKES / make


def makes(name: str) -> list[str]:
    """The makes of processor that have a record of this experiment, which has a MAKE: first that of the record itself."""
    others = sorted(path.parent.name for path in MAKES.glob(f"*/{name}.json"))
    return [find(name).MAKE, *others]


def load(name: str, make: str | None = None) -> Record[Any]:
    """The record of an experiment, as it is committed; with a make of processor, what was measured there.

    raises   ValueError for an unknown name, a make that is none, or a record that is missing, damaged or of other trials
    """
    module = find(name)
    path = folder(make, [name]) / f"{name}.json"
    record = read(path, module.Trial)
    wanted = list(module.trials())
    if getattr(module, "GROWS", False):
        return record.of(wanted)
    if list(record.trials) != wanted:
        raise ValueError(f"{name}: the record is of other trials; run `{command(path)}`")
    return record


def _names() -> list[str]:
    return [found.name for found in pkgutil.iter_modules(__path__) if found.name not in ("record", "run", "table")]
