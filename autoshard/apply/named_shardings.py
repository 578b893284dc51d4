"""Shardings of a plan as JAX spells them, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from autoshard.errors import ShardingError
from autoshard.frontend.device_orders import DeviceOrder, in_order
from autoshard.frontend.meshes import as_auto, read_mesh
from autoshard.frontend.user_shardings import read_named_sharding
from autoshard.sharding import (
    DimSharding,
    Mesh,
    Sharding,
    format_sharding,
    refine_mesh,
    refine_sharding,
)
from autoshard.wishes.other_meshes import on_mesh


@dataclass(eq=False)
class JaxMesh:
    """A JAX mesh with Auto axes and its refinements, in which our shardings are written.

    A sub-axis becomes an axis of a finer mesh over the same devices in the same order. A sharding
    that carries a mesh of its own is written on that one.

    Args:
        given: Concrete or abstract, its axes Auto or Explicit.

    Attributes:
        base: The mesh in our terms.
        auto: The same with Auto axes, in which shardings are written.
        order: Its devices, which other meshes may have in another order.

    Raises:
        InputError: The mesh has no axes or Manual ones.
    """

    given: jax.sharding.Mesh | AbstractMesh
    base: Mesh = field(init=False)
    auto: jax.sharding.Mesh | AbstractMesh = field(init=False)
    order: DeviceOrder = field(init=False)
    _reordered: dict[jax.sharding.Mesh, bool] = field(init=False, default_factory=dict)
    _refined: dict[tuple[tuple[str, int], ...], jax.sharding.Mesh | AbstractMesh] = field(
        init=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        self.base, abstract, concrete = read_mesh(self.given)
        self.auto = as_auto(abstract if concrete is None else concrete)
        self.order = DeviceOrder.of(self.base, concrete)

    @property
    def platform(self) -> str:
        """Of its devices: `cpu`; "" where it has none."""
        return (
            "" if isinstance(self.auto, AbstractMesh) else str(self.auto.devices.flat[0].platform)
        )

    @property
    def abstract(self) -> AbstractMesh:
        """The mesh with Auto axes, without devices."""
        return self.auto if isinstance(self.auto, AbstractMesh) else self.auto.abstract_mesh

    def named_sharding(
        self, sharding: Sharding, *, at_boundary: bool = False, where: str = ""
    ) -> NamedSharding:
        """Our sharding as a `NamedSharding`.

        Args:
            sharding: On this mesh or, carrying its own, on another one over its devices; device ids
                are then places in the order of this one.
            at_boundary: For an argument or result, where JAX takes no open dimension.
            where: Names the value in errors.

        Raises:
            ShardingError: JAX cannot say it: an open dimension that has axes, an open one at the
                boundary, replicated axes beside an open dimension, unreduced axes.
        """
        if sharding.memory_kind:
            found = self.named_sharding(replace(sharding, memory_kind=""), at_boundary=at_boundary)
            return cast("NamedSharding", found.with_memory_kind(sharding.memory_kind))
        _check_expressible(sharding, at_boundary, where)
        own = sharding.inlined_mesh
        used = list(sharding.axis_refs())
        if own is None and all(ref.is_whole for ref in used):
            return NamedSharding(self.auto, sharding_to_spec(sharding))
        refined, names = refine_mesh(own or self.base, used)
        spec = sharding_to_spec(refine_sharding(sharding, names))
        mesh = self._with_axes(refined)
        if own is None or own.device_ids is None:
            return NamedSharding(mesh, spec)
        return in_order(mesh, spec, own.device_ids)

    def read(self, sharding: NamedSharding, rank: int, where: str = "") -> Sharding:
        """A `NamedSharding` as ours, on this mesh where its axes can say it.

        Raises:
            InputError: It is on other devices.
        """
        found = read_named_sharding(sharding, self.order, rank, where)
        return on_mesh(found, self.base, where)

    def has_another_order(self, other: jax.sharding.Mesh) -> bool:
        """Whether a mesh has the devices of this one, in another order."""
        found = self._reordered.get(other)
        if found is None:
            own = self.order.ids
            theirs = tuple(device.id for device in other.devices.flat)
            found = own is not None and theirs != own and sorted(theirs) == sorted(own)
            self._reordered[other] = found
        return found

    def _with_axes(self, refined: Mesh) -> jax.sharding.Mesh | AbstractMesh:
        """A mesh with these axes over the devices of this one, in its order."""
        key = tuple(refined.sizes.items())
        found = self._refined.get(key)
        if found is None:
            names, sizes = refined.axis_names, tuple(refined.sizes.values())
            kinds = (AxisType.Auto,) * len(sizes)
            if isinstance(self.auto, AbstractMesh):
                found = AbstractMesh(sizes, names, kinds)
            else:
                found = jax.sharding.Mesh(self.auto.devices.reshape(sizes), names, kinds)
            self._refined[key] = found
        return found


AnyJaxMesh: TypeAlias = jax.sharding.Mesh | AbstractMesh | JaxMesh


def as_jax_mesh(mesh: AnyJaxMesh) -> JaxMesh:
    return mesh if isinstance(mesh, JaxMesh) else JaxMesh(mesh)


def sharding_to_spec(sharding: Sharding) -> PartitionSpec:
    """A sharding by whole axes as a `PartitionSpec` with one entry per dimension.

    Raises:
        ShardingError: It has a sub-axis, or JAX cannot say it.
    """
    _check_expressible(sharding, False, "")
    for ref in sharding.axis_refs():
        if not ref.is_whole:
            raise ShardingError(
                f"a PartitionSpec cannot name the sub-axis {ref}",
                where=format_sharding(sharding),
                fix="write it on a refined mesh: JaxMesh.named_sharding does",
            )
    return PartitionSpec(*(_entry(dim) for dim in sharding.dims))


def _entry(dim: DimSharding) -> Any:
    if dim.is_open:
        return PartitionSpec.UNCONSTRAINED
    names = tuple(ref.name for ref in dim.axes)
    return None if not names else names[0] if len(names) == 1 else names


def _check_expressible(sharding: Sharding, at_boundary: bool, where: str) -> None:
    text = format_sharding(sharding)
    where = f"{where}: {text}" if where else text
    if sharding.unreduced:
        raise ShardingError(
            "JAX takes unreduced axes on Explicit meshes only, and planning is for Auto ones",
            where=where,
            fix="reduce the value, or leave the partial sum inside the program",
        )
    for position, dim in enumerate(sharding.dims):
        if not dim.is_open:
            continue
        if at_boundary:
            raise ShardingError(
                f"dimension {position} of an argument or result is open, which jax.jit refuses",
                where=where,
                fix="close the dimension, or give no sharding at all",
            )
        if dim.axes:
            raise ShardingError(
                f"dimension {position} is open and has axes, which JAX cannot say",
                where=where,
                fix="close the dimension, or leave it open without axes",
            )
        if sharding.replicated:
            raise ShardingError(
                f"dimension {position} is open beside replicated axes, which JAX cannot say",
                where=where,
                fix="close every dimension, or name no replicated axes",
            )


def flat_named_shardings(
    shardings: Sequence[Sharding | None], mesh: JaxMesh, names: Sequence[str]
) -> tuple[NamedSharding | None, ...]:
    """Shardings of flat arguments or results as `jax.jit` takes them; None and fully open are None.

    Raises:
        ShardingError: One of them JAX cannot say; the error names the argument.
    """
    return tuple(
        None
        if sharding is None or _says_nothing(sharding)
        else mesh.named_sharding(sharding, at_boundary=True, where=name)
        for sharding, name in zip(shardings, names, strict=True)
    )


def _says_nothing(sharding: Sharding) -> bool:
    return bool(sharding.dims) and all(dim.is_open and not dim.axes for dim in sharding.dims)
