"""Copies that a library of convolutions takes: kernels in its order, images padded evenly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.graph.library_copies import is_read_reversed, library_copies
from autoshard.graph.program import Graph, OpClass
from tests.planner.traced import exported

IMAGE, KERNEL = (8, 16, 16, 32), (3, 3, 32, 64)


def graph_of(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> Graph:
    graph, _ = exported(fn, *(jax.ShapeDtypeStruct(one, jnp.float32) for one in shapes), mesh="x=2")
    return graph


def convolved(stride: int, padding: Any = "SAME", spec: str = "HWIO") -> Callable[..., Any]:
    def run(image: Any, kernel: Any) -> Any:
        numbers = ("NHWC", spec, "NHWC")
        return jax.lax.conv_general_dilated(
            image, kernel, (stride, stride), padding, dimension_numbers=numbers
        )

    return run


def backward(stride: int) -> Graph:
    """Both gradients of a convolution whose image is computed."""

    def loss(image: Any, kernel: Any) -> Any:
        return jnp.sum(convolved(stride)(jnp.tanh(image), kernel) ** 2)

    return graph_of(jax.grad(loss, argnums=(0, 1)), IMAGE, KERNEL)


def convolutions(graph: Graph) -> list[int]:
    return [op.index for op in graph.ops if op.op_class is OpClass.CONVOLUTION]


def test_the_copy_of_a_kernel_is_there_from_its_first_convolution_to_its_last() -> None:
    graph = backward(1)
    forward, *others = convolutions(graph)
    (copy,) = library_copies(graph)
    assert (copy.op, copy.place, copy.growth) == (forward, 1, 1.0)
    assert copy.last in others
    assert any(is_read_reversed(graph, op) for op in graph.ops)


def test_an_image_padded_on_one_side_is_copied_with_its_padding() -> None:
    graph = backward(2)  # `SAME` with a stride of two pads one element behind
    (image,) = (one for one in library_copies(graph) if one.place == 0)
    assert image.growth == pytest.approx((17 / 16) ** 2)
    assert image.last > image.op


def test_one_padded_evenly_or_not_at_all_is_not() -> None:
    even = graph_of(convolved(2, [(1, 1), (1, 1)]), IMAGE, KERNEL)
    none = graph_of(convolved(1, "VALID"), IMAGE, KERNEL)
    assert [one.place for graph in (even, none) for one in library_copies(graph)] == [1, 1]


def test_a_kernel_in_the_order_of_the_library_is_not_copied() -> None:
    graph = graph_of(convolved(1, spec="OHWI"), IMAGE, (64, 3, 3, 32))
    assert list(library_copies(graph)) == []


def test_an_image_without_elements_is_not_padded() -> None:
    """The gradient of a small image ended in `ZeroDivisionError`."""

    def loss(image: Any, kernel: Any) -> Any:
        return jnp.sum(convolved(1, "VALID")(image, kernel))

    graph = graph_of(jax.grad(loss), (7, 2, 24, 4), (3, 3, 4, 8))
    assert all(copy.growth == 1.0 for copy in library_copies(graph))
