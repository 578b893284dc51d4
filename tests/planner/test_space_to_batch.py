"""Few images on a TPU are cut into more for a convolution; what copying them costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.candidates.candidate import Candidate, CandidateMaker
from autoshard.costing.space_to_batch import COPIES, copied_elements
from autoshard.graph.program import Graph, Op, OpClass
from autoshard.graph.rule import Rule
from autoshard.layouts import Layout
from tests.planner.graphs import Program, encoder_for, parts_of
from tests.planner.traced import exported

LEAST, LANES = 8, 128
MESH = "x=2,y=4"


def convolution(batch: int, width: int, channels: int, made: int) -> tuple[Graph, Op]:
    """Of images with 4 rows, with windows of one row and three columns."""
    program = Program()
    image, kernel = program.argument(batch, 4, width, channels), program.argument(3, channels, made)
    rule = Rule(
        (batch, 4, width, channels, made, 3),
        (((0,), (1,), (2,), (3,)), ((5,), (3,), (4,))),
        (((0,), (1,), (2,), (4,)),),
        frozenset({3}),
    )
    shape = (batch, 4, width, made)
    result = program.compute("convolution", (image, kernel), [shape], rule, OpClass.CONVOLUTION)
    op = program.ops[-1]
    return program.graph(*result), op


def by_batch(op: Op) -> dict[int, Candidate]:
    """Ways to cut the batch alone, by pieces."""
    assert op.rule is not None
    parts = parts_of(MESH)
    found = CandidateMaker(parts).of_rule(op.rule)
    whole: Layout = ((), (), ())
    return {
        parts.num_shards(one.operands[0][0]): one
        for one in found
        if one.operands[0][1:] == whole and one.cut == parts.num_shards(one.operands[0][0])
    }


def copied(batch: int, width: int, channels: int, made: int, pieces: int) -> float:
    graph, op = convolution(batch, width, channels, made)
    found = copied_elements(graph, parts_of(MESH), op, [by_batch(op)[pieces]], LEAST, LANES)
    return float(found[0])


def test_eight_images_on_a_device_stay_as_they_are() -> None:
    assert copied(16, 32, 128, 128, 2) == 0.0


@pytest.mark.parametrize(("pieces", "left"), [(4, 4), (8, 2)])
def test_of_fewer_each_row_falls_into_eight_with_an_edge_each(pieces: int, left: int) -> None:
    one = left * 4 * (8 * (32 // 8 + 1)) * 128
    assert copied(16, 32, 128, 128, pieces) == COPIES * 2 * one


def test_channels_fill_whole_lanes() -> None:
    assert copied(16, 32, 3, 130, 4) == COPIES * 4 * 4 * 40 * (128 + 256)


def test_short_rows_are_not_cut() -> None:
    assert copied(16, 15, 128, 128, 8) == 0.0
    assert copied(16, 16, 128, 128, 8) > 0.0


def of_jax(program: Callable[..., Any], *shapes: tuple[int, ...]) -> float:
    """Elements that the convolution of a program copies, its operands whole."""
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    graph, _ = exported(program, *args, mesh=MESH)
    (op,) = (op for op in graph.ops if op.op_class is OpClass.CONVOLUTION)
    assert op.rule is not None
    whole = next(c for c in CandidateMaker(parts_of(MESH)).of_rule(op.rule) if c.cut == 1)
    return float(copied_elements(graph, parts_of(MESH), op, [whole], LEAST, LANES)[0])


def convolved(image: Any, kernel: Any) -> Any:
    return jax.lax.conv_general_dilated(
        image, kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )


def test_kernels_of_one_tap_reach_no_edge() -> None:
    assert of_jax(convolved, (4, 4096, 256), (2, 256, 256)) > 0.0
    assert of_jax(convolved, (4, 4096, 256), (1, 256, 256)) == 0.0


def seconds(hardware: str) -> dict[int, float]:
    """Of a convolution by pieces of its batch of 16."""
    graph, op = convolution(16, 32, 128, 128)
    cuts = by_batch(op)
    encoder = encoder_for(graph, MESH, hardware=hardware)
    found = encoder.node_costs.seconds(op, tuple(cuts.values()))
    return dict(zip(cuts, map(float, found), strict=True))


def test_cutting_a_batch_below_eight_makes_a_tpu_slower() -> None:
    found = seconds("tpu-v5e")
    assert found[2] < found[1]
    assert found[4] > found[2]


def test_and_a_gpu_faster() -> None:
    found = seconds("h100")
    assert np.all(np.diff([found[pieces] for pieces in sorted(found)]) < 0)


def test_other_ops_and_machines_copy_nothing() -> None:
    graph, op = convolution(16, 32, 128, 128)
    cuts = tuple(by_batch(op).values())
    assert not copied_elements(graph, parts_of(MESH), op, cuts, 1, LANES).any()
    product = Program()
    made = product.matmul(product.argument(8, 8), product.argument(8, 8))
    graph, op = product.graph(made), product.ops[2]
    assert not copied_elements(graph, parts_of(MESH), op, cuts, LEAST, LANES).any()
