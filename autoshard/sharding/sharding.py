"""Shardings: which mesh axes cut which dimension of a tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autoshard.errors import ShardingError
from autoshard.sharding.axes import AxisRef
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.mesh_printer import format_axis_ref, format_mesh, format_mesh_name

DEFAULT_MESH_NAME = "mesh"


@dataclass(frozen=True, slots=True)
class DimSharding:
    """How one dimension is cut; prints as `{"x", "y":(1)2, ?}p3`.

    Args:
        axes: Major to minor.
        is_open: Whether more axes may follow these; a closed dimension is final.
        priority: The round this dimension is decided in; None is the first one, 0.

    Raises:
        ShardingError: The priority is negative.
    """

    axes: tuple[AxisRef, ...] = ()
    is_open: bool = False
    priority: int | None = None

    def __post_init__(self) -> None:
        if self.priority is not None and self.priority < 0:
            raise ShardingError(
                f"priority is {self.priority}, which is below 0",
                fix="priorities count from 0, the first round",
            )

    @property
    def is_closed(self) -> bool:
        return not self.is_open

    @property
    def round(self) -> int:
        """The priority, with the default filled in."""
        return 0 if self.priority is None else self.priority

    def __str__(self) -> str:
        items = [format_axis_ref(axis) for axis in self.axes]
        if self.is_open:
            items.append("?")
        priority = "" if self.priority is None else f"p{self.priority}"
        return f"{{{', '.join(items)}}}{priority}"


HOST_MEMORY = "pinned_host"


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a tensor lies on a mesh; prints as `<@mesh, [{"x"}, {?}], replicated={"y"}>`.

    Mesh axes that are not mentioned hold copies, and an open dimension may still take them.
    The mesh is named, or written into the sharding itself.

    Args:
        dims: DimSharding[rank].
        replicated: Axes that hold copies and that no dimension may take later.
        unreduced: Axes along which each device holds a term of a sum still to be taken.
        mesh_name: The mesh the axes belong to; "" when the mesh is inlined.
        inlined_mesh: The mesh itself, where the sharding carries it instead of a name.
        memory_kind: Of the memory that an argument or a result lies in, in JAX's words:
            `HOST_MEMORY`; "" for that of the device. It is not printed.
    """

    dims: tuple[DimSharding, ...] = ()
    replicated: tuple[AxisRef, ...] = ()
    unreduced: tuple[AxisRef, ...] = ()
    mesh_name: str = DEFAULT_MESH_NAME
    inlined_mesh: Mesh | None = None
    memory_kind: str = ""

    def __post_init__(self) -> None:
        if self.inlined_mesh is not None:
            object.__setattr__(self, "mesh_name", "")

    @property
    def rank(self) -> int:
        return len(self.dims)

    def axis_refs(self) -> Iterator[AxisRef]:
        """Every axis in the order it is printed: dimensions, replicated, unreduced."""
        for dim in self.dims:
            yield from dim.axes
        yield from self.replicated
        yield from self.unreduced

    @property
    def is_fully_closed(self) -> bool:
        return not any(dim.is_open for dim in self.dims)

    def closed(self) -> Sharding:
        """The same layout with every dimension final; priorities have done their work and go."""
        return replace(self, dims=tuple(DimSharding(dim.axes) for dim in self.dims))

    @property
    def spec(self) -> tuple[str | tuple[str, ...] | None, ...]:
        """The entries of JAX's `PartitionSpec`, one for each dimension: `P(*sharding.spec)`.

        Raises:
            ShardingError: An open dimension, part of an axis, a partial sum or another mesh, of
                which a `PartitionSpec` of the mesh cannot speak.
        """
        parts = [ref for ref in self.axis_refs() if not ref.is_whole]
        if parts or self.unreduced or self.inlined_mesh is not None or not self.is_fully_closed:
            raise ShardingError(
                f"a PartitionSpec cannot say {self}",
                where="Sharding.spec",
                fix="close it with .closed(); parts of axes and other meshes are NamedShardings of"
                " plan.in_shardings",
            )
        names = [tuple(ref.name for ref in dim.axes) for dim in self.dims]
        return tuple(one[0] if len(one) == 1 else one or None for one in names)

    def __str__(self) -> str:
        if self.inlined_mesh is not None:
            mesh = f"mesh{format_mesh(self.inlined_mesh)}"
        else:
            mesh = format_mesh_name(self.mesh_name)
        text = f"<{mesh}, [{', '.join(map(str, self.dims))}]"
        for kind, axes in (("replicated", self.replicated), ("unreduced", self.unreduced)):
            if axes:
                text += f", {kind}={{{', '.join(map(format_axis_ref, axes))}}}"
        return text + ">"

    @classmethod
    def replicated_everywhere(cls, rank: int, mesh_name: str = DEFAULT_MESH_NAME) -> Sharding:
        """Every dimension closed and uncut."""
        return cls(dims=(DimSharding(),) * rank, mesh_name=mesh_name)

    @classmethod
    def fully_open(cls, rank: int, mesh_name: str = DEFAULT_MESH_NAME) -> Sharding:
        """Every dimension uncut and free to be cut."""
        return cls(dims=(DimSharding(is_open=True),) * rank, mesh_name=mesh_name)
