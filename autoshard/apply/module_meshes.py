"""The meshes a module names, and our shardings as its attributes and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jaxlib.mlir import ir

from autoshard.sharding import (
    DimSharding,
    Mesh,
    Sharding,
    format_mesh,
    format_sharding,
    parse_named_mesh,
    parse_sharding,
)
from autoshard.wishes.other_meshes import on_mesh

_DEFAULT_NAME = "mesh"


class ModuleMeshes:
    """Names for the plan's mesh and for others that a module has, or gets.

    Args:
        module: A parsed module; meshes that it lacks are added to it.
        mesh: The plan's.
    """

    def __init__(self, module: Any, mesh: Mesh) -> None:
        self._module = module
        self._plan = Mesh(mesh.axes)  # ids count places in its order
        self._mesh_by_name: dict[str, Mesh] = {}
        for op in module.body.operations:
            if op.operation.name == "sdy.mesh":
                name, found = parse_named_mesh(str(op.operation))
                self._mesh_by_name[name] = found
        self._name = self._name_of(self._plan)

    def attribute(self, sharding: Sharding) -> Any:
        """A sharding as the module has it."""
        own = sharding.inlined_mesh
        name = self._name if own is None else self._name_of(own)
        text = format_sharding(replace(sharding, inlined_mesh=None, mesh_name=name))
        return ir.Attribute.parse(f"#sdy.sharding{text}")

    def sharding(self, attribute: Any, without: frozenset[str] = frozenset()) -> Sharding:
        """A sharding of the module, on the plan's mesh where its axes can say it.

        Args:
            attribute: As the module has it.
            without: Axes of its mesh that no longer cut anything, inside a manual region.
        """
        found = _without_axes(parse_sharding(str(attribute)), without)
        mesh = found.inlined_mesh or self._mesh_by_name.get(found.mesh_name)
        if found.mesh_name == self._name or mesh is None or mesh.num_devices == 1:
            return found
        return on_mesh(replace(found, inlined_mesh=mesh), self._plan, str(attribute))

    def _name_of(self, mesh: Mesh) -> str:
        for name, found in self._mesh_by_name.items():
            if found == mesh:
                return name
        name = _DEFAULT_NAME
        if name in self._mesh_by_name:
            name = next(
                free
                for free in (f"mesh_{i}" for i in range(len(self._mesh_by_name) + 1))
                if free not in self._mesh_by_name
            )
        made = ir.Module.parse(f"sdy.mesh @{name} = {format_mesh(mesh)}")
        made.body.operations[0].operation.clone(
            ip=ir.InsertionPoint.at_block_begin(self._module.body)
        )
        self._mesh_by_name[name] = mesh
        return name


def _without_axes(sharding: Sharding, names: frozenset[str]) -> Sharding:
    if not names:
        return sharding
    return replace(
        sharding,
        dims=tuple(
            DimSharding(tuple(a for a in dim.axes if a.name not in names), dim.is_open)
            for dim in sharding.dims
        ),
        replicated=tuple(a for a in sharding.replicated if a.name not in names),
    )
