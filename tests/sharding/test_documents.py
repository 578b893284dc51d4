"""Every mesh, sharding and manual computation written out in Shardy's two documents."""

from __future__ import annotations

import pytest

from autoshard.sharding import (
    format_manual_computation,
    format_mesh,
    format_sharding,
    is_equivalent,
    local_shape,
    parse_manual_computation,
    parse_mesh,
    parse_named_mesh,
    parse_sharding,
    verify_manual_computation,
    verify_mesh,
    verify_sharding,
)
from tests.sharding.sdy_oracle import SdyOracle

XY = '@mesh_xy = <["x"=2, "y"=2]>'
XYZ = '@mesh_xy = <["x"=2, "y"=4, "z"=2]>'
XYZ_NAMED = '@mesh_xyz = <["x"=2, "y"=4, "z"=2]>'
X4 = '@mesh_x = <["x"=4]>'
Y8 = '@mesh_xyz = <["x"=2, "y"=8, "z"=2]>'
WXYZ = '@mesh_xy = <["w"=6, "x"=2, "y"=4, "z"=2]>'

SHARDINGS = [
    # mesh, sharding, shape of the tensor, shape on one device
    (XYZ, 'sharding<@mesh_xy, [{"x"}, {"z", "y"}]>', (4, 8), (2, 1)),
    (XYZ, 'sharding<@mesh_xy, [{"x"}, {"z", ?}]>', (4, 8), (2, 4)),
    (XYZ_NAMED, 'sharding<@mesh_xyz, [{"x"}, {?}], replicated={"y"}>', (4, 8), (2, 8)),
    (X4, '<@mesh_x, [{"x"}]>', (8,), (2,)),
    (X4, '<@mesh_x, [{"x":(1)2}, {"x":(2)2}]>', (2, 4), (1, 2)),
    (Y8, 'sharding<@mesh_xyz, [{"x"}, {"y":(2)2}]>', (4, 8), (2, 4)),
    ('@mesh_xy = <"x"=4, "y"=2>', 'sharding<@mesh_xy, [{"x"},{ "y"}]>', (4, 4), (1, 2)),
    (
        '@mesh_full = <"devices"=8>',
        'sharding<@mesh_full, [{"devices":(1)4}, {"devices":(4)2}]>',
        (4, 4),
        (1, 2),
    ),
    (Y8, 'sharding<@mesh_xyz, [{"x"}, {"y":(2)2}], replicated={"y":(1)2}>', (4, 8), (2, 4)),
    (WXYZ, 'sharding<@mesh_xy, [{"x"}p1, {"y"}, {"z",?}p2], replicated={}>', (8, 8, 8), (4, 2, 4)),
    (
        '@mesh_xy = <["x"=8, "y"=2, "z"=3]>',
        'sharding<@mesh_xy, [{"x"}, {"y"}, {"z"}]>',
        (7, 3, 8),
        (1, 2, 3),
    ),
    (XY, '#sdy.sharding<@mesh_xy, [{"x"}, {}]>', (8, 8), (4, 8)),
    (XY, '#sdy.sharding<@mesh_xy, [{}, {"y"}]>', (8, 16), (8, 8)),
    (XY, '<@mesh_xy, [{"x"}, {?}]>', (8, 8), (4, 8)),
    (XY, '#sdy.sharding<@mesh_xy, [{"x"},{"y"}]>', (8, 2), (4, 1)),
]
MESHES = [
    *{mesh: None for mesh, *_ in SHARDINGS},
    '@mesh_xy = <["c"=2, "a"=2, "b"=2]>',
    '@mesh_0 = {<["a"=4, "b"=2]>, device_ids=[0, 1, 2, 3, 4, 5, 6, 7]}',
    '@mesh_1 = {<["x"=2, "y"=2, "z"=2]>, device_ids=[0, 1, 2, 3, 4, 5, 6, 7]}',
    '@mesh_name = <["data"=2, "model"=2]>',
]
MANUAL = """%1 = sdy.manual_computation(%0)
    in_shardings=[<@mesh_name, [{"data"}, {"model",?}]>]
    out_shardings=[<@mesh_name, [{"data"}, {?}]>]
    manual_axes={"data"}
    (%arg1: tensor<8x32xf32>) {"""


@pytest.fixture(scope="module")
def oracle() -> SdyOracle:
    return SdyOracle()


@pytest.mark.parametrize("text", MESHES)
def test_every_mesh_of_the_documents_is_sound_here_and_in_shardy(
    text: str, oracle: SdyOracle
) -> None:
    name, mesh = parse_named_mesh(text)
    assert verify_mesh(mesh) == []
    line = format_mesh(mesh, name)
    assert oracle.mesh(line).text == line
    assert parse_named_mesh(line) == (name, mesh)


@pytest.mark.parametrize(("mesh_text", "text", "shape", "local"), SHARDINGS)
def test_every_sharding_of_the_documents_is_sound_here_and_in_shardy(
    mesh_text: str, text: str, shape: tuple[int, ...], local: tuple[int, ...], oracle: SdyOracle
) -> None:
    name, mesh = parse_named_mesh(mesh_text)
    sharding = parse_sharding(text)
    assert sharding.mesh_name == name
    assert verify_sharding(sharding, mesh, shape) == []
    assert local_shape(sharding, mesh, shape) == local
    printed = format_sharding(sharding)
    assert parse_sharding(printed) == sharding
    tensor = f"tensor<{'x'.join(map(str, shape))}xf32>"
    assert oracle.sharding(printed, [format_mesh(mesh, name)], tensor).text == printed


def test_splitting_the_mesh_of_the_documents_changes_nothing() -> None:
    assert is_equivalent(
        parse_sharding('sharding<@mesh_xy, [{"x"},{ "y"}]>'),
        parse_mesh('@mesh_xy = <"x"=4, "y"=2>'),
        parse_sharding('sharding<@mesh_full, [{"devices":(1)4}, {"devices":(4)2}]>'),
        parse_mesh('@mesh_full = <"devices"=8>'),
    )
    assert is_equivalent(
        parse_sharding('<@mesh_0, [{"b"}]>'),
        parse_mesh(MESHES[-3]),
        parse_sharding('<@mesh_1, [{"z"}]>'),
        parse_mesh(MESHES[-2]),
    )


def test_the_manual_computation_of_the_documents_is_sound() -> None:
    manual = parse_manual_computation(MANUAL)
    meshes = dict([parse_named_mesh(MESHES[-1])])
    assert verify_manual_computation(manual, meshes, strict=True) == []
    assert parse_manual_computation(format_manual_computation(manual)) == manual


@pytest.mark.parametrize(
    ("mesh", "text", "violation"),
    [
        (
            '<["c"=2, "a"=2, "b"=2]>',
            '[{}], replicated={"a", "c"}',
            "replicated axes are in the order of the mesh, sub-axes by pre-size: "
            '"c", "a", found "a", "c"',
        ),
        (
            '<["x"=2, "y"=8, "z"=2]>',
            '[{}], replicated={"y":(4)2, "x", "y":(1)2}',
            "replicated axes are in the order of the mesh, sub-axes by pre-size: "
            '"x", "y":(1)2, "y":(4)2, found "y":(4)2, "x", "y":(1)2',
        ),
        (
            '<["x"=16]>',
            '[{"x":(1)4}, {"x":(2)4}]',
            '"x":(1)4 in dimension 0 and "x":(2)4 in dimension 1 overlap',
        ),
        (
            '<["x"=16]>',
            '[{"x":(1)2, "x":(2)4}]',
            '"x":(1)2 and "x":(2)4 in dimension 0 are one sub-axis '
            'and are written as one: "x":(1)8',
        ),
    ],
)
def test_what_the_documents_forbid_is_refused(mesh: str, text: str, violation: str) -> None:
    assert verify_sharding(parse_sharding(text), parse_mesh(mesh)) == [violation]
