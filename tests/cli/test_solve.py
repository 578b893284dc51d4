"""`autoshard solve`: what goes where, exit codes, bad input, and being asked to stop."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings

from autoshard.cli import main
from solvers import FORBIDDEN, Edge, NodeMemory, Problem, evaluate, solve
from solvers.formats import write_iopddl, write_problem
from tests.solvers.instances import LayeredShape, layered_problem
from tests.solvers.mutations import mutated

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


A_GOOD_WHILE = 120
"""Seconds in which a process that was asked to stop has ended on a loaded machine as well."""

COMMAND = "from autoshard.cli import main; main()"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["solve", *(str(argument) for argument in arguments)])


def written(folder: Path, document: object) -> Path:
    path = folder / "instance.json"
    path.write_text(json.dumps(document))
    return path


def test_the_last_line_is_the_list_of_choices_and_all_else_goes_to_stderr(tmp_path: Path) -> None:
    result = run(written(tmp_path, EXAMPLE), "--timeout", "10", "--seed", "3")
    assert (result.exit_code, result.stdout) == (0, "[0, 0, 0]\n")
    assert "status: optimal" in result.stderr
    assert "cost 37, bound 37, gap 0.0000%, peak 25 at time 1" in result.stderr


def test_both_formats_are_read_compressed_or_not(tmp_path: Path) -> None:
    problem = layered_problem(LayeredShape(num_layers=1, ops_per_layer=6, num_choices=4))
    best = solve(problem)
    free = Problem(problem.node_costs, problem.edges)
    for name, write in (("a.json.gz", write_problem), ("b.json", write_iopddl)):
        write(free, tmp_path / name)
        result = run(tmp_path / name)
        assert result.exit_code == 0
        choices = json.loads(result.stdout.splitlines()[-1])
        assert evaluate(problem, choices).cost == best.cost


def test_no_choices_is_exit_code_one_with_the_smallest_peak_and_where(tmp_path: Path) -> None:
    document = json.loads(json.dumps(EXAMPLE))
    document["problem"]["usage_limit"] = 14
    result = run(written(tmp_path, document))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "status: infeasible" in result.stderr
    assert "smallest peak found: 15 at time 1; none is below 15" in result.stderr
    assert "times 1" in result.stderr


def assert_refused(result: Result, start: str) -> None:
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {start}"), result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p["nodes"]["costs"][1].__setitem__(0, -4), "nodes.costs[1][0]: is -4, "),
        (lambda p: p["nodes"]["costs"][1].__setitem__(0, 4.5), "nodes.costs[1][0]: is 4.5, "),
        (
            lambda p: p["nodes"]["costs"][1].__setitem__(0, float("nan")),
            "nodes.costs[1][0]: is nan, ",
        ),
        (lambda p: p["nodes"]["costs"].__setitem__(2, []), "nodes.costs[2]: is empty"),
        (lambda p: p["edges"]["costs"][0].pop(), "edges.costs[0]: has 3 entries, expected 4"),
        (
            lambda p: p["nodes"]["intervals"].__setitem__(0, [2, 0]),
            "nodes.intervals[0]: starts at 2, stops at 0",
        ),
        (
            lambda p: p["edges"]["nodes"].__setitem__(0, [1, 7]),
            "edges.nodes[0][1]: is node 7, there are 3 nodes",
        ),
    ],
)
def test_bad_input_is_named_with_its_path(tmp_path: Path, change: Any, message: str) -> None:
    document = json.loads(json.dumps(EXAMPLE))
    change(document["problem"])
    path = written(tmp_path, document)
    assert_refused(run(path), f"{path}: {message}")


def test_files_that_hold_no_problem_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json.gz"
    assert_refused(run(path), "cannot be read: No such file or directory")
    path.write_bytes(b"not json")
    assert_refused(run(path), f"{path}: is not JSON: ")
    path.write_bytes(gzip.compress(json.dumps(EXAMPLE).encode())[:-12])
    assert_refused(run(path), f"{path}: it cannot be unpacked: ")
    assert_refused(run(tmp_path), "cannot be read: Is a directory")


def test_a_file_that_does_not_fit_into_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solvers.formats.json_file.available_bytes", lambda: 2**20)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b"[" + b"1," * 2**20 + b"1]"))
    assert_refused(
        run(path), f"{path}: is too large: reading it needs more than the 1 MiB there are"
    )


def test_an_unknown_solver_is_refused(tmp_path: Path) -> None:
    result = run(written(tmp_path, EXAMPLE), "--solver", "gurobi")
    assert (result.exit_code, result.stdout) == (2, "")
    assert 'error: engine: no engine is called "gurobi"' in result.stderr


@settings(max_examples=150, deadline=None)
@given(document=mutated(EXAMPLE))
def test_any_damaged_file_ends_with_an_answer_or_an_error_and_no_traceback(
    tmp_path_factory: pytest.TempPathFactory, document: Any
) -> None:
    path = tmp_path_factory.mktemp("files") / "x.json"
    path.write_text(json.dumps(document))
    result = run(path, "--timeout", "5")
    assert result.exit_code in (0, 1, 2)
    assert "unexpected" not in result.stderr
    if result.exit_code:
        assert result.stdout == ""
    else:
        assert isinstance(json.loads(result.stdout.splitlines()[-1]), list)


def hard_problem() -> Problem:
    """Frustrated on every edge and tight in memory: no engine proves its optimum in a minute."""
    rng = np.random.default_rng(0)
    num_nodes, num_choices = 150, 12
    edges = tuple(
        Edge(u, v, rng.integers(0, 10**6, (num_choices, num_choices)))
        for u in range(num_nodes)
        for v in rng.choice(num_nodes, 5, replace=False).tolist()
        if u != v
    )
    memory = tuple(
        NodeMemory(u, u // 2, u // 2 + 60, rng.integers(0, 1000, num_choices))
        for u in range(num_nodes)
    )
    costs = tuple(rng.integers(0, 10**6, num_choices) for _ in range(num_nodes))
    forbidden = costs[0].copy()
    forbidden[1] = FORBIDDEN
    return Problem((forbidden, *costs[1:]), edges, memory, memory_limit=45_000)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_search_with_the_best_so_far(
    tmp_path: Path, number: signal.Signals
) -> None:
    path = tmp_path / "hard.json"
    write_problem(hard_problem(), path)
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "solve", os.fspath(path), "--timeout", "100"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        seen = next((line for line in process.stderr if "cost" in line), None)
        assert seen is not None, "the process ended before it had an answer"
        process.send_signal(number)
        output, errors = process.communicate(timeout=A_GOOD_WHILE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors
    assert evaluate(hard_problem(), json.loads(output.splitlines()[-1])).is_allowed
    assert "interrupted: this is the best so far" in errors


def test_the_time_limit_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "hard.json"
    write_problem(hard_problem(), path)
    began = time.monotonic()
    result = run(path, "--timeout", "3")
    assert time.monotonic() - began < 5
    assert result.exit_code == 0
    assert "status: feasible" in result.stderr


def test_solving_starts_without_jax_and_every_public_name_is_still_there() -> None:
    script = (
        "import sys, autoshard, autoshard.cli\n"
        "autoshard.cli.main.commands['solve']\n"
        "assert 'jax' not in sys.modules\n"
        "assert set(autoshard.__all__) <= set(dir(autoshard))\n"
        "assert all(hasattr(autoshard, name) for name in autoshard.__all__)\n"
        "assert not hasattr(autoshard, 'optimise')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
