from __future__ import annotations

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers import FORBIDDEN, FormatError, MemoryLimit, Problem, evaluate
from solvers.formats import read_any, read_iopddl, read_problem, write_iopddl, write_problem
from solvers.formats.native import format_problem, parse_problem
from tests.solvers.instances import random_problem, small_problems
from tests.solvers.mutations import mutated

EXAMPLE: dict[str, Any] = {
    "format": "choice problem",
    "version": 1,
    "name": "example",
    "tables": [[1, 2, 3, 4, 5, 10**18], [7, 8], [1, 1, 1, 1, 1, 1]],
    "nodes": {"costs": [[0, 5], [1, 2, 3]]},
    "edges": {"nodes": [[0, 1], [0, 1]], "costs": [0, 0]},
    "node_memory": {"nodes": [0], "intervals": [[0, 4]], "usages": [1]},
    "edge_memory": {"edges": [1], "intervals": [[2, 3]], "usages": [2]},
    "memory_limit": 9,
    "memory_limits": [[2, 3, 8]],
}


def changed(path: str, value: object) -> dict[str, Any]:
    document = copy.deepcopy(EXAMPLE)
    *parts, last = path.split("/")
    holder: Any = document
    for part in parts:
        holder = holder[int(part) if part.isdigit() else part]
    holder[int(last) if last.isdigit() else last] = value
    return document


def assert_equal(first: Problem, second: Problem) -> None:
    assert format_problem(first) == format_problem(second)


def test_what_the_example_says() -> None:
    problem = parse_problem(EXAMPLE)
    assert problem.edges[0].costs.tolist() == [[1, 2, 3], [4, 5, FORBIDDEN]]
    assert problem.edges[0].costs is problem.edges[1].costs
    assert problem.edge_memory[0].usage.shape == (2, 3)
    assert problem.memory_limits == (MemoryLimit(2, 3, 8),)
    assert evaluate(problem, (0, 0)).is_allowed
    assert not evaluate(problem, (1, 0)).is_allowed  # 9 at time 2, where 8 is the limit


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
@settings(max_examples=20, deadline=None)
@given(problem=small_problems())
def test_a_written_problem_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, problem: Problem
) -> None:
    path = tmp_path_factory.mktemp("files") / f"problem{suffix}"
    write_problem(problem, path)
    assert_equal(read_problem(path), problem)
    assert_equal(read_any(path), problem)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_an_iopddl_file_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    problem = random_problem(seed, has_memory=False)
    path = tmp_path_factory.mktemp("files") / "problem.json.gz"
    write_iopddl(problem, path)
    assert_equal(read_iopddl(path), problem)
    assert_equal(read_any(path), problem)


def test_what_iopddl_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError) as caught:
        write_iopddl(parse_problem(EXAMPLE), tmp_path / "problem.json")
    assert str(caught.value) == (
        "example: the IOPDDL format holds neither memory of edges nor limits for some times only\n"
        "fix: write it in the format of solvers.formats.native"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format", "problem", "format: is not 'choice problem'"),
        ("version", 2, "version: is 2, expected 1"),
        ("version", None, "version: is null, expected an integer"),
        ("tables/0/2", -1, f"tables[0][2]: is -1, expected 0 to {2**63 - 1}"),
        ("tables/0/2", 2**63, f"tables[0][2]: is {2**63}, expected 0 to {2**63 - 1}"),
        (
            "tables/0/2",
            10**16,
            "edges.costs[0][0][2]: is 10000000000000000, expected less than 10**16, or 10**17 and "
            "up for not allowed",
        ),
        ("tables/0", [1, 2], "edges.costs[0]: table 0 has 2 entries, expected 6"),
        ("nodes/costs/1/0", 0.5, "nodes.costs[1][0]: is 0.5, expected an integer"),
        ("nodes/costs/1/0", float("nan"), "nodes.costs[1][0]: is nan, expected an integer"),
        ("nodes/costs/1", [], "nodes.costs[1]: is empty, expected at least one choice"),
        ("edges/costs/1", 3, "edges.costs[1]: is table 3, there are 3 tables"),
        ("edges/costs", [0], "edges.costs: has 1 entries, edges.nodes has 2"),
        ("edges/nodes/1", [0, 2], "edges.nodes[1][1]: is node 2, there are 2 nodes"),
        ("edges/nodes/1", [1, 1], "edges.nodes[1]: joins node 1 to itself"),
        ("node_memory/intervals/0", [4, 0], "node_memory.intervals[0]: starts at 4, stops at 0"),
        ("node_memory/nodes/0", 2, "node_memory.nodes[0]: is 2, there are 2 nodes"),
        ("edge_memory/edges/0", 2, "edge_memory.edges[0]: is 2, there are 2 edges"),
        ("edge_memory/usages/0", 1, "edge_memory.usages[0]: table 1 has 2 entries, expected 6"),
        ("memory_limits/0", [3, 2, 8], "memory_limits[0]: starts at 3, stops at 2"),
        ("memory_limits/0", [3, 8], "memory_limits[0]: has 2 entries, expected 3"),
        ("memory_limit", "all", "memory_limit: is text, expected an integer"),
        ("nodes", [], "nodes: is a list, expected an object"),
    ],
)
def test_what_is_wrong_is_named_with_its_path(path: str, value: object, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_problem(changed(path, value), source="x.json")
    fix = "fix: the format is described in solvers.formats.native"
    assert str(caught.value) == f"x.json: {message}\n{fix}"


def test_usages_that_may_overflow_are_refused() -> None:
    document = changed("tables/1", [2**62 - 1, 0])
    with pytest.raises(FormatError, match="memory: the largest ones add up to 46116860184"):
        parse_problem(document)


def test_a_document_of_neither_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text in ("{}", "[]", "3", "null"):
        path.write_text(text)
        with pytest.raises(FormatError, match='has neither "problem"'):
            read_any(path)


@settings(max_examples=300, deadline=None)
@given(document=mutated(EXAMPLE))
def test_a_damaged_document_is_read_or_refused_and_never_half_understood(document: Any) -> None:
    with contextlib.suppress(FormatError):
        problem = parse_problem(document)
        choices = [0] * problem.num_nodes
        assert evaluate(problem, choices).cost >= 0
        again = parse_problem(json.loads(json.dumps(format_problem(problem))))
        assert_equal(again, problem)
        assert all(costs.dtype == np.int64 for costs in problem.node_costs)
