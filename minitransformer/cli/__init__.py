"""The command `minitransformer`: command.py has its parser and its commands, and what some of them need stands beside it."""

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. Only here the rest is imported, so other modules of this folder load quickly."""
    from minitransformer.cli import command

    return command.main(argv)
