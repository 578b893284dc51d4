"""A plan as a StableHLO program: shardings on every value, from the plan's layouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxlib.mlir import ir

from autoshard.apply.boundary_shardings import planned_in_module
from autoshard.apply.nested_ops import operations_of
from autoshard.apply.propagation.propagator import PlannedProgram, propagator_for
from autoshard.export.kept_slices import keep_slices_apart
from autoshard.export.value_shardings import ValueShardings, blocks_of_work
from autoshard.mlir_modules import (
    RULE,
    SHARDING,
    MlirOp,
    Module,
    first_mesh,
    functions_of,
    meshes_of,
    module_bytecode,
    module_context,
    parse_module,
    per_value_attribute,
    result_shardings,
    run_passes,
    set_boundary_shardings,
    shape_of,
    sharding_attribute,
)
from autoshard.plans.plan import PlanData
from autoshard.sharding import Mesh, Sharding

_OF_THE_PLANNER = ("autoshard_equation", "autoshard_mark")
_HAS_OWN = frozenset(
    """sdy.manual_computation sdy.sharding_constraint sdy.reshard sdy.data_flow_edge
    sdy.sharding_group sdy.named_computation func.call""".split()
)


def annotated_module(
    program: PlannedProgram, data: PlanData, constraints: Mapping[str, Sharding]
) -> bytes:
    """The program of a plan with a sharding on every value, as bytecode.

    The plan's constraints, sharding groups and data-flow edges are still in it. Calls are inlined,
    and a loop reads what it passes through unchanged from outside, as in XLA's own form of it.

    Args:
        program: What the plan was made for.
        data: The plan.
        constraints: Those from which propagation reproduces it.
    """
    propagator = propagator_for(program, data.mesh)
    inputs, outputs = planned_in_module(program, data)
    found = propagator.propagate(inputs, outputs, constraints)
    missed = {
        path: sharding
        for path, sharding in data.values.items()
        if path in found and _cuts(found[path]) != _cuts(sharding)
    }
    sharded = propagator.sharded_module(inputs, outputs, constraints, missed)
    with module_context():
        module = parse_module(sharded)
        _put_first(data.mesh, module)
        _restore_constants(module)
        run_passes(
            module,
            "func.func(sdy-constant-or-scalar-merger,sdy-drop-sharding-rules),symbol-dce",
            step="cleaning up after propagation",
        )
        _drop_marks(module)
        _drop_unused_meshes(module)
        _drop_sums_of_one(module)
        keep_slices_apart(module, data.mesh.num_devices)
        write_missing(module)
        module.operation.attributes["mhlo.num_partitions"] = ir.IntegerAttr.get(
            ir.IntegerType.get_signless(32), data.mesh.num_devices
        )
        return module_bytecode(module)


def _put_first(mesh: Mesh, module: Module) -> None:
    """Put the plan's mesh before those of regions on other meshes: later steps price by it."""
    axes = Mesh(mesh.axes)  # ids count places in its order
    name = next((name for name, found in meshes_of(module).items() if found == axes), None)
    for op in [found.operation for found in module.body.operations]:
        if op.name == "sdy.mesh" and ir.StringAttr(op.attributes["sym_name"]).value == name:
            op.move_before(module.body.operations[0])


def _cuts(sharding: Sharding) -> tuple[object, ...]:
    return tuple(dim.axes for dim in sharding.dims)


def _restore_constants(module: Module) -> None:
    """Constants in StableHLO's own form; propagation gave every reader a copy in Shardy's."""
    for op in list(operations_of(module.operation)):
        if op.name != "sdy.constant":
            continue
        made = _of_other_name(op, "stablehlo.constant")
        op.results[0].replace_all_uses_with(made.results[0])
        op.erase()


def _of_other_name(op: MlirOp, name: str) -> MlirOp:
    """An op with the same attributes and another name, before this one.

    Through text, as Python cannot hold constants of all element types (complex numbers); without
    its sharding, whose mesh the text does not hold.
    """
    shardings = {key: op.attributes[key] for key in (SHARDING,) if key in op.attributes}
    for key in shardings:
        del op.attributes[key]
    text = op.get_asm(print_generic_op_form=True, enable_debug_info=True)
    made = ir.Operation.parse(text.replace(f'"{op.name}"', f'"{name}"', 1)).clone(
        ip=ir.InsertionPoint(op)
    )
    for key, sharding in shardings.items():
        made.attributes[key] = sharding
    return made


def _drop_sums_of_one(module: Module) -> None:
    """All-reduces of one device each: Shardy puts manual regions over axes of size 1 in the open.

    There, XLA refuses an all-reduce of what is sharded (jaxlib 0.10.2).
    """
    for op in list(operations_of(module.operation)):
        if op.name != "stablehlo.all_reduce":
            continue
        groups = ir.RankedTensorType(op.attributes["replica_groups"].type)
        if groups.shape[1] == 1:
            for made, operand in zip(op.results, op.operands, strict=True):
                made.replace_all_uses_with(operand)
            op.erase()


def _drop_marks(module: Module) -> None:
    for op in operations_of(module.operation):
        for name in (*_OF_THE_PLANNER, RULE):
            if name in op.attributes and op.name != "stablehlo.custom_call":
                del op.attributes[name]


def _drop_unused_meshes(module: Module) -> None:
    """Meshes that no sharding names any more; the first one stays."""
    kept, _ = first_mesh(module)
    text = str(module.operation)
    for op in list(module.body.operations):
        if op.operation.name == "sdy.mesh":
            name = ir.StringAttr(op.operation.attributes["sym_name"]).value
            if name != kept and f"<@{name}," not in text:
                op.operation.erase()


def write_missing(module: Module) -> None:
    """Say of every tensor without a sharding that it is whole on every device, in place."""
    name, _ = first_mesh(module)
    values = ValueShardings(module, name)
    for function in functions_of(module).values():
        block = function.regions[0].blocks[0]
        returned = list(block.operations)[-1].operation.operands
        for side, members in (("arg_attrs", list(block.arguments)), ("res_attrs", list(returned))):
            written = (
                [values.written(value) for value in members]
                if side == "arg_attrs"
                else (values.wanted(list(block.operations)[-1].operation) or [])
            )
            set_boundary_shardings(
                function,
                side,
                [
                    None if given is not None or shape_of(value) is None else _whole(value, name)
                    for given, value in zip(written, members, strict=True)
                ],
            )
        _write_missing_inside(function, name)


def _write_missing_inside(holder: MlirOp, mesh_name: str) -> None:
    for block in blocks_of_work(holder):
        for op in [found.operation for found in block.operations]:
            _write_missing_inside(op, mesh_name)
            if op.name == "sdy.data_flow_edge":
                if "sharding" not in op.attributes and shape_of(op.results[0]) is not None:
                    op.attributes["sharding"] = sharding_attribute(_whole(op.results[0], mesh_name))
                continue
            if not op.results or op.name in _HAS_OWN or _has_edges(op):
                continue
            if any(shape_of(value) is None for value in op.results):
                continue
            written = result_shardings(op)
            if SHARDING in op.attributes:
                continue
            op.attributes[SHARDING] = per_value_attribute(
                [
                    given if given is not None else _whole(value, mesh_name)
                    for given, value in zip(written, op.results, strict=True)
                ]
            )


def _has_edges(op: MlirOp) -> bool:
    return any(
        use.owner.operation.name == "sdy.data_flow_edge"
        for value in op.results
        for use in value.uses
    )


def _whole(value: Any, mesh_name: str) -> Sharding:
    return Sharding.replicated_everywhere(len(shape_of(value) or ()), mesh_name)
