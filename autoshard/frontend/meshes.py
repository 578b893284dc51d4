"""Meshes as users have them, read into ours; and the JAX meshes to trace under and to run on."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax._src.mesh import empty_concrete_mesh, get_concrete_mesh
from jax._src.sharding_impls import _internal_use_concrete_mesh
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType

from autoshard.errors import InputError
from autoshard.sharding import Mesh, MeshAxis, parse_mesh_sizes


def read_mesh(mesh: Any) -> tuple[Mesh, AbstractMesh, jax.sharding.Mesh | None]:
    """A mesh in our terms, the mesh to trace under, and the one with devices if it has some.

    Args:
        mesh: A `jax.sharding.Mesh`, an `AbstractMesh`, text such as `"data=2,model=4"`, a mapping
            from axis name to size, or an autoshard `Mesh`.

    Raises:
        InputError: It is none of these, has no axes, or has Manual axes.
        ShardingError: An axis size is not a whole number of at least 1.
    """
    if isinstance(mesh, jax.sharding.Mesh):
        _check_axes(tuple(mesh.axis_names), mesh.axis_types, mesh)
        order = ranks([device.id for device in mesh.devices.flat])
        axes = tuple(MeshAxis(str(name), size) for name, size in mesh.shape.items())
        return Mesh(axes, order), mesh.abstract_mesh, mesh
    if isinstance(mesh, AbstractMesh):
        _check_axes(tuple(mesh.axis_names), mesh.axis_types, mesh)
        axes = tuple(MeshAxis(str(name), size) for name, size in mesh.shape.items())
        return Mesh(axes), mesh, None
    if isinstance(mesh, str):
        ours = parse_mesh_sizes(mesh)
    elif isinstance(mesh, Mapping):
        ours = Mesh(tuple(MeshAxis(name, size) for name, size in mesh.items()))
    elif isinstance(mesh, Mesh):
        ours = mesh
    else:
        raise InputError(
            f"expected a mesh, found {type(mesh).__name__}",
            where=f"mesh={mesh!r}",
            fix='pass a jax.sharding.Mesh, an AbstractMesh, text such as "data=2,model=4", or a'
            " mapping from axis name to size",
        )
    if not ours.axes:
        raise _no_axes(mesh)
    return ours, abstract_mesh(ours), None


def is_mesh(value: Any) -> bool:
    """True of a mesh of JAX's or ours."""
    return isinstance(value, (jax.sharding.Mesh, AbstractMesh, Mesh))


def abstract_mesh(mesh: Mesh) -> AbstractMesh:
    """The mesh to trace under: the same names and sizes, every axis Auto, no devices."""
    return AbstractMesh(tuple(mesh.sizes.values()), mesh.axis_names)


@contextlib.contextmanager
def mesh_context(mesh: AbstractMesh | None) -> Iterator[None]:
    """Compute under this mesh, or none, whatever `jax.set_mesh` says outside.

    `jax.set_mesh` itself is refused inside a trace, and `jax.jit` takes the mesh it set over any
    abstract one. `_internal_use_concrete_mesh` is private; checked on jax 0.10.2.
    """
    empty = AbstractMesh((), ())
    with (
        _internal_use_concrete_mesh(empty_concrete_mesh),
        jax.sharding.use_abstract_mesh(empty),  # the size of a mesh may not change, but via none
        jax.sharding.use_abstract_mesh(mesh or empty),
    ):
        yield


def as_auto(mesh: Any) -> Any:
    """The same mesh, concrete or abstract, with its Explicit axes Auto; Manual ones stay."""
    return with_explicit(mesh, ())


def with_explicit(mesh: Any, names: Sequence[str]) -> Any:
    """The same mesh, concrete or abstract, with these axes Explicit, all others Auto or Manual."""
    kinds = tuple(
        AxisType.Explicit if axis in names else AxisType.Auto if kind == AxisType.Explicit else kind
        for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
    )
    if kinds == tuple(mesh.axis_types):
        return mesh
    if isinstance(mesh, AbstractMesh):
        return mesh.update(axis_types=kinds)
    return jax.sharding.Mesh(mesh.devices, mesh.axis_names, kinds)


def concrete_mesh(
    mesh: Mesh,
    refinement: Sequence[MeshAxis] | None = None,
    *,
    devices: Sequence[jax.Device] | None = None,
) -> jax.sharding.Mesh:
    """A JAX mesh with Auto axes over this machine's devices.

    Args:
        mesh: Names, sizes and the order of devices.
        refinement: The axes of a finer mesh over the same devices in the same order, where
            sub-axes have to be written as axes of their own.
        devices: In the order the mesh numbers them; all devices of the machine if None.

    Raises:
        InputError: There are too few devices.
    """
    available = list(jax.devices() if devices is None else devices)
    missing = mesh.num_devices - len(available)
    if missing > 0:
        raise InputError(
            f"{mesh} needs {mesh.num_devices} devices and this machine has {len(available)}:"
            f" {missing} {'is' if missing == 1 else 'are'} missing",
            where=f"jax.devices() of platform {available[0].platform}" if available else "",
            fix="planning, printing and saving the plan work without them; run it where there are"
            f" {mesh.num_devices} devices, or on CPU set"
            f" XLA_FLAGS=--xla_force_host_platform_device_count={mesh.num_devices} before importing"
            " jax",
        )
    axes = tuple(mesh.axes if refinement is None else refinement)
    grid = np.empty(math.prod(axis.size for axis in axes), dtype=object)
    for place, device in enumerate(mesh.device_order):
        grid[place] = available[device]
    return jax.sharding.Mesh(
        grid.reshape([axis.size for axis in axes]),
        tuple(axis.name for axis in axes),
        (AxisType.Auto,) * len(axes),
    )


def device_mesh(mesh: Mesh) -> jax.sharding.Mesh | None:
    """A JAX mesh with Auto axes over this machine's devices, in the order that suits their links.

    None where there are too few. Where JAX knows no such order, devices are taken row by row.
    """
    devices = jax.devices()[: mesh.num_devices]
    if len(devices) < mesh.num_devices:
        return None
    sizes = tuple(mesh.sizes.values())
    try:
        grid = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    except (NotImplementedError, ValueError):  # a shape, or several slices, it does not provide for
        return concrete_mesh(Mesh(mesh.axes), devices=devices)
    return jax.sharding.Mesh(grid, mesh.axis_names, (AxisType.Auto,) * len(sizes))


def num_present_devices() -> int:
    """All devices that JAX sees, those of other hosts included."""
    return len(jax.devices())


def present_devices() -> tuple[jax.Device, ...]:
    return tuple(jax.devices())


def mesh_in_context() -> jax.sharding.Mesh | AbstractMesh | None:
    """The mesh that `jax.set_mesh` has set; None where it has set none.

    `jax.sharding.get_mesh` is refused inside a trace; `get_concrete_mesh` is private, checked on
    jax 0.10.2.
    """
    concrete, abstract = get_concrete_mesh(), jax.sharding.get_abstract_mesh()
    return next((mesh for mesh in (concrete, abstract) if not mesh.empty), None)


def ranks(ids: Sequence[int]) -> tuple[int, ...]:
    """Each device as its rank among the mesh's own devices, so that any subset counts from 0."""
    rank = {device_id: place for place, device_id in enumerate(sorted(ids))}
    return tuple(rank[device_id] for device_id in ids)


def _check_axes(names: tuple[Any, ...], kinds: Sequence[AxisType], mesh: Any) -> None:
    if not names:
        raise _no_axes(mesh)
    manual = [str(name) for name, kind in zip(names, kinds, strict=True) if kind == AxisType.Manual]
    if manual:
        raise InputError(
            f"the mesh has Manual axes: {', '.join(manual)}",
            where=f"mesh={mesh!r}",
            fix="plan outside shard_map, with the mesh that surrounds it",
        )


def _no_axes(mesh: Any) -> InputError:
    return InputError(
        "the mesh has no axes",
        where=f"mesh={mesh!r}",
        fix='give it at least one axis, as in "data=8"; one device is "data=1"',
    )
