"""The sample cases with Shardy's verdicts, where a checkout has them beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
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
    OpShardingRule,
    Sharding,
    find_manual_regions,
    find_shardings,
    format_manual_computation,
    format_mesh,
    format_op_sharding_rule,
    format_sharding,
    local_shape,
    parse_manual_computation,
    parse_named_mesh,
    parse_op_sharding_rule,
    parse_sharding,
    resolve_mesh,
    verify_manual_computation,
    verify_manual_region,
    verify_mesh,
    verify_op_sharding_rule,
    verify_sharding,
)

SAMPLE = Path(__file__).parents[2].parent / "shared" / "shardy_cases" / "representation_sample.json"
CASES: list[dict[str, Any]] = json.loads(SAMPLE.read_text())["cases"] if SAMPLE.exists() else []

pytestmark = pytest.mark.skipif(not CASES, reason=f"no sample cases at ../{SAMPLE.parent.name}")


def cases(kind: str, *, valid: bool, has_text: bool | None = None) -> list[Any]:
    found = [case for case in CASES if case["kind"] == kind and case["valid"] is valid]
    if has_text is not None:
        found = [case for case in found if (case["text"] is not None) is has_text]
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


def shapes_of(tensor_types: Iterable[str]) -> tuple[tuple[int | None, ...] | None, ...]:
    return tuple(map(sizes_of, tensor_types))


def meshes_in(module: str) -> dict[str, Mesh]:
    lines = map(str.strip, module.splitlines())
    return dict(parse_named_mesh(line) for line in lines if line.startswith("sdy.mesh"))


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


@pytest.mark.parametrize("case", cases("tensor_sharding", valid=False, has_text=True))
def test_an_unsound_sharding_is_refused(case: dict[str, Any]) -> None:
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
        operands=shapes_of(case["operand_types"]),
        results=shapes_of(case["result_types"]),
        local_operands=shapes_of(case["body_argument_types"]),
        local_results=shapes_of(case["body_result_types"]),
    )
    meshes = {name: mesh_of(mesh) for name, mesh in case["meshes"].items()}
    assert verify_manual_computation(manual, meshes, shapes) == []
    assert parse_manual_computation(format_manual_computation(manual)) == manual


@pytest.mark.parametrize("case", cases("manual_computation", valid=False))
def test_an_unsound_manual_computation_is_refused(case: dict[str, Any]) -> None:
    lines = case["module"].splitlines()
    meshes = meshes_in(case["module"])
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
    violations = verify_manual_computation(parse_manual_computation(line), meshes, shapes)
    for region in find_manual_regions(case["module"]):
        violations += verify_manual_region(region, meshes)
    assert violations


@pytest.mark.parametrize("case", cases("op_sharding_rule", valid=True))
def test_a_sound_rule_reads_verifies_and_prints_back(case: dict[str, Any]) -> None:
    rule = parse_op_sharding_rule(case["text"])
    parts = case["structured"]
    assert rule == OpShardingRule(
        tuple(parts["factor_sizes"]),
        tuple(tuple(map(tuple, dims)) for dims in parts["operands"]),
        tuple(tuple(map(tuple, dims)) for dims in parts["results"]),
        reduction=tuple(parts["reduction"]),
        need_replication=tuple(parts["need_replication"]),
        permutation=tuple(parts["permutation"]),
        blocked_propagation=tuple(parts["blocked_propagation"]),
        is_custom=parts["custom"],
    )
    operands, results = shapes_of(case["operand_types"]), shapes_of(case["result_types"])
    assert verify_op_sharding_rule(rule, operands, results, op_name=case["op"]) == []
    assert "#sdy.op_sharding_rule" + format_op_sharding_rule(rule) == case["text"]


@pytest.mark.parametrize("case", cases("op_sharding_rule", valid=False))
def test_an_unsound_rule_is_refused(case: dict[str, Any]) -> None:
    operation = next(line for line in case["module"].splitlines() if "sharding_rule" in line)
    name = re.search(r"stablehlo\.\w+", operation)
    assert name is not None
    if "operand_types" in case:
        operands, results = case["operand_types"], case["result_types"]
    else:  # an elementwise operation: one type for all
        operand_names = operation[name.end() :].split("{")[0]
        results = [operation.rsplit(" : ", 1)[1]]
        operands = results * operand_names.count("%")
    try:
        rule = parse_op_sharding_rule(case["text"])
    except ShardingError as error:
        assert error.where.endswith("^")  # noqa: PT017
        return
    assert verify_op_sharding_rule(rule, shapes_of(operands), shapes_of(results), op_name=name[0])


@pytest.mark.parametrize(
    "case",
    [
        *cases("module", valid=False, has_text=False),
        *cases("tensor_sharding", valid=False, has_text=False),
    ],
)
def test_an_unsound_module_is_refused_for_its_manual_axes_or_has_sound_shardings(
    case: dict[str, Any],
) -> None:
    """What else is wrong with these modules (collectives, edges) is no matter of shardings."""
    meshes = meshes_in(case["module"])
    if case["newer_than_reference"]:
        with pytest.raises(ShardingError):
            find_shardings(case["module"])
        return
    regions = find_manual_regions(case["module"])
    violations = [text for region in regions for text in verify_manual_region(region, meshes)]
    if case["reason"] == "axis-already-manual":
        assert any("which a manual computation around it has bound" in text for text in violations)
        return
    assert violations == []
    for sharding in find_shardings(case["module"]):
        assert verify_sharding(sharding, resolve_mesh(sharding, meshes)) == []
