"""What a plan keeps of the program it was made for, to refuse any other one with a reason."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

_DIGEST_BYTES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRecord:
    """A program by its fingerprint, and enough of it to say where another one differs.

    Holds only text and numbers, so it goes into a plan file as it is.

    Args:
        fingerprint: sha256 in hexadecimal, equal for equal programs.
        argument_names: By flat argument.
        argument_types: By flat argument, for example `float32[8,16]`.
        result_names: By flat result.
        result_types: By flat result.
        num_equations: Bodies included.
        line_digests: Six hexadecimal digits for each line of the program's canonical text.
        explicit_axes: Mesh axes that are Explicit where it is traced.
        argument_axes: By flat argument and dimension, those of them in its type; () for arguments
            whose type names none.
    """

    fingerprint: str
    argument_names: tuple[str, ...]
    argument_types: tuple[str, ...]
    result_names: tuple[str, ...]
    result_types: tuple[str, ...]
    num_equations: int
    line_digests: str
    explicit_axes: tuple[str, ...] = ()
    argument_axes: tuple[tuple[tuple[str, ...], ...], ...] = ()

    def difference(self, other: ProgramRecord, lines: Sequence[str]) -> str:
        """How `other` differs from this program, in one sentence; "" when they are equal.

        The first of these is told: arguments, the number of equations, the first equation that
        differs, results, structure.

        Args:
            other: The program found.
            lines: Its canonical text.
        """
        if self.fingerprint == other.fingerprint:
            return ""
        return (
            _differing_types("argument", self, other)
            or _differing_counts(self, other, lines)
            or _differing_line(self, other, lines)
            or _differing_types("result", self, other)
            or "its arguments or results have another tree structure, or keywords in the place of"
            " positions"
        )


def digest_lines(lines: Sequence[str]) -> str:
    """Six hexadecimal digits per line, joined."""
    return "".join(
        hashlib.blake2b(line.encode(), digest_size=_DIGEST_BYTES).hexdigest() for line in lines
    )


def _differing_types(kind: str, planned: ProgramRecord, found: ProgramRecord) -> str:
    if kind == "argument":
        names, types = planned.argument_names, planned.argument_types
        found_names, found_types = found.argument_names, found.argument_types
    else:
        names, types = planned.result_names, planned.result_types
        found_names, found_types = found.result_names, found.result_types
    if len(types) != len(found_types):
        return f"it has {len(found_types)} {kind} arrays, the plan was made for {len(types)}"
    for name, found_name, before, after in zip(names, found_names, types, found_types, strict=True):
        if before != after:
            return f"{kind} `{found_name}` is {after}, the plan was made for {before}"
        if kind == "argument" and name.partition("[")[2] != found_name.partition("[")[2]:
            return f"{kind} `{found_name}` stands where the plan has `{name}`"
    return ""


def _differing_counts(planned: ProgramRecord, found: ProgramRecord, lines: Sequence[str]) -> str:
    if planned.num_equations == found.num_equations:
        return ""
    where = _first_differing_line(planned, found, lines)
    return (
        f"it has {found.num_equations} equations, the plan was made for {planned.num_equations}"
        f"{where and f'; the first that differs is {where}'}"
    )


def _differing_line(planned: ProgramRecord, found: ProgramRecord, lines: Sequence[str]) -> str:
    where = _first_differing_line(planned, found, lines)
    return where and f"the first equation that differs is {where}"


def _first_differing_line(
    planned: ProgramRecord, found: ProgramRecord, lines: Sequence[str]
) -> str:
    width = 2 * _DIGEST_BYTES
    for index, line in enumerate(lines):
        part = slice(index * width, (index + 1) * width)
        if planned.line_digests[part] != found.line_digests[part]:
            path, _, text = line.partition(" ")
            return f"{path}: {text}"
    return ""
