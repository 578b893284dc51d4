"""Tensors that must end sharded alike, and the proof that they cannot when they cannot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoshard.errors import ConstraintError
from autoshard.graph.program import Graph, Op, OpKind
from autoshard.layouts import Layout
from autoshard.wishes.wishes import Wishes


@dataclass(frozen=True, slots=True, eq=False)
class TiedTensor:
    """One end of a tie.

    Args:
        node: The op that decides it.
        layouts: Its layout under each candidate of that op.
        label: Names the tensor, and who fixed its sharding where someone did.
        is_asked: Whether someone did.
    """

    node: int
    layouts: tuple[Layout, ...]
    label: str
    is_asked: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Tie:
    """Two tensors that must be sharded alike, and why."""

    first: TiedTensor
    second: TiedTensor
    reason: str


def constrained_arguments(graph: Graph, wishes: Wishes) -> Iterator[tuple[Op, Op]]:
    """Arguments nobody asked anything of, with the constraint that is all that reads them.

    Such a constraint shards the argument itself, as Shardy has it: there is no other use that could
    want it otherwise.
    """
    readers: dict[int, list[Op]] = {}
    for op in graph.ops:
        for value in dict.fromkeys(op.operands):
            readers.setdefault(value, []).append(op)
    for argument, asked in zip(graph.arguments, wishes.arguments, strict=True):
        reading = readers.get(argument.results[0], [])
        if asked is not None or [op.kind for op in reading] != [OpKind.CONSTRAINT]:
            continue
        if "<" not in graph.values[reading[0].results[0]].path:  # a use, which leaves it free
            yield argument, reading[0]


def refuse_clashes(ties: Sequence[Tie]) -> None:
    """Check that some layout serves all tensors tied together, directly or through others.

    Raises:
        ConstraintError: None does; names the tensors that have no layout in common.
    """
    for members, reason in _classes(ties):
        common = set(members[0].layouts)
        for count, member in enumerate(members[1:], start=1):
            common.intersection_update(member.layouts)
            if not common:
                raise _clash(members[:count], member, reason)


def _clash(before: Sequence[TiedTensor], last: TiedTensor, reason: str) -> ConstraintError:
    """The tensor that left no layout in common, and one it disagrees with (else all of them)."""
    wanted = set(last.layouts)
    against = [other for other in before if wanted.isdisjoint(other.layouts)][:1] or before
    named = "; ".join(tensor.label for tensor in (*against, last))
    fix = (
        "ask for one sharding for all of them, or leave the others free (None, or"
        " P.UNCONSTRAINED dimensions)"
    )
    if not all(tensor.is_asked for tensor in (*against, last)):
        fix = (
            "ask for a sharding that the other can have too: one that divides it, on the plan's"
            " mesh; or let it not be alike"
        )
    return ConstraintError(
        f"tensors that must be sharded alike have no sharding in common: {named}",
        where=reason,
        fix=fix,
    )


def _classes(ties: Iterable[Tie]) -> list[tuple[list[TiedTensor], str]]:
    """Tensors joined by ties, each class in the order of its ties, with the reasons given."""
    classes: dict[int, tuple[dict[int, TiedTensor], dict[str, None]]] = {}
    for tie in ties:
        first = classes.get(id(tie.first), ({id(tie.first): tie.first}, {}))
        second = classes.get(id(tie.second), ({id(tie.second): tie.second}, {}))
        if first is not second:
            first[0].update(second[0])
            first[1].update(second[1])
        first[1].setdefault(tie.reason)
        for key in first[0]:
            classes[key] = first
    distinct = {id(found): found for found in classes.values()}
    return [(list(members.values()), "; ".join(why)) for members, why in distinct.values()]


def unequal(rows: Sequence[Layout], columns: Sequence[Layout], cost: int) -> npt.NDArray[np.int64]:
    """int64[num_rows, num_columns]: 0 where the layouts are the same, else `cost`."""
    number: dict[Layout, int] = {}
    left = np.array([number.setdefault(layout, len(number)) for layout in rows])
    right = np.array([number.setdefault(layout, len(number)) for layout in columns])
    return np.where(left[:, None] == right[None, :], 0, cost).astype(np.int64)
