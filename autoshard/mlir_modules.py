"""StableHLO modules in and out: text or bytecode, and errors that say the line and the column."""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax  # noqa: F401  (importing it registers Shardy's passes)
from jax._src.interpreters import mlir as jax_mlir  # checked on jax 0.10.2
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo
from jaxlib.mlir.passmanager import PassManager

from autoshard.errors import ExportError
from autoshard.sharding import Mesh, Sharding, format_sharding, parse_mesh, parse_sharding

MlirOp: TypeAlias = Any
MlirValue: TypeAlias = Any
Module: TypeAlias = Any

MLIR_MAGIC = b"ML\xefR"
SHARDING = "sdy.sharding"
_MEMORY_KIND = "mhlo.memory_kind"
RULE = "sdy.sharding_rule"
_SINK_EDGES = ("sdy-sink-data-flow-edges", "sdy-sink-func-data-flow-edges")

_TOLD = re.compile(r"error: (?:loc\()?\"-\":(\d+):(\d+)\)?: (.*)")
_LOCATIONS = {"name": "NameLoc", "callsite": "CallSiteLoc", "file": "FileLineColLoc"}
_OP_PLACE = re.compile(r'"-":(\d+):(\d+)')


@dataclass(frozen=True, slots=True)
class Place:
    """A line and a column of a module's text, both from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


@contextmanager
def module_context() -> Iterator[None]:
    """A context in which modules of this room are parsed, changed and printed."""
    with jax_mlir.make_ir_context(), ir.Location.unknown():
        yield


def parse_module(module: str | bytes, *, name: str = "the module") -> Module:
    """Parse and verify a module inside `module_context`.

    Args:
        module: Text, or bytecode (MLIR's own or StableHLO's portable one).
        name: What to call it in errors: a file name.

    Raises:
        ExportError: It is cut short, malformed, has an op no dialect here knows, or names a mesh it
            does not have; of text the line, the column and the line itself are told.
    """
    if isinstance(module, bytes) and not module.startswith(MLIR_MAGIC):
        try:
            module = module.decode()
        except UnicodeDecodeError:
            raise ExportError(
                "neither text nor MLIR bytecode",
                where=f"{name}: {len(module)} bytes that begin with {module[:4]!r}",
                fix="pass what lowered.as_text(), write_bytecode or jax.export wrote, whole",
            ) from None
    try:
        parsed = ir.Module.parse(module)
    except (ir.MLIRError, ValueError) as error:
        raise _does_not_parse(module, str(error), name) from error
    parsed = _current(parsed, name)
    if not any(True for _ in parsed.body.operations):
        raise ExportError(
            "the module is empty", where=name, fix="pass a module with a function called main"
        )
    return parsed


def _current(parsed: Module, name: str) -> Module:
    """The module in StableHLO's own ops, where it is in the portable form of `jax.export`."""
    if not any(op.operation.name.startswith("vhlo.") for op in parsed.body.operations):
        return parsed
    try:
        return stablehlo.deserialize_portable_artifact(ir.Context.current, module_bytecode(parsed))
    except (ir.MLIRError, ValueError) as error:
        raise ExportError(
            f"the portable module cannot be brought to this version of StableHLO: {error}",
            where=name,
            fix="write it with a version of StableHLO that is not newer than the installed one",
        ) from error


def _does_not_parse(module: str | bytes, told: str, name: str) -> ExportError:
    match = _TOLD.search(told)
    if match is None or isinstance(module, bytes):
        lines = [line.strip(" -") for line in told.splitlines() if "error:" in line]
        reason = lines[0].partition("error: ")[2] if lines else told.strip().splitlines()[-1]
        reason = reason.removeprefix('"-":0:0: ')
        kind = "bytes of bytecode" if isinstance(module, bytes) else "characters"
        return ExportError(
            f"the module does not parse: {reason}",
            where=f"{name}: {len(module)} {kind}",
            fix="pass the whole module, written for this version of StableHLO",
        )
    place = Place(int(match[1]), int(match[2]))
    reason, fix = _reason(match[3].strip())
    return ExportError(
        f"the module does not parse: {reason}",
        where=f"{name}, {place}{shown_line(module, place)}",
        fix=fix,
    )


def _reason(told: str) -> tuple[str, str]:
    """MLIR's message in a sentence, and what to do about it."""
    if "unregistered dialect" in told:
        return (
            "an op of a dialect that is not known here",
            "write the program in stablehlo, chlo, func and sdy alone",
        )
    if match := re.match(r"Dialect `(.*)' not found for custom op '(.*)'", told):
        return (
            f"op {match[2]} is of dialect {match[1]}, which is not known here",
            "write the program in stablehlo, chlo, func and sdy alone",
        )
    if match := re.search(r"unknown mesh: (@\S+)", told):
        return (
            f"a sharding names mesh {match[1]}, which the module does not have",
            f"add sdy.mesh {match[1]} = <[...]> to the module, or name one that it has",
        )
    for part, fix in _FIXES:
        if part in told:
            return told, fix
    return told, "pass the whole module, written for this version of StableHLO"


_FIXES = (
    ("unknown axis name", "name axes that the mesh of the sharding has"),
    ("duplicate axis ref", "cut every tensor by an axis once at most"),
    ("doesn't match tensor rank", "give the sharding one entry per dimension of its tensor"),
    ("redefinition of symbol", "give every function and mesh a name of its own"),
    ("does not reference a valid function", "pass a module that defines all it calls"),
)
"""By what MLIR says: what helps, where it is not a module cut short."""


def shown_line(text: str, place: Place) -> str:
    """A line of a text with a caret under a column; nothing where the text has no such line."""
    lines = text.splitlines()
    if not 1 <= place.line <= len(lines):
        return ""
    line = lines[place.line - 1]
    start = max(0, place.column - 60)
    return f"\n    {line[start : start + 100]}\n    {' ' * (place.column - 1 - start)}^"


def located(module: Module) -> tuple[Module, str]:
    """The module as printed and parsed again, so that every op knows its line and column.

    Returns:
        The copy, and the text it was parsed from, without other locations.
    """
    text = module_text(module)
    return ir.Module.parse(text), text


def number_of(value: MlirValue) -> int:
    """The place of a value among the arguments of its block, or the results of its op."""
    is_argument = isinstance(value.owner, ir.Block)
    number: int = (  # JAX 0.9.0 gives a value of neither kind
        ir.BlockArgument(value).arg_number if is_argument else ir.OpResult(value).result_number
    )
    return number


def name_of(location: Any) -> str:
    """The name stack of a location, "" where it has none."""
    return location.name_str if _is(location, "name") else ""


def file_of(location: Any) -> str:
    """`file.py:12` of the innermost file position of a location, "" where it has none."""
    while _is(location, "name"):
        location = location.child_loc
    if _is(location, "callsite"):
        return file_of(location.callee)
    return f"{location.filename}:{location.start_line}" if _is(location, "file") else ""


def _is(location: Any, kind: str) -> bool:
    known = getattr(ir, _LOCATIONS[kind], None)  # classes since jaxlib 0.10.1
    return isinstance(location, known) if known else getattr(location, f"is_a_{kind}")()


def place_of(op: MlirOp) -> Place:
    """Where an op stands in the text its module was parsed from."""
    match = _OP_PLACE.search(str(op.location))
    return Place(int(match[1]), int(match[2])) if match else Place(0, 0)


def module_text(module: Module, *, with_locations: bool = False) -> str:
    """A module as text."""
    return str(module.operation.get_asm(enable_debug_info=with_locations))


def module_bytecode(module: Module) -> bytes:
    """A module as MLIR bytecode, locations included."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(file=buffer)
    return buffer.getvalue()


def run_passes(module: Module, passes: str, *, step: str) -> None:
    """Run passes of jaxlib on a module, in place.

    Args:
        module: Changed in place.
        passes: As `PassManager.parse` takes them, without `builtin.module(...)`.
        step: What they are for, told when they refuse.

    Raises:
        ExportError: A pass refuses the module.
    """
    try:
        PassManager.parse(f"builtin.module({passes})").run(module.operation)
    except ir.MLIRError as error:
        lines = [line.strip(" -") for line in str(error).splitlines() if line.strip(" -:")]
        told = next((line for line in lines if "error:" in line), lines[0] if lines else "")
        raise ExportError(
            f"{step} is refused: {told}",
            fix="check that the module's shardings fit its tensors (autoshard.export"
            ".verify_module names those that do not)",
        ) from error


# -- reading ------------------------------------------------------------------------------------


@functools.cache
def is_registered(pass_name: str) -> bool:
    """This jaxlib has a pass of that name on modules or on functions."""
    return _parses(pass_name) or _parses(f"func.func({pass_name})")


def sinking_edges() -> str:
    """Passes in which data-flow edges give away their shardings; JAX 0.9 has none of functions."""
    return f"func.func({','.join(filter(is_registered, _SINK_EDGES))})"


@functools.cache
def on_its_level(pass_text: str) -> str:
    """A pass as a pipeline over a module takes it; jaxlib decides which ones are on functions."""
    on_functions = f"func.func({pass_text})"
    return on_functions if not _parses(pass_text) and _parses(on_functions) else pass_text


def _parses(passes: str) -> bool:
    with jax_mlir.make_ir_context():
        try:
            PassManager.parse(f"builtin.module({passes})")
        except ValueError:
            return False
    return True


def functions_of(module: Module) -> dict[str, MlirOp]:
    """The functions of a module by name, in its order."""
    return {
        ir.StringAttr(op.operation.attributes["sym_name"]).value: op.operation
        for op in module.body.operations
        if op.operation.name == "func.func"
    }


def main_of(module: Module, *, name: str = "the module") -> MlirOp:
    """The function called main.

    Raises:
        ExportError: There is none.
    """
    functions = functions_of(module)
    if "main" not in functions:
        held = ", ".join(f"@{function}" for function in functions) or "none"
        raise ExportError(
            "the module has no function called main",
            where=f"{name}; its functions: {held}",
            fix="name the function to plan @main",
        )
    return functions["main"]


def meshes_of(module: Module) -> dict[str, Mesh]:
    """The meshes of a module by name."""
    return {
        ir.StringAttr(op.operation.attributes["sym_name"]).value: parse_mesh(
            str(sdy.MeshAttr(op.operation.attributes["mesh"])).removeprefix("#sdy.mesh")
        )
        for op in module.body.operations
        if op.operation.name == "sdy.mesh"
    }


def first_mesh(module: Module) -> tuple[str, Mesh]:
    """The first mesh of a module that is a grid, with its name.

    Raises:
        ExportError: There is none.
    """
    for mesh_name, mesh in meshes_of(module).items():
        if mesh.axes:
            return mesh_name, mesh
    raise ExportError(
        "the module has no mesh",
        where="the module",
        fix='add sdy.mesh @mesh = <["x"=2, "y"=4]> with your axes to it',
    )


def next_op(op: MlirOp) -> MlirOp:
    """The op behind another one in its block, which is not the last."""
    ops = [found.operation for found in op.block.operations]
    return ops[ops.index(op) + 1]


def factor_indices(mappings: Any) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Per tensor and dimension, the factors of a sharding rule's operand or result mappings."""
    return tuple(
        tuple(
            tuple(sdy.DimMappingAttr(dim).factor_indices)
            for dim in sdy.TensorMappingAttr(tensor).dim_mappings
        )
        for tensor in mappings
    )


def shape_of(value: MlirValue) -> tuple[int, ...] | None:
    """Shape of a ranked tensor, None for anything else."""
    if not isinstance(value.type, ir.RankedTensorType):
        return None
    return tuple(value.type.shape)


def result_shardings(op: MlirOp) -> list[Sharding | None]:
    """Shardings written on an op's results, None where there is none."""
    if op.name in _SHARDING_ATTRIBUTE and _SHARDING_ATTRIBUTE[op.name] in op.attributes:
        return [parse_sharding(str(op.attributes[_SHARDING_ATTRIBUTE[op.name]]))]
    if op.name == "sdy.manual_computation":
        per_value = sdy.TensorShardingPerValueAttr(op.attributes["out_shardings"])
        return [parse_sharding(str(sharding)) for sharding in per_value.shardings]
    if SHARDING not in op.attributes:
        return [None] * len(op.results)
    per_value = sdy.TensorShardingPerValueAttr(op.attributes[SHARDING])
    return [parse_sharding(str(sharding)) for sharding in per_value.shardings]


_SHARDING_ATTRIBUTE = {
    "sdy.sharding_constraint": "sharding",
    "sdy.reshard": "sharding",
    "sdy.data_flow_edge": "sharding",
    "sdy.all_gather": "out_sharding",
    "sdy.all_slice": "out_sharding",
    "sdy.all_to_all": "out_sharding",
    "sdy.collective_permute": "out_sharding",
    "sdy.all_reduce": "out_sharding",
    "sdy.reduce_scatter": "out_sharding",
    "sdy.sharded_to_unreduced": "out_sharding",
    "sdy.replicated_to_unreduced": "out_sharding",
}


def boundary_shardings(function: MlirOp, name: str, count: int) -> list[Sharding | None]:
    """Shardings of a function's arguments (`arg_attrs`) or results (`res_attrs`)."""
    if name not in function.attributes:
        return [None] * count
    found = []
    for entry in ir.ArrayAttr(function.attributes[name]):
        entries = ir.DictAttr(entry)
        found.append(parse_sharding(str(entries[SHARDING])) if SHARDING in entries else None)
    return found


# -- writing ------------------------------------------------------------------------------------


def sharding_attribute(sharding: Sharding) -> Any:
    """A sharding as an attribute."""
    return ir.Attribute.parse(f"#sdy.sharding{format_sharding(sharding)}")


def per_value_attribute(shardings: list[Sharding]) -> Any:
    """Shardings of an op's results as an attribute."""
    return sdy.TensorShardingPerValueAttr.get([sharding_attribute(s) for s in shardings])


def set_boundary_shardings(function: MlirOp, name: str, shardings: list[Sharding | None]) -> None:
    """Write shardings on a function's arguments (`arg_attrs`) or results (`res_attrs`).

    Other attributes stay; None leaves what is there.
    """
    given = ir.ArrayAttr(function.attributes[name]) if name in function.attributes else None
    dictionaries = []
    for index, sharding in enumerate(shardings):
        entries = {} if given is None else {e.name: e.attr for e in ir.DictAttr(given[index])}
        if sharding is not None:
            entries[SHARDING] = sharding_attribute(sharding)
            if sharding.memory_kind:
                entries[_MEMORY_KIND] = ir.StringAttr.get(sharding.memory_kind)
        dictionaries.append(ir.DictAttr.get(entries))
    function.attributes[name] = ir.ArrayAttr.get(dictionaries)
