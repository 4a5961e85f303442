"""What a room of the book offers: all that its `__init__.py` imports; and where it is a single file, what it checks."""

from types import ModuleType
from typing import Any


def offered(room: dict[str, Any]) -> list[str]:
    """The names among a room's globals that `help` shows and a star imports: all but modules, and what begins with _."""
    return sorted(name for name, thing in room.items() if name[0] != "_" and not isinstance(thing, ModuleType))


def checked_in(room: dict[str, Any]) -> list[str]:
    """The same for a single file: its own pullbacks, and its functions that check their arguments; the others are helpers."""
    own = [name for name, thing in room.items() if getattr(thing, "__module__", "") == room["__name__"]]
    return [
        name
        for name in offered(room)
        if name in own and (name.endswith("Pullback") or hasattr(room[name], "__wrapped__"))
    ]
