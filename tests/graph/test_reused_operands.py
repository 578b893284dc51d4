"""Results that are written over an operand."""

from __future__ import annotations

import pytest

from autoshard.backends import backend_for
from autoshard.graph.buffers import find_buffers
from autoshard.graph.program import Graph, OpClass
from autoshard.graph.rule import Rule
from cost_models import get_hardware
from tests.planner.graphs import Program

SIDE = 64


def ends_when_made(graph: Graph, operand: int, result: int, machine: str = "h100") -> bool:
    """True where the buffer of an operand is let go when that of a result is written."""
    intervals = find_buffers(graph, backend_for(get_hardware(machine))).intervals
    made, (start, stop) = graph.values[result].op, intervals[operand]
    assert intervals[result][0] == made
    assert start < stop
    assert stop in (made, made + 1)
    return stop == made


@pytest.mark.parametrize("machine", ["h100", "cpu-host"])
def test_an_element_wise_result_is_written_over_what_it_reads_last(machine: str) -> None:
    program = Program()
    made = program.matmul(program.argument(SIDE, SIDE), program.argument(SIDE, SIDE))
    result = program.elementwise(made, name="tanh")
    graph = program.graph(result, program.matmul(result, result))
    assert ends_when_made(graph, made, result, machine)


@pytest.mark.parametrize("machine", ["h100", "cpu-host"])
def test_a_result_is_written_over_what_it_reads_in_another_shape(machine: str) -> None:
    """Not on host CPUs."""
    program = Program()
    made = program.matmul(program.argument(SIDE, SIDE), program.argument(SIDE, SIDE))
    rule = Rule((SIDE, SIDE), (((0,), (1,)),), (((0, 1),),))
    (flat,) = program.compute("reshape", (made,), [(SIDE * SIDE,)], rule, OpClass.COPY)
    result = program.elementwise(flat, name="tanh")
    graph = program.graph(program.constraint(result, "x"))
    assert ends_when_made(graph, made, result, machine) == (machine == "h100")


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize("rows", [(SIDE,), (8, 8)])
def test_a_host_cpu_writes_a_matmul_of_several_rows_in_another_shape(
    batch: tuple[int, ...], rows: tuple[int, ...]
) -> None:
    program = Program()
    sizes = (*batch, *rows, SIDE, SIDE)
    shared, own, summed, columns = (
        tuple((factor,) for factor in range(start, stop))
        for start, stop in (
            (0, len(batch)),
            (len(batch), len(sizes) - 2),
            (len(sizes) - 2, len(sizes) - 1),
            (len(sizes) - 1, len(sizes)),
        )
    )
    operands = (*shared, *own, *summed), (*shared, *summed, *columns)
    rule = Rule(sizes, operands, ((*shared, *own, *columns),), frozenset(summed[0]))
    x, w = program.argument(*batch, *rows, SIDE), program.argument(*batch, SIDE, SIDE)
    (made,) = program.compute("dot_general", (x, w), [(*batch, *rows, SIDE)], rule, OpClass.MATMUL)
    result = program.elementwise(made, name="tanh")
    graph = program.graph(program.constraint(result, "x"))
    assert ends_when_made(graph, made, result, "cpu-host") == (len(rows) == 1)
    assert ends_when_made(graph, made, result, "h100")


def test_over_one_of_two_and_over_none_of_another_size() -> None:
    program = Program()
    x = program.argument(SIDE, SIDE)
    one, other = program.matmul(x, x), program.matmul(x, x)
    both = program.elementwise(one, other)
    graph = program.graph(both, program.matmul(both, both))
    assert [ends_when_made(graph, value, both) for value in (one, other)].count(True) == 1
    program = Program()
    made = program.matmul(program.argument(SIDE, SIDE), program.argument(SIDE, SIDE))
    narrow = program.sum(made)
    graph = program.graph(narrow)
    assert not ends_when_made(graph, made, narrow)


def test_an_argument_is_not_written_over_and_a_donated_one_takes_the_result() -> None:
    program = Program()
    x, w = program.argument(SIDE, SIDE), program.argument(SIDE, SIDE)
    gradient = program.matmul(x, x)
    new = program.elementwise(w, gradient)
    assert not ends_when_made(program.graph(new, donated=(1,)), gradient, new)
    program = Program()
    x = program.argument(SIDE, SIDE)
    result = program.elementwise(x, name="tanh")
    graph = program.graph(result, program.matmul(result, result))
    buffers = find_buffers(graph, backend_for(get_hardware("h100")))
    assert buffers.intervals[x] == (0, len(graph.ops))


@pytest.mark.parametrize("is_summed", [True, False])
def test_one_of_several_results_of_a_kernel_is_not_written_over(*, is_summed: bool) -> None:
    """On a TPU the matmul that makes a value sums its rows too."""
    program = Program()
    x = program.argument(SIDE, SIDE)
    made = program.matmul(x, x)
    rows = program.sum(made) if is_summed else program.argument(SIDE)
    shifted = program.elementwise(made, program.widened(rows))
    result = program.constraint(shifted, "x")
    graph = program.graph(program.matmul(result, x), program.matmul(x, result))
    assert ends_when_made(graph, made, shifted, "tpu-v5e") != is_summed
