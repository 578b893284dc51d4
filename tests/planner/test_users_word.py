"""Shardings a user writes in JAX are hard: each is found again in the plan."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental.shard_alike import shard_alike
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from autoshard.errors import ConstraintError, ExportError, InputError, ShardingError
from autoshard.graph.program import OpKind
from autoshard.layouts import Layout, refines
from autoshard.planning.solution import Solution
from autoshard.sharding import parse_mesh_sizes
from tests.planner.traced import planned

X = jax.ShapeDtypeStruct((16, 32), jnp.float32)
W = jax.ShapeDtypeStruct((32, 64), jnp.float32)
DATA, MODEL = 0, 1
U = P.UNCONSTRAINED


def jax_mesh(text: str) -> jax.sharding.Mesh:
    mesh = parse_mesh_sizes(text)
    sizes = tuple(axis.size for axis in mesh.axes)
    return jax.make_mesh(sizes, mesh.axis_names, axis_types=(AxisType.Auto,) * len(sizes))


def argument_layouts(solution: Solution) -> list[Layout]:
    graph = solution.graph
    return [solution.decoded.layouts[op.results[0]] for op in graph.arguments]


def result_layouts(solution: Solution) -> list[Layout]:
    graph = solution.graph
    return [solution.decoded.candidates[op.index].operands[0] for op in graph.results]


def constraint_layouts(solution: Solution) -> list[Layout]:
    ops = [op for op in solution.graph.ops if op.kind is OpKind.CONSTRAINT]
    return [solution.decoded.layouts[op.results[0]] for op in ops]


def matmul(x: Any, w: Any) -> Any:
    return jnp.tanh(x) @ w


@pytest.mark.parametrize(
    ("spec", "layout"),
    [
        (P(), ((), ())),
        (P("data"), ((DATA,), ())),
        (P(None, "model"), ((), (MODEL,))),
        (P(("model", "data")), ((MODEL, DATA), ())),
        (P("model", "data"), ((MODEL,), (DATA,))),
        (P(("data", "model"), None), ((DATA, MODEL), ())),
    ],
)
def test_in_and_out_shardings_are_kept(spec: P, layout: Layout) -> None:
    solution = planned(matmul, X, W, in_shardings=(spec, None))
    assert argument_layouts(solution)[0] == layout
    solution = planned(matmul, X, W, out_shardings=spec)
    assert result_layouts(solution) == [layout]


@pytest.mark.parametrize(
    ("spec", "fixed"),
    [
        (P(U, "model"), ((), (MODEL,))),
        (P("data", U), ((DATA,), ())),
        (P(U, U), ((), ())),
    ],
)
def test_unconstrained_dimensions_are_free_and_only_they(spec: P, fixed: Layout) -> None:
    solution = planned(matmul, X, W, in_shardings=(spec, P()), out_shardings=spec)
    for layout in (argument_layouts(solution)[0], result_layouts(solution)[0]):
        for have, want, entry in zip(layout, fixed, spec, strict=True):
            assert have == want or entry is U


def test_an_unconstrained_dimension_is_cut_where_that_pays() -> None:
    big = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
    solution = planned(
        lambda x: jnp.sin(x) @ x, big, in_shardings=(P(U, U),), out_shardings=P(U, None)
    )
    assert result_layouts(solution)[0] != ((), ())
    assert result_layouts(solution)[0][1] == ()


def test_a_constraint_in_the_function_is_kept() -> None:
    def fn(x: Any, w: Any) -> Any:
        return lax.with_sharding_constraint(jnp.tanh(x), P("model", "data")) @ w

    solution = planned(fn, X, W)
    assert constraint_layouts(solution) == [((MODEL,), (DATA,))]


def test_a_constraint_in_a_scan_body_is_kept() -> None:
    def fn(x: Any, w: Any) -> Any:
        def body(carry: Any, _: None) -> tuple[Any, None]:
            inner = lax.with_sharding_constraint(carry @ w, P(None, ("model", "data")))
            return inner @ w.T, None

        return lax.scan(body, x, None, length=3)[0]

    solution = planned(fn, X, W)
    assert constraint_layouts(solution) == [((), (MODEL, DATA))]
    graph = solution.graph
    constraint = next(op for op in graph.ops if op.kind is OpKind.CONSTRAINT)
    assert graph.regions[constraint.region].kind == "loop"
    assert constraint.repeat == 3


def test_a_constraint_with_open_dimensions_is_only_extended() -> None:
    def fn(x: Any, w: Any) -> Any:
        return lax.with_sharding_constraint(jnp.tanh(x), P("data", U)) @ w

    (layout,) = constraint_layouts(planned(fn, X, W))
    assert layout[0] == (DATA,)


def test_constraints_under_grad_and_remat_are_kept_everywhere() -> None:
    def loss(w: Any, x: Any) -> Any:
        def block(x: Any) -> Any:
            return jnp.tanh(lax.with_sharding_constraint(x @ w, P("data", "model")))

        return jax.checkpoint(block)(x).sum()

    solution = planned(jax.grad(loss), W, X)
    found = constraint_layouts(solution)
    assert len(found) >= 2
    assert set(found) == {((DATA,), (MODEL,))}


def test_shard_alike_arguments_end_alike() -> None:
    def fn(x: Any, y: Any) -> Any:
        return shard_alike(x, y)

    solution = planned(fn, X, X, in_shardings=(P("model"), None))
    assert argument_layouts(solution) == [((MODEL,), ())] * 2


def test_a_donated_state_keeps_its_sharding() -> None:
    def step(state: Any, x: Any) -> Any:
        return {"w": state["w"] + x.T @ x @ state["w"]}

    state = {"w": W}
    solution = planned(step, state, X, in_shardings=({"w": P("model")}, None), donate_argnums=(0,))
    assert result_layouts(solution) == [((MODEL,), ())]


def test_two_pins_in_a_shard_alike_group_name_both() -> None:
    def fn(x: Any, y: Any) -> Any:
        return shard_alike(x, y)

    with pytest.raises(ConstraintError) as caught:
        planned(fn, X, X, in_shardings=(P("data"), P("model")))
    assert caught.value.what == (
        "tensors that must be sharded alike have no sharding in common:"
        ' argument x: f32[16, 32] is asked to be <@mesh, [{"data"}, {}]>;'
        ' argument y: f32[16, 32] is asked to be <@mesh, [{"model"}, {}]>'
    )
    assert caught.value.where == "one shard_alike group"


def test_a_state_pinned_differently_in_and_out_names_both() -> None:
    def step(state: Any) -> Any:
        return {"w": state["w"] * 2}

    with pytest.raises(ConstraintError) as caught:
        planned(
            step,
            {"w": W},
            in_shardings=({"w": P("data")},),
            out_shardings={"w": P(None, "data")},
            donate_argnums=(0,),
        )
    assert "argument state['w']: f32[32, 64]" in caught.value.what
    assert '<@mesh, [{"data"}, {}]>' in caught.value.what
    assert "result result['w']: f32[32, 64]" in caught.value.what
    assert '<@mesh, [{}, {"data"}]>' in caught.value.what


def test_a_constraint_that_does_not_divide_names_the_line_and_the_fix() -> None:
    def fn(x: Any) -> Any:
        return lax.with_sharding_constraint(x[:15], P("data"))

    with pytest.raises(ConstraintError) as caught:
        planned(fn, X)
    assert caught.value.what == "dimension 0 has size 15, which 2 shards do not divide"
    assert caught.value.where.startswith("sharding constraint at ")
    assert "test_users_word.py:" in caught.value.where
    assert caught.value.where.endswith("(fn): f32[15, 32]")
    assert caught.value.fix == "pad it to 16, or shard another dimension"


def test_an_argument_that_does_not_divide_is_refused() -> None:
    odd = jax.ShapeDtypeStruct((15, 32), jnp.float32)
    with pytest.raises((ConstraintError, ShardingError)) as caught:
        planned(lambda x: x * 2, odd, in_shardings=(P("data"),))
    assert "dimension 0 has size 15, which " in caught.value.what
    assert "2 shards" in caught.value.what
    assert "`x`" in caught.value.where
    assert caught.value.fix.startswith("pad ")


def test_an_unknown_axis_is_refused() -> None:
    with pytest.raises((ConstraintError, ShardingError)) as caught:
        planned(lambda x: x * 2, X, in_shardings=(P("nope"),))
    assert '"nope"' in caught.value.what
    assert "`x`" in caught.value.where
    with pytest.raises((ConstraintError, ExportError)) as caught_inside:
        planned(lambda x: lax.with_sharding_constraint(x, P("nope")), X)
    assert "nope" in caught_inside.value.what


def test_a_sharding_on_a_finer_mesh_is_a_sub_axis() -> None:
    fine = NamedSharding(jax_mesh("data=2,a=2,b=2"), P("a", "data"))
    solution = planned(matmul, X, W, in_shardings=(fine, None))
    parts = solution.encoded.parts
    assert parts.axes == ("data", "model", "model")
    assert argument_layouts(solution)[0] == ((1,), (0,))


def border(solution: Solution, kind: OpKind) -> list[tuple[Layout, Layout]]:
    """Layouts outside and inside of what crosses the border of a shard_map."""
    found = []
    for op in solution.graph.ops:
        if op.kind is kind:
            candidate = solution.decoded.candidates[op.index]
            sides = (candidate.operands[0], candidate.results[0])
            found.append(sides if kind is OpKind.ENTER_MANUAL else sides[::-1])
    return found


def test_a_fully_manual_shard_map_stays_as_written() -> None:
    mesh = jax_mesh("data=2,model=4")

    def fn(x: Any, w: Any) -> Any:
        body = jax.shard_map(
            lambda a, b: lax.psum(a @ b, "model"),
            mesh=mesh,
            in_specs=(P("data", "model"), P("model", None)),
            out_specs=P("data", None),
        )
        return body(jnp.tanh(x), w)

    solution = planned(fn, X, W)
    assert border(solution, OpKind.ENTER_MANUAL) == [
        (((DATA,), (MODEL,)), ((), ())),
        (((MODEL,), ()), ((), ())),
    ]
    assert border(solution, OpKind.LEAVE_MANUAL) == [(((DATA,), ()), ((), ()))]


def test_what_enters_a_shard_map_is_resharded_at_its_border_and_costs() -> None:
    mesh = jax_mesh("data=2,model=4")

    def fn(x: Any) -> Any:
        return jax.shard_map(
            jnp.tanh, mesh=mesh, in_specs=P("data", "model"), out_specs=P("data", "model")
        )(x)

    solution = planned(fn, X, in_shardings=(P("model", "data"),))
    assert solution.account.communication_seconds > 0
    assert solution.account.collectives
    assert not planned(fn, X).account.collectives


def partial_manual(mesh: jax.sharding.Mesh) -> Any:
    def fn(x: Any, w: Any) -> Any:
        body = jax.shard_map(
            lambda a, b: jnp.tanh(a @ b) @ b.T,
            mesh=mesh,
            in_specs=(P("data"), P()),
            out_specs=P("data"),
            axis_names={"data"},
        )
        return body(x, w)

    return fn


def test_axes_a_shard_map_leaves_free_may_cut_inside_and_manual_ones_may_not() -> None:
    big = jax.ShapeDtypeStruct((2048, 4096), jnp.float32)
    wide = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
    solution = planned(partial_manual(jax_mesh("data=2,model=4")), big, wide)
    graph = solution.graph
    inside = [
        op
        for op in graph.ops
        if op.kind is OpKind.COMPUTE and graph.manual_axes(op.region) == {"data"}
    ]
    assert inside
    used = {
        part
        for op in inside
        for layout in (
            *solution.decoded.candidates[op.index].operands,
            *solution.decoded.candidates[op.index].results,
        )
        for dim in layout
        for part in dim
    }
    assert used == {MODEL}
    offered = {
        part
        for node, op in enumerate(solution.encoded.ops)
        if graph.manual_axes(graph.ops[op].region)
        for candidate in solution.encoded.candidates[node]
        if graph.ops[op].kind is OpKind.COMPUTE
        for layout in (*candidate.operands, *candidate.results)
        for dim in layout
        for part in dim
    }
    assert offered == {MODEL}


def test_what_is_cut_inside_a_shard_map_is_cut_outside_below_the_manual_axes() -> None:
    solution = planned(partial_manual(jax_mesh("data=2,model=4")), X, W)
    for outside, inside in border(solution, OpKind.ENTER_MANUAL)[:1]:
        assert outside[0][:1] == (DATA,)
        assert outside == ((DATA, *inside[0]), inside[1])
        assert refines(outside, ((DATA,), ()))


def test_a_constraint_on_a_mesh_of_other_devices_is_refused() -> None:
    other = NamedSharding(jax_mesh("data=4"), P("data"))
    with pytest.raises(InputError) as caught:
        planned(lambda x: lax.with_sharding_constraint(x * 2, other), X)
    assert caught.value.what == (
        "the sharding is on mesh (data=4) of 4 devices, the plan is for mesh (data=2, model=4) of 8"
    )


def test_a_constraint_on_a_finer_mesh_is_a_sub_axis() -> None:
    fine = NamedSharding(jax_mesh("data=2,a=2,b=2"), P("a", "data"))
    solution = planned(lambda x, w: lax.with_sharding_constraint(x, fine) @ w, X, W)
    assert constraint_layouts(solution) == [((1,), (0,))]
