"""The experiments of the book: whatever is trained, swept or timed, one file each, with what came of it on record.

An experiment is a module of this package:

    Trial           a frozen dataclass of plain values: one piece of work, independent of the others
    trials()        all of them, in the order of the record
    run(trial)      does the work, and returns what is kept: numbers, text and lists of these
    IN_A_TEST       the fields of a trial that a test changes, so that it takes a few steps only
    ALONE = True    where times are measured: one trial at a time, on all cores. Otherwise a trial has one core
    GROWS = True    where there are trials for each entry of a registry: the record may lack those of what came later

`minitransformer experiment NAME` runs the trials that the record lacks (`run.py`); `load(NAME)` reads the record, which is
all that chapters, figures and tests do.
"""

import importlib
import pkgutil
from types import ModuleType
from typing import Any

from minitransformer.experiments.record import RECORDS, Record, read
from minitransformer.registry import instead

__all__ = ["Record", "find", "load", "modules"]


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


def load(name: str) -> Record[Any]:
    """The record of an experiment, as it is committed.

    raises   ValueError for an unknown name, or a record that is missing, damaged or of other trials
    """
    module = find(name)
    record = read(RECORDS / f"{name}.json", module.Trial)
    wanted = list(module.trials())
    if getattr(module, "GROWS", False):
        return record.of(wanted)
    if list(record.trials) != wanted:
        raise ValueError(f"{name}: the record is of other trials; run `minitransformer experiment {name}`")
    return record


def _names() -> list[str]:
    return [found.name for found in pkgutil.iter_modules(__path__) if found.name not in ("record", "run", "table")]
