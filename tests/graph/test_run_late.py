"""Products and scatters of gradients, which a GPU runs late."""

from __future__ import annotations

import pytest

from autoshard.backends import backend_for
from autoshard.graph.buffers import Buffers, find_buffers
from autoshard.graph.program import Graph, OpClass
from autoshard.graph.rule import Rule
from autoshard.graph.run_late import run_late
from cost_models import get_hardware
from tests.planner.graphs import Program, encoder_for


def backward(layers: int) -> tuple[Graph, list[int], list[int]]:
    """A chain of products, and of each of its values a gradient; what they are made with last."""
    program = Program()
    dy, x, w = (program.argument(64, 64) for _ in range(3))
    chain, gradients = [dy], []
    for _ in range(layers):
        gradients.append(program.matmul(chain[-1], x))
        chain.append(program.matmul(chain[-1], w))
    new = [program.elementwise(gradient, w) for gradient in gradients]
    return program.graph(chain[-1], *new), chain, gradients


def waits(graph: Graph, most: int) -> dict[int, int]:
    return dict(run_late(graph, most))


def buffers_of(graph: Graph, machine: str) -> Buffers:
    return find_buffers(graph, backend_for(get_hardware(machine)))


def test_the_products_that_are_left_run_first() -> None:
    graph, chain, gradients = backward(5)
    maker = [graph.values[value].op for value in gradients]
    others = [graph.values[value].op for value in chain[1:-1]]  # 4, 3, 2 and 1 of them are left
    assert waits(graph, 6) == {op: others[3] + 1 + place for place, op in enumerate(maker[:4])}


def test_but_no_more_than_so_many() -> None:
    graph, chain, gradients = backward(5)
    first = graph.values[gradients[0]].op
    assert waits(graph, 1)[first] == graph.values[chain[1]].op + 1
    assert waits(graph, 0) == {}


def test_a_product_that_another_needs_does_not_wait() -> None:
    graph, chain, _ = backward(4)
    assert waits(graph, 6)
    assert not waits(graph, 6).keys() & {graph.values[value].op for value in chain[1:-1]}


def test_none_waits_longer_than_its_first_reader() -> None:
    program = Program()
    dy, w = program.argument(64, 64), program.argument(64, 64)
    gradient = program.matmul(dy, dy)
    read = program.elementwise(gradient, w)
    for _ in range(6):
        dy = program.matmul(dy, w)
    graph = program.graph(dy, read)
    assert waits(graph, 6) == {graph.values[gradient].op: graph.values[read].op}


def test_a_scatter_of_gradients_waits_and_its_zeros_do_not() -> None:
    program = Program()
    dy, w, places = program.argument(64, 64), program.argument(64, 64), program.argument(64, 1)
    rows = program.matmul(dy, w)
    rule = Rule((64,), (((), (0,)), ((), ()), ((), (0,))), (((), (0,)),))
    operands = (program.zeros(512, 64), places, rows)
    (table,) = program.compute("scatter", operands, [(512, 64)], rule, OpClass.SCATTER)
    dy = rows
    for _ in range(4):
        dy = program.matmul(dy, w)
    graph = program.graph(dy, table)
    buffers = buffers_of(graph, "h100")
    run = buffers.time_of(graph.values[table].op)
    assert run > graph.values[table].op
    assert buffers.intervals[rows][1] == run + 1
    assert buffers.intervals[table][0] == graph.values[rows].op


def test_it_waits_past_the_conversion_of_what_it_makes() -> None:
    program = Program()
    dy, x, w = (program.argument(64, 64) for _ in range(3))
    gradient = program.matmul(dy, x)
    wide = program.elementwise(gradient, name="convert")
    for _ in range(4):
        dy = program.matmul(dy, w)
    graph = program.graph(dy, program.elementwise(wide, w))
    assert waits(graph, 6)[graph.values[gradient].op] > graph.values[wide].op


def test_what_renames_the_result_of_a_product_that_waits_waits_with_it() -> None:
    program = Program()
    dy, x, w = (program.argument(64, 64) for _ in range(3))
    gradient = program.matmul(dy, x)
    turned = program.compute(
        "transpose",
        (gradient,),
        [(64, 64)],
        Rule((64, 64), (((0,), (1,)),), (((1,), (0,)),)),
        OpClass.COPY,
    )[0]
    for _ in range(4):
        dy = program.matmul(dy, w)
    graph = program.graph(dy, program.elementwise(turned, w))
    buffers = buffers_of(graph, "h100")
    run = buffers.time_of(graph.values[gradient].op)
    assert run > graph.values[turned].op
    assert buffers.owner[turned] == gradient
    assert buffers.intervals[gradient][0] == run


def test_on_a_tpu_none_holds_for_others_what_it_reads() -> None:
    graph, _, _ = backward(6)
    assert buffers_of(graph, "tpu-v5p").run_at == {}


@pytest.mark.parametrize("machine", ["h100", "cpu-host"])
def test_late_it_holds_what_it_reads_and_takes_nothing_yet(machine: str) -> None:
    graph, chain, gradients = backward(6)
    buffers = buffers_of(graph, machine)
    maker = graph.values[gradients[1]].op
    run = buffers.time_of(maker)
    assert run > maker
    assert buffers.intervals[gradients[1]][0] == run
    assert buffers.intervals[chain[1]][1] == max(run, graph.values[chain[2]].op) + 1


def test_what_is_gathered_for_it_is_gathered_late() -> None:
    graph, _, gradients = backward(6)
    encoder = encoder_for(graph, "x=4", hardware="h100")
    maker = graph.values[gradients[1]].op
    encoded = encoder.encode()
    x = graph.arguments[1].results[0]
    (read,) = (read for read in encoded.reads if read.value == x)
    runs = [encoder.buffers.time_of(op) for op, _ in read.reads]
    assert (read.start, read.stop) == (min(runs), max(runs) + 1)
    assert encoder.buffers.time_of(maker) in runs
