"""The mesh that the tensors of a module are cut by, at the place of an op."""

from __future__ import annotations

from dataclasses import dataclass, field

from autoshard.collectives.agreement import closed_on
from autoshard.errors import ExportError
from autoshard.export.value_shardings import manual_axes
from autoshard.mlir_modules import (
    MlirOp,
    Module,
    first_mesh,
    meshes_of,
    place_of,
)
from autoshard.sharding import Mesh, Sharding, format_sharding, translate_sharding


class OtherMeshError(ExportError):
    """A sharding is on a mesh whose axes or device order the module's first one cannot say."""


@dataclass(slots=True)
class ModuleMesh:
    """The mesh of a module, and what manual computations leave of it.

    Where there are several meshes over the same devices, shardings are said in the axes of the
    first one.

    Args:
        module: The module.

    Attributes:
        name: What the module calls it.
        mesh: All of it.

    Raises:
        ExportError: The module has no mesh.
    """

    module: Module
    name: str = field(init=False)
    mesh: Mesh = field(init=False)
    _meshes: dict[str, Mesh] = field(init=False)
    _free: dict[frozenset[str], Mesh] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name, self.mesh = first_mesh(self.module)
        self._meshes = meshes_of(self.module)

    def at(self, op: MlirOp) -> Mesh:
        """The mesh without the axes that manual computations around an op take."""
        taken: frozenset[str] = frozenset()
        while op.name != "func.func":
            op = op.block.owner.operation
            if op.name == "sdy.manual_computation":
                taken |= manual_axes(op)
        if taken not in self._free:
            axes = tuple(axis for axis in self.mesh.axes if axis.name not in taken)
            self._free[taken] = Mesh(axes) if taken else self.mesh
        return self._free[taken]

    def plain(self, sharding: Sharding, op: MlirOp) -> Sharding:
        """A sharding near an op as the search takes it: closed, on the one mesh.

        Raises:
            OtherMeshError: It is on another mesh.
        """
        mesh = sharding.inlined_mesh or self._meshes.get(sharding.mesh_name)
        bare: Sharding | None = Sharding(
            sharding.dims, unreduced=sharding.unreduced, mesh_name=self.name
        )
        # A mesh without axes, on which JAX says random keys, cuts nothing on any mesh.
        is_sayable = mesh is None or mesh == self.mesh or mesh == Mesh(())
        if mesh is not None and not is_sayable:
            assert bare is not None
            bare = translate_sharding(bare, mesh, self.mesh, mesh_name=self.name)
        if mesh is None or bare is None:
            raise OtherMeshError(
                f"sharding {format_sharding(sharding)} cannot be said on the module's mesh"
                f" @{self.name} = {self.mesh}",
                where=f"{op.name} at {place_of(op)}",
                fix="write the module's shardings on one mesh",
            )
        return closed_on(bare, self.at(op))
