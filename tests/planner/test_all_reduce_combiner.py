"""Sums over devices that share a call, and the time that it takes to start."""

from __future__ import annotations

import pytest

from autoshard.costing.all_reduce_combiner import combined_sums
from autoshard.graph.partial_sums import loop_sums
from autoshard.graph.program import Graph
from tests.planner.graphs import Program, encoder_for

ROWS, WIDTH = 4096, 256


def sharing(graph: Graph) -> dict[str, list[int | None]]:
    """By name of op, how many sums share a call with its own; None where it is summed alone."""
    found = combined_sums(graph).in_body
    return {
        name: [found.get(op.index) for op in graph.ops if op.name == name]
        for name in ("dot_general", "reduce")
    }


def gradients(count: int) -> Graph:
    """Products of transposed activations and what comes back, each with a step of its weight."""
    program = Program()
    left = program.argument(WIDTH, ROWS)
    updates = []
    for _ in range(count):
        gradient = program.matmul(left, program.argument(ROWS, WIDTH))
        updates.append(program.elementwise(program.argument(WIDTH, WIDTH), gradient))
    return program.graph(*updates)


def test_gradients_of_one_body_are_summed_in_one_call() -> None:
    assert sharing(gradients(3)) == {"dot_general": [3, 3, 3], "reduce": []}


def test_a_sum_that_a_product_waits_for_has_a_call_of_its_own() -> None:
    program = Program()
    x, w = program.argument(WIDTH, ROWS), program.argument(ROWS, WIDTH)
    made = program.elementwise(program.matmul(x, w), name="tanh")
    graph = program.graph(program.matmul(made, program.argument(WIDTH, WIDTH)))
    assert sharing(graph)["dot_general"] == [None, 1]


def test_gradients_clipped_by_their_norm_share_a_call_and_so_do_their_norms() -> None:
    program = Program()
    left = program.argument(WIDTH, ROWS)
    made = [program.matmul(left, program.argument(ROWS, WIDTH)) for _ in range(3)]
    norms = [program.sum(one) for one in made]
    scale = program.elementwise(*norms, name="rsqrt")
    clipped = [program.elementwise(one, name="multiply") for one in made]
    graph = program.graph(scale, *clipped)
    assert sharing(graph) == {"dot_general": [3, 3, 3], "reduce": [3, 3, 3]}


def test_a_sum_over_a_dimension_of_size_one_keeps_nothing_waiting() -> None:
    program = Program()
    bias = program.sum(program.argument(WIDTH, 1, ROWS))
    graph = program.graph(program.sum(bias))
    assert sharing(graph)["reduce"] == [1, None]


def test_bodies_of_loops_sum_for_themselves() -> None:
    program = Program()
    carried = program.carry(program.argument(WIDTH, WIDTH))
    left, right = program.argument(WIDTH, ROWS), program.argument(ROWS, WIDTH)
    program.open_loop(4)
    program.loop_back(carried, program.elementwise(carried, program.matmul(left, right)))
    program.close_loop()
    graph = program.graph(carried, program.matmul(left, right))
    assert sharing(graph)["dot_general"] == [1, 1]


def test_what_leaves_a_loop_is_summed_with_what_stands_behind_it() -> None:
    program = Program()
    carries = [program.carry(program.argument(WIDTH, WIDTH)) for _ in range(2)]
    left, right = program.argument(WIDTH, ROWS), program.argument(ROWS, WIDTH)
    program.open_loop(4)
    for carried in carries:
        program.loop_back(carried, program.elementwise(carried, program.matmul(left, right)))
    stays = program.elementwise(program.matmul(left, right), name="tanh")
    program.close_loop()
    behind = program.elementwise(program.matmul(left, right), name="negate")
    graph = program.graph(*carries, behind, stays)
    calls = combined_sums(graph, loop_sums(graph))
    first, second, in_loop, after = (op.index for op in graph.ops if op.name == "dot_general")
    assert calls.after_loop == {first: 3, second: 3}
    assert calls.in_body[after] == 3
    assert calls.in_body[first] == 2  # if it stays, with the one that always does
    assert calls.in_body.get(in_loop, 1) == 1


@pytest.mark.parametrize("hardware", ["cpu-host", "h100", "tpu-v5p"])
def test_sums_in_one_call_start_once(hardware: str) -> None:
    seconds, starts = {}, 0.0
    for count in (1, 4):
        graph = gradients(count)
        encoder = encoder_for(graph, "x=4", hardware=hardware)
        encoded = encoder.encode()
        op = next(op for op in graph.ops if op.name == "dot_general")
        candidates = encoded.candidates[encoded.node_by_op[op.index]]
        summed = next(c for c in candidates if c.reduced)
        costing = encoder.costing
        seconds[count] = float(encoder.node_costs.reductions.seconds(op, (summed,))[0])
        starts = float(costing.model.all_reduce_seconds(0.0, costing.axis_parts(summed.reduced)))
    assert starts > 0
    assert seconds[4] == pytest.approx(seconds[1] - 0.75 * starts)


def test_on_a_host_gradients_and_their_sums_are_held_until_one_call() -> None:
    graph = gradients(3)
    encoded = encoder_for(graph, "x=4", hardware="cpu-host").encode()
    made = [op.index for op in graph.ops if op.name == "dot_general"]
    nodes = {encoded.node_by_op[index] for index in made}
    call = made[-1]
    at_call = {
        term.node
        for term in encoded.problem.node_memory
        if (term.start, term.stop) == (call, call + 1) and term.usage.any()
    }
    assert nodes <= at_call
