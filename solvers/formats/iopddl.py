"""Reads instances of the ASPLOS/EuroSys 2025 contest on intra-operator parallelism (IOPDDL).

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
``start <= t < stop``. `usage_limit` may be missing.

Source: https://github.com/google/iopddl (format and benchmarks, Apache-2.0).
"""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from solvers.errors import FormatError
from solvers.problem import FORBIDDEN, Edge, IntArray, NodeMemory, Problem, verify_problem

_LARGEST = 2**63 - 1
_GZIP_MAGIC = b"\x1f\x8b"


def read_iopddl(path: str | Path) -> Problem:
    """Reads one instance.

    Args:
        path: A ``.json`` or ``.json.gz`` file (told apart by content).

    Raises:
        FormatError: The file is not JSON or not an instance; names the path inside the file.
        OSError: The file cannot be read.
    """
    raw = Path(path).read_bytes()
    if raw[:2] == _GZIP_MAGIC:
        try:
            raw = gzip.decompress(raw)
        except (EOFError, OSError, zlib.error) as error:
            raise FormatError(
                f"cannot be decompressed: {error}", where=str(path), fix="fetch the file again"
            ) from error
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"is not JSON: {error}", where=str(path)) from error
    del raw
    return parse_iopddl(document, source=str(path))


def parse_iopddl(document: object, *, source: str = "document") -> Problem:
    """Turns a loaded JSON document into a problem.

    Args:
        document: What `json.loads` returned.
        source: Where it is from, for messages.

    Raises:
        FormatError: It is not an instance; names the path inside the document.
    """
    reader = _Reader(source)
    problem = reader.member(document, "", "problem", dict)
    nodes = reader.member(problem, "", "nodes", dict)
    all_costs = reader.member(nodes, "nodes", "costs", list)
    intervals = reader.member(nodes, "nodes", "intervals", list)
    usages = reader.member(nodes, "nodes", "usages", list)
    for key, listed in (("intervals", intervals), ("usages", usages)):
        if len(listed) != len(all_costs):
            raise reader.error(
                f"nodes.{key}", f"has {len(listed)} entries, nodes.costs has {len(all_costs)}"
            )
    node_costs = [
        reader.numbers(f"nodes.costs[{i}]", costs, None) for i, costs in enumerate(all_costs)
    ]
    memory = []
    for i, (interval, usage) in enumerate(zip(intervals, usages, strict=True)):
        start, stop = reader.numbers(f"nodes.intervals[{i}]", interval, 2).tolist()
        if start > stop:
            raise reader.error(f"nodes.intervals[{i}]", f"starts at {start}, stops at {stop}")
        held = reader.numbers(f"nodes.usages[{i}]", usage, len(node_costs[i]))
        if start < stop:
            memory.append(NodeMemory(i, start, stop, held))
    limit = problem.get("usage_limit")
    if limit is not None:
        limit = int(reader.numbers("usage_limit", [limit], 1)[0])
    name = problem.get("name", "")
    read = Problem(
        node_costs=tuple(np.minimum(costs, FORBIDDEN) for costs in node_costs),
        edges=tuple(_edges(reader, problem, node_costs)),
        node_memory=tuple(memory),
        memory_limit=limit,
        name=name if isinstance(name, str) else "",
    )
    faults = verify_problem(read)
    if faults:
        raise reader.error("problem", "; ".join(faults[:3]))
    return read


def _edges(reader: _Reader, problem: dict[str, Any], node_costs: list[IntArray]) -> list[Edge]:
    if "edges" not in problem:
        return []
    listed = reader.member(problem, "", "edges", dict)
    ends = reader.member(listed, "edges", "nodes", list)
    tables = reader.member(listed, "edges", "costs", list)
    if len(ends) != len(tables):
        raise reader.error("edges.costs", f"has {len(tables)} entries, edges.nodes has {len(ends)}")
    edges = []
    for e, (pair, table) in enumerate(zip(ends, tables, strict=True)):
        u, v = reader.numbers(f"edges.nodes[{e}]", pair, 2).tolist()
        for place, end in enumerate((u, v)):
            if end >= len(node_costs):
                raise reader.error(
                    f"edges.nodes[{e}][{place}]",
                    f"is node {end}, there are {len(node_costs)} nodes",
                )
        if u == v:
            raise reader.error(f"edges.nodes[{e}]", f"joins node {u} to itself")
        shape = (len(node_costs[u]), len(node_costs[v]))
        costs = reader.numbers(f"edges.costs[{e}]", table, shape[0] * shape[1])
        edges.append(Edge(u, v, np.minimum(costs, FORBIDDEN).reshape(shape)))
    return edges


class _Reader:
    def __init__(self, source: str) -> None:
        self.source = source

    def error(self, path: str, what: str) -> FormatError:
        return FormatError(
            f"{path}: {what}" if path else what,
            where=self.source,
            fix="the format is described in solvers.formats.iopddl",
        )

    def member(self, holder: object, path: str, key: str, kind: type[Any]) -> Any:
        """Returns ``holder[key]``, checked to be of a kind."""
        inner = f"{path}.{key}" if path else key
        if not isinstance(holder, dict) or key not in holder:
            raise self.error(inner, "is missing")
        found = holder[key]
        if not isinstance(found, kind):
            expected = "an object" if kind is dict else "a list"
            raise self.error(inner, f"is {_kind(found)}, expected {expected}")
        return found

    def numbers(self, path: str, listed: object, count: int | None) -> IntArray:
        """Returns a list of non-negative 64-bit integers as an array."""
        if not isinstance(listed, list):
            raise self.error(path, f"is {_kind(listed)}, expected a list of integers")
        if count is not None and len(listed) != count:
            raise self.error(path, f"has {len(listed)} entries, expected {count}")
        if count is None and not listed:
            raise self.error(path, "is empty, expected at least one choice")
        # Exactly int: a bool counts as one in Python but not in the format.
        if any(type(value) is not int or not 0 <= value <= _LARGEST for value in listed):
            for i, value in enumerate(listed):
                where = path if path == "usage_limit" else f"{path}[{i}]"
                if type(value) is not int:
                    raise self.error(where, f"is {_kind(value)}, expected an integer")
                if not 0 <= value <= _LARGEST:
                    raise self.error(where, f"is {value}, expected 0 to {_LARGEST}")
        return np.array(listed, dtype=np.int64)


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, (bool, int, float)):
        return str(value)
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list) else "an object"
