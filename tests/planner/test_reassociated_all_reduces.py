"""Partial sums that are added to one another: taken as one, where a backend does so."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.encoding.encoded import decode
from autoshard.graph.partial_sums import added_sums
from autoshard.graph.program import Graph, OpClass
from autoshard.graph.rule import Dims, Rule
from autoshard.layouts import Layout
from tests.planner.graphs import Program, closed, encoder_for, parts_of, plan, wishes_for
from tests.planner.objective import check_objective_is_account

LONG = 2**16  # what is summed over: where it is cut, sums are left to be taken
ROWS, COLUMNS = 256, 512
BYTES = ROWS * COLUMNS * 4


def product(program: Program) -> int:
    return program.matmul(program.argument(ROWS, LONG), program.argument(LONG, COLUMNS))


def scattered(program: Program) -> int:
    """Rows of many updates added to zeros where indices say."""
    indices, updates = program.argument(LONG, 1), program.argument(LONG, COLUMNS)
    table, taken = ((0,), (1,)), ((2,), (1,))
    rule = Rule(
        (ROWS, COLUMNS, LONG, 1),
        (table, ((2,), (3,)), taken),
        (table,),
        frozenset({2}),
        frozenset({3}),
    )
    operands = (program.zeros(ROWS, COLUMNS), indices, updates)
    (made,) = program.compute("scatter", operands, [(ROWS, COLUMNS)], rule, OpClass.SCATTER)
    return made


def transposed(program: Program, value: int) -> int:
    rows, columns = program.shape(value)
    before: Dims = ((0,), (1,))
    rule = Rule((rows, columns), (before,), (before[::-1],))
    (made,) = program.compute("transpose", (value,), [(columns, rows)], rule, OpClass.COPY)
    return made


def two(program: Program, made: Callable[[Program], int]) -> int:
    return program.elementwise(made(program), made(program))


def three(program: Program, made: Callable[[Program], int]) -> int:
    return program.elementwise(two(program, made), made(program))


def four(program: Program, made: Callable[[Program], int]) -> int:
    return program.elementwise(two(program, made), two(program, made))


def beside(program: Program, made: Callable[[Program], int]) -> int:
    """`(x + made) + made`."""
    added = program.elementwise(program.argument(ROWS, COLUMNS), made(program))
    return program.elementwise(added, made(program))


def turned(program: Program, made: Callable[[Program], int]) -> int:
    return program.elementwise(
        transposed(program, made(program)), transposed(program, made(program))
    )


def subtracted(program: Program, made: Callable[[Program], int]) -> int:
    return program.elementwise(made(program), made(program), name="subtract")


def scaled(program: Program, made: Callable[[Program], int]) -> int:
    negated = program.elementwise(made(program), name="negate")
    return program.elementwise(negated, made(program))


def built(
    add: Callable[[Program, Callable[[Program], int]], int],
    made: Callable[[Program], int] = product,
) -> Graph:
    program = Program()
    return program.graph(add(program, made))


def mixed() -> Graph:
    program = Program()
    return program.graph(program.elementwise(product(program), scattered(program)))


def read_twice() -> Graph:
    program = Program()
    first = product(program)
    added = program.elementwise(first, product(program))
    return program.graph(added, program.elementwise(first, name="tanh"))


def doubled() -> Graph:
    program = Program()
    made = product(program)
    return program.graph(program.elementwise(made, made))


def num_sums(graph: Graph, hardware: str) -> float:
    """All-reduces of whole results, or reduce-scatters of them, where what is summed is cut."""
    parts = parts_of("data=8")
    shapes = [graph.values[op.results[0]].shape for op in graph.arguments]
    cut = {
        place: closed(parts, tuple((0,) if size == LONG else () for size in shape))
        for place, shape in enumerate(shapes)
        if LONG in shape
    }
    wishes = wishes_for(graph, arguments=cut)
    made = plan(graph, "data=8", wishes, hardware=hardware).account.collectives
    sums = [c for c in made if c.kind in ("all-reduce", "reduce-scatter")]
    assert {c.bytes_per_device for c in sums} == {BYTES}
    return sum(c.count for c in sums)


ONE = [(two, product), (three, product), (four, product), (turned, product)]
ONE += [(two, scattered), (three, scattered), (beside, scattered)]
APART = [(beside, product), (subtracted, product), (scaled, product)]


@pytest.mark.parametrize("hardware", ["h100", "tpu-v5e"])
@pytest.mark.parametrize(("add", "made"), ONE)
def test_what_is_added_to_one_another_is_summed_once(
    add: Callable[..., int], made: Callable[[Program], int], hardware: str
) -> None:
    assert num_sums(built(add, made), hardware) == 1


@pytest.mark.parametrize(("add", "made"), APART)
def test_sums_with_anything_between_them_are_taken_apart(
    add: Callable[..., int], made: Callable[[Program], int]
) -> None:
    graph = built(add, made)
    assert not added_sums(graph)
    assert num_sums(graph, "h100") == 2


@pytest.mark.parametrize("graph", [mixed(), read_twice()], ids=["two kinds", "read twice"])
def test_so_are_those_of_two_kinds_and_those_read_elsewhere(graph: Graph) -> None:
    assert not added_sums(graph)
    assert num_sums(graph, "h100") == 2


def test_a_sum_added_to_itself_is_one() -> None:
    assert not added_sums(doubled())
    assert num_sums(doubled(), "h100") == 1


def test_host_cpus_take_every_sum() -> None:
    assert num_sums(built(three), "cpu-host") == 3


@given(data=st.data())
def test_the_objective_is_what_the_account_says(data: st.DataObject) -> None:
    add, made = data.draw(st.sampled_from([pair for pair in ONE if pair[0] is not beside]))
    graph = built(add, made)
    check_objective_is_account(encoder_for(graph, "data=2,model=4", hardware="h100"), data)


@pytest.mark.parametrize(("layout", "is_one"), [(((), ()), True), (((0,), ()), False)])
def test_a_scatter_made_in_pieces_is_summed_before_anything_is_added(
    layout: tuple[tuple[int, ...], ...], is_one: bool
) -> None:
    graph = built(beside, scattered)
    encoder = encoder_for(graph, "data=8", hardware="h100")
    encoded = encoder.encode()
    (one,) = added_sums(encoded.graph)
    choices = [0] * len(encoded.problem.node_costs)
    for op in (one.first.op, one.second.op):
        node = encoded.node_by_op[op]
        choices[node] = next(
            i
            for i, c in enumerate(encoded.candidates[node])
            if (c.runs_per_sum == inf) == (op == one.second.op)
            and (c.reduced or c.scattered)
            and c.results[0] == layout
        )
    assert decode(encoded, choices).candidates[one.second.op].runs_per_sum == (inf if is_one else 1)


@pytest.mark.parametrize(("added", "is_one"), [(((), ()), True), (((), (0,)), False)])
def test_a_scatter_is_not_made_into_pieces_of_an_addend(added: Layout, is_one: bool) -> None:
    encoder = encoder_for(built(beside, scattered), "data=8", hardware="h100")
    encoded = encoder.encode()
    (one,) = added_sums(encoded.graph)
    choices = [0] * len(encoded.problem.node_costs)
    ends = {one.first.op: ((), ()), one.second.op: ((), ()), one.first.addend_at: added}
    for op, end in ends.items():
        node = encoded.node_by_op[op]
        is_sum = op != one.first.addend_at
        choices[node] = next(
            i
            for i, c in enumerate(encoded.candidates[node])
            if c.results[0] == end and bool(c.reduced) == is_sum
        )
    assert decode(encoded, choices).candidates[one.second.op].runs_per_sum == (inf if is_one else 1)
    pair = {encoded.node_by_op[one.first.addend_at], encoded.node_by_op[one.second.op]}
    (edge,) = (edge for edge in encoded.problem.edges if {edge.u, edge.v} == pair)
    assert (edge.costs[choices[edge.u], choices[edge.v]] == 0) == is_one
