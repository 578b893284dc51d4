"""Values pinned on one mesh and used on another: planned, priced, and run on eight devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.errors import AutoshardError, ConstraintError, InputError
from autoshard.hlo.compiled import CollectiveComparison, compare_collectives, read_compiled
from autoshard.plan import Plan
from autoshard.sharding import Mesh as OurMesh
from autoshard.sharding import Sharding, format_sharding

DEVICES = np.array(jax.devices())
PLAN = Mesh(DEVICES.reshape(4, 2), ("a", "b"))
CUBE = Mesh(DEVICES.reshape(2, 2, 2), ("x", "y", "z"))
LINE = Mesh(DEVICES, ("devices",))
NAMESAKE = Mesh(DEVICES.reshape(2, 4), ("a", "b"))  # the same names with other sizes
TRANSPOSED = Mesh(DEVICES.reshape(4, 2).T, ("y", "x"))
SWAPPED = Mesh(DEVICES[[0, 1, 2, 3, 4, 5, 7, 6]].reshape(4, 2), ("p", "q"))
SHUFFLED = Mesh(DEVICES[[3, 1, 0, 2, 7, 5, 6, 4]].reshape(2, 4), ("u", "v"))

KEYS = jax.random.split(jax.random.key(0), 3)
X, W1, W2 = (
    jax.random.normal(key, shape)
    for key, shape in zip(KEYS, [(64, 32), (32, 128), (128, 32)], strict=True)
)


def mlp(x: Any, w1: Any, w2: Any) -> Any:
    return jnp.tanh(x @ w1) @ w2


def mlp_with(*shardings: NamedSharding) -> Callable[..., Any]:
    """The same, its hidden layer put where each sharding says, in this order."""

    def program(x: Any, w1: Any, w2: Any) -> Any:
        hidden = jnp.tanh(x @ w1)
        for sharding in shardings:
            hidden = lax.with_sharding_constraint(hidden, sharding)
        return hidden @ w2

    return program


def planned(fn: Any, *args: Any, mesh: Any = PLAN, **options: Any) -> Plan:
    return autoshard.optimize(fn, *args, mesh=mesh, hardware="cpu-host", baselines=False, **options)


def compared(plan: Plan, *args: Any) -> CollectiveComparison:
    """The plan's collectives beside those of the program compiled for eight devices."""
    compiled = plan.jit(donate_argnums=()).lower(*args).compile()
    return compare_collectives(
        plan.data.collectives, read_compiled(compiled, plan.data.mesh).collectives
    )


def hidden_of(plan: Plan) -> str:
    """Where the plan has the value behind the last constraint of `mlp_with`."""
    assert plan.traced is not None
    equations = plan.traced.jaxpr.jaxpr.eqns
    last = max(i for i, e in enumerate(equations) if e.primitive.name == "sharding_constraint")
    return format_sharding(plan.data.values[f"{last}.0"])


def kinds(plan: Plan) -> list[str]:
    return sorted({collective.kind for collective in plan.data.collectives})


SWAPPED_TEXT = '<mesh<["p"=4, "q"=2], device_ids=[0, 1, 2, 3, 4, 5, 7, 6]>'


@pytest.mark.parametrize(
    ("sharding", "expected"),
    [
        (NamedSharding(CUBE, P("z", "x")), '<@mesh, [{"b"}, {"a":(1)2}]>'),
        (NamedSharding(CUBE, P(("y", "x"))), '<@mesh, [{"a":(2)2, "a":(1)2}, {}]>'),
        (NamedSharding(LINE, P("devices")), '<@mesh, [{"a", "b"}, {}]>'),
        (NamedSharding(LINE, P(None, "devices")), '<@mesh, [{}, {"a", "b"}]>'),
        (NamedSharding(NAMESAKE, P("a", "b")), '<@mesh, [{"a":(1)2}, {"a":(2)2, "b"}]>'),
        (NamedSharding(TRANSPOSED, P("x", "y")), '<@mesh, [{"a"}, {"b"}]>'),
        (NamedSharding(TRANSPOSED, P("y")), '<@mesh, [{"b"}, {}]>'),
        (NamedSharding(SWAPPED, P("p")), '<@mesh, [{"a"}, {}]>'),
        (NamedSharding(SWAPPED, P("p", "q")), f'{SWAPPED_TEXT}, [{{"p"}}, {{"q"}}]>'),
        (NamedSharding(SWAPPED, P("q", "p")), f'{SWAPPED_TEXT}, [{{"q"}}, {{"p"}}]>'),
        (NamedSharding(SWAPPED, P(("q", "p"))), f'{SWAPPED_TEXT}, [{{"q", "p"}}, {{}}]>'),
        (
            NamedSharding(SHUFFLED, P("u", "v")),
            '<mesh<["u"=2, "v"=4], device_ids=[3, 1, 0, 2, 7, 5, 6, 4]>, [{"u"}, {"v"}]>',
        ),
    ],
    ids=str,
)
def test_a_value_pinned_on_another_mesh_is_there_and_moves_as_the_plan_says(
    sharding: NamedSharding, expected: str
) -> None:
    plan = planned(mlp_with(sharding), X, W1, W2)
    assert hidden_of(plan) == expected
    np.testing.assert_allclose(plan.jit()(X, W1, W2), mlp(X, W1, W2), atol=1e-4)
    assert plan.data.misses == ()
    comparison = compared(plan, X, W1, W2)
    assert comparison.predicted_bytes == comparison.compiled_bytes


def test_two_meshes_in_orders_of_their_own_are_used_in_one_program() -> None:
    """JAX by itself refuses such a program: "incompatible devices for jitted computation"."""

    def program(x: Any, w1: Any, w2: Any) -> Any:
        hidden = lax.with_sharding_constraint(x @ w1, NamedSharding(SWAPPED, P("p", "q")))
        hidden = jnp.tanh(hidden)
        return lax.with_sharding_constraint(hidden, NamedSharding(SHUFFLED, P("u", "v"))) @ w2

    with pytest.raises(ValueError, match="incompatible devices"):
        jax.jit(program)(X, W1, W2)
    plan = planned(program, X, W1, W2)
    np.testing.assert_allclose(plan.jit()(X, W1, W2), mlp(X, W1, W2), atol=1e-4)
    comparison = compared(plan, X, W1, W2)
    assert comparison.predicted_bytes == comparison.compiled_bytes > 0


def test_the_choice_changes_where_another_mesh_is_asked_for() -> None:
    free = planned(mlp, X, W1, W2)
    pinned = planned(mlp_with(NamedSharding(SWAPPED, P("q", "p"))), X, W1, W2)
    assert kinds(free) == []
    assert "collective-permute" in kinds(pinned)
    assert free.data.values["0.0"] != pinned.data.values["0.0"]
    assert pinned.data.communication_seconds > 0 == free.data.communication_seconds


@pytest.mark.parametrize(
    ("asked", "mesh_given"),
    [
        (NamedSharding(CUBE, P("z", None)), CUBE),
        (NamedSharding(LINE, P("devices", None)), LINE),
        (NamedSharding(TRANSPOSED, P("x", "y")), PLAN),
        (NamedSharding(SWAPPED, P("p", "q")), None),
        (NamedSharding(SWAPPED, P("q", None)), None),
    ],
    ids=str,
)
def test_arguments_and_results_may_be_pinned_on_another_mesh(
    asked: NamedSharding, mesh_given: Mesh | None
) -> None:
    plan = planned(mlp, X, W1, W2, in_shardings=(asked, None, None), out_shardings=asked)
    # JAX takes one order of devices, so a mesh in the plan's order is given back as it was.
    for given in (plan.in_shardings[0], plan.out_shardings):
        assert given.devices_indices_map(X.shape) == asked.devices_indices_map(X.shape)
        assert given._internal_device_list == NamedSharding(PLAN, P())._internal_device_list
        if mesh_given is not None:
            assert given.mesh == mesh_given
    expected = mlp(X, W1, W2)
    arrays = [np.asarray(array) for array in (X, W1, W2)]
    plain = jax.jit(mlp, in_shardings=plan.in_shardings, out_shardings=plan.out_shardings)
    np.testing.assert_allclose(plain(*arrays), expected, atol=1e-4)
    # The user's own array, in the order of the user's mesh, is taken as it lies.
    result = plan.jit()(jax.device_put(X, asked), W1, W2)
    np.testing.assert_allclose(result, expected, atol=1e-4)
    assert result.sharding.devices_indices_map(X.shape) == asked.devices_indices_map(X.shape)
    comparison = compared(plan, X, W1, W2)
    assert comparison.predicted_bytes == comparison.compiled_bytes


def test_a_plan_with_another_mesh_is_saved_and_read(tmp_path: Any) -> None:
    asked = NamedSharding(SWAPPED, P("p", "q"))
    plan = planned(mlp, X, W1, W2, in_shardings=(asked, None, None))
    plan.save(tmp_path / "plan.json")
    again = autoshard.load_plan(tmp_path / "plan.json", mlp, X, W1, W2)
    assert again.data.arguments[0].sharding == plan.data.arguments[0].sharding
    np.testing.assert_allclose(again.jit()(X, W1, W2), mlp(X, W1, W2), atol=1e-4)
    assert "P('p', 'q') on mesh (p=4, q=2; device_ids=[0, 1, 2, 3, 4, 5, 7, 6])" in plan.report(200)


def test_a_state_on_another_mesh_stays_there_from_step_to_step() -> None:
    def step(w: Any, x: Any) -> Any:
        return w - 0.01 * jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).sum())(w)

    asked = NamedSharding(SWAPPED, P("p", "q"))
    plan = planned(step, W1, X, in_shardings=(asked, None), donate_argnums=0)
    assert plan.data.arguments[0].sharding == plan.data.results[0].sharding
    run = plan.jit(donate_argnums=())
    # However the state is made, it lies as asked.
    for made in (plan.shard(np.asarray(W1)), plan.init(lambda: W1 + 0)()):
        np.testing.assert_allclose(made, W1)
        assert made.sharding.devices_indices_map(W1.shape) == asked.devices_indices_map(W1.shape)
    state = jax.device_put(W1, asked)
    for _ in range(2):
        state = run(state, X)
    np.testing.assert_allclose(state, step(step(W1, X), X), atol=1e-4)


def test_a_constraint_inside_a_loop_is_on_another_mesh_in_every_turn() -> None:
    def loop(x: Any, w: Any, sharding: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            hidden = jnp.tanh(carry @ w)
            if sharding is not None:
                hidden = lax.with_sharding_constraint(hidden, sharding)
            return hidden, None

        return lax.scan(body, x, None, length=4)[0]

    asked = NamedSharding(SWAPPED, P("p", "q"))
    square = W1[:, :32]
    plan = planned(lambda x, w: loop(x, w, asked), X, square)
    np.testing.assert_allclose(plan.jit()(X, square), loop(X, square, None), atol=1e-4)
    comparison = compared(plan, X, square)
    assert comparison.predicted_bytes == comparison.compiled_bytes > 0


def test_the_plan_may_be_for_the_mesh_in_another_order() -> None:
    """What is on the devices in plain order is then the one that has to be permuted to."""
    reversed_plan = Mesh(DEVICES[::-1].reshape(4, 2), ("a", "b"))
    plan = planned(mlp_with(NamedSharding(PLAN, P("a", "b"))), X, W1, W2, mesh=reversed_plan)
    assert hidden_of(plan).startswith('<mesh<["a"=4, "b"=2], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>')
    np.testing.assert_allclose(plan.jit()(X, W1, W2), mlp(X, W1, W2), atol=1e-4)
    comparison = compared(plan, X, W1, W2)
    assert comparison.predicted_bytes == comparison.compiled_bytes > 0


@pytest.mark.parametrize(
    ("asked", "kind", "message"),
    [
        (
            NamedSharding(Mesh(DEVICES[:4], ("a",)), P("a")),
            InputError,
            "the sharding is on mesh (a=4) of 4 devices, the plan is for mesh (a=4, b=2) of 8\n"
            "  where: in_shardings of `x`\n"
            "  fix: use meshes over the same devices",
        ),
        (
            Sharding(inlined_mesh=OurMesh((), (3,))),
            ConstraintError,
            "the sharding puts the whole tensor on device 3 alone, which a plan cannot\n"
            "  where: in_shardings of `x`\n"
            "  fix: replicate it, closed with no axes, so that every device holds it; or move it to"
            " one device outside of the program",
        ),
        (
            Sharding(inlined_mesh=OurMesh()),
            ConstraintError,
            "the sharding is on an empty mesh, which says nothing about devices\n"
            "  where: in_shardings of `x`\n"
            "  fix: write it on mesh (a=4, b=2) or another mesh over its devices, or leave it out",
        ),
    ],
)
def test_a_mesh_that_is_none_over_the_same_devices_is_refused(
    asked: Any, kind: type[AutoshardError], message: str
) -> None:
    with pytest.raises(kind) as caught:
        planned(mlp, X, W1, W2, in_shardings=(asked, None, None))
    assert str(caught.value) == message


def test_a_constraint_on_other_devices_is_refused_with_its_line() -> None:
    other = NamedSharding(Mesh(DEVICES[4:].reshape(2, 2), ("a", "b")), P("a"))
    with pytest.raises(InputError) as caught:
        planned(mlp_with(other), X, W1, W2, mesh=Mesh(DEVICES[:4].reshape(2, 2), ("a", "b")))
    assert caught.value.what == (
        "the sharding is on devices [4, 5, 6, 7], the plan is for devices [0, 1, 2, 3]"
    )
    assert caught.value.where.startswith("sharding_constraint at ")
    assert "test_meshes.py" in caught.value.where


def test_a_group_is_on_another_mesh_where_one_of_its_members_is() -> None:
    def update(w: Any, g: Any) -> Any:
        return w - 0.1 * jnp.tanh(g)

    def on(plan: Plan) -> set[str]:
        tensors = (*plan.data.arguments, *plan.data.results)
        return {format_sharding(tensor.sharding) for tensor in tensors}

    there = f'{SWAPPED_TEXT}, [{{"p", "q"}}, {{}}]>'
    alone = planned(update, X, X, constraints={"w": there})
    assert there in on(alone)
    assert len(on(alone)) == 2
    plan = planned(
        update, X, X, constraints=[autoshard.Pin("w", there), autoshard.Group("w", "g", "result")]
    )
    assert on(plan) == {there}
    np.testing.assert_allclose(plan.jit()(X, X), update(X, X), rtol=1e-6)
