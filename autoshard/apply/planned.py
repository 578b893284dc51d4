"""A plan one can act on: its shardings in JAX's terms, and the function run under it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
from jax.sharding import NamedSharding

from autoshard.apply.against_propagation import against_propagation
from autoshard.apply.minimal_set import MinimalSet, minimal_constraints
from autoshard.apply.named_shardings import JaxMesh, flat_named_shardings
from autoshard.apply.placing import init, shard
from autoshard.apply.propagation import Propagator
from autoshard.apply.stablehlo.exported import exported
from autoshard.apply.stablehlo.module_file import is_module_file
from autoshard.apply.stablehlo.plan_module import annotated_module
from autoshard.apply.stablehlo.planned_text import PLANNED, planned_text
from autoshard.apply.stablehlo.platform_module import AS_WRITTEN, lowered_for
from autoshard.apply.wrapping import PlannedFunction, jit_with, wrap
from autoshard.collectives import ModulePrices
from autoshard.errors import InputError, PlanError
from autoshard.frontend.fingerprint import canonical_lines
from autoshard.frontend.key_arrays import with_word_dims
from autoshard.frontend.meshes import concrete_mesh
from autoshard.frontend.trace import Traced, trace
from autoshard.plan import Miss, PlanData, PlannedTensor
from autoshard.plan_json import load_plan_data, save_plan
from autoshard.propagation_comparison import PropagationComparison
from autoshard.report import format_program, format_report
from autoshard.sharding import Mesh, Sharding, is_equivalent

_NOT_MINIMAL = (
    "the search for the smallest set of constraints was cut short: some of them may be superfluous"
)


def propagator_for(traced: Traced, mesh: Mesh) -> Propagator:
    """Shardy's propagation over a traced program."""
    return Propagator(
        traced.module,
        mesh,
        num_arguments=len(traced.in_avals),
        operand_paths=traced.operand_paths,
    )


@dataclass(eq=False)
class Plan:
    """A decided plan and, if known, the function it was made for.

    Args:
        data: What was decided, as plain data.
        fn: The function planned; None for a plan read from a file without one.
        traced: Its trace; None for a plan read from a file.
        mesh: The JAX mesh to run on; None to take the devices of this machine when needed.
        donate_argnums: As given when planning.
        static_argnums: As given when planning.
        price: Predicted seconds of a step in which some values, by path, are sharded otherwise;
            None where nobody can tell.
        prices: Of single collectives and ops, for the export steps that choose; None counts the
            bytes that a device receives.
    """

    data: PlanData
    fn: Callable[..., Any] | None = None
    traced: Traced | None = None
    mesh: jax.sharding.Mesh | None = None
    donate_argnums: tuple[int, ...] = ()
    static_argnums: tuple[int, ...] = ()
    price: Callable[[Mapping[str, Sharding]], float | None] | None = None
    prices: ModulePrices | None = None
    _jax_mesh: JaxMesh | None = field(default=None, init=False)

    # -- what was decided -----------------------------------------------------------------------

    @property
    def constraints(self) -> Mapping[str, Sharding]:
        """The minimal set of constraints, by path, from which propagation reproduces the plan.

        Where the search for it was cut short, a note of the plan says so. Computed by Shardy's
        propagation on first use, then kept (and saved with the plan).

        Raises:
            PlanError: No plan was found, or the plan was read from a file written without them.
        """
        self.data.require_feasible()
        if self.data.constraints is None:
            if self.traced is None:
                raise PlanError(
                    "the plan holds no constraints, and without its program none can be computed",
                    where=f"plan for {self.data.function}",
                    fix="save it again with plan.save(...) where it was made",
                )
            found = self._reduce(self.traced)
            self.data = replace(
                self.data,
                constraints=found.constraints,
                misses=tuple(
                    Miss(
                        path=miss.path,
                        planned=miss.planned,
                        propagated=miss.propagated,
                        extra_seconds=self._extra_seconds(miss.path, miss.propagated),
                    )
                    for miss in found.misses
                ),
                notes=(*self.data.notes, *(() if found.is_minimal else (_NOT_MINIMAL,))),
                stage_seconds={**self.data.stage_seconds, "constraints": found.seconds},
            )
        assert self.data.constraints is not None
        return self.data.constraints

    def _extra_seconds(self, path: str, sharding: Sharding) -> float | None:
        """What one value sharded otherwise than planned costs; None where nobody can tell."""
        seconds = None if self.price is None else self.price({path: sharding})
        return None if seconds is None else seconds - self.data.seconds

    def _reduce(self, traced: Traced) -> MinimalSet:
        inputs = tuple(
            with_word_dims(tensor.sharding, aval)
            for tensor, aval in zip(self.data.arguments, traced.in_avals, strict=True)
        )
        outputs = tuple(
            with_word_dims(tensor.sharding, aval)
            for tensor, aval in zip(self.data.results, traced.out_avals, strict=True)
        )
        propagator = propagator_for(traced, self.data.mesh)
        return minimal_constraints(
            propagator.propagate,
            self.data.values,
            tuple(self.data.values),
            inputs,
            outputs,
            self.data.required,
        )

    @property
    def in_shardings(self) -> Any:
        """`NamedSharding`s for the positional arguments, as `jax.jit(in_shardings=...)` takes them.

        Raises:
            PlanError: No plan was found, or it was read from a file and has no argument tree.
            InputError: This machine has too few devices for the mesh.
        """
        flat = self._named(self._arguments_as_written, "argument")
        positional, _ = jax.tree.unflatten(self._program().in_tree, flat)
        return positional

    @property
    def out_shardings(self) -> Any:
        """`NamedSharding`s for the result, as `jax.jit(out_shardings=...)` takes them."""
        flat = self._named(self._results_as_written, "result")
        return jax.tree.unflatten(self._program().out_tree, flat)

    @property
    def _arguments_as_written(self) -> list[Sharding]:
        asked = None if self.traced is None else self.traced.user_in
        return _as_written(self.data.arguments, asked, self.data.mesh)

    @property
    def _results_as_written(self) -> list[Sharding]:
        asked = None if self.traced is None else self.traced.user_out
        return _as_written(self.data.results, asked, self.data.mesh)

    def _named(self, shardings: list[Sharding], kind: str) -> tuple[NamedSharding | None, ...]:
        self.data.require_feasible()
        tensors = self.data.arguments if kind == "argument" else self.data.results
        names = [f"{kind} `{tensor.name}`" for tensor in tensors]
        return flat_named_shardings(shardings, self._devices(), names)

    def _program(self) -> Traced:
        if self.traced is None:
            raise PlanError(
                "a plan read from a file does not know the trees of the function's arguments",
                where=f"plan for {self.data.function}",
                fix="use plan.jit(fn), which finds them on the first call",
            )
        return self.traced

    @property
    def _is_of_module(self) -> bool:
        """Whether a StableHLO module was planned, and no Python function."""
        if self.traced is not None:
            return self.traced.platform == AS_WRITTEN
        return is_module_file(self.data.target or "")

    def _devices(self) -> JaxMesh:
        if self._jax_mesh is None:
            self._jax_mesh = JaxMesh(self.mesh or concrete_mesh(self.data.mesh))
        return self._jax_mesh

    # -- running under it -----------------------------------------------------------------------

    def wrap(self, fn: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """The function with the plan's constraints inside; trace, differentiate or jit it freely.

        Args:
            fn: The function planned, where the plan does not know it or it has to be another
                object of the same program.

        Raises:
            PlanError: On a call, when its program is not the one planned.
            InputError: This machine has too few devices for the mesh.
        """
        return wrap(
            self._function(fn),
            self.constraints,
            self._devices(),
            record=self.data.program,
            static_argnums=self.static_argnums,
            schedules=self.data.schedules,
        )

    def jit(self, fn: Callable[..., Any] | None = None, **jit_kwargs: Any) -> PlannedFunction:
        """`jax.jit` of the function with the plan's shardings at the boundary and inside.

        Args:
            fn: As for `wrap`.
            jit_kwargs: Passed on to `jax.jit`; `donate_argnums` is as planned unless given.
        """
        jit_kwargs.setdefault("donate_argnums", self.donate_argnums)
        jit_kwargs.setdefault("static_argnums", self.static_argnums)
        return jit_with(
            self._function(fn),
            self.constraints,
            self._devices(),
            self._arguments_as_written,
            self._results_as_written,
            record=self.data.program,
            schedules=self.data.schedules,
            **jit_kwargs,
        )

    def shard(self, tree: Any, argument: int = 0) -> Any:
        """Put arrays where the plan wants one argument: a state from a checkpoint, a batch.

        Args:
            tree: Like the argument.
            argument: Which positional argument it is for.
        """
        return shard(tree, self._in_shardings_of(argument), self._devices())

    def init(self, fn: Callable[..., Any], argument: int = 0) -> Callable[..., Any]:
        """An initialiser whose arrays are born sharded as the plan wants one argument.

        Nothing is ever whole on one device: `state = plan.init(init_state)(key)`.

        Args:
            fn: Returns something like the argument.
            argument: Which positional argument it is for.
        """
        return init(fn, self._in_shardings_of(argument), self._devices())

    def _in_shardings_of(self, argument: int) -> Any:
        """Shardings of one positional argument, counted with the static ones, as users do."""
        shardings = self.in_shardings
        num_args = len(shardings) + len(self.static_argnums)
        static = {number % num_args for number in self.static_argnums}
        position = argument + num_args if argument < 0 else argument
        if position in static or not 0 <= position < num_args:
            raise InputError(
                f"argument {argument} has no sharding: of {num_args} positional arguments,"
                f" {sorted(static) or 'none'} are static",
                where=f"plan for {self.data.function}",
                fix="count positional arguments from 0, static ones included",
            )
        return shardings[position - sum(1 for number in static if number < position)]

    def _function(self, fn: Callable[..., Any] | None) -> Callable[..., Any]:
        self.data.require_feasible()
        if self._is_of_module:
            raise PlanError(
                "the plan is of a StableHLO module, which has no function to run under it",
                where=f"plan for {self.data.function}",
                fix="call the module itself, jax.jit(plan.export().call)(*arrays), or write it:"
                " plan.stablehlo()",
            )
        chosen = fn or self.fn
        if chosen is None:
            raise PlanError(
                "the plan was read from a file and does not know its function",
                where=f"plan for {self.data.function}",
                fix="pass it: plan.jit(fn), or autoshard.load_plan(path, fn)",
            )
        return chosen

    def against_propagation(self, inputs: str = "plan") -> PropagationComparison:
        """Where the plan differs from what Shardy's propagation alone makes of the same inputs.

        Args:
            inputs: `plan`: propagation is given the plan's shardings of arguments and results;
                `program`: only what the program and its caller say.

        Raises:
            InputError: There are no such inputs.
            PlanError: No plan was found, or it was read from a file without its program.
        """
        program = self._program()
        propagator = propagator_for(program, self.data.mesh)
        if inputs == "plan":
            asked: tuple[Sequence[Sharding | None], Sequence[Sharding | None]] = (
                [tensor.sharding for tensor in self.data.arguments],
                [tensor.sharding for tensor in self.data.results],
            )
        else:
            asked = (program.user_in, program.user_out)
        given = tuple(
            tuple(map(with_word_dims, side, avals))
            for side, avals in zip(asked, (program.in_avals, program.out_avals), strict=True)
        )
        return against_propagation(
            propagator.propagate,
            self.data,
            self.constraints,
            (given[0], given[1]),
            program.source_by_equation,
            price=self.price,
            inputs=inputs,
        )

    # -- as a program ---------------------------------------------------------------------------

    def stablehlo(self, stage: str = PLANNED, *, platform: str | None = None) -> str:
        """The program as StableHLO text, with a sharding on every value.

        Calls are inlined; arrays that the function closes over come before its arguments.

        Args:
            stage: As it compiles if not given: constraints and groups in it, loops and branches
                with their shardings. Else the name of an export step (`reshards`, `no-groups`,
                `no-edges`, `divisible`, `closed`, `explicit`, `no-rules`, `collectives`), after
                which it is shown, or `annotated`, before all of them.
            platform: `cpu`, `tpu` or `cuda`, where the program is to run on that; by default ops
                belong to no platform as far as JAX has a choice.

        Raises:
            InputError: There is no such stage.
            PlanError: No plan was found, or it was read from a file without its program.
            ExportError: A step refuses the program.
        """
        return planned_text(self._annotated(platform), stage, self.prices)

    def _annotated(self, platform: str | None) -> bytes:
        self._refuse_schedules()
        program = lowered_for(self._program(), self.data.mesh, platform)
        return annotated_module(program, self.data, self.constraints)

    def _refuse_schedules(self) -> None:
        """StableHLO written from the traced program has products, and no schedules for them."""
        if self.data.schedules:
            raise PlanError(
                f"the plan runs {len(self.data.schedules)} products in steps, which the StableHLO"
                " of a plan cannot say yet",
                where=f"plan for {self.data.function}",
                fix='use plan.jit(fn).lower(...), or plan with schedules="none"',
            )

    def export(self, *, platform: str | None = None, flat: bool = False) -> jax.export.Exported:
        """The program as `jax.export` has it: `serialize()` it, and call it in another process.

        Args:
            platform: What it is to run on; that of this machine if not given.
            flat: Take and return the flat arrays instead of the function's own trees, which
                `serialize` refuses where they hold classes it was not told of (Optax states).

        Raises:
            PlanError: No plan was found, or it was read from a file without its program.
            InputError: This machine has too few devices for the mesh.
        """
        chosen = platform or jax.default_backend()
        return exported(
            self._annotated(chosen),
            self._program(),
            self._named(self._arguments_as_written, "argument"),
            self._named(self._results_as_written, "result"),
            platform=chosen,
            flat=flat,
        )

    # -- keeping and showing --------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the plan to a file, constraints included; nothing half-written is left behind."""
        if self.data.is_feasible and self.traced is not None:
            _ = self.constraints
        save_plan(self.data, Path(path))

    def report(self, width: int = 100) -> str:
        """The plan as text: totals, shardings, collectives, memory, and how sure it is."""
        return format_report(self.data, width=width)

    def program(self, after_round: int | None = None) -> str:
        """The program after a round of priorities as text, each value with its sharding.

        A star marks what the round changed.

        Args:
            after_round: The priority of the round; the last one if not given.

        Raises:
            InputError: There is no such round, or all shardings have one priority.
        """
        return format_program(self.data, after_round)

    def __str__(self) -> str:
        return self.report()


def _as_written(
    tensors: Sequence[PlannedTensor], asked: Sequence[Sharding | None] | None, mesh: Mesh
) -> list[Sharding]:
    """Planned shardings, on the mesh the user wrote one on where it says exactly the same there.

    One with the devices in another order is not one of those: JAX runs a program in one order.
    """
    plain = Mesh(mesh.axes)
    found = []
    for tensor, sharding in zip(tensors, asked or (None,) * len(tensors), strict=True):
        own = None if sharding is None else sharding.inlined_mesh
        is_exact = (
            sharding is not None
            and own is not None
            and own.device_ids is None
            and sharding.is_fully_closed
            and is_equivalent(sharding, plain, tensor.sharding, plain)
        )
        found.append(sharding if is_exact and sharding is not None else tensor.sharding)
    return found


def load_plan(
    path: str | Path,
    fn: Callable[..., Any] | None = None,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
) -> Plan:
    """Read a plan written by `Plan.save`.

    Args:
        path: The file.
        fn: The function it was made for; its program is checked on the first call.
        *args: Its arguments, as for `optimize`. With them the program is checked at once, and the
            plan knows the trees of arguments: `in_shardings`, `init` and `shard` work.
        kwargs: Its keyword arguments.

    Raises:
        PlanError: The file is cut, damaged, of another version, or no plan; or the program is not
            the one planned.
        ExportError: The function does not trace.
    """
    data = load_plan_data(Path(path))
    traced = None
    if fn is not None and (args or kwargs):
        traced = trace(
            fn,
            args,
            kwargs,
            mesh=data.mesh,
            donate_argnums=data.donate_argnums,
            static_argnums=data.static_argnums,
        )
        if traced.record.fingerprint != data.program.fingerprint:
            reason = data.program.difference(traced.record, canonical_lines(traced.jaxpr))
            raise PlanError(
                f"the plan was made for another program: {reason}",
                where=f"{path}, and `{data.function}` as it is now",
                fix="pass the function and the argument types it was planned with, or plan again",
            )
    return Plan(data, fn, traced, None, data.donate_argnums, data.static_argnums)
