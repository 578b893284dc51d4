"""The format that holds everything a `Problem` can say.

Format (JSON, possibly gzip-compressed; all numbers non-negative integers) ::

    {"format": "choice problem",
     "version": 1,
     "name": text,
     "tables": [[number, ...], ...],
     "nodes": {"costs": [[cost, ...], ...]},
     "edges": {"nodes": [[u, v], ...], "costs": [table, ...]},
     "node_memory": {"nodes": [node, ...], "intervals": [[start, stop], ...],
                     "usages": [table, ...]},
     "edge_memory": {"edges": [edge, ...], "intervals": [[start, stop], ...],
                     "usages": [table, ...]},
     "memory_limit": bytes,
     "memory_limits": [[start, stop, bytes], ...]}

`tables` are arrays that edges and memory terms point to by position, row-major over (choices of u,
choices of v); equal ones are written once. A cost of 10**17 or more is not allowed. All but
`format`, `version` and `nodes` may be missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from solvers.formats.json_file import read_document, write_document
from solvers.formats.reader import Reader, kind_of
from solvers.problem import (
    Edge,
    EdgeMemory,
    IntArray,
    MemoryLimit,
    NodeMemory,
    Problem,
)

FORMAT = "choice problem"
VERSION = 1


def read_problem(path: str | Path) -> Problem:
    """Reads a problem file.

    Raises:
        FormatError: The file is not JSON or not a problem; names the path inside the file.
        OSError: The file cannot be read.
    """
    return parse_problem(read_document(path), source=str(path))


def write_problem(problem: Problem, path: str | Path) -> None:
    """Writes a problem file, compressed where the name ends in ``.gz``.

    Raises:
        OSError: The file cannot be written.
    """
    write_document(path, format_problem(problem))


def format_problem(problem: Problem) -> dict[str, Any]:
    """Returns the document of a problem."""
    tables: list[list[int]] = []
    place_by_content: dict[tuple[int, ...], int] = {}
    place_by_identity: dict[int, int] = {}

    def place(table: IntArray) -> int:
        if id(table) not in place_by_identity:
            listed = tuple(table.ravel().tolist())
            if listed not in place_by_content:
                place_by_content[listed] = len(tables)
                tables.append(list(listed))
            place_by_identity[id(table)] = place_by_content[listed]
        return place_by_identity[id(table)]

    written: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "name": problem.name,
        "tables": tables,
        "nodes": {"costs": [costs.tolist() for costs in problem.node_costs]},
        "edges": {
            "nodes": [[edge.u, edge.v] for edge in problem.edges],
            "costs": [place(edge.costs) for edge in problem.edges],
        },
        "node_memory": {
            "nodes": [term.node for term in problem.node_memory],
            "intervals": [[term.start, term.stop] for term in problem.node_memory],
            "usages": [place(term.usage) for term in problem.node_memory],
        },
        "edge_memory": {
            "edges": [term.edge for term in problem.edge_memory],
            "intervals": [[term.start, term.stop] for term in problem.edge_memory],
            "usages": [place(term.usage) for term in problem.edge_memory],
        },
        "memory_limits": [[lim.start, lim.stop, lim.limit] for lim in problem.memory_limits],
    }
    if problem.memory_limit is not None:
        written["memory_limit"] = problem.memory_limit
    return written


def parse_problem(document: object, *, source: str = "document") -> Problem:
    """Turns a loaded JSON document into a problem.

    Raises:
        FormatError: It is not a problem; names the path inside the document.
    """
    reader = Reader(source, "the format is described in solvers.formats.native")
    return _Parser(reader, document).problem()


class _Parser:
    def __init__(self, reader: Reader, document: object) -> None:
        self.reader = reader
        if not isinstance(document, dict):
            reader.refuse("", f"is {kind_of(document)}, expected an object")
        self.document: dict[str, Any] = document
        if document.get("format") != FORMAT:
            reader.refuse("format", f"is not {FORMAT!r}")
        version = reader.number("version", document.get("version"))
        if version != VERSION:
            reader.refuse("version", f"is {version}, expected {VERSION}")
        self.tables = reader.rows("tables", self.optional("", document, "tables", list, []))
        self.tables_of_shape: dict[tuple[int, tuple[int, ...], bool], IntArray] = {}

    def optional(self, path: str, holder: dict[str, Any], key: str, kind: Any, other: Any) -> Any:
        return self.reader.member(holder, path, key, kind) if key in holder else other

    def problem(self) -> Problem:
        reader, document = self.reader, self.document
        nodes = reader.member(document, "", "nodes", dict)
        listed = reader.member(nodes, "nodes", "costs", list)
        node_costs = reader.costs("nodes.costs", reader.rows("nodes.costs", listed))
        sizes = [len(costs) for costs in node_costs]
        edges = self.edges(sizes)
        node_memory = tuple(
            NodeMemory(node, start, stop, usage)
            for node, start, stop, usage in self.terms(
                "node_memory", "nodes", [(s,) for s in sizes]
            )
        )
        edge_memory = tuple(
            EdgeMemory(edge, start, stop, usage)
            for edge, start, stop, usage in self.terms(
                "edge_memory", "edges", [edge.costs.shape for edge in edges]
            )
        )
        reader.check_total(
            "memory", [*(t.usage for t in node_memory), *(t.usage for t in edge_memory)]
        )
        limit = document.get("memory_limit")
        name = document.get("name", "")
        return Problem(
            node_costs=tuple(node_costs),
            edges=edges,
            node_memory=node_memory,
            edge_memory=edge_memory,
            memory_limit=None if limit is None else reader.number("memory_limit", limit),
            name=name if isinstance(name, str) else "",
            memory_limits=self.limits(),
        )

    def edges(self, sizes: list[int]) -> tuple[Edge, ...]:
        reader = self.reader
        listed = self.optional("", self.document, "edges", dict, {"nodes": [], "costs": []})
        ends = reader.pairs("edges.nodes", reader.member(listed, "edges", "nodes", list))
        reader.check_ends("edges.nodes", ends, len(sizes))
        places = self.places("edges", "costs", listed, len(ends), "nodes")
        return tuple(
            Edge(u, v, self.table(f"edges.costs[{e}]", place, (sizes[u], sizes[v]), is_cost=True))
            for e, ((u, v), place) in enumerate(zip(ends.tolist(), places, strict=True))
        )

    def terms(
        self, key: str, owners_key: str, shapes: list[tuple[int, ...]]
    ) -> list[tuple[int, int, int, IntArray]]:
        reader = self.reader
        empty: dict[str, list[Any]] = {owners_key: [], "intervals": [], "usages": []}
        listed = self.optional("", self.document, key, dict, empty)
        owners_path = f"{key}.{owners_key}"
        owners = reader.numbers(owners_path, reader.member(listed, key, owners_key, list))
        all_intervals = reader.member(listed, key, "intervals", list)
        if len(all_intervals) != len(owners):
            reader.refuse(
                f"{key}.intervals",
                f"has {len(all_intervals)} entries, {owners_path} has {len(owners)}",
            )
        intervals = reader.pairs(f"{key}.intervals", all_intervals)
        reader.check_intervals(f"{key}.intervals", intervals)
        places = self.places(key, "usages", listed, len(owners), owners_key)
        found = []
        for k, (owner, (start, stop), place) in enumerate(
            zip(owners.tolist(), intervals.tolist(), places, strict=True)
        ):
            if owner >= len(shapes):
                what = f"is {owner}, there are {len(shapes)} {owners_key}"
                reader.refuse(f"{owners_path}[{k}]", what)
            usage = self.table(f"{key}.usages[{k}]", place, shapes[owner], is_cost=False)
            found.append((owner, start, stop, usage))
        return found

    def places(
        self, path: str, key: str, holder: dict[str, Any], count: int, counted: str
    ) -> list[int]:
        reader = self.reader
        listed = reader.member(holder, path, key, list)
        if len(listed) != count:
            what = f"has {len(listed)} entries, {path}.{counted} has {count}"
            reader.refuse(f"{path}.{key}", what)
        places: list[int] = reader.numbers(f"{path}.{key}", listed).tolist()
        for k, place in enumerate(places):
            if place >= len(self.tables):
                what = f"is table {place}, there are {len(self.tables)} tables"
                reader.refuse(f"{path}.{key}[{k}]", what)
        return places

    def table(self, path: str, place: int, shape: tuple[int, ...], *, is_cost: bool) -> IntArray:
        """Returns a table in a shape, the same array for the same table and shape."""
        key = (place, shape, is_cost)
        if key not in self.tables_of_shape:
            flat = self.tables[place]
            size = 1
            for length in shape:
                size *= length
            if flat.size != size:
                what = f"table {place} has {flat.size} entries, expected {size}"
                self.reader.refuse(path, what)
            if is_cost:
                (flat,) = self.reader.costs(path, [flat])
            self.tables_of_shape[key] = flat.reshape(shape)
        return self.tables_of_shape[key]

    def limits(self) -> tuple[MemoryLimit, ...]:
        reader = self.reader
        listed = self.optional("", self.document, "memory_limits", list, [])
        rows = reader.rows("memory_limits", listed, [3] * len(listed))
        found = tuple(MemoryLimit(*row.tolist()) for row in rows)
        for k, limit in enumerate(found):
            if limit.start > limit.stop:
                what = f"starts at {limit.start}, stops at {limit.stop}"
                reader.refuse(f"memory_limits[{k}]", what)
        return found
