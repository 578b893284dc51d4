"""Every way to write a mesh means the same mesh; devices are needed only to run."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

from autoshard.errors import AutoshardError, InputError
from autoshard.frontend.meshes import concrete_mesh, mesh_context, read_mesh
from autoshard.sharding import Mesh, MeshAxis, parse_mesh_sizes

MESH = parse_mesh_sizes("x=2,y=4")
EXPLICIT = jax.make_mesh((2, 4), ("x", "y"))


@pytest.mark.parametrize(
    "given",
    [
        "x=2,y=4",
        {"x": 2, "y": 4},
        MESH,
        AbstractMesh((2, 4), ("x", "y")),
        AbstractMesh((2, 4), ("x", "y"), (AxisType.Explicit,) * 2),
        EXPLICIT,
        jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2),
    ],
)
def test_all_spellings_of_a_mesh_are_the_same_mesh_and_axis_types_are_kept(given: Any) -> None:
    mesh, abstract, concrete = read_mesh(given)
    assert mesh == MESH
    assert dict(abstract.shape) == {"x": 2, "y": 4}
    assert abstract.axis_types == getattr(given, "axis_types", (AxisType.Auto,) * 2)
    assert concrete == (given if isinstance(given, jax.sharding.Mesh) else None)


def test_axes_of_size_one_are_fine() -> None:
    mesh, abstract, _ = read_mesh("data=1,model=8")
    assert mesh.num_devices == 8
    assert dict(abstract.shape) == {"data": 1, "model": 8}


def test_the_order_of_devices_is_kept_and_counts_from_the_mesh_itself() -> None:
    devices = np.array(jax.devices()[4:])[[1, 0, 3, 2]]
    mesh, _, concrete = read_mesh(jax.sharding.Mesh(devices, ("x",)))
    assert mesh == Mesh((MeshAxis("x", 4),), (1, 0, 3, 2))
    again = concrete_mesh(mesh, devices=jax.devices()[4:])
    assert concrete is not None
    assert again.devices.tolist() == concrete.devices.tolist()


def test_a_refined_mesh_has_the_same_devices_in_the_same_order() -> None:
    whole = concrete_mesh(Mesh(MESH.axes, (7, 6, 5, 4, 3, 2, 1, 0)))
    fine = concrete_mesh(
        Mesh(MESH.axes, (7, 6, 5, 4, 3, 2, 1, 0)),
        [MeshAxis("x", 2), MeshAxis("y_0", 2), MeshAxis("y_1", 2)],
    )
    assert fine.devices.shape == (2, 2, 2)
    assert fine.devices.ravel().tolist() == whole.devices.ravel().tolist()


@pytest.mark.parametrize("is_set", [False, True])
def test_the_context_does_not_depend_on_the_mesh_that_is_set(is_set: bool) -> None:
    if is_set:
        with jax.set_mesh(EXPLICIT):
            check_context()
            assert jax.sharding.get_mesh() == EXPLICIT
    else:
        check_context()


def check_context() -> None:
    large = AbstractMesh((64, 8), ("a", "b"))
    with mesh_context(large):
        assert jax.sharding.get_abstract_mesh() == large
        assert jax.sharding.get_mesh().empty
    with mesh_context(None):
        assert jax.sharding.get_abstract_mesh().empty


ERRORS: list[tuple[Any, str]] = [
    (
        7,
        "expected a mesh, found int\n"
        "  where: mesh=7\n"
        '  fix: pass a jax.sharding.Mesh, an AbstractMesh, text such as "data=2,model=4", or a'
        " mapping from axis name to size",
    ),
    (
        {},
        "the mesh has no axes\n"
        "  where: mesh={}\n"
        '  fix: give it at least one axis, as in "data=8"; one device is "data=1"',
    ),
    (
        {"x": 0},
        "a mesh axis has size 0, which is below 1\n"
        '  where: mesh axis "x"\n'
        "  fix: give every axis the number of devices along it, at least 1",
    ),
    (
        AbstractMesh((), ()),
        "the mesh has no axes\n"
        "  where: mesh=AbstractMesh((), axis_types=())\n"
        '  fix: give it at least one axis, as in "data=8"; one device is "data=1"',
    ),
    (
        AbstractMesh((2,), ("x",), (AxisType.Manual,)),
        "the mesh has Manual axes: x\n"
        "  where: mesh=AbstractMesh('x': 2, axis_types=(Manual,))\n"
        "  fix: plan outside shard_map, with the mesh that surrounds it",
    ),
]


@pytest.mark.parametrize(("given", "message"), ERRORS)
def test_what_is_no_mesh_is_refused(given: Any, message: str) -> None:
    with pytest.raises(AutoshardError) as caught:
        read_mesh(given)
    assert str(caught.value) == message


def test_a_mesh_larger_than_the_machine_says_what_is_missing() -> None:
    with pytest.raises(InputError) as caught:
        concrete_mesh(parse_mesh_sizes("x=3,y=3"))
    assert str(caught.value) == (
        "mesh (x=3, y=3) needs 9 devices and this machine has 8: 1 is missing\n"
        "  where: jax.devices() of platform cpu\n"
        "  fix: planning, printing and saving the plan work without them; run it where there are 9"
        " devices, or on CPU set XLA_FLAGS=--xla_force_host_platform_device_count=9 before"
        " importing jax"
    )
