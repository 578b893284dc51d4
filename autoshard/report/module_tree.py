"""Time and bytes by module of the program, as a tree in which modules that are alike are one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autoshard.plans.plan import PlanData
from autoshard.report.alike import format_ranges, numbers_of
from autoshard.source_place import parse_source


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRow:
    """A module, or several whose names differ only in their numbers, with all that is inside.

    Args:
        name: The last segment of its path: `h_0..11`, `attn`.
        path: The whole path: `transformer/h_0..11/attn`.
        count: How many modules these are.
        compute_seconds: Of all runs of their ops on one device, backward ones included.
        communication_seconds: Likewise.
        num_bytes: Through collectives, per device.
        modules: Inside of it, in program order.
    """

    name: str
    path: str
    count: int
    compute_seconds: float
    communication_seconds: float
    num_bytes: float
    modules: tuple[ModuleRow, ...]


@dataclass(frozen=True, slots=True)
class _Entry:
    """What one op or collective adds to its module, and to all around it."""

    segments: tuple[str, ...]
    compute_seconds: float = 0.0
    communication_seconds: float = 0.0
    num_bytes: float = 0.0


def module_rows(plan: PlanData) -> tuple[ModuleRow, ...]:
    """The modules of a plan's program, outermost ones first; none where it names none."""
    return tuple(_rows(list(_entries(plan)), ()))


def _entries(plan: PlanData) -> Iterator[_Entry]:
    for op in plan.ops:
        if module := parse_source(op.source).module:
            yield _Entry(tuple(module.split("/")), op.compute_seconds, op.communication_seconds)
    for one in plan.collectives:
        if module := parse_source(one.op.partition(" at ")[2]).module:
            yield _Entry(tuple(module.split("/")), num_bytes=one.moved_bytes)


def _rows(entries: list[_Entry], above: tuple[str, ...]) -> Iterator[ModuleRow]:
    depth = len(above)
    groups: dict[tuple[str, ...], list[_Entry]] = {}
    for entry in entries:
        if len(entry.segments) > depth:
            words, _ = numbers_of(entry.segments[depth])
            groups.setdefault(words, []).append(entry)
    for words, inside in groups.items():
        names = dict.fromkeys(entry.segments[depth] for entry in inside)
        columns = zip(*(numbers_of(name)[1] for name in names), strict=True)
        ranges = [format_ranges(column) for column in columns]
        name = words[0] + "".join(a + b for a, b in zip(ranges, words[1:], strict=True))
        yield ModuleRow(
            name=name,
            path="/".join((*above, name)),
            count=len(names),
            compute_seconds=sum(entry.compute_seconds for entry in inside),
            communication_seconds=sum(entry.communication_seconds for entry in inside),
            num_bytes=sum(entry.num_bytes for entry in inside),
            modules=tuple(_rows(inside, (*above, name))),
        )
