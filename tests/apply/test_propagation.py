"""Propagation in process: every path is found, constraints act where they are put."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxpr_as_fun
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import autoshard
from autoshard.apply.propagation.propagator import Propagator
from autoshard.errors import ExportError, PlanError, ShardingError
from autoshard.frontend import tagging
from autoshard.frontend.meshes import abstract_mesh
from autoshard.frontend.trace import Traced, trace
from autoshard.sharding import Mesh, Sharding, format_sharding, parse_mesh_sizes, parse_sharding
from tests.apply.xla_shardings import hlo_text, shardings_inside_xla

MESH = parse_mesh_sizes("x=2,y=4")


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.dtype(np.float32))


def sharding(text: str) -> Sharding:
    return parse_sharding(text)


def cuts(found: Sharding) -> str:
    """The axes of each dimension, whether open or not: `x|y`, `xy|-`."""
    return "|".join("".join(axis.name for axis in dim.axes) or "-" for dim in found.dims)


def prepared(
    fn: Callable[..., Any], *args: Any, mesh: Mesh = MESH, platform: str = "tpu"
) -> tuple[Traced, Propagator]:
    traced = trace(fn, args, mesh=mesh, platform=platform)
    return traced, Propagator(
        traced.module,
        mesh,
        num_arguments=len(traced.in_avals),
        operand_paths=traced.operand_paths,
    )


def path_of(traced: Traced, primitive: str) -> str:
    """The first equation of the outermost jaxpr with this primitive."""
    for index, eqn in enumerate(traced.jaxpr.jaxpr.eqns):
        if eqn.primitive.name == primitive:
            return str(index)
    raise AssertionError(f"no {primitive}")


def test_a_sharding_spreads_from_arguments_to_every_value_and_result() -> None:
    traced, propagator = prepared(lambda a, b: jnp.tanh(a @ b), array(8, 16), array(16, 32))
    found = propagator.propagate([sharding('[{"x"}, {}]'), sharding('[{}, {"y"}]')])
    assert {path: cuts(value) for path, value in found.items()} == {
        "in.0": "x|-",
        "in.1": "-|y",
        f"{path_of(traced, 'dot_general')}.0": "x|y",
        "out<0": "x|y",
    } | {f"{path_of(traced, 'tanh')}.0": "x|y"}


def test_a_sharding_spreads_from_results_back_to_free_arguments() -> None:
    _, propagator = prepared(lambda a: jnp.sin(a) + 1.0, array(8, 16))
    found = propagator.propagate([None], [sharding('[{"x"}, {"y"}]')])
    assert cuts(found["in.0"]) == "x|y"


def test_a_constraint_on_a_value_overrules_what_reaches_it() -> None:
    traced, propagator = prepared(lambda a: jnp.cos(jnp.sin(a)), array(8, 16))
    sin = f"{path_of(traced, 'sin')}.0"
    given = [sharding('[{"x"}, {}]')]
    found = propagator.propagate(given, (), {sin: sharding('[{}, {"y"}]')})
    assert (cuts(found["in.0"]), cuts(found[sin]), cuts(found["out<0"])) == ("x|-", "-|y", "-|y")


def test_a_constraint_leaves_no_trace_in_the_next_propagation() -> None:
    traced, propagator = prepared(lambda a: jnp.cos(jnp.sin(a)), array(8, 16))
    given = [sharding('[{"x"}, {}]')]
    first = propagator.propagate(given)
    sin = path_of(traced, "sin")
    propagator.propagate([None], given, {f"{sin}.0": sharding('[{"y"}, {}]')})
    assert propagator.propagate(given) == first


def read_twice(a: Any, b: Any) -> Any:
    c = jnp.sin(a)
    return c @ b, jnp.exp(c)


def test_a_constraint_on_one_use_is_not_seen_by_the_others() -> None:
    traced, propagator = prepared(read_twice, array(8, 16), array(16, 32))
    sin = f"{path_of(traced, 'sin')}.0"
    use = f"{path_of(traced, 'dot_general')}<0"
    wanted = {sin: sharding('[{"x"}, {}]'), use: sharding('[{"y"}, {}]')}
    found = propagator.propagate([None, sharding("[{}, {}]")], (), wanted)
    assert cuts(found[sin]) == "x|-"
    assert cuts(found["out<0"]) == "y|-"
    assert cuts(found["out<1"]) == "x|-"


def test_shardy_moves_a_lone_constraint_on_one_use_to_the_value_itself() -> None:
    traced, propagator = prepared(read_twice, array(8, 16), array(16, 32))
    use = f"{path_of(traced, 'dot_general')}<0"
    given = [sharding('[{"x"}, {}]'), sharding("[{}, {}]")]
    found = propagator.propagate(given, (), {use: sharding('[{"y"}, {}]')})
    assert cuts(found["out<1"]) == "y|-"


def test_a_use_of_a_value_read_twice_by_one_equation_is_that_operand_alone() -> None:
    def f(a: Any) -> Any:
        c = jnp.sin(a)
        return lax.dot_general(c, c, (((1,), (1,)), ((), ())))

    traced, propagator = prepared(f, array(8, 16))
    dot = path_of(traced, "dot_general")
    closed = sharding("[{}, {}]")
    found = propagator.propagate(
        [closed], (), {f"{dot}<0": sharding('[{"x"}, {}]'), f"{dot}<1": sharding('[{"y"}, {}]')}
    )
    assert cuts(found["out<0"]) == "x|y"


def test_a_constraint_on_one_result_leaves_the_value_returned_twice_alone() -> None:
    def f(a: Any) -> Any:
        c = jnp.sin(a)
        return c, c

    traced, propagator = prepared(f, array(8, 16))
    wanted = {
        f"{path_of(traced, 'sin')}.0": sharding('[{"x"}, {}]'),
        "out<1": sharding('[{}, {"y"}]'),
    }
    found = propagator.propagate((), (), wanted)
    assert cuts(found["out<0"]) == "x|-"
    assert cuts(found["out<1"]) == "-|y"


def scanned(x: Any, weights: Any, bias: Any) -> Any:
    def body(carry: Any, weight: Any) -> Any:
        return jnp.tanh(carry @ weight) + bias, jnp.sum(carry, axis=1)

    return lax.scan(body, x, weights)


def test_values_inside_a_loop_are_found_and_a_carry_has_one_sharding() -> None:
    traced, propagator = prepared(scanned, array(8, 16), array(3, 16, 16), array(8, 16))
    found = propagator.propagate([sharding('[{"x"}, {}]'), None, None])
    scan = path_of(traced, "scan")
    inside = {path: cuts(value) for path, value in found.items() if path.startswith(f"{scan}.j")}
    dots = [path for path in inside if inside[path] == "x|-"]
    assert len(dots) >= 3, inside
    assert cuts(found[f"{scan}.0"]) == "x|-"
    assert cuts(found[f"{scan}.1"]) == "-|x"


@pytest.mark.parametrize("result", [0, 1, 2])
def test_a_constraint_on_one_result_of_a_body_leaves_the_others_of_the_same_value_alone(
    result: int,
) -> None:
    def f(x: Any, y: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            made = jnp.tanh(carry[0]) + jnp.tanh(carry[1])
            return (made, made), made

        (left, right), stacked = lax.scan(body, (x, y), None, length=3)
        return left, right, stacked

    traced, propagator = prepared(f, array(8, 16), array(8, 16))
    scan = path_of(traced, "scan")
    wanted = {
        f"{scan}.jaxpr/2.0": sharding('[{}, {"y"}]'),
        f"{scan}.jaxpr/out<{result}": sharding('[{"x"}, {}]'),
    }
    found = propagator.propagate((), (), wanted)
    cut_by_x = [number for number in range(3) if "x" in cuts(found[f"out<{number}"])]
    assert cut_by_x == [result]


def test_a_value_read_from_outside_a_loop_may_be_cut_otherwise_inside() -> None:
    traced, propagator = prepared(scanned, array(8, 16), array(3, 16, 16), array(8, 16))
    scan = path_of(traced, "scan")
    bias = f"{scan}.jaxpr/in.0"  # a constant of the loop
    given = [None, None, sharding("[{}, {}]")]
    found = propagator.propagate(given, (), {bias: sharding('[{"x"}, {"y"}]')})
    assert cuts(found["in.2"]) == "-|-"
    assert cuts(found[bias]) == "x|y"
    assert cuts(found[f"{scan}.0"]) == "x|y"


def test_a_constraint_inside_a_branch_reaches_its_result() -> None:
    def f(p: Any, a: Any) -> Any:
        return lax.cond(p, lambda: jnp.sin(a) * 2.0, lambda: a)

    traced, propagator = prepared(f, jax.ShapeDtypeStruct((), np.dtype(np.bool_)), array(8, 16))
    cond = path_of(traced, "cond")
    inner = next(path for path in propagator.paths if path.startswith(f"{cond}.branches[1]/0."))
    found = propagator.propagate((), (), {inner: sharding('[{"x"}, {}]')})
    assert cuts(found["out<0"]) == "x|-"


def test_values_inside_remat_and_nested_jit_are_found() -> None:
    inner = jax.jit(lambda c: jnp.sin(c) * 2.0)

    def f(a: Any, b: Any) -> Any:
        return jax.grad(lambda a: jnp.sum(jax.checkpoint(lambda a: inner(a @ b))(a)))(a)

    _, propagator = prepared(f, array(8, 16), array(16, 32))
    found = propagator.propagate([sharding('[{"x"}, {}]'), None])
    nested = [path for path in found if path.count("/") >= 2]
    assert nested
    assert {cuts(found[path]) for path in nested} == {"x|-"}


def test_one_function_called_twice_may_be_cut_in_two_ways() -> None:
    inner = jax.jit(lambda c: jnp.sin(c) * 2.0)

    _, propagator = prepared(lambda a, b: (inner(a), inner(b)), array(8, 16), array(8, 16))
    found = propagator.propagate([sharding('[{"x"}, {}]'), sharding('[{}, {"y"}]')])
    assert cuts(found["out<0"]) == "x|-"
    assert cuts(found["out<1"]) == "-|y"


def test_the_users_own_constraint_is_kept() -> None:
    named = NamedSharding(abstract_mesh(MESH), PartitionSpec(None, "y"))
    _, propagator = prepared(
        lambda a: lax.with_sharding_constraint(jnp.sin(a), named) * 2.0, array(8, 16)
    )
    found = propagator.propagate([sharding('[{"x"}, {}]')])
    assert cuts(found["out<0"]) == "-|y"


def test_a_shard_map_body_is_seen_without_its_manual_axes() -> None:
    def f(a: Any) -> Any:
        mapped = jax.shard_map(
            lambda local: jnp.sin(local) * 2.0,
            mesh=abstract_mesh(MESH),
            in_specs=PartitionSpec("x", None),
            out_specs=PartitionSpec("x", None),
            axis_names={"x"},
        )
        return jnp.exp(mapped(a))

    _, propagator = prepared(f, array(8, 16))
    found = propagator.propagate([sharding('[{"x"}, {"y"}]')])
    inside = {path: cuts(value) for path, value in found.items() if "/" in path}
    assert inside
    assert set(inside.values()) == {"-|y"}
    assert cuts(found["out<0"]) == "x|y"


def test_parts_of_axes_spread_like_whole_ones() -> None:
    _, propagator = prepared(jnp.sin, array(8, 2))
    found = propagator.propagate([sharding('[{}, {"y":(1)2}]')])
    assert format_sharding(found["out<0"]) == '<@mesh, [{?}, {"y":(1)2, ?}]>'


@pytest.mark.parametrize("name", ["square", "lgamma", "asinh", "erf_inv"])
def test_propagation_passes_chlo_ops(name: str) -> None:
    _, propagator = prepared(lambda a: getattr(lax, name)(a) * 2.0, array(8, 16))
    found = propagator.propagate([sharding('[{"x"}, {"y"}]')])
    assert cuts(found["out<0"]) == "x|y"


def test_propagation_stops_at_erf_as_it_does_in_xla() -> None:
    traced, propagator = prepared(lambda a: lax.erf(a) * 2.0, array(8, 16))
    found = propagator.propagate([sharding('[{"x"}, {"y"}]')])
    assert cuts(found["out<0"]) == "-|-"
    erf = f"{path_of(traced, 'erf')}.0"
    pinned = {erf: sharding('[{"x"}, {"y"}]')}
    assert cuts(propagator.propagate([None], (), pinned)["out<0"]) == "x|y"


def test_top_k_keeps_the_cut_of_its_batch() -> None:
    _, propagator = prepared(lambda a: lax.top_k(a, 3)[0], array(8, 16))
    assert cuts(propagator.propagate([sharding('[{"x"}, {"y"}]')])["out<0"]) == "x|-"


def test_constants_have_no_one_sharding_and_are_not_reported() -> None:
    def f(a: Any) -> Any:
        ones = jnp.ones((8, 16)) * 3.0
        return a + ones, ones.T + 1.0

    _, propagator = prepared(f, array(8, 16))
    found = propagator.propagate([sharding('[{"x"}, {}]')])
    assert propagator.free_paths
    assert not propagator.free_paths & set(found)


def test_an_unknown_path_is_refused_by_name() -> None:
    _, propagator = prepared(jnp.sin, array(8, 16))
    for path in ("99.0", "99<0", "out<7"):
        with pytest.raises(PlanError) as caught:
            propagator.propagate((), (), {path: sharding("[{}, {}]")})
        assert caught.value.where == path


def test_a_sharding_that_does_not_fit_its_value_is_refused_before_the_passes_see_it() -> None:
    _, propagator = prepared(jnp.sin, array(8, 16))
    for text in ("[{}]", '[{"nope"}, {}]'):
        with pytest.raises(ShardingError) as caught:
            propagator.propagate([sharding(text)])
        assert "argument 0" in caught.value.where


def test_text_that_is_no_module_is_refused() -> None:
    with pytest.raises(ExportError, match="does not parse"):
        Propagator("module {", MESH)


def attention_step(weights: Any, x: Any) -> Any:
    """A small training step with a loop, attention, a gather and a scatter in its gradient."""

    def loss(weights: Any) -> Any:
        def layer(h: Any, w: Any) -> Any:
            q, k, v = (jnp.einsum("bsd,dhe->bshe", h, part) for part in w["qkv"])
            scores = jax.nn.softmax(jnp.einsum("bshe,bthe->bhst", q, k), axis=-1)
            mixed = jnp.einsum("bhst,bthe->bshe", scores, v).reshape(h.shape)
            return h + jax.nn.gelu(mixed @ w["up"]) @ w["down"], None

        h = weights["table"][x]
        h, _ = lax.scan(jax.checkpoint(layer), h, weights["layers"])
        return jnp.mean(jax.nn.logsumexp(h @ weights["table"].T, axis=-1))

    gradients = jax.grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)


STEP_ARGUMENTS = (
    {
        "table": array(64, 32),
        "layers": {
            "qkv": [array(2, 32, 4, 8), array(2, 32, 4, 8), array(2, 32, 4, 8)],
            "up": array(2, 32, 128),
            "down": array(2, 128, 32),
        },
    },
    jax.ShapeDtypeStruct((8, 16), np.dtype(np.int32)),
)


@pytest.mark.parametrize(
    "cut_dim",
    [
        pytest.param(-1, id="weights cut by columns"),
        pytest.param(-2, id="weights cut by rows"),
    ],
)
def test_propagation_in_process_ends_where_it_ends_inside_xla(
    cut_dim: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced, propagator = prepared(attention_step, *STEP_ARGUMENTS, platform="cpu")
    specs = [
        _cut(aval.ndim, 0, "x") if aval.dtype == np.int32 else _cut(aval.ndim, cut_dim, "y")
        for aval in traced.in_avals
    ]
    found = propagator.propagate([_sharding_of(spec) for spec in specs])

    jax_mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    monkeypatch.setattr(tagging, "is_tagged", lambda *_: False)  # names, but no tags
    named = tagging.tag_jaxpr(traced.jaxpr, abstract_mesh(MESH))
    inside = shardings_inside_xla(
        jaxpr_as_fun(named),
        traced.in_avals,
        tuple(NamedSharding(jax_mesh, PartitionSpec(*spec)) for spec in specs),
        tmp_path,
    )
    compared = 0
    for path, value in found.items():
        equation, _, output = path.rpartition(".")
        shape = propagator.shape(path) if not path.startswith("out<") else ()
        real = inside.get((equation, shape), set())
        if output.isdigit() and len(real) == 1:
            compared += 1
            assert {hlo_text(value, jax_mesh)} == real, path
    assert compared > 60


def _cut(rank: int, dim: int, axis: str) -> Sequence[str | None]:
    spec: list[str | None] = [None] * rank
    spec[dim] = axis
    return spec


def _sharding_of(spec: Sequence[str | None]) -> Sharding:
    dims = [f'{{"{axis}"}}' if axis else "{}" for axis in spec]
    return sharding(f"[{', '.join(dims)}]")


def test_what_a_loop_carries_unchanged_and_unread_may_be_constrained_on_the_way_in() -> None:
    """The flat program has no such carry: a plan with a stop there was refused as another's."""

    def fn(x: jax.Array, y: jax.Array, n: jax.Array) -> Any:
        return lax.fori_loop(0, n, lambda _, c: (c[0], c[1] + 1.0), (x, y))

    count = jax.ShapeDtypeStruct((), np.dtype(np.int32))
    traced, propagator = prepared(fn, array(8, 8), array(8, 8), count)
    loop = path_of(traced, "while")
    place = traced.operand_paths[loop].index("in.0")
    asked = {f"{loop}<{place}~0": sharding('<@mesh, [{"x"}, {}]>')}
    given = [sharding('<@mesh, [{"x"}, {"y"}]>'), None, None]
    found = propagator.propagate(given, [None, None], asked)
    assert cuts(found["in.0"]) == "x|y"


def test_a_use_that_no_equation_has_is_refused() -> None:
    traced, propagator = prepared(jnp.tanh, array(8, 8))
    asked = {f"{path_of(traced, 'tanh')}<3": sharding('<@mesh, [{"x"}, {}]>')}
    with pytest.raises(PlanError, match="does not have"):
        propagator.propagate([None], [None], asked)


def test_constraints_are_found_where_propagation_drops_a_value() -> None:
    """Of eight equal tables that are looked up some values are merged: nothing is marked there."""

    def step(tables: Any, indices: Any) -> Any:
        def loss(tables: Any) -> Any:
            taken = [table[indices[:, place]] for place, table in enumerate(tables)]
            return (jnp.concatenate(taken, -1) ** 2).sum()

        return [t - 0.1 * g for t, g in zip(tables, jax.grad(loss)(tables), strict=True)]

    plan = autoshard.optimize(
        step,
        [jax.ShapeDtypeStruct((4096, 64), jnp.float32)] * 8,
        jax.ShapeDtypeStruct((512, 8), jnp.int32),
        mesh="data=2,model=4",
        hardware="tpu-v5p",
        in_shardings=(PartitionSpec(("data", "model")), PartitionSpec()),
        donate_argnums=0,
        baselines=False,
    )
    assert len(plan.constraints) < 20
