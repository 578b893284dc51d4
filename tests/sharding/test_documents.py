"""Every mesh, sharding and manual computation written out in Shardy's two documents.

Each stands here as the document spells it, with what becomes of it. The last tests find whatever
else the documents write, so that nothing is left out.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autoshard.errors import ShardingError
from autoshard.sharding import (
    canonicalize,
    find_manual_regions,
    find_shardings,
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
    verify_manual_region,
    verify_mesh,
    verify_sharding,
)
from experiments.shardy_oracle import SdyOracle

XY = '@mesh_xy = <["x"=2, "y"=2]>'
XYZ = '@mesh_xy = <["x"=2, "y"=4, "z"=2]>'
XYZ_NAMED = '@mesh_xyz = <["x"=2, "y"=4, "z"=2]>'
X4 = '@mesh_x = <["x"=4]>'
Y8 = '@mesh_xyz = <["x"=2, "y"=8, "z"=2]>'
FULL = '@mesh_full = <"devices"=8>'
SPLIT = '@mesh_xy = <"x"=4, "y"=2>'
WXYZ = '@mesh_xy = <["w"=6, "x"=2, "y"=4, "z"=2]>'
PADDED = '@mesh_xy = <["x"=8, "y"=2, "z"=3]>'
NAMED = '@mesh_name = <["data"=2, "model"=2]>'
MESH_0 = '@mesh_0 = {<["a"=4, "b"=2]>, device_ids=[0, 1, 2, 3, 4, 5, 6, 7]}'
MESH_1 = '@mesh_1 = {<["x"=2, "y"=2, "z"=2]>, device_ids=[0, 1, 2, 3, 4, 5, 6, 7]}'
CAB = '@mesh_xy = <["c"=2, "a"=2, "b"=2]>'

SHARDINGS = [
    # mesh, text with a sharding in it, shape of the tensor, shape on one device
    (XYZ, 'sharding<@mesh_xy, [{"x"}, {"z", "y"}]> : tensor<4x8xf32>', (4, 8), (2, 1)),
    (XYZ, 'sharding<@mesh_xy, [{"x"}, {"z", ?}]> : tensor<4x8xf32>', (4, 8), (2, 4)),
    (
        XYZ_NAMED,
        'sharding<@mesh_xyz, [{"x"}, {?}], replicated={"y"}> : tensor<4x8xf32>',
        (4, 8),
        (2, 8),
    ),
    (X4, '%arg0 : tensor<8xf32> {sdy.sharding=<@mesh_x, [{"x"}]>}', (8,), (2,)),
    (
        X4,
        '%0 = reshape %arg0 {sdy.sharding_per_value=<[<@mesh_x, [{"x":(1)2}, {"x":(2)2}]>]>}',
        (2, 4),
        (1, 2),
    ),
    (Y8, 'sharding<@mesh_xyz, [{"x"}, {"y":(2)2}]> : tensor<4x8xf32>', (4, 8), (2, 4)),
    (SPLIT, 'sharding<@mesh_xy, [{"x"},{ "y"}]> : tensor<4x4xf32>', (4, 4), (1, 2)),
    (
        FULL,
        'sharding<@mesh_full, [{"devices":(1)4}, {"devices":(4)2}]> : tensor<4x4xf32>',
        (4, 4),
        (1, 2),
    ),
    (
        Y8,
        'sharding<@mesh_xyz, [{"x"}, {"y":(2)2}], replicated={"y":(1)2}> : tensor<4x8xf32>',
        (4, 8),
        (2, 4),
    ),
    (
        WXYZ,
        '%arg4 : sharding<@mesh_xy, [{"x"}p1, {"y"}, {"z",?}p2], replicated={} }>',
        (8, 8, 8),
        (4, 2, 4),
    ),
    (
        PADDED,
        'sharding<@mesh_xy, [{"x"}, {"y"}, {"z"}]> : tensor<7x3x8xf32>',
        (7, 3, 8),
        (1, 2, 3),
    ),
    (XY, '{sdy.sharding = #sdy.sharding<@mesh_xy, [{"x"}, {}]>},', (8, 8), (4, 8)),
    (XY, '{sdy.sharding = #sdy.sharding<@mesh_xy, [{}, {"y"}]>})', (8, 16), (8, 8)),
    (
        XY,
        '%1 = sdy.sharding_constraint %0 <@mesh_xy, [{"x"}, {?}]> : tensor<8x8xf32>',
        (8, 8),
        (4, 8),
    ),
    (XY, '{sdy.sharding = #sdy.sharding<@mesh_xy, [{"x"},{"y"}]>} }', (8, 2), (4, 1)),
]
MANUAL = """%1 = sdy.manual_computation(%0)
    in_shardings=[<@mesh_name, [{"data"}, {"model",?}]>]
    out_shardings=[<@mesh_name, [{"data"}, {?}]>]
    manual_axes={"data"}
    (%arg1: tensor<8x32xf32>) {
  // body
  return %42 : tensor<8x32xf32>
} : (tensor<16x32xf32>) -> tensor<16x32xf32>"""
MESHES = [*dict.fromkeys(mesh for mesh, *_ in SHARDINGS), CAB, NAMED, MESH_0, MESH_1]
NOT_A_SHARDING = [
    # written in passing; read as nothing, with a message
    (
        '<@mesh_0, "b">',
        'expected `[`, found `"b"`\n'
        "  where: line 1, column 11\n"
        '    <@mesh_0, "b">\n'
        "              ^\n"
        "  fix: write one pair of braces for each dimension, as in [{}, {?}]",
    ),
    (
        '<@mesh_1, "z">',
        'expected `[`, found `"z"`\n'
        "  where: line 1, column 11\n"
        '    <@mesh_1, "z">\n'
        "              ^\n"
        "  fix: write one pair of braces for each dimension, as in [{}, {?}]",
    ),
    (
        '@mesh_xy, [{"x"},{"y"}]>',
        "expected `<`, found `@mesh_xy`\n"
        "  where: line 1, column 1\n"
        '    @mesh_xy, [{"x"},{"y"}]>\n'
        "    ^",
    ),
    (
        "sharding<@mesh_name, dim_shardings, replicated=replicated_axes}",
        "expected `[`, found `dim_shardings`\n"
        "  where: line 1, column 22\n"
        "    sharding<@mesh_name, dim_shardings, replicated=replicated_axes}\n"
        "                         ^\n"
        "  fix: write one pair of braces for each dimension, as in [{}, {?}]",
    ),
]
NOT_A_MESH = "@mesh_name = <mesh_axis_1,...,mesh_axis_n>"
REPLICATED = [
    # mesh, as it is written, whether it stands for a rule, in order
    (CAB, 'replicated={"c", "a"}', 'replicated={"c", "a"}'),
    (
        Y8,
        'replicated={"y":(4)2, "x", "y":(1)2}',
        'replicated={"x", "y":(1)2, "y":(4)2}',
    ),
    (
        Y8,
        'replicated={"x", "y":(1)2, "y":(4)2}',
        'replicated={"x", "y":(1)2, "y":(4)2}',
    ),
]
ONLY_HERE = {
    # spellings of the documents that jaxlib does not read
    FULL,
    SPLIT,
    MESH_0,
    MESH_1,
    *(text for _, text, *_ in SHARDINGS if re.search(r"(?<!#sdy\.)sharding<", text)),
}


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
    assert oracle.mesh(f"sdy.mesh {text}").accepts is (text not in ONLY_HERE)


@pytest.mark.parametrize(("mesh_text", "text", "shape", "local"), SHARDINGS)
def test_every_sharding_of_the_documents_is_sound_here_and_in_shardy(
    mesh_text: str, text: str, shape: tuple[int, ...], local: tuple[int, ...], oracle: SdyOracle
) -> None:
    name, mesh = parse_named_mesh(mesh_text)
    (sharding,) = find_shardings(text)
    assert sharding.mesh_name == name
    assert verify_sharding(sharding, mesh, shape) == []
    assert local_shape(sharding, mesh, shape) == local
    printed = format_sharding(sharding)
    assert parse_sharding(printed) == sharding
    tensor = f"tensor<{'x'.join(map(str, shape))}xf32>"
    mesh_lines = [format_mesh(mesh, name)]
    assert oracle.sharding(printed, mesh_lines, tensor).text == printed
    written = written_sharding(text)
    assert parse_sharding(written) == sharding
    bare = written.removeprefix("#sdy.sharding")
    assert oracle.sharding(bare, mesh_lines, tensor).accepts is (text not in ONLY_HERE)


def written_sharding(text: str) -> str:
    """The sharding in a line, as the document spells it."""
    match = re.search(r"(?:#sdy\.sharding|sharding)?<@[^>]*>", text)
    assert match is not None
    return match[0]


@pytest.mark.parametrize(("text", "message"), NOT_A_SHARDING)
def test_what_the_documents_write_in_passing_is_no_sharding(
    text: str, message: str, oracle: SdyOracle
) -> None:
    with pytest.raises(ShardingError) as caught:
        parse_sharding(text)
    assert str(caught.value) == message
    lines = [format_mesh(parse_mesh(MESH_0), name) for name in ("mesh_0", "mesh_1", "mesh_xy")]
    assert not oracle.sharding(text, lines, "tensor<4xf32>").accepts


def test_the_pattern_of_a_mesh_in_the_documents_is_no_mesh() -> None:
    with pytest.raises(ShardingError) as caught:
        parse_mesh(NOT_A_MESH)
    assert str(caught.value) == (
        "expected a mesh axis, found `mesh_axis_1`\n"
        "  where: line 1, column 15\n"
        f"    {NOT_A_MESH}\n"
        "                  ^\n"
        '  fix: write mesh axes as in "x"=4'
    )


@pytest.mark.parametrize(("mesh_text", "written", "ordered"), REPLICATED)
def test_the_replicated_axes_of_the_documents_get_their_order(
    mesh_text: str, written: str, ordered: str, oracle: SdyOracle
) -> None:
    name, mesh = parse_named_mesh(mesh_text)
    sharding = parse_sharding(f"[{{?}}], {written}", mesh_name=name)
    is_sound = written == ordered
    assert (verify_sharding(sharding, mesh) == []) is is_sound
    canonical = format_sharding(canonicalize(sharding, mesh))
    assert canonical == f"<@{name}, [{{?}}], {ordered}>"
    lines = [format_mesh(mesh, name)]
    assert oracle.sharding(format_sharding(sharding), lines, "tensor<8xf32>").accepts is is_sound
    assert oracle.sharding(canonical, lines, "tensor<8xf32>").text == canonical


def test_splitting_the_mesh_of_the_documents_changes_nothing() -> None:
    assert is_equivalent(
        parse_sharding('sharding<@mesh_xy, [{"x"},{ "y"}]>'),
        parse_mesh(SPLIT),
        parse_sharding('sharding<@mesh_full, [{"devices":(1)4}, {"devices":(4)2}]>'),
        parse_mesh(FULL),
    )
    assert is_equivalent(
        parse_sharding('<@mesh_0, [{"b"}]>'),
        parse_mesh(MESH_0),
        parse_sharding('<@mesh_1, [{"z"}]>'),
        parse_mesh(MESH_1),
    )


def test_the_manual_computation_of_the_documents_is_sound_here_and_in_shardy(
    oracle: SdyOracle,
) -> None:
    manual = parse_manual_computation(MANUAL)
    name, mesh = parse_named_mesh(NAMED)
    assert verify_manual_computation(manual, {name: mesh}, strict=True) == []
    assert parse_manual_computation(format_manual_computation(manual)) == manual
    (region,) = find_manual_regions(MANUAL)
    assert region.computation == manual
    assert verify_manual_region(region, {name: mesh}, strict=True) == []
    # the document leaves the body out, and writes `return` for `sdy.return`
    body = MANUAL.replace("return %42", "sdy.return %arg1")
    program = (
        f"{format_mesh(mesh, name)}\nfunc.func @f(%0: tensor<16x32xf32>) {{\n{body}\nreturn\n}}"
    )
    verdict = oracle.module(program)
    assert verdict.accepts, verdict.text
    assert find_manual_regions(verdict.text) == (region,)
    assert format_manual_computation(manual) in verdict.text


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
        (
            '<["x"=16]>',
            "[{}p1]",
            "dimension 0 is empty and closed, so its priority p1 has nothing to order",
        ),
    ],
)
def test_what_the_documents_forbid_is_refused(
    mesh: str, text: str, violation: str, oracle: SdyOracle
) -> None:
    sharding, found = parse_sharding(text), parse_mesh(mesh)
    assert verify_sharding(sharding, found) == [violation]
    tensor = f"tensor<{'8x' * sharding.rank}f32>"
    printed = format_sharding(sharding)
    assert not oracle.sharding(printed, [format_mesh(found, "mesh")], tensor).accepts


def test_a_free_axis_before_a_manual_one_is_refused() -> None:
    manual = parse_manual_computation(MANUAL.replace('"model",?', '"model", "data"', 1))
    assert verify_manual_computation(manual, dict([parse_named_mesh(NAMED)])) == [
        'operand 0: in dimension 1 the manual axis "data" comes after the free axis "model"; '
        "manual axes come first",
        'operand 0: "data" is used twice: in dimension 0 and in dimension 1',
    ]


SEEDS = Path(__file__).parents[2].parent / "shared" / "seeds"
DOCUMENTS = [*SEEDS.glob("000_*.txt"), *SEEDS.glob("003_*.txt")]


@pytest.mark.skipif(not DOCUMENTS, reason=f"no documents at ../shared/{SEEDS.name}")
@pytest.mark.parametrize(
    ("pattern", "known"),
    [
        # a mesh definition
        (r"@\w+ = .*", {*MESHES, NOT_A_MESH}),
        # a mesh name that is part of something else
        (
            r"(?:\w*sharding)?<?@mesh\w*, .*?(?:\]\S*|replicated_axes\}|\"b\">|\"z\">)",
            {
                *(text for text, _ in NOT_A_SHARDING),
                *(text for _, text, *_ in SHARDINGS),
                MANUAL,
            },
        ),
        # axes held for copies, also on their own
        (
            r"replicated=\{[^}]*\}",
            {*(text for _, text, _ in REPLICATED), *(text for _, text, *_ in SHARDINGS)},
        ),
    ],
    ids=["meshes", "shardings", "replicated axes"],
)
def test_the_documents_write_nothing_else(pattern: str, known: set[str]) -> None:
    written = [text for path in DOCUMENTS for text in re.findall(pattern, path.read_text("utf-8"))]
    assert len(written) >= 6
    assert [text for text in written if not any(text in whole for whole in known)] == []
