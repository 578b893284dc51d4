"""From a lowered StableHLO module to the program graph.

Calls are flattened, loops and branches become regions of one flat list of ops, and each op takes
the sharding rule that Shardy's own pass gives it. Only ops that pass leaves without a rule get one
of ours. All attributes are read through the MLIR bindings, never from printed text.

What a program does not tell is assumed, and said: a loop whose trip count nobody knows runs a
default number of times (with a note), and the branches of a conditional are taken equally often,
unless its index is a constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import jax  # noqa: F401  (importing it registers Shardy's passes)
from jax._src.interpreters import mlir as jax_mlir  # checked on jax 0.10.2
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy
from jaxlib.mlir.passmanager import PassManager

from autoshard.errors import ConstraintError, ExportError
from autoshard.frontend.asked_inside import AskedInside, missing_paths
from autoshard.frontend.dead_code import leave_out_dead_code
from autoshard.frontend.equal_layers import FewEquations
from autoshard.frontend.import_border import import_arguments, import_results
from autoshard.frontend.import_constraints import import_constraint, import_group
from autoshard.frontend.import_control_flow import (
    count_branches,
    count_loops,
    import_barrier,
    import_call,
    import_case,
    import_while,
    tie_unnamed_loops,
)
from autoshard.frontend.import_manual import import_manual
from autoshard.frontend.importer import (
    LARGE_CONSTANT_BYTES,
    Handler,
    Importer,
    ModuleNames,
    Scope,
)
from autoshard.frontend.layer_copies import with_all_layers
from autoshard.frontend.loop_invariants import hoist_loop_invariants
from autoshard.frontend.refused_borders import refused_border
from autoshard.frontend.trail import Trail
from autoshard.frontend.trip_counts import ToldTripCounts, check_trip_count
from autoshard.graph.program import Graph, OpKind
from autoshard.graph.splats import without_folded_collectives
from autoshard.graph.verify import verify_graph
from autoshard.sharding import parse_mesh

DEFAULT_TRIP_COUNT = 10.0

_HANDLERS: dict[str, Handler] = {
    "sdy.sharding_constraint": import_constraint,
    "sdy.reshard": import_constraint,
    "sdy.sharding_group": import_group,
    "func.call": import_call,
    "stablehlo.composite": import_call,
    "stablehlo.optimization_barrier": import_barrier,
    "stablehlo.while": import_while,
    "stablehlo.case": import_case,
    "stablehlo.if": import_case,
    "sdy.manual_computation": import_manual,
}


def module_to_graph(
    module: bytes | str,
    names: ModuleNames,
    *,
    trip_counts: Mapping[str, float] | None = None,
    default_trip_count: float = DEFAULT_TRIP_COUNT,
    asked: AskedInside | None = None,
    few: FewEquations | None = None,
) -> Graph:
    """Read a StableHLO module (bytecode or text) as a graph.

    Args:
        module: The module; its `main` is the program.
        names: Names for arguments and results, in order.
        trip_counts: Trip counts of loops whose count the program does not tell, keyed by the end
            of the loop's source (`"train.py:40"`) or its equation path.
        default_trip_count: Used, with a note, where neither the program nor the user tells.
        asked: Shardings asked for inside; values they name lead to CONSTRAINT ops.
        few: The equations of a module that has few of the layers; the graph has all.

    Returns:
        A graph in which `verify_graph` finds nothing wrong.

    Raises:
        ExportError: The module does not parse, has no `main`, does not fit its names, or cannot be
            read as a graph.
        ConstraintError: What is asked is about values that the lowering removed.
        UnlikeLayersError: What layers were left out of the module does not tell the graph.
        InputError: `trip_counts` names a loop the program does not have, or no number of runs.
    """
    told = ToldTripCounts(dict(trip_counts or {}))
    check_trip_count(default_trip_count, "default_trip_count")
    with jax_mlir.make_ir_context(), ir.Location.unknown():
        importer = Importer(names, told, default_trip_count, _HANDLERS, asked or AskedInside())
        graph = _import(importer, _parsed(module), few)
        _check_all_asked(importer)
    violations = verify_graph(graph)
    if violations:
        raise ExportError(
            "the graph of this program contradicts itself:\n"
            + "\n".join(f"- {v}" for v in violations),
            where=violations[0],
            fix="this is a mistake of autoshard; please report it with the function that shows it",
        )
    return graph


def _check_all_asked(importer: Importer) -> None:
    missing = missing_paths(importer.asked, importer.build)
    if missing:
        said = dict.fromkeys(importer.asked.said.get(path, path) for path in missing)
        count = "a value or read" if len(missing) == 1 else f"{len(missing)} values and reads"
        raise ConstraintError(
            f"{count} asked for cannot be found in the lowered program, so there is nothing to"
            " shard",
            where="; ".join(said),
            fix="select a value that the result depends on",
        )


def _parsed(module: bytes | str) -> Any:
    try:
        parsed = ir.Module.parse(module)
    except (ir.MLIRError, ValueError) as error:
        size = f"{len(module)} {'bytes' if isinstance(module, bytes) else 'characters'}"
        found = None if isinstance(module, bytes) else refused_border(module, str(error))
        if found is not None:
            raise found from error
        raise ExportError(
            f"the StableHLO module does not parse: {_first_line(error)}",
            where=f"a module of {size}",
            fix="pass the whole text or bytecode of a module, written by the same jaxlib",
        ) from error
    try:
        PassManager.parse("builtin.module(func.func(sdy-populate-op-sharding-rules))").run(
            parsed.operation
        )
    except ir.MLIRError as error:
        raise ExportError(
            f"Shardy finds no sharding rules for the module: {_first_line(error)}",
            fix="lower the function with jax.jit(fn).lower(...) of the installed jax",
        ) from error
    return parsed


def _first_line(error: Exception) -> str:
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip(" -:")]
    told = [line for line in lines if "error:" in line] or lines
    return told[0] if told else type(error).__name__


def _import(importer: Importer, module: Any, few: FewEquations | None) -> Graph:
    axes: set[str] = set()
    for op in module.body.operations:
        if op.operation.name == "func.func":
            importer.functions[op.name.value] = op
        elif op.operation.name == "sdy.mesh":
            mesh = sdy.MeshAttr(op.operation.attributes["mesh"])
            name = ir.StringAttr(op.operation.attributes["sym_name"]).value
            importer.meshes[name] = parse_mesh(str(mesh).removeprefix("#sdy.mesh"))
            axes.update(sdy.MeshAxisAttr(axis).name for axis in mesh.axes)
    importer.mesh_axes = frozenset(axes)
    main = importer.functions.get("main")
    if main is None:
        held = ", ".join(sorted(importer.functions)) or "none"
        raise ExportError(
            "the module has no function called main",
            where=f"its functions: {held}",
            fix="export the program through jax.jit(...).lower or name its entry @main",
        )
    block = main.regions[0].blocks[0]
    scope = Scope(importer.build.open_region("main", -1), 1.0, True)
    env = import_arguments(importer, block)
    importer.trail = None if few is None else Trail()
    returned = importer.block(block, env, scope)
    if few is not None:
        returned = with_all_layers(importer, few, returned)
    import_results(importer, returned)
    importer.build.close_region(scope.region)
    tie_unnamed_loops(importer)
    hoist_loop_invariants(importer.build, importer.loops, importer.controls)
    count_branches(importer)
    count_loops(importer)
    leave_out_dead_code(importer.build, importer.controls)
    _report_constants(importer)
    graph = importer.build.finish(importer.names.donated, importer.num_captured)
    return without_folded_collectives(graph)


def _report_constants(importer: Importer) -> None:
    """Name large tables by the line that reads them first; they have none of their own."""
    tables = {
        op.results[0]: op
        for op in importer.build.ops
        if op.name == "constant" and op.kind is OpKind.COMPUTE
    }
    if not tables:
        return
    for op in importer.build.ops:
        for value in op.operands:
            table = tables.pop(value, None)
            if table is None:
                continue
            shape, _, bits = importer.build.values[value].type
            table.source = op.source
            table.note = (
                f"a constant of {prod(shape) * bits // 8:,} bytes is written into the program,"
                " whole on every device; pass it as an argument to have it cut"
            )
            importer.build.note(f"{table.note} ({op.source or 'no source line'})")


__all__ = ["DEFAULT_TRIP_COUNT", "LARGE_CONSTANT_BYTES", "ModuleNames", "module_to_graph"]
