"""A plan one can act on: its shardings in JAX's terms, and the function run under it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
from jax.sharding import PartitionSpec

from autoshard.aot.program import ShardedProgram
from autoshard.aot.targets import LOCAL
from autoshard.aot.verify import VerifyOptions, verify_plan
from autoshard.apply.against_propagation import against_propagation
from autoshard.apply.boundary_shardings import in_module, planned_in_module
from autoshard.apply.logical_names import named_dims, names_by_pattern
from autoshard.apply.logical_rules import LogicalRules, find_logical_rules
from autoshard.apply.named_shardings import JaxMesh
from autoshard.apply.named_specs import argument_specs, module_rules
from autoshard.apply.plan_code import plan_code
from autoshard.apply.planned_function import PlannedFunction, jit_with
from autoshard.apply.propagation.propagator import propagator_for
from autoshard.apply.wrapping import wrap
from autoshard.argument_types import check_types
from autoshard.backends import compiler_options
from autoshard.build_plan import Solved
from autoshard.collectives import HardwarePrices, ModulePrices
from autoshard.constraints import Program
from autoshard.constraints.named import named_tensor
from autoshard.errors import InputError, PlanError
from autoshard.explain.explanation import Explanation
from autoshard.explain.known import known_explanation
from autoshard.explain.residual_notes import checkpoint_policy, is_named_residual, residual_notes
from autoshard.explain.state_notes import state_notes
from autoshard.explain.why import explain_tensor
from autoshard.export.exported import exported
from autoshard.export.module_file import is_module_file
from autoshard.export.module_program import module_program
from autoshard.export.plan_module import annotated_module
from autoshard.export.planned_text import PLANNED, planned_text
from autoshard.export.platform_module import AS_WRITTEN, lowered_for
from autoshard.frontend.annotations import names_from_metadata
from autoshard.frontend.meshes import abstract_mesh
from autoshard.frontend.program_facts import read_program
from autoshard.frontend.trace import Traced
from autoshard.plan_boundary import PlanBoundary
from autoshard.planned_call import PlannedCall
from autoshard.planning.solution import Solution
from autoshard.plans.plan import PlanData
from autoshard.plans.plan_json import save_plan
from autoshard.refine.compiled_plan import Compile, compiler_for
from autoshard.refine.contenders import Contenders, named_candidates
from autoshard.refine.corrections_file import SavedCorrections, save_corrections
from autoshard.refine.measured import Measurement
from autoshard.refine.request import check_request, is_measured
from autoshard.refine.rounds import RefineOptions, refine_plan
from autoshard.report import format_brief, format_frame, format_program, format_report
from autoshard.report.partition_rules import partition_rules
from autoshard.searched_constraints import searched_constraints
from autoshard.sharding import Mesh, Sharding
from autoshard.verification.compiled_prices import CompiledPrices
from autoshard.verification.propagation_comparison import PropagationComparison
from autoshard.verification.verification import Verification


@dataclass(eq=False, repr=False)
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
        solved: The problem that was solved, its answer, and all that went into it; None for a plan
            read from a file.
        solve_again: Solves the problem of a plan from a cache, when only that can answer.
        call: The call that made it; None for a plan read from a file, or of a module.
        corrections: What refining learnt; None for a plan that was not refined.
    """

    data: PlanData
    fn: Callable[..., Any] | None = None
    traced: Traced | None = None
    mesh: jax.sharding.Mesh | None = None
    donate_argnums: tuple[int, ...] = ()
    static_argnums: tuple[int, ...] = ()
    price: Callable[[Mapping[str, Sharding]], float | None] | None = None
    prices: ModulePrices | None = None
    solved: Solved | None = None
    solve_again: Callable[[], Solved] | None = None
    call: PlannedCall | None = None
    corrections: SavedCorrections | None = None
    _boundary: PlanBoundary = field(init=False)

    def __post_init__(self) -> None:
        self._boundary = PlanBoundary(self.data, self.traced, self.mesh, self.static_argnums)

    @property
    def solution(self) -> Solution | None:
        """The problem that was solved and its answer, in the planner's terms."""
        if self.solved is None and self.solve_again is not None:
            self.solved = self.solve_again()
        return None if self.solved is None else self.solved.solution

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
            self.data = searched_constraints(self.data, self.traced, self.price, self.solved)
        assert self.data.constraints is not None
        return self.data.constraints

    @property
    def in_shardings(self) -> Any:
        """`NamedSharding`s for the positional arguments, as `jax.jit(in_shardings=...)` takes them.

        For a Flax NNX object they are in its state, as `nnx.split` makes it.

        Raises:
            PlanError: No plan was found, or it was read from a file and has no argument tree.
            InputError: This machine has too few devices for the mesh.
        """
        return self._boundary.in_shardings()

    @property
    def out_shardings(self) -> Any:
        """`NamedSharding`s for the result, as `jax.jit(out_shardings=...)` takes them.

        Of a function of Flax NNX objects: of what it returns, and by flat argument of what replaces
        their arrays.
        """
        return self._boundary.out_shardings()

    @property
    def _is_of_module(self) -> bool:
        """Whether a StableHLO module was planned, and no Python function."""
        if self.traced is not None:
            return self.traced.platform == AS_WRITTEN
        return is_module_file(self.data.target or "")

    def replan(self, *args: Any, batch: int | None = None, **changes: Any) -> Plan:
        """Plan again after a change: the search starts from this plan.

        The trace stays where arguments, mesh, hardware and shardings at the boundary do.

        Args:
            *args: Other positional arguments; those of this plan if none are given.
            batch: Another number of examples in place of other arguments: all dimensions along
                which the arguments have examples, as far as matmuls tell.
            changes: Any option of `optimize` that is to be another: `mesh`, `memory_budget`,
                `relative_gap`, ... `constraints` are added to those that this plan was given.

        Raises:
            PlanError: The plan was read from a file, or is of a module.
            InputError, ExportError, ConstraintError: As `optimize`.
        """
        if self.call is None:
            raise PlanError(
                "the plan was read from a file or is of a module, and does not know its call",
                where=f"plan for {self.data.function}",
                fix="plan the function as changed, and start there: optimize(..., start=plan)",
            )
        planned: Plan = self.call.again(self, args, batch, changes)
        return planned

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
            self._boundary.devices,
            record=self.data.program,
            static_argnums=self.static_argnums,
            schedules=self.data.schedules,
            rewriting=self.data.rewriting,
            out_shardings=[tensor.sharding for tensor in self.data.results],
        )

    def jit(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        moves_arguments: bool = False,
        retraces: bool = True,
        **jit_kwargs: Any,
    ) -> PlannedFunction:
        """`jax.jit` of the function with the plan's shardings at the boundary and inside.

        Where the plan takes more than half of its memory budget, it is compiled to run in order.

        Args:
            fn: As for `wrap`.
            moves_arguments: Move arrays that lie on the devices in another sharding, which
                `jax.jit` refuses.
            retraces: Trace the function on a call, and refuse another program than the one planned;
                False takes the trace of the plan, and is for calls of its signature only.
            jit_kwargs: Passed on to `jax.jit`; `donate_argnums` is as planned unless given.

        Raises:
            InputError: Shardings among `jit_kwargs`, which are those of the plan.
        """
        for given in sorted({"in_shardings", "out_shardings"} & jit_kwargs.keys()):
            raise InputError(
                f"{given} is not free: it is the plan's",
                where=f"plan.jit({given}=...)",
                fix=f"plan with it, optimize(..., {given}=...), or let jit move arguments:"
                " moves_arguments=True",
            )
        jit_kwargs.setdefault("donate_argnums", self.donate_argnums)
        jit_kwargs.setdefault("static_argnums", self.static_argnums)
        check_types(
            donate_argnums=jit_kwargs["donate_argnums"], static_argnums=jit_kwargs["static_argnums"]
        )
        mesh = self._boundary.devices
        return jit_with(
            self._function(fn),
            self.constraints,
            mesh,
            self._boundary.arguments,
            self._boundary.results,
            record=self.data.program,
            schedules=self.data.schedules,
            rewriting=self.data.rewriting,
            own_compiler_options=compiler_options(mesh.platform, in_order=self.data.is_tight),
            moves_arguments=moves_arguments,
            known=None if retraces else self.traced,
            **jit_kwargs,
        )

    def shard(self, tree: Any, argument: int | tuple[int, ...] = 0) -> Any:
        """Put arrays where the plan wants one argument: a state from a checkpoint, a batch.

        Args:
            tree: Like the argument.
            argument: Which positional argument it is for; of a tuple of arguments, which ones.
        """
        return self._boundary.shard(tree, argument)

    def init(
        self, fn: Callable[..., Any], argument: int | tuple[int, ...] = 0
    ) -> Callable[..., Any]:
        """An initialiser whose arrays are born sharded as the plan wants one argument.

        Nothing is ever whole on one device: `state = plan.init(init_state)(key)`.

        Args:
            fn: Returns something like the argument.
            argument: Which positional argument it is for; of a tuple of arguments, which ones.
        """
        return self._boundary.init(fn, argument)

    def _function(self, fn: Callable[..., Any] | None) -> Callable[..., Any]:
        self.data.require_feasible()
        if self._is_of_module:
            raise PlanError(
                "the plan is of a StableHLO module, which has no function to run under it",
                where=f"plan for {self.data.function}",
                fix="call the module itself, jax.jit(plan.export().call)(*arrays), or write it:"
                " plan.stablehlo()",
            )
        chosen = self.fn if fn is None else fn
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
        check_types(inputs=inputs)
        program = self._boundary.program
        given = (
            planned_in_module(program, self.data)
            if inputs == "plan"
            else in_module(program, program.user_in, program.user_out)
        )
        return against_propagation(
            propagator_for(program, self.data.mesh).propagate,
            self.data,
            self.constraints,
            given,
            program.source_by_equation,
            price=self.price,
            inputs=inputs,
        )

    def why(
        self, tensor: str, *, num_alternatives: int = 8, time_limit_seconds: float = 60.0
    ) -> Explanation:
        """Why a tensor is sharded as it is; print it, or look at its fields.

        The program is planned again with the tensor held to other shardings, the most promising
        first, everything else free to follow: what each costs more, where, whether it fits, and
        what forbids the rest. A plan read from a file tells what it knows, without alternatives.

        Args:
            tensor: An argument, result or line in the words of constraints (`params["w1"]`,
                `model.py:42 dot_general`), or a path (`7.0`). It has to be a single tensor.
            num_alternatives: How many shardings to plan with at most.
            time_limit_seconds: For all of them together.

        Raises:
            InputError: It names nothing, or several tensors; says what is close, or which.
            PlanError: No plan was found.
        """
        check_types(
            tensor=tensor, num_alternatives=num_alternatives, time_limit_seconds=time_limit_seconds
        )
        self.data.require_feasible()
        if self.solution is None or self.traced is None:
            return known_explanation(self.data, tensor)
        traced = self.traced
        program = self._selectable(traced)
        is_residual = is_named_residual(self.data.residuals, tensor)
        path, name = named_tensor(program, tensor, first=is_residual)  # not the copy of it
        return explain_tensor(
            self.solution,
            path,
            name=name,
            num_alternatives=num_alternatives,
            time_limit_seconds=time_limit_seconds,
            asked=[term.text for term in self.data.asked if path in term.paths],
            notes=(
                *residual_notes(self.data.residuals, tensor, name),
                *state_notes(self.data, name),
            ),
        )

    def checkpoint_policy(self) -> str:
        """A `jax.checkpoint` policy that keeps what the plan keeps, as Python text to paste.

        Names to give to values that have none stand in comments, each with its line.

        Raises:
            PlanError: The plan chose no residuals, or no policy keeps the same; says why.
        """
        return checkpoint_policy(self.data.residuals)

    def code(self) -> str:
        """The plan as Python text to paste: `in_shardings`, `out_shardings`, and the constraints.

        The constraints are comments, each with the line of the program it goes to. No device is
        needed to write it.

        Raises:
            PlanError: No plan was found, or it was read from a file without its program, or the
                function takes Flax NNX objects.
        """
        self.data.require_feasible()
        program = self._boundary.program
        if program.takes_objects:
            raise PlanError(
                f"`{self.data.function}` takes Flax NNX objects, and jax.jit takes no shardings for"
                " them",
                where=f"plan for {self.data.function}",
                fix="run it with plan.jit(), which updates them; or plan a function of their states"
                " (nnx.split outside, nnx.merge inside), whose shardings can be written",
            )
        return plan_code(
            program,
            self._boundary.arguments,
            self._boundary.results,
            self.constraints,
            JaxMesh(self.mesh or abstract_mesh(self.data.mesh)),
            function=self.data.function,
            donate_argnums=self.donate_argnums,
        )

    def logical_rules(
        self, names: Mapping[str, Sequence[str | None]] | None = None
    ) -> LogicalRules:
        """Logical-axis rules, as Flax and MaxText take them, that give arguments their shardings.

        Args:
            names: By selector of arguments (`params**["kernel"]`), the logical axis of each
                dimension, or None for one without; the first selector that picks an argument
                counts. Without it, the names are those that Flax keeps with its variables
                (`nn.with_logical_partitioning`, `nnx.with_partitioning`).

        Returns:
            `(("embed", "data"), ("mlp", ("model", "x")), ("heads", None))`, in order of precedence.
            Arguments without logical names are not spoken of.

        Raises:
            PlanError: No such rules say the plan, and which two tensors contradict one another; or
                the plan was read from a file without its program, or not found.
            InputError: A selector picks no argument, or the number of names is wrong.
        """
        check_types(names=names)
        self.data.require_feasible()
        traced = self._boundary.program
        if names is None:
            logical = names_from_metadata(traced.in_tree)
        else:
            program = read_program(traced.jaxpr, traced.in_names, traced.out_names)
            logical = names_by_pattern(program, names)
        shardings = [tensor.sharding for tensor in self.data.arguments]
        return find_logical_rules(named_dims(traced.in_names, logical, shardings))

    def partition_specs(self, kind: str = "arguments") -> dict[str, PartitionSpec]:
        """`PartitionSpec`s by name, `{"params['w1']": P(None, 'model')}`; no program is needed.

        Args:
            kind: Of the `arguments` or the `results`.

        Raises:
            PlanError: No plan was found.
            InputError: There is no such kind.
            ShardingError: One of them is on parts of an axis, or on another mesh.
        """
        check_types(kind=kind)
        self.data.require_feasible()
        if kind not in ("arguments", "results"):
            raise InputError(
                f"there are no {kind!r} of a plan",
                where=f"kind={kind!r}",
                fix='use "arguments" or "results"',
            )
        tensors = self.data.arguments if kind == "arguments" else self.data.results
        return {one.name: PartitionSpec(*one.sharding.closed().spec) for one in tensors}

    def rules(self, of: str = "arguments") -> list[tuple[str, PartitionSpec]]:
        """Regular expressions and `PartitionSpec`s, as t5x, EasyLM and others take them.

        Names are the keys on the way to an array, joined by `/`, without the argument's own name. A
        rule applies to a name that it is found in (`re.search`); the first one counts.

        Args:
            of: The `arguments`; or `modules`: by the path of a module, what it hands on.

        Returns:
            `[("(^|/)attn/kernel$", P(None, "model")), (".*", P())]`. A module's expression stands
            behind `re:` in a constraint: `Pin("re:h_[0-9]+/attn", P("data"))`.

        Raises:
            PlanError: No plan was found, or of two arguments of one name; or, for modules, the plan
                was read from a file without its program.
            InputError: There are no such rules.
        """
        check_types(of=of)
        self.data.require_feasible()
        if of == "arguments":
            found = partition_rules(argument_specs(self.data.arguments))
        elif of == "modules":
            found = tuple(module_rules(self._selectable(self._boundary.program), self.data.values))
        else:
            raise InputError(
                f"there are no rules of {of!r}",
                where=f"of={of!r}",
                fix='use "arguments" or "modules"',
            )
        return [(pattern, PartitionSpec(*spec)) for pattern, spec in found]

    def _selectable(self, traced: Traced) -> Program:
        """The program as selectors see it."""
        if self._is_of_module:
            assert self.solution is not None
            return module_program(traced, self.solution.graph)
        return read_program(traced.jaxpr, traced.in_names, traced.out_names)

    def verify(
        self,
        topology: str = "local",
        *,
        windowed_einsum: bool = False,
        compiler_options: Mapping[str, Any] | None = None,
        timeout_seconds: float = 600.0,
        max_tries: int = 12,
        keep_in: str | os.PathLike[str] | None = None,
    ) -> Verification:
        """Compile the program for devices that need not be present, and compare with the plan.

        The compiler runs in a process of its own. Where it crashes on the plan's constraints, a set
        of them that compiles is looked for, and those that made it crash are named.

        Args:
            topology: `"v5e:4x4"`, `"2x v5e:4x4"` (slices of TPU chips, with `autoshard[tpu]`),
                `"8xH100"`, `"2x8xB200"` (hosts of GPUs, with `autoshard[gpu-verify]`), or
                `"local"`: the devices of this process, on CPU as many as the mesh has.
            windowed_einsum: Let the compiler turn collectives beside matmuls into loops of
                permutations, which plans do not price; `plan.jit` does not.
            compiler_options: Flags of the compiler by name.
            timeout_seconds: For one compile.
            max_tries: Compiles that the search for constraints that compile may take.
            keep_in: A folder for compiled programs, made where it is not there. A program that
                lies there is not compiled again.

        Raises:
            InputError: The topology is unknown or impossible, has another number of devices than
                the mesh, or its compiler is not installed; or compiled programs cannot be kept.
            PlanError: No plan was found, or it was read from a file without its program.
            ExportError: The program does not lower for the platform.
        """
        check_types(
            topology=topology,
            compiler_options=compiler_options,
            timeout_seconds=timeout_seconds,
            max_tries=max_tries,
            keep_in=keep_in,
        )
        self.data.require_feasible()
        if self.traced is None:
            raise PlanError(
                "the plan was read from a file and does not know its program",
                where=f"plan for {self.data.function}",
                fix="read it with the function and its arguments: autoshard.load_plan(path, fn,"
                " *args), or run `autoshard verify`, which loads them",
            )
        _ = self.constraints
        return verify_plan(
            ShardedProgram.of(self.data, self.traced),
            VerifyOptions(
                topology=topology,
                windowed_einsum=windowed_einsum,
                compiler_options=dict(compiler_options or {}),
                timeout_seconds=timeout_seconds,
                max_tries=max_tries,
                keep_in=None if keep_in is None else Path(keep_in),
            ),
            self._compiled_prices(),
        )

    def refine(
        self,
        target: str,
        *,
        rounds: int = 4,
        minutes: float = 15.0,
        candidates: Mapping[str, Any] | Sequence[Any] = (),
        arguments: Sequence[Any] | None = None,
        keep_in: str | os.PathLike[str] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Plan:
        """The best plan as compiled: compile, learn what the model missed, plan again.

        The first round compiles this plan, `candidates`, and the plans by hand of the report as
        people write them; every further one the best plan at corrected costs. The plan returned is
        the fastest that compiled within the memory budget; of equal ones the one with the fewest
        constraints. Its report lists all of them. Interrupted (Ctrl-C), it is the best so far.

        Args:
            target: What to compile for, as for `verify`: `"v5e:2x4"`, `"8xH100"`; or `"measure"`:
                run the step on the devices at hand.
            rounds: Of compiling, at most.
            minutes: After which no further compile begins, and one that runs is ended; with
                `measure` it is not.
            candidates: Further plans to compile, by name or in order: other plans of the same
                program, or shardings of its arguments as `jax.jit` takes them.
            arguments: What `measure` runs on; zeros of the right shapes if not given.
            keep_in: A folder for compiled programs, as for `verify`.
            progress: Told what is compiled and since when, line by line.

        Raises:
            InputError: An unknown target, one with another number of devices, a candidate of
                another program, no rounds, no time: before anything is compiled.
            PlanError: The plan was read from a file and cannot be planned again.
        """
        check_types(target=target, rounds=rounds, minutes=minutes, keep_in=keep_in)
        data = self.data
        check_request(target, rounds, minutes, data.mesh, data.hardware, len(jax.devices()))
        if self.solution is None or self.solved is None or self.traced is None:
            raise PlanError(
                "the plan was read from a file, without the problem to plan again",
                where=f"plan for {self.data.function}",
                fix="refine it where it is planned, optimize(..., refine=...), or run"
                " `autoshard refine`, which plans again",
            )
        named = {
            name: one.data if isinstance(one, Plan) else one
            for name, one in named_candidates(candidates).items()
        }
        contenders = Contenders(self.data.function, self.solved, self.data)
        contenders.check(named)
        options = RefineOptions(
            target=target,
            rounds=rounds,
            minutes=minutes,
            start=self.solved.setting.options.corrections,
            tell=progress or (lambda _: None),
        )
        compiles = self._compiler(target, arguments, keep_in)
        found = refine_plan(contenders, named, compiles, options)
        return replace(
            self,
            data=found.data,
            solved=found.solved,
            price=None if found.solved is None else found.solved.price,
            corrections=found.learnt(self.data),
        )

    def _compiler(
        self,
        target: str,
        arguments: Sequence[Any] | None,
        keep_in: str | os.PathLike[str] | None,
    ) -> Compile:
        """What compiles plans of this program, or runs them on the devices at hand."""
        traced = self._boundary.program
        options = VerifyOptions(
            topology=LOCAL if is_measured(target) else target,
            keep_in=None if keep_in is None else Path(keep_in),
        )
        compiles = compiler_for(traced, options, self._compiled_prices())
        if not is_measured(target):
            return compiles
        if self.static_argnums and arguments is None:
            raise InputError(
                "static arguments cannot be made by shape",
                where=f"`{self.data.function}`, static_argnums={self.static_argnums}",
                fix="pass what to run on: refine(..., arguments=(...))",
            )
        return Measurement(
            lambda data: replace(self, data=data).jit(),
            None if arguments is None else tuple(arguments),
            traced.in_avals,
            traced.in_tree,
            self.static_argnums,
            compiles,
        )

    def _compiled_prices(self) -> CompiledPrices | None:
        if isinstance(self.prices, HardwarePrices):
            return CompiledPrices(self.prices.model, Mesh(self.data.mesh.axes))
        return None

    def save_corrections(self, path: str | Path) -> None:
        """Write what refining learnt, for later plans: `optimize(..., corrections=path)`.

        Raises:
            PlanError: The plan was not refined.
            InputError: The file cannot be written.
        """
        if self.corrections is None:
            raise PlanError(
                "the plan was not refined, so nothing was learnt",
                where=f"plan for {self.data.function}",
                fix="plan.refine(target) first",
            )
        save_corrections(self.corrections, path)

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
        check_types(stage=stage, platform=platform)
        return planned_text(self._annotated(platform), stage, self.prices)

    def _annotated(self, platform: str | None) -> bytes:
        program = lowered_for(self._boundary.program, self.data.mesh, platform, self.data.schedules)
        return annotated_module(program, self.data, self.constraints)

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
            self._boundary.program,
            self._boundary.named_arguments,
            self._boundary.named_results,
            platform=chosen,
            flat=flat,
        )

    # -- keeping and showing --------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the plan to a file, constraints included; nothing half-written is left behind."""
        if self.data.is_feasible and self.traced is not None:
            _ = self.constraints
        save_plan(self.data, path)

    def report(self, width: int = 100, *, summary: bool = False) -> str:
        """The plan as text: totals, shardings, collectives, memory, and how sure it is.

        Args:
            width: Columns of the text; tables fold to keep within it.
            summary: Only totals, plans by hand, collectives and notes.
        """
        check_types(width=width)
        return format_report(self.data, width=width, summary=summary)

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

    def __repr__(self) -> str:
        return f"<Plan {format_brief(self.data)}>"

    def _repr_html_(self) -> str:
        """The page in a frame, for notebooks."""
        return format_frame(self.data)
