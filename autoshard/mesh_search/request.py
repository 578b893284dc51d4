"""What a user says of the mesh: one of their own, or how many devices to find one for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoshard.errors import InputError
from autoshard.frontend.device_orders import DeviceOrder
from autoshard.frontend.meshes import (
    device_mesh,
    mesh_in_context,
    num_present_devices,
    present_devices,
    read_mesh,
)
from autoshard.frontend.named_axes import named_axes
from autoshard.frontend.user_constraints import read_constraints
from autoshard.mesh_search.shapes import check_axis_names, check_devices, possible_meshes
from autoshard.plans.searched_meshes import TriedMesh
from autoshard.sharding import Mesh, MeshAxis
from cost_models import Hardware

AUTO = "auto"

Reading = tuple[Mesh, Any, Any]
"""A mesh in our terms, the JAX mesh to trace under, and the devices if there are any."""


@dataclass(frozen=True, slots=True)
class MeshRequest:
    """The mesh to plan for, or what to search.

    Args:
        given: The user's own; None where one is searched for.
        num_devices: To search for; 0 where a mesh is given.
        axis_names: Of the meshes to search, outermost first.
    """

    given: Reading | None
    num_devices: int = 0
    axis_names: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[Any, ...]:
        """Those of the mesh; of one that is searched, this machine's where it has as many."""
        if self.given is None:
            return present_devices() if num_present_devices() == self.num_devices else ()
        return () if self.given[2] is None else tuple(self.given[2].devices.flat)

    @property
    def text(self) -> str:
        if self.given is None:
            return f"a mesh of {self.num_devices} devices"
        return str(self.given[0])


@dataclass(frozen=True, slots=True)
class MeshChoice:
    """The meshes to choose from; a single one that nobody searches for has no record."""

    readings: Mapping[Mesh, Reading]
    refused: tuple[TriedMesh, ...] = ()
    is_search: bool = False

    @property
    def meshes(self) -> tuple[Mesh, ...]:
        return tuple(self.readings)

    def only(self, mesh: Mesh) -> MeshChoice:
        """One of them, with nothing to search."""
        return MeshChoice({mesh: self.readings[mesh]})


def read_request(mesh: Any, devices: Any, axis_names: Any) -> MeshRequest:
    """The options `mesh`, `devices` and `axis_names`, as `optimize` has them.

    Raises:
        InputError: They say nothing, contradict one another, or cannot be used.
        ShardingError: An axis size is not a whole number of at least 1.
    """
    count = None if devices is None else check_devices(devices)
    if mesh is None and count is None:
        mesh = mesh_in_context()
    if mesh is None and count is None:
        raise InputError(
            "neither a mesh nor a number of devices is given, and jax.set_mesh has set none",
            where="mesh and devices",
            fix='give a mesh, as in mesh="data=2,model=4", or let one be searched: devices=8, or'
            ' mesh="auto" for the devices of this machine',
        )
    if mesh is None or (isinstance(mesh, str) and mesh.strip() == AUTO):
        names = check_axis_names(axis_names)
        return MeshRequest(None, num_present_devices() if count is None else count, names)
    reading = read_mesh(mesh)
    if count is not None and reading[0].num_devices != count:
        raise InputError(
            f"the mesh has {reading[0].num_devices} devices, and devices is {count}",
            where=f"{reading[0]}, devices={count}",
            fix="leave one of them out: a mesh says how many devices it has, and without it one is"
            " searched",
        )
    return MeshRequest(reading)


def named_in_search(
    request: MeshRequest, shardings: Mapping[str, Any], constraints: Any
) -> Mapping[str, str]:
    """The axes that a user's shardings and constraints name, and where; of a given mesh, none."""
    if request.given is not None:
        return {}
    line = Mesh((MeshAxis(request.axis_names[0], request.num_devices),))
    return named_axes(shardings, read_constraints(constraints, DeviceOrder(line)))


def mesh_choice(request: MeshRequest, hardware: Hardware, named: Mapping[str, str]) -> MeshChoice:
    """The meshes that are possible on a machine and have all axes that the user's shardings name.

    A mesh of as many devices as this machine has is over these, in an order that suits their links.

    Args:
        request: What the user says of the mesh.
        hardware: To lay meshes on.
        named: By axis that shardings name, where.

    Raises:
        InputError: There is none.
    """
    if request.given is not None:
        return MeshChoice({request.given[0]: request.given})
    names = request.axis_names
    for name, where in named.items():
        if name not in names:
            raise InputError(
                f'"{name}" is none of the axes of the meshes to search, which are called'
                f" {', '.join(names)}",
                where=where,
                fix="name all axes that a mesh may have, from the outermost on, as in"
                f" axis_names={(*names[: max(1, len(names) - 1)], name)!r}",
            )
    meshes, refused = possible_meshes(request.num_devices, names, hardware)
    usable = [mesh for mesh in meshes if set(named) <= set(mesh.axis_names)]
    lacking = [_lacking(mesh, named) for mesh in meshes if mesh not in usable]
    if not usable:
        raise InputError(
            f"no mesh of {request.num_devices} devices has all the axes that are named:"
            f" {', '.join(named)}",
            where="; ".join(dict.fromkeys(named.values())),
            fix="name fewer axes, plan for more devices, or put the named ones first in axis_names",
        )
    readings = [read_mesh(device_mesh(mesh) or mesh) for mesh in usable]
    return MeshChoice({reading[0]: reading for reading in readings}, (*lacking, *refused), True)


def _lacking(mesh: Mesh, named: Mapping[str, str]) -> TriedMesh:
    missing = [name for name in named if name not in mesh.axis_names]
    reason = f'it has no axis "{missing[0]}", which {named[missing[0]]} names'
    return TriedMesh(mesh=mesh, outcome="impossible", reason=reason)
