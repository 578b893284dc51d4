"""Equal layers are priced once: the problem is the one of pricing every layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.backends import backend_for
from autoshard.encoding.encode import Encoder
from autoshard.frontend.trace import trace
from autoshard.graph.program import Graph
from autoshard.planning.planner import prepared
from autoshard.planning.searches import SolveOptions
from autoshard.planning.stages import Stages
from autoshard.planning.traced_program import TracedProgram, read_traced
from autoshard.sharding import parse_mesh_sizes
from cost_models import get_hardware
from experiments.workloads import get_workload
from solvers import Problem
from tests.layer_kinds import norm, relu, residual

MESH = parse_mesh_sizes("x=2,y=4")
X = jax.ShapeDtypeStruct((16, 32), jnp.float32)


def read(fn: Callable[..., Any], *args: Any) -> TracedProgram:
    return read_traced(trace(fn, args, {}, mesh=MESH), MESH, (), None, 10.0)


def without_copies(graph: Graph) -> Graph:
    return replace(graph, ops=tuple(replace(op, copies=-1) for op in graph.ops))


def encoder_of(program: TracedProgram, graph: Graph, machine: str) -> Encoder:
    hardware = get_hardware(machine)
    backend, options = backend_for(hardware), SolveOptions()
    graph, buffers, wishes, costing = prepared(
        graph, MESH, hardware, program.wishes, options, backend, Stages()
    )
    return Encoder(graph, buffers, costing, wishes, None)


def told(problem: Problem) -> list[tuple[object, ...]]:
    """All of a problem, as plain values."""
    return [
        *((one.tobytes(),) for one in problem.node_costs),
        *((one.u, one.v, one.costs.tobytes()) for one in problem.edges),
        *((m.node, m.start, m.stop, m.usage.tobytes(), m.tag) for m in problem.node_memory),
        *((m.edge, m.start, m.stop, m.usage.tobytes(), m.tag) for m in problem.edge_memory),
    ]


def num_standing_alone(encoder: Encoder) -> int:
    return len(set(encoder.facts.stand_ins))


def _again(layer: Any, x: Any) -> Any:
    return jax.checkpoint(relu)(layer, x)


def _step(
    kinds: list[Callable[[Any, Any], Any]], tapped: int, weights: Any, x: Any
) -> tuple[Any, Any, Any]:
    """A training step, in which what one layer makes is returned too."""

    def forward(weights: Any) -> Any:
        hidden, made = x, []
        for layer in weights:
            for kind in kinds:
                hidden = kind(layer, hidden)
            made.append(hidden)
        return jnp.sum(hidden), made[tapped] if tapped < len(made) else hidden

    (loss, hidden), gradients = jax.value_and_grad(forward, has_aux=True)(weights)
    return loss, hidden, jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)


def stack(kinds: list[Callable[[Any, Any], Any]], depth: int, tapped: int = -1) -> TracedProgram:
    layer = {"w": jax.ShapeDtypeStruct((32, 32), "f4"), "b": jax.ShapeDtypeStruct((32,), "f4")}
    return read(lambda weights, x: _step(kinds, tapped, weights, x), [layer] * depth, X)


@settings(max_examples=12, deadline=None)
@given(
    kinds=st.lists(st.sampled_from([relu, norm, residual, _again]), min_size=1, max_size=3),
    depth=st.integers(9, 13),
    tapped=st.integers(0, 13),
    machine=st.sampled_from(["tpu-v5e", "tpu-v5p", "h100", "cpu-host"]),
)
def test_random_stacks_have_the_same_problem_whether_layers_are_priced_once_or_all(
    kinds: list[Callable[[Any, Any], Any]], depth: int, tapped: int, machine: str
) -> None:
    program = stack(kinds, depth, tapped)
    once = encoder_of(program, program.graph, machine)
    every = encoder_of(program, without_copies(program.graph), machine)
    assert num_standing_alone(every) == len(program.graph.ops)
    assert told(once.encode().problem) == told(every.encode().problem)


@pytest.mark.parametrize(
    ("name", "layers", "machine"),
    [
        ("gpt", 9, "tpu-v5p"),
        ("llama", 9, "tpu-v5p"),
        ("llama", 12, "h100"),  # an op reads what is fused of all layers before it
        ("mixer", 9, "tpu-v5p"),
    ],
)
def test_a_model_has_the_same_problem_whether_layers_are_priced_once_or_all(
    name: str, layers: int, machine: str
) -> None:
    workload = get_workload(name, layers=layers)
    program = read(workload.step, workload.state, workload.batch)
    once = encoder_of(program, program.graph, machine)
    every = encoder_of(program, without_copies(program.graph), machine)
    assert num_standing_alone(once) < len(program.graph.ops)
    assert told(once.encode().problem) == told(every.encode().problem)


def test_a_further_layer_adds_its_arguments_and_results_to_what_is_priced() -> None:
    counts = []
    for depth in (12, 16):
        program = stack([relu, residual], depth)
        graph = program.graph
        encoder = encoder_of(program, graph, "tpu-v5p")
        counts.append(num_standing_alone(encoder) - len(graph.arguments) - len(graph.results))
    assert counts[0] == counts[1]


def test_what_reads_the_result_of_one_layer_alone_keeps_it_apart_from_its_copies() -> None:
    whole, tapped = (stack([relu, residual], 12, place) for place in (12, 5))
    alike, apart = (
        num_standing_alone(encoder_of(one, one.graph, "tpu-v5p")) for one in (whole, tapped)
    )
    assert apart > alike + 4
