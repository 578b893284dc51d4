"""Collectives of single ops under pins: what is planned is what is compiled, to the byte."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.hlo.compiled import compare_collectives, read_compiled


@pytest.mark.parametrize("spec", [P("data", "model"), P(None, ("data", "model")), P("model")])
@pytest.mark.parametrize(
    "fn", [lambda x, y: jnp.einsum("bsd,bse->de", x, y), lambda x, y: (x * y).sum((0, 1))]
)
def test_sums_over_cut_dimensions_compile_as_planned(fn: Any, spec: P) -> None:
    x = jax.ShapeDtypeStruct((16, 32, 64), jnp.float32)
    plan = autoshard.optimize(
        fn,
        x,
        x,
        mesh="data=2,model=4",
        hardware="cpu-host",
        in_shardings=(spec, spec),
        out_shardings=P(),
    )
    compiled = plan.jit().lower(x, x).compile()
    rows = compare_collectives(
        plan.data.collectives, read_compiled(compiled, plan.data.mesh).collectives
    ).rows
    assert rows
    assert [row.predicted_bytes for row in rows] == [row.compiled_bytes for row in rows]


def test_what_a_scatter_sums_is_summed_and_then_cut() -> None:
    def gradient(rows: jax.Array, updates: jax.Array) -> Any:
        return jnp.zeros((64, 32)).at[rows].add(updates)

    rows = jax.ShapeDtypeStruct((4096,), jnp.int32)
    updates = jax.ShapeDtypeStruct((4096, 32), jnp.float32)
    cut = P("x")
    plan = autoshard.optimize(
        gradient,
        rows,
        updates,
        mesh="x=8",
        hardware="cpu-host",
        in_shardings=(cut, cut),
        out_shardings=cut,
    )
    compiled = plan.jit().lower(rows, updates).compile()
    found = read_compiled(compiled, plan.data.mesh).collectives
    assert [(c.kind, c.bytes_per_device) for c in found] == [("all-reduce", 64 * 32 * 4)]
    assert compare_collectives(plan.data.collectives, found).difference_percent == 0


@pytest.mark.parametrize("mode", ["clip", "fill", None])
def test_what_few_rows_add_to_a_table_is_gathered_with_its_clamped_indices(mode: Any) -> None:
    def gradient(table: jax.Array, rows: jax.Array, updates: jax.Array) -> Any:
        added = jnp.zeros_like(table).at[rows].add(jnp.sin(updates), mode=mode)
        return table - added

    table = jax.ShapeDtypeStruct((8192, 128), jnp.float32)
    rows = jax.ShapeDtypeStruct((2048,), jnp.int32)
    updates = jax.ShapeDtypeStruct((2048, 128), jnp.float32)
    plan = autoshard.optimize(
        gradient,
        table,
        rows,
        updates,
        mesh="x=8",
        hardware="tpu-v5e",
        in_shardings=(P(), P("x"), P("x")),
        out_shardings=P(),
    )
    compiled = plan.jit().lower(table, rows, updates).compile()
    found = read_compiled(compiled, plan.data.mesh).collectives
    assert {c.kind for c in found} == {"all-gather"}
    assert compare_collectives(plan.data.collectives, found).difference_percent == 0


@pytest.mark.parametrize("out", [P("data"), P("model"), P(None, "model")])
@pytest.mark.parametrize(
    "fn", [lambda x: x.sum(0), lambda x: jnp.einsum("bij,bik->jk", x, x)], ids=["sum", "product"]
)
def test_sums_of_which_a_part_is_scattered_compile_as_planned(fn: Any, out: P) -> None:
    x = jax.ShapeDtypeStruct((64, 64, 32), jnp.float32)
    plan = autoshard.optimize(
        fn,
        x,
        mesh="data=2,model=4",
        hardware="cpu-host",
        in_shardings=P(("data", "model")),
        out_shardings=out,
    )
    compiled = plan.jit().lower(x).compile()
    found = read_compiled(compiled, plan.data.mesh).collectives
    assert found
    assert compare_collectives(plan.data.collectives, found).difference_percent == 0


def test_what_products_sum_on_to_their_batch_is_summed_and_then_cut() -> None:
    def combine(weights: jax.Array, experts: jax.Array) -> Any:
        return jnp.einsum("bsc,bcd->bsd", weights, experts)

    weights = jax.ShapeDtypeStruct((16, 64, 1024), jnp.float32)
    experts = jax.ShapeDtypeStruct((16, 1024, 128), jnp.float32)
    plan = autoshard.optimize(
        combine,
        weights,
        experts,
        mesh="data=2,model=4",
        hardware="cpu-host",
        in_shardings=(P("data", None, "model"), P("data", "model")),
        out_shardings=P(("data", "model")),
    )
    compiled = plan.jit().lower(weights, experts).compile()
    found = read_compiled(compiled, plan.data.mesh).collectives
    assert [(c.kind, c.axes, c.bytes_per_device) for c in found] == [
        ("all-reduce", ("model",), 8 * 64 * 128 * 4)
    ]
    assert compare_collectives(plan.data.collectives, found).difference_percent == 0


def test_a_value_that_a_product_reads_twice_is_gathered_for_both_reads() -> None:
    def interactions(features: jax.Array) -> Any:
        features = jnp.sin(features)
        return jnp.einsum("bfd,bgd->bfg", features, features), jnp.sort(features)

    features = jax.ShapeDtypeStruct((3, 5, 64), jnp.float32)
    plan = autoshard.optimize(
        interactions,
        features,
        mesh="x=8",
        hardware="cpu-host",
        in_shardings=P(None, None, "x"),
        out_shardings=P(),
    )
    compiled = plan.jit().lower(features).compile()
    found = read_compiled(compiled, plan.data.mesh).collectives
    assert [(c.kind, c.bytes_per_device) for c in found] == [("all-gather", 3 * 5 * 64 * 4)]
    assert compare_collectives(plan.data.collectives, found).difference_percent == 0


@pytest.mark.parametrize(("window", "axes"), [(1, "x=8"), (3, "x=8"), (5, "x=4"), (4, "x=4")])
def test_neighbours_exchange_edges_of_images_cut_for_the_gradient_of_a_kernel(
    window: int, axes: str
) -> None:
    def gradient(images: jax.Array, above: jax.Array) -> Any:
        def convolved(kernel: jax.Array) -> Any:
            return jax.lax.conv_general_dilated(
                images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )

        kernel = jnp.zeros((window, window, 16, 24))
        return jax.vjp(convolved, kernel)[1](above)[0]

    images = jax.ShapeDtypeStruct((3, 64, 7, 16), jnp.float32)
    above = jax.ShapeDtypeStruct((3, 64, 7, 24), jnp.float32)
    rows = P(None, "x")
    plan = autoshard.optimize(
        gradient,
        images,
        above,
        mesh=axes,
        hardware="cpu-host",
        in_shardings=(rows, rows),
        out_shardings=P(),
    )
    compiled = plan.jit().lower(images, above).compile()
    found = read_compiled(compiled, plan.data.mesh).collectives
    reaches = [reach for reach in ((window - 1) // 2, window // 2) if reach]
    assert [c.bytes_per_device for c in found if c.kind == "collective-permute"] == [
        reach * 3 * 7 * 16 * 4 for reach in reaches
    ]
    compared = compare_collectives(plan.data.collectives, found).rows
    assert {row.kind for row in compared} >= {"all-reduce"}
    assert [row.predicted_bytes for row in compared] == [row.compiled_bytes for row in compared]
