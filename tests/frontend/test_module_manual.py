"""What a module's manual computations must hold, checked where they are read."""

from __future__ import annotations

import pytest

from autoshard.errors import ExportError
from autoshard.frontend.module import ModuleNames, module_to_graph
from autoshard.graph.collective import WrittenCollective
from autoshard.graph.program import Graph
from tests.frontend.exporting import one, regions


def read(body: str, *, mesh: str = '"x"=2, "y"=4') -> Graph:
    module = f"""
    sdy.mesh @mesh = <[{mesh}]>
    sdy.mesh @cube = <["p"=2, "q"=2, "r"=2]>
    func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {{
      {body}
      return %0 : tensor<8x16xf32>
    }}"""
    return module_to_graph(module, ModuleNames(arguments=["x"], results=["out"], donated=[False]))


def manual(given: str, made: str, axes: str, local: str, inside: str = "") -> str:
    inside = inside or f"sdy.return %y : tensor<{local}xf32>"
    return f"""%0 = sdy.manual_computation(%x) in_shardings=[{given}] out_shardings=[{made}]
        manual_axes={{{axes}}} (%y: tensor<{local}xf32>) {{ {inside}
      }} : (tensor<8x16xf32>) -> tensor<8x16xf32>"""


ROWS = '<@mesh, [{"x"}, {}]>'


FIX = (
    "  fix: name the manual axes before the free ones of a dimension, on one mesh, and give manual"
    " computations that are inside one another different axes"
)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            manual('<@mesh, [{"y", "x"}, {}]>', '<@mesh, [{"y", "x"}, {}]>', '"x"', "4x16"),
            'operand 0: in dimension 0 the manual axis "x" comes after the free axis "y"; manual'
            " axes come first\n"
            'result 0: in dimension 0 the manual axis "x" comes after the free axis "y"; manual'
            " axes come first",
        ),
        (
            manual(ROWS, '<@cube, [{"p"}, {}]>', '"x"', "4x16"),
            "all shardings are on one mesh, and operand 0 is on mesh (x=2, y=4), result 0 on mesh"
            " (p=2, q=2, r=2)",
        ),
        (
            manual(ROWS, ROWS, '"x", "z"', "4x16"),
            'manual axis "z" is not an axis of the mesh (x=2, y=4)',
        ),
    ],
)
def test_a_border_that_breaks_rules_is_refused_with_all_of_them(body: str, said: str) -> None:
    with pytest.raises(ExportError) as caught:
        read(body)
    first = body.splitlines()[0]
    assert str(caught.value) == f"{said}\n  where: line 5 of the module: {first}\n{FIX}"


def test_axes_bound_again_inside_are_named_with_the_line() -> None:
    inner = """%z = sdy.manual_computation(%y) in_shardings=[<@mesh, [{"x"}, {}]>]
        out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%w: tensor<2x16xf32>) {
          sdy.return %w : tensor<2x16xf32>
        } : (tensor<4x16xf32>) -> tensor<4x16xf32>
        sdy.return %z : tensor<4x16xf32>"""
    with pytest.raises(ExportError) as caught:
        read(manual(ROWS, ROWS, '"x"', "4x16", inner))
    bound = 'axis "x" is already manual in a manual computation around this one'
    assert f"region 0 inside: {bound}" in caught.value.what.splitlines()
    assert caught.value.where.startswith("line 6 of the module: ")


def test_what_breaks_no_rule_of_borders_is_told_in_jaxlibs_words() -> None:
    with pytest.raises(ExportError) as caught:
        read(manual(ROWS, ROWS, '"x"', "8x16"))
    assert caught.value.what.startswith("the StableHLO module does not parse: ")


def test_a_region_knows_the_mesh_of_its_axes() -> None:
    rows = '<@cube, [{"p"}, {}]>'
    graph = read(manual(rows, rows, '"p"', "4x16"))
    (region,) = regions(graph, "manual")
    assert (region.manual_axes, region.mesh) == (("p",), '<["p"=2, "q"=2, "r"=2]>')


def test_a_broadcast_inside_is_read_with_its_groups() -> None:
    inside = """%z = "stablehlo.collective_broadcast"(%y) <{
          channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
          replica_groups = dense<[[0, 4], [1, 5], [2, 6], [3, 7]]> : tensor<4x2xi64>
        }> : (tensor<4x16xf32>) -> tensor<4x16xf32>
        sdy.return %z : tensor<4x16xf32>"""
    graph = read(manual(ROWS, ROWS, '"x"', "4x16", inside))
    assert one(graph, "collective_broadcast").collective == WrittenCollective(
        "collective-broadcast", ((0, 4), (1, 5), (2, 6), (3, 7))
    )


def test_a_collective_of_each_device_with_itself_moves_nothing() -> None:
    inside = """%z = "stablehlo.collective_permute"(%y) <{
          channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
          source_target_pairs = dense<[[0, 0], [1, 1]]> : tensor<2x2xi64>
        }> : (tensor<4x16xf32>) -> tensor<4x16xf32>
        sdy.return %z : tensor<4x16xf32>"""
    graph = read(manual(ROWS, ROWS, '"x"', "4x16", inside))
    assert one(graph, "collective_permute").collective is None
