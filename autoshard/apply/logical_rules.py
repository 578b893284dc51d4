"""Rules from logical axes to mesh axes, in the form of Flax and MaxText, that say a plan.

Rules are pairs `("embed", "data")` in order of precedence. As Flax reads them: a dimension gets the
mesh axes of its logical axis's rule, unless an earlier rule gave one of these to another dimension
of the same tensor; then it stays whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from autoshard.errors import PlanError

MeshAxes: TypeAlias = tuple[str, ...]
LogicalRules: TypeAlias = tuple[tuple[str, str | MeshAxes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDims:
    """A tensor whose dimensions have logical names.

    Args:
        name: Of the tensor.
        logical: Per dimension, its logical axis, or None.
        cuts: Per dimension, the mesh axes that the plan cuts it by.
    """

    name: str
    logical: tuple[str | None, ...]
    cuts: tuple[MeshAxes, ...]

    def cut_of(self, axis: str) -> MeshAxes:
        return self.cuts[self.logical.index(axis)]


def find_logical_rules(tensors: Sequence[NamedDims]) -> LogicalRules:
    """One rule for each logical axis, such that all of them give every tensor its sharding.

    Args:
        tensors: All that the rules are to speak of.

    Raises:
        PlanError: No such rules say the plan; names two tensors that contradict one another.
    """
    for tensor in tensors:
        _check_names(tensor)
    cutters = _cutters(tensors)
    blocked = [
        _Blocked(tensor, axis, _blockers(tensor, cutters[axis].cut_of(axis)))
        for tensor in tensors
        for axis in tensor.logical
        if axis is not None and axis in cutters and not tensor.cut_of(axis)
    ]
    for one in blocked:
        if not one.blockers:
            raise _contradiction(one.axis, cutters[one.axis], one.tensor)
    return tuple(
        (axis, _entry(cutters[axis].cut_of(axis)) if axis in cutters else None)
        for axis in _in_order(tensors, blocked)
    )


@dataclass(frozen=True, slots=True)
class _Blocked:
    """A dimension that stays whole though its rule would cut it: a blocker's rule must be earlier.

    Args:
        tensor: Whose dimension it is.
        axis: Its logical axis.
        blockers: Logical axes of the tensor that hold one of the mesh axes, any of which will do.
    """

    tensor: NamedDims
    axis: str
    blockers: tuple[str, ...]


def _check_names(tensor: NamedDims) -> None:
    if len(tensor.logical) != len(tensor.cuts):
        raise PlanError(
            f"{tensor.name} has {len(tensor.cuts)} dimensions and {len(tensor.logical)} logical"
            " names",
            where=f"logical names {tensor.logical}",
            fix="name each dimension, or write None for one without a name",
        )
    counts = Counter(axis for axis in tensor.logical if axis is not None)
    twice = [axis for axis, count in counts.items() if count > 1]
    if twice:
        raise PlanError(
            f"`{twice[0]}` names {counts[twice[0]]} dimensions of {tensor.name}, which no rule can"
            " tell apart",
            where=f"logical names {tensor.logical}",
            fix="give each dimension of a tensor a name of its own",
        )
    for number, (axis, cut) in enumerate(zip(tensor.logical, tensor.cuts, strict=True)):
        if axis is None and cut:
            raise PlanError(
                f"dimension {number} of {tensor.name} has no logical name, and the plan cuts it"
                f" {_by(cut)}",
                where=f"logical names {tensor.logical}",
                fix="name the dimension",
            )


def _cutters(tensors: Sequence[NamedDims]) -> dict[str, NamedDims]:
    """By logical axis that is cut anywhere, the first tensor that is.

    Raises:
        PlanError: Two tensors are cut by different mesh axes along one logical axis.
    """
    found: dict[str, NamedDims] = {}
    for tensor in tensors:
        for axis, cut in zip(tensor.logical, tensor.cuts, strict=True):
            if axis is None or not cut:
                continue
            first = found.setdefault(axis, tensor)
            if first.cut_of(axis) != cut:
                raise _contradiction(axis, first, tensor)
    return found


def _blockers(tensor: NamedDims, wanted: MeshAxes) -> tuple[str, ...]:
    """The logical axes of a tensor that hold one of some mesh axes."""
    return tuple(
        axis
        for axis, cut in zip(tensor.logical, tensor.cuts, strict=True)
        if axis is not None and set(wanted).intersection(cut)
    )


def _in_order(tensors: Sequence[NamedDims], blocked: Sequence[_Blocked]) -> list[str]:
    """All logical axes, each after a blocker of every dimension where it has to stay whole.

    Raises:
        PlanError: There is no such order.
    """
    left = list(dict.fromkeys(axis for t in tensors for axis in t.logical if axis is not None))
    placed: list[str] = []
    while left:
        held = {one.axis: one for one in blocked if not set(one.blockers).intersection(placed)}
        free = next((axis for axis in left if axis not in held), None)
        if free is None:
            raise _no_order(held, left[0])
        placed.append(free)
        left.remove(free)
    return placed


def _no_order(held: dict[str, _Blocked], start: str) -> PlanError:
    """Two of the tensors that each want another rule first."""
    first = held[start]
    second = held[first.blockers[0]]
    return PlanError(
        f"no order of rules says the plan: in {first.tensor.name} `{first.blockers[0]}` takes"
        f" {', '.join(first.tensor.cut_of(first.blockers[0]))} before `{first.axis}` can, and in"
        f" {second.tensor.name} `{second.blockers[0]}` does so before `{second.axis}`",
        where="logical axis rules",
        fix="give the dimensions of one of them other logical names, or pin one of them and plan"
        " again",
    )


def _contradiction(axis: str, first: NamedDims, second: NamedDims) -> PlanError:
    said = [f"{_by(tensor.cut_of(axis))} in {tensor.name}" for tensor in (first, second)]
    return PlanError(
        f"no one rule for `{axis}` says the plan: it is cut {said[0]}, and {said[1]}",
        where="logical axis rules",
        fix="give the two dimensions different logical names, or pin one of the tensors (or group"
        " them) and plan again",
    )


def _by(cut: MeshAxes) -> str:
    return f"by {', '.join(cut)}" if cut else "by nothing"


def _entry(cut: MeshAxes) -> str | MeshAxes:
    return cut[0] if len(cut) == 1 else cut
