"""Reductions of what a product made, that read it where it is moved to."""

from __future__ import annotations

import pytest

from autoshard.backends import backend_for
from autoshard.candidates.candidate import Candidate
from autoshard.costing.costing import Costing, cost_model_for
from autoshard.costing.moved_sums import Summed, moved_sums, together
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import decode
from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.graph.buffers import find_buffers
from autoshard.graph.program import Graph, OpKind
from autoshard.layouts import Layout
from autoshard.lowering.estimate import estimate
from autoshard.lowering.lower import lower
from cost_models import get_hardware
from solvers import evaluate
from tests.planner.graphs import Program, free_wishes, parts_of

SIDE = 512
MACHINE = get_hardware("tpu-v5e")
BACKEND = backend_for(MACHINE)


def norm(*, times_itself: bool = False, num_sums: int = 1) -> Graph:
    """What a product adds to a residual is squared and summed by rows, and multiplied again."""
    program = Program()
    x, weight, residual, other = (program.argument(SIDE, SIDE) for _ in range(4))
    added = program.elementwise(program.matmul(x, weight), residual)
    squared = (added, added) if times_itself else (added,)
    totals = [program.sum(program.elementwise(*squared, name="square")) for _ in range(num_sums)]
    return program.graph(*totals, program.matmul(added, other))


def encoder_of(graph: Graph, hardware: str = "tpu-v5e") -> Encoder:
    machine, parts = get_hardware(hardware), parts_of("x=4")
    costing = Costing(cost_model_for(machine, parts), parts)
    buffers = find_buffers(graph, backend_for(machine))
    return Encoder(graph, buffers, costing, free_wishes(graph), None)


def two_products() -> Graph:
    """What a reduction sums is computed of two products."""
    program = Program()
    x, first, second = (program.argument(SIDE, SIDE) for _ in range(3))
    left, right = program.matmul(x, first), program.matmul(x, second)
    both = program.elementwise(left, right, name="multiply")
    return program.graph(program.sum(both), left, right)


def named(graph: Graph, name: str) -> int:
    return next(op.index for op in graph.ops if op.name == name)


def test_a_reduction_reads_what_is_moved_anywhere_on_its_way_from_the_product() -> None:
    graph = norm()
    found = moved_sums(graph, find_buffers(graph, BACKEND))
    assert found == {
        (named(graph, name), 0): Summed(SIDE * SIDE, 1) for name in ("add", "square", "reduce")
    }


def test_a_reduction_runs_with_the_last_product_that_it_needs() -> None:
    graph = two_products()
    products = [op.index for op in graph.ops if op.name == "dot_general"]
    assert find_buffers(graph, BACKEND).summed_with == {products[1]: [named(graph, "reduce")]}


def test_one_kernel_reads_once_what_it_sums_twice() -> None:
    assert together([Summed(8, 1), Summed(8, 2)]) == Summed(8, 3)


def test_the_read_is_charged_where_the_value_is_moved_and_by_the_pieces_it_comes_out_in() -> None:
    graph = norm()
    encoder = encoder_of(graph)
    passes = MACHINE.compute.passes
    assert passes is not None
    square = graph.ops[named(graph, "square")]
    whole = SIDE * SIDE * (1 / passes.accessed + 1 / passes.reduced)
    assert encoder.read_costs.summing_seconds(square, 0, ((), ())) == pytest.approx(whole)
    assert encoder.read_costs.summing_seconds(square, 0, ((0,), ())) == pytest.approx(whole / 4)


def place_of(candidates: tuple[Candidate, ...], want: Layout) -> int:
    """The candidate that makes, or reads, a layout and does no more work than for that."""
    pieces = 4 if any(want) else 1
    fit = (
        place
        for place, one in enumerate(candidates)
        if (*one.results, *one.operands)[0] == want
        and one.cut in (1, pieces)
        and not (one.reduced or one.scattered)
    )
    return max(fit, key=lambda place: candidates[place].cut)


def accounts(graph: Graph, *, is_moved: bool) -> tuple[float, float, float]:
    """Seconds that the objective and the account say of a plan by rows, and those of its squares.

    Its readers want what is squared whole if it is moved.
    """
    encoder = encoder_of(graph)
    encoded = encoder.encode()
    rows, whole = ((0,), ()), ((), ())
    summed = whole if is_moved else rows
    choices = []
    for index, candidates in zip(encoded.ops, encoded.candidates, strict=True):
        op = graph.ops[index]
        value = (*op.results, *op.operands)[0]
        is_multiplied = op.kind is OpKind.ARGUMENT and value in (1, 3)  # what rows are
        is_summed = op.name in ("square", "reduce") or graph.values[value].shape == (SIDE,)
        want = whole if is_multiplied else summed if is_summed else rows
        choices.append(place_of(candidates, want[: len(graph.values[value].shape)]))
    choices += [read.layouts.index(summed) for read in encoded.reads]
    program = lower(encoder, encoded, decode(encoded, tuple(choices)), tuple(choices))
    cost = evaluate(encoded.problem, tuple(choices)).cost / PICOSECONDS
    said = estimate(program).blocking_seconds
    squares = sum(kernel.seconds for kernel in program.kernels if kernel.name == "square")
    return cost, said, squares


def test_the_objective_and_the_account_say_what_is_read_again() -> None:
    passes = MACHINE.compute.passes
    assert passes is not None
    read = SIDE * SIDE * (1 / passes.accessed + 1 / passes.reduced)
    stays, moves = accounts(norm(), is_moved=False), accounts(norm(), is_moved=True)
    assert stays[0] == pytest.approx(stays[1])
    assert moves[0] == pytest.approx(moves[1])
    assert moves[2] > read > stays[2]


@pytest.mark.parametrize(("times_itself", "num_sums"), [(True, 1), (False, 2), (True, 2)])
@pytest.mark.parametrize("is_moved", [False, True])
def test_both_charge_one_kernel_for_all_readers_of_a_copy(
    times_itself: bool, num_sums: int, is_moved: bool
) -> None:
    graph = norm(times_itself=times_itself, num_sums=num_sums)
    cost, said, _ = accounts(graph, is_moved=is_moved)
    assert said == pytest.approx(cost, rel=1e-5)


def test_where_the_vector_unit_is_no_bound_nothing_is_charged() -> None:
    graph = norm()
    encoder = encoder_of(graph, "tpu-v5p")
    assert encoder.read_costs.summing_seconds(graph.ops[named(graph, "square")], 0, ((), ())) == 0.0
