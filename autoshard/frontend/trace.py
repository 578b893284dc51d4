"""From a user's function and abstract arguments to one jaxpr and its tagged StableHLO module."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

# Private; checked on jax 0.10.2.
from jax._src.core import internal_mutable_array_effect
from jax._src.effects import ordered_effects
from jax._src.interpreters.partial_eval import dce_jaxpr
from jax._src.state.discharge import discharge_state
from jax.extend.core import ClosedJaxpr
from jax.sharding import AbstractMesh
from jax.tree_util import PyTreeDef

from autoshard.errors import ExportError, InputError
from autoshard.frontend.dangling import honour_dangling
from autoshard.frontend.device_orders import DeviceOrder
from autoshard.frontend.fingerprint import record_program
from autoshard.frontend.meshes import abstract_mesh, mesh_context
from autoshard.frontend.parameter_modules import module_of_parameter, with_parameter_modules
from autoshard.frontend.program_record import ProgramRecord
from autoshard.frontend.refused_borders import reused_manual_axes
from autoshard.frontend.signature import (
    Call,
    FlatTree,
    Results,
    argument_positions,
    flat_function,
    flatten_call,
)
from autoshard.frontend.tagging import tag_jaxpr
from autoshard.frontend.trace_errors import does_not_lower, does_not_trace
from autoshard.frontend.user_shardings import read_shardings
from autoshard.sharding import Mesh, Sharding


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A function traced to one jaxpr over flat arrays.

    Args:
        jaxpr: Without dead code; every argument is kept, used or not.
        call: The arguments it was traced with.
        results: What it returns, as abstract arrays.
        updated: Pairs of a flat argument and the result that replaces it in an object.
        record: What a plan keeps to know the program again.
        stage: JAX's own form of it, for lowering.
    """

    jaxpr: ClosedJaxpr
    call: Call
    results: FlatTree
    updated: tuple[tuple[int, int], ...]
    record: ProgramRecord
    stage: jax.stages.Traced


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
        module: Tagged StableHLO as MLIR bytecode, locations included.
        operand_paths: By equation path, the path of each operand, or None.
        source_by_equation: By equation path, `file.py:12 (function)`, or "".
        user_in: The user's word on each flat argument; None is free.
        user_out: Likewise for each flat result.
        record: What a plan keeps to know the program again; its `fingerprint` is equal for equal
            programs.
        platform: The platform the module was lowered for.
        notes: What was done otherwise than asked, for the report.
        results: What the function returns, as abstract arrays; None for a module.
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
    module: bytes
    operand_paths: dict[str, tuple[str | None, ...]]
    source_by_equation: dict[str, str]
    user_in: tuple[Sharding | None, ...]
    user_out: tuple[Sharding | None, ...]
    record: ProgramRecord
    platform: str
    notes: tuple[str, ...]
    results: FlatTree | None = None

    @property
    def fingerprint(self) -> str:
        return self.record.fingerprint

    @property
    def asked(self) -> tuple[Any, ...]:
        """All that a plan of the program follows from, as plain values; source lines included."""
        user = (self.user_in, self.user_out, self.donated, self.updated)
        return (self.record, self.source_by_equation, *user, self.platform, self.notes)


def trace(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    mesh: Mesh,
    context: AbstractMesh | None = None,
    devices: jax.sharding.Mesh | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    platform: str = "tpu",
    rewrite: Callable[[ClosedJaxpr], ClosedJaxpr] | None = None,
) -> Traced:
    """Trace a function once and lower it with every value tagged by its path.

    Nothing is computed and no device of the mesh is needed. A function that is already `jax.jit`-ed
    is traced as any other: shardings of that call stay in the program as written, but JAX does not
    tell which arguments it donates or treats as static, so say so here.

    Args:
        fn: The user's function.
        args: Positional arguments: pytrees of arrays or `jax.ShapeDtypeStruct`s. Leaves that are no
            arrays (functions in an Equinox module, strings) are static.
        kwargs: Keyword arguments, likewise.
        mesh: What the shardings refer to.
        context: The JAX mesh to trace under; by default the abstract form of `mesh`.
        devices: The JAX mesh that `mesh` was read from, if it has devices. Meshes of shardings and
            of the program may have the same ones in another order.
        in_shardings: A pytree prefix for the non-static positional arguments, of `None` (free),
            `PartitionSpec`, `NamedSharding` or autoshard `Sharding`. Here, other than in `jax.jit`,
            `PartitionSpec.UNCONSTRAINED` may leave single dimensions free.
        out_shardings: Likewise, for the result.
        donate_argnums: Positional arguments the caller gives up.
        static_argnums: Positional arguments that are not arrays.
        platform: Decides which lowering rules are used. An op without a lowering for it makes the
            module be lowered for "cpu" instead, with a note.
        rewrite: Makes the program to plan of the one that was traced, with the same arguments and
            results; the record is of the traced one.

    Raises:
        ExportError: The function does not trace or lower.
        InputError: Arguments or shardings that do not match the function.
        ShardingError: A user sharding that does not fit its array.
    """
    call = flatten_call(fn, args, dict(kwargs or {}), static_argnums)
    notes = _placement_notes(call)
    order = DeviceOrder.of(mesh, devices)
    program = trace_call(call, context or abstract_mesh(mesh), order)
    if rewrite is not None:
        program = replace(program, jaxpr=rewrite(program.jaxpr))
    in_avals = tuple(var.aval for var in program.jaxpr.jaxpr.invars)
    out_avals = tuple(atom.aval for atom in program.jaxpr.jaxpr.outvars)
    in_tree, out_tree = call.arguments.dynamic_tree, program.results.dynamic_tree
    in_names, out_names = call.arguments.names, program.results.names
    user_in = read_shardings(
        None if in_shardings is None else (_as_tuple(in_shardings), None),
        in_tree,
        order,
        in_names,
        [aval.shape for aval in in_avals],
        "in_shardings",
    )
    user_out = read_shardings(
        (out_shardings, None) if call.arguments.objects else out_shardings,
        out_tree,
        order,
        out_names,
        [aval.shape for aval in out_avals],
        "out_shardings",
    )
    named = with_parameter_modules(
        program.jaxpr,
        {leaf: module_of_parameter(in_names[leaf]) for leaf in call.arguments.object_leaves},
    )
    tagged = tag_jaxpr(named, abstract_mesh(mesh))
    with mesh_context(None):
        lowered, platform, platform_notes = _lower(program.stage, tagged.jaxpr, platform, call)
    return Traced(
        jaxpr=named,
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
        module=_bytecode(lowered),
        operand_paths=tagged.operand_paths,
        source_by_equation=tagged.source_by_equation,
        user_in=user_in,
        user_out=user_out,
        record=program.record,
        platform=platform,
        notes=(*notes, *platform_notes),
        results=program.results,
    )


def _as_tuple(in_shardings: Any) -> Any:
    return tuple(in_shardings) if isinstance(in_shardings, list) else in_shardings


def trace_call(call: Call, context: AbstractMesh, order: DeviceOrder) -> Program:
    """Trace a call to a jaxpr without dead code, always under the same mesh.

    Planning and applying both go through here, so that equal programs get equal paths.

    Args:
        call: What to trace.
        context: The JAX mesh to trace under.
        order: The devices to run on; shardings on meshes in another order are said in it.

    Raises:
        ExportError: The function does not trace.
        InputError: A sharding in the function is on other devices, or the function writes to its
            arguments otherwise than to the arrays of NNX objects.
    """
    avals = [abstract_leaf(leaf) for leaf in call.arguments.leaves]
    try:
        try:
            stage, found = _stage(call, avals, context)
        except ValueError as error:
            if "context mesh" not in str(error):
                raise
            # `shard_map` refuses a mesh of its own under another one; without any it is accepted.
            try:
                stage, found = _stage(call, avals, None)
            except Exception:
                raise error from None
    except InputError:
        raise
    except Exception as error:
        raise does_not_trace(call, error) from error
    _refuse_ordered_effects(call, stage)
    assert found.flat is not None
    results = replace(found.flat, leaves=tuple(map(abstract_leaf, stage.jaxpr.out_avals)))
    first_update = len(results.leaves) - len(found.updated)
    updated = tuple((position, first_update + i) for i, position in enumerate(found.updated))
    closed = order.rewrite(_with_captured_consts(stage, len(avals)))
    return Program(closed, call, results, updated, record_program(closed, call, results), stage)


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
    """The traced jaxpr without dead code, arrays the function closes over as its constants.

    A sharding constraint whose result is dropped is no dead code: it shards the value itself.

    `jax.jit` passes such arrays as leading arguments and keeps them in `_consts` (private; checked
    on jax 0.10.2).
    """
    hoisted = stage.jaxpr
    if internal_mutable_array_effect in hoisted.effects:
        # As lowering would do later; a constraint cannot stand between updates of a reference.
        hoisted = discharge_state(hoisted)
    live, _ = dce_jaxpr(honour_dangling(hoisted.jaxpr), True, instantiate=True)
    num_captured = len(live.invars) - num_args
    jaxpr = live.replace(
        constvars=[*live.constvars, *live.invars[:num_captured]], invars=live.invars[num_captured:]
    )
    return ClosedJaxpr(jaxpr, [*hoisted.consts, *stage._consts])


def _stage(
    call: Call, avals: Sequence[Any], context: AbstractMesh | None
) -> tuple[jax.stages.Traced, Results]:
    flat, results = flat_function(call)
    with mesh_context(context):
        return jax.jit(flat, keep_unused=True).trace(*avals), results


def abstract_leaf(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape, type and weak type of an argument, without where it lies."""
    is_abstract = isinstance(leaf, (jax.ShapeDtypeStruct, jax.core.AbstractValue))
    aval = leaf if is_abstract else jax.typeof(leaf)
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


def _lower(
    stage: jax.stages.Traced, tagged: ClosedJaxpr, platform: str, call: Call
) -> tuple[jax.stages.Lowered, str, tuple[str, ...]]:
    """Lower the tagged jaxpr in place of the one `stage` was traced to, with no second trace."""
    try:
        return _with_jaxpr(stage, tagged).lower(lowering_platforms=(platform,)), platform, ()
    except Exception as error:
        if (reused := reused_manual_axes(stage.jaxpr.jaxpr)) is not None:
            raise reused from error
        if platform == "cpu":
            raise does_not_lower(call, platform, error) from error
        first = error
    try:
        lowered = _with_jaxpr(stage, tagged).lower(lowering_platforms=("cpu",))
    except Exception as error:
        raise does_not_lower(call, platform, first) from error
    reason = str(first).strip().splitlines()[0] if str(first).strip() else type(first).__name__
    return lowered, "cpu", (f"lowered for cpu, because lowering for {platform} failed: {reason}",)


def _with_jaxpr(stage: jax.stages.Traced, jaxpr: ClosedJaxpr) -> jax.stages.Traced:
    """A copy of a traced stage that holds another jaxpr of the same type, captured arrays first.

    `_params` and `_lojax` are private to `jax.stages.Traced`; checked on jax 0.10.2.
    """
    other = copy.copy(stage)
    num_own = len(stage.jaxpr.consts)
    constvars = jaxpr.jaxpr.constvars
    hoisted = jaxpr.jaxpr.replace(
        constvars=constvars[:num_own], invars=[*constvars[num_own:], *jaxpr.jaxpr.invars]
    )
    other._params = {**stage._params, "jaxpr": ClosedJaxpr(hoisted, stage.jaxpr.consts)}
    other._lojax = None
    return other


def _bytecode(lowered: jax.stages.Lowered) -> bytes:
    buffer = io.BytesIO()
    module = lowered.compiler_ir("stablehlo")
    assert module is not None
    module.operation.write_bytecode(file=buffer)
    return buffer.getvalue()


def _placement_notes(call: Call) -> tuple[str, ...]:
    placed = [
        name
        for name, leaf in zip(call.arguments.names, call.arguments.leaves, strict=True)
        if isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding is not None
    ]
    if not placed:
        return ()
    shown = ", ".join(placed[:3]) + (f" and {len(placed) - 3} more" if len(placed) > 3 else "")
    return (
        f"the shardings of the ShapeDtypeStructs of {shown} are not taken as constraints; pass"
        " in_shardings to fix them",
    )
