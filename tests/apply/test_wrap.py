"""A function under a plan's constraints computes what it computed before, sharded as told."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from autoshard.apply.planned_function import jit_with
from autoshard.apply.wrapping import wrap
from autoshard.errors import ExportError, InputError, PlanError
from autoshard.frontend.jaxpr_paths import bodies, is_constrainable
from autoshard.frontend.trace import Traced, trace
from autoshard.sharding import AxisRef, DimSharding, Sharding, parse_mesh_sizes, parse_sharding

MESH = parse_mesh_sizes("x=2,y=4")
AUTO = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
EXPLICIT = jax.make_mesh((2, 4), ("x", "y"))
RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 16)).astype(np.float32)
WS = (RNG.normal(size=(5, 16, 16)) / 4).astype(np.float32)


def sharding(dims: str) -> Sharding:
    return parse_sharding(f"<@mesh, [{dims}]>")


# -- programs --------------------------------------------------------------------------------------


def scanned(x: Any, ws: Any) -> Any:
    return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), jnp.sum(c * c, 1)), x, ws)


def looped(x: Any, ws: Any) -> Any:
    def body(state: Any) -> Any:
        i, c = state
        return i + 1, jnp.tanh(c @ stack[i])

    stack = jnp.asarray(ws)
    return jax.lax.while_loop(lambda state: state[0] < 4, body, (0, x))


def branched(x: Any, ws: Any) -> Any:
    doubled = jax.lax.cond(jnp.sum(x) > 0, lambda c: c @ ws[0], lambda c: c - ws[1, :8], x)
    return jax.lax.switch(
        jnp.sum(x > 0) % 3, [jnp.tanh, jnp.sin, lambda c: c * 2 + doubled], doubled
    )


def rematerialised(x: Any, ws: Any) -> Any:
    def loss(ws: Any) -> Any:
        block = jax.checkpoint(lambda c, w: jnp.tanh(c @ w))
        return jnp.mean(jax.lax.scan(lambda c, w: (block(c, w), None), x, ws)[0] ** 2)

    return jax.value_and_grad(loss)(ws)


@jax.custom_vjp  # type: ignore[untyped-decorator]
def clipped(x: Any) -> Any:
    return jnp.clip(x, -1, 1) * 2


clipped.defvjp(lambda x: (clipped(x), x), lambda x, g: (g * (jnp.abs(x) < 2),))


def with_custom_rules(x: Any, ws: Any) -> Any:
    return jax.value_and_grad(lambda w: jnp.sum(jax.nn.relu(clipped(x @ w))))(ws[0])


def nested_jit(x: Any, ws: Any) -> Any:
    layer = jax.jit(lambda c, w: jnp.tanh(c @ w))
    return layer(layer(x, ws[0]), ws[1])


def with_random_numbers(x: Any, ws: Any) -> Any:
    keys = jax.random.split(jax.random.key(7), 3)
    noise = jax.vmap(lambda key: jax.random.normal(key, (16, 16)))(keys)
    return x @ (ws[0] + noise[1]) * jax.random.bernoulli(keys[2], 0.5, (8, 16))


def with_shard_map(x: Any, ws: Any) -> Any:
    spec = PartitionSpec("x")
    mean = jax.shard_map(
        lambda c: jnp.tanh(c) + jax.lax.pmean(c, "x"),
        mesh=AUTO,
        in_specs=spec,
        out_specs=spec,
        axis_names={"x"},
    )
    return mean(x @ ws[0]) @ ws[1]


def gathered(x: Any, ws: Any) -> Any:
    rows = x[jnp.array([1, 3, 5, 7])]
    sorted_rows = jnp.sort(rows, 1)
    return jnp.fft.rfft(sorted_rows @ ws[0]).real, jnp.asarray(x).at[jnp.array([0, 2])].add(
        rows[:2]
    )


PROGRAMS = [
    scanned,
    looped,
    branched,
    rematerialised,
    with_custom_rules,
    nested_jit,
    with_random_numbers,
    with_shard_map,
    gathered,
]


def constrainable(program: Traced) -> dict[str, tuple[int, ...]]:
    """The shape of every value and use a constraint may name."""
    avals: dict[str, Any] = {}

    def visit(jaxpr: Any, prefix: str) -> None:
        for position, var in enumerate(jaxpr.invars):
            avals[f"{prefix}in.{position}"] = var.aval
        for index, eqn in enumerate(jaxpr.eqns):
            for position, atom in enumerate(eqn.invars):
                avals[f"{prefix}{index}<{position}"] = atom.aval
            for position, var in enumerate(eqn.outvars):
                avals[f"{prefix}{index}.{position}"] = var.aval
            for key, body in bodies(eqn):
                visit(body, f"{prefix}{index}.{key}/")
        for position, atom in enumerate(jaxpr.outvars):
            avals[f"{prefix}out<{position}"] = atom.aval

    visit(program.jaxpr.jaxpr, "")
    return {path: aval.shape for path, aval in avals.items() if is_constrainable(aval)}


def random_sharding(shape: tuple[int, ...], rng: random.Random, axes: list[AxisRef]) -> Sharding:
    """Each axis goes to a dimension it divides, or nowhere; some dimensions stay open."""
    left = list(shape)
    dims: list[list[AxisRef]] = [[] for _ in shape]
    for axis in rng.sample(axes, len(axes)):
        size = axis.size_on(MESH)
        candidates = [i for i, length in enumerate(left) if length % size == 0]
        if candidates and rng.random() < 0.7:
            place = rng.choice(candidates)
            dims[place].append(axis)
            left[place] //= size
    return Sharding(tuple(DimSharding(tuple(d), not d and rng.random() < 0.3) for d in dims))


def branch_end(path: str) -> str:
    """A path that results of all branches share: compilers refuse those that end unlike."""
    return re.sub(r"branches\[\d+\](?=/out<)", "branches", path)


WHOLE = [AxisRef("x"), AxisRef("y")]
PARTS = [AxisRef("x"), AxisRef("y", 1, 2), AxisRef("y", 2, 2)]


@pytest.mark.parametrize("axes", [WHOLE, PARTS], ids=["axes", "sub-axes"])
@pytest.mark.parametrize("fn", PROGRAMS)
def test_constraints_anywhere_change_no_number(fn: Callable[..., Any], axes: list[AxisRef]) -> None:
    program = trace(fn, (X, WS), mesh=MESH, context=AUTO.abstract_mesh)
    rng = random.Random(fn.__name__)
    shapes = constrainable(program)
    chosen = sorted(shapes)
    if fn is with_shard_map:
        chosen = [path for path in chosen if ".jaxpr/" not in path]
    constraints = {
        path: random_sharding(shapes[path], rng, axes)
        for path in rng.sample(chosen, min(len(chosen), 12))
    }
    by_end = {branch_end(path): sharding for path, sharding in constraints.items()}
    constraints |= {path: by_end[end] for path in chosen if (end := branch_end(path)) in by_end}
    found = wrap(fn, constraints, AUTO, record=program.record)(X, WS)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), found, fn(X, WS)
    )


def test_free_axes_may_be_cut_inside_a_shard_map() -> None:
    program = trace(with_shard_map, (X, WS), mesh=MESH, context=AUTO.abstract_mesh)
    path = next(path for path in constrainable(program) if path.endswith(".jaxpr/0.0"))
    wrapped = wrap(with_shard_map, {path: sharding('{?}, {"y"}')}, AUTO)
    text = jax.jit(wrapped).lower(X, WS).as_text()
    assert '[{?}, {"y"}]> : tensor<4x16xf32>' in text
    np.testing.assert_allclose(wrapped(X, WS), with_shard_map(X, WS), rtol=2e-5, atol=1e-5)


# -- under transformations -------------------------------------------------------------------------


def loss(ws: Any, x: Any) -> Any:
    return jnp.mean(jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws)[0] ** 2)


INSIDE = {"0.jaxpr/0.0": sharding('{"x"}, {"y"}'), "0.jaxpr/0<1": sharding('{}, {"y":(2)2}')}


def test_a_wrapped_loss_can_be_differentiated() -> None:
    wrapped = wrap(loss, INSIDE, AUTO)
    value, gradient = jax.jit(jax.value_and_grad(wrapped))(WS, X)
    expected, expected_gradient = jax.value_and_grad(loss)(WS, X)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-6)
    tangent = jax.jvp(wrapped, (WS, X), (WS, X))[1]
    np.testing.assert_allclose(tangent, jax.jvp(loss, (WS, X), (WS, X))[1], rtol=1e-4)


def test_a_wrapped_loss_can_be_mapped_and_evaluated_abstractly() -> None:
    wrapped = wrap(loss, INSIDE, AUTO)
    many = np.stack([X, X * 2])
    np.testing.assert_allclose(
        jax.vmap(wrapped, (None, 0))(WS, many), jax.vmap(loss, (None, 0))(WS, many), rtol=1e-5
    )
    assert jax.eval_shape(wrapped, WS, X) == jax.eval_shape(loss, WS, X)


def test_custom_derivative_rules_are_kept() -> None:
    def fn(x: Any) -> Any:
        return jnp.sum(clipped(x))

    program = trace(fn, (X,), mesh=MESH)
    inner = next(path for path in constrainable(program) if path.endswith("/0.0"))
    gradient = jax.grad(wrap(fn, {inner: sharding('{"x"}, {"y"}')}, AUTO))(X)
    np.testing.assert_array_equal(gradient, (np.abs(X) < 2).astype(np.float32))


def test_a_wrapped_function_may_close_over_traced_values() -> None:
    def outer(ws: Any, x: Any) -> Any:
        wrapped = wrap(lambda x: jnp.tanh(x @ ws[0]), {"1.0": sharding('{"x"}, {}')}, AUTO)
        return wrapped(x) + wrapped(x * 2)

    expected = jnp.tanh(X @ WS[0]) + jnp.tanh(2 * X @ WS[0])
    np.testing.assert_allclose(jax.jit(outer)(WS, X), expected, rtol=1e-5, atol=1e-5)


def test_a_function_is_traced_once_for_each_signature() -> None:
    calls = []

    def fn(x: Any) -> Any:
        calls.append(x.shape)
        return x * 2

    wrapped = wrap(fn, {}, AUTO)
    for argument in (X, X + 1, X[:4], X):
        wrapped(argument)
    assert calls == [(8, 16), (4, 16)]


# -- what arrives in the program -------------------------------------------------------------------


def test_a_constraint_arrives_inside_the_loop_body() -> None:
    jitted = jax.jit(wrap(scanned, {"0.jaxpr/0.0": sharding('{"x"}, {"y"}')}, AUTO))
    text = jitted.lower(X, WS).as_text()
    body = text[text.index("stablehlo.while") :]
    assert "sdy.sharding_constraint" in body
    assert '<@mesh, [{"x"}, {"y"}]> : tensor<8x16xf32>' in body


def test_a_constraint_on_one_use_leaves_the_others_alone() -> None:
    def fn(x: Any) -> Any:
        y = jnp.tanh(x)
        return y * 2, y + 1

    constrained = wrap(fn, {"2<0": sharding('{"x"}, {?}')}, AUTO)
    lines = [
        line.strip() for line in jax.jit(constrained).lower(X).as_text().splitlines() if "%" in line
    ]
    tanh = next(line.split(" ")[0] for line in lines if "tanh" in line)
    constraint = next(line for line in lines if "sharding_constraint" in line)
    assert constraint.endswith(
        f'sdy.sharding_constraint {tanh} <@mesh, [{{"x"}}, {{?}}]> : tensor<8x16xf32>'
    )
    multiply = next(line for line in lines if "multiply" in line)
    add = next(line for line in lines if "stablehlo.add" in line)
    assert f" {tanh}," in multiply
    assert f" {constraint.split(' ')[0]}," in add


def test_sub_axes_are_written_on_a_refined_mesh() -> None:
    jitted = jax.jit(wrap(lambda x: x * 2, {"out<0": sharding('{"y":(1)2}, {"y":(2)2}')}, AUTO))
    text = jitted.lower(X).as_text()
    assert '<["x"=2, "y_0"=2, "y_1"=2]>' in text
    assert '[{"y_0"}, {"y_1"}]' in text


# -- jit -------------------------------------------------------------------------------------------


def step(state: Any, x: Any) -> Any:
    params, moments = state
    value, gradient = jax.value_and_grad(loss)(params["w"], x)
    updates, moments = optax.adam(1e-2).update({"w": gradient}, moments, params)
    return (optax.apply_updates(params, updates), moments), value


def training() -> tuple[Any, Traced, list[Sharding], list[Sharding]]:
    state = ({"w": jnp.asarray(WS)}, optax.adam(1e-2).init({"w": jnp.asarray(WS)}))
    program = trace(step, (state, X), mesh=MESH)
    cut = [sharding('{}, {"x"}, {"y"}') if len(a.shape) == 3 else None for a in program.in_avals]
    ins = [
        s or Sharding.replicated_everywhere(len(a.shape))
        for s, a in zip(cut, program.in_avals, strict=True)
    ]
    ins[-1] = sharding('{"x"}, {}')
    return state, program, ins, [*ins[:-1], Sharding.replicated_everywhere(0)]


@pytest.mark.parametrize("mesh", [AUTO, EXPLICIT], ids=["auto", "explicit"])
@pytest.mark.parametrize("is_set", [False, True], ids=["free", "set"])
def test_a_training_step_runs_on_either_kind_of_mesh(mesh: Any, is_set: bool) -> None:
    state, program, ins, outs = training()
    planned = jit_with(step, {}, mesh, ins, outs, record=program.record)
    expected_state, expected = step(step(state, X)[0], X)
    with jax.set_mesh(mesh) if is_set else contextlib.nullcontext():
        state, first = planned(state, X)
        state, second = planned(state, X)
        assert second < first  # an eager operation, which JAX refuses across kinds of mesh
    np.testing.assert_allclose(second, expected, rtol=1e-4)
    np.testing.assert_allclose(state[0]["w"], expected_state[0]["w"], rtol=1e-3, atol=1e-5)
    found = state[0]["w"].sharding
    assert found.spec == PartitionSpec(None, "x", "y")
    assert found.mesh.axis_types == mesh.axis_types


def test_arguments_on_an_explicit_mesh_are_taken() -> None:
    planned = jit_with(
        lambda x: x * 2, {}, EXPLICIT, [sharding('{"x"}, {}')], [sharding('{}, {"y"}')]
    )
    placed = jax.device_put(X, NamedSharding(EXPLICIT, PartitionSpec("x")))
    result = planned(placed)
    assert result.sharding.spec == PartitionSpec(None, "y")
    np.testing.assert_array_equal(result, X * 2)
    assert planned.lower(placed).compile().input_shardings[0][0].spec == PartitionSpec("x", None)


def test_donated_arguments_are_given_up() -> None:
    whole = [sharding('{"x"}, {}')]
    planned = jit_with(lambda x: x * 2, {}, AUTO, whole, whole, donate_argnums=0)
    placed = jax.device_put(X, NamedSharding(AUTO, PartitionSpec("x")))
    planned(placed)
    assert placed.is_deleted()


def test_the_compiled_boundary_is_the_planned_one() -> None:
    state, program, ins, outs = training()
    compiled = jit_with(step, {}, AUTO, ins, outs).lower(state, X).compile()
    found = jax.tree.leaves((compiled.input_shardings, compiled.output_shardings))
    wanted = [PartitionSpec(*(_names(dim) for dim in s.dims)) for s in (*ins, *outs)]
    assert [s.spec for s in found] == wanted
    assert len(program.in_avals) + len(program.out_avals) == len(found)


def _names(dim: DimSharding) -> Any:
    return dim.axes[0].name if dim.axes else None


def test_sub_axes_at_the_boundary_run() -> None:
    ins, outs = [sharding('{"y":(1)2}, {"x"}')], [sharding('{}, {"y":(2)2}')]
    result = jit_with(lambda x: x * 2, {}, AUTO, ins, outs)(X)
    np.testing.assert_array_equal(result, X * 2)
    assert result.sharding.shard_shape(result.shape) == (8, 8)


def test_keyword_and_static_arguments_work() -> None:
    def fn(x: Any, power: int, *, scale: Any) -> Any:
        return x**power * scale

    planned = jit_with(
        fn,
        {},
        AUTO,
        [sharding('{"x"}, {}'), Sharding.replicated_everywhere(0)],
        [sharding('{}, {"y"}')],
        static_argnums=1,
    )
    result = planned(X, 3, scale=2.0)
    np.testing.assert_allclose(result, X**3 * 2, rtol=1e-5)
    assert result.sharding.spec == PartitionSpec(None, "y")

    positional = jit_with(
        lambda x, power: x**power, {}, AUTO, [sharding('{"x"}, {}')], [None], static_argnums=1
    )
    np.testing.assert_allclose(positional(X, 2), X**2, rtol=1e-6)


def test_equinox_modules_go_in_and_come_out() -> None:
    model = eqx.nn.MLP(16, 16, 32, 1, key=jax.random.key(0))

    def fn(model: Any, x: Any) -> Any:
        def loss(model: Any) -> Any:
            return jnp.mean(jax.vmap(model)(x) ** 2)

        gradient = eqx.filter_grad(loss)(model)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, gradient))

    program = trace(fn, (model, X), mesh=MESH)
    ins = [
        sharding('{"y"}, {"x"}') if len(a.shape) == 2 else sharding('{"y"}')
        for a in program.in_avals
    ]
    planned = jit_with(fn, {}, AUTO, ins, ins[:-1], record=program.record)
    updated = planned(planned(model, X), X)
    assert updated.activation is model.activation
    expected = fn(fn(model, X), X)
    np.testing.assert_allclose(
        updated.layers[0].weight, expected.layers[0].weight, rtol=1e-4, atol=1e-6
    )
    assert updated.layers[0].weight.sharding.spec == PartitionSpec("y", "x")


def test_text_in_an_equinox_module_is_a_setting_of_it() -> None:
    """It was refused as a result that is text."""

    class Scaled(eqx.Module):  # type: ignore[misc]
        scale: Any
        activation: str = "relu"

    def fn(model: Any, x: Any) -> Any:
        return eqx.tree_at(lambda m: m.scale, model, model.scale - jnp.mean(x))

    program = trace(fn, (Scaled(X), X), mesh=MESH)
    assert [aval.shape for aval in program.out_avals] == [X.shape]


def test_flax_modules_go_in_and_come_out() -> None:
    module = nnx.Linear(16, 8, rngs=nnx.Rngs(0))

    def fn(module: Any, x: Any) -> Any:
        gradient = nnx.grad(lambda m: jnp.mean(m(x) ** 2))(module)
        return jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(module), gradient)

    program = trace(fn, (module, X), mesh=MESH)
    ins = [sharding(", ".join(['{"x"}'] + ["{}"] * (a.ndim - 1))) for a in program.in_avals]
    planned = jit_with(fn, {}, AUTO, ins, ins[:-1], record=program.record)
    found, expected = planned(module, X), fn(module, X)
    np.testing.assert_allclose(found["kernel"][...], expected["kernel"][...], rtol=1e-5)


# -- refusals --------------------------------------------------------------------------------------


def refusal(fn: Callable[..., Any], *args: Any, planned: Callable[..., Any] = scanned) -> str:
    program = trace(planned, (X, WS), mesh=MESH)
    with pytest.raises(PlanError) as caught:
        wrap(fn, {}, AUTO, record=program.record)(*args)
    return caught.value.what


def test_a_plan_for_another_program_is_refused_with_the_difference() -> None:
    def changed(x: Any, ws: Any) -> Any:
        return jax.lax.scan(lambda c, w: (jnp.sin(c @ w), jnp.sum(c * c, 1)), x, ws)

    def longer(x: Any, ws: Any) -> Any:
        return scanned(x * 2, ws)

    start = "the plan was made for another program: "
    assert refusal(scanned, X[:4], WS) == (
        f"{start}argument `x` is float32[4,16], the plan was made for float32[8,16]"
    )
    assert refusal(lambda x: x, X) == f"{start}it has 1 argument arrays, the plan was made for 2"
    assert refusal(changed, X, WS) == (
        f"{start}the first equation that differs is 0.jaxpr/1: 3:float32[8,16] = sin[accuracy=None]"
        " 2"
    )
    longer_text = refusal(longer, X, WS).replace("[out_dtype=None]", "[]")  # since JAX 0.10
    assert longer_text == (
        f"{start}it has 6 equations, the plan was made for 5; the first that differs is 0:"
        " 2:float32[8,16] = mul[] 0 2.0:float32[]"
    )
    assert refusal(lambda x, ws: list(scanned(x, ws)), X, WS) == (
        f"{start}its arguments or results have another tree structure, or keywords in the place of"
        " positions"
    )


def test_the_whole_refusal_says_where_and_what_to_do() -> None:
    program = trace(loss, (WS, X), mesh=MESH)
    other = trace(loss, (WS[:3], X), mesh=MESH)
    with pytest.raises(PlanError) as caught:
        wrap(loss, {}, AUTO, record=program.record)(WS[:3], X)
    assert str(caught.value) == (
        "the plan was made for another program: argument `ws` is float32[3,16,16], the plan was"
        " made for float32[5,16,16]\n"
        f"  where: `loss`, fingerprint {other.fingerprint[:12]}, planned"
        f" {program.fingerprint[:12]}\n"
        "  fix: use the function and argument types the plan was made with, or plan again"
    )


def test_a_function_that_does_not_trace_is_refused_on_the_call() -> None:
    with pytest.raises(ExportError):
        wrap(lambda x: x if x.sum() > 0 else -x, {}, AUTO)(X)


def test_an_abstract_mesh_runs_nothing_but_lowers() -> None:
    mesh = AbstractMesh((16, 4), ("x", "y"))
    planned = jit_with(loss, {}, mesh, [None, sharding('{"y"}, {}')], [None])
    assert 'sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>' in planned.lower(WS, X).as_text()
    with pytest.raises(InputError) as caught:
        planned(WS, X)
    assert str(caught.value) == (
        "mesh (x=16, y=4) is abstract: there are no devices to run on\n"
        "  where: `loss`\n"
        "  fix: pass a mesh of devices; planning, saving and lowering work without"
    )


def test_shardings_for_another_number_of_arrays_are_refused() -> None:
    with pytest.raises(PlanError) as caught:
        jit_with(loss, {}, AUTO, [None], [None])(WS, X)
    assert str(caught.value) == (
        "the plan has shardings for 1 argument arrays, the function has 2\n"
        "  where: `loss`\n"
        "  fix: call it with the arguments it was planned with, or plan again"
    )
