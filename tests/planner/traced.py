"""JAX functions brought as far as a plan, without the rooms behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoshard.frontend.module import ModuleNames, module_to_graph
from autoshard.frontend.trace import trace
from autoshard.graph.program import Graph
from autoshard.planning.solution import Solution
from autoshard.sharding import parse_mesh_sizes
from autoshard.wishes.carried import carried_pairs
from autoshard.wishes.wishes import Wishes
from tests.planner.graphs import plan


def exported(fn: Callable[..., Any], *args: Any, mesh: str, **options: Any) -> tuple[Graph, Wishes]:
    """The graph of a function and what its user asked for."""
    traced = trace(fn, args, {}, mesh=parse_mesh_sizes(mesh), **options)
    names = ModuleNames(
        arguments=traced.in_names,
        results=traced.out_names,
        donated=traced.donated,
        source_by_equation=traced.source_by_equation,
    )
    graph = module_to_graph(traced.module, names)
    in_types = [(tuple(a.shape), str(a.dtype)) for a in traced.in_avals]
    out_types = [(tuple(a.shape), str(a.dtype)) for a in traced.out_avals]
    alike = carried_pairs(traced.in_names, in_types, traced.donated, traced.out_names, out_types)
    return graph, Wishes(arguments=traced.user_in, results=traced.user_out, alike=alike)


def planned(
    fn: Callable[..., Any],
    *args: Any,
    mesh: str = "data=2,model=4",
    memory_limit: int | None = None,
    **options: Any,
) -> Solution:
    graph, wishes = exported(fn, *args, mesh=mesh, **options)
    return plan(graph, mesh, wishes, memory_limit)
