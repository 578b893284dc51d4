"""A traced program as it is planned: its graph, and what is asked of it in the terms of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoshard.constraints import Resolved, Term
from autoshard.costing.custom_costs import with_custom_costs
from autoshard.errors import InputError
from autoshard.frontend.asked_inside import AskedInside
from autoshard.frontend.equal_layers import FewEquations
from autoshard.frontend.jaxpr_paths import shard_map_bodies
from autoshard.frontend.key_arrays import with_word_dims
from autoshard.frontend.layer_copies import UnlikeLayersError
from autoshard.frontend.module import ModuleNames, module_to_graph
from autoshard.frontend.rewritable_equations import BATCHED, rewritable_equations
from autoshard.frontend.trace import Traced
from autoshard.frontend.user_constraints import asked_inside, resolve_constraints
from autoshard.graph.custom_cost import CustomCost
from autoshard.graph.program import Graph
from autoshard.offload.choice import StreamedUpdate
from autoshard.sharding import Mesh, Sharding
from autoshard.wishes.carried import carried_pairs
from autoshard.wishes.wishes import AlikeWish, Wishes


@dataclass(frozen=True, slots=True, eq=False)
class TracedProgram:
    """A program on one mesh, ready to be planned.

    Args:
        mesh: It was traced under.
        traced: As JAX has it.
        asked: The user's constraints, by tensor.
        graph: As the planner has it.
        wishes: What is asked, in the graph's terms.
        streamable: Paths of the products that may run in steps.
        residuals: Names of what is kept for backward passes; None as it is written.
        updates: Those whose states lie in host memory.
    """

    mesh: Mesh
    traced: Traced
    asked: Resolved
    graph: Graph
    wishes: Wishes
    streamable: frozenset[str]
    residuals: tuple[str, ...] | None = None
    updates: tuple[StreamedUpdate, ...] = ()

    @property
    def carried(self) -> dict[int, int]:
        """By flat argument that is given up, the result that the next step is given."""
        first, donated = self.graph.num_captured, self.traced.donated
        return {a - first: r for a, r in self.wishes.alike if donated[a - first]}


def read_traced(
    traced: Traced,
    mesh: Mesh,
    terms: Sequence[Term],
    trip_counts: Mapping[str, float] | None,
    default_trip_count: float,
    streamable: frozenset[str] = frozenset(),
    custom_costs: Mapping[str, CustomCost] | None = None,
) -> TracedProgram:
    """Build the graph of a traced program.

    Raises:
        ExportError: It cannot be planned.
        ConstraintError: What is asked of it fits no tensor, or contradicts itself.
        InputError: It has neither arguments nor results, or a cost is declared for a custom call
            that it has not.
    """
    if not traced.in_names and not traced.out_names:
        raise InputError(
            "the program has no arrays among its arguments and results: there is nothing to shard",
            fix="pass arrays or jax.ShapeDtypeStruct as arguments; text and functions are settings",
        )
    asked = resolve_constraints(terms, traced, mesh)
    inside = asked_inside(asked, traced, mesh)
    told = trip_counts, default_trip_count, inside
    graph = _graph_of_few_layers(traced, *told) if inside.is_empty else None
    graph = replace(
        with_custom_costs(graph or _graph(traced, traced.module, *told), custom_costs),
        batched=frozenset(rewritable_equations(traced.jaxpr.jaxpr, BATCHED)),
        bodies=tuple(shard_map_bodies(traced.jaxpr.jaxpr)),
    )
    return TracedProgram(mesh, traced, asked, graph, _wishes(traced, graph, asked), streamable)


def _graph_of_few_layers(
    traced: Traced,
    trip_counts: Mapping[str, float] | None,
    default_trip_count: float,
    inside: AskedInside,
) -> Graph | None:
    """The graph of the program, read from few of its equal layers; None where that is not told."""
    few = traced.modules.few
    if few is None:
        return None
    try:
        return _graph(traced, few.module, trip_counts, default_trip_count, inside, few.equations)
    except UnlikeLayersError:
        return None


def _graph(
    traced: Traced,
    module: bytes,
    trip_counts: Mapping[str, float] | None,
    default_trip_count: float,
    inside: AskedInside,
    few: FewEquations | None = None,
) -> Graph:
    names = ModuleNames(
        arguments=traced.in_names,
        captured=traced.captured_names,
        results=traced.out_names,
        donated=traced.donated,
        source_by_equation=traced.source_by_equation,
    )
    return module_to_graph(
        module,
        names,
        trip_counts=trip_counts,
        default_trip_count=default_trip_count,
        asked=inside,
        few=few,
    )


def _wishes(traced: Traced, graph: Graph, asked: Resolved) -> Wishes:
    def types(avals: Sequence[Any]) -> list[tuple[tuple[int, ...], str]]:
        return [(tuple(aval.shape), str(aval.dtype)) for aval in avals]

    # Arrays that the function closes over come first; JAX gives every device a copy of them.
    captured = [
        Sharding.replicated_everywhere(len(graph.values[op.results[0]].shape))
        for op in graph.arguments[: graph.num_captured]
    ]
    carried = carried_pairs(
        traced.in_names,
        types(traced.in_avals),
        traced.donated,
        traced.out_names,
        types(traced.out_avals),
        traced.updated,
    )
    return Wishes(
        arguments=(*captured, *map(with_word_dims, asked.arguments, traced.in_avals)),
        results=tuple(map(with_word_dims, asked.results, traced.out_avals)),
        alike=[(len(captured) + argument, result) for argument, result in carried],
        groups=[
            AlikeWish(tuple(_member(graph, path) for path in group.paths), group.said)
            for group in asked.groups
        ],
    )


def _member(graph: Graph, path: str) -> tuple[int, int]:
    """The op that decides a tensor of a group, and its value."""
    if path.startswith("out<"):
        result = graph.results[int(path.removeprefix("out<"))]
        return result.index, result.operands[0]
    value = graph.value_by_path[path]
    return graph.values[value].op, value
