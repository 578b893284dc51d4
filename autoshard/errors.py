"""Errors a user can act on: what happened, where, and how to fix it."""

from __future__ import annotations

from autoshard.printable import printable


class AutoshardError(Exception):
    """Base of every error autoshard raises on purpose.

    Args:
        what: The fact: the value found and the one expected.
        where: The argument path, source line, file or option it is about.
        fix: What the user can do next.
    """

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = map(printable, (what, where, fix))
        super().__init__(self.what)

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


class InputError(AutoshardError):
    """What the user passed in cannot be used: a mesh, an option, an argument, a file."""


class ShardingError(AutoshardError):
    """A sharding that its mesh or its tensor does not admit."""


class ScheduleError(AutoshardError):
    """A statement in index notation that cannot be read, or a schedule that is not legal."""


class ConstraintError(AutoshardError):
    """User constraints that contradict one another, or that no candidate meets."""


class ExportError(AutoshardError):
    """The program could not be traced, lowered or turned into a graph."""


class PlanError(AutoshardError):
    """A plan that is damaged, of another version, or made for another program."""
