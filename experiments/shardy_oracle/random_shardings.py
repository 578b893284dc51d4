"""Random meshes and shardings, sound and damaged, as values and as text."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from autoshard.sharding import AxisRef, DimSharding, Mesh, MeshAxis, Sharding, parse_mesh

MESHES = (
    parse_mesh('<["x"=8, "y"=6, "z"=2]>'),
    parse_mesh('<["y"=4, "x"=12]>'),
    parse_mesh('<["x"=2, "y"=1], device_ids=[1, 0]>'),
    parse_mesh('<["é \\22"=4, "x"=16]>'),
    Mesh(),
    Mesh((), (3,)),
)
SHARDING_GARBLES = ("", " ", *', ? { } : (1)2 "x" p1 p01 // 0 1 < > -'.split())
MESH_GARBLES = ("", " ", *', " { [ ] "x"=2 = // 0 1 0x2 < > - ?'.split())


def garbled(text: str, garbles: Sequence[str], draw: random.Random) -> str:
    """The text with something put in, and up to two characters taken out."""
    at = draw.randrange(len(text))
    return text[:at] + draw.choice(garbles) + text[at + draw.randrange(3) :]


def random_mesh(draw: random.Random) -> Mesh:
    """A small mesh, often with device ids, which are often wrong."""
    names = draw.choices(["x", "y", "z"], k=draw.randrange(4))
    axes = tuple(MeshAxis(name, draw.choice([1, 2, 3])) for name in names)
    mesh = Mesh(axes)
    if draw.random() < 0.4:
        return mesh
    device_ids = list(range(mesh.num_devices))
    draw.shuffle(device_ids)
    if draw.random() < 0.4:
        device_ids[draw.randrange(len(device_ids))] = draw.randrange(-1, len(device_ids) + 2)
    if draw.random() < 0.2:
        device_ids.append(draw.randrange(5))
    return Mesh(axes, tuple(device_ids))


def sound_sharding(mesh: Mesh, rank: int, draw: random.Random) -> Sharding:
    """A sharding that breaks no rule: parts of axes dealt out to dimensions and lists."""
    parts: list[AxisRef] = []
    for axis in mesh.axes:
        cuts = [1]
        while axis.size // cuts[-1] > 1 and draw.random() < 0.6:
            rest = axis.size // cuts[-1]
            factors = [k for k in range(2, rest + 1) if rest % k == 0]
            cuts.append(cuts[-1] * draw.choice(factors))
        parts += [
            AxisRef(axis.name, start, end // start).canonical(mesh)
            for start, end in itertools.pairwise(cuts)
        ]
    draw.shuffle(parts)
    places: list[list[AxisRef]] = [[] for _ in range(rank + 3)]
    for part in parts:
        place = places[draw.randrange(rank + 3)]
        if not (place and place[-1].can_merge(part)):
            place.append(part)
    dims = []
    for axes in places[:rank]:
        is_open = draw.random() < 0.4
        priority = draw.choice([None, 0, 1, 7]) if axes or is_open else None
        dims.append(DimSharding(tuple(axes), is_open, priority))
    replicated, unreduced = (
        _kept_apart(sorted(axes, key=lambda axis: (mesh.axis_index(axis.name), axis.pre_size)))
        for axes in places[rank : rank + 2]
    )
    return Sharding(tuple(dims), replicated, unreduced)


def _kept_apart(axes: list[AxisRef]) -> tuple[AxisRef, ...]:
    """The axes without those that would merge with the one before."""
    return tuple(
        axis for index, axis in enumerate(axes) if index == 0 or not axes[index - 1].can_merge(axis)
    )


def damaged(sharding: Sharding, draw: random.Random) -> Sharding:
    """The sharding with one thing changed, often for the worse."""
    axes = [*sharding.axis_refs(), AxisRef("nowhere"), AxisRef("x", 2, 2), AxisRef("y", 1, 4)]
    axis = draw.choice([*axes, AxisRef("x", 1, draw.choice([1, 2, 3, 8])), AxisRef("x")])
    dims = list(sharding.dims)
    replicated, unreduced = sharding.replicated, sharding.unreduced
    where = draw.randrange(5)
    if where == 0 and dims:
        index = draw.randrange(len(dims))
        old = dims[index]
        dims[index] = DimSharding((*old.axes, axis), old.is_open, old.priority)
    elif where == 1 and dims:
        index = draw.randrange(len(dims))
        dims[index] = DimSharding(dims[index].axes, draw.random() < 0.5, draw.choice([0, 3]))
    elif where == 2:
        replicated = (axis, *replicated)
    elif where == 3:
        unreduced = (*unreduced, axis)
    else:
        dims.append(DimSharding())
    return Sharding(tuple(dims), replicated, unreduced, sharding.mesh_name, sharding.inlined_mesh)
