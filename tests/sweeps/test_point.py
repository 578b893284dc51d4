"""A point is the same however it is written, and another where anything differs."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import autoshard
from experiments.sweeps.point import (
    PlanOptions,
    Point,
    hardware_name,
    mesh_text,
    point_from_json,
)
from tests.sweeps.points import mlp_point

OTHER: dict[str, Any] = {
    "mesh": "4x2",
    "hardware": "h100",
    "memory": 0.5,
    "solver": "milp",
    "time_limit_seconds": 1.0,
    "relative_gap": 0.1,
    "seed": 1,
    "schedules": "none",
    "overlap": "none",
    "baselines": True,
}


def test_options_are_those_of_optimize_with_its_defaults() -> None:
    known = inspect.signature(autoshard.optimize).parameters
    for name, value in PlanOptions().arguments().items():
        assert name in known, name
        if name not in ("mesh", "hardware"):  # a sweep has no devices to read a machine off
            assert known[name].default == value, name


@pytest.mark.parametrize("name", [field.name for field in fields(PlanOptions)])
def test_another_option_is_another_point(name: str) -> None:
    point = mlp_point()
    other = replace(point, options=replace(point.options, **{name: OTHER[name]}))
    assert other.identity != point.identity


def test_another_size_or_workload_is_another_point() -> None:
    point = mlp_point()
    assert mlp_point({"layers": 3}).identity != point.identity
    assert replace(point, workload="gpt").identity != point.identity


@pytest.mark.parametrize(
    ("name", "one", "another"),
    [
        ("mesh", "2x4", "data=2,model=4"),
        ("mesh", "8", "data=8"),
        ("hardware", "tpu_v5p", "tpu-v5p"),
    ],
)
def test_a_point_is_the_same_however_it_is_written(name: str, one: str, another: str) -> None:
    def at(**options: Any) -> str:
        return mlp_point(None, **options).identity

    assert at(**{name: one}) == at(**{name: another})


sizes = st.dictionaries(
    st.sampled_from(["layers", "rows", "heads", "scale"]),
    st.one_of(st.integers(0, 9), st.booleans(), st.lists(st.integers(0, 9), max_size=3).map(tuple)),
)
points = st.builds(
    Point,
    workload=st.sampled_from(["mlp", "gpt"]),
    sizes=sizes,
    options=st.builds(
        PlanOptions,
        mesh=st.sampled_from(["8", "2x4", "data=2,model=4", "a=2,b=2"]),
        memory=st.sampled_from(["auto", 0.5, "8GiB", None]),
        seed=st.integers(0, 3),
    ),
)


@given(points)
def test_a_point_comes_back_from_json(point: Point) -> None:
    assert point_from_json(point.to_json()) == point


@given(points)
def test_the_order_of_sizes_does_not_matter(point: Point) -> None:
    turned = replace(point, sizes=dict(reversed(list(point.sizes.items()))))
    assert turned.identity == point.identity


@given(points, points)
def test_points_share_an_identity_when_they_ask_the_same(one: Point, another: Point) -> None:
    # As JSON, in which true is not 1.
    same = repr(sorted(one.asked().items(), key=str)) == repr(
        sorted(another.asked().items(), key=str)
    )
    if same:
        assert one.identity == another.identity
    if one.asked() != another.asked():
        assert one.identity != another.identity


def test_a_machine_file_counts_by_what_it_says(tmp_path: Path) -> None:
    here, there = tmp_path / "my.yaml", tmp_path / "deeper" / "my.yaml"
    there.parent.mkdir()
    for path in (here, there):
        path.write_text("name: mine\n")
    point = mlp_point(hardware=str(here))
    assert point.asked()["hardware"].startswith("my.yaml:")
    assert mlp_point(hardware=str(there)).identity == point.identity
    there.write_text("name: other\n")
    assert mlp_point(hardware=str(there)).identity != point.identity


@pytest.mark.parametrize(
    ("mesh", "text"),
    [
        ("8", "data=8"),
        ("2x4", "data=2,model=4"),
        ("2x4x8", "data=2,fsdp=4,model=8"),
        ("2x2x2x2", "pod=2,data=2,fsdp=2,model=2"),
        ("1x2x3x4x5", "1x2x3x4x5"),
        ("x=2,y=4", "x=2,y=4"),
        ("8y8", "8y8"),
    ],
)
def test_axes_of_a_mesh_in_sizes_alone_get_names(mesh: str, text: str) -> None:
    assert mesh_text(mesh) == text


def test_only_names_of_machines_lose_their_underscores() -> None:
    assert hardware_name("tpu_v5p") == "tpu-v5p"
    assert hardware_name("my_machine.yaml") == "my_machine.yaml"
