"""Any meshes, shardings and rules, sound or not."""

from __future__ import annotations

from hypothesis import strategies as st

from autoshard.sharding import AxisRef, DimSharding, Mesh, MeshAxis, OpShardingRule, Sharding

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


def op_sharding_rules() -> st.SearchStrategy[OpShardingRule]:
    """Any value whose text has a form Shardy reads, most of them unsound."""
    factors = st.integers(0, 40) | st.integers(0, 2**63 - 1)
    dims = st.lists(factors, min_size=1, max_size=3).map(tuple)
    tensors = st.lists(st.lists(dims, max_size=3).map(tuple), min_size=1, max_size=3).map(tuple)
    factor_set = st.lists(factors, max_size=3).map(tuple)
    sizes = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=22).map(tuple)
    sets = [factor_set] * 4
    return st.builds(OpShardingRule, sizes, tensors, tensors, *sets, st.booleans())
