"""What a TPU's vector unit takes for elements, wherever they lie, and what it does meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.backends import backend_for
from autoshard.candidates.candidate import Candidate
from autoshard.costing.costing import Costing, cost_model_for
from autoshard.encoding.encode import Encoder
from autoshard.graph.buffers import find_buffers
from autoshard.graph.program import Graph, Op, OpClass
from autoshard.lowering.optimizer_outputs import hbm_spill_fraction
from cost_models import Hardware, get_hardware, memory_efficiency
from tests.planner.graphs import Program, free_wishes, narrowed, parts_of, plan
from tests.planner.traced import exported

V5E = get_hardware("tpu-v5e")
LAUNCH = V5E.compute.kernel_launch_seconds
ROOM = 112 * 2**20  # of VMEM, handed out
assert V5E.compute.passes is not None
PASSES = V5E.compute.passes
WRITE_SPEED = memory_efficiency(V5E, "elementwise") * V5E.memory.bytes_per_second
SIDE = 2048
ELEMENTS = SIDE * SIDE


def updated_state(side: int = SIDE) -> Graph:
    """A state, less a gradient that is there."""
    program = Program()
    state, gradient = program.argument(side, side), program.argument(side, side)
    return program.graph(program.elementwise(state, gradient, name="subtract"))


def updated_with_its_gradient() -> Graph:
    """A state, less a gradient that a product makes of tensors in `bfloat16`."""
    program = Program()
    state, left, right = (program.argument(SIDE, SIDE) for _ in range(3))
    gradient = program.matmul(left, right)
    graph = program.graph(program.elementwise(state, gradient, name="subtract"))
    return narrowed(graph, left, right)


def summed() -> Graph:
    """The rows of an argument, added up."""
    program = Program()
    return program.graph(program.sum(program.argument(SIDE, SIDE)))


def product(*, is_summed: bool) -> Graph:
    """What a product makes is read by another one, and its rows are added up if asked for."""
    program = Program()
    first = program.argument(SIDE, SIDE)
    made = program.matmul(first, program.argument(SIDE, SIDE))
    sums = [program.sum(made)] if is_summed else []
    return program.graph(program.matmul(made, first), *sums)


def op_of(graph: Graph, op_class: OpClass) -> Op:
    return next(op for op in graph.ops if op.op_class is op_class)


def prices(
    graph: Graph,
    op_class: OpClass,
    mesh: str = "x=1",
    machine: Hardware = V5E,
) -> tuple[tuple[Candidate, ...], np.ndarray]:
    parts = parts_of(mesh)
    costing = Costing(cost_model_for(machine, parts), parts)
    encoder = Encoder(
        graph, find_buffers(graph, backend_for(machine)), costing, free_wishes(graph), None
    )
    op = op_of(graph, op_class)
    candidates = offered(encoder, op)
    prices = encoder.node_costs
    return candidates, prices.seconds(op, candidates) - prices.reductions.seconds(op, candidates)


def offered(encoder: Encoder, op: Op) -> tuple[Candidate, ...]:
    encoded = encoder.encode()
    return encoded.candidates[encoded.node_by_op[op.index]]


def test_an_update_reads_at_the_speed_of_memory_and_writes_to_vmem() -> None:
    _, seconds = prices(updated_state(), OpClass.ELEMENTWISE)
    expected = 2 * 4 / WRITE_SPEED + 1 / PASSES.kept
    assert seconds[0] == pytest.approx(ELEMENTS * expected + LAUNCH)


def test_a_gradient_in_narrow_elements_is_read_faster() -> None:
    graph = updated_state()
    _, seconds = prices(narrowed(graph, graph.ops[1].results[0]), OpClass.ELEMENTWISE)
    expected = (4 + 2) / WRITE_SPEED + 1 / PASSES.kept
    assert seconds[0] == pytest.approx(ELEMENTS * expected + LAUNCH)


def test_narrow_elements_take_longer_to_write() -> None:
    graph = updated_state()
    made = op_of(graph, OpClass.ELEMENTWISE).results[0]
    _, wide = prices(graph, OpClass.ELEMENTWISE)
    _, narrow = prices(narrowed(graph, made), OpClass.ELEMENTWISE)
    more = ELEMENTS / PASSES.narrowed - ELEMENTS / PASSES.kept / 2  # half the bytes
    assert narrow[0] - wide[0] == pytest.approx(more)


@pytest.mark.parametrize("machine", ["tpu-v5e", "tpu-v6e", "tpu7x"])
def test_matmuls_narrow_elements_at_rates_of_their_own(machine: str) -> None:
    program = Program()
    rows, columns = program.argument(8 * SIDE, 16), program.argument(16, 4 * SIDE)
    graph = program.graph(program.matmul(rows, columns))
    chip = get_hardware(machine)
    assert chip.compute.passes is not None
    _, wide = prices(graph, OpClass.MATMUL, machine=chip)
    _, narrow = prices(narrowed(graph, 2), OpClass.MATMUL, machine=chip)
    num_elements = 32 * ELEMENTS
    speed = memory_efficiency(chip, "matmul") * chip.memory.bytes_per_second
    passed = narrow[0] - wide[0] + 2 * num_elements / speed
    rate = chip.compute.passes.product_narrowed or chip.compute.passes.narrowed
    assert passed == pytest.approx(num_elements / rate)


@pytest.mark.parametrize(("machine", "in_vmem"), [("tpu-v4", 1.0), ("tpu-v6e", 0.14)])
def test_bytes_in_vmem_take_little_time_on_a_v6e_and_that_of_hbm_on_a_v4(
    machine: str, in_vmem: float
) -> None:
    program = Program()
    rows, columns = program.argument(4 * SIDE, 16), program.argument(16, SIDE)
    made = program.matmul(rows, columns)
    read_soon = narrowed(program.graph(program.matmul(made, program.argument(SIDE, 16))), made)
    result = narrowed(program.graph(made), made)
    chip = get_hardware(machine)
    taken = [
        prices(graph, OpClass.MATMUL, machine=chip)[1][0] - chip.compute.kernel_launch_seconds
        for graph in (read_soon, result)
    ]
    assert taken[0] == pytest.approx(in_vmem * taken[1], rel=0.2)


def test_optimizer_outputs_larger_than_vmem_are_written_to_hbm() -> None:
    side = 4 * SIDE
    assert 4 * side * side > ROOM > 4 * ELEMENTS
    _, seconds = prices(updated_state(side), OpClass.ELEMENTWISE)
    assert seconds[0] == pytest.approx(side * side * 3 * 4 / WRITE_SPEED + LAUNCH)


@pytest.mark.parametrize("machine", ["tpu-v6e", "tpu7x"])
def test_wide_elements_pass_before_they_are_written_to_hbm(machine: str) -> None:
    chip, side = get_hardware(machine), 4 * SIDE
    assert chip.compute.passes is not None
    assert chip.compute.passes.written is not None
    _, seconds = prices(updated_state(side), OpClass.ELEMENTWISE, machine=chip)
    speed = memory_efficiency(chip, "elementwise") * chip.memory.bytes_per_second
    expected = side**2 * (3 * 4 / speed + 1 / chip.compute.passes.written)
    assert seconds[0] == pytest.approx(expected + chip.compute.kernel_launch_seconds)


def test_a_reduction_passes_elements_beside_reading_them() -> None:
    _, seconds = prices(summed(), OpClass.REDUCE)
    passed = ELEMENTS / PASSES.plain_reduced + 4 * ELEMENTS / WRITE_SPEED
    assert seconds[0] == pytest.approx(passed + LAUNCH, rel=1e-2)


def test_it_takes_less_of_what_is_computed_with_it() -> None:
    program = Program()
    made = program.elementwise(program.argument(SIDE, SIDE), name="exponential")
    _, seconds = prices(program.graph(program.sum(made)), OpClass.REDUCE)
    passed = ELEMENTS / PASSES.narrowed + 4 * ELEMENTS / WRITE_SPEED
    assert seconds[0] == pytest.approx(passed + LAUNCH, rel=1e-2)


def test_another_reduction_of_the_same_kernel_takes_nothing() -> None:
    program = Program()
    state = program.argument(SIDE, SIDE)
    squares = program.elementwise(state, state, name="multiply")
    graph = program.graph(program.sum(state), program.sum(squares))
    first, second = (op for op in graph.ops if op.op_class is OpClass.REDUCE)
    assert find_buffers(graph, backend_for(V5E)).joined == {second.index: first.index}
    _, seconds = prices(graph, OpClass.REDUCE)
    passed = ELEMENTS / PASSES.narrowed + 4 * ELEMENTS / WRITE_SPEED
    assert seconds[0] == pytest.approx(passed + LAUNCH, rel=1e-2)


def thin_product(*, bits: int) -> Graph:
    program = Program()
    left, right = program.argument(4 * SIDE, 8), program.argument(8, 4 * SIDE)
    graph = program.graph(program.matmul(left, right))
    made = op_of(graph, OpClass.MATMUL).results[0]
    return narrowed(graph, made) if bits == 16 else graph


@pytest.mark.parametrize(("bits", "passed"), [(32, 0.0), (16, 1 / PASSES.narrowed)])
def test_narrow_results_of_a_matmul_pass_before_they_are_written(bits: int, passed: float) -> None:
    speed = memory_efficiency(V5E, "matmul") * V5E.memory.bytes_per_second
    _, seconds = prices(thin_product(bits=bits), OpClass.MATMUL)
    least = 16 * ELEMENTS * (passed + bits / 8 / speed)
    assert least < seconds[0] < 1.05 * least


def test_an_update_runs_beside_the_product_that_is_its_gradient() -> None:
    graph = updated_with_its_gradient()
    _, product = prices(graph, OpClass.MATMUL)
    _, update = prices(graph, OpClass.ELEMENTWISE)
    flops = 2 * SIDE**3 / V5E.compute.matmul.float32
    windows = window_seconds(V5E, flops)
    assert product[0] + update[0] == pytest.approx(
        max(flops, update[0] - LAUNCH) + LAUNCH + windows
    )


def window_seconds(machine: Hardware, arithmetic: float) -> float:
    assert machine.compute.clock_hertz is not None
    cycles = backend_for(machine).layout.mxu_window_cycles
    return float(cycles * (arithmetic / machine.compute.clock_hertz) ** 0.5)


TPU7X = get_hardware("tpu7x")
UNBOUND = replace(
    TPU7X,
    compute=replace(TPU7X.compute, passes=None),
    memory=replace(TPU7X.memory, streamed=None),
)


def on_unbound(graph: Graph, op_class: OpClass) -> float:
    return float(prices(graph, op_class, machine=UNBOUND)[1][0])


def one_product() -> Graph:
    program = Program()
    return program.graph(program.matmul(program.argument(SIDE, SIDE), program.argument(SIDE, SIDE)))


def test_where_the_vector_unit_is_no_bound_an_update_takes_the_whole_bandwidth() -> None:
    graph = updated_with_its_gradient()
    both = on_unbound(graph, OpClass.MATMUL) + on_unbound(graph, OpClass.ELEMENTWISE)
    flops = 2 * SIDE**3 / UNBOUND.compute.matmul.float32
    moved = 2 * 4 * ELEMENTS / UNBOUND.memory.bytes_per_second  # the state, read and written
    start = UNBOUND.compute.kernel_launch_seconds + window_seconds(UNBOUND, flops)
    assert both == pytest.approx(flops + moved + start, rel=0.02)


def test_there_other_ops_than_updates_take_their_time_with_a_product() -> None:
    program = Program()
    made = program.matmul(program.argument(SIDE, SIDE), program.argument(SIDE, SIDE))
    tanh = program.elementwise(made, name="tanh")
    graph = program.graph(program.matmul(tanh, program.argument(SIDE, SIDE)))
    both = on_unbound(graph, OpClass.MATMUL) + on_unbound(graph, OpClass.ELEMENTWISE)
    assert both > on_unbound(one_product(), OpClass.MATMUL) + LAUNCH / 2


MACHINES = pytest.mark.parametrize(
    "machine", [V5E, get_hardware("tpu-v5p")], ids=lambda machine: machine.name
)


def with_matmul(machine: Hardware, rows: int = 8, *, name: str = "", num_more: int = 0) -> float:
    """Seconds of a matmul that sums few rows, with an element-wise op of it and other tensors."""
    program = Program()
    others = [program.argument(SIDE, SIDE) for _ in range(num_more)]
    made = program.matmul(program.argument(SIDE, rows), program.argument(rows, SIDE))
    if name:
        made = program.elementwise(made, *others, name=name)
    graph = program.graph(made)
    classes = (OpClass.MATMUL, OpClass.ELEMENTWISE)[: 1 + bool(name)]
    return sum(float(prices(graph, one, machine=machine)[1][0]) for one in classes)


@MACHINES
def test_a_matmul_writes_what_is_computed_of_its_result_as_if_it_were_that(
    machine: Hardware,
) -> None:
    assert with_matmul(machine, name="maximum") == pytest.approx(with_matmul(machine), rel=0.03)


@MACHINES
def test_what_else_is_read_with_a_matmul_is_read_at_the_speed_of_memory(machine: Hardware) -> None:
    alone = with_matmul(machine, name="maximum")
    speed = memory_efficiency(machine, "matmul") * machine.memory.bytes_per_second
    more = with_matmul(machine, name="subtract", num_more=2) - alone
    assert more == pytest.approx(2 * 4 * ELEMENTS / speed, rel=0.01)


@MACHINES
def test_reads_run_beside_the_arithmetic_of_a_matmul(machine: Hardware) -> None:
    alone = with_matmul(machine, 2 * SIDE, name="maximum")
    assert with_matmul(machine, 2 * SIDE, name="subtract", num_more=1) == pytest.approx(alone)


@MACHINES
def test_a_gradient_that_its_update_alone_reads_is_not_written(machine: Hardware) -> None:
    update = float(prices(updated_state(), OpClass.ELEMENTWISE, machine=machine)[1][0])
    together = with_matmul(machine, name="subtract", num_more=1)
    assert together < 0.9 * (with_matmul(machine) + update)


def added_in_a_loop(side: int, rows: int) -> Graph:
    """A loop that adds the result of a matmul to its carry in each run."""
    program = Program()
    left, right = program.argument(side, rows), program.argument(rows, side)
    total = program.carry(program.zeros(side, side))
    program.open_loop(64)
    program.loop_back(total, program.elementwise(total, program.matmul(left, right), name="add"))
    program.close_loop()
    return program.graph(total)


@MACHINES
def test_what_a_loop_adds_up_is_written_in_every_run(machine: Hardware) -> None:
    small, large = (
        prices(added_in_a_loop(side, 8), OpClass.MATMUL, machine=machine)[1][0]
        for side in (SIDE, 4 * SIDE)
    )
    assert machine.compute.passes is not None
    speed = memory_efficiency(machine, "matmul") * machine.memory.bytes_per_second
    assert small >= ELEMENTS / machine.compute.passes.kept  # it stays in VMEM
    assert large >= 16 * ELEMENTS * 2 * 4 / speed  # that has no room there


def test_what_devices_sum_first_is_updated_by_itself() -> None:
    graph = updated_with_its_gradient()
    candidates, together = prices(graph, OpClass.MATMUL, "x=4")
    alone = [p for c, p in zip(candidates, together, strict=True) if c.reduced or c.scattered]
    beside = [p for c, p in zip(candidates, together, strict=True) if c.cut == 4 and not c.reduced]
    assert min(alone) > max(p for p in beside if p not in alone)


def test_what_devices_sum_is_read_again_by_reductions() -> None:
    candidates, seconds = prices(product(is_summed=True), OpClass.MATMUL, "x=4")
    same, without = prices(product(is_summed=False), OpClass.MATMUL, "x=4")
    assert candidates == same
    passed = ELEMENTS * (4 / WRITE_SPEED + 1 / PASSES.narrowed)
    expected = [passed if one.reduced else 0.0 for one in candidates if not one.scattered]
    more = [m for m, one in zip(seconds - without, candidates, strict=True) if not one.scattered]
    assert any(expected)
    assert more == pytest.approx(expected)


@pytest.mark.parametrize(
    ("held", "expected"), [(0, 0.0), (ROOM, 0.0), (2 * ROOM, 0.5), (4 * ROOM, 0.75)]
)
def test_states_that_fit_stay_on_the_chip_and_others_as_far_as_they_do(
    held: int, expected: float
) -> None:
    assert hbm_spill_fraction(held, ROOM) == expected


def test_a_plan_pays_for_the_states_that_have_no_room_on_the_chip() -> None:
    side = int((2 * ROOM / 4) ** 0.5) // 128 * 128
    program = Program()
    state, gradient = program.argument(side, side), program.argument(side, side)
    solution = plan(program.graph(program.elementwise(state, gradient)), "x=1", hardware="tpu-v5e")
    (update,) = [op for op in solution.account.ops if op.name == "add"]
    passed = side * side * 2 * 4 / WRITE_SPEED
    past = (4 * side * side - ROOM) / WRITE_SPEED
    assert update.compute_seconds == pytest.approx(passed + past + LAUNCH)


@pytest.mark.parametrize(
    ("move", "share"),
    [
        (lambda x: jnp.concatenate([x, x]), "elementwise"),
        (lambda x: jnp.pad(x, ((0, SIDE), (0, 0))), "elementwise"),
        (lambda x: jax.lax.pad(x, 0.0, ((0, 1, 1), (0, 0, 0))), "copy"),
    ],
    ids=["concatenate", "pad", "gaps"],
)
def test_parts_go_through_memory_as_element_wise_work_does_but_for_gaps(
    move: Callable[[jax.Array], jax.Array], share: str
) -> None:
    given = jax.ShapeDtypeStruct((SIDE, SIDE), jnp.float32)
    graph = exported(move, given, mesh="x=1")[0]
    _, seconds = prices(graph, OpClass.COPY)
    speed = memory_efficiency(V5E, share) * V5E.memory.bytes_per_second
    assert seconds[0] == pytest.approx(3 * 4 * ELEMENTS / speed + LAUNCH)  # twice as much is made


def test_a_v6e_reads_what_was_just_used_sooner_than_an_argument() -> None:
    v6e = get_hardware("tpu-v6e")
    passes = v6e.compute.passes
    assert passes is not None
    slow = replace(passes, read_bytes=memory_efficiency(v6e, "elementwise") * 1638e9)
    as_slow = replace(v6e, compute=replace(v6e.compute, passes=slow))

    def scaled(x: jax.Array) -> jax.Array:
        made = x @ x
        return (made * (made @ x).max()).sum(0)  # in no matmul's kernel: it waits for the other

    given = jax.ShapeDtypeStruct((SIDE, SIDE), jnp.float32)
    graph = exported(scaled, given, mesh="x=1")[0]
    last = [op for op in graph.ops if op.op_class is OpClass.REDUCE][-1]
    found = []
    for machine in (v6e, as_slow):
        costing = Costing(cost_model_for(machine, parts_of("x=1")), parts_of("x=1"))
        buffers = find_buffers(graph, backend_for(machine))
        encoder = Encoder(graph, buffers, costing, free_wishes(graph), None)
        found.append(float(encoder.node_costs.seconds(last, offered(encoder, last))[0]))
    sooner = ELEMENTS * 4 * (1 / slow.read_bytes - 1 / passes.read_bytes)
    assert found[1] - found[0] == pytest.approx(sooner, rel=0.01)
