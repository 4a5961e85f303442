"""The command `minitransformer`: what it can do stands in command.py, and beside it what one of its parts needs."""

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. All else is imported now, and not by who needs another part of this room."""
    from minitransformer.cli import command

    return command.main(argv)
