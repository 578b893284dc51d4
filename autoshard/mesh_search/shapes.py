"""The meshes that so many devices can make, as far as a machine's links tell them apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from autoshard.costing.costing import cost_model_for
from autoshard.errors import InputError
from autoshard.layouts import MeshParts
from autoshard.plans.searched_meshes import TriedMesh
from autoshard.sharding import Mesh, MeshAxis
from cost_models import AxisPart, CostModelError, Hardware

if TYPE_CHECKING:
    from cost_models import CostModel

DEFAULT_AXIS_NAMES = ("data", "model", "inner")

MOST_DEVICES = 1_000_000
"""To search meshes for; the largest machines have a tenth of that."""

_SAMPLE_BYTES = np.array([1e3, 1e6, 1e9])  # latency and bandwidth both show
_DIGITS = 9  # prices that agree so far are equal

_Prices: TypeAlias = tuple[str, ...]
Links: TypeAlias = tuple[object, ...]


def check_devices(devices: object) -> int:
    """A number of devices that meshes can be searched for.

    Raises:
        InputError: It is no whole number, or below 1.
    """
    if isinstance(devices, bool) or not isinstance(devices, int):
        raise InputError(
            f"expected a number of devices, found {type(devices).__name__}",
            where=f"devices={devices!r}",
            fix="give a whole number, as in devices=64; it need not be that of this machine",
        )
    if not 1 <= devices <= MOST_DEVICES:
        bound = "below 1" if devices < 1 else f"above {MOST_DEVICES:,}"
        raise InputError(
            f"the number of devices is {devices}, which is {bound}",
            where=f"devices={devices!r}",
            fix=f"give the number of devices to plan for, from 1 to {MOST_DEVICES:,}",
        )
    return devices


def check_axis_names(names: object) -> tuple[str, ...]:
    """Names for the axes of searched meshes, outermost first.

    Raises:
        InputError: They are no sequence of different names.
    """
    is_sequence = isinstance(names, Sequence) and not isinstance(names, str)
    found: tuple[object, ...] = tuple(names) if isinstance(names, Sequence) else ()
    texts = [name for name in found if isinstance(name, str) and name]
    if not is_sequence or not found or len(set(texts)) != len(found):
        raise InputError(
            "expected different names for mesh axes, one at least",
            where=f"axis_names={names!r}",
            fix='name the axes from the outermost on, as in axis_names=("data", "model"); a mesh'
            " has as many axes as there are names, or fewer",
        )
    return tuple(texts)


def mesh_shapes(num_devices: int, most_axes: int) -> tuple[tuple[int, ...], ...]:
    """Every ordered way to arrange devices along a few axes, none of them of size 1.

    Fewest axes first; of as many axes, the most even shapes first.

    Args:
        num_devices: The product of the sizes.
        most_axes: Axes of a mesh at most.
    """
    found = _factorizations(num_devices, most_axes)
    return tuple(sorted(found, key=lambda sizes: (len(sizes), max(sizes), sizes))) or ((1,),)


def _factorizations(number: int, most: int) -> Iterator[tuple[int, ...]]:
    if number == 1:
        return
    yield (number,)
    if most > 1:
        for first in range(2, number // 2 + 1):
            if number % first == 0:
                for rest in _factorizations(number // first, most - 1):
                    yield (first, *rest)


def possible_meshes(
    num_devices: int, axis_names: Sequence[str], hardware: Hardware
) -> tuple[tuple[Mesh, ...], tuple[TriedMesh, ...]]:
    """The meshes that a machine can have, and those it cannot.

    Args:
        num_devices: Of every mesh.
        axis_names: Of the axes, outermost first; a mesh with fewer axes has the first names.
        hardware: Whose links the axes lie on, slices and nodes along the outermost ones.

    Raises:
        InputError: The machine can have none.
    """
    meshes: list[Mesh] = []
    refused: list[TriedMesh] = []
    for sizes in mesh_shapes(num_devices, len(axis_names)):
        mesh = Mesh(tuple(map(MeshAxis, axis_names, sizes)))
        try:
            cost_model_for(hardware, MeshParts.of(mesh))
        except CostModelError as error:
            refused.append(TriedMesh(mesh=mesh, outcome="impossible", reason=error.what))
            first_error = error
        else:
            meshes.append(mesh)
    if not meshes:
        raise InputError(
            f"no mesh of {num_devices} devices can be laid on the machine: {first_error.what}",
            where=first_error.where,
            fix=first_error.fix,
        ) from first_error
    return tuple(meshes), tuple(refused)


def distinct_meshes(
    meshes: Sequence[Mesh], hardware: Hardware
) -> tuple[tuple[Mesh, ...], tuple[TriedMesh, ...]]:
    """The first mesh of each kind of links; of the others, which one they are alike.

    For programs that name no axis: the same plans cost the same on meshes that are alike.
    """
    first_by_links: dict[Links, Mesh] = {}
    alike: list[TriedMesh] = []
    for mesh in meshes:
        links = links_of(cost_model_for(hardware, MeshParts.of(mesh)), mesh)
        first = first_by_links.setdefault(links, mesh)
        if first is not mesh:
            reason = f"its links are those of {axes_text(first)}"
            alike.append(TriedMesh(mesh=Mesh(mesh.axes), outcome="alike", reason=reason))
    return tuple(first_by_links.values()), tuple(alike)


def links_of(model: CostModel, mesh: Mesh) -> Links:
    """What collectives cost along every set of axes, whatever the axes are called.

    Equal for two meshes where the axes of one can be matched with those of the other so that every
    collective over matching axes, and over matching parts of one axis, takes the same time.
    """
    axes = [AxisPart(axis.name, 1, axis.size) for axis in mesh.axes]
    parts = [tuple(_prices(model, (part,)) for part in _parts(axis)) for axis in axes]
    places = range(len(axes))
    sets = [chosen for count in places for chosen in combinations(places, count + 1)]
    joint = {chosen: _prices(model, tuple(axes[i] for i in chosen)) for chosen in sets}
    return min(
        (
            tuple(axes[i].size for i in order),
            tuple(parts[i] for i in order),
            tuple(joint[tuple(sorted(order[i] for i in chosen))] for chosen in sets),
        )
        for order in permutations(places)
    )


def _parts(axis: AxisPart) -> Iterator[AxisPart]:
    """Every part of an axis that a tensor could be cut by."""
    places = [place for place in range(1, axis.size + 1) if axis.size % place == 0]
    for start in places:
        for stop in places:
            if stop > start and stop % start == 0:
                yield AxisPart(axis.name, start, stop // start)


def _prices(model: CostModel, axes: tuple[AxisPart, ...]) -> _Prices:
    collectives = (
        model.all_gather_seconds,
        model.reduce_scatter_seconds,
        model.all_reduce_seconds,
        model.all_to_all_seconds,
        model.permute_seconds,
    )
    return tuple(
        f"{seconds:.{_DIGITS}e}"
        for price in collectives
        for seconds in np.asarray(price(_SAMPLE_BYTES, axes))
    )


def axes_text(mesh: Mesh) -> str:
    """`data=2, model=4`."""
    return ", ".join(f"{axis.name}={axis.size}" for axis in mesh.axes)
