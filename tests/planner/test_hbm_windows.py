"""Matmuls neither of whose operands is on the chip."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.candidates.candidate import CandidateMaker
from autoshard.costing.kernel_time import KernelTime
from autoshard.graph.program import Graph, Op
from autoshard.lowering.local_program import Kernel
from autoshard.planning.solution import Solution
from autoshard.planning.tightened import AGREEMENT
from autoshard.wishes.wishes import Wishes
from cost_models import get_hardware
from tests.planner.graphs import Program, encoder_for, narrowed, parts_of, plan

V5E = get_hardware("tpu-v5e")
DEEP = (16384, 8192, 8192)  # rows, summed, columns: nothing of it fits the chip
COMPILED = {1: 1.139, 2: 1.772}
"""Cycles over those of the arithmetic, by the tensors that each operand is computed from.

Source: such matmuls of bfloat16 by libtpu 0.0.52 for a v5e.
"""


def matmul(rows: int, summed: int, columns: int, *, tensors: int = 1) -> Graph:
    """Of operands that are arguments, or products of two of them, in bfloat16."""
    program = Program()
    left = [program.argument(rows, summed) for _ in range(tensors)]
    right = [program.argument(summed, columns) for _ in range(tensors)]
    sides = [program.elementwise(*side) if tensors > 1 else side[0] for side in (left, right)]
    made = program.matmul(*sides)
    return narrowed(program.graph(made), *range(len(program.values)))


def over_arithmetic(graph: Graph) -> float:
    """Seconds of a matmul on one device, over those of its arithmetic."""
    encoder = encoder_for(graph, "x=8", hardware="tpu-v5e")
    op = one_matmul(graph)
    assert op.rule is not None
    (whole,) = (one for one in CandidateMaker(parts_of("x=8")).of_rule(op.rule) if one.cut == 1)
    seconds = float(encoder.node_costs.seconds(op, (whole,))[0])
    return seconds / (op.flops / V5E.compute.matmul.bfloat16)


def one_matmul(graph: Graph) -> Op:
    (found,) = (op for op in graph.ops if op.name == "dot_general")
    return found


@pytest.mark.parametrize("tensors", [1, 2])
def test_operands_that_fit_nowhere_are_read_window_by_window(tensors: int) -> None:
    graph = matmul(*DEEP, tensors=tensors)
    assert over_arithmetic(graph) == pytest.approx(COMPILED[tensors], rel=0.06)


def test_one_operand_on_the_chip_is_enough() -> None:
    rows, summed, _ = DEEP
    assert over_arithmetic(matmul(rows, summed, 2048)) < 1.04
    assert over_arithmetic(matmul(2048, summed, rows)) < 1.04
    both_computed = matmul(rows, summed, 2048, tensors=2)
    assert over_arithmetic(both_computed) > 1.4


def with_two_matmuls(side: int) -> Solution:
    """Two matmuls of weights of their own, on one device."""
    program = Program()
    rows = program.argument(side, side)
    made = [program.matmul(rows, program.argument(side, side)) for _ in range(2)]
    graph = program.graph(program.sum(program.elementwise(*made)))
    graph = narrowed(graph, *range(len(program.values)))
    parts = parts_of("x=1")
    whole, end = parts.to_sharding(((), ())), parts.to_sharding(((),))
    values = {value.index: whole for value in graph.values if len(value.shape) == 2}
    wishes = Wishes(arguments=[whole] * 3, results=[end], values=values)
    return plan(graph, "x=1", wishes, None, "tpu-v5e")


def matmuls(solution: Solution) -> list[Kernel]:
    return [one for one in solution.local_program.kernels if one.name == "dot_general"]


def test_a_plan_knows_which_operands_wait_on_the_chip() -> None:
    fits = with_two_matmuls(2048)
    crowded = with_two_matmuls(7168)  # 98 MiB each: one weight is there before, no two others fit
    first, second = matmuls(crowded)
    assert not matmuls(fits)[-1].unpriced_seconds
    assert first.unpriced_seconds > 0.1 * first.seconds
    assert not second.unpriced_seconds
    assert crowded.model_gap < AGREEMENT


@pytest.mark.parametrize("one_waits", [True, False])
def test_larger_operands_wait_no_more_and_smaller_ones_no_less(one_waits: bool) -> None:
    graph = matmul(*DEEP) if one_waits else matmul(7168, 7168, 7168)
    encoder, op = encoder_for(graph, "x=4", hardware="tpu-v5e"), one_matmul(graph)
    assert op.rule is not None
    candidates = tuple(CandidateMaker(parts_of("x=4")).of_rule(op.rule))
    num_bytes = KernelTime(encoder.node_costs.facts).waiting_bytes(op, candidates)
    order = np.argsort(num_bytes)
    chosen = int(order[-1] if one_waits else order[len(candidates) // 2])
    found = dict(encoder.node_costs.more_where_alike(op, candidates, chosen, one_waits))
    assert found
    for choice, more in found.items():
        assert (more < 0.0) == one_waits
        assert (num_bytes[choice] <= num_bytes[chosen]) or not one_waits
        assert (num_bytes[choice] >= num_bytes[chosen]) or one_waits
