"""Several errors as one, so that a user sees all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from autoshard.errors import AutoshardError

E = TypeVar("E", bound=AutoshardError)


def joined(problems: Sequence[E], heading: str, where: str) -> E:
    """The only error, or one of its kind that lists them all.

    Args:
        problems: At least one.
        heading: What they are, after their number: "mistakes in the constraints".
        where: What they are all about.
    """
    if len(problems) == 1:
        return problems[0]
    return type(problems[0])(
        f"{len(problems)} {heading}:\n" + "\n".join(map(_as_item, problems)),
        where=where,
        fix="correct each of them",
    )


def _as_item(problem: AutoshardError) -> str:
    return "- " + str(problem).replace("\n", "\n  ")
