"""Instances of the ASPLOS/EuroSys 2025 contest on intra-operator parallelism (IOPDDL).

Format (JSON, possibly gzip-compressed; all numbers non-negative integers) ::

    {"problem": {
        "name": text,
        "nodes": {"intervals": [[start, stop], ...],
                  "costs": [[cost, ...], ...],
                  "usages": [[bytes, ...], ...]},
        "edges": {"nodes": [[u, v], ...],
                  "costs": [[cost, ...], ...]},
        "usage_limit": bytes}}

An edge's costs are row-major over (choices of u, choices of v). Node usage is held while
``start <= t < stop``. `usage_limit` may be missing. A cost of 10**17 or more is not allowed.

Source: https://github.com/google/iopddl (format and benchmarks, Apache-2.0).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from solvers.errors import FormatError
from solvers.formats.json_file import read_document, write_document
from solvers.formats.reader import Reader
from solvers.problem import FORBIDDEN, Edge, IntArray, NodeMemory, Problem

_WRITTEN_FORBIDDEN = 10**18  # as the contest's own instances have it


def read_iopddl(path: str | Path) -> Problem:
    """Reads one instance.

    Args:
        path: A ``.json`` or ``.json.gz`` file (told apart by content).

    Raises:
        FormatError: The file is not JSON or not an instance; names the path inside the file.
        OSError: The file cannot be read.
    """
    return parse_iopddl(read_document(path), source=str(path))


def write_iopddl(problem: Problem, path: str | Path) -> None:
    """Writes one instance, compressed where the name ends in ``.gz``.

    Raises:
        FormatError: The format cannot hold the problem.
        OSError: The file cannot be written.
    """
    write_document(path, format_iopddl(problem))


def parse_iopddl(document: object, *, source: str = "document") -> Problem:
    """Turns a loaded JSON document into a problem.

    Args:
        document: What `json.loads` returned.
        source: Where it is from, for messages.

    Raises:
        FormatError: It is not an instance; names the path inside the document.
    """
    reader = Reader(source, "the format is described in solvers.formats.iopddl")
    problem = reader.member(document, "", "problem", dict)
    nodes = reader.member(problem, "", "nodes", dict)
    all_costs = reader.member(nodes, "nodes", "costs", list)
    all_intervals = reader.member(nodes, "nodes", "intervals", list)
    all_usages = reader.member(nodes, "nodes", "usages", list)
    for key, listed in (("intervals", all_intervals), ("usages", all_usages)):
        if len(listed) != len(all_costs):
            reader.refuse(
                f"nodes.{key}", f"has {len(listed)} entries, nodes.costs has {len(all_costs)}"
            )
    node_costs = reader.costs("nodes.costs", reader.rows("nodes.costs", all_costs))
    sizes = [len(costs) for costs in node_costs]
    intervals = reader.pairs("nodes.intervals", all_intervals)
    reader.check_intervals("nodes.intervals", intervals)
    usages = reader.rows("nodes.usages", all_usages, sizes)
    memory = tuple(
        NodeMemory(i, start, stop, usage)
        for i, ((start, stop), usage) in enumerate(zip(intervals.tolist(), usages, strict=True))
        if start < stop
    )
    reader.check_total("nodes.usages", [term.usage for term in memory])
    limit = problem.get("usage_limit")
    name = problem.get("name", "")
    return Problem(
        node_costs=tuple(node_costs),
        edges=tuple(_edges(reader, problem, sizes)),
        node_memory=memory,
        memory_limit=None if limit is None else reader.number("usage_limit", limit),
        name=name if isinstance(name, str) else "",
    )


def _edges(reader: Reader, problem: dict[str, Any], sizes: list[int]) -> list[Edge]:
    if "edges" not in problem:
        return []
    listed = reader.member(problem, "", "edges", dict)
    all_ends = reader.member(listed, "edges", "nodes", list)
    all_costs = reader.member(listed, "edges", "costs", list)
    if len(all_ends) != len(all_costs):
        reader.refuse(
            "edges.costs", f"has {len(all_costs)} entries, edges.nodes has {len(all_ends)}"
        )
    ends = reader.pairs("edges.nodes", all_ends)
    reader.check_ends("edges.nodes", ends, len(sizes))
    shapes = [(sizes[u], sizes[v]) for u, v in ends.tolist()]
    rows = reader.rows("edges.costs", all_costs, [a * b for a, b in shapes])
    shaped: dict[tuple[int, tuple[int, int]], IntArray] = {}
    found = []
    tables = reader.costs("edges.costs", rows)
    for (u, v), table, shape in zip(ends.tolist(), tables, shapes, strict=True):
        key = (id(table), shape)
        if key not in shaped:
            shaped[key] = table.reshape(shape)
        found.append(Edge(u, v, shaped[key]))
    return found


def format_iopddl(problem: Problem) -> dict[str, Any]:
    """Returns the document of a problem: at most one memory term a node, none on edges.

    Raises:
        FormatError: The problem holds memory the format cannot express.
    """
    if problem.edge_memory or problem.memory_limits:
        raise FormatError(
            "the IOPDDL format holds neither memory of edges nor limits for some times only",
            where=problem.name or "problem",
            fix="write it in the format of solvers.formats.native",
        )
    intervals = [[0, 0] for _ in problem.node_costs]
    usages = [[0] * len(costs) for costs in problem.node_costs]
    has_term = [False] * problem.num_nodes
    for k, term in enumerate(problem.node_memory):
        if has_term[term.node]:
            raise FormatError(
                f"node {term.node} has a second memory term, the IOPDDL format holds one a node",
                where=f"node_memory[{k}]",
                fix="write it in the format of solvers.formats.native",
            )
        has_term[term.node] = True
        intervals[term.node] = [term.start, term.stop]
        usages[term.node] = term.usage.tolist()
    written: dict[str, Any] = {
        "name": problem.name,
        "nodes": {
            "intervals": intervals,
            "costs": [_costs(costs) for costs in problem.node_costs],
            "usages": usages,
        },
        "edges": {
            "nodes": [[edge.u, edge.v] for edge in problem.edges],
            "costs": [_costs(edge.costs) for edge in problem.edges],
        },
    }
    if problem.memory_limit is not None:
        written["usage_limit"] = problem.memory_limit
    return {"problem": written}


def _costs(costs: IntArray) -> list[int]:
    listed: list[int] = costs.ravel().tolist()
    return [_WRITTEN_FORBIDDEN if cost >= FORBIDDEN else cost for cost in listed]
