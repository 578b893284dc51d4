"""Partial sums that a loop adds up: summed over devices once, after it, where a backend does so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.encoding.encoded import decode
from autoshard.graph.partial_sums import loop_sums
from autoshard.graph.program import Graph, OpClass
from autoshard.graph.rule import Dims, Rule
from tests.planner.graphs import Program, encoder_for, parts_of, plan, wishes_for
from tests.planner.objective import check_objective_is_account
from tests.planner.traced import exported

TRIPS = 8.0
ROWS = 2**16  # of a microbatch: cut, they leave partial sums
WIDTH = 256


def transposed(program: Program, value: int) -> int:
    rows, columns = program.shape(value)
    before: Dims = ((0,), (1,))
    rule = Rule((rows, columns), (before,), (before[::-1],))
    made = program.compute("transpose", (value,), [(columns, rows)], rule, OpClass.COPY)
    return made[0]


def through_one(program: Program, value: int) -> int:
    """Summed over a dimension of one element, as the gradients of biases are."""
    rows, columns = program.shape(value)
    rule = Rule((rows, columns), (((0,), (1,)),), (((0,), (1,), ()),))
    shape = (rows, columns, 1)
    return program.sum(program.compute("reshape", (value,), [shape], rule, OpClass.COPY)[0])


def converted(program: Program, value: int) -> int:
    return program.elementwise(value, name="convert")


def scaled(program: Program, value: int) -> int:
    return program.elementwise(value, name="negate")


def accumulated(
    *passes: Callable[[Program, int], int],
    trips: float = TRIPS,
    shows: str = "",
    summed: str = "matmul",
) -> Graph:
    """`acc = acc + passes(a @ b)` in a loop; what else reads `acc` or the addition is shown."""
    program = Program()
    left, right = program.argument(WIDTH, ROWS), program.argument(ROWS, 2 * WIDTH)
    turns = passes.count(transposed) % 2
    shape = (2 * WIDTH, WIDTH) if turns else (WIDTH, 2 * WIDTH)
    carried = program.carry(program.argument(*shape))
    other = program.carry(program.argument(*shape))
    program.open_loop(trips)
    made = program.matmul(left, right)
    if summed in ("sum", "largest"):
        cube = program.compute(
            "broadcast_in_dim",
            (made,),
            [(*program.shape(made), 8)],
            Rule((WIDTH, 2 * WIDTH, 8), (((0,), (1,)),), (((0,), (1,), (2,)),)),
            OpClass.COPY,
        )[0]
        made = program.sum(cube) if summed == "sum" else program.largest(cube)
    for one in passes:
        made = one(program, made)
    added = program.elementwise(carried, made)
    program.loop_back(carried, added)
    seen = {"carry": carried, "addition": added}.get(shows)
    program.loop_back(other, other if seen is None else program.elementwise(other, seen))
    program.close_loop()
    return program.graph(carried, other)


def all_reduces(graph: Graph, hardware: str) -> dict[int, float]:
    """Counts of all-reduces by bytes, where the rows of both factors come cut."""
    parts = parts_of("data=8")
    cut = (parts.to_sharding(((), (0,))), parts.to_sharding(((0,), ())))
    wishes = wishes_for(graph, dict(enumerate(cut)), {})
    made = plan(graph, "data=8", wishes, hardware=hardware).account.collectives
    return {c.bytes_per_device: c.count for c in made if c.kind == "all-reduce"}


@pytest.mark.parametrize(
    ("passes", "order"),
    [
        ((), (0, 1)),
        ((converted,), (0, 1)),
        ((transposed,), (1, 0)),
        ((converted, transposed), (1, 0)),
        ((transposed, transposed), (0, 1)),
    ],
)
def test_a_product_that_is_only_added_up_is_found(
    passes: tuple[Callable[[Program, int], int], ...], order: tuple[int, ...]
) -> None:
    graph = accumulated(*passes)
    (found,) = loop_sums(graph)
    assert graph.ops[found.op].name == "dot_general"
    assert graph.ops[found.add].name == "add"
    assert (found.order, found.runs) == (order, TRIPS)
    value = graph.ops[found.add].operands[found.position]
    made = graph.values[graph.ops[found.op].results[0]].shape
    assert tuple(made[dim] for dim in order) == graph.values[value].shape


@pytest.mark.parametrize("passes", [(), (through_one,), (transposed, through_one)])
def test_a_sum_over_dimensions_that_is_only_added_up_is_found(
    passes: tuple[Callable[[Program, int], int], ...],
) -> None:
    graph = accumulated(*passes, summed="sum")
    (found,) = loop_sums(graph)
    assert graph.ops[found.op].is_sum
    assert graph.values[graph.ops[found.op].results[0]].shape == (WIDTH, 2 * WIDTH)
    assert found.order == ((1, 0) if transposed in passes else (0, 1))


@pytest.mark.parametrize(
    "graph",
    [
        accumulated(scaled),
        accumulated(converted, scaled),
        accumulated(trips=1.0),
        accumulated(shows="carry"),
        accumulated(shows="addition"),
        accumulated(summed="largest"),
    ],
    ids=["scaled", "scaled after all", "one run", "shows carry", "shows addition", "no sum"],
)
def test_what_a_loop_does_more_with_stays_in_it(graph: Graph) -> None:
    assert not loop_sums(graph)
    assert set(all_reduces(graph, "h100").values()) <= {0.0, graph.regions[1].trip_count}


@pytest.mark.parametrize("hardware", ["h100", "tpu-v5e"])
def test_the_sum_is_planned_once_after_the_loop(hardware: str) -> None:
    assert all_reduces(accumulated(transposed), hardware) == {WIDTH * 2 * WIDTH * 4: 1.0}


def test_on_host_cpus_it_is_summed_in_every_run() -> None:
    assert all_reduces(accumulated(), "cpu-host") == {WIDTH * 2 * WIDTH * 4: TRIPS}


@given(data=st.data())
def test_the_objective_is_what_the_account_says(data: st.DataObject) -> None:
    graph = accumulated(*data.draw(st.sampled_from([(), (transposed,), (converted, transposed)])))
    check_objective_is_account(encoder_for(graph, "data=2,model=4", hardware="h100"), data)


def test_a_sum_added_up_in_another_layout_stays_in_the_loop() -> None:
    graph = accumulated()
    encoder = encoder_for(graph, "data=8", hardware="h100")
    encoded = encoder.encode()
    (one,) = loop_sums(encoded.graph)
    made = encoded.candidates[encoded.node_by_op[one.op]]
    added = encoded.candidates[encoded.node_by_op[one.add]]
    choices = [0] * len(encoded.problem.node_costs)
    late = next(i for i, c in enumerate(made) if c.runs_per_sum == TRIPS)
    for layout, runs in ((made[late].results[0], TRIPS), (((0,), ()), 1.0)):
        choices[encoded.node_by_op[one.op]] = late
        choices[encoded.node_by_op[one.add]] = next(
            i for i, c in enumerate(added) if c.operands[one.position] == layout
        )
        assert decode(encoded, choices).candidates[one.op].runs_per_sum == runs


@pytest.mark.parametrize("hardware", ["tpu-v5e", "tpu-v5p"])
def test_a_matmul_whose_sum_leaves_the_loop_adds_to_the_carry_in_its_kernel(hardware: str) -> None:
    """The adding takes as long for fewer rows: libtpu 0.0.52 says 34 thousand cycles for 16."""

    def step(rows: jax.Array, columns: jax.Array, carried: jax.Array) -> Any:
        def add(total: jax.Array, both: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            return total + both[0].T @ both[1], None

        return jax.lax.scan(add, carried, (rows, columns))[0]

    shapes = [(64, 64, 1024), (64, 64, 4096), (1024, 4096)]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    graph, wishes = exported(step, *arguments, mesh="x=4")
    encoder = encoder_for(graph, "x=4", wishes, hardware=hardware)
    encoder.encode()
    (product,) = (op for op in graph.ops if op.op_class is OpClass.MATMUL)
    costs = encoder.node_costs
    (cut,) = (c for c in costs.candidates[product.index] if c.reduced and c.cut == 4)
    assert cut.runs_per_sum == 64
    (by_rows, _), (whole, _) = (
        costs.seconds_of(product, c) for c in (cut, costs.candidates[product.index][0])
    )
    assert by_rows > 0.8 * whole
