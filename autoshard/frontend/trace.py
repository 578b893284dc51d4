"""From a user's function and abstract arguments to one jaxpr and its tagged StableHLO module."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

# Private; checked on jax 0.9.0, 0.9.2 and 0.10.2.
from jax._src.core import internal_mutable_array_effect
from jax._src.effects import ordered_effects
from jax._src.state import discharge
from jax.extend.core import ClosedJaxpr
from jax.sharding import AbstractMesh
from jax.tree_util import PyTreeDef

from autoshard.errors import ExportError, InputError
from autoshard.frontend.annotations import annotated_shardings
from autoshard.frontend.device_orders import DeviceOrder
from autoshard.frontend.equation_places import equation_sources
from autoshard.frontend.explicit_axes import (
    ArgumentAxes,
    argument_axes,
    fixed_by_type,
    has_reshards,
    typed,
    typed_axes,
    without_explicit_types,
)
from autoshard.frontend.fingerprint import record_program
from autoshard.frontend.meshes import (
    abstract_mesh,
    as_auto,
    mesh_context,
    with_explicit,
)
from autoshard.frontend.module_scopes import nnx_module_scopes
from autoshard.frontend.modules import Modules, modules_of
from autoshard.frontend.operand_paths import OperandPaths, operand_paths
from autoshard.frontend.program_record import ProgramRecord
from autoshard.frontend.signature import (
    Call,
    FlatTree,
    Results,
    argument_positions,
    flat_function,
    flatten_call,
)
from autoshard.frontend.simplified import simplified
from autoshard.frontend.trace_errors import does_not_trace, speaks_of_axis_types
from autoshard.frontend.user_shardings import read_shardings
from autoshard.listed import listed
from autoshard.sharding import Mesh, Sharding

_discharged = getattr(discharge, "discharge_state2", discharge.discharge_state)
"""Of a closed jaxpr; JAX 0.9 has another name for it, and by the first one another function."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A function traced to one jaxpr over flat arrays.

    Args:
        jaxpr: Without dead code and equal equations; every argument is kept, used or not.
        call: The arguments it was traced with.
        results: What it returns, as abstract arrays.
        updated: Pairs of a flat argument and the result that replaces it in an object.
        record: What a plan keeps to know the program again.
        stage: JAX's own form of it, for lowering.
        fixed_results: By flat result, the sharding that its type fixes along Explicit axes.
    """

    jaxpr: ClosedJaxpr
    call: Call
    results: FlatTree
    updated: tuple[tuple[int, int], ...]
    record: ProgramRecord
    stage: jax.stages.Traced
    fixed_results: tuple[Sharding | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """A user's function as one jaxpr, as a tagged module, and in the user's names.

    Args:
        jaxpr: Flat in and out, untagged.
        in_tree: Of `(positional arguments, keyword arguments)`, array leaves only.
        out_tree: Of the result, array leaves only.
        in_names: By flat argument, for example `state['params']['w1']`.
        out_names: By flat result, for example `result[0]['params']['w1']`.
        in_avals: Types of the flat arguments.
        out_avals: Types of the flat results.
        donated: Whether the caller gives up each flat argument.
        takes_objects: Whether there are Flax NNX objects among the arguments; their states stand
            in `in_tree`; `out_tree` is of the result and of what replaces some of their arrays.
        updated: Pairs of a flat argument and the result that replaces it in an object.
        captured_names: Arrays the function closes over, `captured[0]` and so on. They come before
            the arguments in the module's main, as `jax.jit` passes them; their paths are `const.0`
            and so on.
        captured_avals: Their types.
        modules: Tagged StableHLO.
        operand_paths: By equation path, the path of each operand, or None.
        source_by_equation: By equation path, `file.py:12 (function)`, or "".
        user_in: The user's word on each flat argument; None is free.
        user_out: Likewise for each flat result.
        record: What a plan keeps to know the program again; its `fingerprint` is equal for equal
            programs.
        platform: The platform the module was lowered for.
        notes: What was done otherwise than asked, for the report.
        results: What the function returns, as abstract arrays; None for a module.
        annotated: By flat argument, the sharding it carries, which nobody insists on.
    """

    jaxpr: ClosedJaxpr
    in_tree: PyTreeDef
    out_tree: PyTreeDef
    in_names: tuple[str, ...]
    out_names: tuple[str, ...]
    in_avals: tuple[Any, ...]
    out_avals: tuple[Any, ...]
    donated: tuple[bool, ...]
    takes_objects: bool
    updated: tuple[tuple[int, int], ...]
    captured_names: tuple[str, ...]
    captured_avals: tuple[Any, ...]
    modules: Modules
    operand_paths: OperandPaths
    source_by_equation: dict[str, str]
    user_in: tuple[Sharding | None, ...]
    user_out: tuple[Sharding | None, ...]
    record: ProgramRecord
    platform: str
    notes: tuple[str, ...]
    results: FlatTree | None = None
    annotated: tuple[Sharding | None, ...] = ()

    @property
    def module(self) -> bytes:
        """Tagged StableHLO as MLIR bytecode, locations included; lowered once it is asked for."""
        return self.modules.whole

    @property
    def fingerprint(self) -> str:
        return self.record.fingerprint

    @property
    def asked(self) -> tuple[Any, ...]:
        """All that a plan of the program follows from, as plain values; source lines included."""
        user = (self.user_in, self.user_out, self.annotated, self.donated, self.updated)
        return (self.record, self.source_by_equation, *user, self.platform, self.notes)


def trace(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    mesh: Mesh,
    context: AbstractMesh | None = None,
    devices: jax.sharding.Mesh | None = None,
    axes: ArgumentAxes | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    platform: str = "tpu",
    rewrite: Callable[[ClosedJaxpr], ClosedJaxpr] | None = None,
) -> Traced:
    """Trace a function once and lower it with every value tagged by its path.

    Nothing is computed and no device of the mesh is needed. A function that is already `jax.jit`-ed
    is traced as any other: shardings of that call stay in the program as written, but which
    arguments it donates or treats as static is said here.

    Args:
        fn: The user's function.
        args: Positional arguments: pytrees of arrays or `jax.ShapeDtypeStruct`s. Leaves that are no
            arrays (functions in an Equinox module, strings) are static.
        kwargs: Keyword arguments, likewise.
        mesh: What the shardings refer to.
        context: The JAX mesh to trace under, its axes of any type; by default the abstract form of
            `mesh`.
        devices: The JAX mesh that `mesh` was read from, if it has devices. Meshes of shardings and
            of the program may have the same ones in another order.
        axes: Explicit axes in the types of arguments; by default those in the types of `args`.
        in_shardings: A pytree prefix for the non-static positional arguments, of `None` (free),
            `PartitionSpec`, `NamedSharding` or autoshard `Sharding`. Here, other than in `jax.jit`,
            `PartitionSpec.UNCONSTRAINED` may leave single dimensions free.
        out_shardings: Likewise, for the result.
        donate_argnums: Positional arguments the caller gives up.
        static_argnums: Positional arguments that are not arrays.
        platform: Decides which lowering rules are used, "tpu" or "cpu". An op without a lowering
            for it makes the module be lowered for the other one instead, with a note.
        rewrite: Makes the program to plan of the one that was traced, with the same arguments and
            results; the record is of the traced one.

    Raises:
        ExportError: The function does not trace or lower.
        InputError: Arguments or shardings that do not match the function.
        ShardingError: A user sharding that does not fit its array.
    """
    call = flatten_call(fn, args, dict(kwargs or {}), static_argnums)
    order = DeviceOrder.of(mesh, devices)
    context = context or abstract_mesh(mesh)
    notes = _placement_notes(call, context)
    in_tree, in_names = call.arguments.dynamic_tree, call.arguments.names
    user_in = read_shardings(
        None if in_shardings is None else (_as_tuple(in_shardings), None),
        in_tree,
        order,
        in_names,
        [abstract_leaf(leaf).shape for leaf in call.arguments.leaves],
        "in_shardings",
    )
    if axes is None:
        axes = argument_axes(call.arguments.leaves, context)
    program = trace_call(call, context, order, axes)
    if rewrite is not None:
        program = replace(program, jaxpr=rewrite(program.jaxpr))
    in_avals = tuple(var.aval for var in program.jaxpr.jaxpr.invars)
    out_avals = tuple(atom.aval for atom in program.jaxpr.jaxpr.outvars)
    out_tree, out_names = program.results.dynamic_tree, program.results.names
    user_out = read_shardings(
        (out_shardings, None) if call.arguments.objects else out_shardings,
        out_tree,
        order,
        out_names,
        [aval.shape for aval in out_avals],
        "out_shardings",
    )
    modules, lowered_for, platform_notes = modules_of(
        program.jaxpr, program.stage, call, abstract_mesh(mesh), platform
    )
    return Traced(
        jaxpr=program.jaxpr,
        in_tree=in_tree,
        out_tree=out_tree,
        in_names=in_names,
        out_names=out_names,
        in_avals=in_avals,
        out_avals=out_avals,
        donated=donated_leaves(call, program.updated, donate_argnums),
        takes_objects=call.arguments.objects is not None,
        updated=program.updated,
        captured_names=tuple(f"captured[{i}]" for i in range(len(program.jaxpr.consts))),
        captured_avals=tuple(var.aval for var in program.jaxpr.jaxpr.constvars),
        modules=modules,
        operand_paths=operand_paths(program.jaxpr.jaxpr, abstract_mesh(mesh)),
        source_by_equation=equation_sources(program.jaxpr),
        user_in=tuple(map(_first_said, user_in, _fixed_arguments(program, context))),
        user_out=tuple(map(_first_said, user_out, program.fixed_results)),
        record=program.record,
        platform=lowered_for,
        notes=(*notes, *platform_notes),
        annotated=annotated_shardings(call.arguments.leaves, in_tree, order),
        results=program.results,
    )


def _as_tuple(in_shardings: Any) -> Any:
    return tuple(in_shardings) if isinstance(in_shardings, list) else in_shardings


def trace_call(
    call: Call, context: AbstractMesh, order: DeviceOrder, axes: ArgumentAxes = ()
) -> Program:
    """Trace a call to a jaxpr for Auto axes without dead code, always under the same mesh.

    Planning and applying both go through here, so that equal programs get equal paths. A program
    that does not trace under the axis types of the mesh is traced under those it does trace under.

    Args:
        call: What to trace.
        context: The JAX mesh to trace under, its axes of any type.
        axes: Those in the types of arguments, where axes are Explicit.
        order: The devices to run on; shardings on meshes in another order are said in it.

    Raises:
        ExportError: The function does not trace.
        InputError: A sharding in the function is on other devices, or the function writes to its
            arguments otherwise than to the arrays of NNX objects.
    """
    avals = [abstract_leaf(leaf) for leaf in call.arguments.leaves]
    if len(axes) != len(avals):  # of a plan for other arguments, which is told after the trace
        axes = ()
    stage, found, context = _first_that_traces(call, avals, context, axes)
    _refuse_ordered_effects(call, stage)
    assert found.flat is not None
    results = replace(found.flat, leaves=tuple(map(abstract_leaf, stage.jaxpr.out_avals)))
    first_update = len(results.leaves) - len(found.updated)
    updated = tuple((position, first_update + i) for i, position in enumerate(found.updated))
    closed = _with_captured_consts(stage, len(avals))
    explicit = () if context is None else context.explicit_axes
    fixed: tuple[Sharding | None, ...] = (None,) * len(closed.jaxpr.outvars)
    if explicit:
        assert context is not None
        fixed = tuple(fixed_by_type(typed_axes(var.aval), context) for var in closed.jaxpr.outvars)
    if explicit or has_reshards(closed.jaxpr):
        closed = without_explicit_types(closed)
    closed = order.rewrite(closed)
    record = replace(
        record_program(closed, call, results),
        explicit_axes=explicit,
        argument_axes=axes if any(axes) and explicit else (),
    )
    return Program(closed, call, results, updated, record, stage, fixed)


def _first_that_traces(
    call: Call, avals: Sequence[Any], context: AbstractMesh, axes: ArgumentAxes
) -> tuple[jax.stages.Traced, Results, AbstractMesh | None]:
    """The trace under a mesh; else under its axes as Auto, as Explicit, or under no mesh."""
    try:
        return (*_stage(call, typed(avals, axes, context), context), context)
    except InputError:
        raise
    except Exception as error:
        for other in _other_contexts(context, error):
            with contextlib.suppress(Exception):
                return (*_stage(call, avals, other), other)
        raise does_not_trace(call, error) from error


def _other_contexts(context: AbstractMesh, error: Exception) -> Iterator[AbstractMesh | None]:
    if context.explicit_axes:
        yield as_auto(context)
    elif speaks_of_axis_types(error):
        yield with_explicit(context, context.axis_names)
    if "context mesh" in str(error):
        # `shard_map` refuses a mesh of its own under another one; without any it is accepted.
        yield None


def _fixed_arguments(program: Program, context: AbstractMesh) -> tuple[Sharding | None, ...]:
    """By flat argument, the sharding that its type fixes."""
    axes = program.record.argument_axes
    if not axes:
        return (None,) * len(program.jaxpr.jaxpr.invars)
    return tuple(fixed_by_type(of_argument, context) for of_argument in axes)


def _first_said(asked: Sharding | None, fixed: Sharding | None) -> Sharding | None:
    return fixed if asked is None else asked


def _refuse_ordered_effects(call: Call, stage: jax.stages.Traced) -> None:
    """Refuse effects in order: JAX runs them on one device only."""
    if found := sorted(map(str, ordered_effects.filter_in(stage.jaxpr.effects))):
        raise ExportError(
            f"`{call.name}` has effects in a fixed order ({', '.join(found)}), which no plan"
            " keeps: JAX has them on one device only",
            where=f"`{call.name}`",
            fix="call jax.debug.print, jax.debug.callback and io_callback with ordered=False;"
            " for one device jax.jit is all it takes",
        )


def _with_captured_consts(stage: jax.stages.Traced, num_args: int) -> ClosedJaxpr:
    """The traced jaxpr, simplified, captured arrays as constants.

    `jax.jit` passes such arrays as leading arguments and keeps them in `_consts` (private; checked
    on jax 0.10.2).
    """
    hoisted = stage.jaxpr
    if internal_mutable_array_effect in hoisted.effects:
        # As lowering would do later; a constraint cannot stand between updates of a reference.
        hoisted = _discharged(hoisted)
    live = simplified(hoisted.jaxpr)
    num_captured = len(live.invars) - num_args
    jaxpr = live.replace(
        constvars=[*live.constvars, *live.invars[:num_captured]], invars=live.invars[num_captured:]
    )
    return ClosedJaxpr(jaxpr, [*hoisted.consts, *stage._consts])


def _stage(
    call: Call, avals: Sequence[Any], context: AbstractMesh | None
) -> tuple[jax.stages.Traced, Results]:
    flat, results = flat_function(call)
    with mesh_context(context), nnx_module_scopes():
        return jax.jit(flat, keep_unused=True).trace(*avals), results


def abstract_leaf(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape, type and weak type of an argument, without where it lies.

    Raises:
        InputError: A number or an array that no type of JAX holds.
    """
    is_abstract = isinstance(leaf, (jax.ShapeDtypeStruct, jax.core.AbstractValue))
    try:
        aval = leaf if is_abstract else jax.typeof(leaf)
    except OverflowError as error:
        raise InputError(
            str(error), where="an argument of the call", fix="pass a smaller number, or an array"
        ) from error
    except TypeError as error:
        raise InputError(
            f"an array of {getattr(leaf, 'dtype', type(leaf).__name__)}s is none to JAX",
            where="an argument of the call",
            fix="pass arrays of numbers, and other values in static_argnums",
        ) from error
    return jax.ShapeDtypeStruct(
        aval.shape, aval.dtype, weak_type=bool(getattr(aval, "weak_type", False))
    )


def donated_leaves(
    call: Call, updated: Sequence[tuple[int, int]], donate_argnums: int | Sequence[int]
) -> tuple[bool, ...]:
    """Per flat argument, whether its positional argument is given up.

    An array of an NNX object that the function does not replace is not: the object goes on with it.

    Raises:
        InputError: A number is out of range.
    """
    num_static = len(call.static_arguments)
    num_args = len(call.arguments.num_by_root) - call.num_keywords + num_static
    donated = set(argument_positions(donate_argnums, num_args, "donate_argnums", call.fn))
    static = {position for position, _ in call.static_arguments}
    traced = [position for position in range(num_args) if position not in static]
    flags: list[bool] = []
    for place, num_leaves in enumerate(call.arguments.num_by_root):
        given = place < len(traced) and traced[place] in donated
        flags += [given] * num_leaves
    kept = {*call.arguments.object_leaves} - {argument for argument, _ in updated}
    return tuple(given and leaf not in kept for leaf, given in enumerate(flags))


def _placement_notes(call: Call, context: AbstractMesh) -> tuple[str, ...]:
    leaves = call.arguments.leaves
    axes = argument_axes(leaves, context) or ((),) * len(leaves)
    placed = [
        name
        for name, leaf, fixed in zip(call.arguments.names, leaves, axes, strict=True)
        if isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding is not None and not fixed
    ]
    if not placed:
        return ()
    return (
        f"the shardings of the ShapeDtypeStructs of {listed(placed, 3)} are not taken as"
        " constraints; pass in_shardings to fix them",
    )
