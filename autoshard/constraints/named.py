"""The one tensor that a user names: by path, or in the words of constraints."""

from __future__ import annotations

import re

from autoshard.constraints.program import Program
from autoshard.constraints.select import Chooser, Selected
from autoshard.constraints.selector import parse_selector
from autoshard.errors import ConstraintError, InputError
from autoshard.listed import listed

_PATH = re.compile(r"(?:.*/)?(?:in\.|const\.|\d+\.)\d+|out<\d+")
_MAX_SHOWN = 8


def is_path(text: str) -> bool:
    """Whether a text is the path of a value: `in.3`, `out<2`, `7.jaxpr/38.0`."""
    return _PATH.fullmatch(text) is not None


def named_tensor(program: Program, name: str, *, first: bool = False) -> tuple[str, str]:
    """The tensor a name selects: its path, and what the user calls it, or "" if by the path.

    Args:
        program: What to select from.
        name: A path, or a selector of one tensor.
        first: Of several, take the first.

    Raises:
        InputError: It selects nothing, or several tensors; says what is close, or which.
    """
    said = name.strip()
    if is_path(said):
        return said, ""
    try:
        found = Chooser(program).tensors(parse_selector(said), f"the tensor `{said}`")
    except ConstraintError as error:
        raise InputError(error.what, where=error.where, fix=error.fix) from error
    if len(found) > 1 and not first:
        raise InputError(
            f"`{said}` selects {len(found)} tensors: {_listed(found)}",
            where=f"the tensor `{said}`",
            fix="name one of them, by its path if nothing else tells it apart",
        )
    return found[0].path, found[0].label.strip("`")


def _listed(found: tuple[Selected, ...]) -> str:
    return listed([f"{one} ({one.path})" for one in found], _MAX_SHOWN)
