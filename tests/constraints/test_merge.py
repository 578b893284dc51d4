"""Two shardings asked of one tensor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.constraints.merge import merge_shardings
from autoshard.sharding import (
    AxisRef,
    DimSharding,
    Sharding,
    format_sharding,
    parse_mesh_sizes,
    parse_sharding,
)

MESH = parse_mesh_sizes("x=2,y=4,z=2")


def merged(first: str, second: str) -> str:
    found = merge_shardings(parse_sharding(first), parse_sharding(second), MESH)
    if isinstance(found, str):
        return found
    return format_sharding(found).removeprefix("<@mesh, ").removesuffix(">")


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ('[{"x"}, {?}]', '[{"x", ?}, {"y"}]', '[{"x"}, {"y"}]'),
        ("[{?}]", "[{?}]", "[{?}]"),
        ('[{"x", ?}]', '[{"x", "y", ?}]', '[{"x", "y", ?}]'),
        ('[{"x", ?}]', '[{"x", "y"}]', '[{"x", "y"}]'),
        ('[{"y":(1)2, ?}]', '[{"y"}]', '[{"y"}]'),
        ('[{"y":(1)2, ?}]', '[{"y", "x", ?}]', '[{"y", "x", ?}]'),
        ('[{?}], replicated={"z"}', '[{"x"}], replicated={"y"}', '[{"x"}], replicated={"y", "z"}'),
        ('[{?}], replicated={"y":(1)2}', '[{?}], replicated={"y"}', '[{?}], replicated={"y"}'),
        ('[{"x", ?}p2]', '[{"x", "y", ?}p1]', '[{"x", "y", ?}p1]'),
        ("[{?}]", '[{"x"}p1]', '[{"x"}p1]'),
        ("[{}]", "[{?}p1]", "[{}]"),
    ],
)
def test_shardings_that_go_together_become_one(first: str, second: str, both: str) -> None:
    assert merged(first, second) == both
    assert merged(second, first) == both


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ('[{"x"}]', '[{"y"}]', "dimension 0 is closed on both sides and differs"),
        (
            "[{}, {}]",
            '[{}, {"x", ?}]',
            'dimension 1 is closed at {} and asked to begin with {"x", ?}',
        ),
        ('[{"x", ?}]', '[{"y", ?}]', "dimension 0 is asked to begin with different axes"),
        (
            '[{?}], replicated={"x"}',
            '[{"x"}]',
            'dimension 0 is sharded along "x", which is to replicate it',
        ),
        ('[{"x", ?}, {?}]', '[{?}, {"x", ?}]', '"x" would shard dimensions 0 and 1'),
        (
            '[{"x"}]',
            '<mesh<["r"=16], device_ids=[1, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]>,'
            ' [{"r"}]>',
            "they are on different meshes and put different data on the devices",
        ),
    ],
)
def test_shardings_that_contradict_say_why(first: str, second: str, reason: str) -> None:
    assert merged(first, second) == reason
    assert merged(second, first) == reason


def test_meshes_that_say_the_same_do_not_contradict() -> None:
    assert merged('[{"x"}]', '<mesh<["r"=2, "s"=8]>, [{"r"}]>') == '[{"x"}]'


@st.composite
def shardings(draw: st.DrawFn) -> Sharding:
    """Of two dimensions, over whole axes, each used once at most."""
    axes = draw(st.permutations(["x", "y", "z"]))
    first, second = sorted(draw(st.tuples(st.integers(0, 3), st.integers(0, 3))))
    refs = [AxisRef(name) for name in axes]
    rest = [ref for ref in refs[second:] if draw(st.booleans())]
    order = sorted(rest, key=lambda ref: MESH.axis_names.index(ref.name))
    return Sharding(
        (
            DimSharding(tuple(refs[:first]), draw(st.booleans())),
            DimSharding(tuple(refs[first:second]), draw(st.booleans())),
        ),
        tuple(order),
    )


def admits(sharding: Sharding, layout: Sharding) -> bool:
    if {ref for dim in layout.dims for ref in dim.axes} & set(sharding.replicated):
        return False
    return all(
        have.axes[: len(want.axes)] == want.axes if want.is_open else have.axes == want.axes
        for have, want in zip(layout.dims, sharding.dims, strict=True)
    )


@given(first=shardings(), second=shardings(), layout=shardings())
def test_the_one_admits_exactly_what_both_admit(
    first: Sharding, second: Sharding, layout: Sharding
) -> None:
    both = merge_shardings(first, second, MESH)
    wanted = admits(first, layout) and admits(second, layout)
    assert wanted == (isinstance(both, Sharding) and admits(both, layout))
