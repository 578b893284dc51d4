"""What training steps hold beside their state: gathered weights, gradients, narrower copies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoshard.backends import get_backend
from autoshard.costing.convert_motion import LoopCopy, copies_for_loops
from autoshard.encoding.shared_reads import updating_reads
from autoshard.graph.program import Graph, OpKind
from autoshard.graph.rule import identity_rule
from autoshard.planning.solution import Solution
from autoshard.sharding import parse_sharding
from autoshard.wishes.wishes import Wishes
from tests.planner.graphs import Program, encoder_for, free_wishes, plan

WHOLE, ROWS, COLUMNS = (parse_sharding(t) for t in ("[{}, {}]", '[{"x"}, {}]', '[{}, {"x"}]'))
SIDE, BATCH = 256, 8192
TENSOR = SIDE * SIDE * 4
WITH_GAPS = TENSOR


def train(*, layers: int = 1) -> tuple[Graph, list[int]]:
    """Weights multiplied one after the other, and then each replaced by a new one."""
    program = Program()
    x = program.argument(SIDE, SIDE)
    weights = [program.argument(SIDE, SIDE) for _ in range(layers)]
    for weight in weights:
        x = program.matmul(program.elementwise(program.matmul(x, weight), name="tanh"), weight)
    new = [program.elementwise(program.elementwise(w, name="sine"), w) for w in weights]
    donated = tuple(range(1, layers + 1))
    return program.graph(*new, x, donated=donated), weights


def test_the_reads_of_an_update_are_those_on_the_way_to_the_new_state() -> None:
    graph, (weight,) = train()
    reads = updating_reads(graph, [(1, 0)])
    assert {(graph.ops[op].name, value) for op, value in reads} == {
        ("sine", weight),
        ("add", weight),
    }
    assert updating_reads(graph, []) == frozenset()


def test_a_gathered_weight_is_not_held_until_its_update() -> None:
    graph, weights = train(layers=2)
    alike = [(1, 0), (2, 1)]
    encoded = encoder_for(graph, "x=4", free_wishes(graph, alike)).encode()
    shared = {read.value: read for read in encoded.reads}
    for weight in weights:
        readers = {graph.ops[op].name for op, _ in shared[weight].reads}
        assert readers == {"dot_general"}
        assert shared[weight].stop <= min(op.index for op in graph.ops if op.name == "sine")


def gradient_step(*, summed: bool) -> Solution:
    """A gradient over a batch that is cut, or is not, and two states that it is added to."""
    program = Program()
    x, dy = program.argument(SIDE, BATCH), program.argument(BATCH, SIDE)
    states = [program.argument(SIDE, SIDE), program.argument(SIDE, SIDE)]
    gradient = program.matmul(x, dy)
    new = [program.elementwise(gradient, state) for state in states]
    graph = program.graph(*new, donated=(2, 3))
    batch = [COLUMNS, ROWS] if summed else [WHOLE, WHOLE]
    wishes = Wishes(
        arguments=[*batch, WHOLE, WHOLE],
        results=[WHOLE, WHOLE],
        alike=[(2, 0), (3, 1)],
        values={gradient: WHOLE},
    )
    return plan(graph, "x=4", wishes, None, "tpu-v5p")


@pytest.mark.parametrize("summed", [True, False])
def test_a_gradient_takes_memory_beside_its_state_only_where_it_is_summed(*, summed: bool) -> None:
    solution = gradient_step(summed=summed)
    held = [tensor for tensor in solution.account.memory.held if tensor.kind == "value"]
    assert [t.local_bytes for t in held] == [WITH_GAPS] * summed


def scanned(*, barrier: bool = False, sliced: bool = False) -> tuple[Graph, int]:
    """Two loops that multiply with a weight they read unchanged; the second behind a barrier."""
    program = Program()
    x, weight = program.argument(SIDE, SIDE), program.argument(SIDE, SIDE)
    for is_second in (False, True):
        held, carried = program.carry(weight), program.carry(x)
        program.open_loop(4.0)
        if barrier and is_second:
            rule = identity_rule((SIDE, SIDE))
            (held,) = program.add(
                OpKind.JOIN, "optimization_barrier", (held,), [(SIDE, SIDE)], rule=rule
            )
        if sliced:
            held = program.elementwise(held, name="dynamic_slice")
        program.loop_back(carried, program.matmul(carried, held))
        program.close_loop()
        x = carried
    return program.graph(x), weight


@pytest.mark.parametrize("barrier", [True, False])
def test_a_tpu_narrows_what_loops_multiply_with_before_the_first_one(*, barrier: bool) -> None:
    graph, weight = scanned(barrier=barrier)
    loops = [op.index for op in graph.ops if op.name == "while" and op.operands[0] == weight]
    (copy,) = copies_for_loops(graph, get_backend("tpu"))
    assert copy == LoopCopy(weight, 16, loops[0], graph.regions[-1].stop, tuple(loops))
    assert list(copies_for_loops(graph, get_backend("gpu"))) == []


def test_the_narrow_copy_of_a_weight_takes_memory_that_is_no_argument() -> None:
    graph, weight = scanned(sliced=True)
    name = graph.values[weight].name
    solution = plan(graph, "x=4", Wishes(arguments=[ROWS, WHOLE], results=[ROWS]), None, "tpu-v5p")
    memory = solution.account.memory
    assert memory.argument_bytes == TENSOR + TENSOR // 4
    (copy,) = (t for t in memory.held if t.name == f"narrower copy of {name}")
    assert copy.kind == "copy"
    assert copy.local_bytes == WITH_GAPS // 2


def test_bfloat16_weights_are_read_as_they_are() -> None:
    graph, weight = scanned()
    values = [replace(v, dtype="bf16", bits=16) if v.index == weight else v for v in graph.values]
    narrow = replace(graph, values=tuple(values))
    assert weight not in {copy.value for copy in copies_for_loops(narrow, get_backend("tpu"))}
