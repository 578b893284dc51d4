"""The product one device computes, and what its tiles waste."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.backends import get_backend
from autoshard.candidates.candidate import Candidate, CandidateMaker, Streamed
from autoshard.costing.costing import Costing, cost_model_for
from autoshard.costing.local_products import local_products, product_factors
from autoshard.costing.program_facts import ProgramFacts
from autoshard.encoding.node_costs import NodeCosts
from autoshard.graph.buffers import find_buffers
from autoshard.graph.program import OpClass
from autoshard.graph.rule import Rule
from autoshard.layouts import Layout
from cost_models import get_hardware
from tests.planner.graphs import Program, matmul_rule, parts_of, plan
from tests.planner.traced import exported

# batch, rows, columns, summed: "bik,bkj->bij"
BATCHED = Rule(
    (8, 64, 32, 16), (((0,), (1,), (3,)), ((0,), (3,), (2,))), (((0,), (1,), (2,)),), frozenset({3})
)
# NHWC image, HWIO kernel; the kernel's height and width are in no other tensor.
CONVOLUTION = Rule(
    (8, 16, 16, 32, 64, 3, 3),
    (((0,), (1,), (2,), (3,)), ((5,), (6,), (3,), (4,))),
    (((0,), (1,), (2,), (4,)),),
    frozenset({3}),
)


def sizes(mesh: str, rule: Rule, *operands: Layout, taps: int = 1) -> list[float]:
    """Rows, columns and summed length under one cut."""
    candidate = Candidate(operands, (), 1)
    found = local_products(parts_of(mesh), rule, [candidate], taps)
    return [float(size[0]) for size in found]


def test_rows_columns_and_summed_length_are_cut_each_by_its_own_axes() -> None:
    rule = matmul_rule(64, 16, 32)
    assert sizes("x=4,y=2", rule, ((), ()), ((), ())) == [64, 32, 16]
    assert sizes("x=4,y=2", rule, ((0,), ()), ((), (1,))) == [16, 16, 16]
    assert sizes("x=4,y=2", rule, ((), (0, 1)), ((0, 1), ())) == [64, 32, 2]


@pytest.mark.parametrize("size", [(0, 16, 32), (64, 0, 32), (64, 16, 0)])
@pytest.mark.parametrize("machine", ["tpu-v5e", "tpu-v5p", "h100", "cpu-host"])
@pytest.mark.filterwarnings("error")
def test_products_of_nothing_compute_nothing(machine: str, size: tuple[int, int, int]) -> None:
    rows, summed, columns = size
    program = Program()
    program.matmul(program.argument(rows, summed), program.argument(summed, columns))
    graph = program.graph(len(program.values) - 1)
    parts = parts_of("x=4")
    costing = Costing(cost_model_for(get_hardware(machine), parts), parts)
    op = next(op for op in graph.ops if op.name == "dot_general")
    assert op.rule is not None
    whole = Candidate((((), ()), ((), ())), (((), ()),), 1)
    assert costing.padded_flops(graph, op, (whole,)) == [0.0]
    assert plan(graph, "x=4", None, None, machine).is_feasible


def test_a_batch_makes_no_tile_larger() -> None:
    assert sizes("x=4", BATCHED, ((), (), ()), ((), (), ())) == [64, 32, 16]
    assert sizes("x=4", BATCHED, ((0,), (), ()), ((0,), (), ())) == [64, 32, 16]
    assert sizes("x=4", BATCHED, ((), (0,), ()), ((), (), ())) == [16, 32, 16]


def test_rows_of_several_dimensions_are_one_dimension_of_the_product() -> None:
    rule = Rule((4, 8, 32, 16), (((0,), (1,), (3,)), ((3,), (2,))), (((0,), (1,), (2,)),))
    assert sizes("x=2", rule, ((0,), (), ()), ((), ())) == [16, 32, 16]


def test_a_convolution_is_a_product_of_images_and_features() -> None:
    assert product_factors(CONVOLUTION).groups == (5, 6)
    whole: Layout = ((), (), (), ())
    assert sizes("x=4", CONVOLUTION, whole, whole, taps=9) == [8 * 16 * 16, 64, 32]
    cut = (((), (), (), (0,)), ((), (), (0,), ()))
    assert sizes("x=4", CONVOLUTION, *cut, taps=9) == [2048, 64, 8]
    assert sizes("x=8", CONVOLUTION, *cut, taps=9) == [2048, 64, 4 * 9]  # few features


def test_pixels_between_strides_meet_taps() -> None:
    """Rules that Shardy gives a convolution of stride 2, and the gradient of its kernel."""
    forward = Rule(
        (8, 14, 2, 14, 2, 3, 64),
        (((0,), (1, 2), (3, 4), (5,)), ((2,), (4,), (5,), (6,))),
        (((0,), (1,), (3,), (6,)),),
        frozenset({5}),
        frozenset({2, 4}),
        frozenset({1, 3}),
    )
    assert product_factors(forward).summed == (5,)
    gradient = Rule(
        (3, 14, 2, 14, 2, 8, 64),
        (((5,), (1, 2), (3, 4), (0,)), ((5,), (1,), (3,), (6,))),
        (((2,), (4,), (0,), (6,)),),
        frozenset({1, 3, 5}),
        frozenset(),
        frozenset({2, 4}),
    )
    assert product_factors(gradient).rows == (0,)
    assert product_factors(forward).groups == product_factors(gradient).groups == (2, 4)


def depthwise(size: int, features: int, stride: int = 1) -> Callable[..., Any]:
    def convolved(image: Any, kernel: Any) -> Any:
        return jax.lax.conv_general_dilated(
            image,
            kernel,
            (stride, stride),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=features,
        )

    def gradient(kernel: Any, cotangent: Any) -> Any:
        image = jnp.zeros((8, size, size, features), jnp.float32)
        return jax.vjp(lambda image: convolved(image, kernel), image)[1](cotangent)[0]

    return gradient if stride > 1 else convolved


def vector_seconds(run: Callable[..., Any], *shapes: tuple[int, ...]) -> float:
    """Of the one convolution of a program, its operands whole, on a v5e."""
    graph, _ = exported(run, *(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes), mesh="x=2")
    (op,) = (op for op in graph.ops if op.op_class is OpClass.CONVOLUTION)
    assert op.rule is not None
    parts = parts_of("x=2")
    whole = next(c for c in CandidateMaker(parts).of_rule(op.rule) if c.cut == 1)
    costing = Costing(cost_model_for(get_hardware("tpu-v5e"), parts), parts)
    return float(costing.vector_seconds(graph, op, (whole,))[0])


def test_depthwise_features_fill_lanes() -> None:
    few, many = (
        vector_seconds(depthwise(28, features), (8, 28, 28, features), (3, 3, 1, features))
        for features in (48, 128)
    )
    assert few == many > 0.0


def test_zeros_between_pixels_are_left_out_along_one_dimension() -> None:
    kernel = (3, 3, 1, 128)
    once = vector_seconds(depthwise(28, 128), (8, 28, 28, 128), kernel)
    strided = vector_seconds(depthwise(28, 128, stride=2), kernel, (8, 14, 14, 128))
    assert strided == pytest.approx(once / 2)


def test_what_an_axis_does_not_divide_is_padded_up() -> None:
    assert sizes("x=4", matmul_rule(10, 16, 32), ((0,), ()), ((), ())) == [3, 32, 16]


def test_a_minor_factor_of_a_dimension_has_what_its_major_one_leaves_of_the_cut() -> None:
    rule = Rule((4, 8, 32, 16), (((0, 1), (3,)), ((3,), (2,))), (((0,), (1,), (2,)),))
    assert sizes("x=4,y=2", rule, ((0, 1), ()), ((), ())) == [1 * 4, 32, 16]


def test_of_a_product_in_steps_it_is_one_step() -> None:
    needs: tuple[Layout, ...] = (((), ()), ((), ()))
    candidate = Candidate((((), (0,)), ((0,), ())), (), 1, streamed=Streamed(needs, 2, 4, 4))
    found = local_products(parts_of("x=4"), matmul_rule(64, 16, 32), [candidate])
    assert [float(size[0]) for size in found] == [64, 32, 4]


@given(cut=st.sampled_from(CandidateMaker(parts_of("x=2,y=4")).of_rule(BATCHED)))
def test_all_devices_together_compute_the_whole_product_as_often_as_it_is_not_cut(
    cut: Candidate,
) -> None:
    parts = parts_of("x=2,y=4")
    batch = parts.num_shards(cut.operands[0][0])
    local = prod(float(size[0]) for size in local_products(parts, BATCHED, [cut]))
    assert local * (8 / batch) * cut.cut == prod(BATCHED.factor_sizes)


def batched_seconds(rows: int, tile: tuple[int, int, int]) -> list[float]:
    """Of a batch of products cut by its batch, and by its rows, where memory is no limit."""
    rule = Rule((64, rows, 64, 128), BATCHED.operands, BATCHED.results, BATCHED.reduction)
    program = Program()
    left, right = program.argument(64, rows, 128), program.argument(64, 128, 64)
    (made,) = program.compute("dot_general", (left, right), [(64, rows, 64)], rule)
    graph = program.graph(made)
    machine = get_hardware("tpu-v5e")
    machine = replace(
        machine,
        compute=replace(
            machine.compute,
            matmul_tile=tile,
            kernel_launch_seconds=0.0,
            clock_hertz=None,
            passes=None,
        ),
        memory=replace(machine.memory, bytes_per_second=1e15),
    )
    parts = parts_of("x=8")
    cuts = tuple(CandidateMaker(parts).of_rule(rule)[1:3])
    op = graph.ops[graph.values[made].op]
    costing = Costing(cost_model_for(machine, parts), parts)
    facts = ProgramFacts(graph, find_buffers(graph, get_backend("cpu")), costing)
    return [float(s) for s in NodeCosts(facts, {}).seconds(op, cuts)]


def test_cutting_the_batch_keeps_tiles_full_where_cutting_rows_leaves_them_half_empty() -> None:
    batch, rows = batched_seconds(256, tile=(64, 64, 128))
    assert rows == pytest.approx(2 * batch)
    batch, rows = batched_seconds(256, tile=(1, 1, 1))
    assert rows == pytest.approx(batch)


@pytest.mark.parametrize(
    ("machine", "images", "rows"), [("tpu-v5e", 8, 36), ("tpu-v5e", 64, 64), ("h100", 8, 8)]
)
def test_pixels_of_dilated_images_are_multiplied_one_by_one_on_tpus(
    machine: str, images: int, rows: int
) -> None:
    def convolved(image: Any, kernel: Any) -> Any:
        return jax.lax.conv_general_dilated(
            image, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def gradient(kernel: Any, cotangent: Any) -> Any:
        image = jnp.zeros((images, 32, 32, 128), jnp.float32)
        return jax.vjp(lambda image: convolved(image, kernel), image)[1](cotangent)[0]

    shapes = (3, 3, 128, 128), (images, 16, 16, 128)
    given = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    graph, _ = exported(gradient, *given, mesh="x=2")
    (op,) = (op for op in graph.ops if op.op_class is OpClass.CONVOLUTION)
    assert op.rule is not None
    parts = parts_of("x=2")
    whole = next(c for c in CandidateMaker(parts).of_rule(op.rule) if c.cut == 1)
    costing = Costing(cost_model_for(get_hardware(machine), parts), parts)
    expected = rows / images * op.flops
    assert costing.padded_flops(graph, op, (whole,)) == pytest.approx([expected])
