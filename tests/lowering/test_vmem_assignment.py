"""Temporaries of a v5e where its memory on the chip has room for all of them."""

from __future__ import annotations

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from autoshard.costing.vmem import MOST_MATMULS
from autoshard.graph.program import OpClass
from autoshard.graph.rule import Rule
from autoshard.planning.solution import Solution
from autoshard.wishes.wishes import Wishes
from tests.planner.graphs import Program, beside_arguments, parts_of, plan
from tests.planner.traced import exported

ROOM = 112 * 2**20  # of VMEM, handed out
F32_BYTES = 4


def with_one_that_waits(
    side: int, hardware: str = "tpu-v5e", *, is_result: bool = False
) -> Solution:
    """A product that is read again after more products than what stays on the chip waits for."""
    program = Program()
    x, w = program.argument(side, side), program.argument(side, side)
    first = made = program.matmul(x, w)
    for _ in range(MOST_MATMULS + 3):
        made = program.matmul(made, w)
    last = program.elementwise(made, first)
    graph = program.graph(last if is_result else program.sum(last))
    parts = parts_of("x=4")
    whole, end = parts.to_sharding(((), ())), parts.to_sharding(((),))
    values = {v.index: whole for v in graph.values if v.shape == (side, side)}
    results = [whole if is_result else end]
    wishes = Wishes(arguments=[whole] * 2, results=results, values=values)
    return plan(graph, "x=4", wishes, None, hardware)


def side_of(share: float) -> int:
    """Of squares five of which take so much of the chip.

    Two are arguments that products read; one waits, one is read, one is made.
    """
    return int((share * ROOM / F32_BYTES / 5) ** 0.5) // 128 * 128


def test_with_room_for_all_none_is_moved_out_to_wait() -> None:
    side = side_of(0.95)
    solution = with_one_that_waits(side)
    assert beside_arguments(solution) < side * side * F32_BYTES / 2
    assert not [t for t in solution.account.memory.held if t.name == "dot_general"]


@pytest.mark.parametrize(("share", "hardware"), [(3.0, "tpu-v5e"), (0.95, "tpu-v5p")])
def test_without_it_waits_in_device_memory_as_on_other_chips(share: float, hardware: str) -> None:
    side = side_of(share)
    assert beside_arguments(with_one_that_waits(side, hardware)) >= side * side * F32_BYTES


def test_results_are_in_device_memory_however_much_room_there_is() -> None:
    side = side_of(0.95)
    solution = with_one_that_waits(side, is_result=True)
    assert beside_arguments(solution) >= side * side * F32_BYTES


def trained(num_states: int) -> Solution:
    """A product that makes the gradient of states, which are more than two kinds of op read."""
    program = Program()
    side = side_of(0.5)
    x, states = (
        program.argument(side, side),
        [program.argument(side, side) for _ in range(num_states)],
    )
    gradient = program.elementwise(program.matmul(x, x), name="tanh")
    scale = program.sum(gradient)
    new = [program.elementwise(gradient, state) for state in states]
    graph = program.graph(*new, scale, donated=tuple(range(1, num_states + 1)))
    parts = parts_of("x=4")
    whole, end = parts.to_sharding(((), ())), parts.to_sharding(((),))
    places = range(1, num_states + 1)
    wishes = Wishes(
        arguments=[whole] * (num_states + 1),
        results=[*[whole] * num_states, end],
        alike=[(place, place - 1) for place in places],
        values={gradient: whole},
    )
    return plan(graph, "x=4", wishes, None, "tpu-v5e")


@pytest.mark.parametrize("num_states", [2, 12])
def test_what_updates_read_is_there_too_whatever_room_the_states_have(num_states: int) -> None:
    # So it is in an embedding with Adam that libtpu 0.0.52 compiled for a v5e: states of 100 MB.
    assert beside_arguments(trained(num_states)) < side_of(0.5) ** 2 * F32_BYTES / 2


def test_what_was_held_before_updates_takes_none_of_the_room_for_states() -> None:
    program = Program()
    side = side_of(0.95)
    x, states = program.argument(side, side), [program.argument(side, side) for _ in range(3)]
    first, second = program.matmul(x, x), program.matmul(x, x)
    gradient = program.elementwise(program.matmul(first, second), name="tanh")
    scale = program.sum(gradient)
    new = [program.elementwise(gradient, state) for state in states]
    graph = program.graph(*new, scale, donated=(1, 2, 3))
    parts = parts_of("x=4")
    whole, end = parts.to_sharding(((), ())), parts.to_sharding(((),))
    wishes = Wishes(
        arguments=[whole] * 4,
        results=[*[whole] * 3, end],
        alike=[(place, place - 1) for place in (1, 2, 3)],
        values={v.index: whole for v in graph.values if v.shape == (side, side)},
    )
    assert (4 + 3) * side * side * F32_BYTES > ROOM
    solution = plan(graph, "x=4", wishes, None, "tpu-v5e")
    assert beside_arguments(solution) < side * side * F32_BYTES / 2


WIDTH, CHANNELS = 16, 128


def with_images_that_wait(batch: int, share: float) -> tuple[Solution, int]:
    """Images that are read again after more convolutions, and their bytes.

    Three and the one that comes in take a share of the chip.
    """
    num_rows = int(share * ROOM / F32_BYTES / 4 / (batch * WIDTH * CHANNELS))
    shape = (batch, num_rows, WIDTH, CHANNELS)
    rule = Rule(
        (*shape, CHANNELS),
        (((0,), (1,), (2,), (3,)), ((3,), (4,))),
        (((0,), (1,), (2,), (4,)),),
        frozenset({3}),
    )
    program = Program()
    made, kernel = program.argument(*shape), program.argument(CHANNELS, CHANNELS)
    convolved = []
    for _ in range(MOST_MATMULS + 4):
        operands = (made, kernel)
        (made,) = program.compute("convolution", operands, [shape], rule, OpClass.CONVOLUTION)
        convolved.append(made)
    graph = program.graph(program.sum(program.elementwise(made, convolved[0])))
    parts = parts_of("x=4")
    whole, kernels, end = (parts.to_sharding(((),) * rank) for rank in (4, 2, 3))
    values = {v.index: whole for v in graph.values if v.shape == shape}
    wishes = Wishes(arguments=[whole, kernels], results=[end], values=values)
    return plan(graph, "x=4", wishes, None, "tpu-v5e"), F32_BYTES * prod(shape)


@pytest.mark.parametrize(("share", "is_there"), [(0.95, True), (3.0, False)])
@pytest.mark.parametrize("batch", [4, 8])
def test_images_wait_there_too(batch: int, share: float, is_there: bool) -> None:
    solution, num_bytes = with_images_that_wait(batch, share)
    assert (beside_arguments(solution) < num_bytes / 2) == is_there


def with_trained_table(num_states: int, *, is_scattered: bool) -> int:
    """Bytes beside the arguments of a table's gradient, rows that are scattered or looked up."""
    program = Program()
    side = side_of(0.5)
    rows, places = program.argument(side, side), program.argument(side, 1)
    states = [program.argument(side, side) for _ in range(num_states)]
    large, small, place = ((0,), (2,)), ((1,), (2,)), ((1,), (3,))
    sizes = (side, side, side, 1)
    if is_scattered:
        operands: tuple[int, ...] = (program.zeros(side, side), places, rows)
        rule, op_class = Rule(sizes, (large, place, small), (large,)), OpClass.SCATTER
    else:
        operands = (rows, places)
        rule, op_class = Rule(sizes, (large, place), (small,)), OpClass.GATHER
    (gradient,) = program.compute("moved rows", operands, [(side, side)], rule, op_class)
    new = [program.elementwise(gradient, state) for state in states]
    graph = program.graph(*new, donated=tuple(range(2, num_states + 2)))
    whole = parts_of("x=4").to_sharding(((), ()))
    wishes = Wishes(
        arguments=[whole] * (num_states + 2),
        results=[whole] * num_states,
        alike=[(number + 2, number) for number in range(num_states)],
        values={gradient: whole},
    )
    return beside_arguments(plan(graph, "x=4", wishes, None, "tpu-v5e"))


def test_gradients_of_rows_are_there_whatever_room_the_states_have() -> None:
    one = side_of(0.5) ** 2 * F32_BYTES
    assert with_trained_table(12, is_scattered=True) < one / 2
    assert with_trained_table(12, is_scattered=False) < one / 2


def recurrent(num_rows: int, hardware: str) -> Solution:
    """A recurrence that keeps what it gives in every run, and states too many for the chip."""
    width, runs = 512, 64

    def step(states: Any, xs: jax.Array) -> Any:
        def run(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            h = jnp.tanh(h + x)
            return h, h

        _, kept = jax.lax.scan(run, jnp.zeros((num_rows, width)), xs)
        scale = jnp.sum(jnp.square(kept)) + jnp.sum(jnp.flip(kept, 0) * xs)
        return jax.tree.map(lambda state: state * scale, states), scale

    shape = jax.ShapeDtypeStruct((8192, 4096), jnp.float32)  # 134 MB
    states = {"a": shape, "b": shape}
    xs = jax.ShapeDtypeStruct((runs, num_rows, width), jnp.float32)
    whole = PartitionSpec()
    graph, wishes = exported(
        step,
        states,
        xs,
        mesh="x=4",
        donate_argnums=0,
        in_shardings=(whole, PartitionSpec(None, "x")),
        out_shardings=(whole, whole),
    )
    return plan(graph, "x=4", wishes, None, hardware)


def test_what_a_loop_stacks_waits_on_the_chip_though_the_states_have_no_room_there() -> None:
    stacked = 64 * 64 * 512 * F32_BYTES // 4
    on_v5e, on_v5p = (beside_arguments(recurrent(64, kind)) for kind in ("tpu-v5e", "tpu-v5p"))
    assert on_v5e < stacked / 2 < stacked <= on_v5p
    assert beside_arguments(recurrent(4096, "tpu-v5e")) >= 64 * stacked


@pytest.mark.parametrize(
    ("num_added", "into_zeros", "is_evicted"),
    [(2**16, False, False), (2**17, False, True), (2**17, True, False)],
)
def test_what_waits_while_many_elements_are_scattered_is_in_device_memory(
    num_added: int, *, into_zeros: bool, is_evicted: bool
) -> None:
    """As libtpu 0.0.52 has it for a v5e; a scatter into zeros is a kernel of its own."""
    side = 2048

    def step(x: jax.Array, table: jax.Array, places: jax.Array, added: jax.Array) -> Any:
        waits = x @ x
        total = jnp.sum(waits)
        into = jnp.zeros_like(table) if into_zeros else jnp.tanh(table + total)
        made = jnp.sum(jnp.square(into.at[places].add(jnp.tanh(added + total))))
        return jnp.sum(jnp.square(waits @ x) * made)

    places = jax.ShapeDtypeStruct((num_added,), jnp.int32)
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in [(side, side), (16384,)]]
    added = jax.ShapeDtypeStruct((num_added,), jnp.float32)
    whole = PartitionSpec()
    graph, wishes = exported(
        step, *shapes, places, added, mesh="x=2", in_shardings=whole, out_shardings=whole
    )
    held = beside_arguments(plan(graph, "x=2", wishes, None, "tpu-v5e"))
    assert (held > side * side * F32_BYTES / 4) == is_evicted
