"""Bytes per device over the program, and the budget as a hard limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.candidates.candidate import Candidate
from autoshard.errors import ConstraintError
from autoshard.graph.program import Graph
from autoshard.planning import searches
from autoshard.planning.solution import NoPlanInTimeError, Solution
from autoshard.sharding import Sharding
from autoshard.wishes.wishes import Wishes
from solvers import Problem, Result, Status, evaluate, solve
from tests.planner.graphs import Program, encoder_for, estimated, parts_of, plan
from tests.planner.traced import exported

KIB = 1024
TENSOR = 64 * 64 * 4  # 16 KiB
MACHINE = "h100"  # nothing on the chip
pytestmark = pytest.mark.usefixtures("nothing_lost_on_gpus")


def planned(
    graph: Graph,
    mesh: str,
    wishes: Wishes | None = None,
    memory_limit: int | None = None,
    hardware: str = MACHINE,
) -> Solution:
    return plan(graph, mesh, wishes, memory_limit, hardware)


def chain() -> Graph:
    """Argument, two matmuls by the same weights; every value is a tensor of 16 KiB."""
    program = Program()
    x, w = program.argument(64, 64, name="x"), program.argument(64, 64, name="w")
    return program.graph(program.matmul(program.matmul(x, w), w))


def held_whole(graph: Graph, mesh: str = "x=4") -> Wishes:
    parts = parts_of(mesh)
    whole = parts.to_sharding(((), ()))
    return Wishes(
        arguments=[whole] * len(graph.arguments),
        results=[whole] * len(graph.results),
        values={op.results[0]: whole for op in graph.ops if op.name == "dot_general"},
    )


def test_the_peak_of_a_plan_kept_whole_is_the_sum_of_what_is_alive() -> None:
    graph = chain()
    memory = planned(graph, "x=4", held_whole(graph)).account.memory
    assert memory.argument_bytes == 2 * TENSOR
    assert memory.peak_bytes == 4 * TENSOR  # both arguments, one product, the next being made
    assert memory.peak_op == 3
    assert memory.peak_where == "dot_general at step.py:3 (step)"


def test_the_timeline_rises_and_falls_with_live_ranges() -> None:
    graph = chain()
    memory = planned(graph, "x=4", held_whole(graph)).account.memory
    assert memory.timeline == (
        (0, 2 * TENSOR),  # arguments are there from the start
        (2, 3 * TENSOR),
        (3, 4 * TENSOR),
        (4, 3 * TENSOR),  # the first product is done with
    )


def test_the_largest_tensors_alive_at_the_peak_are_named() -> None:
    graph = chain()
    live = planned(graph, "x=4", held_whole(graph)).account.memory.live_at_peak
    assert [tensor.local_bytes for tensor in live] == [TENSOR] * 4
    assert {tensor.name for tensor in live} == {"x", "w", "dot_general"}
    assert sum(t.local_bytes for t in live) == 4 * TENSOR


def test_the_peak_in_the_account_is_the_referees() -> None:
    solution = planned(chain(), "x=2,y=4")
    assert (
        solution.account.memory.peak_bytes
        == evaluate(solution.encoded.problem, solution.choices).peak
    )


def tightest(graph: Graph, mesh: str) -> int:
    """The smallest budget under which the program has a plan."""
    result = planned(graph, mesh, memory_limit=1).result
    assert result.status is Status.INFEASIBLE
    assert result.least_peak is not None
    return result.least_peak


def test_without_even_a_leanest_plan_memory_is_blamed_and_not_the_shardings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cut_short(problem: Problem, **options: Any) -> Result:
        found = solve(problem, **options)
        assert found.status is Status.INFEASIBLE
        return replace(found, least_peak=None, least_peak_choices=None)

    monkeypatch.setattr(searches, "solve", cut_short)
    with pytest.raises(NoPlanInTimeError, match=r"no plan fits 1 bytes: \d+ are needed at least"):
        planned(chain(), "x=4", memory_limit=1)


def test_a_budget_met_exactly_is_met() -> None:
    graph = chain()
    wishes = held_whole(graph)
    assert planned(graph, "x=4", wishes, 4 * TENSOR).is_feasible


def test_a_budget_missed_by_one_byte_is_missed() -> None:
    graph = chain()
    solution = planned(graph, "x=4", held_whole(graph), 4 * TENSOR - 1)
    assert not solution.is_feasible
    assert solution.result.status is Status.INFEASIBLE
    assert solution.account.memory.peak_bytes == 4 * TENSOR
    assert solution.account.memory.peak_where == "dot_general at step.py:3 (step)"
    assert solution.account.memory.live_at_peak[0].local_bytes == TENSOR


def test_a_budget_one_byte_below_the_least_peak_has_no_plan() -> None:
    graph = chain()
    least = tightest(graph, "x=4")
    assert planned(graph, "x=4", memory_limit=least).is_feasible
    assert not planned(graph, "x=4", memory_limit=least - 1).is_feasible


def cost(solution: Solution) -> int:
    assert solution.result.cost is not None
    return solution.result.cost


def test_a_looser_budget_never_makes_the_best_plan_worse() -> None:
    graph = chain()
    least = tightest(graph, "x=4")
    costs = [cost(planned(graph, "x=4", memory_limit=m)) for m in (least, 2 * least, 8 * least)]
    assert costs == sorted(costs, reverse=True)
    assert cost(planned(graph, "x=4")) == costs[-1]


def update(*, donated: bool) -> tuple[Graph, Wishes]:
    """A state replaced by a new one, as an optimizer does."""
    program = Program()
    state = program.argument(64, 64)
    new = program.matmul(state, state)
    graph = program.graph(new, donated=(0,) if donated else ())
    whole = parts_of("x=4").to_sharding(((), ()))
    wishes = Wishes(arguments=[whole], results=[whole], alike=[(0, 0)], values={new: whole})
    return graph, wishes


def test_what_replaces_a_donated_argument_takes_its_buffer() -> None:
    kept = planned(*pair("x=4", donated=False)).account.memory.peak_bytes
    given = planned(*pair("x=4", donated=True)).account.memory.peak_bytes
    assert kept - given == TENSOR


def pair(mesh: str, *, donated: bool) -> tuple[Graph, str, Wishes]:
    graph, wishes = update(donated=donated)
    return graph, mesh, wishes


@pytest.mark.parametrize(("is_carried", "saved"), [(True, 4 * TENSOR), (False, 0)])
def test_a_stack_that_a_loop_makes_beside_the_one_it_reads_needs_a_buffer_of_its_own(
    *, is_carried: bool, saved: int
) -> None:
    def updated(stack: jax.Array, x: jax.Array) -> Any:
        if is_carried:
            return jax.lax.fori_loop(0, 4, lambda i, s: s.at[i].set(s[i] + x), stack)
        return jax.lax.scan(lambda x, one: (x, one + x), x, stack)[1]

    def peak(**options: Any) -> int:
        given = jnp.ones((4, 64, 64)), jnp.ones((64, 64))
        graph, wishes = exported(updated, *given, mesh="x=1", **options)
        return planned(graph, "x=1", wishes).account.memory.peak_bytes

    assert peak() - peak(donate_argnums=0) == saved


def test_what_is_made_larger_than_the_buffer_it_ends_in_needs_one_of_its_own() -> None:
    program = Program()
    state = program.argument(64, 64)
    new = program.elementwise(state, name="tanh")
    graph = program.graph(new, donated=(0,))
    whole, rows = (parts_of("x=4").to_sharding(layout) for layout in (((), ()), ((0,), ())))

    def peak(made: Sharding) -> int:
        wishes = Wishes(arguments=[rows], results=[rows], alike=[(0, 0)], values={new: made})
        return planned(graph, "x=4", wishes).account.memory.peak_bytes

    assert peak(rows) == TENSOR // 4  # in the buffer of the old state
    assert peak(whole) == TENSOR // 4 + 2 * TENSOR  # the state gathered, the new one made of it


def test_a_value_that_is_scattered_is_there_whole_for_a_moment() -> None:
    program = Program()
    x, w = program.argument(256, 256), program.argument(256, 256)
    made = program.matmul(x, w)
    graph = program.graph(made)
    encoder = encoder_for(graph, "x=4", hardware=MACHINE)
    encoded = encoder.encode()
    columns, rows, whole = ((), (0,)), ((0,), ()), ((), ())
    wanted = (
        Candidate((), (columns,), 1),
        Candidate((), (rows,), 1),
        Candidate((columns, rows), (rows,), 4, (), (0,), whole),
        Candidate((rows,), (), 1),
    )
    pairs = zip(encoded.candidates, wanted, strict=True)
    choices = tuple(
        next(i for i, c in enumerate(found) if replace(c, cut=1) == replace(want, cut=1))
        for found, want in pairs
    )
    memory = estimated(encoder, encoded, choices).memory
    assert memory.argument_bytes == 2 * 256 * 256
    assert memory.peak_bytes == 2 * 256 * 256 + 256 * 256 * 4 + 256 * 256  # the result lies apart
    assert memory.peak_time == 3  # once the matmul has run: it is being summed


def test_results_that_are_moved_at_the_end_are_all_there_at_the_end() -> None:
    program = Program()
    x, w = program.argument(64, 64), program.argument(64, 64)
    one = program.matmul(x, w)
    graph = program.graph(one, one)
    parts = parts_of("x=4")
    rows, whole = parts.to_sharding(((0,), ())), parts.to_sharding(((), ()))
    wishes = Wishes(arguments=[rows, whole], results=[whole, whole], values={one: rows})
    memory = planned(graph, "x=4", wishes).account.memory
    pieces = TENSOR // 4
    assert memory.peak_bytes == pieces + TENSOR + pieces + 2 * TENSOR
    assert memory.peak_op == len(graph.ops) - 1


def test_a_reshard_holds_a_copy_and_a_free_slice_none() -> None:
    program = Program()
    x = program.argument(64, 64)
    moved = program.elementwise(x, name="sine")
    graph = program.graph(program.matmul(moved, moved))
    encoded = encoder_for(graph, "x=4", hardware=MACHINE).encode()
    problem = encoded.problem
    assert problem.edge_memory
    for term in problem.edge_memory:
        edge = problem.edges[term.edge]
        rows, columns = encoded.candidates[edge.u], encoded.candidates[edge.v]
        whole = next(i for i, c in enumerate(rows) if c.results and c.results[0] == ((), ()))
        assert not term.usage[whole].any()  # from a whole tensor everything is a slice
        assert len(columns) == term.usage.shape[1]


def test_without_a_plan_within_the_budget_the_wishes_are_not_blamed() -> None:
    graph = chain()
    try:
        solution = planned(graph, "x=4", memory_limit=KIB)
    except ConstraintError as error:  # pragma: no cover
        pytest.fail(f"took a small budget for a contradiction: {error}")
    assert not solution.is_feasible
    assert solution.result.least_peak_bound > KIB


@pytest.mark.parametrize(
    ("hardware", "is_scarce", "expected"),
    [("cpu-host", False, 1.1), ("cpu-host", True, 1.13), ("tpu-v5e", True, 1.1)],
)
def test_an_encoder_counts_gaps_as_scarce_as_memory_is(
    hardware: str, expected: float, *, is_scarce: bool
) -> None:
    program = Program()
    graph = program.graph(program.elementwise(program.argument(64, 64), name="tanh"))
    room = encoder_for(graph, "x=2", hardware=hardware, is_scarce=is_scarce).room
    assert (room.is_scarce, room.overhead) == (is_scarce, expected)


def test_on_a_tpu_no_temporary_takes_the_memory_of_a_result() -> None:
    """Source: the probe of `results_apart`."""

    def late(x: Any, w: Any) -> Any:
        first = x @ w
        second = jnp.sin(first) @ w  # its kernel multiplies and sums
        return (x * jnp.sum(second * first, axis=(1, 2), keepdims=True)) @ w

    square = jax.ShapeDtypeStruct((2, 8192, 8192), "float32")
    graph, wishes = exported(late, square, square, mesh="x=2")
    memory = plan(graph, "x=2", wishes, None, "tpu-v5e").account.memory
    assert memory.peak_bytes == pytest.approx(4 * 4 * 8192**2, rel=0.01)  # the first one, too
    assert ("output", 0, len(graph.ops)) in {(one.kind, one.start, one.stop) for one in memory.held}
