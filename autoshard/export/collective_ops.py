"""Collectives as ops of Shardy's dialect, and back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxlib.mlir import ir

from autoshard.collectives import AxisMove, Collective, CollectiveKind
from autoshard.mlir_modules import MlirOp, MlirValue, sharding_attribute
from autoshard.sharding import (
    Mesh,
    Sharding,
    canonicalize,
    parse_dim_sharding,
    parse_sharding,
)

OP_BY_KIND = {
    CollectiveKind.ALL_SLICE: "sdy.all_slice",
    CollectiveKind.ALL_GATHER: "sdy.all_gather",
    CollectiveKind.ALL_TO_ALL: "sdy.all_to_all",
    CollectiveKind.PERMUTE: "sdy.collective_permute",
    CollectiveKind.ALL_REDUCE: "sdy.all_reduce",
    CollectiveKind.REDUCE_SCATTER: "sdy.reduce_scatter",
}
KIND_BY_OP = {name: kind for kind, name in OP_BY_KIND.items()}

_AXES_ATTRIBUTE = {
    CollectiveKind.ALL_SLICE: "slicing_axes",
    CollectiveKind.ALL_GATHER: "gathering_axes",
    CollectiveKind.REDUCE_SCATTER: "reduce_scatter_axes",
    CollectiveKind.ALL_REDUCE: "reduction_axes",
    CollectiveKind.ALL_TO_ALL: "params",
}
_MNEMONIC = {
    CollectiveKind.ALL_REDUCE: "axis_ref_list",
    CollectiveKind.ALL_TO_ALL: "all_to_all_param_list",
}
_LISTS = "list_of_axis_ref_lists"

# A list of axes in braces; names may hold any letter between quotes.
_BRACES = re.compile(r'\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}')
_MOVE = re.compile(_BRACES.pattern + r": (\d+)->(\d+)")


def insert_collectives(value: MlirValue, steps: Sequence[Collective], before: MlirOp) -> MlirValue:
    """Put collectives on a value, before an op.

    Args:
        value: The operand of the first one.
        steps: In order.
        before: The op they are put before; they take its location.

    Returns:
        The result of the last one; the value itself where there is none.
    """
    for step in steps:
        value = insert_collective(value, step, before)
    return value


def insert_collective(value: MlirValue, step: Collective, before: MlirOp) -> MlirValue:
    """Put one collective on a value, before an op."""
    # To the dialect an operand's axes are not unreduced, but partial sums that nothing tells of.
    attributes: dict[str, Any] = {"out_sharding": sharding_attribute(step.after)}
    if step.kind is not CollectiveKind.PERMUTE:
        mnemonic = _MNEMONIC.get(step.kind, _LISTS)
        attributes[_AXES_ATTRIBUTE[step.kind]] = ir.Attribute.parse(
            f"#sdy<{mnemonic}{step.parameters()}>"
        )
    made = ir.Operation.create(
        OP_BY_KIND[step.kind],
        results=[value.type],
        operands=[value],
        attributes=attributes,
        loc=before.location,
        ip=ir.InsertionPoint(before),
    )
    return made.results[0]


def read_collective(op: MlirOp, operand: Sharding, mesh: Mesh) -> Collective:
    """A collective op as a value.

    Args:
        op: One of `KIND_BY_OP`.
        operand: The sharding of its operand, without the axes it sums over.
        mesh: Of both shardings.
    """
    kind = KIND_BY_OP[op.name]
    after = parse_sharding(str(op.attributes["out_sharding"]))
    if kind is CollectiveKind.PERMUTE:
        return Collective(kind=kind, before=operand, after=after)
    text = str(op.attributes[_AXES_ATTRIBUTE[kind]])
    body = text.partition("#sdy<")[2].removeprefix(_MNEMONIC.get(kind, _LISTS))
    if kind is CollectiveKind.ALL_TO_ALL:
        moves = tuple(
            AxisMove(
                parse_dim_sharding(match[0].rpartition(":")[0]).axes, int(match[1]), int(match[2])
            )
            for match in _MOVE.finditer(body)
        )
        return Collective(kind=kind, before=operand, after=after, moves=moves)
    lists = tuple(parse_dim_sharding(match[0]).axes for match in _BRACES.finditer(body))
    if kind is CollectiveKind.ALL_REDUCE:
        return Collective(
            kind=kind, before=with_partial(operand, lists[0], mesh), after=after, reduced=lists[0]
        )
    if kind is CollectiveKind.REDUCE_SCATTER:
        summed = tuple(axis for axes in lists for axis in axes)
        operand = with_partial(operand, summed, mesh)
    return Collective(kind=kind, before=operand, after=after, dims=lists)


def with_partial(sharding: Sharding, axes: Sequence[Any], mesh: Mesh) -> Sharding:
    """A sharding whose tensor is still to be summed over some axes too."""
    more = tuple(axis for axis in axes if axis not in sharding.unreduced)
    return canonicalize(replace(sharding, unreduced=(*sharding.unreduced, *more)), mesh)
