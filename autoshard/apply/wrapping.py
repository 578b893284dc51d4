"""A user's function with the constraints of a plan inside."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from autoshard.apply.axis_types import (
    explicit_mesh_of,
    run_under_auto_axes,
)
from autoshard.apply.constrain import constrain_jaxpr
from autoshard.apply.named_shardings import (
    AnyJaxMesh,
    JaxMesh,
    as_jax_mesh,
)
from autoshard.apply.sound_slices import with_sound_slices
from autoshard.errors import PlanError
from autoshard.frontend.fingerprint import canonical_lines
from autoshard.frontend.meshes import with_explicit
from autoshard.frontend.program_record import ProgramRecord
from autoshard.frontend.signature import (
    Call,
    FlatTree,
    flatten_call,
)
from autoshard.frontend.trace import Program, Traced, abstract_leaf, trace_call
from autoshard.loops.dot_schedule import DotSchedule
from autoshard.loops.on_examples import OnExamples
from autoshard.rewriting import AS_WRITTEN, Rewriting
from autoshard.sharding import Sharding


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A program with its constraints in place, ready to be evaluated on flat arrays."""

    results: FlatTree
    updated: tuple[tuple[int, int], ...]
    run: Callable[..., Any]


@dataclass(eq=False)
class WrappedFunction:
    """A function whose calls evaluate its constrained program, one per abstract signature."""

    fn: Callable[..., Any]
    constraints: Mapping[str, Sharding]
    mesh: JaxMesh
    record: ProgramRecord | None
    static_argnums: tuple[int, ...]
    schedules: Mapping[str, DotSchedule | OnExamples] = field(default_factory=dict)
    rewriting: Rewriting = AS_WRITTEN
    known: Traced | None = None
    out_shardings: tuple[Sharding | None, ...] = ()
    prepared: dict[Hashable, Prepared] = field(default_factory=dict)

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.fn, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = flatten_call(self.fn, args, kwargs, self.static_argnums)
        prepared, leaves = self.prepare(call), call.arguments.leaves
        explicit = explicit_mesh_of(leaves)
        results = (
            prepared.run(*leaves)
            if explicit is None
            else run_under_auto_axes(
                prepared.run, leaves, explicit, prepared.results.leaves, self.out_shardings
            )
        )
        return call.finish(prepared.results.rebuild(results))

    def prepare(self, call: Call) -> Prepared:
        key = call_signature(call)
        found = None if key is None else self.prepared.get(key)
        if found is None:
            program: Program | Traced
            if self.known is not None:
                program, closed = self.known, self.known.jaxpr
            else:
                program = self.trace(call)
                self.check(program)
                closed = self.rewriting.of(program.jaxpr)
            constrained = constrain_jaxpr(closed, self.constraints, self.mesh, self.schedules)
            runnable = with_sound_slices(constrained, self.mesh.abstract.size)
            assert program.results is not None  # of a function, not of a module
            found = Prepared(program.results, program.updated, _evaluator(runnable, call.name))
            # A program that closes over tracers is only good inside the trace they belong to.
            if key is not None and not any(
                isinstance(const, jax.core.Tracer) for const in program.jaxpr.consts
            ):
                self.prepared[key] = found
        return found

    def trace(self, call: Call) -> Program:
        """The program under the axis types it was planned with; else under those of the mesh."""
        if self.record is None:
            return trace_call(call, self.mesh.given.abstract_mesh, self.mesh.order)
        context = with_explicit(self.mesh.abstract, self.record.explicit_axes)
        return trace_call(call, context, self.mesh.order, self.record.argument_axes)

    def check(self, program: Program) -> None:
        """Refuse a program other than the one the constraints were made for.

        Raises:
            PlanError: It differs; the message says where first.
        """
        if self.record is None or self.record.fingerprint == program.record.fingerprint:
            return
        reason = self.record.difference(program.record, canonical_lines(program.jaxpr))
        raise PlanError(
            f"the plan was made for another program: {reason}",
            where=f"`{program.call.name}`, fingerprint {program.record.fingerprint[:12]}, planned"
            f" {self.record.fingerprint[:12]}",
            fix="use the function and argument types the plan was made with, or plan again",
        )


def call_signature(call: Call) -> Hashable | None:
    """What a trace depends on besides the function; None when part of it cannot be compared."""
    avals = tuple(
        (aval.shape, aval.dtype, aval.weak_type)
        for aval in map(abstract_leaf, call.arguments.leaves)
    )
    arguments = call.arguments
    graph = None if arguments.objects is None else arguments.objects.graph
    key = (arguments.tree, avals, arguments.statics, graph, call.static_arguments)
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _evaluator(closed: ClosedJaxpr, name: str) -> Callable[..., Any]:
    def evaluate(*leaves: Any) -> Any:
        return tuple(jaxpr_as_fun(closed)(*leaves))

    evaluate.__name__ = evaluate.__qualname__ = name
    # Under another trace the equations go straight into it; called on arrays it is one program.
    jitted: Callable[..., Any] = jax.jit(evaluate, inline=True)
    return jitted


def wrap(
    fn: Callable[..., Any],
    constraints: Mapping[str, Sharding],
    mesh: AnyJaxMesh,
    *,
    record: ProgramRecord | None = None,
    static_argnums: int | Sequence[int] = (),
    schedules: Mapping[str, DotSchedule | OnExamples] | None = None,
    rewriting: Rewriting = AS_WRITTEN,
    known: Traced | None = None,
    out_shardings: Sequence[Sharding | None] = (),
) -> WrappedFunction:
    """The function with the constraints of a plan inside.

    Can be called on arrays, and under `jax.jit`, `jax.grad`, `jax.vmap`, `jax.eval_shape` and any
    other transformation. `custom_jvp` and `custom_vjp` functions inside keep their derivative
    rules, so a constraint in the body of one acts where it is evaluated, not where its rule is.

    The function is traced on its first call for each combination of argument shapes and types, as
    `jax.jit` does.

    Args:
        fn: The function the constraints were made for.
        constraints: By path; see `constrain_jaxpr`.
        mesh: The mesh to run on.
        record: The program the constraints belong to; None skips the check.
        static_argnums: As given when planning.
        schedules: By path of an equation; see `constrain_jaxpr`.
        rewriting: What becomes of the program before it gets the constraints.
        known: Trace of the only signature that it will be called with; None traces the calls.
        out_shardings: By flat result, for their types where arguments have Explicit axes in theirs.

    Raises:
        PlanError: On a call, when the traced program is not the recorded one.
        ExportError: On a call, when the function does not trace.
    """
    return WrappedFunction(
        fn,
        dict(constraints),
        as_jax_mesh(mesh),
        record,
        argument_numbers(static_argnums),
        dict(schedules or {}),
        rewriting,
        known,
        tuple(out_shardings),
    )


def argument_numbers(numbers: int | Sequence[int]) -> tuple[int, ...]:
    """One number, or several, as `jax.jit` takes them."""
    return (numbers,) if isinstance(numbers, int) else tuple(numbers)
