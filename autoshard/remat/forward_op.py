"""Forward ops of a step that keeps every residual, as plain data by jaxpr path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardResult:
    """A value that a forward op makes.

    Args:
        name: As the joint program names it, `0:7.0`.
        path: Of the value.
        stack: Path of the stack in which a forward scan keeps it for the reverse one, or "".
        is_required: The backward pass reads it.
        what: Its `checkpoint_name`, or the primitive that makes it; `carry` of what a loop carries.
        is_named: That is its `checkpoint_name`.
        source: `file.py:12 (function)` of the user's line, or "".
        type_text: `bf16[32, 8, 2048]`, with the dimension in which a scan stacks it.
        is_array: It is an ordinary array, and no key.
    """

    name: str
    path: str
    stack: str
    is_required: bool
    what: str
    is_named: bool
    source: str
    type_text: str
    is_array: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOp:
    """An equation whose results a backward pass may keep, or compute again.

    Args:
        path: Of the equation; "" of a value that a loop carries.
        results: What it makes.
        operands: Positions of the ops that make what it reads; what is there anyway is left out.
        may_repeat: The backward pass may compute it again.
        pass_index: Of the forward pass that it belongs to.
        segment: Of that pass; what one segment computes again is there at one time.
        is_read_next: The backward pass begins with that segment: computing all of it again frees
            nothing.
        stack_length: Of the stacks of a scan; None without a scan.
    """

    path: str
    results: tuple[ForwardResult, ...]
    operands: tuple[int, ...]
    may_repeat: bool
    pass_index: int
    segment: int
    is_read_next: bool
    stack_length: int | None

    @property
    def is_required(self) -> bool:
        """The backward pass reads a result of it."""
        return any(result.is_required for result in self.results)


class ValuePaths(NamedTuple):
    """Where a program makes forward values, by their names.

    Args:
        forward: In forward passes; what only backward passes need and nobody keeps is not there.
        copied: In backward passes, which compute them again.
    """

    forward: Mapping[str, str]
    copied: Mapping[str, str]
