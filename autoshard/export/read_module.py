"""The way in: a StableHLO module that came from elsewhere, as a program that can be planned.

Its calls are inlined, and every value gets a name by which a plan can speak of it: `17.0` is the
first result of op 17, `17.body/3.0` a value in its body. What the module says of shardings is kept:
on arguments and results, in constraints and groups, around manual computations, and on single ops.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from autoshard.apply.flat_module import inline_calls
from autoshard.errors import ExportError
from autoshard.export.module_checks import check_module
from autoshard.export.named_computations import inline_named_computations
from autoshard.export.platform_module import AS_WRITTEN
from autoshard.frontend.modules import Modules
from autoshard.frontend.program_record import ProgramRecord, digest_lines
from autoshard.frontend.tensor_types import read_tensor_type
from autoshard.frontend.trace import Traced
from autoshard.mlir_modules import (
    SHARDING,
    MlirOp,
    MlirValue,
    Module,
    boundary_shardings,
    functions_of,
    main_of,
    meshes_of,
    module_bytecode,
    module_context,
    name_of,
    next_op,
    number_of,
    parse_module,
    place_of,
    result_shardings,
    run_passes,
    shape_of,
    sharding_attribute,
    sinking_edges,
)
from autoshard.sharding import Mesh, Sharding, format_mesh
from autoshard.sharding.sharding import DEFAULT_MESH_NAME

_REGION_NAMES = {
    "stablehlo.while": ("cond", "body"),
    "stablehlo.if": ("branches[0]", "branches[1]"),
    "sdy.manual_computation": ("jaxpr",),
}
_TERMINATORS = frozenset({"func.return", "stablehlo.return", "sdy.return"})
_SMALL_FLOAT = re.compile(r"f(\d)(E\dM\d.*)")
_DTYPES = {
    "i1": "bool",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
    "bf16": "bfloat16",
}


def read_module(module: str | bytes, mesh: Mesh, *, name: str = "model.mlir") -> Traced:
    """A module as a program ready to be planned.

    There is no function behind it: what stands for its jaxpr has the right types and nothing else.

    Args:
        module: Text or bytecode.
        mesh: To plan it for.
        name: What to call it in reports and errors.

    Raises:
        ExportError: It does not parse, or `check_module` refuses it.
    """
    with module_context():
        parsed = parse_module(module, name=name)
        check_module(parsed, mesh, name=name)
        main = main_of(parsed)
        meshes = meshes_of(parsed)
        fingerprint = hashlib.sha256(
            str(parsed.operation).encode() + format_mesh(Mesh(mesh.axes)).encode()
        ).hexdigest()
        inline_calls(main, functions_of(parsed))
        inline_named_computations(main)
        run_passes(parsed, sinking_edges(), step="reading data-flow edges")
        block = main.regions[0].blocks[0]
        returned = list(list(block.operations)[-1].operation.operands)
        in_names = _argument_names(block)
        out_names = _result_names(main, len(returned))
        user_in = _on_mesh(boundary_shardings(main, "arg_attrs", len(in_names)), meshes, mesh)
        user_out = _on_mesh(boundary_shardings(main, "res_attrs", len(out_names)), meshes, mesh)
        donated = _donated(main, len(in_names))
        in_avals, out_avals = (
            tuple(_aval(value) for value in values) for values in (block.arguments, returned)
        )
        _forget_boundary(main)
        tagger = _Tagger(_tag_mesh(parsed, mesh), name)
        tagger.tag_block(block, "")
        return Traced(
            jaxpr=_stand_in(in_avals, out_avals),
            in_tree=jax.tree.structure((tuple(in_names), {})),
            out_tree=jax.tree.structure(tuple(out_names)),
            in_names=in_names,
            out_names=out_names,
            in_avals=in_avals,
            out_avals=out_avals,
            donated=donated,
            takes_objects=False,
            updated=(),
            captured_names=(),
            captured_avals=(),
            modules=Modules.given(module_bytecode(parsed)),
            operand_paths=tagger.operand_paths,
            source_by_equation=tagger.sources,
            user_in=user_in,
            user_out=user_out,
            record=_record(fingerprint, in_names, in_avals, out_names, out_avals, tagger),
            platform=AS_WRITTEN,
            notes=(),
        )


def _argument_names(block: Any) -> tuple[str, ...]:
    names = []
    for index, argument in enumerate(block.arguments):
        names.append(name_of(argument.location) or f"arg{index}")
    return tuple(names) if len(set(names)) == len(names) else _numbered("arg", len(names))


def _numbered(word: str, count: int) -> tuple[str, ...]:
    return tuple(f"{word}{index}" for index in range(count))


def _result_names(main: MlirOp, count: int) -> tuple[str, ...]:
    names = []
    for index in range(count):
        entries = _entries(main, "res_attrs", index)
        told = entries.get("jax.result_info")
        names.append(ir.StringAttr(told).value if told is not None else f"result[{index}]")
    distinct = len(set(names)) == len(names)
    return tuple(names) if distinct else tuple(f"result[{index}]" for index in range(count))


def _entries(main: MlirOp, side: str, index: int) -> dict[str, Any]:
    if side not in main.attributes:
        return {}
    return {e.name: e.attr for e in ir.DictAttr(ir.ArrayAttr(main.attributes[side])[index])}


def _donated(main: MlirOp, count: int) -> tuple[bool, ...]:
    return tuple(
        bool({"tf.aliasing_output", "jax.buffer_donor"} & set(_entries(main, "arg_attrs", index)))
        for index in range(count)
    )


def _on_mesh(
    shardings: Sequence[Sharding | None], meshes: dict[str, Mesh], mesh: Mesh
) -> tuple[Sharding | None, ...]:
    """Shardings on the plan's mesh by its default name; those on another mesh carry it."""
    found: list[Sharding | None] = []
    for sharding in shardings:
        if sharding is None:
            found.append(None)
            continue
        own = sharding.inlined_mesh or meshes[sharding.mesh_name]
        if own.axes == mesh.axes and own.device_ids is None:
            found.append(replace(sharding, inlined_mesh=None, mesh_name=DEFAULT_MESH_NAME))
        else:
            found.append(replace(sharding, inlined_mesh=own))
    return tuple(found)


def _forget_boundary(main: MlirOp) -> None:
    """Take shardings off arguments and results: the plan has them, as the user's wishes."""
    for side in ("arg_attrs", "res_attrs"):
        if side in main.attributes:
            kept = [
                ir.DictAttr.get({e.name: e.attr for e in ir.DictAttr(entry) if e.name != SHARDING})
                for entry in ir.ArrayAttr(main.attributes[side])
            ]
            main.attributes[side] = ir.ArrayAttr.get(kept)


def _aval(value: MlirValue) -> jax.core.ShapedArray:
    shape, dtype, _ = read_tensor_type(value.type)
    known = _DTYPES.get(dtype)
    if known is None:
        kind, digits = dtype.rstrip("0123456789"), dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
        known = {"f": "float", "i": "int", "ui": "uint"}.get(kind, kind) + digits
        if match := _SMALL_FLOAT.fullmatch(dtype):
            known = f"float{match[1]}_{match[2].lower()}"
    try:
        return jax.core.ShapedArray(shape, jnp.dtype(known))
    except TypeError as error:
        raise ExportError(
            f"an argument or result has elements of type {dtype}, which JAX does not have",
            fix="give the module's main arguments and results of types that JAX has",
        ) from error


def _stand_in(in_avals: Sequence[Any], out_avals: Sequence[Any]) -> Any:
    def like(*_: Any) -> tuple[Any, ...]:
        return tuple(jnp.zeros(aval.shape, aval.dtype) for aval in out_avals)

    return jax.make_jaxpr(like)(
        *(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in in_avals)
    )


def _tag_mesh(module: Module, mesh: Mesh) -> str:
    """A mesh for tags to name: one the module has, or the plan's, added to it."""
    for name, found in meshes_of(module).items():
        if found.axes == mesh.axes and found.device_ids is None:
            return name
    name = DEFAULT_MESH_NAME
    while name in meshes_of(module):
        name += "_"
    made = ir.Module.parse(f"sdy.mesh @{name} = {format_mesh(Mesh(mesh.axes))}")
    made.body.operations[0].operation.clone(ip=ir.InsertionPoint.at_block_begin(module.body))
    return name


def _record(
    fingerprint: str,
    in_names: tuple[str, ...],
    in_avals: Sequence[Any],
    out_names: tuple[str, ...],
    out_avals: Sequence[Any],
    tagger: _Tagger,
) -> ProgramRecord:
    return ProgramRecord(
        fingerprint=fingerprint,
        argument_names=in_names,
        argument_types=tuple(aval.str_short() for aval in in_avals),
        result_names=out_names,
        result_types=tuple(aval.str_short() for aval in out_avals),
        num_equations=len(tagger.sources),
        line_digests=digest_lines(tagger.lines),
    )


@dataclass(slots=True)
class _Tagger:
    """Names every op and value of a module, as `frontend.tagging` does for a jaxpr.

    Args:
        mesh_name: The mesh that tags name.
        file: The module's name.
    """

    mesh_name: str
    file: str
    operand_paths: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    _path_of: dict[MlirValue, str] = field(default_factory=dict)

    def tag_block(self, block: Any, prefix: str) -> None:
        ops = [op.operation for op in block.operations]
        manual = _is_all_manual(block)
        if prefix:
            for argument in list(block.arguments):
                self._tag(argument, f"{prefix}in.{number_of(argument)}", ops[0], manual=manual)
        else:
            for argument in block.arguments:
                self._path_of[argument] = f"in.{number_of(argument)}"
        number = 0
        for op in ops:
            if op.name in _TERMINATORS:
                if prefix:
                    self.operand_paths[f"{prefix}out"] = self._paths(op)
                continue
            path = f"{prefix}{number}"
            number += 1
            self._tag_op(op, path, manual=manual)

    def _tag_op(self, op: MlirOp, path: str, *, manual: bool) -> None:
        place = place_of(op)
        self.operand_paths[path] = self._paths(op)
        self.sources[path] = f"{self.file}:{place.line}" if place.line else ""
        self.lines.append(f"{path} {op.name} {' '.join(str(v.type) for v in op.results)}")
        for index, region in enumerate(op.regions):
            if op.name == "stablehlo.case" or op.name in _REGION_NAMES:
                self.tag_block(region.blocks[0], f"{path}.{_region_name(op, index)}/")
        written = self._written(op)
        op.location = ir.Location.name(f"E[{path}]", op.location)
        following = next_op(op)
        for value in op.results:
            named = f"{path}.{number_of(value)}"
            self._path_of[value] = named
            wanted = written[number_of(value)]
            if wanted is not None and shape_of(value) and not _reader_says(value, wanted):
                # Readers read what the constraint makes of it, which gets the name.
                value = self._insert(value, sharding_attribute(wanted), op.location, following)
            self._tag(value, named, following, manual=manual)

    def _paths(self, op: MlirOp) -> tuple[str | None, ...]:
        return tuple(self._path_of.get(value) for value in op.operands)

    def _written(self, op: MlirOp) -> list[Sharding | None]:
        """Shardings written on an op's results, which become constraints; they leave the op."""
        if SHARDING not in op.attributes or op.name == "sdy.manual_computation":
            return [None] * len(op.results)
        found = result_shardings(op)
        del op.attributes[SHARDING]
        return [
            sharding
            if sharding is not None and (sharding.is_fully_closed or any(sharding.axis_refs()))
            else None
            for sharding in found
        ]

    def _tag(self, value: MlirValue, path: str, before: MlirOp, *, manual: bool) -> None:
        self._path_of[value] = path
        shape = shape_of(value)
        if not shape or manual or not any(True for _ in value.uses):
            return
        attribute = sharding_attribute(Sharding.fully_open(len(shape), self.mesh_name))
        location = ir.Location.name(f"T[{path}]", before.location)
        self._path_of[self._insert(value, attribute, location, before)] = path

    def _insert(self, value: MlirValue, attribute: Any, location: Any, before: MlirOp) -> MlirValue:
        """A constraint between a value and all that read it."""
        readers = [(use.owner.operation, use.operand_number) for use in value.uses]
        made = sdy.ShardingConstraintOp(
            value, attribute, ip=ir.InsertionPoint(before), loc=location
        ).operation.results[0]
        for reader, number in readers:
            reader.operands[number] = made
        return made


def _reader_says(value: MlirValue, sharding: Sharding) -> bool:
    """Whether all that reads a value is a constraint to this sharding: a planned module has many.

    With one more constraint at every planning, a module would never be the same again.
    """
    readers = [use.owner.operation for use in value.uses]
    return (
        len(readers) == 1
        and readers[0].name == "sdy.sharding_constraint"
        and result_shardings(readers[0]) == [sharding]
    )


def _region_name(op: MlirOp, index: int) -> str:
    if op.name == "stablehlo.case":
        return f"branches[{index}]"
    return _REGION_NAMES[op.name][index]


def _is_all_manual(block: Any) -> bool:
    """Whether a manual computation around a block takes every axis: nothing is left to name."""
    holder = block.owner.operation
    while holder.name not in {"func.func", "builtin.module"}:
        if holder.name == "sdy.manual_computation":
            return True
        holder = holder.block.owner.operation
    return False
