"""Errors of the cost models: what happened, where, and how to fix it."""

from __future__ import annotations

from cost_models.printable import printable


class CostModelError(Exception):
    """A machine, a mesh or an amount that no cost can be given for.

    Args:
        what: The fact: the value found and the one expected.
        where: The machine, file, field or call it is about.
        fix: What to write instead.
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
