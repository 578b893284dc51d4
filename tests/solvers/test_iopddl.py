from __future__ import annotations

import contextlib
import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers import FORBIDDEN, FormatError, Status, evaluate, solve
from solvers.formats import read_iopddl
from solvers.formats.iopddl import parse_iopddl

INSTANCES = Path(__file__).resolve().parents[3] / "shared" / "iopddl"

EXAMPLE: dict[str, Any] = {
    "problem": {
        "name": "example",
        "nodes": {
            "intervals": [[0, 2], [1, 3], [3, 3]],
            "costs": [[15, 10], [20, 25], [1]],
            "usages": [[10, 40], [15, 5], [9]],
        },
        "edges": {"nodes": [[1, 0], [0, 1]], "costs": [[1, 2, 3, 4], [0, 0, 10**18, 0]]},
        "usage_limit": 50,
    }
}


def changed(path: str, value: object) -> dict[str, Any]:
    document = copy.deepcopy(EXAMPLE)
    *parts, last = path.split("/")
    holder: Any = document["problem"]
    for part in parts:
        holder = holder[int(part) if part.isdigit() else part]
    holder[int(last) if last.isdigit() else last] = value
    return document


def test_tables_are_row_major_and_empty_intervals_hold_nothing() -> None:
    problem = parse_iopddl(EXAMPLE)
    assert problem.edges[0].costs.tolist() == [[1, 2], [3, 4]]
    assert problem.edges[1].costs[1, 0] == FORBIDDEN
    assert [term.node for term in problem.node_memory] == [0, 1]
    assert evaluate(problem, (0, 1, 0)).cost == 15 + 25 + 1 + 3 + 0
    assert solve(problem).status is Status.OPTIMAL


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_files_are_read_plain_and_compressed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"example{suffix}"
    text = json.dumps(EXAMPLE).encode()
    path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    assert read_iopddl(path).name == "example"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("nodes/costs/0/1", -1, f"nodes.costs[0][1]: is -1, expected 0 to {2**63 - 1}"),
        ("nodes/costs/0/1", 1.5, "nodes.costs[0][1]: is 1.5, expected an integer"),
        ("nodes/costs/0/1", float("nan"), "nodes.costs[0][1]: is nan, expected an integer"),
        ("nodes/costs/0/1", True, "nodes.costs[0][1]: is True, expected an integer"),
        ("nodes/costs/0/1", 2**63, f"nodes.costs[0][1]: is {2**63}, expected 0 to {2**63 - 1}"),
        ("nodes/costs/2", [], "nodes.costs[2]: is empty, expected at least one choice"),
        ("nodes/usages/0", [1], "nodes.usages[0]: has 1 entries, expected 2"),
        ("nodes/usages", [[1, 2]], "nodes.usages: has 1 entries, nodes.costs has 3"),
        ("nodes/intervals/1", [3, 1], "nodes.intervals[1]: starts at 3, stops at 1"),
        ("nodes/intervals/1", [3], "nodes.intervals[1]: has 1 entries, expected 2"),
        ("edges/nodes/0", [1, 3], "edges.nodes[0][1]: is node 3, there are 3 nodes"),
        ("edges/nodes/0", [1, 1], "edges.nodes[0]: joins node 1 to itself"),
        ("edges/costs/0", [1, 2, 3], "edges.costs[0]: has 3 entries, expected 4"),
        ("edges/costs", None, "edges.costs: is null, expected a list"),
        ("usage_limit", "much", "usage_limit: is text, expected an integer"),
        ("nodes", [], "nodes: is a list, expected an object"),
    ],
)
def test_errors_name_the_path_in_the_file(path: str, value: object, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_iopddl(changed(path, value), source="x.json")
    assert caught.value.what == message
    assert caught.value.where == "x.json"


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b'{"problem": 3}', b"\xff\xfe\x00"])
def test_what_is_no_instance_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(FormatError):
        read_iopddl(path)


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.json.gz"
    path.write_bytes(gzip.compress(json.dumps(EXAMPLE).encode())[:-20])
    with pytest.raises(FormatError, match="cannot be unpacked"):
        read_iopddl(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
places = st.sampled_from(
    [
        "nodes",
        "edges",
        "usage_limit",
        "nodes/costs",
        "nodes/costs/0",
        "nodes/costs/0/0",
        "nodes/intervals/0",
        "nodes/usages/1",
        "edges/nodes",
        "edges/nodes/0/1",
        "edges/costs/1",
    ]
)


@settings(max_examples=200, deadline=None)
@given(place=places, value=json_values)
def test_any_wrong_value_anywhere_is_refused_or_read(place: str, value: object) -> None:
    with contextlib.suppress(FormatError):
        assert parse_iopddl(changed(place, value)).num_nodes == 3


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seconds"), [("G", 60), ("B", 60), ("A", 60), ("P", 120)])
def test_contest_instances_are_solved_to_the_known_optimum(name: str, seconds: float) -> None:
    if not INSTANCES.is_dir():
        pytest.skip(f"no contest instances next to the checkout ({INSTANCES.name} is absent)")
    known = json.loads((INSTANCES / "best_known.json").read_text())["instances"][name]
    problem = read_iopddl(INSTANCES / f"asplos-2025-iopddl-{name}.json.gz")
    result = solve(problem, time_limit_seconds=seconds)
    assert problem.num_nodes == known["nodes"]
    assert len(problem.edges) == known["edges"]
    assert result.cost == known["best_known_cost"]
    assert result.status is Status.OPTIMAL
