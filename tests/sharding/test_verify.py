from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import ShardingError
from autoshard.sharding import (
    Mesh,
    canonicalize,
    check_sharding,
    in_mesh_order,
    merge_axes,
    parse_axis_ref,
    parse_mesh,
    parse_sharding,
    resolve_mesh,
    verify_sharding,
)
from experiments.shardy_oracle.random_shardings import sound_sharding

MESH = parse_mesh('<["x"=2, "y"=8, "z"=2, "c"=6]>')


@pytest.mark.parametrize(
    ("text", "violations"),
    [
        ('[{"x"}, {"z", "y"}]', []),
        ('[{"y":(2)2}, {"y":(1)2}], replicated={"y":(4)2}', []),
        ('[{"y":(2)2, "y":(1)2}, {}]', []),
        ('[{"x"}, {?}p4], replicated={"y":(1)2, "z"}, unreduced={"y":(4)2, "c"}', []),
        ('[{"x"}]', ["the sharding has 1 dimension and the tensor has 2"]),
        (
            '[{"x"}, {}, {}]',
            ["the sharding has 3 dimensions and the tensor has 2"],
        ),
        (
            '[{"q"}, {}]',
            [
                'dimension 0 uses axis "q", which the mesh does not have; '
                'its axes: "x", "y", "z", "c"'
            ],
        ),
        ('[{"x"}, {"x"}]', ['"x" is used twice: in dimension 0 and in dimension 1']),
        ('[{"x"}, {}], replicated={"x"}', ['"x" is used twice: in dimension 0 and in replicated']),
        (
            '[{}, {"y":(2)2}], unreduced={"y":(2)2}',
            ['"y":(2)2 is used twice: in dimension 1 and in unreduced'],
        ),
        (
            '[{}, {}], replicated={"x"}, unreduced={"x"}',
            ['"x" is used twice: in replicated and in unreduced'],
        ),
        (
            '[{"y"}, {"y":(1)2}]',
            ['"y" is used whole in dimension 0, and in part in dimension 1: "y":(1)2'],
        ),
        (
            '[{"y":(1)4}, {"y":(2)4}]',
            ['"y":(1)4 in dimension 0 and "y":(2)4 in dimension 1 overlap'],
        ),
        (
            '[{"y":(1)2, "y":(2)2}, {}]',
            [
                '"y":(1)2 and "y":(2)2 in dimension 0 are one sub-axis '
                'and are written as one: "y":(1)4'
            ],
        ),
        (
            '[{}, {}], replicated={"y":(1)2, "y":(2)4}',
            ['"y":(1)2 and "y":(2)4 in replicated are one sub-axis and are written as one: "y"'],
        ),
        (
            '[{"y":(3)2}, {}]',
            [
                '"y":(3)2 in dimension 0 does not fit its axis: '
                "3 * 2 = 6 does not divide the axis size 8"
            ],
        ),
        (
            '[{"y":(4)4}, {}]',
            [
                '"y":(4)4 in dimension 0 does not fit its axis: '
                "4 * 4 = 16 does not divide the axis size 8"
            ],
        ),
        (
            '[{"y":(2)1}, {}]',
            ['"y":(2)1 in dimension 0 has size 1, and a sub-axis has size 2 or more: leave it out'],
        ),
        ('[{"y":(1)8}, {}]', ['"y":(1)8 in dimension 0 is the whole axis and is written "y"']),
        (
            '[{}, {}], replicated={"z", "x"}',
            [
                "replicated axes are in the order of the mesh, sub-axes by pre-size: "
                '"x", "z", found "z", "x"'
            ],
        ),
        (
            '[{}, {}], replicated={"y":(4)2, "x", "y":(1)2}',
            [
                "replicated axes are in the order of the mesh, sub-axes by pre-size: "
                '"x", "y":(1)2, "y":(4)2, found "y":(4)2, "x", "y":(1)2'
            ],
        ),
        (
            '[{}, {}], unreduced={"z", "x"}',
            [
                "unreduced axes are in the order of the mesh, sub-axes by pre-size: "
                '"x", "z", found "z", "x"'
            ],
        ),
        (
            "[{}p0, {?}p1]",
            ["dimension 0 is empty and closed, so its priority p0 has nothing to order"],
        ),
    ],
)
def test_each_rule_of_shardings_has_its_message(text: str, violations: list[str]) -> None:
    assert verify_sharding(parse_sharding(text), MESH, (8, 8)) == violations


def test_all_violations_of_a_sharding_come_together() -> None:
    sharding = parse_sharding('[{"x", "q"}, {}p2, {"x"}], replicated={"z", "y":(3)2}')
    violations = verify_sharding(sharding, MESH, (8, 8))
    assert violations == [
        "the sharding has 3 dimensions and the tensor has 2",
        "dimension 1 is empty and closed, so its priority p2 has nothing to order",
        'dimension 0 uses axis "q", which the mesh does not have; its axes: "x", "y", "z", "c"',
        '"x" is used twice: in dimension 0 and in dimension 2',
        '"y":(3)2 in replicated does not fit its axis: 3 * 2 = 6 does not divide the axis size 8',
        "replicated axes are in the order of the mesh, sub-axes by pre-size: "
        '"y":(3)2, "z", found "z", "y":(3)2',
    ]
    with pytest.raises(ShardingError) as caught:
        check_sharding(sharding, MESH, (8, 8), where="argument `w`")
    assert caught.value.what == "\n".join(violations)
    assert caught.value.where == (
        'argument `w`: <@mesh, [{"x", "q"}, {}p2, {"x"}], replicated={"z", "y":(3)2}>'
    )
    assert caught.value.fix == "correct the sharding for the mesh (x=2, y=8, z=2, c=6)"


@pytest.mark.parametrize("text", ['[{"x"}]', "[{}]", '[], replicated={"x"}', '[], unreduced={"x"}'])
def test_on_one_device_a_sharding_is_bare(text: str) -> None:
    sharding = parse_sharding(text)
    assert verify_sharding(sharding, Mesh((), (3,)), (8,)) == [
        "a sharding on a single device has no dimensions and no axes: write it []"
    ]
    assert verify_sharding(parse_sharding("[]"), Mesh((), (3,)), (8, 8)) == []


@pytest.mark.parametrize("text", ["[{}]", '[], replicated={"x"}'])
def test_a_token_has_a_bare_sharding(text: str) -> None:
    assert verify_sharding(parse_sharding(text), MESH, is_tensor=False) == [
        "a sharding of a value that is not a tensor has no dimensions and no axes: write it []"
    ]
    assert verify_sharding(parse_sharding("[]"), MESH, is_tensor=False) == []


def test_an_axis_bound_by_a_manual_computation_around_is_taken() -> None:
    sharding = parse_sharding('[{"x"}, {}], replicated={"y":(2)2}')
    assert verify_sharding(sharding, MESH, manual_axes={"x", "y"}) == [
        'dimension 0 uses axis "x", which a manual computation around it has bound',
        'replicated uses axis "y", which a manual computation around it has bound',
    ]


def test_an_inlined_mesh_is_checked_and_used() -> None:
    sharding = parse_sharding('<mesh<["a"=2, "a"=2]>, [{"x"}]>')
    assert verify_sharding(sharding, MESH) == [
        'two axes of the mesh are called "a"',
        'dimension 0 uses axis "x", which the mesh does not have; its axes: "a", "a"',
    ]


def test_without_a_shape_any_rank_will_do() -> None:
    assert verify_sharding(parse_sharding('[{"x"}, {}, {}]'), MESH) == []


def test_sizes_that_are_not_known_are_not_looked_at() -> None:
    assert verify_sharding(parse_sharding('[{"x"}, {}]'), MESH, (None, 3)) == []


def test_a_sharding_is_resolved_to_the_mesh_it_names_or_carries() -> None:
    assert resolve_mesh(parse_sharding("<@m, []>"), {"m": MESH}) is MESH
    assert resolve_mesh(parse_sharding('<mesh<["a"=2]>, []>'), {}) == parse_mesh('<["a"=2]>')
    with pytest.raises(ShardingError) as caught:
        resolve_mesh(parse_sharding("<@other, []>"), {"m": MESH})
    assert str(caught.value) == (
        'there is no mesh "other"; the meshes are: "m"\n'
        "  where: <@other, []>\n"
        "  fix: name one of these meshes, or define this one"
    )


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ('[{"y":(1)2, "y":(2)2}, {}p3]', '[{"y":(1)4}, {}]'),
        ('[{"y":(1)2, "y":(2)2, "y":(4)2, ?}p1]', '[{"y", ?}p1]'),
        ('[{"y":(1)8}, {"c":(2)1}]', '[{"y"}, {}]'),
        (
            '[{}], replicated={"y":(4)2, "x", "y":(2)2}, unreduced={"z", "y":(1)2}',
            '[{}], replicated={"x", "y":(2)4}, unreduced={"y":(1)2, "z"}',
        ),
        ('[{"y":(2)2, "y":(1)2}]', '[{"y":(2)2, "y":(1)2}]'),
    ],
)
def test_canonicalize_mends_the_spelling(text: str, canonical: str) -> None:
    mended = canonicalize(parse_sharding(text), MESH)
    assert mended == parse_sharding(canonical)
    assert verify_sharding(mended, MESH) == []
    assert canonicalize(mended, MESH) == mended


@given(st.randoms(use_true_random=False), st.integers(0, 4))
def test_a_sound_sharding_is_canonical_already(draw: random.Random, rank: int) -> None:
    sharding = sound_sharding(MESH, rank, draw)
    assert verify_sharding(sharding, MESH, (5,) * rank) == []
    assert canonicalize(sharding, MESH) == sharding


def test_axes_sort_into_mesh_order_with_sub_axes_by_pre_size() -> None:
    axes = [parse_axis_ref(text) for text in ('"z"', '"y":(4)2', '"x"', '"y":(1)2')]
    assert [str(axis) for axis in in_mesh_order(axes, MESH)] == [
        '"x"',
        '"y":(1)2',
        '"y":(4)2',
        '"z"',
    ]


def test_merging_joins_only_neighbours_in_order() -> None:
    axes = [parse_axis_ref(text) for text in ('"y":(4)2', '"y":(1)2', '"y":(2)2', '"x"')]
    assert [str(axis) for axis in merge_axes(axes, MESH)] == ['"y":(4)2', '"y":(1)4', '"x"']
