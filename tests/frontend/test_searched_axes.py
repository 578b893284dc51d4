"""What a mesh search needs of JAX: axes that shardings name, and meshes over present devices."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import mesh_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from autoshard.constraints import Group, Pin, Uses
from autoshard.frontend.device_orders import DeviceOrder
from autoshard.frontend.meshes import device_mesh, read_mesh
from autoshard.frontend.named_axes import named_axes
from autoshard.frontend.user_constraints import read_constraints
from autoshard.sharding import parse_mesh_sizes, parse_sharding


def test_axes_are_found_in_every_kind_of_sharding_with_where_they_are_named_first() -> None:
    shardings = {
        "in_shardings": (None, {"w": P(("data", "model"), None)}, P(P.UNCONSTRAINED)),
        "out_shardings": [P("data"), parse_sharding('<@mesh, [{"inner":(1)2}, {}]>')],
    }
    assert named_axes(shardings) == {
        "data": "in_shardings",
        "model": "in_shardings",
        "inner": "out_shardings",
    }


def test_axes_are_found_in_constraints() -> None:
    order = DeviceOrder(parse_mesh_sizes("data=8"))
    terms: list[Any] = [
        Pin("x", P("data")),
        Uses("w**", '<@mesh, [{"model"}, {?}]>'),
        Group("a", "b"),
    ]
    found = named_axes({"in_shardings": None}, read_constraints(terms, order))
    assert found == {"data": "pin `x`", "model": "uses of `w**`"}


def test_a_sharding_with_a_mesh_of_its_own_names_no_axis_of_the_search() -> None:
    mesh = jax.make_mesh((8,), ("line",), axis_types=(AxisType.Auto,))
    carried = parse_sharding('<mesh<["line"=8]>, [{"line"}]>')
    assert named_axes({"in_shardings": (NamedSharding(mesh, P("line")), carried)}) == {}


def ids(mesh: jax.sharding.Mesh | None) -> list[list[int]]:
    assert mesh is not None
    return np.vectorize(lambda device: device.id)(mesh.devices).tolist()  # type: ignore[no-any-return]


def test_a_mesh_is_over_the_first_devices_and_has_auto_axes() -> None:
    mesh = device_mesh(parse_mesh_sizes("data=2,model=2"))
    assert ids(mesh) == [[0, 1], [2, 3]]
    assert mesh is not None
    assert mesh.axis_names == ("data", "model")
    assert set(mesh.axis_types) == {AxisType.Auto}


def test_there_is_no_mesh_over_devices_that_are_not_there() -> None:
    assert device_mesh(parse_mesh_sizes("data=16")) is None


def test_devices_are_in_the_order_that_jax_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    def reversed_grid(sizes: Any, devices: Any, *, allow_split_physical_axes: bool) -> Any:
        assert allow_split_physical_axes
        return np.array(devices[::-1]).reshape(sizes)

    monkeypatch.setattr(mesh_utils, "create_device_mesh", reversed_grid)
    mesh = device_mesh(parse_mesh_sizes("data=2,model=2"))
    assert ids(mesh) == [[3, 2], [1, 0]]
    assert read_mesh(mesh)[0].device_ids == (3, 2, 1, 0)


def test_where_jax_finds_no_order_devices_are_taken_row_by_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("Failed to find assignment for logical_axis_index")

    monkeypatch.setattr(mesh_utils, "create_device_mesh", refuse)
    assert ids(device_mesh(parse_mesh_sizes("data=4,model=2"))) == [[0, 1], [2, 3], [4, 5], [6, 7]]
