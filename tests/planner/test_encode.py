"""The planning problem as integers, and its answer back as layouts."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Encoded
from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.graph.program import Graph, OpClass, OpKind
from autoshard.graph.rule import Rule
from autoshard.layouts import Layout
from solvers import FORBIDDEN, evaluate, solve
from tests.planner.graphs import Program, encoder_for, estimated, plan, wishes_for


def mlp() -> Graph:
    """Two matmuls with a nonlinearity between."""
    program = Program()
    x, w1, w2 = (program.argument(*s) for s in ((64, 32), (32, 128), (128, 32)))
    hidden = program.elementwise(program.matmul(x, w1), name="tanh")
    return program.graph(program.matmul(hidden, w2))


def loop() -> Graph:
    """A carry made of zeros, added to five times."""
    program = Program()
    step = program.argument(64, 64)
    carried = program.carry(program.zeros(64, 64))
    program.open_loop(5.0)
    back = program.elementwise(program.matmul(carried, step), step)
    program.loop_back(carried, back)
    program.close_loop()
    return program.graph(carried)


def summed() -> Graph:
    program = Program()
    x = program.argument(64, 64)
    return program.graph(program.sum(program.elementwise(x, name="tanh")), x)


PROGRAMS = {"mlp": mlp, "loop": loop, "sum": summed}


def solved(encoded: Encoded) -> tuple[tuple[int, ...], int]:
    result = solve(encoded.problem, relative_gap=0.0)
    assert result.choices is not None
    assert result.cost is not None
    return result.choices, result.cost


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("mesh", ["x=4", "x=2,y=4", "x=2,y=2,z=2"])
def test_the_account_of_the_decoded_plan_is_the_cost_the_solver_saw(name: str, mesh: str) -> None:
    encoder = encoder_for(PROGRAMS[name](), mesh)
    encoded = encoder.encode()
    choices, cost = solved(encoded)
    seconds = estimated(encoder, encoded, choices).blocking_seconds
    terms = len(encoded.ops) + len(encoded.problem.edges)
    assert abs(seconds * PICOSECONDS - cost) <= terms


@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(sorted(PROGRAMS)), seed=st.integers(0, 2**16))
def test_any_choices_are_accounted_as_they_are_priced(name: str, seed: int) -> None:
    encoder = encoder_for(PROGRAMS[name](), "x=2,y=4")
    encoded = encoder.encode()
    drawn = np.random.default_rng(seed)
    choices = tuple(int(drawn.integers(len(c))) for c in encoded.problem.node_costs)
    cost = evaluate(encoded.problem, choices).cost
    found = estimated(encoder, encoded, choices)
    spent = found.blocking_seconds * PICOSECONDS
    terms = len(encoded.ops) + len(encoded.problem.edges)
    assert spent <= cost + terms  # a copy that nobody takes is in the price, and in no plan
    peak = evaluate(encoded.problem, choices).peak
    live = max(alive for _, alive in found.memory.timeline)
    assert live <= peak  # a copy is let go after who needs it
    if name == "mlp":  # every value has one reader
        assert abs(spent - cost) <= terms
        assert live == peak


def least_cost(encoder: Encoder, encoded: Encoded) -> float:
    """The least cost over every assignment, each one decoded and accounted."""
    best = float("inf")
    for choices in product(*(range(len(c)) for c in encoded.candidates)):
        if not evaluate(encoded.problem, choices).is_allowed:
            continue
        best = min(best, estimated(encoder, encoded, choices).blocking_seconds)
    return best


def tiny_matmul() -> Graph:
    program = Program()
    x, w = program.argument(256, 256), program.argument(256, 8)
    return program.graph(program.matmul(x, w))


def tiny_sum() -> Graph:
    program = Program()
    return program.graph(program.sum(program.argument(256, 64)))


@pytest.mark.parametrize("make", [tiny_matmul, tiny_sum])
@pytest.mark.parametrize("hardware", ["cpu-host", "tpu-v5p"])
def test_no_assignment_at_all_is_better_than_the_solvers(make: object, hardware: str) -> None:
    assert callable(make)
    encoder = encoder_for(make(), "x=4", hardware=hardware)
    encoded = encoder.encode()
    _, cost = solved(encoded)
    assert least_cost(encoder, encoded) * PICOSECONDS == pytest.approx(cost, abs=10)


def test_a_batch_cut_on_both_sides_costs_no_communication() -> None:
    program = Program()
    x, w = program.argument(1024, 512), program.argument(512, 512)
    graph = program.graph(program.matmul(x, w))
    parts = encoder_for(graph, "x=8").costing.parts
    batch = parts.to_sharding(((0,), ()))
    solution = plan(graph, "x=8", wishes_for(graph, {0: batch}, {0: batch}))
    assert solution.account.communication_seconds == 0
    assert solution.account.collectives == ()
    assert solution.decoded.layouts[0] == ((0,), ())


def test_a_pinned_gather_is_listed_with_its_bytes() -> None:
    program = Program()
    x = program.argument(64, 64)
    graph = program.graph(x)
    parts = encoder_for(graph, "x=2,y=4").costing.parts
    wishes = wishes_for(
        graph, {0: parts.to_sharding(((0,), (1,)))}, {0: parts.to_sharding(((0,), ()))}
    )
    (collective,) = plan(graph, "x=2,y=4", wishes).account.collectives
    assert (collective.kind, collective.axes, collective.group_size) == ("all-gather", ("y",), 4)
    assert collective.bytes_per_device == 64 * 64 * 4 // 2


def test_a_value_that_every_device_makes_itself_follows_its_reader() -> None:
    program = Program()
    x = program.argument(64, 64)
    zeros = program.zeros(64, 64)
    converted = program.widened(zeros)
    graph = program.graph(program.elementwise(x, converted))
    parts = encoder_for(graph, "x=4").costing.parts
    cut = parts.to_sharding(((0,), ()))
    solution = plan(graph, "x=4", wishes_for(graph, {0: cut}, {0: cut}))
    assert solution.decoded.layouts[converted] == ((0,), ())
    assert solution.decoded.layouts[zeros] == ((0,), ())  # through the conversion
    assert solution.account.communication_seconds == 0


def test_a_value_that_every_device_makes_itself_is_cut_as_far_as_its_readers_agree() -> None:
    program = Program()
    zeros = program.zeros(64, 64)
    readers = [program.elementwise(program.argument(64, 64), zeros) for _ in range(2)]
    graph = program.graph(*readers)
    parts = encoder_for(graph, "x=2,y=4").costing.parts

    def layout_for(first: Layout, second: Layout) -> Layout:
        pins = {0: parts.to_sharding(first), 1: parts.to_sharding(second)}
        solution = plan(graph, "x=2,y=4", wishes_for(graph, pins, pins))
        assert solution.account.collectives == ()
        return solution.decoded.layouts[zeros]

    assert layout_for(((0, 1), ()), ((0,), (1,))) == ((0,), ())
    assert layout_for(((0,), ()), ((), (0,))) == ((), ())
    assert layout_for(((1,), (0,)), ((1,), (0,))) == ((1,), (0,))


def test_a_carry_that_starts_from_zeros_takes_what_its_body_returns() -> None:
    solution = plan(loop(), "x=4")
    join = next(op for op in solution.graph.ops if op.kind is OpKind.JOIN)
    candidate = solution.decoded.candidates[join.index]
    assert candidate.operands[0] == candidate.operands[1] == candidate.results[0]


def test_a_reshard_in_a_loop_body_is_paid_in_every_turn() -> None:
    def cost(trips: float) -> float:
        program = Program()
        x = program.argument(64, 64)
        carried = program.carry(x)
        program.open_loop(trips)
        rows = program.constraint(carried, '#sdy.sharding<@mesh, [{"x"}, {}]>')
        columns = program.constraint(rows, '#sdy.sharding<@mesh, [{}, {"x"}]>')
        program.loop_back(carried, columns)
        program.close_loop()
        return plan(program.graph(carried), "x=4").account.communication_seconds

    assert cost(10.0) == pytest.approx(10 * cost(1.0), rel=0.2)
    assert cost(10.0) > 8 * cost(1.0) > 0


def test_a_carry_given_back_unchanged_costs_nothing_inside() -> None:
    program = Program()
    weights, x = program.argument(64, 64), program.argument(64, 64)
    kept, carried = program.carry(weights), program.carry(x)
    program.open_loop(5.0)
    program.loop_back(carried, program.matmul(carried, kept))
    program.close_loop()
    graph = program.graph(carried, kept)
    solution = plan(graph, "x=4")
    assert solution.result.cost is not None
    join = graph.ops[graph.values[kept].op]
    assert len(solution.decoded.candidates[join.index].operands) == 1


def test_one_initial_value_can_start_several_carries() -> None:
    program = Program()
    x = program.argument(64, 64)
    first, second = program.carry(x), program.carry(x)
    program.open_loop(3.0)
    program.loop_back(first, program.elementwise(first, second))
    program.loop_back(second, first)
    program.close_loop()
    solution = plan(program.graph(first, second), "x=4")
    layouts = solution.decoded.layouts
    assert layouts[first] == layouts[second]
    assert solution.account.communication_seconds == 0


def test_branches_join_in_one_layout_and_count_by_their_share() -> None:
    program = Program()
    x = program.argument(64, 64)
    one = program.elementwise(x, name="tanh")
    two = program.elementwise(x, name="negate")
    joined = program.add(
        OpKind.JOIN,
        "case",
        (one, two),
        [(64, 64)],
        rule=Rule((64, 64), (((0,), (1,)), ((0,), (1,))), (((0,), (1,)),)),
        operand_repeats=(0.5, 0.5),
    )[0]
    graph = program.graph(joined)
    parts = encoder_for(graph, "x=4").costing.parts
    rows, columns = (parts.to_sharding(layout) for layout in (((0,), ()), ((), (0,))))
    moved = plan(graph, "x=4", wishes_for(graph, {0: rows}, {0: columns}))
    (collective,) = moved.account.collectives
    assert collective.count == 1.0  # one all-to-all, before or behind both branches


def test_the_same_value_read_twice_is_moved_once() -> None:
    def moved(*, twice: bool) -> int:
        program = Program()
        x = program.argument(64, 64)
        operands = (x, x) if twice else (x,)
        graph = program.graph(program.elementwise(*operands, name="multiply"))
        encoder = encoder_for(graph, "x=4")
        parts = encoder.costing.parts
        rows, columns = (parts.to_sharding(layout) for layout in (((0,), ()), ((), (0,))))
        encoded = encoder_for(graph, "x=4", wishes_for(graph, {0: rows}, {0: columns})).encode()
        edges = [e.costs for e in encoded.problem.edges if e.u == 0]
        assert len(edges) == 1
        return int(edges[0].max())

    assert moved(twice=True) == moved(twice=False) > 0


def test_the_same_value_read_for_two_needs_is_moved_for_each() -> None:
    program = Program()
    x = program.argument(64, 64)
    rule = Rule((64, 64, 64), (((0,), (2,)), ((1,), (2,))), (((0,), (1,)),), frozenset({2}))
    graph = program.graph(program.compute("dot_general", (x, x), [(64, 64)], rule)[0])
    encoder = encoder_for(graph, "x=4")
    encoded = encoder.encode()
    node = encoded.node_by_op[1]
    edges = [e for e in encoded.problem.edges if (e.u, e.v) == (0, node)]
    assert len(edges) == 2
    for index, candidate in enumerate(encoded.candidates[node]):
        second = edges[1].costs[:, index]
        if candidate.operands[0] == candidate.operands[1]:  # both sums cut, or nothing
            assert not second.any()
        else:
            assert second.any()


def test_an_argument_returned_twice_is_one_value_with_two_readers() -> None:
    program = Program()
    x = program.argument(64, 64)
    graph = program.graph(x, x)
    parts = encoder_for(graph, "x=4").costing.parts
    rows, columns = (parts.to_sharding(layout) for layout in (((0,), ()), ((), (0,))))
    solution = plan(graph, "x=4", wishes_for(graph, results={0: rows, 1: columns}))
    results = [solution.decoded.candidates[op.index].operands[0] for op in graph.results]
    assert results == [((0,), ()), ((), (0,))]


def test_scalars_and_constants_are_no_nodes() -> None:
    program = Program()
    x, scale = program.argument(64), program.argument()
    rule = Rule((64,), (((0,),), ()), (((0,),),))
    zeros = program.zeros(64)
    made = program.compute("multiply", (x, scale), [(64,)], rule, OpClass.ELEMENTWISE)[0]
    graph = program.graph(program.elementwise(made, zeros))
    encoded = encoder_for(graph, "x=4").encode()
    kinds = [graph.ops[op].kind for op in encoded.ops]
    assert OpKind.FREE not in kinds
    assert kinds.count(OpKind.ARGUMENT) == 1
    assert all(graph.values[v].shape for op in encoded.ops for v in graph.ops[op].results)


def test_a_program_without_tensors_is_planned() -> None:
    program = Program()
    graph = program.graph(program.argument())
    solution = plan(graph, "x=4")
    assert solution.encoded.ops == ()
    assert solution.account.compute_seconds == 0


def test_costs_are_whole_picoseconds_and_never_negative() -> None:
    problem = encoder_for(mlp(), "x=2,y=4").encode().problem
    for costs in (*problem.node_costs, *(edge.costs for edge in problem.edges)):
        assert costs.dtype == np.int64
        assert costs.min() >= 0
        assert costs.max() < FORBIDDEN


def test_a_step_of_hours_is_planned() -> None:
    """Moves of it take longer than a cost of a problem may say."""
    program = Program()
    stack, weight = program.argument(4096, 512, 1024), program.argument(1024, 1024)
    carried = program.carry(program.zeros(512, 1024))
    program.open_loop(1e7)
    added = program.elementwise(program.matmul(carried, weight), program.zeros(512, 1024))
    program.elementwise(stack)
    program.loop_back(carried, added)
    program.close_loop()
    assert plan(program.graph(carried), "x=8").is_feasible


def test_a_faster_link_never_makes_the_best_plan_slower() -> None:
    graph = mlp()
    slow, fast = (plan(graph, "x=8", hardware=h).result.cost for h in ("cpu-host", "tpu-v5p"))
    assert slow is not None
    assert fast is not None
    assert fast <= slow


def test_more_axes_never_make_the_best_plan_worse() -> None:
    graph = mlp()
    one, two = (plan(graph, mesh).result.cost for mesh in ("x=4", "x=4,y=2"))
    assert one is not None
    assert two is not None
    assert two <= one


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("hardware", ["cpu-host", "h100"])
def test_writing_an_axis_as_three_never_makes_the_best_plan_worse(name: str, hardware: str) -> None:
    graph = PROGRAMS[name]()
    one, three = (
        plan(graph, mesh, hardware=hardware).result.cost for mesh in ("x=8", "x=2,y=2,z=2")
    )
    assert one is not None
    assert three is not None
    assert three <= one
