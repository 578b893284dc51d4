"""Which operands and results of a convolution are images, and where their channels lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.graph.images import image_channels, images_of
from autoshard.graph.program import Op, OpClass
from tests.planner.traced import exported

SHAPES = {"NHWC": (4, 16, 32, 3), "NCHW": (4, 3, 16, 32)}
KERNEL = (3, 3, 3, 8)


def convolutions(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> list[Op]:
    arguments = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    graph, _ = exported(fn, *arguments, mesh="x=2")
    return [op for op in graph.ops if op.op_class is OpClass.CONVOLUTION]


def convolved(order: str, stride: int = 1) -> Callable[..., Any]:
    def fn(x: Any, kernel: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=(order, "HWIO", order)
        )

    return fn


@pytest.mark.parametrize("order", ["NHWC", "NCHW"])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_reads_an_image_and_makes_one(order: str, stride: int) -> None:
    (op,) = convolutions(convolved(order, stride), SHAPES[order], KERNEL)
    found = [(image.is_result, image.place, image.channels) for image in images_of(op)]
    channels = order.index("C")
    assert found == [(False, 0, channels), (True, 0, channels)]


@pytest.mark.parametrize("order", ["NHWC", "NCHW"])
def test_the_gradient_of_a_kernel_reads_two(order: str) -> None:
    loss = jax.grad(lambda kernel, x: convolved(order)(x, kernel).sum() ** 2)
    found = [images_of(op) for op in convolutions(loss, KERNEL, SHAPES[order])]
    channels = order.index("C")
    assert [(i.is_result, i.channels) for i in found[-1]] == [(False, channels), (False, channels)]


def test_a_matrix_product_has_none() -> None:
    square = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    graph, _ = exported(lambda x: x @ x, square, mesh="x=2")
    assert [images_of(op) for op in graph.ops] == [()] * len(graph.ops)


def test_what_is_computed_from_images_lies_as_they_do() -> None:
    def fn(x: Any, kernel: Any, scale: Any) -> Any:
        made = jnp.tanh(convolved("NHWC")(x, kernel)) * scale
        return made.sum((1, 2)) @ scale

    shapes = (SHAPES["NHWC"], KERNEL, (8,))
    arguments = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    graph, _ = exported(fn, *arguments, mesh="x=2")
    channels = image_channels(graph)
    names = {graph.maker(value).name for value in channels}
    assert {"convolution", "tanh", "multiply"} <= names
    assert "argument" not in names
    assert set(channels.values()) == {3}
    assert all(len(graph.values[value].shape) == 4 for value in channels)
