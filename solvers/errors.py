"""Errors of the solvers package: what is wrong, where, and how to fix it."""

from __future__ import annotations

from solvers.printable import printable


class SolverError(Exception):
    """Base of every error this package raises on purpose.

    Args:
        what: What is wrong, with the value found and the value expected.
        where: The path inside the problem or file, e.g. ``node_costs[17][3]``.
        fix: What the caller can do about it.
    """

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = map(printable, (what, where, fix))
        lines = [f"{self.where}: {self.what}" if where else self.what]
        if fix:
            lines.append(f"fix: {self.fix}")
        super().__init__("\n".join(lines))


class ProblemError(SolverError):
    """A problem (or an answer to it) breaks the rules `verify_problem` states."""


class FormatError(SolverError):
    """A file does not hold a problem in the format its reader expects."""


class EngineError(SolverError):
    """An engine cannot run: unknown name, library missing, or a failure inside it."""
