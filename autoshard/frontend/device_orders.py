"""Meshes of a program in other device orders, said as orders of the plan's devices.

JAX runs a program on devices in one order. A sharding on a mesh that has them in another order is
written on an abstract mesh instead, with its device ids as places in the plan's order; that is what
`jax.device_put` does between such meshes, and it lowers to an `sdy.mesh` with `device_ids`. A
`shard_map` on such a mesh runs on its abstract mesh in the plan's order: what it computes does not
depend on which device holds which piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from autoshard.errors import InputError
from autoshard.frontend.jaxpr_paths import rewrite_bodies
from autoshard.frontend.meshes import ranks
from autoshard.frontend.source_lines import SourceLines
from autoshard.sharding import Mesh, MeshAxis, relative_mesh

_MAX_SHOWN = 16


@dataclass(frozen=True, slots=True)
class DeviceOrder:
    """The plan's devices in the order of its mesh.

    Args:
        mesh: The plan's.
        ids: Of the devices at its places, if it has devices. A mesh of a program is then over the
            same ones. Without, a mesh with the plan's axes has its order, and any other is taken to
            be over the same devices, which are ranked by id.
    """

    mesh: Mesh
    ids: tuple[int, ...] | None = None

    @staticmethod
    def of(mesh: Mesh, given: Any) -> DeviceOrder:
        """Of a plan's mesh, and the JAX mesh it was read from, if it was one with devices."""
        if isinstance(given, jax.sharding.Mesh):
            return DeviceOrder(mesh, tuple(device.id for device in given.devices.flat))
        return DeviceOrder(mesh)

    def read_mesh(self, other: jax.sharding.Mesh | AbstractMesh, where: str = "") -> Mesh:
        """A JAX mesh as ours; its device ids are places in the plan's order.

        Raises:
            InputError: It is over other devices.
        """
        axes = tuple(MeshAxis(str(name), size) for name, size in other.shape.items())
        if other.size != self.mesh.num_devices:
            raise InputError(
                f"the sharding is on {Mesh(axes)} of {other.size} devices, the plan is for"
                f" {self.mesh} of {self.mesh.num_devices}",
                where=where,
                fix="use meshes over the same devices",
            )
        if isinstance(other, AbstractMesh) or (self.ids is None and axes == self.mesh.axes):
            return Mesh(axes)
        devices = [device.id for device in other.devices.flat]
        if self.ids is None:
            return relative_mesh(axes, ranks(devices), self.mesh.device_order)
        if sorted(devices) != sorted(self.ids):
            raise InputError(
                f"the sharding is on devices {_shown(devices)}, the plan is for devices"
                f" {_shown(self.ids)}",
                where=where,
                fix="use meshes over the same devices",
            )
        return relative_mesh(axes, devices, self.ids)

    def mesh_of(self, sharding: NamedSharding, where: str = "") -> Mesh:
        """The mesh of a sharding as ours; one that `in_order` made has an order beside its mesh.

        Raises:
            InputError: It is over other devices.
        """
        found = self.read_mesh(sharding.mesh, where)
        if sharding._logical_device_ids is None:
            return found
        order = found.device_order
        return Mesh(found.axes, tuple(order[place] for place in sharding._logical_device_ids))

    def rewrite(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """A program whose shardings are all in the plan's device order; itself if they were.

        Raises:
            InputError: A sharding is on other devices.
        """
        rewritten = self._rewrite(closed.jaxpr)
        return closed if rewritten is closed.jaxpr else ClosedJaxpr(rewritten, closed.consts)

    def _rewrite(self, jaxpr: Jaxpr) -> Jaxpr:
        eqns = [self._equation(eqn) for eqn in jaxpr.eqns]
        if all(new is old for new, old in zip(eqns, jaxpr.eqns, strict=True)):
            return jaxpr
        return jaxpr.replace(eqns=eqns)

    def _equation(self, eqn: JaxprEqn) -> JaxprEqn:
        params = rewrite_bodies(eqn, lambda _, body: self._rewrite(body)) or eqn.params
        changed = {}
        for name, value in params.items():
            if isinstance(value, tuple) and any(isinstance(one, NamedSharding) for one in value):
                new: Any = tuple(self._in_order(one, eqn) for one in value)
            else:
                new = self._in_order(value, eqn)
            if new != value:
                changed[name] = new
        if eqn.primitive.name == "shard_map" and self._is_in_another(eqn):
            changed["mesh"] = eqn.params["mesh"].abstract_mesh
        is_same = not changed and all(params[name] is eqn.params[name] for name in params)
        return eqn if is_same else eqn.replace(params={**params, **changed})

    def _in_order(self, value: Any, eqn: JaxprEqn) -> Any:
        """A sharding in the plan's device order; anything else as it is."""
        if not isinstance(value, NamedSharding) or not isinstance(value.mesh, jax.sharding.Mesh):
            return value
        if value.mesh.empty:
            return value
        order = self.mesh_of(value, _where(eqn)).device_ids
        return value if order is None else in_order(value.mesh.abstract_mesh, value.spec, order)

    def _is_in_another(self, eqn: JaxprEqn) -> bool:
        """True of a shard_map whose mesh has the plan's devices in another order."""
        return self.read_mesh(eqn.params["mesh"], _where(eqn)).device_ids is not None


def in_order(
    mesh: jax.sharding.Mesh | AbstractMesh, spec: PartitionSpec, order: Sequence[int]
) -> NamedSharding:
    """A sharding over the devices at places `order` of whatever order a program runs in.

    `_logical_device_ids` is private to `NamedSharding`; checked on jax 0.10.2.

    Args:
        mesh: Abstract, or with devices in the order the program runs in.
        spec: On the mesh.
        order: Per place of the mesh, the place in the program's order of its device.
    """
    return NamedSharding(mesh, spec, _logical_device_ids=tuple(order))


def _shown(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:_MAX_SHOWN]))
    return f"[{shown}, ...]" if len(ids) > _MAX_SHOWN else f"[{shown}]"


def _where(eqn: JaxprEqn) -> str:
    return f"{eqn.primitive.name} at {SourceLines().line(eqn) or 'unknown line'}"
