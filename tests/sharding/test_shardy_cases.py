"""The sample cases with Shardy's verdicts, where a checkout has them beside it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from autoshard.errors import ShardingError
from autoshard.sharding import (
    AxisRef,
    DimSharding,
    ManualComputation,
    ManualShapes,
    Mesh,
    MeshAxis,
    Sharding,
    format_manual_computation,
    format_mesh,
    format_sharding,
    local_shape,
    parse_manual_computation,
    parse_named_mesh,
    parse_sharding,
    resolve_mesh,
    verify_manual_computation,
    verify_mesh,
    verify_sharding,
)

SAMPLE = Path(__file__).parents[2].parent / "shared" / "shardy_cases" / "representation_sample.json"
CASES: list[dict[str, Any]] = json.loads(SAMPLE.read_text())["cases"] if SAMPLE.exists() else []

pytestmark = pytest.mark.skipif(not CASES, reason=f"no sample cases at ../{SAMPLE.parent.name}")


def cases(kind: str, *, valid: bool) -> list[Any]:
    found = [case for case in CASES if case["kind"] == kind and case["valid"] is valid]
    return [pytest.param(case, id=case["id"]) for case in found]


def mesh_of(description: dict[str, Any]) -> Mesh:
    axes = tuple(MeshAxis(name, size) for name, size in description["axes"])
    return Mesh(axes, tuple(description["device_ids"]) or None)


def axis_of(description: dict[str, Any]) -> AxisRef:
    sub = description.get("sub_axis") or description
    if "size" not in sub:
        return AxisRef(description["name"])
    return AxisRef(description["name"], sub["pre_size"], sub["size"])


def sizes_of(tensor_type: str) -> tuple[int | None, ...] | None:
    """Sizes in an MLIR type, `None` for a type without a shape."""
    match = re.fullmatch(r"tensor<((?:[0-9?]+x)*).+>", tensor_type)
    if match is None:
        return None
    return tuple(None if size == "?" else int(size) for size in match[1].split("x")[:-1])


@pytest.mark.parametrize("case", cases("mesh", valid=True))
def test_a_sound_mesh_reads_verifies_and_prints_back(case: dict[str, Any]) -> None:
    name, mesh = parse_named_mesh(case["text"])
    assert mesh == mesh_of(case["structured"])
    assert verify_mesh(mesh) == []
    assert format_mesh(mesh, name) == case["text"]


@pytest.mark.parametrize("case", cases("mesh", valid=False))
def test_an_unsound_mesh_is_refused(case: dict[str, Any]) -> None:
    try:
        _, mesh = parse_named_mesh(case["text"])
    except ShardingError:
        return
    assert verify_mesh(mesh)


@pytest.mark.parametrize("case", cases("tensor_sharding", valid=True))
def test_a_sound_sharding_reads_verifies_and_prints_back(case: dict[str, Any]) -> None:
    sharding = parse_sharding(case["text"])
    mesh = mesh_of(case["mesh"])
    if case["mesh_name"] is not None:
        assert sharding.mesh_name == case["mesh_name"]
    assert resolve_mesh(sharding, {sharding.mesh_name: mesh}) == mesh
    parts = case["structured"]
    expected = Sharding(
        tuple(
            DimSharding(tuple(map(axis_of, dim["axes"])), dim["open"], dim["priority"])
            for dim in parts["dims"]
        ),
        tuple(map(axis_of, parts["replicated"])),
        tuple(map(axis_of, parts["unreduced"])),
        sharding.mesh_name,
        sharding.inlined_mesh,
    )
    assert sharding == expected
    shape = sizes_of(case["type"])
    assert verify_sharding(sharding, mesh, shape, is_tensor=shape is not None) == []
    assert "#sdy.sharding" + format_sharding(sharding) == case["text"]
    if case["local_shape"] is not None:
        assert local_shape(sharding, mesh, case["shape"]) == tuple(case["local_shape"])


@pytest.mark.parametrize("case", cases("tensor_sharding", valid=False))
def test_an_unsound_sharding_is_refused(case: dict[str, Any]) -> None:
    if case.get("text") is None:
        pytest.skip("the case is a whole module without a text of its own")
    meshes = {name: mesh_of(mesh) for name, mesh in case["meshes"].items()}
    shape = sizes_of(case["type"])
    try:
        sharding = parse_sharding(case["text"])
        mesh = resolve_mesh(sharding, meshes)
    except ShardingError:
        return
    assert verify_sharding(sharding, mesh, shape, is_tensor=shape is not None)


@pytest.mark.parametrize("case", cases("manual_computation", valid=True))
def test_a_sound_manual_computation_reads_verifies_and_prints_back(case: dict[str, Any]) -> None:
    manual = ManualComputation(
        tuple(map(parse_sharding, case["in_shardings"])),
        tuple(map(parse_sharding, case["out_shardings"])),
        tuple(case["manual_axes"]),
    )
    shapes = ManualShapes(
        operands=tuple(map(sizes_of, case["operand_types"])),
        results=tuple(map(sizes_of, case["result_types"])),
        local_operands=tuple(map(sizes_of, case["body_argument_types"])),
        local_results=tuple(map(sizes_of, case["body_result_types"])),
    )
    meshes = {name: mesh_of(mesh) for name, mesh in case["meshes"].items()}
    assert verify_manual_computation(manual, meshes, shapes) == []
    assert parse_manual_computation(format_manual_computation(manual)) == manual


@pytest.mark.parametrize("case", cases("manual_computation", valid=False))
def test_an_unsound_manual_computation_is_refused(case: dict[str, Any]) -> None:
    lines = case["module"].splitlines()
    meshes = dict(parse_named_mesh(line) for line in lines if line.startswith("sdy.mesh"))
    line = next(line for line in lines if "sdy.manual_computation" in line)
    signature = next(line for line in lines if line.strip().startswith("} : ("))
    outside = re.findall(r"tensor<[^<>]*>", signature)
    num_operands = signature.split("->")[0].count("tensor<")
    inside = re.findall(r"tensor<[^<>]*>", line)
    returned = next(line for line in lines if line.strip().startswith("sdy.return"))
    shapes = ManualShapes(
        operands=tuple(map(sizes_of, outside[:num_operands])),
        results=tuple(map(sizes_of, outside[num_operands:])),
        local_operands=tuple(map(sizes_of, inside)),
        local_results=tuple(map(sizes_of, re.findall(r"tensor<[^<>]*>", returned))),
    )
    assert verify_manual_computation(parse_manual_computation(line), meshes, shapes)
