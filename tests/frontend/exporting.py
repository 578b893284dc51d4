"""Exporting small functions for tests, and looking things up in the graphs that come out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from autoshard.frontend.module import ModuleNames, module_to_graph
from autoshard.frontend.trace import trace
from autoshard.graph.printing import format_graph
from autoshard.graph.program import Graph, Op, OpKind, Region
from autoshard.graph.verify import verify_graph
from autoshard.sharding import parse_mesh_sizes

MESH = parse_mesh_sizes("x=2,y=4")


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def export(
    fn: Callable[..., Any],
    *args: Any,
    trip_counts: Mapping[str, float] | None = None,
    donate: Sequence[int] = (),
    platform: str = "tpu",
) -> Graph:
    """Trace, lower and import a function; the graph is sound."""
    traced = trace(fn, args, {}, mesh=MESH, donate_argnums=donate, platform=platform)
    graph = module_to_graph(
        traced.module,
        ModuleNames(
            arguments=traced.in_names,
            results=traced.out_names,
            donated=traced.donated,
            captured=traced.captured_names,
            source_by_equation=traced.source_by_equation,
        ),
        trip_counts=trip_counts,
    )
    assert verify_graph(graph) == []
    return graph


def named(graph: Graph, name: str) -> list[Op]:
    return [op for op in graph.ops if op.name == name]


def one(graph: Graph, name: str) -> Op:
    (op,) = named(graph, name)
    return op


def rule_of(graph: Graph, name: str) -> str:
    return str(one(graph, name).rule)


def names(graph: Graph) -> list[str]:
    """Names of the ops that do something, in order."""
    return [op.name for op in graph.ops if op.kind in (OpKind.COMPUTE, OpKind.JOIN)]


def regions(graph: Graph, kind: str) -> list[Region]:
    return [region for region in graph.regions if region.kind == kind]


def inside(graph: Graph, region: Region) -> list[str]:
    """Names of the computing ops in a region."""
    ops = graph.ops[region.start : region.stop]
    return [op.name for op in ops if op.kind is OpKind.COMPUTE]


def notes(graph: Graph) -> list[str]:
    """Notes, with the place in this repository's tests as `file.py:line`."""
    return [re.sub(r"\(\S*/(\w+\.py):\d+[^()]*(\([^)]*\))?\)", r"(\1)", n) for n in graph.notes]


def text(graph: Graph) -> list[str]:
    return format_graph(graph, sources=False).splitlines()
