"""shard_map bodies, the user's constraints, and what stays free inside and around them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.shard_alike import shard_alike
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from autoshard.errors import ExportError
from autoshard.frontend.module import ModuleNames, module_to_graph
from autoshard.frontend.trace import trace
from autoshard.graph.program import OpKind
from tests.frontend.exporting import MESH, array, export, inside, named, one, regions, rule_of, text

X = array(8, 16)
OPEN = P.UNCONSTRAINED


def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def mapped(body: Any, in_specs: Any, out_specs: Any, *names: str) -> Any:
    return jax.shard_map(
        body,
        mesh=mesh(),
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=set(names),
        check_vma=False,
    )


def test_a_full_shard_map_is_a_region_with_pinned_borders() -> None:
    fn = mapped(lambda x: lax.psum(x @ x.T, "y"), P("x", "y"), P("x", None))
    assert text(export(fn, X)) == [
        "%0: f32[8, 16] = argument x",
        '%1: f32[4, 4] = shard_map %0 enter <mesh<["x"=2, "y"=4]>, [{"x"}, {"y"}]>',
        "manual over x, y:",
        "  %2: f32[4, 4] = transpose %1  ([j, i])->([i, j]) {i=4, j=4}",
        "  %3: f32[4, 4] = dot_general %1 %2"
        "  ([i, k], [k, j])->([i, j]) {i=4, j=4, k=4} reduction={k}  flops=128",
        "  %4: f32[4, 4] = all_reduce %3",
        '%5: f32[8, 4] = shard_map %4 leave <mesh<["x"=2, "y"=4]>, [{"x"}, {}]>',
        "return result %5",
    ]


def test_a_partial_shard_map_leaves_its_other_axes_free() -> None:
    def body(x: Any) -> Any:
        gathered = lax.all_gather(x, "x")
        return lax.ppermute(gathered, "x", [(0, 1), (1, 0)]).sum(0)

    graph = export(mapped(body, P("x"), P("x"), "x"), X)
    (region,) = regions(graph, "manual")
    assert region.manual_axes == ("x",)
    assert inside(graph, region) == ["reshape", "all_gather", "collective_permute", "reduce"]
    # XLA gathers over the free axis what is gathered over x; what is permuted it leaves cut.
    assert rule_of(graph, "all_gather") == (
        "([i, j, k])->([l, m, n]) {i=1, j=4, k=16, l=2, m=4, n=16}"
        " need_replication={i, j, k, l, m, n}"
    )
    assert rule_of(graph, "collective_permute") == "([i, j, k])->([i, j, k]) {i=2, j=4, k=16}"
    assert graph.manual_axes(one(graph, "all_gather").region) == {"x"}


def test_collectives_that_take_tensors_apart_are_kept_whole_and_reported() -> None:
    def body(x: Any) -> Any:
        swapped = lax.all_to_all(x, "x", 1, 1, tiled=True)
        return lax.psum_scatter(swapped, "x", scatter_dimension=1, tiled=True)

    graph = export(mapped(body, P("x"), P("x"), "x"), X)
    for name in ("all_to_all", "reduce_scatter"):
        op = one(graph, name)
        assert "need_replication={i, j, k, l}" in rule_of(graph, name)
        assert op.note == f"{name} is gathered over free axes and is kept whole"
        assert f"{op.note} ({op.source})" in graph.notes


def test_nested_shard_maps_add_their_axes() -> None:
    def body(x: Any) -> Any:
        inner = jax.shard_map(
            lambda z: lax.psum(z, "y"),
            in_specs=P(None, "y"),
            out_specs=P(None, None),
            axis_names={"y"},
            check_vma=False,
        )
        return inner(x)

    graph = export(mapped(body, P("x"), P("x"), "x"), X)
    outer, inner = regions(graph, "manual")
    assert (outer.manual_axes, inner.manual_axes, inner.parent) == (("x",), ("y",), outer.index)
    assert graph.manual_axes(one(graph, "all_reduce").region) == {"x", "y"}
    assert graph.values[one(graph, "all_reduce").results[0]].shape == (4, 4)


def test_an_axis_taken_again_inside_is_named_with_the_line() -> None:
    def again(x: Any) -> Any:
        return jax.shard_map(jnp.sin, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})(x)

    fn = mapped(again, P("x"), P("x"), "x")
    with pytest.raises(ExportError) as caught:
        trace(fn, (X,), {}, mesh=MESH)
    line = again.__code__.co_firstlineno + 1
    assert str(caught.value) == (
        f'the shard_map at {__file__}:{line} (again) cuts by axis "x", which is manual already'
        " in a shard_map around it\n"
        "  where: shard_map\n"
        "  fix: cut by other axes in its specs: inside the outer one, tensors are local to that"
        " axis"
    )


def test_the_place_of_a_device_is_a_scalar_like_any_other() -> None:
    graph = export(mapped(lambda x: x * lax.axis_index("x"), P("x"), P("x"), "x"), X)
    assert graph.notes == ()


def test_what_cannot_be_cut_is_no_news_where_no_axis_is_left() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...] * 2

    def body(x: Any) -> Any:
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    graph = export(mapped(body, P("x", "y"), P("x", "y")), array(512, 1024))
    assert named(graph, "custom_call @tpu_custom_call")
    assert graph.notes == ()


def test_what_cannot_be_cut_is_reported_where_an_axis_is_left() -> None:
    module = """
    sdy.mesh @mesh = <["x"=2, "y"=4]>
    func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
      %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"x", ?}, {?}]>]
        out_shardings=[<@mesh, [{"x", ?}, {?}]>] manual_axes={"x"} (%y: tensor<4x16xf32>) {
        %1 = stablehlo.custom_call @mine(%y) : (tensor<4x16xf32>) -> tensor<4x16xf32>
        sdy.return %1 : tensor<4x16xf32>
      } : (tensor<8x16xf32>) -> tensor<8x16xf32>
      return %0 : tensor<8x16xf32>
    }"""
    names = ModuleNames(arguments=["x"], results=["result"], donated=[False])
    (note,) = module_to_graph(module, names).notes
    assert note.startswith("custom_call @mine has no sharding rule and is kept whole (")


def test_a_loop_around_a_shard_map_repeats_it() -> None:
    body = mapped(lambda x: lax.psum(x, "y") / 4, P("x", "y"), P("x", "y"))
    graph = export(lambda x: lax.fori_loop(0, 5, lambda _, c: body(c), x), X)
    assert one(graph, "all_reduce").repeat == 5.0
    (loop,) = regions(graph, "loop")
    assert {op.repeat for op in named(graph, "shard_map")} == {5.0}
    assert {op.region for op in named(graph, "shard_map")} == {loop.index}


# -- constraints -----------------------------------------------------------------------------------


def test_a_users_constraint_is_an_op_with_what_was_written() -> None:
    def fn(x: Any) -> Any:
        return lax.with_sharding_constraint(x * 2, NamedSharding(mesh(), P("x", OPEN)))

    graph = export(fn, X)
    op = one(graph, "sharding_constraint")
    assert op.kind is OpKind.CONSTRAINT
    assert op.pinned == '<mesh<["x"=2, "y"=4]>, [{"x"}, {?}]>'
    assert op.source.startswith(f"{__file__}:")


def test_a_constraint_that_leaves_all_open_says_nothing() -> None:
    def fn(x: Any) -> Any:
        return lax.with_sharding_constraint(x * 2, NamedSharding(mesh(), P(OPEN, OPEN)))

    assert named(export(fn, X), "sharding_constraint") == []


def test_replication_asked_for_is_a_constraint() -> None:
    def fn(x: Any) -> Any:
        return lax.with_sharding_constraint(x * 2, NamedSharding(mesh(), P()))

    pinned = one(export(fn, X), "sharding_constraint").pinned
    assert pinned == '<mesh<["x"=2, "y"=4]>, [{}, {}]>'


def test_values_that_are_to_be_alike_form_a_group() -> None:
    def fn(x: Any) -> Any:
        first, second = shard_alike(jnp.sin(x), jnp.cos(x))
        return first + second

    graph = export(fn, X)
    assert graph.groups == ((one(graph, "sine").results[0], one(graph, "cosine").results[0]),)
