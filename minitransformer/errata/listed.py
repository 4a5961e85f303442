"""The list of errata, with what each of them does: read from `errata.toml`, measured, and shown."""

import importlib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from minitransformer.backend import backend
from minitransformer.errata.reading import Reading

LIST = Path(__file__).with_name("errata.toml")
MEASURED_IN = {  # what is printed in a source is measured in the module of that name
    "Borealis II": "borealis",
    "Lecture notes": "lecture",
    "Aalto": "aalto",
    "From GRU to attention": "gru",
    "CS224N": "cs224n",
}


class Erratum(NamedTuple):
    """One row of the list; `errata.toml` says what the fields mean."""

    id: str
    name: str
    source: str
    place: str
    severity: str
    printed: str
    wrong: str
    holds: str
    test: str
    chapter: str

    @property
    def measured(self) -> bool:
        """Whether something else is computed because of it, so that there is a number."""
        return self.severity in "AB"

    def reading(self) -> Reading:
        """What it does, measured now, in the tier that forms every matrix.

        raises   AttributeError for one that is a matter of wording
        """
        module = importlib.import_module(f"minitransformer.errata.{MEASURED_IN[self.source]}")
        with backend("numpy"):
            return getattr(module, self.id.lower())()

    def consequence(self, reading: Reading | None = None) -> str:
        """The sentence on what goes wrong, with the numbers of a reading, or with those that are measured now."""
        if not self.measured:
            return self.wrong
        return self.wrong.format(**(reading or self.reading()).numbers).replace(" -", " −")


class Entries(NamedTuple):
    """Some errata as a page shows them: Markdown in a notebook, plain lines elsewhere. Links lead from `notebooks`."""

    errata: tuple[Erratum, ...]
    consequences: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n\n".join(
            f"{e.id} {e.severity} · {e.name} · {e.place} · chapter {e.chapter[:2]}\n{e.printed}\n{consequence}\n{e.holds}"
            for e, consequence in zip(self.errata, self.consequences, strict=True)
        )

    def _repr_markdown_(self) -> str:
        return "\n\n".join(map(_markdown, self.errata, self.consequences))


def _markdown(e: Erratum, consequence: str) -> str:
    test = f", [test](../{e.test.partition('::')[0]})" if e.test else ""
    lines = (
        f"**{e.id} · {_plain(e.name)}** · {e.severity} · {_plain(e.place)} · [chapter {e.chapter[:2]}]({e.chapter}.ipynb){test}",
        f"*Printed:* {_plain(e.printed)}",
        f"*What goes wrong:* {_plain(consequence)}",
        f"*What holds:* {_plain(e.holds)}",
    )
    return " <br>\n".join(lines)


def _plain(text: str) -> str:
    """Text with Markdown's special characters escaped; formulas stay as they are."""
    parts = re.split(r"(\$[^$]*\$)", text)
    return "".join(part if part.startswith("$") else re.sub(r"([\\`*_<\[\]])", r"\\\1", part) for part in parts)


def load(path: Path = LIST) -> list[Erratum]:
    """The rows of the list, source by source.

    raises   ValueError for a file that is not TOML, or a row with a missing, unknown or non-text field
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path.name}: {error}") from None
    fields = Erratum._fields[1:]
    for name, table in tables.items():
        if set(table) != set(fields) or not all(isinstance(value, str) for value in table.values()):
            raise ValueError(f"{path.name}: {name} should have {', '.join(fields)}, all text")
    return [Erratum(name, **table) for name, table in tables.items()]


def measure() -> dict[str, Reading]:
    """The reading of every erratum that has consequences, by its name: a few seconds of one core."""
    return {e.id: e.reading() for e in load() if e.measured}


def entries(source: str, readings: Mapping[str, Reading]) -> Entries:
    """The errata of one source, with their numbers."""
    rows = tuple(e for e in load() if e.source == source)
    return Entries(rows, tuple(e.consequence(readings.get(e.id)) for e in rows))
