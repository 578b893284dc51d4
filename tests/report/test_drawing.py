"""Shardings on the devices of a mesh, as they are drawn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoshard.report.drawing import MOST_DEVICES, draw, grid_of
from autoshard.sharding import Mesh, MeshAxis, device_to_shard, parse_mesh, parse_sharding
from tests.plan.plans import MESH, meshes, patient, shardings


def test_the_last_axis_goes_across_and_the_others_down() -> None:
    grid = grid_of(MESH)
    assert (grid.down, grid.across, grid.columns) == (("data=2",), ("model=4",), 4)
    assert grid.devices == tuple(range(8))


def test_a_short_row_takes_in_another_axis() -> None:
    grid = grid_of(Mesh((MeshAxis("a", 4), MeshAxis("b", 2), MeshAxis("c", 2))))
    assert (grid.down, grid.across, grid.columns) == (("a=4",), ("b=2", "c=2"), 4)


def test_a_long_line_of_devices_is_drawn_in_several_rows() -> None:
    grid = grid_of(Mesh((MeshAxis("x", 64),)))
    assert (grid.down, grid.across, grid.columns) == ((), ("x=64",), 16)


def test_a_large_mesh_is_drawn_in_part() -> None:
    mesh = Mesh((MeshAxis("x", 64), MeshAxis("y", 64)))
    drawing = draw(parse_sharding('[{"x"}, {"y"}]'), mesh)
    assert len(grid_of(mesh).devices) == len(drawing.held) == MOST_DEVICES
    assert grid_of(mesh).num_devices == 4096


def test_devices_with_the_same_number_hold_the_same_piece() -> None:
    drawing = draw(parse_sharding('[{"model"}, {}]'), MESH)
    assert (drawing.pieces, drawing.axes) == ((4, 1), ("model", ""))
    assert drawing.held == (0, 1, 2, 3, 0, 1, 2, 3)


def test_pieces_are_counted_with_the_last_dimension_fastest() -> None:
    drawing = draw(parse_sharding('[{"model"}, {"data"}]'), MESH)
    assert drawing.held == (0, 2, 4, 6, 1, 3, 5, 7)


def test_parts_of_axes_and_sums_are_named() -> None:
    drawing = draw(parse_sharding('[{"model":(1)2}], unreduced={"data"}'), MESH)
    assert (drawing.axes, drawing.sums) == (("model:(1)2",), ("data",))
    assert drawing.held == (0, 0, 1, 1, 0, 0, 1, 1)


def test_devices_that_are_not_on_the_mesh_of_a_sharding_hold_nothing() -> None:
    other = parse_sharding('<mesh<["p"=2], device_ids=[3, 1]>, [{"p"}]>')
    assert draw(other, MESH).held == (-1, 1, -1, 0, -1, -1, -1, -1)


def test_devices_stand_in_the_order_of_the_mesh() -> None:
    mesh = parse_mesh('<["x"=4], device_ids=[3, 1, 0, 2]>')
    assert grid_of(mesh).devices == (3, 1, 0, 2)
    assert draw(parse_sharding('[{"x"}]'), mesh).held == (0, 1, 2, 3)


@patient
@given(data=st.data())
def test_two_devices_are_alike_exactly_where_they_hold_the_same_piece(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    sharding = data.draw(shardings(mesh, data.draw(st.integers(0, 3))))
    grid, drawing = grid_of(mesh), draw(sharding, mesh)
    pieces = device_to_shard(sharding, mesh)
    drawn = dict(zip(grid.devices, drawing.held, strict=True))
    numbers = {pieces[device]: number for device, number in drawn.items()}
    assert all(numbers[pieces[device]] == number for device, number in drawn.items())
    assert len(set(numbers.values())) == len(numbers)
