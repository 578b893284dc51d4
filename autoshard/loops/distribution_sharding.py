"""Between tensor distributions and shardings, where one can say what the other says."""

from __future__ import annotations

import string

from autoshard.errors import ShardingError
from autoshard.loops.distribution import Distribution, Fixed, Named
from autoshard.loops.distribution_text import format_distribution
from autoshard.sharding import AxisRef, DimSharding, Mesh, Sharding, format_sharding

_LETTERS = "xyzuvw" + "".join(c for c in string.ascii_lowercase if c not in "xyzuvw")


def distribution_to_sharding(distribution: Distribution, mesh: Mesh) -> Sharding:
    """The sharding that puts the same pieces on the same devices.

    Machine dimension `n` is the mesh's axis `n`. Every dimension comes out closed.

    Raises:
        ShardingError: The mesh has another number of axes; or a sharding cannot say it: a fixed
            coordinate, or a dimension that is dealt out in turns.
    """
    text = format_distribution(distribution)
    names = mesh.axis_names
    if len(names) != distribution.machine_rank:
        raise ShardingError(
            f"the mesh has {len(names)} axes and the distribution"
            f" {distribution.machine_rank} entries",
            where=text,
            fix="give one entry for each axis of the mesh; * where all hold the same",
        )
    for place in range(distribution.machine_rank):
        entry = distribution.entry(place)
        if isinstance(entry, Fixed):
            raise ShardingError(
                f"a sharding cannot fix a coordinate: only devices at {entry.coordinate} of axis"
                f' "{names[place]}" would hold the tensor',
                where=text,
                fix="write * to hold it everywhere, or spread it along that axis with spread_faces",
            )
        if isinstance(entry, Named) and entry.block is not None:
            raise ShardingError(
                f"a sharding cannot deal out dimension {entry.name} in turns along axis"
                f' "{names[place]}": its pieces are runs of neighbours',
                where=text,
                fix=f"write {entry.name} without %, and reorder the dimension beforehand",
            )
    return Sharding(
        tuple(
            DimSharding(tuple(AxisRef(names[cut.machine_dim]) for cut in distribution.cuts(dim)))
            for dim in range(distribution.rank)
        )
    )


def sharding_to_distribution(sharding: Sharding, mesh: Mesh) -> Distribution:
    """The distribution of a tensor `T` that puts the same pieces on the same devices.

    Args:
        sharding: On whole axes of `mesh`.
        mesh: Its axes become the machine's dimensions, in order.

    Raises:
        ShardingError: A distribution cannot say it: parts of axes, unreduced axes, open dimensions,
            more dimensions than letters; or the mesh has no such axis.
    """
    text = format_sharding(sharding)
    names = _LETTERS[: sharding.rank]
    if len(names) != sharding.rank:
        raise ShardingError(
            f"the sharding has {sharding.rank} dimensions and there are {len(names)} letters",
            where=text,
            fix="use fewer dimensions",
        )
    for ref in sharding.axis_refs():
        mesh.axis_size(ref.name)
        if not ref.is_whole:
            raise ShardingError(
                f"a distribution cannot name {ref}, which is part of an axis",
                where=text,
                fix="refine the mesh so that the part is an axis of its own: refine_mesh does",
            )
    if sharding.unreduced:
        axes = ", ".join(map(str, sharding.unreduced))
        raise ShardingError(
            f"a distribution cannot say that sums along {axes} are still to be taken",
            where=text,
            fix="reduce the value first",
        )
    for place, dim in enumerate(sharding.dims):
        if dim.is_open:
            raise ShardingError(
                f"a distribution cannot leave dimension {place} open",
                where=text,
                fix="close it: Sharding.closed does",
            )
    index = {name: place for place, name in enumerate(mesh.axis_names)}
    cuts = tuple(tuple(index[ref.name] for ref in dim.axes) for dim in sharding.dims)
    return Distribution.by_cuts("T", tuple(names), cuts, len(index))
