"""Convolutions, pools and shifts cut along space: numbers, bytes of halos, when they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.graph.window import Window

pytestmark = pytest.mark.usefixtures("compiled_here")


def array(*shape: int) -> Any:
    rng = np.random.default_rng(len(shape))
    return jnp.asarray(rng.integers(-4, 5, shape), jnp.float32)


def conv(stride: int = 1, padding: Any = "SAME", **options: Any) -> Callable[..., Any]:
    return lambda x, k: lax.conv_general_dilated(
        x, k, (stride,) * 2, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"), **options
    )


def shifted(rows: int) -> Callable[..., Any]:
    zero = jnp.float32(0)
    return lambda x: lax.pad(x, zero, [(0, 0, 0), (rows, -rows, 0), (0, 0, 0), (0, 0, 0)])


def image_gradient(stride: int) -> Callable[..., Any]:
    fn = conv(stride)

    def gradient(made: jax.Array, k: jax.Array) -> Any:
        image = jnp.zeros((1, made.shape[1] * stride, made.shape[2] * stride, k.shape[2]))
        return jax.vjp(lambda x: fn(x, k), image)[1](made)[0]

    return gradient


def kernel_gradient(stride: int, kernel: int) -> Callable[..., Any]:
    fn = conv(stride)

    def gradient(x: jax.Array, made: jax.Array) -> Any:
        whole = jnp.zeros((kernel, kernel, x.shape[3], made.shape[3]))
        return jax.vjp(lambda k: fn(x, k), whole)[1](made)[0]

    return gradient


def pool(window: int, stride: int, padding: str = "SAME") -> Callable[..., Any]:
    return lambda x: lax.reduce_window(
        x, -jnp.inf, lax.max, (1, window, window, 1), (1, stride, stride, 1), padding
    )


def pool_gradient(x: jax.Array, made: jax.Array) -> Any:
    return jax.vjp(pool(2, 2), x)[1](made)[0]


IMAGE, KERNEL, MADE = array(1, 256, 192, 4), array(3, 3, 4, 8), array(1, 256, 192, 8)
ROWS, BOTH, WHOLE = P(None, ("data", "model")), P(None, "data", "model"), P()
ROW, PIECE = 192 * 4, 48 * 4  # elements of a row of the image, and of one of a quarter of it

# The function, its arguments, their shardings, the result's, and elements that one device sends.
CASES: dict[str, tuple[Any, ...]] = {
    "rows": (conv(), (IMAGE, KERNEL), (ROWS, WHOLE), ROWS, 2 * ROW),
    "rows and columns": (conv(), (IMAGE, KERNEL), (BOTH, WHOLE), BOTH, 2 * PIECE + 2 * 130 * 4),
    "stride 2": (conv(2), (IMAGE, KERNEL), (ROWS, WHOLE), ROWS, ROW),
    "stride 2 of one row": (conv(2), (IMAGE, KERNEL[:1]), (BOTH, WHOLE), BOTH, 127 * 4),
    "a dilated kernel": (
        conv(rhs_dilation=(2, 2)),
        (IMAGE, KERNEL),
        (ROWS, WHOLE),
        ROWS,
        4 * ROW,
    ),
    "uneven padding": (
        conv(padding=[(0, 2), (1, 1)]),
        (IMAGE, KERNEL),
        (ROWS, WHOLE),
        ROWS,
        2 * ROW,
    ),
    "transposed": (
        lambda x, k: lax.conv_transpose(x, k, (2, 2), "SAME"),
        (IMAGE, KERNEL),
        (ROWS, WHOLE),
        ROWS,
        ROW,
    ),
    "depthwise": (
        conv(feature_group_count=4),
        (IMAGE, array(3, 3, 1, 8)),
        (ROWS, WHOLE),
        ROWS,
        2 * ROW,
    ),
    "the gradient of an image": (image_gradient(1), (MADE, KERNEL), (ROWS, WHOLE), ROWS, 4 * ROW),
    "the gradient of an image, stride 2": (
        image_gradient(2),
        (MADE, KERNEL),
        (ROWS, WHOLE),
        ROWS,
        2 * ROW,
    ),
    "the gradient of a kernel": (
        kernel_gradient(1, 3),
        (IMAGE, MADE),
        (ROWS, ROWS),
        WHOLE,
        2 * ROW + 9 * 4 * 8,
    ),
    "the gradient of a kernel, 5 x 5": (
        kernel_gradient(1, 5),
        (IMAGE, MADE),
        (BOTH, BOTH),
        WHOLE,
        4 * PIECE + 4 * 132 * 4 + 25 * 4 * 8,
    ),
    "the gradient of a kernel, stride 2": (
        kernel_gradient(2, 3),
        (IMAGE, MADE[:, ::2, ::2]),
        (ROWS, ROWS),
        WHOLE,
        ROW + 9 * 4 * 8,
    ),
    "a pool": (pool(3, 2), (IMAGE,), (ROWS,), ROWS, ROW),
    "a pool whose windows tile": (pool(2, 2), (IMAGE,), (ROWS,), ROWS, 0),
    "its gradient": (pool_gradient, (IMAGE, MADE[:, ::2, ::2, :4]), (ROWS, ROWS), ROWS, 0),
    "a pad that shifts": (shifted(1), (IMAGE,), (ROWS,), ROWS, ROW),
    "a pad that shifts up": (shifted(-2), (IMAGE,), (ROWS,), ROWS, 2 * ROW),
}


@pytest.mark.parametrize("name", CASES)
def test_neighbours_exchange_halos_and_numbers_are_those_of_one_device(name: str) -> None:
    fn, arguments, inputs, output, num_elements = CASES[name]
    plan = autoshard.optimize(
        fn,
        *arguments,
        mesh="data=2,model=4",
        hardware="cpu-host",
        in_shardings=inputs,
        out_shardings=output,
        baselines=False,
    )
    found = plan.verify("local")
    assert found.compiled_bytes == found.predicted_bytes == 4 * num_elements
    np.testing.assert_array_equal(plan.jit()(*arguments), jax.jit(fn)(*arguments))


def two_layers(x: jax.Array, kernel: jax.Array) -> Any:
    def loss(k: jax.Array) -> Any:
        return jnp.sum(jnp.tanh(conv()(jnp.tanh(conv()(x, k)), k)) ** 2)

    return jax.grad(loss)(kernel)


def step_of(batch: int) -> autoshard.Plan:
    image = jax.ShapeDtypeStruct((batch, 256, 256, 16), np.dtype(np.float32))
    kernel = jax.ShapeDtypeStruct((3, 3, 16, 16), np.dtype(np.float32))
    return autoshard.optimize(two_layers, image, kernel, mesh="data=8", hardware="cpu-host")


def test_one_image_is_cut_along_space_and_beats_data_parallel() -> None:
    plan = step_of(1)
    assert plan.in_shardings[0].spec in (P(None, "data", None, None), P(None, None, "data", None))
    by_name = {one.name: one for one in plan.data.baselines}
    assert plan.data.seconds < 0.4 * by_name["data parallel"].seconds


def test_as_many_images_as_devices_are_not_cut_along_space() -> None:
    assert step_of(8).in_shardings[0].spec == P("data", None, None, None)


@pytest.mark.parametrize(
    ("window", "span"),
    [
        (Window(image=0, made=0, size=3, low=1), (-1, 9)),
        (Window(image=0, made=0, size=3, stride=2, low=0), (0, 9)),
        (Window(image=0, made=0, size=1, stride=2, low=0), (0, 7)),
        (Window(image=0, made=0, size=3, low=2, base_dilation=2), (-1, 8)),
        (Window(image=0, made=0, size=3, low=-1), (1, 11)),
    ],
)
def test_a_piece_is_made_of_what_its_windows_see(window: Window, span: tuple[int, int]) -> None:
    """Pieces of 8 elements of the image, of which there are 4."""
    made = 4 * 8 * window.base_dilation // window.stride
    assert window.is_aligned(32, made, 4)
    assert window.span(made, 4) == span
