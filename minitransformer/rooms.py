"""What a room of the book offers: everything that its `__init__.py` imports."""

from types import ModuleType
from typing import Any


def offered(room: dict[str, Any]) -> list[str]:
    """The names among a room's globals that `help` shows and a star imports: all but modules, and what begins with _."""
    return sorted(name for name, thing in room.items() if name[0] != "_" and not isinstance(thing, ModuleType))
