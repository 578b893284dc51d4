from __future__ import annotations

import pytest

from autoshard.errors import ShardingError
from autoshard.sharding import (
    ManualComputation,
    ManualRegion,
    ManualShapes,
    find_manual_regions,
    find_shardings,
    parse_manual_computation,
    parse_mesh_sizes,
    parse_sharding,
    verify_free_axes,
    verify_manual_computation,
    verify_manual_region,
    verify_nesting,
)

MESHES = {"mesh": parse_mesh_sizes("a=2,b=2")}
PROGRAM = """
func.func @main(%arg0: tensor<16x32xf32>) -> tensor<16x32xf32> {
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"a"}, {}]>]
      out_shardings=[<@mesh, [{"a"}, {}]>] manual_axes={"a"} (%arg1: tensor<8x32xf32> {x.y = {}}) {
    %1 = sdy.sharding_constraint %arg1 <@mesh, [{}, {"b"}]> : tensor<8x32xf32>
    %2 = sdy.manual_computation(%1) in_shardings=[<@mesh, [{"b"}, {}]>]
        out_shardings=[<@mesh, [{"b"}, {}]>] manual_axes={"b"} (%arg2: tensor<4x32xf32>) {
      %3 = stablehlo.add %arg2, %arg2 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {?}]>]>}
      sdy.return %3 : tensor<4x32xf32>
    } : (tensor<8x32xf32>) -> tensor<8x32xf32>
    %4 = "some.op"(%2) ({ ^bb0(%5: tensor<f32>): }) {note = "}"} : (tensor<8x32xf32>) -> ()
    sdy.return %2 : tensor<8x32xf32>
  } : (tensor<16x32xf32>) -> tensor<16x32xf32>
  %6 = sdy.sharding_constraint %0 <@mesh, [{"b"}, {"a"}]> : tensor<16x32xf32>
  sdy.manual_computation() in_shardings=[] out_shardings=[] manual_axes={} () {
    sdy.return
  } : () -> ()
}
"""


def border(axis: str) -> ManualComputation:
    sharding = f'[<@mesh, [{{"{axis}"}}, {{}}]>]'
    return parse_manual_computation(
        f'in_shardings={sharding} out_shardings={sharding} manual_axes={{"{axis}"}}'
    )


INNER = ManualRegion(border("b"), (parse_sharding("[{}, {?}]"),))
OUTER = ManualRegion(border("a"), (parse_sharding('[{}, {"b"}]'),), (INNER,))


def test_manual_computations_are_found_with_what_is_in_their_regions() -> None:
    assert find_manual_regions(PROGRAM) == (OUTER, ManualRegion(ManualComputation()))
    assert len(find_shardings(PROGRAM)) == 7


def test_a_program_of_sound_regions_is_sound() -> None:
    for region in find_manual_regions(PROGRAM):
        assert verify_manual_region(region, MESHES, strict=True) == []


def test_what_is_bound_outside_is_bound_on_every_level_inside() -> None:
    program = PROGRAM.replace("[{}, {?}]", '[{"a"}, {?}], replicated={"b"}')
    (region, _) = find_manual_regions(program)
    assert verify_manual_region(region, MESHES) == [
        'region 0 inside: sharding 0 inside: dimension 0 uses axis "a", '
        "which a manual computation around it has bound",
        'region 0 inside: sharding 0 inside: replicated uses axis "b", '
        "which a manual computation around it has bound",
    ]


def test_a_nested_region_binds_no_axis_again() -> None:
    region = ManualRegion(border("a"), (), (ManualRegion(border("a")),))
    assert verify_manual_region(region, MESHES) == [
        'region 0 inside: axis "a" is already manual in a manual computation around this one',
        'region 0 inside: operand 0: dimension 0 uses axis "a", '
        "which a manual computation around it has bound",
        'region 0 inside: result 0: dimension 0 uses axis "a", '
        "which a manual computation around it has bound",
    ]
    assert verify_nesting(border("a"), {"b"}) == []
    assert verify_nesting(border("a"), {"a", "b"}) == [
        'axis "a" is already manual in a manual computation around this one'
    ]


def test_a_bound_axis_is_named_once_where_it_is_used_first() -> None:
    sharding = parse_sharding('[{"a":(1)2}, {"b"}], replicated={"a":(2)2}, unreduced={"c"}')
    assert verify_free_axes(sharding, {"a", "c", "z"}) == [
        'dimension 0 uses axis "a", which a manual computation around it has bound',
        'unreduced uses axis "c", which a manual computation around it has bound',
    ]
    assert verify_free_axes(sharding, ()) == []


def test_meshes_inside_a_region_are_looked_up_too() -> None:
    region = ManualRegion(border("a"), (parse_sharding("<@other, [{}]>"),))
    assert verify_manual_region(region, MESHES) == [
        'sharding 0 inside: there is no mesh "other"; the meshes are: "mesh"'
    ]


def test_one_bare_sharding_may_stand_where_there_is_no_value() -> None:
    none = ManualShapes(operands=(), results=(), local_operands=(), local_results=())
    bare, full = parse_sharding("[]"), parse_sharding("[{}]")
    assert verify_manual_computation(ManualComputation((bare,)), MESHES, none) == []
    assert verify_manual_computation(ManualComputation((full,)), MESHES, none) == [
        "there are 1 operand shardings for 0 operands"
    ]
    assert verify_manual_computation(ManualComputation((bare, bare)), MESHES, none) == [
        "there are 2 operand shardings for 0 operands"
    ]


HEAD = "sdy.manual_computation() in_shardings=[] out_shardings=[] manual_axes={}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "sdy.manual_computation(%0)",
            "expected `in_shardings`, found the end\n"
            "  where: line 1, column 27\n"
            "    sdy.manual_computation(%0)\n"
            "                              ^",
        ),
        (
            f"{HEAD} {{",
            f"expected `(`, found `{{`\n  where: line 1, column 74\n    {HEAD} {{\n    {' ' * 73}^",
        ),
        (
            f"{HEAD} (%0: i1 {{",
            "this `(` is not closed\n"
            "  where: line 1, column 74\n"
            f"    {HEAD} (%0: i1 {{\n"
            f"    {' ' * 73}^\n"
            "  fix: end the arguments with `)`",
        ),
        (
            f"{HEAD} () {{\n}} {HEAD} () {{ {{",
            "this `{` is not closed\n"
            "  where: line 2, column 79\n"
            f"    }} {HEAD} () {{ {{\n"
            f"    {' ' * 78}^\n"
            "  fix: end the region with `}`",
        ),
    ],
)
def test_a_region_that_does_not_end_is_refused(text: str, message: str) -> None:
    with pytest.raises(ShardingError) as caught:
        find_manual_regions(text)
    assert str(caught.value) == message


def test_regions_nest_a_hundred_deep_and_no_deeper() -> None:
    for depth, is_read in [(100, True), (101, False)]:
        text = f"{HEAD} () {{ " * depth + "} " * depth
        if is_read:
            assert len(find_manual_regions(text)) == 1
        else:
            with pytest.raises(ShardingError, match="nested more than 100 deep"):
                find_manual_regions(text)
