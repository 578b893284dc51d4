"""Compiling a plan ahead of time and putting what came out beside what was predicted."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax

from autoshard.aot.compile_process import (
    CompiledAhead,
    CompileFailure,
    CompileRequest,
    Underway,
    finished,
)
from autoshard.aot.constraint_search import find_compiling_set
from autoshard.aot.installed import check_topology
from autoshard.aot.kept_compiles import kept_or_compiling
from autoshard.aot.program import Lowerer, ShardedProgram
from autoshard.aot.remedies import remedy_for
from autoshard.aot.targets import LOCAL, Target
from autoshard.backends import compiler_options
from autoshard.errors import InputError
from autoshard.hlo.compiled import read_module_collectives
from autoshard.hlo.local_program import DeviceSpeed, compiled_program
from autoshard.hlo.text import HloModule, parse_hlo
from autoshard.lowering.estimate import estimate
from autoshard.plans.plan import PlanData
from autoshard.report.quantities import format_bytes
from autoshard.sharding import Mesh, format_mesh
from autoshard.verification.collective_comparison import (
    WINDOWED,
    CollectiveComparison,
    CompiledCollective,
    compare_collectives,
)
from autoshard.verification.compiled_prices import CompiledPrices, known_slices
from autoshard.verification.verification import (
    COMPILED,
    CRASHED,
    PARTLY,
    REFUSED,
    FailedCompile,
    MemoryCheck,
    TimeCheck,
    Verification,
)
from cost_models import Hardware, machine_kind

_LEAST_SECONDS = 0.1
"""For a compile that begins just before time is up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """How to compile.

    Args:
        topology: For which devices; see `parse_target`.
        windowed_einsum: Let the compiler turn collectives beside matmuls into loops of
            permutations.
        compiler_options: Further flags of the compiler.
        timeout_seconds: For one compile.
        until: `time.monotonic` value after which no further compile begins and one that runs is
            ended; the first one always begins.
        max_tries: Compiles that a search for constraints that compile may take.
        keep_in: A folder for compiled programs; one that lies there is not compiled again.
    """

    topology: str = LOCAL
    windowed_einsum: bool = False
    compiler_options: Mapping[str, Any] = field(default_factory=dict)
    timeout_seconds: float = 600.0
    until: float = math.inf
    max_tries: int = 12
    keep_in: Path | None = None


@dataclass(slots=True, eq=False)
class _Compiles:
    """Compiles of one plan under some of its constraints."""

    lowerer: Lowerer
    request: CompileRequest
    keep_in: Path | None
    until: float = math.inf
    failures: list[FailedCompile] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    last: CompiledAhead | None = None

    def __call__(self, paths: Sequence[str]) -> bool:
        """True where it compiles with these constraints alone; keeps what came out."""
        return finished(self.begun(paths))

    def begun(self, paths: Sequence[str]) -> Underway[bool]:
        """The same, underway once this yields."""
        constraints = self.lowerer.program.constraints
        chosen = {path: constraints[path] for path in paths}
        program = self.lowerer.lower(chosen)
        left = max(self.until - time.monotonic(), _LEAST_SECONDS)
        limit = min(self.request.timeout_seconds, left)
        outcome = yield from kept_or_compiling(
            program, replace(self.request, timeout_seconds=limit), self.keep_in
        )
        if isinstance(outcome, CompiledAhead):
            self.last = outcome
            return True
        self.failures.append(_failed(outcome, len(paths)))
        return not self.is_over() and self._tries_remedy(outcome) and self(paths)

    def is_over(self) -> bool:
        """True once time is up for all compiles of the plan."""
        return time.monotonic() >= self.until

    def _tries_remedy(self, outcome: CompileFailure) -> bool:
        """Set the flags under which this failure is known not to come; whether there are any."""
        flags = self.request.compiler_options
        remedy = remedy_for(self.lowerer.platform, outcome.what, flags)
        if remedy is None:
            return False
        self.request = replace(self.request, compiler_options={**flags, **remedy.options})
        self.notes.append(remedy.note)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCompile:
    """The outcome of compiling a plan.

    Args:
        target: Compiled for.
        status: As of `Verification`.
        compiled: None where nothing compiled.
        compiler_options: Flags that were set in the end.
        failures: Compiles that came to nothing, in order.
        culprits: As of `Verification`.
        untried: As of `Verification`.
        notes: Of remedies that were taken.
    """

    target: Target
    status: str
    compiled: CompiledAhead | None
    compiler_options: Mapping[str, Any]
    failures: tuple[FailedCompile, ...] = ()
    culprits: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def compile_plan(program: ShardedProgram, options: VerifyOptions) -> PlanCompile:
    """Compile the program of a plan; where the compiler crashes, under fewer constraints.

    Args:
        program: Of the plan.
        options: How to compile.

    Raises:
        InputError: As `check_topology`; or compiled programs cannot be kept.
        ExportError: The program does not lower for the platform.
    """
    return finished(compiling_plan(program, options))


def compiling_plan(
    program: ShardedProgram, options: VerifyOptions, *, names_equations: bool = False
) -> Underway[PlanCompile]:
    """The same, underway once this yields.

    Args:
        program: Of the plan.
        options: How to compile.
        names_equations: Write the path of its equation into the name of every op.
    """
    data = program.data
    target = check_topology(options.topology, data.mesh)
    platform = target.platform or _local_platform()
    flags = {
        **compiler_options(
            platform, in_order=data.is_tight, windowed_einsum=options.windowed_einsum
        ),
        **{name: _flag(value) for name, value in options.compiler_options.items()},
    }
    compiles = _Compiles(
        Lowerer(program, platform, names_equations),
        CompileRequest(
            target=target,
            platform=jax.default_backend(),
            mesh_shape=tuple(data.mesh.sizes.values()),
            device_order=data.mesh.device_ids,
            compiler_options=flags,
            timeout_seconds=options.timeout_seconds,
        ),
        options.keep_in,
        options.until,
    )
    paths = tuple(program.constraints)
    status = COMPILED
    culprits: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()
    if not (yield from compiles.begun(paths)):
        first = compiles.failures[-1]
        status = first.status
        _refuse_impossible_topology(first, target)
        found = (
            find_compiling_set(paths, compiles, options.max_tries, compiles.is_over)
            if first.status == CRASHED and paths and options.max_tries and not compiles.is_over()
            else None
        )
        if found is not None:
            status, culprits, untried = PARTLY, found.culprits, found.untried
    return PlanCompile(
        target=target,
        status=status,
        compiled=compiles.last,
        compiler_options=compiles.request.compiler_options,
        failures=tuple(compiles.failures),
        culprits=culprits,
        untried=untried,
        notes=tuple(compiles.notes),
    )


def verify_plan(
    program: ShardedProgram, options: VerifyOptions, prices: CompiledPrices | None = None
) -> Verification:
    """Compile the program of a plan and compare.

    Args:
        program: Of the plan.
        options: How to compile.
        prices: Of the machine that the plan was made for, where it has no known name.

    Raises:
        InputError: The topology is unknown or impossible, has another number of devices than the
            mesh, or its compiler is not installed; or compiled programs cannot be kept.
        ExportError: The program does not lower for the platform.
    """
    return compare_plan(program.data, compile_plan(program, options), options, prices)


def compare_plan(
    data: PlanData,
    found: PlanCompile,
    options: VerifyOptions,
    prices: CompiledPrices | None = None,
) -> Verification:
    """A plan beside what was compiled of it.

    Args:
        data: The plan.
        found: What came of compiling it.
        options: How it was compiled.
        prices: Of the machine that the plan was made for, where it has no known name.
    """
    compiled = found.compiled
    machine = prices_for(data.hardware, Mesh(data.mesh.axes), found.target, prices)
    made = _Made.of(compiled, data, machine)
    return Verification(
        function=data.function,
        mesh=format_mesh(data.mesh),
        topology=found.target.text,
        device_kind="" if compiled is None else compiled.device_kind,
        versions={} if compiled is None else compiled.versions,
        status=found.status,
        windowed_einsum=options.windowed_einsum,
        compiler_options={name: str(value) for name, value in found.compiler_options.items()},
        collectives=made.comparison.rows,
        predicted_bytes=made.comparison.predicted_bytes,
        compiled_bytes=made.comparison.compiled_bytes,
        memory=made.memory,
        time=made.time,
        failures=found.failures,
        culprits=found.culprits,
        untried=found.untried,
        notes=(*_notes(data, found.target, compiled), *found.notes, *made.notes),
        compile_seconds=0.0 if compiled is None else compiled.seconds,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """What is read from a compiled program; nothing, where there is none."""

    comparison: CollectiveComparison
    memory: MemoryCheck | None
    time: TimeCheck | None
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(
        compiled: CompiledAhead | None,
        data: PlanData,
        prices: CompiledPrices | None,
    ) -> _Made:
        if compiled is None:
            return _Made(
                comparison=compare_collectives(data.collectives, ()), memory=None, time=None
            )
        module = parse_hlo(compiled.text)
        mesh = Mesh(data.mesh.axes)  # a program numbers its devices in the order of the mesh
        collectives = tuple(read_module_collectives(module, mesh))
        return _Made(
            comparison=compare_collectives(data.collectives, collectives),
            memory=_memory(data, compiled),
            time=_time(module, mesh, data, prices, _allocated(compiled)),
            notes=tuple(_reading_notes(collectives)),
        )


def _flag(value: Any) -> Any:
    """Truth values in the one way that every compiler reads: as such, not as words."""
    return {"true": True, "false": False}.get(str(value).lower(), value)


def _local_platform() -> str:
    """What JAX lowers for here.

    Raises:
        InputError: This process holds TPUs, which a second process cannot have.
    """
    backend = jax.default_backend()
    if backend == "tpu":
        raise InputError(
            "this process holds the TPU devices, and the compiler runs in another process",
            where='topology "local"',
            fix='name the slice instead, as in "v5e:4x4"; no device is touched then',
        )
    return "cuda" if backend == "gpu" else backend


def _refuse_impossible_topology(failure: FailedCompile, target: Target) -> None:
    """Tell a slice that cannot be from a program that cannot be compiled.

    Raises:
        InputError: The compiler knows no such slice.
    """
    words = failure.what.lower()
    if failure.status == REFUSED and target.platform and "topolog" in words:
        raise InputError(
            f"the compiler knows no such topology: {failure.what.partition(chr(10))[0]}",
            where=f'topology "{target.text}"',
            fix=f"write one of {', '.join(known_slices(target.hardware))} behind {target.kind}:"
            if target.platform == "tpu"
            else 'write hosts x GPUs of one host, as in "2x8xH100"',
        )


def _failed(outcome: CompileFailure, num_constraints: int) -> FailedCompile:
    return FailedCompile(
        status=outcome.kind,
        what=outcome.what,
        last_lines=outcome.last_lines,
        num_constraints=num_constraints,
    )


def prices_for(
    hardware: str, mesh: Mesh, target: Target, planned: CompiledPrices | None
) -> CompiledPrices | None:
    """Of the machine compiled for, with the slices that a plan for it was made for.

    Args:
        hardware: What was planned for.
        mesh: Of the plan.
        target: What is compiled for; on the devices at hand, that is what was planned for.
        planned: Prices of the plan, where they are known.
    """
    name = target.hardware or hardware
    if planned is not None and machine_kind(name) in _kinds(planned.model.hardware):
        return planned
    if machine_kind(hardware) == machine_kind(name):
        name = hardware
    return CompiledPrices.of_machine(name, mesh)


def _kinds(machine: Hardware) -> frozenset[str]:
    """Names under which a machine is known: its own, and that of the one it was calibrated from."""
    base = machine.name if machine.measured is None else machine.measured.base
    return frozenset({machine_kind(machine.name), machine_kind(base)})


def _allocated(compiled: CompiledAhead) -> dict[str, int]:
    """Bytes by kind of buffer, results in the memory of donated arguments once."""
    sizes = compiled.memory
    return {
        "argument": sizes["argument"],
        "output": sizes["output"] - sizes["alias"],
        "temporary": compiled.allocated_bytes - compiled.kept_bytes,
    }


def _memory(data: PlanData, compiled: CompiledAhead) -> MemoryCheck:
    allocated, sizes = _allocated(compiled), compiled.memory
    return MemoryCheck(
        predicted_bytes=data.memory.peak_bytes,
        compiled_bytes=sum(allocated.values()),
        predicted_argument_bytes=data.memory.argument_bytes,
        argument_bytes=sizes["argument"],
        output_bytes=sizes["output"],
        alias_bytes=sizes["alias"],
        temp_bytes=allocated["temporary"],
        code_bytes=sizes["generated_code"],
        predicted_host_bytes=data.memory.host_bytes,
        host_bytes=sum(sizes.get(f"host_{kind}", 0) for kind in ("argument", "output", "temp"))
        - sizes.get("host_alias", 0),
    )


def _time(
    module: HloModule,
    mesh: Mesh,
    data: PlanData,
    prices: CompiledPrices | None,
    allocated: Mapping[str, int],
) -> TimeCheck | None:
    if prices is None or prices.clock_hz is None:
        return None
    speed = DeviceSpeed(
        clock_hz=prices.clock_hz,
        bytes_per_second=prices.model.hardware.memory.bytes_per_second,
        moved_seconds=prices.moved_seconds,
    )
    found = estimate(compiled_program(module, mesh, prices.link_seconds, speed, allocated))
    if found.cycles == 0:
        return None
    beside = data.overlapped_seconds
    return TimeCheck(
        predicted_compute_seconds=data.compute_seconds,
        predicted_link_seconds=data.communication_seconds,
        predicted_overlapped_seconds=data.seconds if beside is None else beside,
        compute_seconds=found.compute_seconds,
        at_memory_speed_seconds=found.traffic_seconds,
        link_seconds=found.communication_seconds,
        overlapped_seconds=found.seconds,
        cycles=found.cycles,
        clock_hz=prices.clock_hz,
    )


def _notes(data: PlanData, target: Target, compiled: CompiledAhead | None) -> Iterator[str]:
    if target.hardware and target.hardware != machine_kind(data.hardware):
        yield f"the plan was made for {data.hardware}, and compiled for {target.hardware}"
    if compiled is not None and compiled.device_order == "as numbered" and target.platform == "tpu":
        yield "devices lie in the mesh as the compiler numbers them, not by neighbourhood"


def _reading_notes(collectives: Sequence[CompiledCollective]) -> Iterator[str]:
    if any(not collective.is_trip_count_known for collective in collectives):
        yield "a loop with collectives does not tell how often it runs; it is counted once"
    if strange := [c for c in collectives if c.axes is None]:
        yield (
            f"{len(strange)} collectives follow no axes of the mesh: the table is by group size,"
            " and their time is as if over the whole mesh"
        )
    windowed = [c for c in collectives if c.form == WINDOWED]
    if windowed:
        moved = sum(c.bytes_per_device * c.count for c in windowed)
        yield (
            f"windowed einsums move {format_bytes(moved)} in permutations beside matmuls, where"
            " gathers or scattered sums were planned; plan.jit compiles without them"
        )
