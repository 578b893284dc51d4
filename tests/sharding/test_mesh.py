from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import InputError, ShardingError
from autoshard.sharding import Mesh, MeshAxis, check_mesh, parse_mesh_sizes, verify_mesh


def test_a_mesh_knows_its_axes_and_devices() -> None:
    mesh = Mesh((MeshAxis("data", 2), MeshAxis("model", 4)))
    assert mesh.axis_names == ("data", "model")
    assert mesh.sizes == {"data": 2, "model": 4}
    assert mesh.num_devices == 8
    assert mesh.axis_size("model") == 4
    assert mesh.axis_index("model") == 1
    assert mesh.device_order == (0, 1, 2, 3, 4, 5, 6, 7)


def test_device_ids_in_their_natural_order_are_dropped() -> None:
    axes = (MeshAxis("x", 2), MeshAxis("y", 2))
    assert Mesh(axes, (0, 1, 2, 3)) == Mesh(axes)
    assert Mesh(axes, (1, 0, 2, 3)).device_ids == (1, 0, 2, 3)


def test_a_maximal_mesh_keeps_its_device_even_if_that_is_the_first() -> None:
    mesh = Mesh((), (0,))
    assert mesh.is_maximal
    assert not mesh.is_empty
    assert mesh.device_ids == (0,)
    assert mesh.num_devices == 1


def test_a_mesh_without_axes_and_devices_is_empty() -> None:
    assert Mesh().is_empty
    assert not Mesh().is_maximal


def test_meshes_hash_and_pickle_as_values() -> None:
    mesh = Mesh((MeshAxis("x", 2),), (1, 0))
    assert mesh.sizes == {"x": 2}
    assert pickle.loads(pickle.dumps(mesh)) == mesh
    assert len({mesh, Mesh((MeshAxis("x", 2),), (1, 0))}) == 1


def test_asking_for_an_axis_the_mesh_lacks_names_those_it_has() -> None:
    with pytest.raises(ShardingError) as caught:
        parse_mesh_sizes("x=2,y=4").axis_size("q")
    assert str(caught.value) == (
        'the mesh has no axis "q"; its axes are: "x", "y"\n'
        "  where: mesh (x=2, y=4)\n"
        "  fix: use one of its axes, or add this one to the mesh"
    )


@pytest.mark.parametrize(
    ("axis", "what"),
    [
        (("x", 0), "a mesh axis has size 0, which is below 1"),
        (("x", 2.0), "a mesh axis size is an int, not float"),
        (("x", True), "a mesh axis size is an int, not bool"),
        ((3, 2), "a mesh axis name is text, not int"),
    ],
)
def test_a_mesh_axis_that_cannot_be_is_refused_at_once(axis: tuple[str, int], what: str) -> None:
    with pytest.raises(ShardingError) as caught:
        MeshAxis(*axis)
    assert caught.value.what == what
    assert caught.value.where
    assert caught.value.fix


X2, Y2 = MeshAxis("x", 2), MeshAxis("y", 2)


@pytest.mark.parametrize(
    ("mesh", "violations"),
    [
        (Mesh((X2, MeshAxis("x", 3))), ['two axes of the mesh are called "x"']),
        (Mesh((), (-1,)), ["device ids are not negative, found -1"]),
        (Mesh((), (1, 0)), ["a mesh without axes names one device, and this one names 2"]),
        (
            Mesh((X2, Y2), (0, 2, 1, 3, 4, 5)),
            ["the axis sizes multiply to 4 devices, and there are 6 device ids"],
        ),
        (
            Mesh((X2,), (1, 1)),
            ["the device ids are 0 to 1 in some order, and 0 is missing"],
        ),
        (
            Mesh((X2, Y2), (4, 1, 2, 5)),
            ["the device ids are 0 to 3 in some order, and 0, 3 are missing"],
        ),
        (Mesh((X2, Y2), (3, 1, 2, 0)), []),
        (Mesh((), (5,)), []),
        (Mesh(), []),
    ],
)
def test_each_rule_of_meshes_has_its_message(mesh: Mesh, violations: list[str]) -> None:
    assert verify_mesh(mesh) == violations


def test_all_violations_of_a_mesh_come_together() -> None:
    mesh = Mesh((X2, X2), (-1, 0, 1))
    assert verify_mesh(mesh) == [
        'two axes of the mesh are called "x"',
        "device ids are not negative, found -1",
        "the axis sizes multiply to 4 devices, and there are 3 device ids",
    ]
    with pytest.raises(ShardingError) as caught:
        check_mesh(mesh)
    assert caught.value.what == "\n".join(verify_mesh(mesh))
    assert caught.value.where == '<["x"=2, "x"=2], device_ids=[-1, 0, 1]>'


def test_the_short_form_of_a_mesh_allows_blanks() -> None:
    assert parse_mesh_sizes(" data = 2 , model=4 ") == parse_mesh_sizes("data=2,model=4")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "data=2,model",
            "expected name=size in a mesh, found `model`\n"
            "  where: line 1, column 8\n    data=2,model\n           ^\n"
            "  fix: write the axes as name=size with commas between, as in data=2,model=4",
        ),
        (
            "",
            "expected name=size in a mesh, found nothing\n"
            "  where: line 1, column 1\n    \n    ^\n"
            "  fix: write the axes as name=size with commas between, as in data=2,model=4",
        ),
        (
            "data=2,model=0",
            'mesh axis "model" has size 0, which is below 1\n'
            "  where: line 1, column 8\n    data=2,model=0\n           ^\n"
            "  fix: give every axis the number of devices along it, at least 1",
        ),
        (
            "x=2, x=4",
            'mesh axis "x" is named twice\n'
            "  where: line 1, column 6\n    x=2, x=4\n         ^\n"
            "  fix: give every axis its own name",
        ),
    ],
)
def test_a_short_form_that_is_not_a_mesh_is_shown_with_a_caret(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_mesh_sizes(text)
    assert str(caught.value) == message


@given(st.lists(st.integers(1, 512), min_size=1, max_size=5))
def test_the_short_form_gives_the_sizes_in_order(sizes: list[int]) -> None:
    text = ",".join(f"a{index}={size}" for index, size in enumerate(sizes))
    assert list(parse_mesh_sizes(text).sizes.values()) == sizes
