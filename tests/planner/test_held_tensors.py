"""Which tensors a device holds, and from where to where in the program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.graph.program import Graph
from autoshard.plans.plan import MemoryUse
from autoshard.wishes.wishes import Wishes
from tests.planner.graphs import Program, parts_of, plan

TENSOR = 64 * 64 * 4
pytestmark = pytest.mark.usefixtures("nothing_lost_on_gpus")


def chain(length: int) -> Graph:
    """Matrix products by the same weights, one after another."""
    program = Program()
    x, w = program.argument(64, 64, name="x"), program.argument(64, 64, name="w")
    for _ in range(length):
        x = program.matmul(x, w)
    return program.graph(x)


def held_whole(graph: Graph) -> Wishes:
    whole = parts_of("x=4").to_sharding(((), ()))
    return Wishes(
        arguments=[whole] * 2,
        results=[whole],
        values={op.results[0]: whole for op in graph.ops if op.name == "dot_general"},
    )


def memory_of(graph: Graph, wishes: Wishes | None = None) -> MemoryUse:
    return plan(graph, "x=4", wishes, None, "h100").account.memory


def test_every_tensor_is_held_from_where_it_is_made_to_where_it_is_last_read() -> None:
    graph = chain(2)
    held = memory_of(graph, held_whole(graph)).held
    assert [(one.name, one.kind, one.start, one.stop) for one in held][:3] == [
        ("x", "argument", 0, len(graph.ops)),
        ("w", "argument", 0, len(graph.ops)),
        ("dot_general", "value", 2, 4),
    ]
    assert {one.local_bytes for one in held} == {TENSOR}


@pytest.mark.parametrize("is_whole", [True, False])
def test_the_tensors_held_add_up_to_the_timeline_where_they_are_few(is_whole: bool) -> None:
    graph = chain(3)
    memory = memory_of(graph, held_whole(graph) if is_whole else None)
    for op, num_bytes in memory.timeline:
        held = [one for one in memory.held if one.start <= op < one.stop]
        assert sum(one.local_bytes for one in held) == num_bytes


def test_of_many_tensors_the_largest_at_every_op_are_kept() -> None:
    program = Program()
    arguments = [program.argument(64, 64 * (1 + n), name=f"x{n}") for n in range(20)]
    graph = program.graph(*arguments)
    whole = parts_of("x=4").to_sharding(((), ()))
    wishes = Wishes(arguments=[whole] * 20, results=[whole] * 20)
    held = memory_of(graph, wishes).held
    assert [one.name for one in held if one.start == 0] == [f"x{n}" for n in range(19, 7, -1)]
    made_last = [one.name for one in held if one.kind == "value"]
    assert made_last == [f"x{n}" for n in range(9, 20)]  # where these are, x8 is not among 12


def test_operands_that_a_convolution_copies_are_its_working_memory_and_not_its_result() -> None:
    def gradient(kernel: Any, images: Any) -> Any:
        def loss(kernel: Any) -> Any:
            made = jax.lax.conv_general_dilated(
                images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            return jnp.sum(made**2)

        return jax.grad(loss)(kernel)

    args = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((3, 3, 8, 8), (16, 32, 32, 8))]
    found = autoshard.optimize(gradient, *args, mesh="x=2", hardware="cpu-host", baselines=False)
    rows = found.data.memory.held
    assert rows is not None
    kernels = [one for one in rows if one.type_text == "f32[3, 3, 8, 8]" and one.kind != "argument"]
    copies = [one for one in kernels if one.kind == "work"]
    assert {one.name for one in copies} == {"working memory of convolution"}
    assert max(one.local_bytes for one in copies) > 100 * 4 * 3 * 3 * 8 * 8
    assert all(one.local_bytes < 5 * 4 * 3 * 3 * 8 * 8 for one in kernels if one not in copies)
