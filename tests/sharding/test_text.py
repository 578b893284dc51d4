from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import ShardingError
from autoshard.sharding import (
    AxisRef,
    DimSharding,
    Mesh,
    MeshAxis,
    Sharding,
    find_shardings,
    format_axis_ref,
    format_dim_sharding,
    format_mesh,
    format_mesh_name,
    format_sharding,
    parse_axis_ref,
    parse_dim_sharding,
    parse_mesh,
    parse_named_mesh,
    parse_sharding,
)
from tests.sharding.strategies import axis_refs, dim_shardings, meshes, shardings

FULL = Sharding(
    dims=(
        DimSharding((AxisRef("x"), AxisRef("y", 1, 2)), is_open=True, priority=3),
        DimSharding(),
    ),
    replicated=(AxisRef("z"),),
    unreduced=(AxisRef("w"),),
)
FULL_TEXT = '<@mesh, [{"x", "y":(1)2, ?}p3, {}], replicated={"z"}, unreduced={"w"}>'


def test_every_part_of_a_sharding_prints_as_shardy_prints_it() -> None:
    assert format_sharding(FULL) == FULL_TEXT
    assert parse_sharding(FULL_TEXT) == FULL


@pytest.mark.parametrize(
    "text",
    [
        "#sdy.sharding" + FULL_TEXT,
        "sharding" + FULL_TEXT,
        FULL_TEXT[len("<@mesh, ") : -1],
        '< @mesh , [ { "x" , "y" : ( 1 ) 2 , ? } p3 , { } ] , '
        'replicated = { "z" } , unreduced = { "w" } >',
        '<@"mesh", [{"\\78", "y":(0x1)02, ?}p3, {}], unreduced={"w"}, replicated={"z"}>',
        '<@mesh, // the first dimension\n\t[{"x", "y":(1)2, ?}p3,\n\t{}],\r\n replicated={"z"}, '
        'unreduced={"w"}> // done',
    ],
)
def test_other_ways_to_write_a_sharding_mean_the_same(text: str) -> None:
    assert parse_sharding(text) == FULL


def test_the_short_form_takes_the_mesh_name_it_is_given() -> None:
    assert parse_sharding('[{"x"}, {}]').mesh_name == "mesh"
    assert parse_sharding('[{"x"}, {}]', mesh_name="other").mesh_name == "other"


def test_a_sharding_may_carry_its_mesh() -> None:
    text = '<mesh<["a"=2, "b"=2], device_ids=[1, 0, 2, 3]>, [{"a"}]>'
    sharding = parse_sharding(text)
    assert sharding.inlined_mesh == Mesh((MeshAxis("a", 2), MeshAxis("b", 2)), (1, 0, 2, 3))
    assert sharding.mesh_name == ""
    assert format_sharding(sharding) == text


def test_a_maximal_sharding_is_a_bare_list() -> None:
    text = "<mesh<[], device_ids=[3]>, []>"
    assert format_sharding(parse_sharding(text)) == text
    assert parse_sharding(text).rank == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mesh", "@mesh"),
        ("mesh.1$x_", "@mesh.1$x_"),
        ("a b", '@"a b"'),
        ("1", '@"1"'),
        ('q"\\', '@"q\\22\\\\"'),
    ],
)
def test_mesh_names_are_quoted_when_they_have_to_be(name: str, text: str) -> None:
    assert format_mesh_name(name) == text
    assert parse_sharding(f"<{text}, []>").mesh_name == name


@pytest.mark.parametrize(
    ("name", "text"),
    [("x", '"x"'), ("é\n", '"\\C3\\A9\\0A"'), ('a"b\\', '"a\\22b\\\\"'), ("", '""')],
)
def test_axis_names_print_their_odd_bytes_as_hex_digits(name: str, text: str) -> None:
    assert format_axis_ref(AxisRef(name)) == text
    assert parse_axis_ref(text) == AxisRef(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '<@mesh, [{"x"} {}]>',
            "expected `,` or `]`, found `{}`\n"
            "  where: line 1, column 16\n"
            '    <@mesh, [{"x"} {}]>\n'
            "                   ^\n"
            '  fix: close the dimensions, as in [{"x"}, {}]',
        ),
        (
            "<@mesh, [{x}]>",
            "expected an axis, found `x`\n"
            "  where: line 1, column 11\n"
            "    <@mesh, [{x}]>\n"
            "              ^\n"
            '  fix: write axis names in double quotes, as in "x"',
        ),
        (
            '<@mesh,\n [{"x", }]>',
            "expected an axis, found `}`\n"
            "  where: line 2, column 9\n"
            '     [{"x", }]>\n'
            "            ^\n"
            '  fix: write axis names in double quotes, as in "x"',
        ),
        (
            '<@mesh, [{?, "x"}]>',
            "expected `}` after `?`, found `,`\n"
            "  where: line 1, column 12\n"
            '    <@mesh, [{?, "x"}]>\n'
            "               ^",
        ),
        (
            '<@mesh, [{"x"}p01]>',
            "expected a priority such as `p0`, found `p01`\n"
            "  where: line 1, column 15\n"
            '    <@mesh, [{"x"}p01]>\n'
            "                  ^\n"
            "  fix: a priority is p and a number without leading zeros",
        ),
        (
            '<@mesh, [{"x"}p9223372036854775808]>',
            "the priority p9223372036854775808 is too large\n"
            "  where: line 1, column 15\n"
            '    <@mesh, [{"x"}p9223372036854775808]>\n'
            "                  ^\n"
            "  fix: Shardy's numbers go up to 9223372036854775807",
        ),
        (
            '<@mesh, [{"x":(9223372036854775808)2}]>',
            "the number 9223372036854775808 is too large\n"
            "  where: line 1, column 16\n"
            '    <@mesh, [{"x":(9223372036854775808)2}]>\n'
            "                   ^\n"
            "  fix: Shardy's numbers go up to 9223372036854775807",
        ),
        (
            '<@mesh, [{"x":(0)2}]>',
            "sub-axis pre-size is 0, which is below 1\n"
            "  where: line 1, column 11\n"
            '    <@mesh, [{"x":(0)2}]>\n'
            "              ^\n"
            "  fix: the pre-size is the product of the more major sizes; the first part has 1",
        ),
        (
            '<@mesh, [{"x": (y)2}]>',
            "expected a whole number, found `y`\n"
            "  where: line 1, column 17\n"
            '    <@mesh, [{"x": (y)2}]>\n'
            "                    ^",
        ),
        (
            "<@mesh, [{}], replicated={}>",
            "expected axes in braces, found `{}`\n"
            "  where: line 1, column 26\n"
            "    <@mesh, [{}], replicated={}>\n"
            "                             ^\n"
            "  fix: leave an empty list out",
        ),
        (
            '<@mesh, [{}], unreduced={"a"}, unreduced={"b"}>',
            "expected `unreduced` only once, found `unreduced`\n"
            "  where: line 1, column 32\n"
            '    <@mesh, [{}], unreduced={"a"}, unreduced={"b"}>\n'
            "                                   ^\n"
            "  fix: put all axes into one unreduced={...} list",
        ),
        (
            '<@mesh, [{}], sharded={"a"}>',
            "expected `replicated` or `unreduced`, found `sharded`\n"
            "  where: line 1, column 15\n"
            '    <@mesh, [{}], sharded={"a"}>\n'
            "                  ^",
        ),
        (
            '<@mesh, [{"x]>',
            "expected an axis, found a string that does not end or has an unknown escape\n"
            "  where: line 1, column 11\n"
            '    <@mesh, [{"x]>\n'
            "              ^\n"
            '  fix: write axis names in double quotes, as in "x"',
        ),
        (
            '<@mesh, [{"x"}]',
            "expected `,` or `>`, found the end\n"
            "  where: line 1, column 16\n"
            '    <@mesh, [{"x"}]\n'
            "                   ^",
        ),
        (
            '<@mesh, [{"x"}]>>',
            "expected nothing more, found `>`\n"
            "  where: line 1, column 17\n"
            '    <@mesh, [{"x"}]>>\n'
            "                    ^",
        ),
        (
            "<mesh, [{}]>",
            "expected `<`, found `,`\n  where: line 1, column 6\n    <mesh, [{}]>\n         ^",
        ),
        (
            '<["x"=2], [{}]>',
            'expected a mesh, such as `@mesh` or `mesh<["x"=2]>`, found `[`\n'
            "  where: line 1, column 2\n"
            '    <["x"=2], [{}]>\n'
            "     ^",
        ),
        (
            "#sdy.sharding <@mesh, [{}]>",
            "expected `<` right after `#sdy.sharding`, found `<`\n"
            "  where: line 1, column 15\n"
            "    #sdy.sharding <@mesh, [{}]>\n"
            "                  ^",
        ),
    ],
)
def test_a_syntax_error_shows_the_line_and_a_caret(text: str, message: str) -> None:
    with pytest.raises(ShardingError) as caught:
        parse_sharding(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<>",
        "<@mesh>",
        "<@mesh, []",
        "<@mesh [{}]>",
        '<@"", [{}]>',
        "<@1mesh, [{}]>",
        "<@mesh::@x, [{}]>",
        '<@mesh, [{"x",}]>',
        '<@mesh, [{"x", ?,}]>',
        '<@mesh, [{"x"}phigh]>',
        '<@mesh, [{"x"}p1x]>',
        '<@mesh, [{"x":(1)+2}]>',
        '<@mesh, [{"x":(1)2p3}]>',
        '<@mesh, [{"x":(1)2:(2)2}]>',
        '<@mesh, [{"x":(-1)2}]>',
        '<@mesh, [{"x\\q"}]>',
        '<@mesh, [{"x\n"}]>',
        '<@mesh, [{}], replicated=["x"]>',
        '<@mesh, [{}], replicated={"x", y}>',
        '<@mesh, [{}], "replicated"={"x"}>',
        '<@mesh, [{}], unreduced=max{"x"}>',
        '<#sdy.mesh<["x"=2]>, [{"x"}]>',
        "[{}",
    ],
)
def test_what_is_not_a_sharding_is_refused(text: str) -> None:
    with pytest.raises(ShardingError) as caught:
        parse_sharding(text)
    assert "^" in caught.value.where


@pytest.mark.parametrize(
    ("text", "name", "canonical"),
    [
        ('sdy.mesh @m = <["a"=2, "b"=1]>', "m", '<["a"=2, "b"=1]>'),
        ('sdy.mesh @m=<["a" = 0x2]>', "m", '<["a"=2]>'),
        ('sdy.mesh @m = #sdy.mesh<["a"=2]>', "m", '<["a"=2]>'),
        ('sdy.mesh @"m m" = <["a"=2], device_ids=[1, 0]>', "m m", '<["a"=2], device_ids=[1, 0]>'),
        ('sdy.mesh @m = <["a"=2], device_ids=[0, 1]>', "m", '<["a"=2]>'),
        ("sdy.mesh @m = <[], device_ids=[0]>", "m", "<[], device_ids=[0]>"),
        ("sdy.mesh @m = <[]>", "m", "<[]>"),
        ('sdy.mesh @m = <["a"=2]> {stablehlo.mesh = {a = ["}"]}, b}', "m", '<["a"=2]>'),
        ('sdy.mesh @m = <["a"=2]> {}', "m", '<["a"=2]>'),
        ('<["a"=2]>', "", '<["a"=2]>'),
        ('mesh<["a"=2]>', "", '<["a"=2]>'),
        ('#sdy.mesh<["a"=2]>', "", '<["a"=2]>'),
        ('@m = <["a"=2]>', "m", '<["a"=2]>'),
        ('@m = <"a"=2, "b"=4>', "m", '<["a"=2, "b"=4]>'),
        ('@m = {<["a"=2]>, device_ids=[1, 0]}', "m", '<["a"=2], device_ids=[1, 0]>'),
    ],
)
def test_meshes_are_read_with_and_without_a_name(text: str, name: str, canonical: str) -> None:
    found_name, mesh = parse_named_mesh(text)
    assert found_name == name
    assert format_mesh(mesh) == canonical
    assert parse_mesh(text) == mesh
    if name:
        assert parse_named_mesh(format_mesh(mesh, name)) == (name, mesh)


@pytest.mark.parametrize(
    "text",
    [
        'sdy.mesh @m = <["a"=2],>',
        'sdy.mesh @m = <["a"=2]',
        'sdy.mesh @m = <["a"=2]> {',
        "sdy.mesh @m = <[a=2]>",
        'sdy.mesh @m = <"a"=2>',
        'sdy.mesh @m = <["a"=0]>',
        'sdy.mesh @m = <["a"=-2]>',
        'sdy.mesh @m = <["a":(1)2=2]>',
        'sdy.mesh @m = <["a"=99999999999999999999]>',
        "sdy.mesh @m = <[], device_ids=[]>",
        'sdy.mesh m = <["a"=2]>',
        'sdy.mesh @m <["a"=2]>',
        '["a"=2]',
    ],
)
def test_what_is_not_a_mesh_is_refused(text: str) -> None:
    with pytest.raises(ShardingError) as caught:
        parse_mesh(text)
    assert "^" in caught.value.where


def test_shardings_are_found_in_pasted_compiler_output() -> None:
    dump = """
    func.func @main(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh_xy, [{"x"}, {}]>})
        -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<mesh<["y"=2]>, [{}, {"y"}]>}) {
      %1 = sdy.sharding_constraint %0 <@mesh_xy, [{"x"}, {?}]> : tensor<8x8xf32>
    """
    assert [format_sharding(sharding) for sharding in find_shardings(dump)] == [
        '<@mesh_xy, [{"x"}, {}]>',
        '<mesh<["y"=2]>, [{}, {"y"}]>',
        '<@mesh_xy, [{"x"}, {?}]>',
    ]


@given(axis_refs())
def test_axes_round_trip(axis: AxisRef) -> None:
    assert parse_axis_ref(format_axis_ref(axis)) == axis


@given(dim_shardings())
def test_dimension_shardings_round_trip(dim: DimSharding) -> None:
    assert parse_dim_sharding(format_dim_sharding(dim)) == dim


@given(shardings())
def test_shardings_round_trip(sharding: Sharding) -> None:
    text = format_sharding(sharding)
    assert parse_sharding(text) == sharding
    assert parse_sharding("#sdy.sharding" + text) == sharding


@given(meshes(), st.text(min_size=1))
def test_meshes_round_trip(mesh: Mesh, name: str) -> None:
    assert parse_mesh(format_mesh(mesh)) == mesh
    assert parse_named_mesh(format_mesh(mesh, name)) == (name, mesh)


@given(st.text(alphabet='<>[]{}@"x:(1)2,?p=meshrplicatd \n/', max_size=40))
def test_any_text_is_read_or_refused_with_a_caret(text: str) -> None:
    try:
        sharding = parse_sharding(text)
    except ShardingError as error:
        assert error.where.endswith("^")  # noqa: PT017
    else:
        assert parse_sharding(format_sharding(sharding)) == sharding
