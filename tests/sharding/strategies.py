"""Random meshes and shardings, sound and unsound."""

from __future__ import annotations

import itertools
import random

from hypothesis import strategies as st

from autoshard.sharding import AxisRef, DimSharding, Mesh, MeshAxis, Sharding

AXIS_NAMES = ("x", "y", "z", "data", 'q"uote', "é")


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    names = draw(st.lists(st.sampled_from(AXIS_NAMES), unique=True, max_size=4))
    axes = tuple(MeshAxis(name, draw(st.sampled_from([1, 2, 3, 4, 6, 8]))) for name in names)
    mesh = Mesh(axes)
    if axes and mesh.num_devices <= 64 and draw(st.booleans()):
        return Mesh(axes, tuple(draw(st.permutations(range(mesh.num_devices)))))
    return mesh


def axis_refs() -> st.SearchStrategy[AxisRef]:
    whole = st.builds(AxisRef, st.text(max_size=5) | st.sampled_from(AXIS_NAMES))
    sizes = st.integers(1, 12) | st.integers(1, 2**63 - 1)
    return whole | st.builds(AxisRef, st.sampled_from(AXIS_NAMES), sizes, sizes)


def dim_shardings() -> st.SearchStrategy[DimSharding]:
    axes = st.lists(axis_refs(), max_size=3).map(tuple)
    return st.builds(DimSharding, axes, st.booleans(), st.none() | st.integers(0, 2**63 - 1))


def shardings() -> st.SearchStrategy[Sharding]:
    """Any value the types allow, most of them unsound on any mesh."""
    return st.builds(
        Sharding,
        st.lists(dim_shardings(), max_size=4).map(tuple),
        st.lists(axis_refs(), max_size=3).map(tuple),
        st.lists(axis_refs(), max_size=3).map(tuple),
        st.text(min_size=1, max_size=5) | st.sampled_from(["mesh", "m$1.a"]),
        st.none() | meshes(),
    )


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
    return Sharding(tuple(dims), replicated, unreduced)
