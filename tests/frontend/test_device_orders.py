"""Meshes of a program in other device orders, said as orders of the plan's devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import ClosedJaxpr
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from autoshard.errors import InputError
from autoshard.frontend.device_orders import DeviceOrder, in_order
from autoshard.frontend.meshes import read_mesh
from autoshard.sharding import Mesh, MeshAxis, parse_mesh_sizes

DEVICES = np.array(jax.devices())
PLAN = jax.sharding.Mesh(DEVICES.reshape(4, 2), ("a", "b"))
REVERSED = jax.sharding.Mesh(DEVICES[::-1], ("r",))
X = jax.ShapeDtypeStruct((16, 16), jnp.float32)


def order_of(mesh: Any) -> DeviceOrder:
    ours, _, concrete = read_mesh(mesh)
    return DeviceOrder.of(ours, concrete)


@pytest.mark.parametrize(
    ("plan", "other", "expected"),
    [
        (PLAN, jax.sharding.Mesh(DEVICES, ("r",)), None),
        (PLAN, REVERSED, (7, 6, 5, 4, 3, 2, 1, 0)),
        (PLAN, AbstractMesh((8,), ("r",)), None),
        # Relative to the plan's order, whatever that is.
        (REVERSED, PLAN, (7, 6, 5, 4, 3, 2, 1, 0)),
        (REVERSED, jax.sharding.Mesh(DEVICES[::-1].reshape(2, 4), ("c", "d")), None),
        # Without devices of its own, the plan is for those of the program, by rank ...
        ("a=4,b=2", REVERSED, (7, 6, 5, 4, 3, 2, 1, 0)),
        ("a=4", jax.sharding.Mesh(DEVICES[[7, 4, 6, 5]], ("r",)), (3, 0, 2, 1)),
        # ... and a mesh with its axes is the plan's own.
        ("r=8", REVERSED, None),
    ],
)
def test_device_ids_are_places_in_the_plans_order(
    plan: Any, other: Any, expected: tuple[int, ...] | None
) -> None:
    found = order_of(plan).read_mesh(other)
    axes = tuple(MeshAxis(name, size) for name, size in other.shape.items())
    assert found == Mesh(axes, expected)


def test_a_sharding_with_an_order_beside_its_mesh_is_read_with_both() -> None:
    given = in_order(REVERSED, P("r"), (1, 0, 2, 3, 4, 5, 6, 7))
    assert order_of(PLAN).mesh_of(given).device_ids == (6, 7, 5, 4, 3, 2, 1, 0)
    pieces = {d.id: s[0].start for d, s in given.devices_indices_map((8,)).items()}
    assert [pieces[device] or 0 for device in (6, 7, 5)] == [0, 1, 2]


def test_other_devices_are_refused() -> None:
    order = order_of(jax.sharding.Mesh(DEVICES[:4], ("a",)))
    with pytest.raises(InputError) as caught:
        order.read_mesh(jax.sharding.Mesh(DEVICES[4:], ("a",)), "argument x")
    assert str(caught.value) == (
        "the sharding is on devices [4, 5, 6, 7], the plan is for devices [0, 1, 2, 3]\n"
        "  where: argument x\n"
        "  fix: use meshes over the same devices"
    )


def shardings_of(closed: ClosedJaxpr) -> list[NamedSharding]:
    """Those of every constraint and every inner jit, in program order."""
    found = []
    for eqn in closed.jaxpr.eqns:
        if eqn.primitive.name == "sharding_constraint":
            found.append(eqn.params["sharding"])
        if "in_shardings" in eqn.params:
            found += [*eqn.params["in_shardings"], *eqn.params["out_shardings"]]
            found += shardings_of(eqn.params["jaxpr"])
    return found


def test_shardings_in_another_order_are_rewritten_wherever_they_stand() -> None:
    there = NamedSharding(REVERSED, P("r"))

    def program(x: Any) -> Any:
        inner = jax.jit(
            lambda y: lax.with_sharding_constraint(y * 2, there),
            in_shardings=there,
            out_shardings=NamedSharding(PLAN, P("a")),
        )
        return lax.with_sharding_constraint(inner(x), there)

    found = shardings_of(order_of(PLAN).rewrite(jax.make_jaxpr(program)(X)))
    moved = NamedSharding(REVERSED.abstract_mesh, P("r"), _logical_device_ids=tuple(range(8))[::-1])
    assert found == [moved, NamedSharding(PLAN, P("a")), moved, moved]


def test_a_program_in_the_plans_order_is_left_as_it_is() -> None:
    closed = jax.make_jaxpr(lambda x: lax.with_sharding_constraint(x, NamedSharding(PLAN, P("b"))))(
        X
    )
    assert order_of(PLAN).rewrite(closed) is closed
    assert DeviceOrder(parse_mesh_sizes("a=4,b=2")).rewrite(closed) is closed
