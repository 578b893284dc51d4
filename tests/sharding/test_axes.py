"""Worked examples of the sub-axis algebra; "a" has 16 devices where a mesh is needed."""

from __future__ import annotations

import pytest

from autoshard.errors import ShardingError
from autoshard.sharding import AxisRef, Mesh, parse_axis_ref, parse_mesh_sizes

MESH = parse_mesh_sizes("a=16,b=8,c=6")


def ref(text: str) -> AxisRef:
    return parse_axis_ref(text)


def optional_ref(text: str | None) -> AxisRef | None:
    return None if text is None else parse_axis_ref(text)


@pytest.mark.parametrize(
    ("outer", "inner", "contains"),
    [
        ('"a"', '"a":(2)2', True),
        ('"a":(1)8', '"a":(1)4', True),
        ('"a":(2)16', '"a":(4)2', True),
        ('"a"', '"a"', True),
        ('"a":(2)2', '"a":(2)2', True),
        ('"a":(1)4', '"a":(2)4', False),
        ('"a":(2)4', '"a":(1)2', False),
        ('"a"', '"b":(1)2', False),
        ('"a":(1)2', '"a"', False),
        ('"c":(1)6', '"c":(2)2', False),
    ],
)
def test_an_axis_contains_the_parts_it_can_be_split_into(
    outer: str, inner: str, contains: bool
) -> None:
    assert ref(outer).contains(ref(inner)) is contains


@pytest.mark.parametrize(
    ("prefix", "whole", "is_prefix"),
    [
        ('"a":(1)2', '"a"', True),
        ('"a":(2)2', '"a":(2)4', True),
        ('"a"', '"a"', True),
        ('"a":(2)4', '"a":(2)4', True),
        ('"a":(1)4', '"a":(1)2', False),
        ('"a":(1)4', '"a":(2)8', False),
        ('"a":(1)2', '"b"', False),
        ('"a":(1)4', '"a":(1)6', False),
    ],
)
def test_a_prefix_is_the_major_part_of_a_split(prefix: str, whole: str, is_prefix: bool) -> None:
    assert ref(prefix).is_prefix_of(ref(whole)) is is_prefix


OVERLAPS = [
    # left, right, whether they overlap, and what of the left stays clear of the right
    ('"a"', '"a":(2)2', True, '"a":(1)2'),
    ('"a":(2)2', '"a":(2)2', True, None),
    ('"a":(1)4', '"a":(2)4', True, '"a":(1)2'),
    ('"a":(2)4', '"a":(1)4', True, None),
    ('"a":(1)4', '"a":(1)2', True, None),
    ('"a":(2)8', '"a":(4)2', True, '"a":(2)2'),
    ('"a":(1)4', '"a":(4)2', False, '"a":(1)4'),
    ('"a":(1)2', '"a":(4)2', False, '"a":(1)2'),
    ('"a":(1)4', '"b":(2)4', False, '"a":(1)4'),
]


@pytest.mark.parametrize(("left", "right", "overlap", "_clear"), OVERLAPS)
def test_sub_axes_overlap_when_a_part_belongs_to_both(
    left: str, right: str, overlap: bool, _clear: str | None
) -> None:
    assert ref(left).overlaps(ref(right)) is overlap
    assert ref(right).overlaps(ref(left)) is overlap


@pytest.mark.parametrize(("left", "right", "_overlap", "clear"), OVERLAPS)
def test_the_prefix_without_overlap_ends_where_the_other_begins(
    left: str, right: str, _overlap: bool, clear: str | None
) -> None:
    assert ref(left).prefix_without_overlap(ref(right)) == optional_ref(clear)


@pytest.mark.parametrize(
    ("major", "minor", "merged"),
    [
        ('"a":(2)2', '"a":(4)2', '"a":(2)4'),
        ('"b":(1)2', '"b":(2)4', '"b"'),
        ('"a":(1)2', '"a":(4)2', None),
        ('"a":(2)4', '"a":(1)2', None),
        ('"a"', '"a"', None),
        ('"a":(1)2', '"b":(2)2', None),
    ],
)
def test_neighbours_merge_into_one_sub_axis_or_the_whole_axis(
    major: str, minor: str, merged: str | None
) -> None:
    assert ref(major).can_merge(ref(minor)) is (merged is not None)
    if merged is None:
        with pytest.raises(ShardingError, match="does not begin where"):
            ref(major).merge(ref(minor), MESH)
    else:
        assert ref(major).merge(ref(minor), MESH) == ref(merged)


@pytest.mark.parametrize(
    ("left", "right", "rest"),
    [
        ('"a"', '"a":(2)2', ['"a":(1)2', '"a":(4)4']),
        ('"a"', '"a":(1)4', ['"a":(4)4']),
        ('"a"', '"a":(4)4', ['"a":(1)4']),
        ('"a":(1)4', '"a":(2)4', ['"a":(1)2']),
        ('"a":(2)4', '"a":(1)4', ['"a":(4)2']),
        ('"a":(2)2', '"a"', []),
        ('"a":(2)2', '"a":(4)2', ['"a":(2)2']),
        ('"a"', '"b"', ['"a"']),
    ],
)
def test_the_difference_is_what_is_left_on_either_side(
    left: str, right: str, rest: list[str]
) -> None:
    assert ref(left).difference(ref(right), MESH) == tuple(map(ref, rest))


def test_sub_axes_whose_ends_do_not_divide_one_another_do_not_coexist() -> None:
    assert not ref('"c":(1)2').coexists_with(ref('"c":(3)2'))
    assert ref('"c":(1)2').coexists_with(ref('"c":(2)3'))
    with pytest.raises(ShardingError) as caught:
        ref('"c":(1)3').difference(ref('"c":(2)3'), MESH)
    assert caught.value.what == (
        '"c":(1)3 and "c":(2)3 cannot be parts of one splitting of the axis'
    )


@pytest.mark.parametrize(
    ("axis", "coordinates"),
    [
        ('"b"', [0, 1, 2, 3, 4, 5, 6, 7]),
        ('"b":(1)2', [0, 0, 0, 0, 1, 1, 1, 1]),
        ('"b":(2)2', [0, 0, 1, 1, 0, 0, 1, 1]),
        ('"b":(4)2', [0, 1, 0, 1, 0, 1, 0, 1]),
        ('"b":(2)4', [0, 1, 2, 3, 0, 1, 2, 3]),
    ],
)
def test_a_sub_axis_coordinate_is_one_digit_of_the_axis_coordinate(
    axis: str, coordinates: list[int]
) -> None:
    assert [ref(axis).coordinate(place, MESH) for place in range(8)] == coordinates


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("x", 2, None),
            "pre-size 2 is given without a size\n"
            '  where: axis "x"\n'
            '  fix: give the size too, as in "x":(2)2',
        ),
        (
            ("x", 0, 2),
            "sub-axis pre-size is 0, which is below 1\n"
            '  where: "x":(0)2\n'
            "  fix: the pre-size is the product of the more major sizes; the first part has 1",
        ),
        (
            ("x", 1, 0),
            "sub-axis size is 0, which is below 1\n"
            '  where: "x":(1)0\n'
            "  fix: a sub-axis has size 2 or more; leave it out when it has 1",
        ),
    ],
)
def test_a_reference_that_cannot_be_is_refused_at_once(
    arguments: tuple[str, int, int | None], message: str
) -> None:
    with pytest.raises(ShardingError) as caught:
        AxisRef(*arguments)
    assert str(caught.value) == message


def test_a_sub_axis_that_is_all_of_its_axis_becomes_that_axis() -> None:
    assert AxisRef("b", 1, 8).canonical(MESH) == AxisRef("b")
    assert AxisRef("b", 1, 4).canonical(MESH) == AxisRef("b", 1, 4)
    assert AxisRef("b", 1, 4).size_on(MESH) == 4
    assert AxisRef("b").size_on(MESH) == 8


def test_an_axis_the_mesh_lacks_has_no_size() -> None:
    with pytest.raises(ShardingError, match='the mesh has no axis "q"'):
        AxisRef("q").size_on(Mesh())
