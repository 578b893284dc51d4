"""Costs that the user declares for custom calls, put into the program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autoshard.errors import InputError
from autoshard.graph.custom_cost import CustomCost
from autoshard.graph.program import Graph, Op
from autoshard.source_place import parse_source

_CALL = "custom_call @"


def with_custom_costs(graph: Graph, costs: Mapping[str, CustomCost] | None) -> Graph:
    """The program with declared costs in the place of what the program itself says.

    Args:
        graph: The program.
        costs: By target of the custom call, or by the line that calls it (`model.py:42`), which
            goes first; kernels written in Pallas share one target.

    Raises:
        InputError: No custom call of the program goes by a name given.
    """
    if not costs:
        return graph
    calls = [op for op in graph.ops if op.name.startswith(_CALL)]
    known = dict.fromkeys(name for op in calls for name in _names(op)[-2:])
    for name, cost in costs.items():
        if not isinstance(cost, CustomCost):
            raise InputError(
                f"expected a CustomCost, found {type(cost).__name__}",
                where=f"custom_costs[{name!r}]",
                fix="write autoshard.CustomCost(flops=..., num_bytes=...)",
            )
        if not any(name in _names(op) for op in calls):
            raise InputError(
                f"no custom call of the program goes by {name!r}",
                where="custom_costs",
                fix=f"use one of {', '.join(known)}" if known else "leave it out: there are none",
            )
    return replace(graph, ops=tuple(_with_cost(op, costs) for op in graph.ops))


def _with_cost(op: Op, costs: Mapping[str, CustomCost]) -> Op:
    if not op.name.startswith(_CALL):
        return op
    given = [costs[name] for name in _names(op) if name in costs]
    return replace(op, declared=given[0]) if given else op


def _names(op: Op) -> tuple[str, ...]:
    """What a custom call goes by, the most precise first: path and line, file and line, target."""
    line = parse_source(op.source).line
    names = (line, line.rpartition("/")[2], op.name.removeprefix(_CALL))
    return tuple(name for name in dict.fromkeys(names) if name)
