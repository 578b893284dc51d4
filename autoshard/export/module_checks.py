"""What a module that came from elsewhere must be to be planned; each refusal says the line."""

from __future__ import annotations

from jaxlib.mlir import ir

from autoshard.apply.nested_ops import operations_of
from autoshard.errors import ExportError
from autoshard.export.collective_ops import KIND_BY_OP
from autoshard.export.value_shardings import callee
from autoshard.mlir_modules import (
    MlirOp,
    Module,
    functions_of,
    main_of,
    place_of,
)
from autoshard.sharding import Mesh, parse_mesh

_OLD_SHARDING = "mhlo.sharding"
_OLD_CALLS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"})


def check_module(module: Module, mesh: Mesh, *, name: str) -> None:
    """Refuse a module that cannot be planned as it is.

    Args:
        module: As parsed, its locations those of its text.
        mesh: To plan it for.
        name: What to call it in errors.

    Raises:
        ExportError: It has no main with a body of one block, calls what is not there or itself, has
            tensors of unknown size, a mesh over other devices, explicit collectives of Shardy's, or
            shardings in GSPMD's notation.
    """
    _check_main(main_of(module, name=name), name)
    _check_devices(module, mesh, name)
    functions = functions_of(module)
    for function in functions.values():
        _check_blocks(function, name)
        _check_boundary_notation(function, name)
        _check_types(function, name)
        for op in operations_of(function):
            _check_op(op, functions, name)
    _check_calls(functions, name)


def _where(op: MlirOp, name: str) -> str:
    place = place_of(op)
    return f"{name}, {place}" if place.line else f"{name}, {_called(op)}"


def _called(op: MlirOp) -> str:
    if op.name != "func.func":
        return str(op.name)
    return f"@{ir.StringAttr(op.attributes['sym_name']).value}"


def _check_main(main: MlirOp, name: str) -> None:
    kind = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    if not list(main.regions[0].blocks):
        raise ExportError(
            "main is declared and has no body",
            where=_where(main, name),
            fix="pass the module that defines it",
        )
    if not kind.inputs and not kind.results:
        raise ExportError(
            "main has neither arguments nor results: there is nothing to shard",
            where=_where(main, name),
            fix="pass the module that computes something",
        )
    for given in (*kind.inputs, *kind.results):
        if not isinstance(given, ir.RankedTensorType):
            raise ExportError(
                f"an argument or result of main is of type {given}, which is no ranked tensor",
                where=_where(main, name),
                fix="give main tensors only: flat ones in place of tuples, no tokens",
            )


def _check_blocks(function: MlirOp, name: str) -> None:
    if len(list(function.regions[0].blocks)) > 1:
        raise ExportError(
            f"{_called(function)} has branches between blocks",
            where=_where(function, name),
            fix="write them as stablehlo.case, stablehlo.if or stablehlo.while",
        )


def _check_types(op: MlirOp, name: str) -> None:
    blocks = [block for region in op.regions for block in region.blocks]
    for value in (*op.results, *(value for block in blocks for value in block.arguments)):
        if isinstance(value.type, ir.RankedTensorType) and not value.type.has_static_shape:
            raise ExportError(
                f"a tensor of type {value.type} has no fixed size",
                where=_where(op, name),
                fix="export it with fixed shapes, not with symbolic ones",
            )


def _check_op(op: MlirOp, functions: dict[str, MlirOp], name: str) -> None:
    _check_types(op, name)
    if op.name in KIND_BY_OP:
        raise ExportError(
            f"the module has an {op.name} in it: it was planned already",
            where=_where(op, name),
            fix="plan the module as it was before its reshards became collectives",
        )
    if op.name == "func.call" and not list(functions[callee(op)].regions[0].blocks):
        raise ExportError(
            f"@{callee(op)} is called and has no body",
            where=_where(op, name),
            fix="pass a module that defines all it calls, or call it by stablehlo.custom_call",
        )
    _check_notation(op, name)


def _check_notation(op: MlirOp, name: str) -> None:
    """GSPMD's shardings would be lost without a word: XLA takes Shardy's alone beside them."""
    is_call = op.name == "stablehlo.custom_call" and (
        ir.StringAttr(op.attributes["call_target_name"]).value in _OLD_CALLS
    )
    if is_call or _OLD_SHARDING in op.attributes:
        _refuse_notation(op, name)


def _check_boundary_notation(function: MlirOp, name: str) -> None:
    for side in ("arg_attrs", "res_attrs"):
        given = ir.ArrayAttr(function.attributes[side]) if side in function.attributes else ()
        if any(_OLD_SHARDING in ir.DictAttr(entry) for entry in given):
            _refuse_notation(function, name)


def _refuse_notation(op: MlirOp, name: str) -> None:
    raise ExportError(
        "the module has shardings in GSPMD's notation (mhlo.sharding), which are not read",
        where=_where(op, name),
        fix="lower it with Shardy (jax_use_shardy_partitioner), or take them out",
    )


def _check_calls(functions: dict[str, MlirOp], name: str) -> None:
    """Calls are inlined, so none may lead back to its own function."""
    finished: set[str] = set()

    def follow(function: str, callers: tuple[str, ...]) -> None:
        for op in operations_of(functions[function]):
            if op.name != "func.call" or callee(op) in finished:
                continue
            chain = (*callers, function)
            if callee(op) in chain:
                raise ExportError(
                    f"@{callee(op)} calls itself"
                    + ("" if callee(op) == function else f", by way of @{function}"),
                    where=_where(op, name),
                    fix="write the recursion as a stablehlo.while",
                )
            follow(callee(op), chain)
        finished.add(function)

    for function in functions:
        follow(function, ())


def _check_devices(module: Module, mesh: Mesh, name: str) -> None:
    for op in (found.operation for found in module.body.operations):
        if op.name != "sdy.mesh":
            continue
        found = parse_mesh(str(op.attributes["mesh"]).removeprefix("#sdy.mesh"))
        if found.axes and found.num_devices != mesh.num_devices:
            called = ir.StringAttr(op.attributes["sym_name"]).value
            raise ExportError(
                f"the module names @{called} = {found}, which has {found.num_devices} devices,"
                f" and is to be planned on {mesh}, which has {mesh.num_devices}",
                where=_where(op, name),
                fix="plan it on a mesh over as many devices, or take its shardings out",
            )
