"""Rows of stacks that a loop computes from the same tensors are written by one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.backends import backend_for
from autoshard.costing.costing import Costing, cost_model_for
from autoshard.costing.joined_updates import carried_apart, joined_updates
from autoshard.encoding.encode import Encoder
from autoshard.graph.buffers import find_buffers
from autoshard.graph.program import Graph
from cost_models import get_hardware
from tests.planner.graphs import free_wishes, parts_of
from tests.planner.traced import exported

V5P = get_hardware("tpu-v5p")
X = jax.ShapeDtypeStruct((64, 256), jnp.float32)
W = jax.ShapeDtypeStruct((256, 256), jnp.float32)
RUNS = 4


def stacked(rows: Callable[[Any, Any], Any]) -> Graph:
    """A recurrence that keeps rows made of its sums and of the state before."""

    def fn(x: Any, w: Any) -> Any:
        def body(state: Any, _: None) -> tuple[Any, Any]:
            sums = state @ w
            return jnp.tanh(sums), rows(sums, state)

        return lax.scan(body, x, None, length=RUNS)

    return exported(fn, X, W, mesh="x=1")[0]


def updates(graph: Graph) -> list[int]:
    return [op.index for op in graph.ops if op.name == "dynamic_update_slice"]


def joined(graph: Graph) -> frozenset[int]:
    return joined_updates(graph, find_buffers(graph, backend_for(V5P)))


def test_rows_computed_from_the_same_sums_are_written_together() -> None:
    graph = stacked(lambda sums, _: (jnp.sin(sums), sums * sums, jnp.cos(sums)))
    _, *others = updates(graph)
    assert len(others) == 2
    assert joined(graph) == set(others)


def test_rows_of_other_tensors_are_not() -> None:
    graph = stacked(lambda sums, state: (jnp.sin(sums), jnp.sin(state), jnp.sin(sums) * state))
    assert len(updates(graph)) == 3
    assert joined(graph) == set()


def seconds(graph: Graph, hardware: str) -> list[float]:
    return [of_op(graph, index, hardware) for index in updates(graph)]


def of_op(graph: Graph, index: int, hardware: str) -> float:
    machine, parts = get_hardware(hardware), parts_of("x=1")
    costing = Costing(cost_model_for(machine, parts), parts)
    encoder = Encoder(
        graph, find_buffers(graph, backend_for(machine)), costing, free_wishes(graph), None
    )
    encoded = encoder.encode()
    candidates = encoded.candidates[encoded.node_by_op[index]]
    found = encoder.node_costs.seconds(graph.ops[index], candidates)
    return float(found[0])


def test_only_the_first_of_them_takes_time_to_start() -> None:
    first, second = seconds(stacked(lambda sums, _: (jnp.sin(sums), sums * sums)), "tpu-v5p")
    assert first - second == pytest.approx(V5P.compute.kernel_launch_seconds)
    assert second > 0


def test_other_backends_start_each() -> None:
    first, second = seconds(stacked(lambda sums, _: (jnp.sin(sums), sums * sums)), "h100")
    assert first == second


def carried(body: Callable[[Any, Any, Any], Any]) -> list[str]:
    """Names of the ops that make what the loop of a recurrence carries apart from all else."""

    def fn(x: Any, w: Any) -> Any:
        def run(carry: Any, row: Any) -> Any:
            return body(carry, row, w)

        return lax.scan(run, (x, x), jnp.stack([x, x]) * 2)

    graph = exported(fn, X, W, mesh="x=1")[0]
    found = carried_apart(graph, find_buffers(graph, backend_for(V5P)))
    return [graph.ops[graph.values[value].op].name for value in sorted(found)]


def test_what_is_computed_of_slices_and_carried_has_a_kernel_of_its_own() -> None:
    assert carried(lambda c, row, w: ((c[0] @ w, jnp.sin(c[1] + row)), None)) == ["sine"]


def test_with_rows_runs_what_they_are_computed_from() -> None:
    def body(carry: Any, row: Any, w: Any) -> Any:
        state = jnp.sin(carry[1] + row)
        return (carry[0] @ w, state), jnp.cos(state)

    assert carried(body) == []


def test_what_is_computed_of_products_and_sums_counts_with_these() -> None:
    def added_to_sum(carry: Any, row: Any, w: Any) -> Any:
        return (carry[0] @ w, carry[1] + (carry[0] * row).sum(0)), None

    assert carried(lambda c, row, w: ((c[0] @ w, c[1] + row @ w), None)) == []
    assert carried(added_to_sum) == []


def test_it_takes_a_kernel_to_write() -> None:
    def fn(x: Any, rows: Any) -> Any:
        return lax.scan(lambda state, row: (jnp.sin(state + row), None), x, rows)[0]

    rows = jax.ShapeDtypeStruct((RUNS, *X.shape), jnp.float32)
    graph = exported(fn, X, rows, mesh="x=1")[0]
    (op,) = [op for op in graph.ops if op.name == "sine"]
    launches = {
        name: of_op(graph, op.index, name) > get_hardware(name).compute.kernel_launch_seconds
        for name in ("tpu-v5e", "tpu-v5p")
    }
    assert launches == {"tpu-v5e": True, "tpu-v5p": True}
