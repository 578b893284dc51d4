"""What enumeration leaves out costs nothing: plans with everything offered are no better."""

from __future__ import annotations

from itertools import permutations

import pytest

from autoshard.graph.program import Graph, OpClass
from autoshard.graph.rule import Rule
from autoshard.layouts import MeshParts, Parts
from autoshard.sharding import parse_sharding
from solvers import solve
from tests.planner.graphs import Program, encoder_for, wishes_for


def mlp() -> Graph:
    program = Program()
    x, w1, w2 = (program.argument(*s) for s in ((512, 256), (256, 1024), (1024, 256)))
    hidden = program.elementwise(program.matmul(x, w1), name="tanh")
    return program.graph(program.matmul(hidden, w2))


def gradient() -> Graph:
    """A matmul whose sum is over the batch, reduced onto the shape of the weights."""
    program = Program()
    x, dy, w = (program.argument(*s) for s in ((2048, 64), (2048, 64), (64, 64)))
    rule = Rule((64, 64, 2048), (((2,), (0,)), ((2,), (1,))), (((0,), (1,)),), frozenset({2}))
    made = program.compute("dot_general", (x, dy), [(64, 64)], rule, OpClass.MATMUL)[0]
    return program.graph(program.elementwise(w, made), donated=(2,))


def all_orders(parts: MeshParts, chosen: frozenset[int]) -> tuple[Parts, ...]:
    """Every order of whole axes."""
    del parts
    return tuple(permutations(sorted(chosen)))


def best(graph: Graph, max_candidates: int, hardware: str) -> int:
    pins = {0: parse_sharding('<@mesh, [{"x", ?}, {?}]>')}
    encoder = encoder_for(graph, "x=2,y=2,z=2", wishes_for(graph, pins), hardware=hardware)
    encoder.max_candidates = max_candidates
    result = solve(encoder.encode().problem, relative_gap=0.0, time_limit_seconds=60.0)
    assert result.cost is not None
    assert result.cost == result.lower_bound
    return result.cost


@pytest.mark.parametrize("make", [mlp, gradient])
@pytest.mark.parametrize("hardware", ["cpu-host", "tpu-v5p"])
def test_orders_and_endings_left_out_cost_nothing(
    make: object, hardware: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(make)
    offered = best(make(), 400, hardware)
    monkeypatch.setattr("autoshard.candidates.candidate.part_orders", all_orders)
    assert best(make(), 10**6, hardware) == offered
