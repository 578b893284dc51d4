"""A plan as a `jax.export.Exported`: a program that a process without the function can call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.export
import numpy as np
from jax._src.export import _export as jax_export  # private; checked on jax 0.10.2
from jax.extend.core import jaxpr_as_fun
from jax.sharding import NamedSharding
from jaxlib.mlir import ir

from autoshard.errors import ExportError
from autoshard.export.runnable import make_runnable
from autoshard.frontend.meshes import mesh_context
from autoshard.frontend.trace import Traced
from autoshard.mlir_modules import main_of, module_context, parse_module


def exported(
    module: str | bytes,
    traced: Traced,
    in_shardings: Sequence[NamedSharding | None],
    out_shardings: Sequence[NamedSharding | None],
    *,
    platform: str,
    flat: bool = False,
) -> jax.export.Exported:
    """A sharded module in the frame that `jax.export` makes for its function.

    Arrays that the function closes over are written into the program.

    Args:
        module: The program after any export step.
        traced: What it was made from.
        in_shardings: Of the flat arguments.
        out_shardings: Of the flat results.
        platform: What it was lowered for.
        flat: Whether it takes and returns the flat arrays instead of the function's own trees.

    Raises:
        ExportError: An array the function closes over is not known.
    """
    frame = _frame(traced, in_shardings, out_shardings, platform)
    with module_context():
        parsed = parse_module(module)
        make_runnable(parsed)
        write_captured(parsed, traced)
        serialized = jax_export._module_to_bytecode(parsed)
    return replace(
        frame,
        fun_name=traced.in_names[0] if not frame.fun_name else frame.fun_name,
        in_tree=frame.in_tree if flat else traced.in_tree,
        out_tree=frame.out_tree if flat else traced.out_tree,
        mlir_module_serialized=serialized,
        module_kept_var_idx=tuple(range(len(traced.in_avals))),
    )


def _frame(
    traced: Traced,
    in_shardings: Sequence[NamedSharding | None],
    out_shardings: Sequence[NamedSharding | None],
    platform: str,
) -> jax.export.Exported:
    """What `jax.export` makes of the function as it is: types, shardings, versions."""
    closed = traced.jaxpr

    def run(*leaves: Any) -> Any:
        return tuple(jaxpr_as_fun(closed)(*leaves))

    mesh = next((s.mesh for s in (*in_shardings, *out_shardings) if s is not None), None)
    if mesh is None:
        raise ExportError(
            "nothing of the program is sharded, so its mesh cannot be told",
            fix="plan it on a mesh of more than one device",
        )
    jitted = jax.jit(
        run,
        in_shardings=tuple(in_shardings),
        out_shardings=tuple(out_shardings),
        keep_unused=True,
    )
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in traced.in_avals]
    with mesh_context(mesh.abstract_mesh):
        return jax.export.export(jitted, platforms=[platform])(*shapes)


def write_captured(module: Any, traced: Traced) -> None:
    """Turn the leading arguments of main, which stand for captured arrays, into constants.

    Captured arrays that JAX wrote into the module as it was lowered come before those.
    """
    main = main_of(module)
    block = main.regions[0].blocks[0]
    number = len(block.arguments) - len(traced.in_avals)
    if not number:
        return
    for value, const in zip(list(block.arguments), traced.jaxpr.consts[-number:], strict=False):
        array = np.asarray(const)
        made = ir.Operation.create(
            "stablehlo.constant",
            results=[value.type],
            attributes={"value": ir.DenseElementsAttr.get(array, type=value.type.element_type)},
            ip=ir.InsertionPoint.at_block_begin(block),
        )
        value.replace_all_uses_with(made.results[0])
    for index in reversed(range(number)):
        block.erase_argument(index)
    kind = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    main.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get(kind.inputs[number:], kind.results)
    )
    if "arg_attrs" in main.attributes:
        left = list(ir.ArrayAttr(main.attributes["arg_attrs"]))[number:]
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(left)
