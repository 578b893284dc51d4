"""Rows that do not fill the lanes of a TPU: which values keep them, and what that costs."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.backends import get_backend
from autoshard.candidates.candidate import CandidateMaker
from autoshard.costing.tile_padding import TilePadding, values_in_rows
from autoshard.graph.program import Graph, OpClass
from autoshard.graph.rule import Dims, Rule
from cost_models import get_hardware
from tests.planner.graphs import Program, encoder_for, parts_of
from tests.planner.traced import exported

ROWS, TAKEN = 4096, 2048
LANES = 128
TILING = get_backend("tpu").layout
SIDES = st.sampled_from((1, 2, 5, 8, 100, 128, 256))


def looked_up(program: Program, width: int) -> int:
    """Rows of a table, by index."""
    table, indices = program.argument(ROWS, width), program.argument(TAKEN, 1)
    rule = Rule((ROWS, TAKEN, width, 1), (((0,), (2,)), ((1,), (3,))), (((1,), (2,)),))
    made = program.compute("gather", (table, indices), [(TAKEN, width)], rule, OpClass.GATHER)[0]
    program.ops[-1] = replace(program.ops[-1], flops=0.0)
    return made


def scattered(program: Program, updates: int, *, zeros: bool = False) -> int:
    """A gradient of a table, from updates by index."""
    _, width = program.shape(updates)
    table = program.zeros(ROWS, width) if zeros else program.argument(ROWS, width)
    indices = program.argument(TAKEN, 1)
    large, small = ((0,), (2,)), ((1,), (2,))
    rule = Rule((ROWS, TAKEN, width, 1), (large, ((1,), (3,)), small), (large,))
    operands = (table, indices, updates)
    made = program.compute("scatter", operands, [(ROWS, width)], rule, OpClass.SCATTER)[0]
    program.ops[-1] = replace(program.ops[-1], flops=0.0)
    return made


def seconds(graph: Graph, name: str, hardware: str = "tpu-v5p") -> float:
    """Of an op that every device runs whole."""
    encoder = encoder_for(graph, "x=8", hardware=hardware)
    op = next(op for op in graph.ops if op.name == name)
    assert op.rule is not None
    (whole,) = (one for one in CandidateMaker(parts_of("x=8")).of_rule(op.rule) if one.cut == 1)
    return float(encoder.node_costs.seconds(op, (whole,))[0])


def test_what_is_computed_from_rows_looked_up_lies_in_rows_until_a_product() -> None:
    program = Program()
    taken = looked_up(program, 64)
    doubled = program.elementwise(taken)
    total = program.sum(doubled)
    weight, other = program.argument(64, 32), program.argument(TAKEN, 64)
    made = program.matmul(doubled, weight)
    apart = program.sum(program.elementwise(other))
    found = values_in_rows(program.graph(made, total, apart))
    assert {taken, doubled} <= found
    assert found.isdisjoint({made, weight, other, apart})


def reshaped(program: Program, value: int, shape: tuple[int, ...]) -> int:
    """A reshape that no device takes a part of."""
    before = program.shape(value)
    sizes = (*before, *shape)
    dims: Dims = tuple((d,) for d in range(len(sizes)))
    rule = Rule(sizes, (dims[: len(before)],), (dims[len(before) :],))
    return program.compute("reshape", (value,), [shape], rule, OpClass.NOTHING)[0]


def test_what_rows_are_split_into_fills_the_lanes_otherwise() -> None:
    """A group norm of an upsampled image took four times its time, as its groups were padded."""
    program = Program()
    taken = looked_up(program, 64)
    groups = reshaped(program, taken, (TAKEN, 16, 4))
    again = reshaped(program, program.elementwise(groups), (TAKEN, 64))
    as_rows = reshaped(program, program.elementwise(taken), (TAKEN, 1, 64))
    flat = reshaped(program, as_rows, (TAKEN, 64))
    ends = [program.sum(program.elementwise(value)) for value in (again, flat)]
    found = values_in_rows(program.graph(*ends))
    assert {taken, as_rows} <= found
    assert found.isdisjoint({groups, again})


def test_what_is_scattered_lies_in_rows_from_a_product_on_and_new_states_in_any_order() -> None:
    program = Program()
    left, right = program.argument(TAKEN, 256), program.argument(256, 64)
    product = program.matmul(left, right)
    updates = program.elementwise(product)
    gradient = scattered(program, updates)
    state = program.elementwise(gradient, program.argument(ROWS, 64))
    found = values_in_rows(program.graph(state))
    assert {product, updates} <= found
    assert found.isdisjoint({left, right, gradient, state})


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((64, 8), 64 * 128), ((64, 4, 8), 64 * 8 * 128), ((64, 1, 8), 64 * 128), ((3, 256), 8 * 256)],
)
def test_rows_are_padded_to_whole_tiles_and_dimensions_of_one_left_out(
    shape: tuple[int, ...], expected: int
) -> None:
    program = Program()
    value = program.argument(*shape)
    tiles = TilePadding(program.graph(value), parts_of("x=2"), TILING, frozenset({value}))
    found = tiles.local_bytes(value, [((),) * len(shape)])
    assert found is not None
    assert found.tolist() == [expected * 4]


def test_any_dimension_but_those_of_a_batch_fills_the_lanes_of_a_product() -> None:
    program = Program()
    left, right = program.argument(64, 512, 16), program.argument(64, 16, 8)
    dims: tuple[Dims, Dims, Dims] = (((0,), (1,), (3,)), ((0,), (3,), (2,)), ((0,), (1,), (2,)))
    rule = Rule((64, 512, 8, 16), dims[:2], dims[2:], reduction=frozenset({3}))
    (made,) = program.compute("dot_general", (left, right), [(64, 512, 8)], rule)
    graph = program.graph(made)
    tiles = TilePadding.of(graph, parts_of("x=8"), TILING, [True] * len(graph.values))
    whole, cut = ((), (), ()), ((), (0,), ())
    found = tiles.local_bytes(made, [whole, cut])
    assert found is not None
    assert found.tolist() == [64 * 512 * 8 * 4, 64 * 128 * 8 * 4]  # 64 of 512 fill half the lanes


def test_and_of_what_is_computed_of_it_element_by_element() -> None:
    """A softmax over 197 tokens goes through as many lanes as one over 256."""

    def weights(query: jax.Array, key: jax.Array) -> jax.Array:
        made: jax.Array = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", query, key))
        return made

    rows = jax.ShapeDtypeStruct((64, 197, 16), jnp.float32)
    graph, _ = exported(weights, rows, rows, mesh="x=8")
    tiles = TilePadding.of(graph, parts_of("x=8"), TILING, [True] * len(graph.values))
    made = [op.results[0] for op in graph.ops if op.name in ("dot_general", "exponential")]
    assert len(made) == 2
    for value in made:
        found = tiles.local_bytes(value, [((), (), ())])
        assert found is not None
        assert found.tolist() == [64 * 200 * 256 * 4]


@given(shape=st.lists(SIDES, min_size=2, max_size=4))
def test_tiles_hold_at_least_what_lies_in_them(shape: list[int]) -> None:
    program = Program()
    value = program.argument(*shape)
    tiles = TilePadding(program.graph(value), parts_of("x=8"), TILING, frozenset({value}))
    found = tiles.local_bytes(value, [((),) * len(shape)])
    assert found is not None
    assert found[0] >= np.prod(shape) * 4


def sums_of_rows(width: int) -> Graph:
    program = Program()
    return program.graph(program.sum(looked_up(program, width)))


def test_narrow_rows_take_as_long_as_whole_tiles_on_a_tpu_only() -> None:
    narrow, wide = sums_of_rows(16), sums_of_rows(LANES)
    assert seconds(narrow, "reduce") == pytest.approx(seconds(wide, "reduce"))
    assert seconds(narrow, "reduce", "h100") < 0.99 * seconds(wide, "reduce", "h100")


def test_a_look_up_of_narrow_rows_takes_a_copy_of_the_table() -> None:
    machine = get_hardware("tpu-v5p")
    assert machine.memory.streamed is not None
    speed = machine.memory.bytes_per_second * (machine.memory.streamed.row_copies or 1.0)
    table = ROWS * (16 + LANES) * 4
    narrow = seconds(sums_of_rows(16), "gather")
    by_bytes = (TAKEN * 2 * LANES + TAKEN) * 4 / (machine.memory.bytes_per_second * 0.5)
    launch = machine.compute.kernel_launch_seconds
    assert narrow == pytest.approx(by_bytes + table / speed + 2 * launch)


@pytest.mark.parametrize(
    ("shape", "rows", "lanes", "name"),
    [((6, 5), 6, LANES, "tpu"), ((5,), 1, LANES, "tpu"), ((), 1, LANES, "tpu"), ((), 1, 1, "gpu")],
)
def test_what_is_scattered_counts_a_whole_row_of_lanes_for_each_even_for_a_scalar(
    shape: tuple[int, ...], rows: int, lanes: int, name: str
) -> None:
    program = Program()
    updates = program.argument(*shape)
    layout = get_backend(name).layout
    tiles = TilePadding.of(program.graph(updates), parts_of("x=2"), layout, [True])
    whole = tuple(() for _ in shape)
    assert tiles.bytes_by_row(updates, [whole]).tolist() == [rows * lanes * 4]


@pytest.mark.parametrize(
    ("hardware", "width", "lanes"),
    [("tpu-v5p", 16, LANES), ("tpu-v5p", 200, 256), ("h100", 16, 16)],
)
def test_a_scatter_passes_the_rows_it_adds_three_times_and_fills_its_result(
    hardware: str, width: int, lanes: int
) -> None:
    machine = get_hardware(hardware)
    program = Program()
    updates = program.argument(TAKEN, width)
    made = seconds(program.graph(scattered(program, updates, zeros=True)), "scatter", hardware)
    streamed = machine.memory.streamed
    copies = (streamed.row_copies if streamed else None) or 1.0
    speed, launch = machine.memory.bytes_per_second, machine.compute.kernel_launch_seconds
    expected = (3 * TAKEN * lanes + TAKEN) * 4 / (0.25 * speed) + launch
    expected += ROWS * lanes * 4 / speed
    if lanes > width:  # the result is copied out of its rows
        expected += ROWS * (width + lanes) * 4 / (copies * speed) + launch
    assert made == pytest.approx(expected)


def mask_seconds(shape: tuple[int, ...], hardware: str) -> float:
    """What a look-up takes more where each of two devices has half of the table's rows."""
    program = Program()
    width = shape[-1]
    table, indices = program.argument(ROWS, width), program.argument(*shape[:-1], 1)
    places = tuple((place + 1,) for place in range(len(shape) - 1))
    last, one = len(shape), len(shape) + 1
    rule = Rule(
        (ROWS, *shape, 1),
        (((0,), (last,)), (*places, (one,))),
        ((*places, (last,)),),
        reduction=frozenset({0}),
    )
    made = program.compute("gather", (table, indices), [shape], rule, OpClass.GATHER)
    program.ops[-1] = replace(program.ops[-1], flops=0.0)
    graph = program.graph(*made)
    encoder = encoder_for(graph, "x=2", hardware=hardware)
    op = graph.ops[2]
    offered = CandidateMaker(parts_of("x=2")).of_rule(rule)
    pair = tuple(
        next(c for c in offered if c.cut == cut and bool(c.reduced) is (cut == 2)) for cut in (1, 2)
    )
    prices = encoder.node_costs
    alone = prices.seconds(op, pair) - prices.reductions.seconds(op, pair)
    return float(alone[1] - alone[0])


@pytest.mark.parametrize("hardware", ["tpu-v5e", "tpu-v5p"])
def test_rows_looked_up_in_a_piece_of_a_table_are_masked_on_a_tpu(hardware: str) -> None:
    machine = get_hardware(hardware)
    streamed = machine.memory.streamed
    assert streamed is not None
    one = 4 / (machine.memory.bytes_per_second * streamed.elementwise)
    kernels = 1 if hardware == "tpu-v5e" else 3  # with copies of mask and indices
    launch = kernels * machine.compute.kernel_launch_seconds
    tiles = 512 * 8 * LANES
    assert mask_seconds((512, 8, LANES), hardware) == pytest.approx(tiles * one + launch)
    assert mask_seconds((512, 4, LANES), hardware) == pytest.approx(3 * tiles * one + launch)
    assert mask_seconds((512, 4, LANES), "h100") == 0.0


def order_seconds(width: int, hardware: str) -> float:
    """Of looked-up rows that are gathered, from 2 devices, to be summed."""
    program = Program()
    taken = looked_up(program, width)
    graph = program.graph(program.sum(taken))
    encoder = encoder_for(graph, "x=2", hardware=hardware)
    encoder.encode()
    reader = next(op for op in graph.ops if op.name == "reduce")
    found = encoder.read_costs.orders.seconds(reader, taken)
    return 0.0 if found is None else float(found.max())


def test_narrow_rows_that_are_moved_are_copied_into_whole_tiles_on_a_tpu_only() -> None:
    machine = get_hardware("tpu-v5p")
    assert machine.memory.streamed is not None
    speed = machine.memory.bytes_per_second * (machine.memory.streamed.row_copies or 1.0)
    copied = TAKEN * (100 + LANES) * 4 / speed + machine.compute.kernel_launch_seconds
    assert order_seconds(100, "tpu-v5p") >= copied
    assert order_seconds(4 * LANES, "tpu-v5p") == 0.0
    assert order_seconds(100, "h100") == 0.0


def test_narrow_rows_that_several_ops_read_are_written() -> None:
    program = Program()
    shared = program.elementwise(looked_up(program, 16), name="negate")
    graph = program.graph(program.sum(shared), program.sum(shared))
    once = Program()
    alone = once.graph(once.sum(once.elementwise(looked_up(once, 16), name="negate")))
    tiles = TAKEN * LANES * 4 / (get_hardware("tpu-v5p").memory.bytes_per_second)
    assert seconds(graph, "negate") > tiles > seconds(alone, "negate")


def test_rows_that_fill_lanes_are_not_written_though_their_last_tiles_are_not_full() -> None:
    program = Program()
    shared = program.elementwise(looked_up(program, LANES + 72), name="negate")
    graph = program.graph(program.sum(shared), program.sum(shared))
    tiles = TAKEN * LANES * 4 / (get_hardware("tpu-v5p").memory.bytes_per_second)
    assert seconds(graph, "negate") < tiles


def test_what_updates_of_one_state_make_together_is_launched_once() -> None:
    program = Program()
    weight, moment, gradient = (program.argument(512, 512) for _ in range(3))
    new_moment = program.elementwise(moment, gradient)
    new_weight = program.elementwise(weight, new_moment, name="subtract")
    graph = program.graph(new_weight, new_moment)
    machine = get_hardware("tpu-v5p")
    assert machine.memory.streamed is not None
    speed = machine.memory.bytes_per_second * machine.memory.streamed.elementwise
    launch = machine.compute.kernel_launch_seconds
    both = seconds(graph, "add") + seconds(graph, "subtract")
    passes = machine.compute.passes
    assert passes is not None
    assert both == pytest.approx(3 * 2**20 / speed + 2 * 512**2 / passes.kept + launch)


def test_a_sum_over_what_a_product_writes_is_not_launched_by_itself() -> None:
    program = Program()
    made = program.matmul(program.argument(512, 512), program.argument(512, 512))
    graph = program.graph(made, program.sum(made))
    launch = get_hardware("tpu-v5p").compute.kernel_launch_seconds
    assert seconds(graph, "reduce") < launch < seconds(graph, "dot_general")


def test_copies_of_rows_of_narrow_elements_take_what_other_copies_do() -> None:
    program = Program()
    costing = encoder_for(program.graph(program.argument(8, 8)), "x=8", hardware="tpu-v5e").costing
    num_bytes = np.array([1e6, 1e8])
    held = np.array([False, False])
    narrow, wide = (costing.row_copy_seconds(num_bytes, bits, held) for bits in (16, 32))
    assert narrow.tolist() == costing.copy_seconds(num_bytes).tolist()
    assert (wide < narrow).all()
    assert (costing.row_copy_seconds(num_bytes, 32, ~held) < wide).all()
