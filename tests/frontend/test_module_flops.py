"""Floating-point operations of each op, against XLA's count of the compiled program or by hand."""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.graph.program import Graph, OpClass
from tests.frontend.exporting import array, export, named, one

MATRICES = array(4, 8, 8)


def heavy_flops(graph: Graph) -> float:
    heavy = (OpClass.MATMUL, OpClass.CONVOLUTION)
    return sum(op.flops * op.repeat for op in graph.ops if op.op_class in heavy)


def compiled_flops(fn: Callable[..., Any], *args: Any) -> float:
    return float(jax.jit(fn).lower(*args).compile().cost_analysis()["flops"])


def gradients(fn: Callable[..., Any]) -> Callable[..., Any]:
    def loss(*args: Any) -> Any:
        return jnp.sum(fn(*args) ** 2)

    gradient: Callable[..., Any] = jax.grad(loss, (0, 1))
    return gradient


def conv(**settings: Any) -> Callable[[Any, Any], Any]:
    def fn(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x,
            w,
            settings.get("strides", (1, 1)),
            settings.get("padding", "SAME"),
            lhs_dilation=settings.get("lhs"),
            rhs_dilation=settings.get("rhs"),
            feature_group_count=settings.get("groups", 1),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    return fn


CONVOLUTIONS = {
    "plain": (conv(), (3, 3, 16, 32)),
    "strided": (conv(strides=(2, 2)), (3, 3, 16, 32)),
    "valid": (conv(padding="VALID"), (5, 3, 16, 32)),
    "dilated": (conv(rhs=(2, 2)), (3, 3, 16, 32)),
    "transposed": (conv(lhs=(2, 2), padding=((1, 2), (1, 2))), (3, 3, 16, 32)),
    "grouped": (conv(groups=4), (3, 3, 4, 32)),
    "depthwise": (conv(groups=16), (3, 3, 1, 32)),
    "grouped and strided": (conv(groups=4, strides=(2, 2)), (3, 3, 4, 32)),
    "pointwise": (conv(), (1, 1, 16, 32)),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_convolution_and_its_gradients_cost_what_xla_counts(case: str) -> None:
    fn, kernel = CONVOLUTIONS[case]
    args = (array(4, 16, 16, 16), array(*kernel))
    forward = heavy_flops(export(fn, *args))
    assert forward == pytest.approx(compiled_flops(fn, *args), rel=0.1)
    # XLA's CPU compiler unrolls the gradients of grouped convolutions into other programs.
    if "grouped" in case or case == "depthwise":
        return
    both = heavy_flops(export(gradients(fn), *args))
    assert both == pytest.approx(compiled_flops(gradients(fn), *args), rel=0.1)


@pytest.mark.parametrize("case", ["grouped", "depthwise", "grouped and strided"])
def test_each_gradient_of_a_grouped_convolution_costs_what_the_convolution_does(case: str) -> None:
    fn, kernel = CONVOLUTIONS[case]
    args = (array(4, 16, 16, 16), array(*kernel))
    forward = heavy_flops(export(fn, *args))
    assert heavy_flops(export(gradients(fn), *args)) == pytest.approx(3 * forward, rel=0.01)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", ((16, 32), (32, 64))),
        ("bij,bjk->bik", ((4, 16, 32), (4, 32, 64))),
        ("bshd,bthd->bhst", ((2, 16, 4, 8), (2, 32, 4, 8))),
        ("bhst,bthd->bshd", ((2, 4, 16, 32), (2, 32, 4, 8))),
        ("ij,ij->", ((16, 32), (16, 32))),
    ],
)
def test_a_product_costs_two_for_each_multiply_add(
    equation: str, shapes: tuple[tuple[int, ...], ...]
) -> None:
    sizes = {
        name: size
        for names, shape in zip(equation.split("->")[0].split(","), shapes, strict=True)
        for name, size in zip(names, shape, strict=True)
    }
    points = 1
    for size in sizes.values():
        points *= size
    graph = export(lambda a, b: jnp.einsum(equation, a, b), *(array(*s) for s in shapes))
    assert one(graph, "dot_general").flops == 2 * points


def test_attention_costs_what_xla_counts() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        weights = jax.nn.softmax(jnp.einsum("bshd,bthd->bhst", q, k), axis=-1)
        return jnp.einsum("bhst,bthd->bshd", weights, v)

    args = (array(2, 64, 4, 32),) * 3
    graph = export(attention, *args)
    total = sum(op.flops * op.repeat for op in graph.ops)
    assert total == pytest.approx(compiled_flops(attention, *args), rel=0.1)
    assert heavy_flops(graph) == 2 * 2 * (2 * 4 * 64 * 64 * 32)


def test_a_complex_product_costs_four_real_ones() -> None:
    graph = export(lambda a: a @ a, array(8, 8, dtype=jnp.complex64))
    assert one(graph, "dot_general").flops == 4 * 2 * 8**3


def test_a_loop_multiplies() -> None:
    def fn(x: Any) -> Any:
        return lax.fori_loop(0, 7, lambda _, c: c @ c, x)

    assert heavy_flops(export(fn, array(8, 8))) == 7 * 2 * 8**3


def test_each_row_of_a_ragged_product_meets_the_matrices_of_all_groups() -> None:
    args = (array(16, 8), array(4, 8, 32), array(4, dtype=jnp.int32))
    assert one(export(lax.ragged_dot, *args), "ragged_dot").flops == 2 * 16 * 8 * 32 * 4

    def fn(a: Any, b: Any, g: Any) -> Any:
        return jax.grad(lambda a, b: lax.ragged_dot(a, b, g).sum(), (0, 1))(a, b)

    assert [op.flops for op in named(export(fn, *args), "ragged_dot")] == [
        2.0 * 16 * 8 * 32 * 4
    ] * 2


def test_factorisations_cost_their_leading_terms() -> None:
    graph = export(lambda a: lax.linalg.cholesky(a, symmetrize_input=False), MATRICES)
    assert one(graph, "cholesky").flops == pytest.approx(4 * 8**3 / 3)
    graph = export(lax.linalg.lu, MATRICES)
    assert one(graph, "custom_call @LuDecomposition").flops == pytest.approx(4 * 2 / 3 * 8**3)
    graph = export(lambda a: jnp.linalg.qr(a)[0], array(4, 16, 8))
    assert one(graph, "custom_call @Qr").flops == pytest.approx(4 * 2 * (16 * 64 - 512 / 3))
    graph = export(
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True), MATRICES, array(4, 8, 3)
    )
    assert one(graph, "triangular_solve").flops == 4 * 8 * 8 * 3
    # A LAPACK call on CPU costs what the op of other platforms does.
    graph = export(lax.linalg.cholesky, MATRICES, platform="cpu")
    (op,) = (op for op in graph.ops if "potrf" in op.name or op.name == "cholesky")
    assert op.flops == pytest.approx(4 * 8**3 / 3)


def test_transforms_cost_five_n_log_n() -> None:
    graph = export(jnp.fft.fft, array(8, 64, dtype=jnp.complex64))
    assert one(graph, "fft").flops == 8 * 5 * 64 * log2(64)
    for fn, shape, dtype in (
        (jnp.fft.rfft, (8, 64), jnp.float32),
        (jnp.fft.irfft, (8, 33), jnp.complex64),
    ):
        assert one(export(fn, array(*shape, dtype=dtype)), "fft").flops == 8 * 2.5 * 64 * log2(64)


def test_sorting_costs_a_comparison_an_element_and_doubling() -> None:
    assert one(export(jnp.sort, array(8, 64)), "sort").flops == 8 * 64 * 6
    assert one(export(lambda x: lax.top_k(x, 4), array(8, 64)), "top_k").flops == 8 * 64 * 2


def test_windows_cost_their_taps_and_running_sums_do_not_grow_squared() -> None:
    graph = export(
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 3, 1), (1, 2, 3, 1), "VALID"),
        array(4, 12, 12, 8),
    )
    assert one(graph, "reduce_window").flops == (4 * 6 * 4 * 8) * 6
    short, long = (one(export(jnp.cumsum, array(n)), "reduce_window").flops for n in (512, 4096))
    assert long == 8 * short


def test_moving_data_costs_no_arithmetic() -> None:
    graph = export(lambda x: jnp.pad(x.T[::-1], 1).reshape(-1), array(8, 16))
    for name in ("transpose", "reverse", "pad", "reshape"):
        assert one(graph, name).flops == 0.0
